"""Sums inside sums and products inside products become one."""

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.passes.cost import CUDA_FLOAT32
from caspar.passes.graph.flatten_reductions import flatten_reductions
from tests.passes.checking import assert_graph, graph_of


def flat(graph: Graph) -> Graph:
    return flatten_reductions(graph, CUDA_FLOAT32)


def test_a_difference_of_differences() -> None:
    def write(builder: GraphBuilder, a: int, b: int, c: int, d: int) -> list[int]:
        return [builder.sub(builder.sub(a, b), builder.sub(c, d))]

    assert_graph(
        flat(graph_of(write, 4)),
        """
        v0, v1, v2, v3 = read x[0]
        v4 = neg v1
        v5 = neg v2
        v6 = sum v0, v3, v4, v5
        store y[0] v6
        """,
    )


def test_products_of_products() -> None:
    def write(builder: GraphBuilder, a: int, b: int, c: int) -> list[int]:
        return [builder.prod([builder.neg(builder.prod([a, b])), builder.prod([c, c])])]

    assert_graph(
        flat(graph_of(write, 3)),
        """
        v0, v1, v2 = read x[0]
        v3 = prod v0, v1, v2, v2
        v4 = neg v3
        store y[0] v4
        """,
    )


def test_what_has_another_reader_stays() -> None:
    def write(builder: GraphBuilder, a: int, b: int, c: int) -> list[int]:
        inner = builder.sum([a, b])
        negated = builder.neg(builder.sum([b, c]))
        return [inner, builder.sum([inner, c]), negated, builder.sum([negated, a])]

    graph = graph_of(write, 3)
    assert flat(graph) == graph


def test_what_one_reader_reads_twice_stays() -> None:
    def write(builder: GraphBuilder, a: int, b: int, c: int) -> list[int]:
        product = builder.prod([a, b])
        return [builder.prod([product, product, c])]

    graph = graph_of(write, 3)
    assert flat(graph) == graph


def test_a_product_of_sums_is_not_expanded() -> None:
    def write(builder: GraphBuilder, a: int, b: int, c: int) -> list[int]:
        return [builder.prod([builder.sum([a, b]), c]), builder.prod([builder.sum([b, c]), a])]

    graph = graph_of(write, 3)
    assert flat(graph) == graph


def test_terms_that_cancel_vanish() -> None:
    def write(builder: GraphBuilder, a: int, b: int, c: int) -> list[int]:
        return [builder.sub(builder.sum([a, b]), builder.sum([a, c]))]

    assert_graph(
        flat(graph_of(write, 3)),
        """
        v0, v1, v2 = read x[0]
        v3 = neg v2
        v4 = sum v1, v3
        store y[0] v4
        """,
    )


def test_a_long_chain_takes_linear_time() -> None:
    """A chain of 20,000 sums: copying its terms at every link would take 2 * 10^8 steps."""

    def write(builder: GraphBuilder, *inputs: int) -> list[int]:
        total = inputs[0]
        for number in range(20_000):
            odd = builder.prod([inputs[1], builder.const(float(number + 2))])
            total = builder.sum([odd, total])
        return [total]

    (call,) = (c for c in flat(graph_of(write, 2, DType.FLOAT64)).calls if len(c.operands) > 2)
    assert len(call.operands) == 20_001
