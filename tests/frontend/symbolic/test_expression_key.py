"""Equal keys mean equal expressions, and keys are as long as expressions have distinct parts."""

from itertools import combinations
from typing import Any

import symengine
import symforce.symbolic as sf

from caspar.frontend.symbolic.expression_key import expression_key
from caspar.frontend.symbolic.lines import Lines

x, y = sf.symbols("x y")


def key(*expressions: Any) -> str:
    return expression_key(expressions, Lines())


def test_different_expressions_have_different_keys() -> None:
    different = [
        *(x, y, x + y, x - y, x * y, x / y, x**y, y**x, sf.sin(x), sf.sin(y), sf.cos(x)),
        *(sf.S(1), sf.S(1.0), sf.S(1) / 3, sf.S(1 / 3), sf.pi, sf.S.true, x < y, y < x),
        *(symengine.Function(name)(x, y) for name in "fg"),
        *(sf.Symbol("1"), sf.Symbol("x + y"), sf.atan2(x, y), sf.atan2(y, x)),
        *(sf.Piecewise((x, x < y), (y, True)), sf.Piecewise((y, x < y), (x, True))),
    ]
    assert all(key(left) != key(right) for left, right in combinations(different, 2))


def test_neighbouring_numbers_differ() -> None:
    """`str` of both is 0.3."""
    assert str(sf.S(0.1 + 0.2)) == str(sf.S(0.3))
    assert key(sf.S(0.1 + 0.2) * x) != key(sf.S(0.3) * x)


def test_rows_and_their_order_count() -> None:
    keys = {key(x, y), key(y, x), key(x), key(x, x), key(x, y, x)}
    assert len(keys) == 5


def test_equal_expressions_have_equal_keys() -> None:
    assert key(sf.sin(x + y) * x) == key(x * sf.sin(y + x))


def test_what_is_shared_stands_there_once() -> None:
    expression = x
    for _ in range(200):
        expression = sf.sin(expression) * sf.cos(expression)
    assert len(key(expression)) < 200 * 3 * 40


def test_deep_expressions_need_no_recursion() -> None:
    expression = x
    for _ in range(5000):
        expression = sf.sin(expression) + y
    assert key(expression).count("sin") == 5000
