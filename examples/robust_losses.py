# %% [markdown]
# # Losses: a line through wrong points

# %% [markdown]
"""A line through points of which a third is wrong: losses written into the residual.

A loss rho replaces the square s of a residual's norm by what grows more slowly. A residual that is
multiplied by the square root of rho(s) / s has just that cost. Each function here returns this
root in a form that has a derivative at s = 0 as well: sqrt(log(1 + s)) by itself has none there,
and a solve ends with `DERIVATIVES_NOT_FINITE` where a residual is exactly zero.

    python examples/robust_losses.py
"""

# %%
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import caspar

Loss = Callable[[sf.Scalar], sf.Scalar]
"""Of s, the square of a residual's norm in units of its scale: the root of rho(s) / s."""

# %% [markdown]
# ## Losses, as in `scipy.optimize.least_squares`


# %%
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

# %% [markdown]
# ## The factor


# %%
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


# %%
def fits(arrays: dict[str, Any]) -> dict[str, tuple[np.ndarray, str]]:
    """Line and status by loss: each starts where the one before ended, least squares first."""
    given = arrays["point"]
    design = np.hstack([np.ones_like(given["at"]), given["at"]])
    line = np.linalg.lstsq(design, given["height"], rcond=None)[0].ravel()
    found = {"least squares": (line, "")}
    for loss in LOSSES:
        solver = caspar.Solver(point_with(loss), precision="float64")
        result = solver.solve({**arrays, "Line": line[None]}, verbose=False)
        line = result.values["Line"][0]
        found[loss.__name__] = (line, result.status.name)
    return found


def draw(arrays: dict[str, Any], found: dict[str, tuple[np.ndarray, str]]) -> Figure:
    """Points and lines, and how much a residual counts under each loss."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.0, 4.2), layout="constrained")
    given, ends = arrays["point"], np.array([-10.0, 10.0])
    is_wrong = np.arange(len(given["at"])) % 3 == 0
    for chosen, color in ((~is_wrong, "0.5"), (is_wrong, "#e5383b")):
        left.plot(given["at"][chosen], given["height"][chosen], ".", color=color, ms=4)
    left.plot(ends, TRUE_LINE[0] + TRUE_LINE[1] * ends, "k", lw=4, alpha=0.25, label="true")
    for number, (name, (line, _)) in enumerate(found.items()):
        left.plot(ends, line[0] + line[1] * ends, color=f"C{number}", lw=1.5, label=name)
    left.set(xlabel="at", ylabel="height")
    left.legend()
    residual = np.linspace(0.0, 6.0, 200)
    right.plot(residual, residual**2, color="C0", label="least squares")
    for number, loss in enumerate(LOSSES, 1):
        costs = [s * float(loss(sf.S(s)).evalf()) ** 2 for s in (residual**2 + 1e-12)]
        right.plot(residual, costs, color=f"C{number}", label=loss.__name__)
    right.set(xlabel="residual over scale", ylabel="cost", ylim=(0.0, 12.0))
    right.legend()
    return figure


# %% [markdown]
# A third of the points is up to 20 too high, and least squares is drawn up with them. Every loss
# finds the line. How well, the numbers below say: a loss that grows more slowly is drawn up less,
# and Geman and McClure's, which is bounded, hardly at all. It needs a start that is near, though:
# each fit begins where the one before has ended.

# %% tags=["active-ipynb"]
# arrays = simulate()
# found = fits(arrays)
# draw(arrays, found);

# %% tags=["active-ipynb"]
# for name, (line, _) in found.items():
#     print(f"{name:14} {line[0]:8.4f} {line[1]:8.4f}   true {TRUE_LINE}")

# %% [markdown]
# Losses need not be written into residuals: `factor.with_loss(caspar.loss.Cauchy)` does it, takes
# the scale as an array, and reports weights. See the notebook on wrong observations.


# %% tags=["active-py"]
def main() -> None:
    """Fit with each loss, from where the one before ended, and print the lines."""
    print(f"{'true':14} {TRUE_LINE[0]:8.4f} {TRUE_LINE[1]:8.4f}")
    for name, (line, status) in fits(simulate()).items():
        print(f"{name:14} {line[0]:8.4f} {line[1]:8.4f}   {status}")


if __name__ == "__main__":
    main()
