"""Lowering against SymPy, and against NumPy where SymPy lacks a function."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
import sympy
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy import special

from caspar.errors import UnsupportedFunctionError
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.ops import PROGRAM_ONLY, Op
from tests.frontend.evaluating import Scene, lowered
from tests.frontend.symbolic.expressions import NAMES, POINTS, Sample, samples

Array = NDArray[np.float64]

x, y, z = sf.symbols(" ".join(NAMES))
RNG = np.random.default_rng(0)
ANYWHERE = np.concatenate([RNG.uniform(-3.0, 3.0, (60, 3)), [[0.0, 1.0, -1.0], [2.0, -2.0, 0.5]]])
POSITIVE = RNG.uniform(0.1, 3.0, (60, 3))
UNIT = RNG.uniform(-1.0, 1.0, (60, 3))

SYMPY_CASES: dict[str, tuple[Any, Array]] = {
    "sum": (x + y - 3 + z / 2, ANYWHERE),
    "opposite terms": (x - y - x + 2 * y, ANYWHERE),
    "product": (-2 * x * y * z, ANYWHERE),
    "quotient": (x / (y * z), POSITIVE),
    "negative denominator": (z / (-x - y), POSITIVE),
    "negative denominators": (z / ((-x - y) * (-x - z) ** 2), POSITIVE),
    "sign in a root": (x / sf.sqrt(y + z), POSITIVE),
    "constant denominator": (x / sf.pi, ANYWHERE),
    "root of a constant below": (x / sf.sqrt(sf.pi), ANYWHERE),
    "power of e below": (x * sf.exp(-2), ANYWHERE),
    "exponential below": (x * sf.exp(-y), ANYWHERE),
    "integer powers": (x**2 + y**3 + z**7, ANYWHERE),
    "negative powers": (x**-1 + y**-2 + z**-5, POSITIVE),
    "roots": (sf.sqrt(x) + y ** (sf.S(1) / 3) + z ** (sf.S(-3) / 2), POSITIVE),
    "decimal power": (x**0.3 * y**-1.7, POSITIVE),
    "variable power": (x**y, POSITIVE),
    "power of a constant": (2**x + sf.S(1) / 3**y, ANYWHERE),
    "exp": (sf.exp(x), ANYWHERE),
    "log": (sf.log(x), POSITIVE),
    "logarithm of a base": (sf.log(x, 2), POSITIVE),
    "sin": (sf.sin(x), ANYWHERE),
    "cos": (sf.cos(x), ANYWHERE),
    "tan": (sf.tan(x), UNIT),
    "asin": (sf.asin(x), UNIT),
    "acos": (sf.acos(x), UNIT),
    "atan": (sf.atan(x), ANYWHERE),
    "atan2": (sf.atan2(x, y), ANYWHERE),
    "sinh": (sf.sinh(x), ANYWHERE),
    "cosh": (sf.cosh(x), ANYWHERE),
    "tanh": (sf.tanh(x), ANYWHERE),
    "asinh": (sf.asinh(x), ANYWHERE),
    "acosh": (sf.acosh(1 + x), POSITIVE),
    "atanh": (sf.atanh(x), UNIT),
    "Abs": (sf.Abs(x), ANYWHERE),
    "sign": (sf.sign(x), ANYWHERE),
    "floor": (sf.floor(x), ANYWHERE),
    "ceiling": (sf.ceiling(x), ANYWHERE),
    "Mod": (sf.Mod(x, y), POSITIVE),
    "Min": (sf.Min(x, y, z), ANYWHERE),
    "Max": (sf.Max(x, y, 0), ANYWHERE),
    "Piecewise": (sf.Piecewise((x, x < y), (y**2, x < z), (z, True)), ANYWHERE),
    "Piecewise without an end": (sf.Piecewise((x, x < y)), ANYWHERE),
    "and, or, not": (
        sf.Piecewise(
            (x, sf.sympy.And(x < y, y <= z)),
            (y, sf.sympy.Or(sf.sympy.Eq(x, 0), sf.sympy.Not(sf.sympy.Or(y < z, x < z)))),
            (z, True),
        ),
        ANYWHERE,
    ),
    "not exactly one": (
        sf.Piecewise((x, sf.sympy.Xnor(x < y, y < z)), (z, True)),
        ANYWHERE,
    ),
    "equal": (sf.Piecewise((x, sf.sympy.Eq(x, y)), (z, sf.sympy.Ne(y, z))), np.sign(ANYWHERE)),
    "constants": (sf.pi + sf.sqrt(3) * x + sf.exp(1) + sf.S(7) / 3, ANYWHERE),
}

NUMPY_CASES: dict[str, tuple[Any, Callable[[Array, Array], Array]]] = {
    "erf": (sf.erf(x), lambda a, b: special.erf(a)),
    "erfc": (sf.erfc(x), lambda a, b: special.erfc(a)),
    "sign_no_zero": (sf.sign_no_zero(x), lambda a, b: np.where(a >= 0, 1.0, -1.0)),
    "copysign_no_zero": (sf.copysign_no_zero(x, y), np.copysign),
    "argmax_onehot": (sf.argmax_onehot([x, y])[0], lambda a, b: np.where(a >= b, 1.0, 0.0)),
    "less": (sf.less(x, y), lambda a, b: np.where(a < b, 1.0, 0.0)),
    "less_equal": (sf.less_equal(x, y), lambda a, b: np.where(a <= b, 1.0, 0.0)),
    "greater": (sf.greater(x, y), lambda a, b: np.where(a > b, 1.0, 0.0)),
    "is_positive": (sf.is_positive(x), lambda a, b: np.where(a > 0, 1.0, 0.0)),
    "is_nonnegative": (sf.is_nonnegative(x), lambda a, b: np.where(a >= 0, 1.0, 0.0)),
    "clamp": (sf.clamp(x, -1, 0.5), lambda a, b: np.clip(a, -1.0, 0.5)),
    "wrap_angle": (sf.wrap_angle(x), lambda a, b: np.mod(a + np.pi, 2 * np.pi) - np.pi),
}


@pytest.mark.parametrize("name", SYMPY_CASES)
def test_equals_sympy(name: str) -> None:
    expression, points = SYMPY_CASES[name]
    function = sympy.lambdify(NAMES, expression._sympy_(), "numpy")
    with np.errstate(all="ignore"):
        wanted = np.broadcast_to(function(*points.T), len(points))
    found = lowered([expression], NAMES, points)[:, 0]
    assert_allclose(found, wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", NUMPY_CASES)
def test_symforce_functions(name: str) -> None:
    expression, function = NUMPY_CASES[name]
    found = lowered([expression], NAMES, ANYWHERE)[:, 0]
    assert_allclose(found, function(ANYWHERE[:, 0], ANYWHERE[:, 1]), rtol=1e-13, atol=1e-13)


@settings(max_examples=300)
@given(samples)
def test_random_expressions(sample: Sample) -> None:
    found = lowered([sample.expression], NAMES, POINTS)[:, 0]
    assert_allclose(found, sample.values, rtol=1e-7, atol=1e-7)


def test_every_op_of_the_tables_is_covered() -> None:
    """Of the ops a residual can contain, none is left out above."""
    scene = Scene(NAMES)
    for expression, _ in (*SYMPY_CASES.values(), *NUMPY_CASES.values()):
        scene.builder.store("out", 0, [scene.lowering.lower(expression)])
    used = {call.op for call in scene.builder.build().calls}
    made_by_passes = {Op.SQRT, Op.RSQRT, Op.CBRT, Op.RCBRT, Op.SINCOS, Op.LDEXP}
    made_by_passes |= {Op.NORM2, Op.NORM3, Op.NORM4, Op.RNORM2, Op.RNORM3, Op.RNORM4}
    assert set(Op) - used == PROGRAM_ONLY | made_by_passes | {Op.EXCHANGE, Op.GATHER}


def test_equal_subexpressions_are_lowered_once() -> None:
    scene = Scene(NAMES)
    first = scene.lowering.lower(sf.sin(x + y) * z)
    again = scene.lowering.lower(sf.sin(y + x))
    assert again in scene.builder.producer_of(first).operands


def test_deep_expressions_need_no_recursion() -> None:
    expression = x
    for _ in range(5000):
        expression = sf.sin(expression) + y
    points = np.array([[0.5, 0.25, 0.0]])
    wanted = 0.5
    for _ in range(5000):
        wanted = np.sin(wanted) + 0.25
    assert_allclose(lowered([expression], NAMES, points), [[wanted]])


@pytest.mark.parametrize("number", [2, -0.5, sf.S(1) / 3, True])
def test_plain_numbers(number: Any) -> None:
    assert_array_equal(lowered([number], NAMES, np.zeros((1, 3))), [[float(number)]])


def test_overflow_is_left_to_the_device() -> None:
    found = lowered([sf.exp(sf.S(1000)) * x], NAMES, np.ones((1, 3)))
    assert_array_equal(found, [[np.inf]])


class TestUnsupported:
    """Errors name the function, the sub-expression and the factor."""

    def message(self, expression: Any) -> str:
        builder = GraphBuilder(DType.FLOAT64)
        symbols = dict(zip(NAMES, builder.read("points", 0, 3), strict=True))
        lowering = Lowering(builder, symbols, "factor reprojection (residuals.py:7)")
        with pytest.raises(UnsupportedFunctionError) as caught:
            lowering.lower(expression)
        return str(caught.value)

    @pytest.mark.parametrize(
        ("expression", "function", "part"),
        [
            (x + 2 * sf.LambertW(x * y), "LambertW", "lambertw(x*y)"),
            (sympy.erfinv(sympy.Symbol("x")), "erfinv", "erfinv(x)"),
            (sf.sympy.gamma(z) ** 2, "gamma", "gamma(z)"),
            (x * sf.sympy.Function("mystery")(x, y), "mystery", "mystery(x, y)"),
            (x + sf.sympy.I, "I", "I"),
        ],
        ids=["LambertW", "left to SymPy", "gamma", "unknown", "imaginary"],
    )
    def test_function(self, expression: Any, function: str, part: str) -> None:
        message = self.message(expression)
        assert "factor reprojection (residuals.py:7)" in message
        assert part in message
        assert "sqrt" in message
        if function != "I":
            assert f"{function!r}" in message

    def test_free_symbol(self) -> None:
        message = self.message(x + sf.Symbol("speed"))
        assert "factor reprojection" in message
        assert "'speed'" in message

    def test_long_expressions_are_shortened(self) -> None:
        long = sf.sympy.gamma(sum(sf.sin(n * x) for n in range(1, 200)))
        assert len(self.message(long)) < 700
