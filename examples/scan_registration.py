# %% [markdown]
# # Two lidar scans laid on each other

# %% [markdown]
"""Iterative closest points (ICP) of two real lidar scans: point to plane, and plane to plane.

Which point of the target a point of the source belongs to is not known: the nearest one is taken,
the pose solved for, and again. The solver is made once and used for every round. Points without a
near neighbour have weight zero: arrays keep their shapes, and nothing is planned or compiled anew.

    python examples/scan_registration.py --plot out/scans.png
"""

# %% tags=["active-py"]
import argparse

# %%
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial import KDTree
from scipy.spatial.transform import Rotation

import caspar

Array = NDArray[np.float64]

DATA = Path(caspar.__file__).parents[1] / "data" / "lidar_scans.npz"
UNIT_M = 0.005
"""Of the file's integers."""

NEIGHBOURS = 15
"""Of a point, for its normal."""
REACH_M = 1.0
"""Farther points are no matches."""

# %% [markdown]
# ## Scans with normals
#
# The normal of a point is the direction in which its neighbours spread least.


# %%
@dataclass(frozen=True)
class Scan:
    """Points of one scan.

    Attributes:
        points: (n, 3) metres.
        normals: (n, 3) of unit length.
        tree: For neighbours.
    """

    points: Array
    normals: Array
    tree: KDTree


def make_scan(points: Array) -> Scan:
    """Find the normals of a scan."""
    tree = KDTree(points)
    near = points[tree.query(points, NEIGHBOURS)[1]]
    spread = near - near.mean(axis=1, keepdims=True)
    _, directions = np.linalg.eigh(spread.transpose(0, 2, 1) @ spread)
    return Scan(points, directions[:, :, 0], tree)


def read(path: Path = DATA) -> tuple[Scan, Scan, Array]:
    """Source, target, and (4, 4) target_from_source as it should be."""
    with np.load(path) as file:
        source, target = (make_scan(UNIT_M * file[name]) for name in ("source", "target"))
        return source, target, file["target_from_source"]


# %% [markdown]
# ## Two ways to measure the distance
#
# `point_to_plane` sees how far a point is from the other scan's surface. `plane_to_plane` (GICP)
# takes both points for uncertain along their surfaces, and sees corners and edges as well. The loss
# gives less weight to matches that are wrong.

# %%
FACTORS = {
    "point to plane": caspar.factors.point_to_plane(noise="sigma", name="match"),
    "plane to plane": caspar.factors.plane_to_plane(noise="unit", name="match"),
}
SIGMA_M = 0.05
THICKNESS = 1e-3


def constants(name: str, source: Scan, target: Scan, match: Any) -> dict[str, Any]:
    """Arrays of a factor, but for weights, where source point i matches target point match[i]."""
    arrays: dict[str, Any] = {"target_from_source": np.zeros(len(match), int)}
    arrays |= {"source": source.points, "target": target.points[match]}
    if name == "point to plane":
        return {**arrays, "normal": target.normals[match], "sigma": [SIGMA_M]}
    covariances = [
        caspar.factors.plane_covariances(normals, THICKNESS) * SIGMA_M**2 / THICKNESS
        for normals in (source.normals, target.normals[match])
    ]
    return {**arrays, "source_covariance": covariances[0], "target_covariance": covariances[1]}


# %%
@dataclass(frozen=True)
class Registration:
    """How it went.

    Attributes:
        poses: (rounds + 1, 7) target_from_source.
        result: Of the last solve.
    """

    poses: Array
    result: caspar.SolveResult


def register(name: str, source: Scan, target: Scan, max_rounds: int = 40) -> Registration:
    """Match and solve until the pose rests, from the identity."""
    solver = caspar.Solver([FACTORS[name].with_loss(caspar.loss.GemanMcClure)], precision="float64")
    poses = [np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])]
    for _ in range(max_rounds):
        moved = Rotation.from_quat(poses[-1][:4]).apply(source.points) + poses[-1][4:]
        distance, match = target.tree.query(moved)
        matches = constants(name, source, target, match)
        matches |= {"weight": (distance < REACH_M).astype(float), "loss_scale": 3.0}
        result = solver.solve({"Pose3": poses[-1][None], "match": matches}, verbose=False)
        poses.append(result.values["Pose3"][0])
        if abs(poses[-1] - poses[-2]).max() < 1e-6:
            break
    return Registration(np.stack(poses), result)


def error(pose: Array, truth: Array) -> tuple[float, float]:
    """Degrees and metres between a pose and the true (4, 4)."""
    turn = Rotation.from_quat(pose[:4]).inv() * Rotation.from_matrix(truth[:3, :3])
    return float(np.degrees(turn.magnitude())), float(np.linalg.norm(pose[4:] - truth[:3, 3]))


# %%
def draw(source: Scan, target: Scan, found: dict[str, Registration], truth: Array) -> Figure:
    """Both scans from above, before and after; and the errors by round."""
    figure, axes = plt.subplots(1, 3, figsize=(12.0, 4.0), layout="constrained")
    last = next(iter(found.values())).poses[-1]
    moved = Rotation.from_quat(last[:4]).apply(source.points) + last[4:]
    for axis, points, title in zip(axes, (source.points, moved), ("before", "after"), strict=False):
        axis.scatter(*target.points[:, :2].T, s=0.5, label="target")
        axis.scatter(*points[:, :2].T, s=0.5, label="source")
        axis.set(title=title, aspect="equal", xlim=(-10, 15), ylim=(-20, 8), xlabel="m")
    for name, registration in found.items():
        shifts = [error(pose, truth)[1] for pose in registration.poses]
        axes[2].semilogy(shifts, ".-", label=name)
    axes[2].set(xlabel="round", ylabel="error of the position, m")
    axes[2].legend()
    return figure


# %% tags=["active-ipynb"]
# source, target, truth = read()
# found = {name: register(name, source, target) for name in FACTORS}
# for name, registration in found.items():
#     degrees, metres = error(registration.poses[-1], truth)
#     rounds = len(registration.poses) - 1
#     print(f"{name}: {rounds} rounds, off by {degrees:.3f} degrees, {100 * metres:.2f} cm")

# %% tags=["active-ipynb"]
# draw(source, target, found, truth);


# %% tags=["active-py"]
def main(arguments: list[str] | None = None) -> dict[str, Registration]:
    """Lay the scans on each other both ways, and draw that where it is wanted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plot", type=Path, help="file for the picture")
    options = parser.parse_args(arguments)
    source, target, truth = read()
    found = {name: register(name, source, target) for name in FACTORS}
    for name, registration in found.items():
        print(f"{name}\n{registration.result}\n")
    for name, registration in found.items():
        degrees, metres = error(registration.poses[-1], truth)
        rounds = len(registration.poses) - 1
        print(f"{name}: {rounds} rounds, off by {degrees:.3f} degrees, {100 * metres:.2f} cm")
    if options.plot is not None:
        draw(source, target, found, truth).savefig(options.plot)
    return found


if __name__ == "__main__":
    main()
