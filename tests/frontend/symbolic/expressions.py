"""Random expressions with their values: an expression is grown together with its numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import symforce.symbolic as sf
from hypothesis import assume
from hypothesis import strategies as st
from numpy.typing import NDArray

Array = NDArray[np.float64]

NAMES = ("x", "y", "z")
POINTS = np.random.default_rng(3).uniform(-2.0, 2.0, (4, len(NAMES)))

LARGEST = 1e4
SMALLEST = 1e-2


@dataclass(frozen=True)
class Sample:
    """An expression and its values at `POINTS`."""

    expression: Any
    values: Array


def _grown(expression: Any, values: Array) -> Sample:
    """Reject what is too large for a comparison; what is all but zero, SymEngine may cancel."""
    assume(bool(np.all(np.abs(values) < LARGEST)))
    return Sample(expression, values)


def _quotient(a: Sample, b: Sample) -> Sample:
    assume(bool(np.all(np.abs(b.values) > SMALLEST)))
    return _grown(a.expression / b.expression, a.values / b.values)


def _power(base: Sample, exponent: Any) -> Sample:
    smallest = SMALLEST if exponent < 0 or exponent != int(exponent) else -1.0
    assume(bool(np.all(np.abs(base.values) > smallest)))
    if exponent == int(exponent):
        return _grown(base.expression**exponent, base.values ** float(exponent))
    safe = sf.Abs(base.expression)
    return _grown(safe**exponent, np.abs(base.values) ** float(exponent))


_UNARY: tuple[tuple[Callable[[Any], Any], Callable[[Array], Array]], ...] = (
    (sf.sin, np.sin),
    (sf.cos, np.cos),
    (sf.tanh, np.tanh),
    (sf.atan, np.arctan),
    (lambda e: sf.exp(sf.sin(e)), lambda v: np.exp(np.sin(v))),
    (lambda e: sf.log(2 + sf.cos(e)), lambda v: np.log(2 + np.cos(v))),
    (lambda e: -e, np.negative),
)

_BINARY: tuple[tuple[Callable[[Any, Any], Any], Callable[[Array, Array], Array]], ...] = (
    (lambda a, b: a + b, np.add),
    (lambda a, b: a - b, np.subtract),
    (lambda a, b: a * b, np.multiply),
    (lambda a, b: -a - b, lambda a, b: -a - b),
    (sf.atan2, np.arctan2),
    (sf.Max, np.maximum),
    (sf.Min, np.minimum),
)

_EXPONENTS = tuple(sf.S(n) / d for n, d in ((2, 1), (3, 1), (-1, 1), (-2, 1), (1, 2), (-3, 2)))

_LEAVES = [Sample(sf.Symbol(name), POINTS[:, i]) for i, name in enumerate(NAMES)]
_LEAVES += [
    Sample(number, np.full(len(POINTS), float(number)))
    for number in (sf.S(2), sf.S(-1), sf.S(1) / 3, sf.pi, sf.S(-0.75), sf.sqrt(2), sf.exp(1))
]


def _grow(children: st.SearchStrategy[Sample]) -> st.SearchStrategy[Sample]:
    unary = st.builds(
        lambda f, a: _grown(f[0](a.expression), f[1](a.values)), st.sampled_from(_UNARY), children
    )
    binary = st.builds(
        lambda f, a, b: _grown(f[0](a.expression, b.expression), f[1](a.values, b.values)),
        st.sampled_from(_BINARY),
        children,
        children,
    )
    quotient = st.builds(_quotient, children, children)
    power = st.builds(_power, children, st.sampled_from(_EXPONENTS))
    return st.one_of(binary, quotient, power, unary)


samples = st.recursive(st.sampled_from(_LEAVES), _grow, max_leaves=12)
"""Random samples of up to a dozen leaves."""
