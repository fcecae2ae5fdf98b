"""Reciprocals and sincos, shared where the kernel needs them more than once."""

from hypothesis import given
from hypothesis import strategies as st

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.ir.verify import verify_graph
from caspar.passes.context import fuse_sincos, share_reciprocals
from caspar.passes.cost import CPU, CUDA_FLOAT32
from tests.ir.random_graphs import random_graph, random_inputs
from tests.passes.checking import assert_graph, assert_same_evaluation, graph_of


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


def sines(*ops: Op) -> Graph:
    def write(builder: GraphBuilder, x: int) -> list[int]:
        return [builder.unary(op, x) for op in ops]

    return graph_of(write, 1)


def test_sin_and_cos_of_one_argument_are_fused() -> None:
    assert_graph(
        fuse_sincos(sines(Op.COS, Op.SIN), CUDA_FLOAT32),
        """
        v0 = read x[0]
        v1, v2 = sincos v0
        store y[0] v2, v1
        """,
    )


def test_other_sines_stay() -> None:
    def write(builder: GraphBuilder, x: int, z: int) -> list[int]:
        return [builder.unary(Op.SIN, x), builder.unary(Op.COS, z)]

    for graph in (sines(Op.SIN), graph_of(write, 2)):
        assert fuse_sincos(graph, CUDA_FLOAT32) == graph


def test_a_target_without_sincos() -> None:
    graph = sines(Op.SIN, Op.COS)
    assert fuse_sincos(graph, CPU) == graph


@given(st.integers(0, 10_000))
def test_evaluation_is_kept(seed: int) -> None:
    graph = random_graph(seed)
    for stage in (share_reciprocals, fuse_sincos):
        after = stage(graph, CUDA_FLOAT32)
        verify_graph(after)
        assert_same_evaluation(graph, after, random_inputs(seed))
