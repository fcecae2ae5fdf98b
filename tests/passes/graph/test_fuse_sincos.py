"""Sine and cosine of one argument in one call."""

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.passes.cost import CPU, CUDA_FLOAT32
from caspar.passes.graph.fuse_sincos import fuse_sincos
from tests.passes.checking import assert_graph, graph_of


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
