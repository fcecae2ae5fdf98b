"""Prepare comparing a traced factor with its function on numbers."""

from collections.abc import Sequence

from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.residual_rows import column
from caspar.frontend.factors.trace import Argument, TracedFactor
from caspar.frontend.tracing.on_numbers import Comparison
from caspar.frontend.tracing.points import PointArgument


def factor_comparison(factor: Factor, traced: TracedFactor) -> Comparison:
    """Return what comparing a factor with numbers needs."""
    parts: dict[str, list[Argument]] = {}
    for argument in traced.arguments:
        parts.setdefault(argument.written, []).append(argument)
    arguments = tuple(_point_argument(name, ones) for name, ones in parts.items())
    names = tuple(f"row {number} of the residual" for number in range(len(traced.residual)))
    return Comparison(
        factor, arguments, names, traced.residual, lambda result: column(factor, result)
    )


def _point_argument(name: str, parts: Sequence[Argument]) -> PointArgument:
    """An argument of the signature: a pair is two, a patch of a table many."""
    first = parts[0]
    if first.patch is not None:
        return PointArgument(name, (first.patch,), sum(one.storage_dim for one in parts), ())
    templates = tuple(one.symbolic for one in parts)
    return PointArgument(name, templates, first.storage_dim, first.unit_ranges)
