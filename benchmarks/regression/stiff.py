"""Stiff problems in which MINPACK takes few steps: weights far apart, large offsets, years.

Minima come from closed forms, or from QR in NumPy on variables in which the problem is not stiff.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from scipy.spatial.transform import Rotation

import caspar
from benchmarks.regression.answer import Answer
from benchmarks.regression.problem import Array, Indices, Kind, Problem
from caspar.options import PrecisionName

SAME_COST = 1e-4
"""Relative: the offset of a line over Unix seconds is rounded to 1e-7 at 4e9."""

SAME_RANGES = 1e-6
"""A sum of squares of one square millimetre, which counts as zero."""

NUM_POSES = 60
TIE_WEIGHTS = (1e4, 1e6, 1e9)
EQUATION_WEIGHTS = (1e6, 1e8, 1e10, 1e12)


def line(start_s: float) -> Problem:
    """A line over 101 times in 10 s, from a start at which it is zero."""
    times = start_s + np.linspace(0.0, 10.0, 101)
    values = 1.0 + 2.5 * (times - start_s) + np.random.default_rng(1).normal(0.0, 0.01, 101)
    centred = times - times.mean()
    rate = centred @ values / (centred @ centred)
    left = values - values.mean() - rate * centred
    data = np.column_stack([times, values])
    name = f"line over seconds from {start_s:g}"
    return _problem(name, sample, data, (0.0, 0.0), float(left @ left))


def sample(x: Any, d: Any) -> Sequence[Any]:
    """The polynomial of coefficients x at d[0], less d[1]."""
    return [sum(factor * d[0] ** power for power, factor in enumerate(x)) - d[1]]


def polynomial(degree: int) -> Problem:
    """A polynomial over raw years from 1990 to 2020."""
    years = np.linspace(1990.0, 2020.0, 61)
    scaled = (years - 2005.0) / 15.0
    values = 3.0 + 2.0 * scaled - 1.5 * scaled**2 + 0.7 * scaled**3
    values += np.random.default_rng(0).normal(0.0, 0.05, 61)
    left = values - np.polyval(np.polyfit(scaled, values, degree), scaled)
    data, start = np.column_stack([years, values]), (0.0,) * (degree + 1)
    name = f"polynomial of degree {degree} over years"
    return _problem(name, sample, data, start, float(left @ left))


def circle(radius: float) -> Problem:
    """An algebraic circle of radius 2 through 12 points, from a radius far away."""
    angles = np.random.default_rng(3).uniform(0.0, 2.0 * np.pi, 12)
    points = np.stack([3.0 + 2.0 * np.cos(angles), -1.0 + 2.0 * np.sin(angles)], axis=1)
    points += np.random.default_rng(4).normal(0.0, 0.01, points.shape)
    # x^2 + y^2 = 2 a x + 2 b y + c is linear
    matrix, squares = np.column_stack([2.0 * points, np.ones(12)]), (points**2).sum(axis=1)
    left = squares - matrix @ np.linalg.lstsq(matrix, squares)[0]
    start = (0.0, 0.0, radius)
    return _problem(f"circle from radius {radius:g}", on_circle, points, start, float(left @ left))


def on_circle(x: Any, d: Any) -> Sequence[Any]:
    """The algebraic distance of the point d from the circle of centre x[:2] and radius x[2]."""
    return [(d[0] - x[0]) ** 2 + (d[1] - x[1]) ** 2 - x[2] ** 2]


def pseudoranges(seed: int, bias: float) -> tuple[Problem, Array]:
    """Exact ranges to satellites by a clock with a bias, from the Earth's centre; the true place.

    If damping leaves a thousandth of the bias, the place moves to explain it.
    """
    random = np.random.default_rng(seed)
    directions = random.normal(size=(4 + seed % 5, 3))
    directions[:, 2] = np.abs(directions[:, 2]) + 0.3
    satellites = 2.66e7 * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    place = np.array([0.0, 0.0, 6.371e6]) + random.normal(0.0, 1e4, 3)
    ranges = np.linalg.norm(satellites - place, axis=1) + bias
    data = np.column_stack([satellites, ranges])
    name = f"pseudoranges {seed}, bias {bias:g} m"
    return _problem(name, pseudorange, data, (0.0,) * 4, 0.0, SAME_RANGES), place


def pseudorange(x: Any, d: Any) -> Sequence[Any]:
    """The distance from x[:3] to d[:3], with the bias x[3], less d[3]."""
    return [sf.sqrt(sum((x[i] - d[i]) ** 2 for i in range(3))) + x[3] - d[3]]


def heavy_equation(weight: float) -> tuple[Problem, Array]:
    """The nearest point to (1, 1) of the parabola x^2 + y = 3, a residual of this weight."""
    roots = np.roots([2.0, 0.0, -3.0, -1.0])  # of the slope of (x - 1)^2 + (2 - x^2)^2
    (x,) = [root.real for root in roots if abs(root.imag) < 1e-9 and root.real > 1.0]
    nearest = np.array([x, 3.0 - x * x])
    minimum = float(((nearest - 1.0) ** 2).sum())
    name = f"equation of weight {weight:g}"
    return _problem(name, on_parabola, np.array([[weight]]), (5.0, -3.0), minimum), nearest


def on_parabola(x: Any, d: Any) -> Sequence[Any]:
    """The distance from (1, 1), and the equation of the parabola with the weight d[0]."""
    return [x[0] - 1, x[1] - 1, d[0] * (x[0] ** 2 + x[1] - 3)]


def _problem(
    name: str,
    residuals: Any,
    data: Array,
    start: tuple[float, ...],
    minimum: float,
    zero: float = 1e-12,
) -> Problem:
    kinds = (Kind(residuals, data),)
    return Problem(
        name=name,
        kinds=kinds,
        starts=(start,),
        minimum=float(minimum),
        same_minimum=SAME_COST,
        zero=zero,
        has_one_minimum=True,
    )


@caspar.factor
def between(
    first: Annotated[sf.Pose3, caspar.TunableShared],
    second: Annotated[sf.Pose3, caspar.TunableShared],
    measured: Annotated[sf.Pose3, caspar.ConstSequential],
    weight: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V6:
    """The weighted difference of a measured step and that from the first pose to the second."""
    error = measured.inverse() * (first.inverse() * second)
    return sf.V6(*[weight[0] * entry for entry in error.to_tangent()])


@dataclass(frozen=True)
class TiedPaths:
    """Two noisy copies of a path, whose starts agree, and ties between their poses.

    Attributes:
        poses: Start values, (poses, 7); the first one is held.
        first: Numbers of the first poses of steps and ties, (steps + ties,).
        second: The same of the second poses.
        measured: Steps between them, (steps + ties, 7).
        weights: Of their residuals, (steps + ties, 1).
    """

    poses: Array
    first: Indices
    second: Indices
    measured: Array
    weights: Array

    @property
    def arrays(self) -> dict[str, Any]:
        """The input of a solver of `between`."""
        arguments = {"first": self.first, "second": self.second, "measured": self.measured}
        return {"Pose3": self.poses, "between": arguments | {"weight": self.weights}}


def tied_paths(num_poses: int, tie_weight: float) -> TiedPaths:
    """Paths of so many poses, with steps of weight 20 and ties at each sixth pose."""
    random = np.random.default_rng(0)

    def moved(pose: Array, step: Array) -> Array:
        first, second = (sf.Pose3.from_storage(one.tolist()) for one in (pose, step))
        return np.array((first * second).to_storage(), np.float64)

    def noise() -> Array:
        tangent = random.normal(0.0, 0.05, 6).tolist()
        return np.array(sf.Pose3.from_tangent(tangent).to_storage(), np.float64)

    step = np.array(sf.Pose3.from_tangent([0, 0, 0.1, 1, 0, 0]).to_storage(), np.float64)
    poses, steps, firsts = [], [], []
    for path in range(2):
        poses.append(np.array([0, 0, 0, 1.0, 0, 0, 0]))
        for place in range(num_poses - 1):
            steps.append(moved(step, noise()))
            firsts.append(path * num_poses + place)
            poses.append(moved(poses[-1], steps[-1]))
    ties, first = np.arange(0, num_poses, 6), np.array(firsts)
    none = np.tile([0, 0, 0, 1.0, 0, 0, 0], (len(ties), 1))
    weights = np.concatenate([np.full(len(steps), 20.0), np.full(len(ties), tie_weight)])
    return TiedPaths(
        poses=np.array(poses),
        first=np.concatenate([first, ties]),
        second=np.concatenate([first + 1, ties + num_poses]),
        measured=np.concatenate([steps, none]),
        weights=weights[:, None],
    )


class PathFit:
    """Tied paths as a problem of vectors for the peers, and solved as poses by caspar.

    Attributes:
        problem: Its parameters are tangents of all poses but the first, at the start.
    """

    def __init__(self, weight: float) -> None:
        self._paths = paths = tied_paths(NUM_POSES, weight)
        poses, first, second = paths.poses, paths.first, paths.second
        data = np.column_stack([poses[first], poses[second], paths.measured, paths.weights])
        tangents = 6 * (np.arange(len(poses))[:, None] - 1) + np.arange(6)
        is_held = first == 0
        both = np.column_stack([tangents[first], tangents[second]])[~is_held]
        self.problem = Problem(
            name=f"tied paths, weight {weight:g}",
            kinds=(
                Kind(_step, data[~is_held], both),
                Kind(_step_from_held, data[is_held], tangents[second[is_held]]),
            ),
            starts=((0.0,) * (6 * (len(poses) - 1)),),
            minimum=np.inf,
            same_minimum=SAME_COST,
            has_one_minimum=True,
        )

    def solve(self, start: Array, precision: PrecisionName) -> Answer:
        """Solve from the start that the poses have."""
        assert not start.any()
        solver = caspar.Solver(between, backend="cpu", precision=precision)
        result = solver.solve(self._paths.arrays, fixed={"Pose3": [0]}, verbose=False)
        at, found = self._paths.poses[1:], np.asarray(result.values["Pose3"], np.float64)[1:]
        turns = Rotation.from_quat(at[:, :4]).inv() * Rotation.from_quat(found[:, :4])
        parameters = np.column_stack([turns.as_rotvec(), found[:, 4:] - at[:, 4:]]).ravel()
        status = result.status
        return Answer(parameters, status.is_success, status.name, len(result.iterations))


def _pose(storage: Any) -> sf.Pose3:
    return sf.Pose3.from_storage(list(storage))


EPSILON = 1e-10
"""Keeps logarithms and their derivatives finite at the identity, in the form for the peers."""


def _step(x: Any, d: Any) -> Sequence[Any]:
    """`between` of two poses that are retracted from their starts."""
    first = _pose(d[:7]).retract(list(x[:6]), epsilon=EPSILON)
    second = _pose(d[7:14]).retract(list(x[6:]), epsilon=EPSILON)
    error = _pose(d[14:21]).inverse() * (first.inverse() * second)
    return [d[21] * entry for entry in error.to_tangent(epsilon=EPSILON)]


def _step_from_held(x: Any, d: Any) -> Sequence[Any]:
    return _step([0] * 6 + list(x), d)


def problems() -> list[Problem]:
    """All but the tied paths."""
    return [
        line(1e8),
        line(1.7e9),
        polynomial(3),
        polynomial(4),
        circle(1e5),
        circle(1e6),
        *(pseudoranges(seed, bias)[0] for bias in (3e5, 3e10) for seed in (11, 12, 13)),
        *(heavy_equation(weight)[0] for weight in EQUATION_WEIGHTS),
    ]
