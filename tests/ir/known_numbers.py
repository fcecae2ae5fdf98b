"""What is known of a number of a random graph: its magnitude, and how exactly it is computed.

A number is *exact* if every order of evaluation gives it to the bit. Integers, halves and powers of
two under sums and products are, as long as their significands are short; so a lost term or a wrong
sign shows without any tolerance. All others carry a bound on the difference of two evaluations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from caspar.ir.dtype import DType
from caspar.ir.ops import Op

SLACK = 16.0
"""Roundings that one call may be off by, however it is decomposed."""

_MAX_EXPONENT = 60
"""Exact numbers stay between 2**-60 and 2**60: products of two do not leave float32."""


@dataclass(frozen=True, slots=True)
class Number:
    """A value of a graph and what is known of it for the inputs at hand.

    Attributes:
        value: Its id.
        bound: Greatest magnitude.
        least: Least magnitude; 0: unknown.
        grain: It is a multiple of this power of two.
        bits: Base-2 logarithm of its greatest significand as an odd integer.
        error: Greatest difference of two evaluations, in units of eps; 0: it is exact.
        nonnegative: Never below zero.
    """

    value: int
    bound: float
    least: float = 0.0
    grain: float = 1.0
    bits: float = 0.0
    error: float = 0.0
    nonnegative: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A function of one number.

    Attributes:
        reach: It is applied to numbers of at most this magnitude.
        slope: Greatest magnitude of its derivative there.
        bound: Greatest magnitude of its result there.
    """

    reach: float
    slope: float
    bound: float


FUNCTIONS: dict[Op, Function] = {
    Op.SIN: Function(math.inf, 1.0, 1.0),
    Op.COS: Function(math.inf, 1.0, 1.0),
    Op.ATAN: Function(math.inf, 1.0, 1.6),
    Op.TANH: Function(math.inf, 1.0, 1.0),
    Op.EXP: Function(1.0, 2.8, 2.8),
    Op.TAN: Function(1.0, 3.5, 1.6),
    Op.SINH: Function(1.0, 1.6, 1.2),
    Op.COSH: Function(1.0, 1.2, 1.6),
    Op.ASINH: Function(math.inf, 1.0, 10.0),
    Op.ATANH: Function(0.5, 1.4, 0.6),
    Op.ERF: Function(math.inf, 1.2, 1.0),
    Op.ERFC: Function(math.inf, 1.2, 2.0),
    Op.ASIN: Function(0.5, 1.2, 0.6),
    Op.ACOS: Function(0.5, 1.2, 2.1),
}
"""Of any number."""

ROOTS = {
    Op.SQRT: 1 / 2,
    Op.RSQRT: -1 / 2,
    Op.CBRT: 1 / 3,
    Op.RCBRT: -1 / 3,
    Op.RCP: -1.0,
}
"""Of numbers that are at least 1: exponent."""

LOGARITHMS = (Op.LOG, Op.ACOSH)
"""Of numbers that are at least 2."""


def significand_bits(dtype: DType) -> int:
    """Bits of a significand, the hidden one included."""
    return 24 if dtype is DType.FLOAT32 else 53


def literal(value: int, number: float, dtype: DType) -> Number:
    """A literal; of those that are not finite, only that they are literals."""
    with np.errstate(over="ignore", under="ignore"):
        number = float(np.dtype(dtype.value).type(number))
    if not math.isfinite(number) or number == 0.0:
        return Number(value, 0.0 if number == 0.0 else 1.0)
    magnitude = abs(number)
    top, bottom = magnitude.as_integer_ratio()
    lowest_bit = top & -top
    grain, bits = lowest_bit / bottom, math.log2(top // lowest_bit)
    return Number(value, magnitude, magnitude, grain, bits, nonnegative=number > 0.0)


def sum_of(value: int, terms: Sequence[Number], dtype: DType) -> Number:
    """A sum in any order."""
    bound = math.fsum(term.bound for term in terms)
    grain = min(term.grain for term in terms)
    is_long = any(math.isinf(term.bits) for term in terms)
    nonnegative = all(term.nonnegative for term in terms)
    total = Number(
        value,
        bound,
        least=math.fsum(term.least for term in terms) if nonnegative else 0.0,
        grain=grain,
        bits=math.inf if is_long else math.log2(max(1.0, bound / grain)),
        error=math.fsum(term.error for term in terms),
        nonnegative=nonnegative,
    )
    return _rounded(total, len(terms) + 1, dtype)


def product_of(value: int, factors: Sequence[Number], dtype: DType) -> Number:
    """A product in any order."""
    total = Number(value, 1.0, 1.0)
    for factor in factors:
        total = Number(
            value,
            total.bound * factor.bound,
            total.least * factor.least,
            total.grain * factor.grain,
            total.bits + factor.bits,
            total.error * factor.bound + total.bound * factor.error,
        )
    # a zero may come last, when the others have left the type's range
    reach = math.prod(max(1.0, factor.bound) for factor in factors)
    if total.bound == 0.0 and reach > 2.0**_MAX_EXPONENT:
        total = replace(total, bound=reach, error=math.inf)
    values = [factor.value for factor in factors]
    are_squares = all(values.count(value) % 2 == 0 for value in values)
    nonnegative = are_squares or all(factor.nonnegative for factor in factors)
    return _rounded(replace(total, nonnegative=nonnegative), len(factors) + 1, dtype)


def quotient_of(value: int, numerator: Number, denominator: Number, dtype: DType) -> Number:
    """A quotient, or a product with a reciprocal; exact for a power of two below."""
    bound = numerator.bound / denominator.least
    quotient = Number(
        value,
        bound,
        numerator.least / denominator.bound,
        numerator.grain / denominator.bound,
        numerator.bits if denominator.bits == 0.0 else math.inf,
        (numerator.error + bound * denominator.error) / denominator.least,
    )
    return _rounded(quotient, SLACK, dtype)


def power_of(value: int, base: Number, exponent: float) -> Number:
    """A power of a base that is at least 1."""
    ends = (base.least**exponent, base.bound**exponent)
    slope = abs(exponent) * max(base.least ** (exponent - 1.0), base.bound ** (exponent - 1.0))
    error = slope * base.error + SLACK * (1.0 + abs(exponent)) * max(ends)
    return Number(value, max(ends), min(ends), 1.0, math.inf, error, nonnegative=True)


def inexact(value: int, bound: float, error: float) -> Number:
    """The result of a function; `error` is without its own rounding."""
    return Number(value, bound, bits=math.inf, error=error + SLACK * max(1.0, bound))


def either(first: Number, second: Number) -> Number:
    """A number that is one of two."""
    return Number(
        -1,
        max(first.bound, second.bound),
        min(first.least, second.least),
        min(first.grain, second.grain),
        max(first.bits, second.bits),
        max(first.error, second.error),
        first.nonnegative and second.nonnegative,
    )


def scaled(value: int, number: Number, exponent: int) -> Number:
    """A number times 2**exponent."""
    scale = 2.0**exponent
    return replace(
        number,
        value=value,
        bound=scale * number.bound,
        least=scale * number.least,
        grain=scale * number.grain,
        error=scale * number.error,
    )


def _rounded(number: Number, roundings: float, dtype: DType) -> Number:
    """The number; inexact by so many roundings of its bound if its significand is too long."""
    is_short = number.bits <= significand_bits(dtype)
    in_range = number.bound <= 2.0**_MAX_EXPONENT and number.grain >= 2.0**-_MAX_EXPONENT
    if number.error == 0.0 and is_short and in_range:
        return number
    return replace(number, bits=math.inf, error=number.error + roundings * number.bound)
