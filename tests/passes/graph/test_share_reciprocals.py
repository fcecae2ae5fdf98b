"""Reciprocals, shared where the kernel needs them more than once."""

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Graph
from caspar.passes.cost import CUDA_FLOAT32
from caspar.passes.graph.share_reciprocals import share_reciprocals
from tests.passes.checking import assert_graph, graph_of


def quotients(*numerators: str) -> Graph:
    def write(builder: GraphBuilder, a: int, b: int, x: int) -> list[int]:
        values = {"a": a, "b": b, "1": builder.const(1.0)}
        return [builder.div(values[name], x) for name in numerators]

    return graph_of(write, 3)


def test_a_division_alone_stays() -> None:
    graph = quotients("a")
    assert share_reciprocals(graph, CUDA_FLOAT32) == graph
    assert_graph(
        graph,
        """
        v0, v1, v2 = read x[0]
        v3 = div v0, v2
        store y[0] v3
        """,
    )


def test_two_divisions_share_a_reciprocal() -> None:
    assert_graph(
        share_reciprocals(quotients("a", "b"), CUDA_FLOAT32),
        """
        v0, v1, v2 = read x[0]
        v3 = rcp v2
        v4 = prod v0, v3
        v5 = prod v1, v3
        store y[0] v4, v5
        """,
    )


def test_a_division_uses_a_reciprocal_that_is_there() -> None:
    assert_graph(
        share_reciprocals(quotients("a", "1"), CUDA_FLOAT32),
        """
        v0, v1, v2 = read x[0]
        v3 = rcp v2
        v4 = prod v0, v3
        store y[0] v4, v3
        """,
    )
