"""Decisions on expressions that the function converts to SymPy are refused like others."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
import sympy
from sympy import sympify

from caspar.errors import FactorError
from caspar.frontend.tracing.conditions import Watch
from tests.frontend.evaluating import lowered
from tests.frontend.tracing.test_conditions import numbered, traced, watched

EQ = vars(sympy.Basic)["__eq__"]

EQUALITIES: list[Callable[..., Any]] = [
    lambda x, m, p: 1 if sympify(m[0]) == 1.0 else 2,
    lambda x, m, p: 1 if sympify(m[0]) != 1 else 2,
    lambda x, m, p: 1 if 1 == sympify(m[0] + x[0]) else 2,
    lambda x, m, p: 1 if sympy.Integer(1) == sympify(m[0]) else 2,
    lambda x, m, p: 1 if sympy.Rational(1, 2) != sympify(m[0]) else 2,
    lambda x, m, p: 1 if sympy.Float(1.0) == sympify(m[0]) else 2,
    lambda x, m, p: 1 if sympy.pi == sympify(m[0]) else 2,
    lambda x, m, p: 1 if m[0] == sympify(m[1]) else 2,
    lambda x, m, p: 1 if sympify(m[1]) == m[0] else 2,
    lambda x, m, p: 1 if sympify(m[0]) in (1, 2) else 2,
    lambda x, m, p: 1 if sympify(m[0]) in sympy.Tuple(1, 2) else 2,
    lambda x, m, p: [1, sympify(m[0])].index(sympify(m[1])),
    lambda x, m, p: 1 if sympy.Matrix(m.to_flat_list())[0] == 1.0 else 2,
    lambda x, m, p: 1 if sympy.Matrix(m.to_flat_list()) == sympy.Matrix([1, 2]) else 2,
    lambda x, m, p: 1 if sympy.ImmutableMatrix(m.to_flat_list()) == sympy.Matrix([1, 2]) else 2,
    lambda x, m, p: 1 if sympy.Tuple(sympify(m[0])) == sympy.Tuple(1) else 2,
    lambda x, m, p: 1 if (sympify(m[0]) < 1) == True else 2,  # noqa: E712
    lambda x, m, p: 1 if (np.array([sympify(m[0])]) == 1).any() else 2,
    lambda x, m, p: 1 if sympify(m[0]).equals(1) else 2,
    lambda x, m, p: 1 if m.mat == x.mat else 2,
]
TRUTHS: list[Callable[..., Any]] = [
    lambda x, m, p: 1 if sympify(m[0]) else 2,
    lambda x, m, p: sympify(m[0]) or 2,
    lambda x, m, p: max(sympify(m[0]), 0),
    lambda x, m, p: sorted([sympify(m[0]), sympify(m[1])])[0],
    lambda x, m, p: 1 if sympy.And(sympify(m[0]) > 0, sympify(m[0]) < 1) else 2,
    lambda x, m, p: 1 if sympy.Eq(sympify(m[0]), 1) else 2,
    lambda x, m, p: any(sympy.Matrix(m.to_flat_list())),
]
KEYS: list[Callable[..., Any]] = [
    lambda x, m, p: len({sympify(m[0]), sympify(m[1])}),
    lambda x, m, p: {1: 2, 3: 4}[sympify(m[0])],
    lambda x, m, p: {(sympify(m[0]), 1): 2}[(sympify(m[0]), 1)],
]
SIGNS: list[Callable[..., Any]] = [
    lambda x, m, p: 1 if sympify(m[0]).is_zero else 2,
    lambda x, m, p: 1 if (sympify(m[0]) + 1).is_positive else 2,
    lambda x, m, p: 1 if sympify(m[0]).is_integer else 2,
    lambda x, m, p: 1 if sympify(m[0]).is_extended_nonnegative else 2,
    lambda x, m, p: 1 if m[0].is_integer else 2,
    lambda x, m, p: 1 if m[0].is_real else 2,
]
REFUSED = [
    *numbered("==, !=, in", EQUALITIES),
    *numbered("truth of a symbol", TRUTHS),
    *numbered("key of a dictionary", KEYS),
    *numbered("is_zero", SIGNS),
]


@pytest.mark.parametrize(("function", "said"), REFUSED)
def test_decisions_are_refused(function: Callable[..., Any], said: str) -> None:
    def catches(x: Any, m: Any, p: Any) -> Any:
        with suppress(TypeError):
            return function(x, m, p)
        return 3

    for one in (function, catches):
        with pytest.raises(FactorError, match=said) as caught:
            traced(one)
        assert "test_sympy.py" in str(caught.value)
        assert "write sf.Piecewise(" in str(caught.value)


CONVERSIONS: list[Callable[[Any], Any]] = [
    int,
    float,
    round,
    complex,
    sympy.Rational,
    sympy.Float,
    sympy.Integer,
    lambda value: value in sympy.Interval(0, 1),
    lambda value: [1, 2][value],
    lambda value: np.array([value], dtype=float),
    lambda value: f"{value:.1f}",
]


@pytest.mark.parametrize("convert", CONVERSIONS, ids=range(len(CONVERSIONS)))
def test_conversions_are_refused(convert: Callable[..., Any]) -> None:
    def catches(x: Any, m: Any, p: Any) -> Any:
        with suppress(Exception):
            return convert(sympify(m[0])) * 0 + 1
        return m[1]

    for one in (catches, lambda x, m, p: convert(sympify(m[0]))):
        with pytest.raises(FactorError, match="The function runs on symbols, not numbers: "):
            traced(one)


FINE: list[Callable[..., Any]] = [
    lambda x, m, p: sympy.simplify(sympy.sin(m[0]) ** 2 + sympy.cos(m[0]) ** 2),
    lambda x, m, p: sympy.factor(m[0] ** 2 + 2 * m[0] * x[0] + x[0] ** 2) / (m[0] + x[0]) ** 2,
    lambda x, m, p: sympy.Piecewise((m[0] * 2, sympify(m[0]) < 1), (3, True)),
    lambda x, m, p: sympy.Matrix(2, 2, [m[0], 1, 0, m[1]]).inv()[0, 0] * m[0],
    lambda x, m, p: sympy.integrate(2 * sympify(m[0]), sympify(m[0])) / m[0] ** 2,
    lambda x, m, p: 1 if sympify(m[0]) == sympify(m[0]) else 2,
    lambda x, m, p: 1 if sympify(m[0]) - sympify(m[0]) == 0 else 2,
    lambda x, m, p: 1 if sympy.Integer(2) == 2 and not sympy.Integer(0) else 2,
    lambda x, m, p: 1 if not sympy.ImmutableMatrix([]) and sympy.Tuple(1) else 2,
    lambda x, m, p: 1 if sympy.Abs(m[0]).is_extended_nonnegative else 2,
    lambda x, m, p: sympy.Max(sympify(m[0]), 1),
]


@pytest.mark.parametrize("function", FINE, ids=range(len(FINE)))
def test_formulas_are_left_alone(function: Callable[..., Any]) -> None:
    found = traced(function)
    names = [str(symbol) for argument in found.arguments for symbol in argument.symbols]
    row = lowered(list(found.residual), names, np.full((1, len(names)), 0.5))[0]
    assert row[1] == pytest.approx(1.0)


def test_decisions_have_the_answers_of_a_point() -> None:
    m = sf.Symbol("m")
    watch = Watch(__file__, {"m"}, lambda expression: float(expression.subs("m", 2.0)))

    def decide() -> list[Any]:
        value = sympify(m)
        return [
            *(value == 2, 2.0 != value, 3 == value, sympy.Integer(2) == value),
            *(value in (1, 2), {2: 5}.get(value), len({value, value**2 / 2})),
            *(bool(value), bool(value - 2), int(value), float(value / 4), [5, 6, 7][value]),
            *(str(value), str(sympy.Matrix([value, 1])), f"{value:.1f}"),
            *(value.is_positive, value.is_even, value.is_zero, value.is_real),
        ]

    assert watched(watch, decide) == [
        *(True, False, False, True),
        *(True, 5, 1),
        *(True, False, 2, 0.5, 7),
        *("2.0", "[2.0]\n[1.0]\n", "2.0"),
        *(True, True, False, True),
    ]


def test_sympy_answers_again_afterwards() -> None:
    with pytest.raises(FactorError):
        traced(lambda x, m, p: 1 if sympify(m[0]) == 1 else 2)
    symbol = sympy.Symbol("x")
    assert vars(sympy.Basic)["__eq__"] is EQ
    assert "__bool__" not in vars(sympy.Expr)
    assert symbol != 1
    assert bool(symbol)
    assert symbol.is_zero is None
    assert len({symbol, sympy.Symbol("x")}) == 1
