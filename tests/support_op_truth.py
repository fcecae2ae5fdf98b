"""The truth about every op, and how far from it each target may be.

Errors are in units of the last place of the true value rounded to the type. The truth is computed
by mpmath, or, where an operand is zero, infinite or NaN, by NumPy: there results are exact, or
multiples of pi.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray

from caspar.ir.evaluate import OP_FUNCTIONS
from caspar.ir.ops import OP_INFO, PROGRAM_ONLY, Op
from tests.support_ops import Array, EveryOp

EXACT = {
    *PROGRAM_ONLY,
    *(Op.DIV, Op.RCP, Op.SQRT, Op.LDEXP, Op.NEG, Op.ABS, Op.SIGN, Op.COPYSIGN, Op.FLOOR),
    *(Op.MIN, Op.MAX, Op.LT, Op.LE, Op.EQ, Op.NE, Op.AND, Op.OR, Op.NOT, Op.SELECT),
}
"""Ops with one right answer: what is not a number of the type is rounded to the nearest."""

FREE_ZERO = {Op.MIN, Op.MAX, Op.SIGN}
"""Ops whose zeros may have either sign."""

NORMS = {Op.NORM2, Op.NORM3, Op.NORM4, Op.RNORM2, Op.RNORM3, Op.RNORM4}

FREE_SUBNORMALS = {Op.RNORM2, Op.RNORM3, Op.RNORM4}
"""Ops whose results below the smallest normal number may be zero: there the norm may overflow."""

FREE_OVERFLOW = {Op.NORM2, Op.NORM3, Op.NORM4}
"""Ops that may be infinite where the truth is the largest number, which is less than a unit off."""

MAX_ULPS: dict[Op, tuple[float, float, float, float]] = {
    Op.RSQRT: (1, 1, 2, 1),
    Op.CBRT: (1, 4, 1, 1),
    Op.RCBRT: (2, 5, 1, 1),
    Op.NORM2: (1, 1, 3, 2),
    Op.NORM3: (2, 2, 3, 2),
    Op.NORM4: (2, 2, 3, 2),
    Op.RNORM2: (2, 2, 2, 1),
    Op.RNORM3: (3, 3, 2, 1),
    Op.RNORM4: (3, 3, 2, 2),
    Op.POW: (1, 1, 4, 2),
    Op.EXP: (1, 1, 2, 1),
    Op.LOG: (1, 1, 1, 1),
    Op.SIN: (1, 1, 2, 2),
    Op.COS: (1, 1, 2, 2),
    Op.SINCOS: (1, 1, 2, 2),
    Op.TAN: (1, 1, 4, 2),
    Op.ASIN: (1, 1, 2, 2),
    Op.ACOS: (1, 1, 2, 2),
    Op.ATAN: (1, 1, 2, 2),
    Op.ATAN2: (2, 1, 3, 2),
    Op.SINH: (2, 2, 3, 2),
    Op.COSH: (2, 2, 2, 1),
    Op.TANH: (2, 2, 2, 1),
    Op.ASINH: (2, 2, 3, 3),
    Op.ACOSH: (2, 2, 4, 3),
    Op.ATANH: (2, 2, 3, 2),
    Op.ERF: (1, 1, 2, 2),
    Op.ERFC: (3, 5, 4, 5),
}
"""Op -> units between the result and the correctly rounded one: of the processor's library in
float32 and float64, of CUDA's in float32 and float64 (those its programming guide states;
for RNORM4 in float64 it states 1, and an H200 is off by 2)."""


# -- the truth -------------------------------------------------------------------------------------

mp = mpmath.mp.clone()
mp.prec = 160


def _norm(*components: Any) -> Any:
    return mp.sqrt(mp.fsum(component**2 for component in components))


def _cbrt(x: Any) -> Any:
    return mp.sign(x) * mp.cbrt(abs(x))


def _erfc(x: Any) -> Any:
    return mp.erfc(x) if abs(x) < 1e3 else mp.mpf(0 if x > 0 else 2)  # mpmath has no larger


TRUE_FUNCTIONS: Mapping[Op, Callable[..., Any]] = {
    Op.RSQRT: lambda x: 1 / mp.sqrt(x),
    Op.CBRT: _cbrt,
    Op.RCBRT: lambda x: 1 / _cbrt(x),
    **dict.fromkeys((Op.NORM2, Op.NORM3, Op.NORM4), _norm),
    **dict.fromkeys((Op.RNORM2, Op.RNORM3, Op.RNORM4), lambda *xs: 1 / _norm(*xs)),
    Op.POW: mp.power,
    Op.EXP: mp.exp,
    Op.LOG: mp.log,
    Op.SIN: mp.sin,
    Op.COS: mp.cos,
    Op.TAN: mp.tan,
    Op.ASIN: mp.asin,
    Op.ACOS: mp.acos,
    Op.ATAN: mp.atan,
    Op.ATAN2: mp.atan2,
    Op.SINH: mp.sinh,
    Op.COSH: mp.cosh,
    Op.TANH: mp.tanh,
    Op.ASINH: mp.asinh,
    Op.ACOSH: mp.acosh,
    Op.ATANH: mp.atanh,
    Op.ERF: mp.erf,
    Op.ERFC: _erfc,
}
"""The functions on mpmath's numbers; complex where they have no real value."""


@dataclass(frozen=True)
class Truth:
    """True values as a sum of two.

    Attributes:
        rounded: Rounded to the type.
        rest: What that left, in float64.
    """

    rounded: Array
    rest: NDArray[np.float64]

    def ulps(self, found: Array) -> NDArray[np.float64]:
        """Distances in units of the last place; 0 between equal values, also NaN and infinity."""
        with np.errstate(all="ignore"):
            same = (found == self.rounded) | (np.isnan(found) & np.isnan(self.rounded))
            error = np.abs((found.astype(np.float64) - self.rounded) - self.rest)
            largest = np.finfo(self.rounded.dtype).max
            unit = np.spacing(np.minimum(np.abs(self.rounded), largest))
            distance = error / unit
        finite = np.where(np.isfinite(distance), distance, np.inf)
        return np.where(same & ~np.isfinite(found), 0.0, finite)


def truth_of(values: Sequence[Any], dtype: np.dtype[Any]) -> Truth:
    """Numbers of mpmath in two parts; complex ones are NaN."""
    real = [value if isinstance(value, mp.mpf) else mp.nan for value in values]
    with np.errstate(over="ignore"):
        rounded = np.array([_float(value) for value in real]).astype(dtype)
    rest = [
        _float(value - mp.mpf(float(near))) if np.isfinite(near) else 0.0
        for value, near in zip(real, rounded, strict=True)
    ]
    return Truth(rounded, np.array(rest))


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float(np.inf if value > 0 else -np.inf)


def true_values(columns: EveryOp, number: int, rows: Array) -> Truth:
    """The truth about one column of the results; of exact ops, what NumPy says in the same type."""
    op, operands = columns.ops[number], columns.operands[number]
    given = [_column(rows, operand) for operand in operands]
    with np.errstate(all="ignore"):
        near = OP_FUNCTIONS[op](*given)
    if op is Op.SINCOS:
        is_second = number > 0 and columns.ops[number - 1] is op
        near, op = near[is_second], Op.COS if is_second else Op.SIN
    values = np.broadcast_to(np.asarray(near), len(rows)).astype(rows.dtype)
    if op in EXACT:
        return Truth(values, np.zeros(len(rows)))
    exact = []
    for row, value in zip(zip(*given, strict=True), values, strict=True):
        key = tuple(float(operand) for operand in row)
        if not all(np.isfinite(operand) and operand != 0.0 for operand in key):
            exact.append(mp.mpf(float(value)))
            continue
        exact.append(_exact(op, *key))
    return truth_of(exact, rows.dtype)


@cache
def _exact(op: Op, *operands: float) -> Any:
    """The true value, computed once for all targets."""
    return TRUE_FUNCTIONS[op](*map(mp.mpf, operands))


def _column(rows: Array, operand: Any) -> Any:
    if isinstance(operand, tuple):
        return rows[:, operand[0]] < rows[:, operand[1]]
    return rows[:, operand] if isinstance(operand, int) else np.full(len(rows), operand)


# -- comparing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Worst:
    """The result of an op that is furthest from the truth.

    Attributes:
        op: The op.
        ulps: Units in the last place between result and truth.
        allowed: How many may be.
        example: Result, truth and operands.
    """

    op: Op
    ulps: float
    allowed: float
    example: str

    @property
    def is_too_far(self) -> bool:
        """Whether it is further than allowed."""
        return self.ulps > self.allowed

    def __str__(self) -> str:
        verdict = "TOO FAR" if self.is_too_far else "ok"
        return f"{self.op.name}: {self.ulps:.4g} of {self.allowed} units, {verdict}: {self.example}"


def worst_results(
    columns: EveryOp, rows: Array, results: Array, target: int, *, flushes: bool = False
) -> list[Worst]:
    """The worst result of each op.

    Args:
        columns: What the columns are.
        rows: Operands.
        results: What was computed of them.
        target: Place of the bounds in `MAX_ULPS`.
        flushes: Denormal operands and results may count as zero, as on CUDA in float32; so may
            a result that only rounding makes normal.
    """
    found = []
    for number, op in enumerate(columns.ops):
        if op in (Op.FMA, Op.FNMA):
            continue  # NumPy has none
        distance = _distances(columns, number, rows, results, flushes)
        worst = int(np.argmax(distance))
        given = [_column(rows, operand)[worst].item() for operand in columns.operands[number]]
        truth = true_values(columns, number, rows[worst : worst + 1]).rounded[0]
        example = f"{results[worst, number]!r} for {truth!r}, of {given}"
        # half a unit is the rounding of the correct result itself
        allowed = 0.0 if op in EXACT else MAX_ULPS[op][target] + 0.5
        found.append(Worst(op, float(distance[worst]), allowed, example))
    return found


def _distances(
    columns: EveryOp, number: int, rows: Array, results: Array, flushes: bool
) -> NDArray[np.float64]:
    op, found = columns.ops[number], results[:, number]
    tiny = np.finfo(rows.dtype).tiny
    distance = np.full(len(rows), np.inf)
    for given in (rows, _flushed(rows)) if flushes else (rows,):
        truth = true_values(columns, number, given)
        here = truth.ulps(found)
        if op in EXACT - FREE_ZERO:
            here[(found == 0.0) & (np.signbit(found) != np.signbit(truth.rounded))] = np.inf
        if flushes or op in FREE_SUBNORMALS:
            here[(np.abs(truth.rounded) <= tiny) & (np.abs(found) <= tiny)] = 0.0
        if op in FREE_OVERFLOW:
            here[(np.abs(truth.rounded) == np.finfo(rows.dtype).max) & np.isinf(found)] = 0.0
        if op in NORMS:  # of a partial length that overflowed and NaN, hypot makes infinity
            given_nan = np.isnan(given[:, : OP_INFO[op].arity]).any(axis=1)
            here[given_nan & np.isnan(found)] = 0.0
        if op is Op.LOG:
            here[(_column(rows, 0) < 0.0) & (_column(rows, 0) > -tiny) & (found == -np.inf)] = 0.0
        distance = np.minimum(distance, here)
    return distance


def _flushed(rows: Array) -> Array:
    tiny = np.finfo(rows.dtype).tiny
    return np.where(np.abs(rows) < tiny, np.copysign(rows.dtype.type(0.0), rows), rows)
