"""Roots of sums of squares as norms, where the target has them cheaper."""

import numpy as np
import pytest

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.passes.cost import CPU, CUDA_FLOAT32, CUDA_FLOAT64, OpCosts
from caspar.passes.graph.use_norms import use_norms
from tests.passes.checking import assert_graph, assert_same_evaluation, graph_of, ops_of

CHEAP_NORMS = OpCosts(
    "cheap norms",
    {
        **CUDA_FLOAT32.prices,
        **dict.fromkeys((Op.NORM2, Op.NORM3, Op.NORM4, Op.RNORM2, Op.RNORM3, Op.RNORM4), 5),
    },
)


def length(root: Op, dim: int) -> Graph:
    def write(builder: GraphBuilder, *components: int) -> list[int]:
        return [builder.unary(root, builder.sum(builder.prod([c, c]) for c in components))]

    return graph_of(write, dim)


@pytest.mark.parametrize(
    ("root", "dim", "norm"),
    [
        (Op.SQRT, 2, Op.NORM2),
        (Op.SQRT, 3, Op.NORM3),
        (Op.SQRT, 4, Op.NORM4),
        (Op.RSQRT, 2, Op.RNORM2),
        (Op.RSQRT, 3, Op.RNORM3),
        (Op.RSQRT, 4, Op.RNORM4),
    ],
)
def test_lengths(root: Op, dim: int, norm: Op) -> None:
    assert ops_of(use_norms(length(root, dim), CHEAP_NORMS)) == [norm]


@pytest.mark.parametrize("costs", [CUDA_FLOAT32, CUDA_FLOAT64, CPU], ids=lambda costs: costs.name)
@pytest.mark.parametrize("root", [Op.SQRT, Op.RSQRT])
@pytest.mark.parametrize("dim", [2, 3, 4])
def test_a_norm_that_costs_more_is_not_used(costs: OpCosts, root: Op, dim: int) -> None:
    graph = length(root, dim)
    assert use_norms(graph, costs) == graph


def test_a_literal_is_a_component() -> None:
    def write(builder: GraphBuilder, x: int) -> list[int]:
        return [builder.unary(Op.SQRT, builder.sum([builder.prod([x, x]), builder.const(4.0)]))]

    assert_graph(
        use_norms(graph_of(write, 1), CHEAP_NORMS),
        """
        v0 = read x[0]
        v1 = const 2.0
        v2 = norm2 v0, v1
        store y[0] v2
        """,
    )


def test_a_squared_length_that_is_needed_itself_stays() -> None:
    def write(builder: GraphBuilder, x: int, y: int) -> list[int]:
        square = builder.sum([builder.prod([x, x]), builder.prod([y, y])])
        return [square, builder.unary(Op.SQRT, square)]

    graph = graph_of(write, 2)
    assert use_norms(graph, CHEAP_NORMS) == graph


@pytest.mark.parametrize("last", [-1.0, 0.5])
def test_other_sums_stay(last: float) -> None:
    def write(builder: GraphBuilder, x: int, y: int) -> list[int]:
        terms = [builder.prod([x, x]), builder.prod([x, y]), builder.const(last)]
        return [builder.unary(Op.SQRT, builder.sum(terms))]

    graph = graph_of(write, 2)
    assert use_norms(graph, CHEAP_NORMS) == graph


def test_a_sum_that_is_folded_meanwhile_stays() -> None:
    """x*x + x*x is made again as 2*x*x, a sum of three with a zero as one of two."""

    def write(builder: GraphBuilder, x: int, y: int) -> list[int]:
        square = builder.prod([x, x])
        twice = builder.call(Op.SUM, [square, square])[0]
        terms = [square, builder.prod([y, y]), builder.const(0.0)]
        padded = builder.call(Op.SUM, terms)[0]
        return [builder.unary(Op.SQRT, twice), builder.unary(Op.SQRT, padded)]

    graph = graph_of(write, 2, DType.FLOAT64)
    inputs = {"x": np.array([[3.0, 4.0]])}
    assert_same_evaluation(graph, use_norms(graph, CHEAP_NORMS), inputs)
