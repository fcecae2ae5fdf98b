"""Reverse accumulation against SymEngine's own derivatives and against finite differences."""

from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from caspar.frontend.symbolic.derive import _PARTIALS, _SELECTIONS, gradient
from caspar.ir.ops import Op
from tests.frontend.evaluating import Scene
from tests.frontend.symbolic.expressions import NAMES, POINTS, Sample, samples
from tests.frontend.symbolic.test_lower import NUMPY_CASES, SYMPY_CASES

Array = NDArray[np.float64]

x, y, z = sf.symbols(" ".join(NAMES))
STEP = 1e-6


def derivatives(expression: Any, points: Array) -> Array:
    """(num_points, 3) gradients."""
    scene = Scene(NAMES)
    value = scene.lowering.lower(expression)
    inputs = [scene.symbols[name] for name in NAMES]
    return scene.evaluate(gradient(scene.builder, value, inputs), points)


def differences(expression: Any, points: Array) -> Array:
    """The same by central differences; NaN where the function jumps or has a kink nearby."""
    columns = []
    for axis in range(len(NAMES)):
        step = STEP * np.eye(len(NAMES))[axis]
        scene = Scene(NAMES)
        value = [scene.lowering.lower(expression)]
        stack = np.concatenate([points + step, points, points - step])
        after, here, before = scene.evaluate(value, stack)[:, 0].reshape(3, -1)
        right, left = (after - here) / STEP, (here - before) / STEP
        is_smooth = np.abs(right - left) < 1e-3 * (1.0 + np.abs(right))
        columns.append(np.where(is_smooth, (right + left) / 2.0, np.nan))
    return np.stack(columns, axis=1)


ALL_CASES = {name: case[0] for name, case in (*SYMPY_CASES.items(), *NUMPY_CASES.items())}


@pytest.mark.parametrize("name", ALL_CASES)
def test_every_function_against_differences(name: str) -> None:
    points = np.random.default_rng(1).uniform(0.1, 0.9, (40, 3))
    found, wanted = derivatives(ALL_CASES[name], points), differences(ALL_CASES[name], points)
    is_smooth = ~np.isnan(wanted)
    assert is_smooth.mean() > 0.3
    assert_allclose(found[is_smooth], wanted[is_smooth], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["Abs", "sign", "tanh", "atan2", "Min", "Piecewise", "clamp"])
def test_negative_arguments(name: str) -> None:
    points = np.random.default_rng(2).uniform(-2.0, 2.0, (60, 3))
    found, wanted = derivatives(ALL_CASES[name], points), differences(ALL_CASES[name], points)
    is_smooth = ~np.isnan(wanted)
    assert_allclose(found[is_smooth], wanted[is_smooth], rtol=1e-5, atol=1e-6)


@settings(max_examples=300)
@given(samples)
def test_random_expressions_against_symengine(sample: Sample) -> None:
    symbolic = [sample.expression.diff(symbol) for symbol in (x, y, z)]
    if any(name in str(symbolic) for name in ("Derivative", "zoo", "nan", "Subs")):
        return  # of Min, Max and Abs SymEngine has no derivative
    scene = Scene(NAMES)
    wanted = scene.evaluate([scene.lowering.lower(entry) for entry in symbolic], POINTS)
    found = derivatives(sample.expression, POINTS)
    is_tame = np.isfinite(wanted) & (np.abs(wanted) < 1e6)
    assert_allclose(found[is_tame], wanted[is_tame], rtol=1e-6, atol=1e-6)


def test_every_op_with_a_value_has_a_derivative() -> None:
    """Ops that residuals are lowered to, but for flat ones and truth values."""
    lowered_to = {*_PARTIALS, *_SELECTIONS, Op.SIGN, Op.FLOOR, Op.CONST, Op.READ}
    scene = Scene(NAMES)
    for expression in ALL_CASES.values():
        scene.builder.store("out", 0, [scene.lowering.lower(expression)])
    truth = {Op.LT, Op.LE, Op.EQ, Op.NE, Op.AND, Op.OR, Op.NOT, Op.STORE}
    assert {call.op for call in scene.builder.build().calls} <= lowered_to | truth


def test_independent_inputs_have_literal_zeros() -> None:
    scene = Scene(NAMES)
    value = scene.lowering.lower(x * sf.sin(x) + sf.floor(y))
    found = gradient(scene.builder, value, [scene.symbols[name] for name in NAMES])
    assert scene.builder.literal(found[0]) is None
    assert [scene.builder.literal(entry) for entry in found[1:]] == [0.0, 0.0]


def test_what_an_exchange_brings_back_is_an_input_or_constant() -> None:
    """Though it was made of another input, and of itself."""
    scene = Scene(NAMES)
    first, second, third = (scene.symbols[name] for name in NAMES)
    made = scene.builder.prod([first, second])
    back, other = scene.builder.exchange("node", [first, made])
    output = scene.builder.prod([back, other, first, third])
    found = gradient(scene.builder, output, [first, second, back])
    wanted = [
        scene.builder.prod([back, other, third]),
        scene.builder.const(0.0),
        scene.builder.prod([other, first, third]),
    ]
    points = np.random.default_rng(1).uniform(0.1, 0.9, (5, 3))
    numbers = scene.evaluate([*found, *wanted], points)
    assert_allclose(numbers[:, :3], numbers[:, 3:])


def test_the_input_itself_and_a_constant() -> None:
    scene = Scene(NAMES)
    inputs = [scene.symbols[name] for name in NAMES]
    of_input = gradient(scene.builder, inputs[1], inputs)
    assert [scene.builder.literal(entry) for entry in of_input] == [0.0, 1.0, 0.0]
    of_constant = gradient(scene.builder, scene.builder.const(3.0), inputs)
    assert [scene.builder.literal(entry) for entry in of_constant] == [0.0, 0.0, 0.0]


def test_an_operand_that_occurs_twice_counts_twice() -> None:
    points = np.array([[1.5, 0.5, 0.0]])
    assert_array_equal(derivatives(x * x, points), [[3.0, 0.0, 0.0]])
    assert_allclose(derivatives(sf.atan2(x, x) + x**y * x, points)[:, 0], [1.5 * 1.5**0.5])


@pytest.mark.parametrize(
    ("expression", "left", "right"),
    [(sf.Max(x, y), 0.0, 1.0), (sf.Min(x, y), 1.0, 0.0), (sf.Abs(x - y), -1.0, 1.0)],
    ids=["Max", "Min", "Abs"],
)
def test_the_chosen_branch_is_derived(expression: Any, left: float, right: float) -> None:
    points = np.array([[1.0, 2.0, 0.0], [3.0, 2.0, 0.0]])
    assert_array_equal(derivatives(expression, points)[:, 0], [left, right])


def test_a_tie_takes_one_branch_whole() -> None:
    """At a kink the slopes of both operands of Min and Max add up to one, as on either side."""
    points = np.array([[2.0, 2.0, 0.0]])
    for expression in (sf.Max(x, y), sf.Min(x, y)):
        assert derivatives(expression, points).sum() == 1.0


def test_the_branch_not_taken_leaves_no_nan() -> None:
    """0 * NaN is NaN: what is not chosen must not be multiplied in."""
    expression = sf.Piecewise((sf.sqrt(x), x > 0), (x, True))
    points = np.array([[-1.0, 0.0, 0.0], [4.0, 0.0, 0.0]])
    assert_array_equal(derivatives(expression, points)[:, 0], [1.0, 0.25])


def test_selections_of_selections_do_not_double() -> None:
    """Each of 30 selections uses the one before it in both branches."""
    expression = x
    for number in range(30):
        expression = sf.Piecewise((sf.sin(expression), y < number), (2 * expression, True))
    scene = Scene(NAMES)
    value = scene.lowering.lower(expression)
    slope = gradient(scene.builder, value, [scene.symbols["x"]])
    found = scene.evaluate(slope, np.array([[0.3, 27.5, 0.0]]))
    wanted, at = 1.0, 0.3
    for number in range(30):
        wanted, at = (np.cos(at) * wanted, np.sin(at)) if number > 27.5 else (2 * wanted, 2 * at)
    assert_allclose(found, [[wanted]])
