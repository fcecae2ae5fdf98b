"""Robust losses, ready to use as `caspar.loss`: `@caspar.factor(loss=caspar.loss.Huber)`.

With s the squared norm of an instance's residual, a its `loss_scale` (in units of the residual, 1
by default), u = s / a^2 and w its `weight`, an instance costs w / 2 * a^2 rho0(u). The slope of
rho0 is 1 at u = 0, but for `Tolerant`: small residuals cost what they cost without a loss.
`docs/guide/losses.md` compares them.
"""

from caspar.frontend.factors.loss import Loss
from caspar.loss.losses import (
    L2,
    Arctan,
    Barron,
    Cauchy,
    GemanMcClure,
    Huber,
    SoftL1,
    Tolerant,
    Tukey,
    Welsch,
)

__all__ = [
    "L2",
    "Arctan",
    "Barron",
    "Cauchy",
    "GemanMcClure",
    "Huber",
    "Loss",
    "SoftL1",
    "Tolerant",
    "Tukey",
    "Welsch",
]
