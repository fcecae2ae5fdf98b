"""The noise of a robot's sensors, learnt through the solve of its pose graph.

A robot drives round a square, again and again: odometry from pose to pose, and now and then a place
it knows, a loop closure. How much to trust each is a number that somebody has to choose. Here
positions that were surveyed on one drive choose it: the solve is a layer of PyTorch, and the
distance from the survey is derived by both standard deviations, through the minimum.

python examples/learned_noise.py
"""

import sys
from typing import Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from caspar import factors

try:
    import torch  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch")

Rows = NDArray[np.float64]

ODOMETRY = factors.between(sf.Pose2, noise="unit", name="odometry")
CLOSURE = factors.between(sf.Pose2, noise="unit", name="closure")
NUM_POSES, NUM_CLOSURES = 100, 80
TRUE_DEVIATIONS = {"odometry": 0.02, "closure": 0.04}
NUM_STEPS = 30


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


def main() -> dict[str, float]:
    """Learn the ratio of both deviations; only that counts for where the minimum is."""
    rng = np.random.default_rng(0)
    drives = [drive(rng) for _ in range(6)]
    solver = caspar.Solver([ODOMETRY, CLOSURE], backend="cpu")
    logarithm = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logarithm], lr=0.1)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        for truth, arrays in drives:
            # weights are inverse variances, those of odometry in units of a closure's
            weight = torch.exp(2.0 * logarithm).expand(NUM_POSES - 1)
            given = {**arrays, "odometry": {**arrays["odometry"], "weight": weight}}
            values = caspar.torch.solve(solver, given, fixed={"Pose2": [0]})
            loss = loss + ((values["Pose2"][:, 2:] - torch.tensor(truth[:, 2:])) ** 2).mean()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == NUM_STEPS - 1:
            ratio = float(logarithm.detach().exp())
            error = float(loss.detach() / len(drives)) ** 0.5
            print(f"step {step:2d}: closures {ratio:5.2f} times as noisy, error {error:.3f} m")
    true_ratio = TRUE_DEVIATIONS["closure"] / TRUE_DEVIATIONS["odometry"]
    print(f"learnt {float(logarithm.detach().exp()):.2f}, true {true_ratio:.2f}")
    return {"ratio": float(logarithm.detach().exp()), "error": error}


if __name__ == "__main__":
    main()
