# %% [markdown]
# # Noise that is learnt through a solve

# %% [markdown]
"""The noise of a robot's sensors, learnt through the solve of its pose graph.

A robot drives round a square, again and again: odometry from pose to pose, and now and then a place
it knows, a loop closure. How much to trust each is a number that somebody has to choose. Here
positions that were surveyed on a few drives choose it: the solve is a layer of PyTorch, and the
distance from the survey is derived by the weight of odometry, through the minimum.

Without PyTorch nothing is learnt; what the loss function looks like is drawn all the same.

    python examples/learned_noise.py
"""

# %%
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

import caspar
from caspar import factors

try:
    import torch  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    torch = None

Rows = NDArray[np.float64]

ODOMETRY = factors.between(sf.Pose2, noise="unit", name="odometry")
CLOSURE = factors.between(sf.Pose2, noise="unit", name="closure")
NUM_POSES, NUM_CLOSURES = 100, 80
TRUE_DEVIATIONS = {"odometry": 0.02, "closure": 0.04}
TRUE_RATIO = TRUE_DEVIATIONS["closure"] / TRUE_DEVIATIONS["odometry"]
NUM_STEPS = 30

# %% [markdown]
# ## Drives
#
# Twenty sides of five metres, one pose for each metre. Both sensors measure the motion between two
# poses; odometry is the better one, but its errors add up.


# %%
def moved(poses: Rows, motions: Rows) -> Rows:
    """(n, 4) poses (cosine, sine, x, y) after motions (angle, x, y) in their own axes."""
    (c, s, x, y), (angle, u, v) = poses.T, motions.T
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.stack(
        [c * cosine - s * sine, s * cosine + c * sine, x + c * u - s * v, y + s * u + c * v],
        axis=1,
    )


def relative(first: Rows, second: Rows) -> Rows:
    """(n, 4) poses of the second in the axes of the first."""
    (c, s, x, y), (d, t, u, v) = first.T, second.T
    dx, dy = u - x, v - y
    return np.stack([c * d + s * t, c * t - s * d, c * dx + s * dy, c * dy - s * dx], axis=1)


def drive(rng: np.random.Generator) -> tuple[Rows, dict[str, Any]]:
    """A drive: (100, 4) surveyed poses, and what the sensors measured of it."""
    poses = [np.array([[1.0, 0.0, 0.0, 0.0]])]
    for number in range(1, NUM_POSES):
        angle = np.pi / 2.0 if number % 5 == 0 else 0.0
        poses.append(moved(poses[-1], np.array([[angle, 1.0, 0.0]])))
    truth = np.concatenate(poses)
    first = np.arange(NUM_POSES - 1)
    seen = rng.integers(0, NUM_POSES - 20, NUM_CLOSURES)
    pairs = {"odometry": (first, first + 1), "closure": (seen, seen + 20)}
    arrays: dict[str, Any] = {"Pose2": truth}
    for name, (a, b) in pairs.items():
        noise = TRUE_DEVIATIONS[name] * rng.normal(size=(len(a), 3))
        measured = moved(relative(truth[a], truth[b]), noise)
        arrays[name] = {"a": a, "b": b, "a_from_b": measured}
    return truth, arrays


# %% [markdown]
# ## The solve as a layer
#
# Only the ratio of both standard deviations counts for where the minimum is. So closures weigh 1,
# and odometry weighs the square of that ratio, whose logarithm is learnt.


# %%
@dataclass
class Learnt:
    """What was found.

    Attributes:
        drives: Surveyed poses, and arrays, of each drive.
        ratios: How many times as noisy closures are, before each step and after the last.
        errors: Root mean square distances from the survey, in metres, there.
    """

    drives: list[tuple[Rows, dict[str, Any]]]
    ratios: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)


def with_weight(arrays: dict[str, Any], weight: Any) -> dict[str, Any]:
    """Arrays of a drive, in which odometry has a weight for each motion."""
    return {**arrays, "odometry": {**arrays["odometry"], "weight": weight}}


def main() -> Learnt:
    """Learn the ratio on six drives."""
    rng = np.random.default_rng(0)
    learnt = Learnt([drive(rng) for _ in range(6)])
    if torch is None:
        print("Nothing is learnt: PyTorch is not installed (pip install torch)")
        return learnt
    solver = caspar.Solver([ODOMETRY, CLOSURE], backend="cpu")
    logarithm = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logarithm], lr=0.1)
    for step in range(NUM_STEPS + 1):
        optimizer.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        for truth, arrays in learnt.drives:
            weight = torch.exp(2.0 * logarithm).expand(NUM_POSES - 1)
            values = caspar.torch.solve(solver, with_weight(arrays, weight), fixed={"Pose2": [0]})
            loss = loss + ((values["Pose2"][:, 2:] - torch.tensor(truth[:, 2:])) ** 2).sum(1).mean()
        learnt.ratios.append(float(logarithm.detach().exp()))
        learnt.errors.append(float(loss.detach() / len(learnt.drives)) ** 0.5)
        if step % 10 == 0:
            ratio, error = learnt.ratios[-1], learnt.errors[-1]
            print(f"step {step:2d}: closures {ratio:5.2f} times as noisy, error {error:.3f} m")
        loss.backward()
        optimizer.step()
    print(f"learnt {learnt.ratios[-1]:.2f}, true {TRUE_RATIO:.2f}")
    return learnt


# %% tags=["active-ipynb"]
# learnt = main()

# %% [markdown]
# ## What was descended
#
# There is one number to learn, so one can look: the error after a solve with each of many ratios.
# Steps went downhill without anybody having looked. With a weight for each sensor, wheel or place
# one could not look any more, and a gradient costs the same.


# %%
def draw(learnt: Learnt) -> Figure:
    """The error by ratio, with the steps that were taken; a drive, before and after."""
    solver = caspar.Solver([ODOMETRY, CLOSURE], backend="cpu")

    def solved(arrays: dict[str, Any], ratio: float) -> Rows:
        weight = np.full(NUM_POSES - 1, ratio**2)
        result = solver.solve(with_weight(arrays, weight), fixed={"Pose2": [0]})
        return np.asarray(result.values["Pose2"][:, 2:])

    def square(truth: Rows, arrays: dict[str, Any], ratio: float) -> float:
        return float(((solved(arrays, ratio) - truth[:, 2:]) ** 2).sum(axis=1).mean())

    ratios = np.geomspace(0.25, 8.0, 25)
    squares = [np.mean([square(*one, ratio) for one in learnt.drives]) for ratio in ratios]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.0, 4.0), layout="constrained")
    left.semilogx(ratios, 100.0 * np.sqrt(squares), color="0.6", label="all ratios")
    left.plot(learnt.ratios, 100.0 * np.array(learnt.errors), "o-", ms=4, label="steps")
    left.axvline(TRUE_RATIO, ls=":", color="k", label="noise that was added")
    ticks = [0.25, 0.5, 1, 2, 4, 8]
    left.set_xticks(ticks, labels=list(map(str, ticks)))
    left.minorticks_off()
    left.set(xlabel="closures, times as noisy as odometry", ylabel="error of positions, cm")
    left.legend()
    truth, arrays = learnt.drives[0]
    right.plot(*truth[:, 2:].T, color="0.7", lw=4, label="surveyed")
    best = learnt.ratios[-1] if len(learnt.ratios) > 0 else TRUE_RATIO
    for ratio, label in ((ratios[0], "odometry hardly trusted"), (best, f"ratio {best:.2f}")):
        right.plot(*solved(arrays, ratio).T, lw=1, label=label)
    right.set(xlabel="x, m", ylabel="y, m", aspect="equal")
    right.legend(loc="center")
    return figure


# %% tags=["active-ipynb"]
# draw(learnt);


# %% tags=["active-py"]
if __name__ == "__main__":
    main()
