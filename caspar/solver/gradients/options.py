"""Choices of a gradient: which Hessian. Once for a gradient."""

from collections.abc import Sequence
from typing import Any

from caspar.equations.adjoint.kernels import tangent_size
from caspar.errors import OptionError
from caspar.frontend.factors.trace import TracedFactor
from caspar.solver.gradients.kernels import EXACT, GAUSS_NEWTON

MAX_EXACT_TANGENT = 48
"""Components of the tangents of a factor's nodes up to which `auto` has second derivatives: their
number grows with the square, and so does the time to compile them."""


def chosen_hessian(given: Any, factors: Sequence[TracedFactor]) -> tuple[str, tuple[str, ...]]:
    """`exact` or `gauss_newton`, and what is to be said of the choice.

    Raises:
        OptionError: An unknown choice.
    """
    if given not in ("auto", EXACT, GAUSS_NEWTON):
        raise OptionError(
            f"hessian={given!r}: must be 'auto', 'exact' or 'gauss_newton', which leaves second "
            "derivatives of residuals out"
        )
    if given != "auto":
        return str(given), ()
    large = [one.name for one in factors if tangent_size(one) > MAX_EXACT_TANGENT]
    if len(large) == 0:
        return EXACT, ()
    return GAUSS_NEWTON, (
        f"The Hessian is Gauss-Newton's, as instances of {', '.join(large)} have more than "
        f"{MAX_EXACT_TANGENT} unknowns: gradients are off by the share of the second derivatives "
        "of residuals. Pass hessian='exact' for these; their kernels take longer to compile.",
    )
