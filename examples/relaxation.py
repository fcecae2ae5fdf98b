# %% [markdown]
# # A map of relaxation times

# %% [markdown]
"""A map of relaxation times: T1 of each voxel of an image of magnetic resonance.

After its magnetisation is inverted, a voxel's signal recovers as A |1 - B exp(-t / T1)|. Each voxel
is a problem of its own; some voxels lack images in which the patient moved, so problems have
different numbers of samples and are passed with the voxel of each.

    python examples/relaxation.py
"""

# %%
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TIMES = np.array([0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0])
"""Seconds after the inversion."""

NOISE = 0.01


@dataclass
class Voxel:
    """Amplitude, inversion, and the rate 1 / T1."""

    amplitude: sf.Scalar
    inversion: sf.Scalar
    rate: sf.Scalar


@caspar.factor
def recovery(
    voxel: Annotated[Voxel, caspar.TunableUnique],
    time: Annotated[sf.Scalar, caspar.ConstSequential],
    signal: Annotated[sf.Scalar, caspar.ConstSequential],
) -> sf.V1:
    """Expected minus measured signal, in standard deviations of the noise."""
    recovered = 1 - voxel.inversion * sf.exp(-voxel.rate * time)
    return sf.V1((voxel.amplitude * recovered - signal) / NOISE)


def make(side: int) -> tuple[Floats, Floats, Floats, Integers]:
    """(side^2,) true T1; times, signals and voxels of all samples."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    t1 = np.where(x**2 + y**2 < 0.3, 1.4, 0.8) + 0.2 * x
    count = side * side
    is_kept = rng.uniform(size=(count, len(TIMES))) < 0.9
    voxel, sample = np.nonzero(is_kept)
    time = TIMES[sample]
    signal = 1.0 - 1.9 * np.exp(-time / t1.ravel()[voxel]) + rng.normal(0.0, NOISE, len(time))
    return t1.ravel(), time, signal, voxel


# %% [markdown]
# ## Solved at once


# %%
def main(side: int = 64) -> caspar.BatchResult:
    """Solve, and compare the map with the true one."""
    t1, time, signal, voxel = make(side)
    solver = caspar.BatchSolver(recovery)
    result = solver.solve(
        {
            "Voxel": np.tile([1.0, 2.0, 1.0], (len(t1), 1)),
            "recovery": {
                "time": {"values": time, "problem": voxel},
                "signal": {"values": signal, "problem": voxel},
            },
        }
    )
    print(result)
    found = 1.0 / result.values["Voxel"][:, 2]
    print(f"root mean square error of T1: {1e3 * np.sqrt(np.mean((found - t1) ** 2)):.0f} ms")
    return result


# %% tags=["active-ipynb"]
# main();

# %% tags=["active-py"]
if __name__ == "__main__":
    main()
