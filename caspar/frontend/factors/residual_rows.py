"""The rows of a residual, from what a factor's function returned."""

from typing import Any

import symforce.symbolic as sf

from caspar.errors import FactorError
from caspar.frontend.factors.factor import Factor
from caspar.frontend.symbolic.lines import Lines
from caspar.frontend.tracing.signature import check_is_number


def residual_rows(factor: Factor, residual: Any, lines: Lines) -> tuple[Any, ...]:
    """The rows that a factor's function returned, each of them a number.

    Raises:
        FactorError: It returned something else.
    """
    rows = column(factor, residual)
    for row in rows:
        check_is_number(factor, "the residual", row, lines)
    return rows


def column(factor: Factor, residual: Any) -> tuple[Any, ...]:
    """The rows of a column vector that a factor's function returned.

    Raises:
        FactorError: It returned something else.
    """
    if isinstance(residual, sf.Matrix) and residual.shape[1] == 1 and residual.shape[0] >= 1:
        return tuple(residual.to_flat_list())
    needed = "it must return a SymForce column vector such as sf.V2"
    hint = ""
    if residual is None:
        hint = "; is the return statement missing?"
    elif isinstance(residual, tuple | list):
        hint = "; write sf.Vector(...) or sf.V2(a, b) around its elements"
    elif isinstance(residual, int | float | sf.Expr):
        hint = "; wrap it as sf.V1(value)"
    shape = f" of shape {residual.shape}" if isinstance(residual, sf.Matrix) else ""
    raise FactorError(
        f"factor {factor.name} ({factor.location}) returned {type(residual).__name__}{shape}: "
        f"{needed}{hint}"
    )
