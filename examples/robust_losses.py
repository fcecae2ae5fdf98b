"""A line through points of which a third is wrong: losses written into the residual.

A loss rho replaces the square s of a residual's norm by what grows more slowly. A residual that is
multiplied by the square root of rho(s) / s has just that cost. Each function here returns this
root in a form that has a derivative at s = 0 as well: sqrt(log(1 + s)) by itself has none there,
and a solve ends with `DERIVATIVES_NOT_FINITE` where a residual is exactly zero.

    python examples/robust_losses.py
"""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf

import caspar

Loss = Callable[[sf.Scalar], sf.Scalar]
"""Of s, the square of a residual's norm in units of its scale: the root of rho(s) / s."""

# -- losses, as in `scipy.optimize.least_squares` --------------------------------------------------


def soft_l1(s: sf.Scalar) -> sf.Scalar:
    """Pseudo-Huber: rho = 2 (sqrt(1 + s) - 1)."""
    return sf.sqrt(2 / (sf.sqrt(1 + s) + 1))


def huber(s: sf.Scalar) -> sf.Scalar:
    """rho = s up to 1, 2 sqrt(s) - 1 beyond."""
    beyond = sf.Max(s, 1)
    return sf.sqrt((2 * sf.sqrt(beyond) - 1) / beyond)


def cauchy(s: sf.Scalar) -> sf.Scalar:
    """rho = log(1 + s)."""
    not_zero = s + sf.epsilon()
    return sf.sqrt(sf.log(1 + not_zero) / not_zero)


def geman_mcclure(s: sf.Scalar) -> sf.Scalar:
    """rho = s / (1 + s): what is far off does not pull at all, so the start must be near."""
    return 1 / sf.sqrt(1 + s)


LOSSES = (soft_l1, huber, cauchy, geman_mcclure)

# -- the factor ------------------------------------------------------------------------------------


class Line(sf.V2):
    """Height at zero, and slope."""


def point_with(loss: Loss) -> caspar.Factor:
    """A measured point of the line, under a loss."""

    @caspar.factor
    def point(
        line: Annotated[Line, caspar.TunableUnique],
        at: Annotated[sf.V1, caspar.ConstSequential],
        height: Annotated[sf.V1, caspar.ConstSequential],
        scale: Annotated[sf.V1, caspar.ConstUnique],
    ) -> sf.V1:
        """Height above the line; `scale` is what a good point may be off."""
        error = sf.V1(height[0] - line[0] - line[1] * at[0])
        return error * loss(error.squared_norm() / scale[0] ** 2)

    return point


point = point_with(cauchy)

TRUE_LINE = (1.0, 0.5)


def simulate(num_points: int = 300, noise: float = 0.1) -> dict[str, Any]:
    """What `caspar.Solver.solve` takes: every third point is up to 20 too high."""
    rng = np.random.default_rng(0)
    at = rng.uniform(-10.0, 10.0, (num_points, 1))
    height = TRUE_LINE[0] + TRUE_LINE[1] * at + rng.normal(0.0, noise, at.shape)
    height[::3] += rng.uniform(0.0, 20.0, height[::3].shape)
    return {
        "Line": np.zeros((1, 2)),
        "point": {"at": at, "height": height, "scale": [noise]},
    }


def main() -> None:
    """Fit with each loss, from where the one before ended, and print the lines."""
    arrays = simulate()
    design = np.hstack([np.ones_like(arrays["point"]["at"]), arrays["point"]["at"]])
    plain = np.linalg.lstsq(design, arrays["point"]["height"], rcond=None)[0].ravel()
    print(f"{'true':14} {TRUE_LINE[0]:8.4f} {TRUE_LINE[1]:8.4f}")
    print(f"{'least squares':14} {plain[0]:8.4f} {plain[1]:8.4f}")
    arrays["Line"] = plain[None]
    for loss in LOSSES:
        result = caspar.Solver(point_with(loss), precision="float64").solve(arrays)
        arrays["Line"] = result.values["Line"]
        height, slope = arrays["Line"][0]
        print(f"{loss.__name__:14} {height:8.4f} {slope:8.4f}   {result.status.name}")


if __name__ == "__main__":
    main()
