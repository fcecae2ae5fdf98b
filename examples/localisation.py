# %% [markdown]
# # Ten thousand molecules at once

# %% [markdown]
"""Ten thousand molecules at once: a Gaussian spot is fitted to each cut-out of 7 x 7 pixels.

Localisation microscopy finds a molecule far more precisely than the width of its spot. Unknown are
its place in pixels, its brightness, its width and the background; the noise is that of counted
photons, so residuals are weighted by the brightness of a pixel.

    python examples/localisation.py
"""

# %%
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar

Floats = NDArray[np.float64]

SIZE = 7
"""Pixels of a side."""


@dataclass
class Spot:
    """What is estimated of a molecule."""

    place: sf.V2
    photons: sf.Scalar
    width: sf.Scalar
    background: sf.Scalar


@caspar.factor
def pixel(
    spot: Annotated[Spot, caspar.TunableUnique],
    at: Annotated[sf.V2, caspar.ConstSequential],
    count: Annotated[sf.Scalar, caspar.ConstSequential],
) -> sf.V1:
    """Expected minus counted photons."""
    square = (at - spot.place).squared_norm() / spot.width**2
    density = sf.exp(-square / 2) / (2 * sf.pi * spot.width**2)
    return sf.V1(spot.background + spot.photons * density - count)


def places() -> Floats:
    """(49, 2) centres of the pixels."""
    x, y = np.meshgrid(np.arange(SIZE), np.arange(SIZE))
    return np.stack([x.ravel(), y.ravel()], axis=1).astype(float)


def make(num_spots: int) -> tuple[Floats, Floats]:
    """(P, 5) true spots and (P, 49) counts."""
    rng = np.random.default_rng(0)
    low, high = [2.3, 2.3, 500.0, 0.9, 5.0], [3.7, 3.7, 2000.0, 1.4, 20.0]
    spots = rng.uniform(low, high, (num_spots, 5))
    x, y, photons, width, background = spots.T[:, :, None]
    square = ((places().T[:, None] - np.stack([x, y])) ** 2).sum(axis=0) / width**2
    expected = background + photons * np.exp(-square / 2) / (2 * np.pi * width**2)
    return spots, rng.poisson(expected).astype(float)


def start(counts: Floats) -> Floats:
    """(P, 5) what the moments of the counts say."""
    background = np.percentile(counts, 20, axis=1)
    above = np.maximum(counts - background[:, None], 0.0)
    photons = above.sum(axis=1)
    place = above @ places() / photons[:, None]
    width = np.full(len(counts), 1.2)
    return np.column_stack([place, photons, width, background])


# %% [markdown]
# ## Solved at once


# %%
def main() -> caspar.BatchResult:
    """Solve, and say how well molecules are found."""
    spots, counts = make(10_000)
    weights = 1.0 / np.maximum(counts, 3.0)
    solver = caspar.BatchSolver(pixel)
    result = solver.solve(
        {
            "Spot": start(counts),
            "pixel": {"at": places()[None], "count": counts, "weight": weights},
        }
    )
    print(result)
    error = result.values["Spot"][:, :2] - spots[:, :2]
    print(f"standard deviation of a coordinate: {error.std():.3f} pixels")
    return result


# %% tags=["active-ipynb"]
# main();

# %% tags=["active-py"]
if __name__ == "__main__":
    main()
