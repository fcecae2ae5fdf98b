"""Prepare comparing a traced factor with its function on numbers."""

from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.residual_rows import column
from caspar.frontend.factors.trace import Argument, TracedFactor
from caspar.frontend.tracing.on_numbers import Comparison
from caspar.frontend.tracing.points import PointArgument


def factor_comparison(factor: Factor, traced: TracedFactor) -> Comparison:
    """Return what comparing a factor with numbers needs."""
    halves: dict[str, list[Argument]] = {}
    for argument in traced.arguments:
        halves.setdefault(argument.source, []).append(argument)
    arguments = tuple(
        PointArgument(
            name, tuple(one.symbolic for one in ones), ones[0].storage_dim, ones[0].unit_ranges
        )
        for name, ones in halves.items()
    )
    names = tuple(f"row {number} of the residual" for number in range(len(traced.residual)))
    return Comparison(
        factor, arguments, names, traced.residual, lambda result: column(factor, result)
    )
