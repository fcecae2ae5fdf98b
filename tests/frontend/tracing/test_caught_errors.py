"""Errors of functions that take numbers are refused, also if the function catches them."""

import math
import statistics
import sys
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf

from caspar.errors import FactorError
from tests.frontend.evaluating import lowered
from tests.frontend.tracing.test_conditions import traced

pytestmark = pytest.mark.skipif(
    sys.gettrace() is not None, reason="under a debugger or a coverage tool no error is seen"
)

CALLS: list[Callable[[Any], Any]] = [
    lambda m: np.sin(m[0]),
    lambda m: np.exp([m[0], 1]),
    lambda m: np.sin(m),
    lambda m: np.isnan(m[0]),
    lambda m: np.arctan2(m[0], m[1]),
    lambda m: np.hypot(m[0], 1),
    lambda m: np.linalg.norm([m[0], 1]),
    lambda m: np.linalg.inv([[m[0], 1], [1, 2]])[0, 0],
    lambda m: np.round(m[0]),
    lambda m: np.maximum(m[0], 1),
    lambda m: np.median(list(m)),
    lambda m: np.deg2rad(m[0]),
    lambda m: math.hypot(m[0], m[1]),
    lambda m: float(Decimal(m[0])),
    lambda m: float(Fraction(m[0])),
    lambda m: float(Fraction(1, m[0])),
    lambda m: statistics.mean(m),
    lambda m: m[m[0]],
    lambda m: m[m[0], 0],
    lambda m: sum([1] * m[0]),
    lambda m: len(range(m[0])),
]


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_errors_of_symbols_are_refused(call: Callable[[Any], Any]) -> None:
    def catches(x: Any, m: Any, p: Any) -> Any:
        try:
            return call(m)
        except Exception:
            return 0

    def suppresses(x: Any, m: Any, p: Any) -> Any:
        found = m[1]
        with suppress(Exception):
            found = call(m)
        return found

    for function in (catches, suppresses, lambda x, m, p: call(m)):
        with pytest.raises(FactorError, match="The function runs on symbols, not numbers: ") as one:
            traced(function)
        assert "test_caught_errors.py:" in str(one.value)


def without_symbols() -> float:
    try:
        return float(np.isnan("text"))
    except TypeError:
        return 1.0


def own_error(m: Any) -> Any:
    try:
        raise TypeError("of the function, not of symbols")
    except TypeError:
        return 1


def duck(m: Any) -> Any:
    try:
        return m[0].sin()
    except AttributeError:
        return sf.sin(m[0]) ** 2 + sf.cos(m[0]) ** 2


def text_for_list(m: Any, name: Any = "a") -> Any:
    try:
        return [1, 2][name] * m[0]
    except TypeError:
        return 1


FINE: list[Callable[[Any], Any]] = [
    lambda m: without_symbols(),
    own_error,
    duck,
    text_for_list,
    lambda m: getattr(m[0], "sin", 1),
    lambda m: 2 if hasattr(m, "cos") else 1,
]


@pytest.mark.parametrize("function", FINE, ids=range(len(FINE)))
def test_other_errors_may_be_caught(function: Callable[[Any], Any]) -> None:
    found = traced(lambda x, m, p: function(m))
    names = [str(symbol) for argument in found.arguments for symbol in argument.symbols]
    row = lowered(list(found.residual), names, np.full((1, len(names)), 0.5))[0]
    assert row[1] == pytest.approx(1.0)
