# %% [markdown]
# # A thousand goals of an arm with seven joints

# %% [markdown]
"""Inverse kinematics: joint angles that bring a hand to a pose, within the limits of the joints.

An arm of seven joints has more than it needs, so a weak pull to the middle of their ranges chooses
among the solutions. From one start many goals end in a wrong minimum or at a limit. Each goal is
therefore tried from several starts, each of them a problem of its own, all solved at once.

    python examples/inverse_kinematics.py
"""

# %%
from typing import Annotated

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar

Floats = NDArray[np.float64]

# %% [markdown]
# ## The arm
#
# Lengths are those of a common research arm, in the convention of Craig: along and about x of the
# joint before, then along and about z of its own.

# %%
ALONG_X = (0.0, 0.0, 0.0, 0.0825, -0.0825, 0.0, 0.088)
ABOUT_X = (0, -1, 1, 1, -1, 1, 1)
"""Metres, and quarter turns."""

ALONG_Z = (0.333, 0.0, 0.316, 0.0, 0.384, 0.0, 0.107)

LOWER = np.array([-2.9, -1.76, -2.9, -3.07, -2.9, -0.02, -2.9])
UPPER = np.array([2.9, 1.76, 2.9, -0.07, 2.9, 3.75, 2.9])
"""Limits of the joints, radians."""

MIDDLE = 0.5 * (LOWER + UPPER)
SIGMA_M, SIGMA_RAD, PULL = 0.001, 0.01, 0.02


class Joints(sf.V7):
    """Angles, from the base to the hand."""


@caspar.factor
def reached(
    joints: Annotated[Joints, caspar.TunableUnique],
    goal: Annotated[sf.Pose3, caspar.ConstUnique],
) -> sf.V6:
    """Where the hand is in the frame of the goal: radians, then metres."""
    hand = sf.Pose3.identity()
    for angle, turns, along_x, along_z in zip(joints, ABOUT_X, ALONG_X, ALONG_Z, strict=True):
        to_axis = sf.Rot3.from_angle_axis(turns * sf.pi / 2, sf.V3(1, 0, 0))
        about = sf.Rot3.from_angle_axis(angle, sf.V3(0, 0, 1))
        hand = (
            hand * sf.Pose3(to_axis, sf.V3(along_x, 0, 0)) * sf.Pose3(about, sf.V3(0, 0, along_z))
        )
    apart = goal.inverse() * hand
    turn = sf.V3(apart.R.to_tangent()) / SIGMA_RAD
    return sf.V6(*turn, *(apart.t / SIGMA_M))


@caspar.factor
def rest(joints: Annotated[Joints, caspar.TunableUnique]) -> sf.V7:
    """A weak pull to the middle of the ranges."""
    return PULL * (joints - sf.V7(*MIDDLE))


# %% [markdown]
# ## Goals that can be reached


# %%
def hands(joints: Floats) -> Floats:
    """(P, 7) poses of the hand by (P, 7) angles: qx qy qz qw, then metres."""
    turn, place = Rotation.identity(len(joints)), np.zeros((len(joints), 3))
    for number in range(7):
        place = place + turn.apply([ALONG_X[number], 0.0, 0.0])
        turn = turn * Rotation.from_euler("x", 0.5 * np.pi * ABOUT_X[number])
        turn = turn * Rotation.from_euler("z", joints[:, number : number + 1])
        place = place + turn.apply([0.0, 0.0, ALONG_Z[number]])
    return np.concatenate([turn.as_quat(), place], axis=1)


def make(num_goals: int, num_starts: int) -> tuple[Floats, Floats]:
    """(num_goals, 7) poses, and (num_goals * num_starts, 7) angles to start from."""
    rng = np.random.default_rng(0)
    goals = hands(rng.uniform(LOWER, UPPER, (num_goals, 7)))
    return goals, rng.uniform(LOWER, UPPER, (num_goals * num_starts, 7))


# %% [markdown]
# ## All goals from all starts
#
# A problem is a goal and a start. Limits are bounds: angles at one are in `active_bounds`.


# %%
def solve(goals: Floats, starts: Floats) -> caspar.BatchResult:
    """Every goal from each of its starts."""
    repeated = np.repeat(goals, len(starts) // len(goals), axis=0)
    limits = np.broadcast_to(LOWER, starts.shape), np.broadcast_to(UPPER, starts.shape)
    solver = caspar.BatchSolver([reached, rest])
    return solver.solve(
        {"Joints": starts, "reached": {"goal": repeated}, "rest": {}}, bounds={"Joints": limits}
    )


def best(goals: Floats, result: caspar.BatchResult) -> tuple[Floats, Floats]:
    """Angles of the best start of each goal, and how far its hand is from it, metres."""
    cost = result.final_cost.reshape(len(goals), -1)
    chosen = cost.argmin(axis=1) + np.arange(len(goals)) * cost.shape[1]
    angles = result.values["Joints"][chosen]
    return angles, np.linalg.norm(hands(angles)[:, 4:] - goals[:, 4:], axis=1)


# %% tags=["active-ipynb"]
# goals, starts = make(1000, 8)
# result = solve(goals, starts)
# print(result)

# %% [markdown]
# ## How many starts it takes


# %%
def draw(goals: Floats, result: caspar.BatchResult) -> Figure:
    """The share of goals that are reached by the number of starts."""
    apart = np.linalg.norm(
        hands(result.values["Joints"])[:, 4:].reshape(len(goals), -1, 3) - goals[:, None, 4:],
        axis=2,
    )
    reached_by = (np.minimum.accumulate(apart, axis=1) < SIGMA_M).mean(axis=0)
    figure, axis = plt.subplots()
    axis.plot(np.arange(1, len(reached_by) + 1), 100 * reached_by, "o-")
    axis.set(xlabel="starts", ylabel="goals reached within a millimetre, %")
    return figure


# %% tags=["active-ipynb"]
# draw(goals, result);


# %% tags=["active-py"]
def main(num_goals: int = 1000, num_starts: int = 8) -> tuple[caspar.BatchResult, Floats]:
    """Solve, and say how many goals are reached."""
    goals, starts = make(num_goals, num_starts)
    result = solve(goals, starts)
    print(result)
    _, away = best(goals, result)
    print(f"{(away < SIGMA_M).sum()} of {num_goals} goals reached within a millimetre")
    return result, away


if __name__ == "__main__":
    main()
