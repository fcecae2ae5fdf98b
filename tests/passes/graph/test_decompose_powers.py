"""Rational powers: what they become, and that they keep the meaning of `pow`."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.passes.cost import CPU, CUDA_FLOAT32, CUDA_FLOAT64, OpCosts
from caspar.passes.graph.decompose_powers import cheapest_chain, decompose_powers, rational_exponent
from tests.passes.checking import assert_graph, assert_same_evaluation, graph_of, ops_of
from tests.support_verify import verify_graph

TARGETS = [CUDA_FLOAT32, CUDA_FLOAT64, CPU]


def powers_of_x(*exponents: float, dtype: DType = DType.FLOAT64) -> Graph:
    def write(builder: GraphBuilder, x: int) -> list[int]:
        return [builder.pow(x, exponent) for exponent in exponents]

    return graph_of(write, 1, dtype)


@pytest.mark.parametrize(
    ("exponents", "ops"),
    [
        ((-1 / 6,), [Op.SQRT, Op.RCBRT]),
        ((2.0,), [Op.PROD]),
        ((2.0, 3.0, 4.0), [Op.PROD] * 3),
        ((15.0,), [Op.PROD] * 5),
        ((0.5,), [Op.SQRT]),
        ((-0.5,), [Op.RSQRT]),
        ((1.5,), [Op.SQRT, Op.PROD]),
        ((1 / 3,), [Op.CBRT]),
        ((2 / 3,), [Op.CBRT, Op.PROD]),
        ((-2.0,), [Op.RCP, Op.PROD]),
        ((0.5, -0.5), [Op.SQRT, Op.RCP]),
        ((0.37,), [Op.POW]),
        ((100.0,), [Op.POW]),
    ],
    ids=str,
)
def test_decompositions(exponents: tuple[float, ...], ops: list[Op]) -> None:
    assert sorted(ops_of(decompose_powers(powers_of_x(*exponents), CUDA_FLOAT32)), key=str) == (
        sorted(ops, key=str)
    )


def test_sixth_root_is_taken_inside_out() -> None:
    assert_graph(
        decompose_powers(powers_of_x(-1 / 6), CUDA_FLOAT32),
        """
        v0 = read x[0]
        v1 = sqrt v0
        v2 = rcbrt v1
        store y[0] v2
        """,
    )


def test_a_target_without_reciprocal_roots() -> None:
    assert ops_of(decompose_powers(powers_of_x(-0.5), CPU)) == [Op.SQRT, Op.RCP]


def test_prices_decide() -> None:
    dear_roots = OpCosts("dear roots", {**CUDA_FLOAT32.prices, Op.CBRT: 999, Op.RCBRT: 999})
    assert ops_of(decompose_powers(powers_of_x(1 / 3), dear_roots)) == [Op.POW]


def test_quotient_by_root_is_a_product() -> None:
    def write(builder: GraphBuilder, a: int, x: int) -> list[int]:
        return [builder.div(a, builder.unary(Op.SQRT, x))]

    assert_graph(
        decompose_powers(graph_of(write, 2), CUDA_FLOAT32),
        """
        v0, v1 = read x[0]
        v2 = rsqrt v1
        v3 = prod v0, v2
        store y[0] v3
        """,
    )


def test_root_and_its_inverse_of_a_positive_base() -> None:
    def write(builder: GraphBuilder, x: int) -> list[int]:
        base = builder.sum([builder.const(0.5), builder.prod([x, x])])
        return [builder.pow(base, 0.5), builder.pow(base, -0.5)]

    # x * rsqrt(x) would be NaN at 0, which the base cannot be
    ops = ops_of(decompose_powers(graph_of(write, 1), CUDA_FLOAT32))
    assert ops == [Op.PROD, Op.SUM, Op.RSQRT, Op.PROD]


def test_square_root_of_a_square_is_no_identity() -> None:
    def write(builder: GraphBuilder, x: int) -> list[int]:
        return [builder.pow(builder.pow(x, 2.0), 0.5), builder.pow(builder.pow(x, 0.5), 2.0)]

    graph = graph_of(write, 1, DType.FLOAT64)
    x = {"x": np.array([[-3.0], [3.0]])}
    result = evaluate_graph(decompose_powers(graph, CUDA_FLOAT32), x)["y"]
    assert_allclose(result, [[3.0, np.nan], [3.0, 3.0]])


def test_chains_keep_the_domain() -> None:
    half, third = Fraction(1, 2), Fraction(1, 3)
    # x^(3/2) * x^(3/2) is NaN for negative x, x^3 is not
    chain = cheapest_chain(
        Fraction(3), frozenset({Fraction(1), 3 * half}), CUDA_FLOAT32, positive=False
    )
    assert chain is not None
    assert [step.exponent for step in chain] == [2, 3]
    # sqrt(x^(2/3)) is the magnitude of x^(1/3)
    chain = cheapest_chain(third, frozenset({Fraction(1), 2 * third}), CUDA_FLOAT32, positive=False)
    assert chain is not None
    assert [step.op for step in chain] == [Op.CBRT]


@settings(max_examples=settings().max_examples // 2)
@given(
    st.lists(
        st.fractions(-5, 5, max_denominator=9).filter(lambda e: e not in (0, 1)),
        min_size=1,
        max_size=4,
        unique=True,
    ),
    st.sampled_from(TARGETS),
)
def test_powers_keep_their_values(exponents: list[Fraction], costs: OpCosts) -> None:
    graph = powers_of_x(*map(float, exponents))
    after = decompose_powers(graph, costs)
    verify_graph(after)
    points = np.array([[0.0], [1e-3], [0.7], [1.0], [2.5], [1e3], [np.inf], [np.nan]])
    before_values = evaluate_graph(graph, {"x": points})["y"]
    after_values = evaluate_graph(after, {"x": points})["y"]
    assert_allclose(after_values, before_values, rtol=1e-12)


@given(st.fractions(-5, 5, max_denominator=9).filter(lambda e: e != 0))
def test_negative_bases(exponent: Fraction) -> None:
    """Even denominators stay NaN; odd ones are the power of the real root."""
    graph = decompose_powers(powers_of_x(float(exponent)), CUDA_FLOAT64)
    if Op.POW in ops_of(graph):
        return
    (found,) = evaluate_graph(graph, {"x": np.array([[-2.5]])})["y"][0]
    magnitude = 2.5 ** float(exponent)
    if exponent.denominator % 2 == 0:
        assert np.isnan(found)
    else:
        expected = -magnitude if exponent.numerator % 2 != 0 else magnitude
        assert_allclose(found, expected)


@pytest.mark.parametrize("exponent", [1.5, -1.5, 2.5, 2 / 3, -7 / 6])
def test_no_intermediate_power_overflows(exponent: float) -> None:
    graph = decompose_powers(powers_of_x(exponent, dtype=DType.FLOAT32), CUDA_FLOAT32)
    points = np.array([[1e-14], [1e14]])
    result = evaluate_graph(graph, {"x": points})["y"]
    assert_allclose(result, points**exponent, rtol=1e-5)


def test_rational_exponents() -> None:
    assert rational_exponent(-1 / 6) == Fraction(-1, 6)
    assert rational_exponent(0.1 + 0.2) is None
    assert rational_exponent(1 / 7) is None
    assert rational_exponent(float("nan")) is None
    assert rational_exponent(1 / 3 + 1e-9) is None


def test_a_division_beside_another_negative_power() -> None:
    """x/z and y/z^2: one reciprocal."""

    def write(builder: GraphBuilder, x: int, y: int, z: int) -> list[int]:
        return [builder.div(x, z), builder.div(y, builder.pow(z, 2.0))]

    assert_graph(
        decompose_powers(graph_of(write, 3), CUDA_FLOAT32),
        """
        v0, v1, v2 = read x[0]
        v3 = rcp v2
        v4 = prod v0, v3
        v5 = prod v3, v3
        v6 = prod v1, v5
        store y[0] v4, v6
        """,
    )


@pytest.mark.parametrize("costs", TARGETS, ids=lambda costs: costs.name)
@pytest.mark.parametrize(("op", "depth"), [(Op.SQRT, 4), (Op.CBRT, 3)])
def test_roots_of_roots_beyond_the_plans(costs: OpCosts, op: Op, depth: int) -> None:
    def write(builder: GraphBuilder, x: int) -> list[int]:
        for _ in range(depth):
            x = builder.unary(op, x)
        return [x]

    graph = graph_of(write, 1, DType.FLOAT64)
    inputs = {"x": np.array([[0.3], [7.0], [1e10]])}
    assert_same_evaluation(graph, decompose_powers(graph, costs), inputs)
