"""Functions that were written for NumPy, run on symbols.

A `NumpySymbol` is a symbolic number that NumPy's functions take: `np.exp` of one is another one.
Input: a function of numbers or arrays. Output: its formula.
"""

import builtins
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import numpy as np
import symforce.symbolic as sf

from caspar.errors import FactorError

UFUNCS: Mapping[Any, Callable[..., Any]] = {
    np.add: lambda one, other: one + other,
    np.subtract: lambda one, other: one - other,
    np.multiply: lambda one, other: one * other,
    np.true_divide: lambda one, other: one / other,
    np.power: lambda one, other: one**other,
    np.float_power: lambda one, other: one**other,
    np.negative: lambda one: -one,
    np.positive: lambda one: one,
    np.absolute: sf.Abs,
    np.fabs: sf.Abs,
    np.square: lambda one: one**2,
    np.reciprocal: lambda one: 1 / one,
    np.sqrt: sf.sqrt,
    np.cbrt: lambda one: one ** sf.Rational(1, 3),
    np.exp: sf.exp,
    np.exp2: lambda one: sf.exp(one * sf.log(2)),
    np.expm1: lambda one: sf.exp(one) - 1,
    np.log: sf.log,
    np.log2: lambda one: sf.log(one) / sf.log(2),
    np.log10: lambda one: sf.log(one) / sf.log(10),
    np.log1p: lambda one: sf.log(1 + one),
    np.sin: sf.sin,
    np.cos: sf.cos,
    np.tan: sf.tan,
    np.arcsin: sf.asin,
    np.arccos: sf.acos,
    np.arctan: sf.atan,
    np.arctan2: lambda one, other: sf.atan2(one, other, epsilon=0),
    np.sinh: sf.sinh,
    np.cosh: sf.cosh,
    np.tanh: sf.tanh,
    np.hypot: lambda one, other: sf.sqrt(one**2 + other**2),
    np.deg2rad: lambda one: one * sf.pi / 180,
    np.radians: lambda one: one * sf.pi / 180,
    np.rad2deg: lambda one: one * 180 / sf.pi,
    np.degrees: lambda one: one * 180 / sf.pi,
    np.sign: sf.sign,
    np.copysign: lambda one, other: sf.Abs(one) * sf.sign(other),
    np.maximum: sf.Max,
    np.minimum: sf.Min,
    np.fmax: sf.Max,
    np.fmin: sf.Min,
    np.less: lambda one, other: one < other,
    np.less_equal: lambda one, other: one <= other,
    np.greater: lambda one, other: one > other,
    np.greater_equal: lambda one, other: one >= other,
    np.logical_and: sf.sympy.And,
    np.logical_or: sf.sympy.Or,
    np.bitwise_and: sf.sympy.And,
    np.bitwise_or: sf.sympy.Or,
}
"""SymPy's counterparts of NumPy's functions."""

_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    np.where: lambda condition, one, other: sf.Piecewise((one, condition), (other, True)),
    np.select: lambda conditions, choices, default=0: sf.Piecewise(
        *zip(choices, conditions, strict=True), (default, True)
    ),
    np.clip: lambda value, least, most: sf.Min(sf.Max(value, least), most),
    np.shape: lambda _: (),
    np.ones_like: lambda _: 1.0,
    np.zeros_like: lambda _: 0.0,
    np.full_like: lambda _, value: value,
    np.empty_like: lambda _: 0.0,
}
_SHAPED = (np.ones_like, np.zeros_like, np.full_like, np.empty_like)
"""Functions whose result is one number here, whatever shape and type were asked for."""

_ADVICE = (
    "a caspar.curves function runs once on symbols: write it with NumPy's functions of single "
    "numbers (np.where in place of if), without math, SciPy's special functions, loops over x or "
    "np.asarray"
)


class NumpySymbol(np.lib.mixins.NDArrayOperatorsMixin):
    """A symbolic number, an expression, that NumPy takes."""

    size, shape, ndim = 1, (), 0
    dtype = np.dtype(np.float64)

    def __init__(self, expression: Any) -> None:
        self.expression = expression

    def item(self) -> "NumpySymbol":
        """Return itself: it is one number."""
        return self

    def fill(self, value: Any) -> None:
        """Take another value, as an array that was made empty."""
        self.expression = expression_of(value)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **others: Any) -> Any:
        """Apply a function of NumPy."""
        known = UFUNCS.get(ufunc)
        if known is None or method != "__call__" or len(others) > 0:
            raise FactorError(f"np.{ufunc.__name__} has no symbolic form here; {_ADVICE}")
        return NumpySymbol(known(*map(expression_of, inputs)))

    def __array_function__(self, function: Any, _: Any, args: Any, others: Any) -> Any:
        """Apply one of the functions that are no ufunc."""
        known = _FUNCTIONS.get(function)
        if known is None or (len(others) > 0 and function not in _SHAPED):
            raise FactorError(f"np.{function.__name__} has no symbolic form here; {_ADVICE}")
        found = known(*map(expression_of, args))
        return found if isinstance(found, tuple) else NumpySymbol(found)

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Refuse: an array would lose the symbols."""
        raise FactorError(_ADVICE)

    def __bool__(self) -> bool:
        """Refuse: a branch must not depend on one value."""
        raise FactorError(_ADVICE)

    def __float__(self) -> float:
        """Refuse: it has no value yet."""
        raise FactorError(_ADVICE)


def expression_of(value: Any) -> Any:
    """The expression of a symbol, or of a number; of each one in a list."""
    if isinstance(value, list | tuple):
        return [expression_of(one) for one in value]
    if isinstance(value, NumpySymbol):
        return value.expression
    if isinstance(value, np.generic | np.ndarray):
        if value.size != 1:
            raise FactorError(f"an array of shape {value.shape} meets x; {_ADVICE}")
        return value.item()
    return value


def with_symbolic_builtins(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a `max`, `min` and `float` that take symbols in place of Python's own.

    So are functions of its module that it calls.
    """
    copied: Callable[..., Any] = _copied(function, {})
    return copied


def _copied(function: Any, known: dict[Any, Any]) -> Any:
    if not isinstance(function, FunctionType):
        return function
    if function in known:
        return known[function]
    visible = dict(function.__globals__)
    copy = FunctionType(
        function.__code__, visible, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    known[function] = copy
    for name in function.__code__.co_names:
        found = visible.get(name, getattr(builtins, name, None))
        if name in _BUILTINS and found is getattr(builtins, name):
            visible[name] = _BUILTINS[name]
        elif isinstance(found, FunctionType) and found.__module__ == function.__module__:
            visible[name] = _copied(found, known)
    return copy


def _extreme(ufunc: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(*values: Any, **others: Any) -> Any:
        if len(values) == 2 and any(isinstance(one, NumpySymbol) for one in values):
            return ufunc(*values)
        return plain(*values, **others)

    return extreme


_BUILTINS: dict[str, Callable[..., Any]] = {
    "max": _extreme(np.maximum, max),
    "min": _extreme(np.minimum, min),
    "float": lambda value: value if isinstance(value, NumpySymbol) else float(value),
}
