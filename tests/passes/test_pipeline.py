"""The whole middle end: evaluation is kept, the observer sees every stage."""

import pytest

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.ops import Op
from caspar.passes.cost import CPU, CUDA_FLOAT32
from caspar.passes.pipeline import GRAPH_STAGES, compile_graph
from tests.ir.random_graphs import random_graph
from tests.passes.checking import assert_program, graph_of, ops_of


def test_observer_sees_every_stage() -> None:
    stages: list[str] = []
    compile_graph(random_graph(1), CPU, lambda stage, _: stages.append(stage))
    assert stages == ["input", *(name for name, _ in GRAPH_STAGES), "schedule", "registers"]


def test_only_native_ops_are_introduced() -> None:
    def write(builder: GraphBuilder, x: int) -> list[int]:
        return [builder.pow(x, -0.5), builder.unary(Op.SIN, x), builder.unary(Op.COS, x)]

    ops = ops_of(compile_graph(graph_of(write, 1), CPU))
    assert sorted(op.name for op in ops) == ["COS", "RCP", "SIN", "SQRT"]


def test_a_normalisation() -> None:
    def write(builder: GraphBuilder, x: int, y: int) -> list[int]:
        length = builder.unary(Op.SQRT, builder.sum([builder.prod([x, x]), builder.prod([y, y])]))
        return [builder.div(x, length), builder.div(y, length)]

    assert_program(
        compile_graph(graph_of(write, 2), CUDA_FLOAT32),
        """
        r0, r1 = read x[0]
        r2 = mul r0, r0
        r2 = fma r1, r1, r2
        r2 = rsqrt r2
        r0 = mul r0, r2
        r1 = mul r1, r2
        store y[0] r0, r1
        """,
    )


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
def test_the_dtype_is_kept(dtype: DType) -> None:
    assert compile_graph(random_graph(3, dtype=dtype), CUDA_FLOAT32).dtype is dtype
