"""Selections and signs by as few calls as possible."""

import numpy as np

from caspar.ir.builder import GraphBuilder
from caspar.ir.ops import Op
from caspar.passes.cost import CUDA_FLOAT32
from caspar.passes.graph.simplify_selects import simplify_selects
from tests.passes.checking import assert_graph, assert_same_evaluation, graph_of


def test_a_negated_condition_swaps_the_branches() -> None:
    def write(builder: GraphBuilder, x: int, y: int) -> list[int]:
        condition = builder.unary(Op.NOT, builder.binary(Op.LT, x, y))
        return [builder.select(condition, x, y)]

    assert_graph(
        simplify_selects(graph_of(write, 2), CUDA_FLOAT32),
        """
        v0, v1 = read x[0]
        v2 = lt v0, v1
        v3 = select v2, v1, v0
        store y[0] v3
        """,
    )


def test_a_branch_knows_its_condition() -> None:
    def write(builder: GraphBuilder, x: int, y: int, z: int) -> list[int]:
        condition = builder.binary(Op.LT, x, y)
        inner = builder.select(condition, x, z)
        return [builder.select(condition, inner, y), builder.select(condition, y, inner)]

    assert_graph(
        simplify_selects(graph_of(write, 3), CUDA_FLOAT32),
        """
        v0, v1, v2 = read x[0]
        v3 = lt v0, v1
        v4 = select v3, v0, v1
        v5 = select v3, v1, v2
        store y[0] v4, v5
        """,
    )


def test_the_sign_of_both_branches_moves_out() -> None:
    def write(builder: GraphBuilder, x: int, y: int) -> list[int]:
        condition = builder.binary(Op.LT, x, y)
        return [builder.select(condition, builder.neg(x), builder.neg(y))]

    assert_graph(
        simplify_selects(graph_of(write, 2), CUDA_FLOAT32),
        """
        v0, v1 = read x[0]
        v2 = lt v0, v1
        v3 = select v2, v0, v1
        v4 = neg v3
        store y[0] v4
        """,
    )


def test_a_small_number_with_the_sign_of_another() -> None:
    def write(builder: GraphBuilder, x: int, y: int) -> list[int]:
        sign = builder.binary(Op.COPYSIGN, builder.const(1.0), x)
        return [builder.prod([builder.const(1e-6), sign]), builder.prod([y, sign])]

    assert_graph(
        simplify_selects(graph_of(write, 2), CUDA_FLOAT32),
        """
        v0, v1 = read x[0]
        v2 = const 1.0
        v3 = copysign v2, v0
        v4 = const 1e-06
        v5 = copysign v4, v0
        v6 = prod v1, v3
        store y[0] v5, v6
        """,
    )


def test_a_sign_that_is_there_twice() -> None:
    def write(builder: GraphBuilder, x: int, y: int) -> list[int]:
        sign = builder.binary(Op.COPYSIGN, builder.const(1.0), x)
        return [builder.prod([builder.const(0.25), sign, sign, y])]

    graph = graph_of(write, 2)
    after = simplify_selects(graph, CUDA_FLOAT32)
    assert_same_evaluation(graph, after, {"x": np.array([[-3.0, 5.0]])})
