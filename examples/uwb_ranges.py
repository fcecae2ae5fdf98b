# %% [markdown]
# # A mower's path from ranges to four beacons, with outliers

# %% [markdown]
"""SLAM with ranges only, real data of an ultra-wideband (UWB) radio: Plaza 2.

A robotic mower counts its wheels' turns and reads a gyroscope (odometry), and measures its distance
from four radio beacons. Where the beacons stand is not told: the path and the beacons are estimated
together, and judged by the surveyed places of the beacons. Few of the published ranges are wrong,
so a fifth of them are made too long, as reflected signals are. Least squares is led astray by them,
graduated non-convexity (GNC) finds them.

J. Djugash, B. Hamner, S. Roth: *Navigating with Ranging Radios: Five Data Sets with Ground Truth*,
Journal of Field Robotics, 2009.

    python examples/uwb_ranges.py --plot out/uwb.png
"""

# %% tags=["active-py"]
import argparse

# %%
import io
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

import caspar

Array = NDArray[np.float64]

DATA = Path(caspar.__file__).parents[1] / "data" / "plaza2.tar.xz"

SURVEYED = {0: (-33.6205, 26.9678), 1: (-68.9265, 18.3778), 5: (1.7095, -5.8122)}
SURVEYED |= {6: (-37.5805, 69.2278)}
"""Places of the beacons, metres."""

ODOMETRY_SIGMA = [0.003, 0.03, 0.01]
"""Of a tenth of a second: radians, metres ahead, metres aside."""
RANGE_SIGMA_M = 0.6
INLIER_M = 2.0
"""No range that is right is farther off."""


# %%
class Beacon(sf.V2):
    """The place of a radio."""


@dataclass(frozen=True)
class Drive:
    """What was measured.

    Attributes:
        motion: (n - 1, 4) from each pose to the next, as `sf.Pose2` stores it.
        pose: (m,) pose at which a range was measured.
        beacon: (m,) to which beacon.
        distance: (m,) metres.
        beacons: (4, 2) surveyed places.
    """

    motion: Array
    pose: NDArray[np.int64]
    beacon: NDArray[np.int64]
    distance: Array
    beacons: Array


def read(path: Path = DATA) -> Drive:
    """The files of Plaza 2: odometry by time, and ranges by time, sender and receiver."""
    with tarfile.open(path) as archive:
        tables = [
            np.loadtxt(io.BytesIO(file.read()))
            for name in ("Plaza2_DR.txt", "Plaza2_TD.txt")
            if (file := archive.extractfile(name)) is not None
        ]
    odometry, ranges = tables
    ids = sorted(SURVEYED)
    ahead, turn = odometry[1:, 1], odometry[1:, 2]
    motion = np.column_stack([np.cos(turn), np.sin(turn), ahead, np.zeros_like(ahead)])
    pose = np.searchsorted(odometry[:, 0], ranges[:, 0]).clip(0, len(odometry) - 1)
    beacon = np.searchsorted(ids, ranges[:, 2].astype(int))
    return Drive(motion, pose, beacon, ranges[:, 3], np.array([SURVEYED[one] for one in ids]))


def spoiled(drive: Drive, share: float = 0.2, seed: int = 0) -> tuple[Drive, NDArray[np.bool_]]:
    """The drive with some ranges too long by up to 40 m, and which these are."""
    random = np.random.default_rng(seed)
    is_wrong = random.random(len(drive.distance)) < share
    added = np.where(is_wrong, random.uniform(4.0, 40.0, len(is_wrong)), 0.0)
    return replace(drive, distance=drive.distance + added), is_wrong


def dead_reckoning(motion: Array) -> Array:
    """(n, 4) poses by odometry alone, from the origin."""
    poses = [np.array([1.0, 0.0, 0.0, 0.0])]
    for cosine, sine, x, y in motion:
        c, s, px, py = poses[-1]
        moved = (px + c * x - s * y, py + s * x + c * y)
        poses.append(np.array([c * cosine - s * sine, s * cosine + c * sine, *moved]))
    return np.stack(poses)


# %% [markdown]
# ## Where the beacons may be
#
# A beacon that is seen from a path at known distances lies where the circles meet. For the start,
# the median of the squared differences is minimised over a grid: half of the ranges may be wrong.


# %%
def first_beacons(drive: Drive, poses: Array, reach_m: float = 100.0) -> Array:
    """(4, 2) places that suit dead reckoning."""
    steps = np.arange(-reach_m, reach_m, 2.0)
    grid = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 1, 2)
    places = []
    for number in range(len(drive.beacons)):
        own = np.flatnonzero(drive.beacon == number)[::8]
        away = np.linalg.norm(grid - poses[drive.pose[own], 2:], axis=2) - drive.distance[own]
        places.append(grid[np.argmin(np.median(abs(away), axis=1)), 0])
    return np.stack(places)


# %% [markdown]
# ## Three factors of the library

# %%
FACTORS = (
    caspar.factors.prior(sf.Pose2),
    caspar.factors.between(sf.Pose2, name="odometry"),
    caspar.factors.range(sf.Pose2, Beacon),
)


def arrays(drive: Drive) -> dict[str, Any]:
    """What the solver takes; the first pose is the origin."""
    poses = dead_reckoning(drive.motion)
    start = np.arange(len(drive.motion))
    return {
        "Pose2": poses,
        "Beacon": first_beacons(drive, poses),
        "prior": {"value": [0], "expected": poses[:1], "sigma": [1e-3] * 3},
        "odometry": {
            **{"a": start, "b": start + 1, "a_from_b": drive.motion, "sigma": ODOMETRY_SIGMA},
        },
        "range": {
            **{"a": drive.pose, "b": drive.beacon, "distance": drive.distance[:, None]},
            "sigma": [RANGE_SIGMA_M],
        },
    }


# %% [markdown]
# ## Into the axes of the survey
#
# The first pose is the origin of a solution, so it is turned and moved until its beacons fit the
# survey (Umeyama, 1991). It also has to be scaled: all ranges of this data set are some 7 % longer
# than those between the surveyed places.


# %%
@dataclass(frozen=True)
class Map:
    """A solution in the axes of the survey.

    Attributes:
        path: (n, 2).
        beacons: (4, 2).
        scale: By which it had to be multiplied.
        error_m: Root mean square of the distances from the surveyed beacons.
    """

    path: Array
    beacons: Array
    scale: float
    error_m: float


def surveyed(drive: Drive, values: Any) -> Map:
    """Turn, scale and move a solution so that its beacons fit the survey best."""
    found, wanted = values["Beacon"], drive.beacons
    centred = found - found.mean(axis=0)
    u, sizes, v = np.linalg.svd(centred.T @ (wanted - wanted.mean(axis=0)))
    mirror = np.diag([1.0, np.linalg.det(u @ v)])
    scale = float((sizes * np.diag(mirror)).sum() / (centred**2).sum())
    turn = scale * (u @ mirror @ v).T
    shift = wanted.mean(axis=0) - turn @ found.mean(axis=0)
    beacons, path = found @ turn.T + shift, values["Pose2"][:, 2:] @ turn.T + shift
    error_m = float(np.sqrt(((beacons - wanted) ** 2).sum(axis=1).mean()))
    return Map(path, beacons, scale, error_m)


def draw(drive: Drive, maps: dict[str, Map], weights: Array, residuals: Array) -> Figure:
    """Paths and beacons; residuals of the ranges and which were left out."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.0, 4.5), layout="constrained")
    for name, one in maps.items():
        (line,) = left.plot(*one.path.T, lw=0.8, label=f"{name}: {one.error_m:.2f} m")
        left.plot(*one.beacons.T, "o", color=line.get_color(), ms=4)
    left.plot(*drive.beacons.T, "k+", ms=12, label="surveyed beacons")
    left.set(aspect="equal", xlabel="m", ylabel="m")
    left.legend(loc="upper right", fontsize="small")
    right.scatter(np.arange(len(residuals)), residuals, s=3, c=np.where(weights > 0.5, "C0", "C3"))
    right.set(xlabel="range", ylabel="residual in standard deviations (red: left out)")
    return figure


# %% [markdown]
# ## With and without wrong ranges


# %%
@dataclass(frozen=True)
class Solutions:
    """Of the published ranges, and of the spoiled ones.

    Attributes:
        published: Least squares.
        plain: Least squares of the spoiled ranges.
        robust: GNC of the spoiled ranges.
        is_wrong: (m,) which ranges were spoiled.
    """

    published: caspar.SolveResult
    plain: caspar.SolveResult
    robust: caspar.GncResult
    is_wrong: NDArray[np.bool_]

    def maps(self, drive: Drive) -> dict[str, Map]:
        """All of them in the axes of the survey."""
        return {
            "least squares": surveyed(drive, self.published.values),
            "least squares, spoiled": surveyed(drive, self.plain.values),
            "GNC, spoiled": surveyed(drive, self.robust.values),
        }


def solve(drive: Drive) -> Solutions:
    """Solve three times with one solver."""
    solver = caspar.Solver(FACTORS, precision="float64")
    wrong_drive, is_wrong = spoiled(drive)
    given = arrays(wrong_drive)
    threshold = {"range": INLIER_M / RANGE_SIGMA_M}
    robust = caspar.solve_gnc(solver, given, inlier_threshold=threshold, verbose=False)
    published, plain = (solver.solve(one, verbose=False) for one in (arrays(drive), given))
    return Solutions(published, plain, robust, is_wrong)


def summary(drive: Drive, solutions: Solutions) -> str:
    """What came of it, as text."""
    left_out = solutions.robust.weights["range"] < 0.5
    found = int((left_out & solutions.is_wrong).sum())
    lines = [
        f"{name:<23} beacons {one.error_m:5.2f} m from the survey, scale {one.scale:.3f}"
        for name, one in solutions.maps(drive).items()
    ]
    lines.append(f"{found} of {solutions.is_wrong.sum()} spoiled ranges found")
    lines.append(f"{int(left_out.sum()) - found} others left out")
    return "\n".join(lines)


# %% tags=["active-ipynb"]
# drive = read()
# solutions = solve(drive)
# print(summary(drive, solutions))

# %% tags=["active-ipynb"]
# robust = solutions.robust
# residuals = robust.result.residuals("range")[:, 0]
# draw(drive, solutions.maps(drive), robust.weights["range"], residuals);


# %% tags=["active-py"]
def main(arguments: list[str] | None = None) -> Solutions:
    """Solve, print the report, and draw where that is wanted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plot", type=Path, help="file for the picture")
    options = parser.parse_args(arguments)
    drive = read()
    solutions = solve(drive)
    print(solutions.published)
    print(f"\n{summary(drive, solutions)}")
    if options.plot is not None:
        robust = solutions.robust
        residuals = robust.result.residuals("range")[:, 0]
        figure = draw(drive, solutions.maps(drive), robust.weights["range"], residuals)
        figure.savefig(options.plot)
    return solutions


if __name__ == "__main__":
    main()
