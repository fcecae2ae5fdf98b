"""Unknowns that one instance owns, eliminated from the residual as expressions.

Input: a factor as it was written. Output: the factor without its `TunableSequential` arguments.
This is variable projection (Golub and Pereyra, 1973): a residual b + A u that is linear in u is
least at u = -A^+ b, so b + A u of that u is the residual of the other unknowns alone, and its
derivatives follow from it as those of any residual. A loss and a weight do not move that u, since
both grow with the squared residual. Cost tier: once for a factor.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import symforce.symbolic as sf

from caspar.errors import FactorError
from caspar.frontend.factors.trace import Argument, TracedFactor
from caspar.frontend.symbolic.epsilon import SYMBOL

FREE = (-math.inf, math.inf)
"""No bounds."""

Rows = list[Any]
"""Expressions, one for each row of a residual."""


def without_own_unknowns(factor: TracedFactor) -> TracedFactor:
    """The factor whose residual has its own unknowns at their best values.

    Raises a `FactorError` if the residual is not linear in them, does not depend on one, or has as
    few rows as they have scalars, if several of them are bounded, or their type is no vector.
    """
    own = [one for one in factor.arguments if one.own_bounds is not None]
    if len(own) == 0:
        return factor
    symbols = [symbol for one in own for symbol in one.symbols]
    for one in own:
        _check(factor, one, len(symbols))
    columns = [_column(factor, own, symbol) for symbol in symbols]
    constant = [sf.sympify(row).subs(dict.fromkeys(symbols, 0)) for row in factor.residual]
    best, rows = _projected(constant, columns, own[0].own_bounds or FREE)
    values, taken = [], 0
    for one in own:
        values.append((one.source, tuple(best[taken : taken + one.storage_dim])))
        taken += one.storage_dim
    others = tuple(one for one in factor.arguments if one.own_bounds is None)
    known = dict(zip(symbols, best, strict=True))
    looked_up = tuple(
        (source, tuple(sf.sympify(place).subs(known) for place in places))
        for source, places in factor.looked_up
    )
    return replace(
        factor, arguments=others, residual=tuple(rows), own=tuple(values), looked_up=looked_up
    )


def with_rows(factor: TracedFactor, named: Sequence[tuple[str, tuple[Any, ...]]]) -> TracedFactor:
    """The factor whose rows are expressions by name, such as the values of its own unknowns."""
    rows = tuple(value for _, values in named for value in values)
    return replace(factor, residual=rows, own=(), loss=None, terms=())


def _check(factor: TracedFactor, argument: Argument, num_scalars: int) -> None:
    where = f"factor {factor.name}, argument {argument.source}: TunableSequential"
    symbolic = argument.symbolic
    if not isinstance(symbolic, sf.Matrix | sf.Expr):
        raise FactorError(
            f"{where} needs a scalar, a vector or a matrix, since the residual must be linear in "
            f"it; {type(symbolic).__name__} is another type. Make it a node of its own: "
            "TunableShared, with an index that counts up"
        )
    if len(factor.residual) <= num_scalars:
        raise FactorError(
            f"{where}: a residual of {len(factor.residual)} rows with {num_scalars} unknowns of "
            "its own is zero whatever the other unknowns are"
        )
    if argument.own_bounds != FREE and num_scalars > 1:
        raise FactorError(
            f"{where} has bounds; they are supported for the only scalar of that kind in a factor, "
            f"and there are {num_scalars}"
        )


def _column(factor: TracedFactor, own: Sequence[Argument], symbol: Any) -> Rows:
    mine = next(one for one in own if symbol in one.symbols)
    where = f"factor {factor.name}, argument {mine.source}: TunableSequential"
    symbols = {symbol for one in own for symbol in one.symbols}
    slopes = [sf.sympify(row).diff(symbol) for row in factor.residual]
    for number, slope in enumerate(slopes):
        if not symbols.isdisjoint(sf.sympify(slope).free_symbols):
            raise FactorError(
                f"{where} needs a residual that is linear in it, and row {number} is not. Make it "
                "a node of its own: TunableShared, with an index that counts up"
            )
    if all(slope == 0 for slope in slopes):
        raise FactorError(f"{where}: the residual does not depend on {symbol}")
    return slopes


def _projected(
    constant: Rows, columns: Sequence[Rows], bounds: tuple[float, float]
) -> tuple[Rows, Rows]:
    """The best unknowns and what they leave, by the modified Gram-Schmidt process."""
    axes: list[Rows] = []
    squares: Rows = []
    shares: dict[tuple[int, int], Any] = {}
    for number, column in enumerate(columns):
        for before, axis in enumerate(axes):
            shares[before, number] = share = _dot(axis, column) / squares[before]
            column = _less(column, share, axis)
        axes.append(column)
        squares.append(_dot(column, column) + SYMBOL * SYMBOL)
    rows, best = constant, []
    for axis, square in zip(axes, squares, strict=True):
        along = _dot(axis, rows) / square
        lower, upper = bounds
        if lower > -math.inf:
            along = -sf.Max(-along, lower)
        if upper < math.inf:
            along = -sf.Min(-along, upper)
        rows = _less(rows, along, axis)
        best.append(-along)
    for number in reversed(range(len(best))):
        for later in range(number + 1, len(best)):
            best[number] -= shares[number, later] * best[later]
    return best, rows


def _dot(left: Rows, right: Rows) -> Any:
    return sum((one * other for one, other in zip(left, right, strict=True)), sf.S.Zero)


def _less(rows: Rows, share: Any, axis: Rows) -> Rows:
    return [row - share * along for row, along in zip(rows, axis, strict=True)]
