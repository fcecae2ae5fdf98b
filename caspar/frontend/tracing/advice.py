"""Say what to write instead if a function failed because it took symbols for numbers.

Python, NumPy and SymEngine raise errors of many kinds if they need a number; the message tells
which operation failed.
"""

import re
import traceback

import numpy as np
from symengine.lib import symengine_wrapper
from symengine.lib.symengine_wrapper import Basic

CONDITIONS = (
    "write sf.Piecewise((value, condition), (other value, True)), sf.Min or sf.Max; conditions are "
    "sf.sympy.Eq(a, b), sf.sympy.Ne(a, b), a < b, a <= b, and sf.sympy.And, Or and Not of them"
)
"""Advice on what to write instead of a branch."""


class ConditionError(TypeError):
    """The user's function decides something by an argument; it says itself what to write."""


_FUNCTIONS = (
    "use sf.sqrt, sf.sin, ... instead of those of math and numpy, and sf.Min, sf.Max or "
    "sf.Piecewise instead of if"
)
_ROUNDING = "use sf.floor(x), sf.ceiling(x) or sf.floor(x + 0.5) instead of int, round and floor"
_PLACES = (
    "an index, a count or a range must be a number while the function is traced. To choose by a "
    "symbol, write sf.Piecewise over the alternatives, or pass the chosen value as an argument "
    "with an index of its own, such as ConstIndexed"
)

_PATTERNS = (
    (r"truth value|did not evaluate to a bool", CONDITIONS),
    (r"unsupported operand type\(s\) for [&|^]", CONDITIONS),
    (r"__round__|__trunc__|callable (?:rint|floor|ceil|trunc) method", _ROUNDING),
    (r"format string", "a symbol has no digits to format"),
    (r"interpreted as an integer|only integers, slices|slice indices must be", _PLACES),
    # float(), int(), math
    (r"cannot be evaluated|Cannot (?:convert|round) \w+", f"{_FUNCTIONS}; {_ROUNDING}"),
    (r"\bufuncs?\b|can't convert type|conversion from \w+ to Decimal", _FUNCTIONS),
    # SymPy's Rational, Float, Integer
    (r"^invalid input: |cannot create mpf|Argument of Integer should be", _FUNCTIONS),
    (r"argument should be a string or a Rational|both arguments should be Rational", _FUNCTIONS),
)
_NEEDS_INTEGER = re.compile(r"indices must be integers or slices, not (\w+)|of type '(\w+)'")
_NO_ATTRIBUTE = re.compile(r"object has no attribute '(\w+)'")
"""Functions of numpy look for a method of their name."""

_RAISED_ON_SYMBOLS = (TypeError, AttributeError, RuntimeError, IndexError)


def advice_on_symbols(error: BaseException) -> str:
    """The end of a message about an error of the user's function; "": symbols are not its cause."""
    advice = _advice(error)
    return "" if advice is None else f". The function runs on symbols, not numbers: {advice}"


def _advice(error: BaseException) -> str | None:
    if not isinstance(error, _RAISED_ON_SYMBOLS) or isinstance(error, ConditionError):
        return None
    if isinstance(error, NotImplementedError):
        return _PLACES if _is_from_matrix(error) else None
    text = str(error)
    missing = _NO_ATTRIBUTE.search(text)
    if missing is not None:
        is_function = isinstance(getattr(np, missing.group(1), None), np.ufunc)
        return _FUNCTIONS if is_function else None
    wrong = _NEEDS_INTEGER.search(text)
    if wrong is not None:
        kind = getattr(symengine_wrapper, wrong.group(1) or wrong.group(2), None)
        return _PLACES if isinstance(kind, type) and issubclass(kind, Basic) else None
    for pattern, advice in _PATTERNS:
        if re.search(pattern, text) is not None:
            return advice
    return None


def _is_from_matrix(error: BaseException) -> bool:
    """Return whether a SymEngine matrix raised it: it needs an index but does not say so."""
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    return "DenseMatrixBase.__" in names[-1]
