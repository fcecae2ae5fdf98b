"""The whole middle end: evaluation is kept, the observer sees every stage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.ir.verify import verify_graph, verify_program
from caspar.passes.cost import CPU, CUDA_FLOAT32, CUDA_FLOAT64, OpCosts
from caspar.passes.pipeline import StageResult, compile_graph
from tests.ir.random_graphs import random_graph, random_inputs
from tests.passes.checking import assert_program, assert_same_evaluation, graph_of, ops_of

TARGETS = [CUDA_FLOAT32, CUDA_FLOAT64, CPU]


@given(st.integers(0, 10_000), st.sampled_from(TARGETS))
def test_evaluation_is_kept(seed: int, costs: OpCosts) -> None:
    graph = random_graph(seed)

    def verify(_stage: str, result: StageResult) -> None:
        if isinstance(result, Graph):
            verify_graph(result)

    program = compile_graph(graph, costs, verify)
    verify_program(program)
    assert_same_evaluation(graph, program, random_inputs(seed))


def test_observer_sees_every_stage() -> None:
    stages: list[str] = []
    compile_graph(random_graph(1), CPU, lambda stage, _: stages.append(stage))
    assert stages == ["input", "powers", "reciprocals", "sincos", "schedule", "registers"]


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
