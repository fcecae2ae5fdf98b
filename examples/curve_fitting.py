# %% [markdown]
# # A curve with bounds: two peaks of a spectrum

# %% [markdown]
"""Two peaks that overlap, fitted with bounds, and what is known of them afterwards.

A detector counts photons by energy. Two lines of a spectrum lie so near each other that their peaks
are one, on a background that falls. Heights cannot be negative and widths have limits; without them
a fit may end with peaks that no spectrum has.

    python examples/curve_fitting.py
"""

# %%
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

import caspar

Array = NDArray[np.float64]

# %% [markdown]
# ## The curve
#
# A parameter is a field of a dataclass, by its name. The residual of a channel is divided by the
# standard deviation of its counts, so that the covariance needs no scale.


# %%
@dataclass
class Spectrum:
    """Two Lorentzian peaks on a line."""

    left: sf.Scalar
    right: sf.Scalar
    left_height: sf.Scalar
    right_height: sf.Scalar
    width: sf.Scalar
    level: sf.Scalar
    slope: sf.Scalar


@caspar.factor
def channel(
    spectrum: Annotated[Spectrum, caspar.TunableUnique],
    energy: Annotated[sf.Scalar, caspar.ConstSequential],
    counts: Annotated[sf.Scalar, caspar.ConstSequential],
    sigma: Annotated[sf.Scalar, caspar.ConstSequential],
) -> sf.V1:
    """Expected minus counted, in standard deviations."""
    expected = spectrum.level + spectrum.slope * energy
    for place, height in (
        (spectrum.left, spectrum.left_height),
        (spectrum.right, spectrum.right_height),
    ):
        expected += height / (1 + ((energy - place) / spectrum.width) ** 2)
    return sf.V1((expected - counts) / sigma)


# %%
TRUE = np.array([4.7, 5.5, 300.0, 170.0, 0.45, 60.0, -4.0])
START = np.array([4.2, 6.0, 100.0, 100.0, 0.8, 50.0, 0.0])
NAMES = tuple(Spectrum.__dataclass_fields__)


def curve(parameters: Array, energy: Array) -> Array:
    """Expected counts."""
    left, right, left_height, right_height, width, level, slope = parameters
    peaks = [
        height / (1 + ((energy - place) / width) ** 2)
        for place, height in ((left, left_height), (right, right_height))
    ]
    found: Array = level + slope * energy + sum(peaks)
    return found


def simulate(num_channels: int = 120, seed: int = 1) -> dict[str, Any]:
    """What `caspar.Solver.solve` takes."""
    energy = np.linspace(0.0, 10.0, num_channels)
    counts = np.random.default_rng(seed).poisson(curve(TRUE, energy)).astype(float)
    sigma = np.sqrt(np.maximum(counts, 1.0))
    return {
        "Spectrum": START[None],
        "channel": {"energy": energy, "counts": counts, "sigma": sigma},
    }


# %% [markdown]
# ## Fit it, with bounds
#
# Bounds are given by field. A number that ends at its bound is in the report, and is no longer free
# there.

# %%
BOUNDS = {
    "Spectrum": {
        "left": (3.0, 5.1),
        "right": (5.1, 7.0),
        "left_height": (0.0, None),
        "right_height": (0.0, None),
        "width": (0.1, 2.0),
    }
}

# %% tags=["active-ipynb"]
# arrays = simulate()
# solver = caspar.Solver(channel)
# result = solver.solve(arrays, bounds=BOUNDS, verbose=False)
# result

# %% [markdown]
# ## How well it is known
#
# Standard errors, and correlations: the two places pull on each other, as do heights and width.
# The band around the curve is what the covariance makes of it, three standard deviations wide.

# %% tags=["active-ipynb"]
# cov = solver.covariance({**arrays, **result.values}, {"Spectrum": "all"}, bounds=BOUNDS)
# print(cov)


# %%
def draw(arrays: dict[str, Any], found: Array, covariance: Array, correlation: Array) -> Figure:
    """Counts, the curve with its band and its parts; and the correlations."""
    figure, (left, right) = plt.subplots(
        *(1, 2), figsize=(10.5, 4.2), layout="constrained", width_ratios=(1.7, 1.0)
    )
    given, energy = arrays["channel"], np.linspace(0.0, 10.0, 600)
    left.errorbar(
        *(given["energy"], given["counts"], given["sigma"]), fmt=".", color="0.6", lw=0.8, zorder=0
    )
    step = 1e-6 * np.maximum(np.abs(found), 1.0)
    slopes = [
        (curve(found + one, energy) - curve(found - one, energy)) / (2.0 * one.sum())
        for one in np.diag(step)
    ]
    jacobian = np.stack(slopes, axis=1)
    sigma = np.sqrt(np.einsum("ni,ij,nj->n", jacobian, covariance, jacobian))
    expected = curve(found, energy)
    left.fill_between(energy, expected - 3 * sigma, expected + 3 * sigma, color="C0", alpha=0.35)
    left.plot(energy, expected, "C0", label="fit")
    for gone, name in ((3, "left peak"), (2, "right peak")):
        part = found.copy()
        part[gone] = 0.0
        left.plot(energy, curve(part, energy), "--", lw=1.0, label=name)
    left.plot(energy, curve(START, energy), "k:", lw=1.0, label="start")
    left.set(xlabel="energy, keV", ylabel="counts")
    left.legend()
    image = right.imshow(correlation, cmap="RdBu_r", vmin=-1.0, vmax=1.0)
    right.set_xticks(range(len(NAMES)), NAMES, rotation=60, ha="right")
    right.set_yticks(range(len(NAMES)), NAMES)
    figure.colorbar(image, ax=right, label="correlation", shrink=0.8)
    return figure


# %% tags=["active-ipynb"]
# draw(arrays, result.values["Spectrum"][0], cov["Spectrum"][0], cov.correlation("Spectrum")[0]);

# %% [markdown]
# ## A bound that holds
#
# If the calibration says that widths are at least half a kiloelectronvolt, the fit ends there, and
# says so.

# %% tags=["active-ipynb"]
# narrow = {"Spectrum": {**BOUNDS["Spectrum"], "width": (0.5, 2.0)}}
# held = solver.solve(arrays, bounds=narrow, verbose=False)
# print(dict(zip(NAMES, held.active_bounds["Spectrum"][0].tolist(), strict=True)))
# held.final_cost / result.final_cost


# %% tags=["active-py"]
def main() -> caspar.SolveResult:
    """Fit, and print what is found beside what is true."""
    arrays = simulate()
    solver = caspar.Solver(channel)
    result = solver.solve(arrays, bounds=BOUNDS)
    print(result)
    cov = solver.covariance({**arrays, **result.values}, {"Spectrum": "all"}, bounds=BOUNDS)
    errors = cov.standard_errors("Spectrum")[0]
    for name, true, found, error in zip(
        NAMES, TRUE, result.values["Spectrum"][0], errors, strict=True
    ):
        print(f"{name:13} {found:9.3f} +- {error:7.3f}   true {true:8.3f}")
    return result


if __name__ == "__main__":
    main()
