"""Products with powers of two as changes of the exponent."""

import numpy as np
import pytest

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.passes.cost import CPU, CUDA_FLOAT32, CUDA_FLOAT64, OpCosts
from caspar.passes.graph.scale_exponents import scale_exponents
from tests.passes.checking import assert_graph, assert_same_evaluation, graph_of

FREE_SCALING = OpCosts("free scaling", {**CUDA_FLOAT32.prices, Op.LDEXP: 0.5})


def scaled(literal: float) -> Graph:
    def write(builder: GraphBuilder, x: int, y: int) -> list[int]:
        return [builder.prod([x, builder.const(literal), y])]

    return graph_of(write, 2)


def test_a_power_of_two() -> None:
    assert_graph(
        scale_exponents(scaled(0.125), FREE_SCALING),
        """
        v0, v1 = read x[0]
        v2 = prod v0, v1
        v3 = const -3.0
        v4 = ldexp v2, v3
        store y[0] v4
        """,
    )


@pytest.mark.parametrize("literal", [2.0, 8.0, -0.25, 2.0**-90])
def test_evaluation_is_kept(literal: float) -> None:
    graph = scaled(literal)
    assert_same_evaluation(
        graph, scale_exponents(graph, FREE_SCALING), {"x": np.array([[3.0, -0.7]])}
    )


@pytest.mark.parametrize("literal", [3.0, 2.0**120, float("inf"), float("nan")])
def test_other_literals_stay(literal: float) -> None:
    graph = scaled(literal)
    assert repr(scale_exponents(graph, FREE_SCALING)) == repr(graph)  # NaN equals nothing


@pytest.mark.parametrize("costs", [CUDA_FLOAT32, CUDA_FLOAT64, CPU], ids=lambda costs: costs.name)
def test_a_product_is_as_cheap_on_every_target_so_far(costs: OpCosts) -> None:
    graph = scaled(4.0)
    assert scale_exponents(graph, costs) == graph
