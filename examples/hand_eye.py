# %% [markdown]
# # Where a camera beside a robot is

# %% [markdown]
"""Hand-eye calibration of 50 real poses: A X = Y B, with a robust loss.

A robot holds a target before a camera that stands beside it. For each pose the robot's joints say
where the hand is (`base_from_hand`, A), the camera where the target is (`eye_from_target`, B).
Unknown are the target in the hand (`hand_from_target`, X) and the camera in the robot's base
(`base_from_eye`, Y). The closed solution of Shah (2013) starts the solver, and shows what
minimising the errors of the target's poses gains.

    python examples/hand_eye.py --plot out/hand_eye.png
"""

# %% tags=["active-py"]
import argparse

# %%
import bz2
import json
from pathlib import Path
from typing import Any

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar

Array = NDArray[np.float64]

DATA = Path(caspar.__file__).parents[1] / "data" / "hand_eye_moveit.json.bz2"
SIGMA = [0.002] * 3 + [0.003] * 3
"""Errors of the target's poses: radians, metres."""

# %% [markdown]
# ## Problem
#
# One factor of the library, two node types of one node each.


# %%
class HandFromTarget(sf.Pose3):
    """X, the target in the hand."""


class BaseFromEye(sf.Pose3):
    """Y, the camera in the robot's base."""


calibration = caspar.factors.robot_world_hand_eye(
    HandFromTarget,
    BaseFromEye,
    markers={"x": caspar.TunableUnique, "y": caspar.TunableUnique},
).with_loss(caspar.loss.Huber)


def read(path: Path = DATA) -> tuple[Array, Array]:
    """A and B: (n, 4, 4) base_from_hand and eye_from_target."""
    pairs = np.array(json.loads(bz2.decompress(path.read_bytes())))
    return pairs[:, 0], pairs[:, 1]


def stored(matrices: Array) -> Array:
    """Poses as caspar stores them, (n, 7), from (n, 4, 4)."""
    turns = Rotation.from_matrix(matrices[:, :3, :3]).as_quat()
    return np.concatenate([turns, matrices[:, :3, 3]], axis=1)


def matrices(poses: Array) -> Array:
    """The other way round."""
    made = np.tile(np.eye(4), (len(poses), 1, 1))
    made[:, :3, :3] = Rotation.from_quat(poses[:, :4]).as_matrix()
    made[:, :3, 3] = poses[:, 4:]
    return made


# %% [markdown]
# ## A start in closed form
#
# The rotations first, as the singular vectors of the sum of Kronecker products; then both
# translations, which are linear. Errors of the translations do not correct the rotations.


# %%
def closed_form(hands: Array, targets: Array) -> tuple[Array, Array]:
    """X and Y, (4, 4) each: Shah, *Solving the Robot-World/Hand-Eye Calibration Problem*, 2013."""
    turns_a, turns_b = hands[:, :3, :3], targets[:, :3, :3]
    kronecker = np.einsum("nij,nkl->ikjl", turns_b, turns_a).reshape(9, 9)
    left, _, right = np.linalg.svd(kronecker)
    found = []
    for vector in (right[0], left[:, 0]):
        matrix = vector.reshape(3, 3).T
        matrix = matrix * np.sign(np.linalg.det(matrix))
        u, _, v = np.linalg.svd(matrix)
        found.append(u @ v)
    # R_A t_X - t_Y = R_Y t_B - t_A
    matrix = np.concatenate([turns_a, np.tile(-np.eye(3), (len(hands), 1, 1))], axis=2)
    rest = (found[1] @ targets[:, :3, 3:])[:, :, 0] - hands[:, :3, 3]
    shifts = np.linalg.lstsq(matrix.reshape(-1, 6), rest.ravel())[0]
    made = np.tile(np.eye(4), (2, 1, 1))
    made[:, :3, :3], made[:, :3, 3] = found, shifts.reshape(2, 3)
    return made[0], made[1]


def errors(hands: Array, targets: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Of each pose of the target, in its own axes: degrees and millimetres."""
    off = np.linalg.inv(y @ targets) @ hands @ x
    turns = Rotation.from_matrix(off[:, :3, :3]).magnitude()
    return np.degrees(turns), 1e3 * np.linalg.norm(off[:, :3, 3], axis=1)


# %%
def calibrate(hands: Array, targets: Array) -> tuple[caspar.SolveResult, Array, Array]:
    """The solve, X and Y."""
    x, y = closed_form(hands, targets)
    solver = caspar.Solver([calibration], precision="float64")
    result = solver.solve(
        {
            "HandFromTarget": stored(x[None]),
            "BaseFromEye": stored(y[None]),
            "robot_world_hand_eye": {"a": stored(hands), "b": stored(targets), "sigma": SIGMA},
        },
        verbose=False,
    )
    x, y = (matrices(result.values[name])[0] for name in ("HandFromTarget", "BaseFromEye"))
    return result, x, y


def draw(hands: Array, targets: Array, solutions: dict[str, Any]) -> Figure:
    """Errors of each pose, by solution."""
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.2), layout="constrained")
    for name, (x, y) in solutions.items():
        for axis, values, unit in zip(
            axes, errors(hands, targets, x, y), ("degrees", "mm"), strict=True
        ):
            axis.plot(values, ".-", label=f"{name}: median {np.median(values):.2f} {unit}")
            axis.set(xlabel="pose", ylabel=unit)
            axis.legend()
    return figure


# %% tags=["active-ipynb"]
# hands, targets = read()
# result, x, y = calibrate(hands, targets)
# print(result)
# print("\nbase_from_eye\n", y.round(4))

# %% tags=["active-ipynb"]
# draw(hands, targets, {"closed form": closed_form(hands, targets), "caspar": (x, y)});


# %% tags=["active-py"]
def main(arguments: list[str] | None = None) -> caspar.SolveResult:
    """Calibrate, print the report, and draw where that is wanted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plot", type=Path, help="file for the picture")
    options = parser.parse_args(arguments)
    hands, targets = read()
    result, x, y = calibrate(hands, targets)
    print(result)
    print("\nbase_from_eye\n", y.round(4))
    solutions = {"closed form": closed_form(hands, targets), "caspar": (x, y)}
    for name, solution in solutions.items():
        turns, shifts = errors(hands, targets, *solution)
        print(f"{name:<12} median {np.median(turns):.3f} degrees, {np.median(shifts):.2f} mm")
    if options.plot is not None:
        draw(hands, targets, solutions).savefig(options.plot)
    return result


if __name__ == "__main__":
    main()
