"""Every function a residual may call, with nasty arguments and formulas for the truth.

`support_jets` compares. The truth comes from mpmath, by a formula of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import mpmath
import numpy as np
import symforce.symbolic as sf
import sympy
from numpy.typing import NDArray

from caspar.frontend.symbolic.derive import gradient
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import ReadRows, WriteRows

Array = NDArray[np.floating]

mp = mpmath.mp.clone()
mp.prec = 500

x, y = sf.symbols("x y")
_PI = mp.pi


@dataclass(frozen=True)
class Case:
    """A function of x, or of x and y.

    Attributes:
        expression: As a user writes it.
        truth: The same of mpmath's numbers; complex where it has no real value.
        num_arguments: 1 or 2.
        spread: Relative error, in roundings, that literals bring in when they are rounded.
        slope_floor: What slopes are differences of, where they are small: 1 - tanh(x)^2.
        quotient: What is rounded down; its results jump where a rounding crosses an integer.
        bits: Precision of the truth; more where it comes close to a literal, and slopes to 0.
    """

    expression: Any
    truth: Callable[..., Any]
    num_arguments: int = 1
    spread: Callable[..., Any] | None = None
    slope_floor: float = 0.0
    quotient: Callable[..., Any] | None = None
    bits: int = 500


def _one(expression: Any, truth: Callable[[Any], Any], **options: Any) -> Case:
    return Case(expression, truth, **options)


def _two(expression: Any, truth: Callable[[Any, Any], Any], **options: Any) -> Case:
    return Case(expression, truth, num_arguments=2, **options)


def _real_power(numerator: int, denominator: int) -> Callable[[Any], Any]:
    """Rational powers: real wherever the denominator is odd."""

    def power(a: Any) -> Any:
        if a < 0 and denominator % 2 == 0:
            return mp.nan
        root = mp.sign(a) * mp.root(abs(a), denominator)
        return root**numerator

    return power


def _power_of(a: Any, b: Any) -> Any:
    return mp.power(a, b) if a >= 0 or b == mp.floor(b) else mp.nan


def _log_size(a: Any) -> Any:
    return abs(mp.log(a)) if a > 0 else mp.mpf(0)


def _power(exponent: Any) -> Case:
    exact = mp.mpf(float(exponent)) if isinstance(exponent, float) else mp.mpmathify(exponent)
    return _one(
        x**exponent,
        lambda a: mp.power(a, exact) if a >= 0 else mp.nan,
        spread=lambda a: abs(exact) * _log_size(a),
    )


@cache
def _erfc_to(a: Any, _bits: int) -> Any:
    return mp.erfc(a) if abs(a) < 1e3 else mp.mpf(2 * (a < 0))


def _erfc(a: Any) -> Any:
    """Both error functions: the slowest of mpmath's, and wanted at the same numbers."""
    return _erfc_to(a, mp.prec)


def _xor(a: Any, b: Any) -> bool:
    return bool(a < b) != bool(a > 1)


def _modulo(a: Any, b: Any) -> Any:
    return a - b * mp.floor(a / b)


def _wrapped(a: Any) -> Any:
    return _modulo(a + _PI, 2 * _PI) - _PI


def _turns(a: Any) -> Any:
    return (a + _PI) / (2 * _PI)


def _step(condition: Any) -> Any:
    return mp.mpf(1 if condition else 0)


_XOR = sf.sympy.Xor(x < y, sf.sympy.Not(x <= 1))

ALGEBRA = {
    "sum": _two(x - 2 * y + 1, lambda a, b: a - 2 * b + 1),
    "product": _two(x * y**2, lambda a, b: a * b**2),
    "quotient": _two(x / y, lambda a, b: a / b),
    "x^2": _one(x**2, lambda a: a**2),
    "x^7": _one(x**7, lambda a: a**7),
    "x^-1": _one(1 / x, lambda a: 1 / a),
    "x^-3": _one(x**-3, lambda a: a**-3),
    "sqrt": _one(sf.sqrt(x), mp.sqrt),
    "1/sqrt": _one(1 / sf.sqrt(x), lambda a: 1 / mp.sqrt(a)),
    "x^(3/2)": _one(x ** (sf.S(3) / 2), _real_power(3, 2)),
    "cbrt": _one(sympy.cbrt(sympy.Symbol("x")), _real_power(1, 3)),
    "real_root": _one(sympy.real_root(sympy.Symbol("x"), 5), _real_power(1, 5)),
    "x^(-2/3)": _one(x ** (sf.S(-2) / 3), _real_power(-2, 3)),
    "x^(1/6)": _one(x ** (sf.S(1) / 6), _real_power(1, 6)),
    "x^0.3": _power(0.3),
    "x^-1.7": _power(-1.7),
    "x^sqrt(2)": _one(
        x ** sf.sqrt(2),
        lambda a: mp.power(a, mp.sqrt(2)) if a >= 0 else mp.nan,
        spread=lambda a: 2 * _log_size(a),
    ),
    "x^pi": _one(
        x**sf.pi,
        lambda a: mp.power(a, _PI) if a >= 0 else mp.nan,
        spread=lambda a: 4 * _log_size(a),
    ),
    "x^y": _two(x**y, _power_of),
    "x^-y": _two(x**-y, lambda a, b: _power_of(a, -b)),
    "2^x": _one(2**x, lambda a: mp.power(2, a)),
    "pi^x": _one(sf.pi**x, lambda a: mp.power(_PI, a), spread=abs),
}

TRANSCENDENTAL = {
    "exp": _one(sf.exp(x), mp.exp),
    "exp(x y)": _two(sf.exp(x * y), lambda a, b: mp.exp(a * b)),
    "log": _one(sf.log(x), mp.log),
    "log of base 2": _one(sf.log(x, 2), lambda a: mp.log(a, 2)),
    "log of base y": _two(
        sf.log(x, y), lambda a, b: mp.log(a) / mp.log(b) if min(a, b) >= 0 else mp.nan
    ),
    "sin": _one(sf.sin(x), mp.sin),
    "cos": _one(sf.cos(x), mp.cos),
    "tan": _one(sf.tan(x), mp.tan),
    "cot": _one(sf.cot(x), mp.cot),
    "sec": _one(sf.sec(x), mp.sec),
    "csc": _one(sf.csc(x), mp.csc),
    "asin": _one(sf.asin(x), mp.asin),
    "acos": _one(sf.acos(x), mp.acos),
    "atan": _one(sf.atan(x), mp.atan),
    "atan2": _two(sf.atan2(x, y, epsilon=0), mp.atan2),
    "acot": _one(sf.acot(x), lambda a: mp.atan(1 / a)),
    "asec": _one(sf.asec(x), lambda a: mp.acos(1 / a)),
    "acsc": _one(sf.acsc(x), lambda a: mp.asin(1 / a)),
    "sinh": _one(sf.sinh(x), mp.sinh),
    "cosh": _one(sf.cosh(x), mp.cosh),
    "tanh": _one(sf.tanh(x), mp.tanh, slope_floor=1.0, bits=1500),
    "coth": _one(sf.coth(x), mp.coth, slope_floor=1.0, bits=1500),
    "sech": _one(sf.sech(x), mp.sech, slope_floor=1.0),
    "csch": _one(sf.csch(x), mp.csch),
    "asinh": _one(sf.asinh(x), mp.asinh),
    "acosh": _one(sf.acosh(x), lambda a: mp.acosh(a) if a >= 1 else mp.nan),
    "atanh": _one(sf.atanh(x), mp.atanh),
    "acoth": _one(sf.acoth(x), lambda a: mp.atanh(1 / a)),
    "asech": _one(sf.asech(x), lambda a: mp.acosh(1 / a) if 0 <= a <= 1 else mp.nan),
    "acsch": _one(sf.acsch(x), lambda a: mp.asinh(1 / a)),
    "erf": _one(sf.erf(x), lambda a: 1 - _erfc(a), bits=1500),
    "erfc": _one(sf.erfc(x), _erfc, bits=1500),
}

STEPS = {
    "Abs": _one(sf.Abs(x), abs),
    "sign": _one(sf.sign(x), mp.sign),
    "sign_no_zero": _one(sf.sign_no_zero(x), lambda a: mp.mpf(1 if a >= 0 else -1)),
    "copysign_no_zero": _two(sf.copysign_no_zero(x, y), lambda a, b: abs(a) if b >= 0 else -abs(a)),
    "floor": _one(sf.floor(x), mp.floor),
    "ceiling": _one(sf.ceiling(x), mp.ceil),
    "frac": _one(sympy.frac(sympy.Symbol("x")), lambda a: a - mp.floor(a)),
    "Mod": _two(sf.Mod(x, y), _modulo, quotient=lambda a, b: a / b),
    "Mod of a literal": _one(sf.Mod(x, 3), lambda a: _modulo(a, 3), quotient=lambda a: a / 3),
    "wrap_angle": _one(sf.wrap_angle(x), _wrapped, quotient=_turns),
    "angle_diff": _two(
        sf.angle_diff(x, y), lambda a, b: _wrapped(a - b), quotient=lambda a, b: _turns(a - b)
    ),
    "Heaviside": _one(sympy.Heaviside(sympy.Symbol("x")), lambda a: (1 + mp.sign(a)) / 2),
    "Heaviside of 0 given": _one(sympy.Heaviside(sympy.Symbol("x"), 1), lambda a: _step(a >= 0)),
    "Min": _two(sf.Min(x, y, 2), lambda a, b: min(a, b, mp.mpf(2))),
    "Max": _two(sf.Max(x, y, 0), lambda a, b: max(a, b, mp.mpf(0))),
    "clamp": _two(sf.clamp(x, -1, sf.exp(y)), lambda a, b: min(max(a, mp.mpf(-1)), mp.exp(b))),
    "asin_safe": _one(sf.asin_safe(x, epsilon=0), lambda a: mp.asin(max(min(a, 1), -1))),
    "acos_safe": _one(sf.acos_safe(x, epsilon=0), lambda a: mp.acos(max(min(a, 1), -1))),
    "Piecewise": _two(
        sf.Piecewise((sf.sqrt(x), x > 0), (x * y, y <= 1), (1 / y, True)),
        lambda a, b: mp.sqrt(a) if a > 0 else a * b if b <= 1 else 1 / b,
    ),
    "Piecewise without an end": _two(sf.Piecewise((x, x < y)), lambda a, b: a if a < b else mp.nan),
    "And, Or": _two(
        sf.Piecewise(
            (x, sf.sympy.Or(sf.sympy.And(x < y, y <= 2), sf.sympy.Eq(x, y))), (y - 5, True)
        ),
        lambda a, b: a if (a < b <= 2) or a == b else b - 5,
    ),
    "Xor": _two(sf.Piecewise((x, _XOR), (y - 5, True)), lambda a, b: a if _xor(a, b) else b - 5),
    "Not": _two(
        sf.Piecewise((x, sf.sympy.Not(_XOR)), (y - 5, True)),
        lambda a, b: b - 5 if _xor(a, b) else a,
    ),
    "Ne": _two(
        sf.Piecewise((x**2, sf.sympy.Ne(x, y)), (y - 5, True)),
        lambda a, b: b - 5 if a == b else a**2,
    ),
    "truth value": _two(x + y * (x < y), lambda a, b: a + b * _step(a < b)),
    "KroneckerDelta": _two(sf.KroneckerDelta(x, y), lambda a, b: _step(a == b)),
    "argmax_onehot": _two(sf.argmax_onehot([x, y])[1], lambda a, b: _step(b > a)),
    "is_positive": _one(sf.is_positive(x), lambda a: _step(a > 0)),
    "is_nonnegative": _one(sf.is_nonnegative(x), lambda a: _step(a >= 0)),
    "less_equal": _two(sf.less_equal(x, y), lambda a, b: _step(a <= b)),
    "logical_and": _two(sf.logical_and(x, y, unsafe=False), lambda a, b: _step(a > 0 and b > 0)),
    "logical_or": _two(sf.logical_or(x, y, unsafe=False), lambda a, b: _step(a > 0 or b > 0)),
    "logical_not": _one(sf.logical_not(x, unsafe=False), lambda a: _step(a <= 0)),
    "conjugate": _one(sf.conjugate(x) ** 2, lambda a: a**2),
    "re": _one(sympy.re(sympy.Symbol("x")), lambda a: a),
    "UnevaluatedExpr": _one(sf.UnevaluatedExpr(x) + 1, lambda a: a + 1),
}

CASES: Mapping[str, Case] = {**ALGEBRA, **TRANSCENDENTAL, **STEPS}


def points(dtype: DType) -> Array:
    """(n, 2) arguments from 1e-18 to 1e18 and zero: near poles, kinks and branch points too."""
    kind = np.dtype(dtype.value)
    eps = np.finfo(kind).eps
    near = [1 - eps, 1.0, 1 + eps, 1 - 1e-3, 1 + 1e-3, 0.5, 2.0, 3.0, 3 + 3 * eps, 49.0]
    near += [number * np.pi for number in (0.25, 0.5, 1.0, 1.5, 2.0, 1000.0)]
    near += [0.0, 1e-18, 1e-8, 1e-4, 1e-2, 10.0, 30.0, 89.0, 710.0, 1e4, 1e8, 1e18]
    single = np.array([*near, *(-number for number in near if number != 0.0)], kind)
    rng = np.random.default_rng(0)
    parts = [np.stack([single, rng.permutation(single)], axis=1)]
    parts.append(np.stack([single, single], axis=1))
    parts.append(rng.uniform(-1.0, 1.0, (10, 2)))
    parts.append(rng.normal(size=(10, 2)) * 10.0 ** rng.uniform(-3.0, 2.0, (10, 1)))
    return np.concatenate(parts).astype(kind)


def function_kernel(dtype: DType, expressions: Sequence[Any] | None = None) -> KernelSpec:
    """For each row x, y of `rows`: value, d/dx and d/dy of every expression, as `results`.

    Without expressions, those of the cases.
    """
    if expressions is None:
        expressions = [case.expression for case in CASES.values()]
    kernel = KernelBuilder("functions", dtype)
    inputs = kernel.read("rows", 2, dtype, ReadRows())
    symbols = {name: scalar.value for name, scalar in zip("xy", inputs, strict=True)}
    lowering = Lowering(kernel.graph, symbols, "functions")
    results = []
    for expression in expressions:
        value = lowering.lower(sf.sympify(expression))
        results += [value, *gradient(kernel.graph, value, list(symbols.values()))]
    kernel.write("results", [Scalar(kernel.graph, v) for v in results], dtype, WriteRows())
    return kernel.build()
