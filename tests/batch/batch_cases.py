"""Small problems for batches: factors, arrays, and the same problems for a `Solver`, one by one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar

Floats = NDArray[np.float64]


class Curve(sf.V3):
    """Amplitude, rate, offset."""


class Place(sf.V2):
    """A place in a plane."""


class Heading(sf.Rot2):
    """A direction in a plane."""


class Camera(sf.Pose3):
    """World to camera."""


@caspar.factor
def decay(
    curve: Annotated[Curve, caspar.TunableUnique],
    time: Annotated[sf.Scalar, caspar.ConstSequential],
    value: Annotated[sf.Scalar, caspar.ConstSequential],
) -> sf.V1:
    """A sample of a curve."""
    return sf.V1(curve[0] * sf.exp(-curve[1] * time) + curve[2] - value)


@caspar.factor
def near(
    curve: Annotated[Curve, caspar.TunableUnique],
    goal: Annotated[sf.V3, caspar.ConstUnique],
) -> sf.V3:
    """A weak prior."""
    return 0.01 * (curve - goal)


@caspar.factor
def reprojection(
    camera: Annotated[Camera, caspar.TunableShared],
    point: Annotated[sf.V3, caspar.ConstSequential],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A point seen by a camera of 500 pixels."""
    x, y, z = camera * point
    return sf.V2(500 * x / z - pixel[0], 500 * y / z - pixel[1])


@caspar.factor
def distance(
    first: Annotated[Place, caspar.TunableShared],
    second: Annotated[Place, caspar.TunableShared],
    measured: Annotated[sf.Scalar, caspar.ConstSequential],
) -> sf.V1:
    """Between two places of a type."""
    return sf.V1((first - second).norm(epsilon=1e-9) - measured)


@caspar.factor
def anchor(
    place: Annotated[Place, caspar.TunableShared],
    at: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """Holds a place weakly."""
    return 0.1 * (place - at)


@caspar.factor
def step(
    pair: Annotated[caspar.Pair[Place], caspar.TunablePair],
    heading: Annotated[Heading, caspar.TunableUnique],
    measured: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """From one place to the next, in a frame that turns as a whole."""
    first, second = pair
    return heading.inverse() * (second - first) - measured


@dataclass(frozen=True)
class Case:
    """A batch, and its problems one by one.

    Attributes:
        factors: Of the solver.
        arrays: Of the batch.
        single: The arrays of a problem, given by its number, for a `Solver`.
        num_problems: P.
        fixed: What is held in the batch.
        single_fixed: What is held in a problem.
    """

    factors: tuple[Any, ...]
    arrays: Mapping[str, Any]
    single: Callable[[int], Mapping[str, Any]]
    num_problems: int
    fixed: Mapping[str, Any] | None = None
    single_fixed: Callable[[int], Mapping[str, Any]] | None = None


def curves(num_problems: int = 40, num_samples: int = 15, seed: int = 0) -> Case:
    """Decays at the same times, with a weak prior."""
    rng = np.random.default_rng(seed)
    time = np.linspace(0.0, 4.0, num_samples)
    true = rng.uniform([1.0, 0.5, -1.0], [5.0, 2.0, 1.0], (num_problems, 3))
    value = true[:, :1] * np.exp(-true[:, 1:2] * time) + true[:, 2:]
    value += rng.normal(0.0, 0.03, value.shape)
    start = np.tile([2.0, 1.0, 0.0], (num_problems, 1))
    goal = np.array([2.0, 1.0, 0.0])
    return Case(
        (decay, near),
        {
            "Curve": start,
            "decay": {"time": time[None], "value": value},
            "near": {"goal": goal[None]},
        },
        lambda p: {
            "Curve": start[p : p + 1],
            "decay": {"time": time, "value": value[p]},
            "near": {"goal": goal},
        },
        num_problems,
    )


def views(num_problems: int = 12, num_points: int = 12, seed: int = 1) -> tuple[Floats, ...]:
    """(P, 7) poses near the true ones, (P, m, 3) points, (P, m, 2) pixels."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(-1.0, 1.0, (num_problems, num_points, 3))
    turns = rng.normal(size=(num_problems, 4))
    turns /= np.linalg.norm(turns, axis=1, keepdims=True)
    shifts = rng.uniform([-0.5, -0.5, 3.0], [0.5, 0.5, 6.0], (num_problems, 3))
    axis, w = turns[:, None, :3], turns[:, None, 3:]
    seen = points + 2.0 * np.cross(axis, np.cross(axis, points) + w * points) + shifts[:, None]
    pixels = 500.0 * seen[..., :2] / seen[..., 2:] + rng.normal(0.0, 0.5, seen[..., :2].shape)
    moved = turns + rng.normal(0.0, 0.05, turns.shape)
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    start = np.concatenate([moved, shifts + rng.normal(0.0, 0.1, shifts.shape)], axis=1)
    return start, points, pixels


def cameras() -> Case:
    """Poses from points, of a node that is shared in name only."""
    start, points, pixels = views()
    return Case(
        (reprojection,),
        {"Camera": start, "reprojection": {"point": points, "pixel": pixels}},
        lambda p: {
            "Camera": start[p : p + 1],
            "reprojection": {
                "camera": np.zeros(points.shape[1], np.int32),
                "point": points[p],
                "pixel": pixels[p],
            },
        },
        len(start),
    )


def triangles(num_problems: int = 10, seed: int = 2) -> Case:
    """Four places by the distances between them, each in a direction and back: shared nodes."""
    rng = np.random.default_rng(seed)
    true = rng.uniform(-2.0, 2.0, (num_problems, 4, 2))
    pairs = np.array([[i, j] for i in range(4) for j in range(4) if i != j])
    rng.shuffle(pairs)
    first, second = pairs.T
    measured = np.linalg.norm(true[:, first] - true[:, second], axis=2)
    measured += rng.normal(0.0, 0.02, measured.shape)
    start = true + rng.normal(0.0, 0.2, true.shape)
    place = np.arange(4)
    return Case(
        (distance, anchor),
        {
            "Place": start,
            "distance": {"first": first[None], "second": second[None], "measured": measured},
            "anchor": {"place": place[None], "at": true},
        },
        lambda p: {
            "Place": start[p],
            "distance": {"first": first, "second": second, "measured": measured[p]},
            "anchor": {"place": place, "at": true[p]},
        },
        num_problems,
    )


def paths(num_problems: int = 8, seed: int = 3) -> Case:
    """Paths of five places in a frame that turns: pairs, two node types, what is held."""
    rng = np.random.default_rng(seed)
    true = np.cumsum(rng.normal(1.0, 0.5, (num_problems, 5, 2)), axis=1)
    angle = rng.uniform(-0.3, 0.3, num_problems)
    turn = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    delta = np.diff(true, axis=1)
    x = turn[:, None, 0] * delta[..., 0] + turn[:, None, 1] * delta[..., 1]
    y = -turn[:, None, 1] * delta[..., 0] + turn[:, None, 0] * delta[..., 1]
    measured = np.stack([x, y], axis=2) + rng.normal(0.0, 0.05, delta.shape)
    start = true + rng.normal(0.0, 0.2, true.shape)
    heading = np.tile([1.0, 0.0], (num_problems, 1))
    place = np.arange(5)
    held = np.zeros((num_problems, 5), dtype=bool)
    held[:, 0] = True
    return Case(
        (step, anchor),
        {
            "Place": start,
            "Heading": heading,
            "step": {"measured": measured},
            "anchor": {"place": place[None], "at": true},
        },
        lambda p: {
            "Place": start[p],
            "Heading": heading[p : p + 1],
            "step": {"measured": measured[p]},
            "anchor": {"place": place, "at": true[p]},
        },
        num_problems,
        {"Place": held.reshape(-1)},
        lambda p: {"Place": held[p]},
    )


CASES: Mapping[str, Callable[[], Case]] = {
    "curves": curves,
    "cameras": cameras,
    "triangles": triangles,
    "paths": paths,
}
