"""`python -m benchmarks.landmarks`: a path of poses with landmarks, with these eliminated or not.

Odometry between consecutive poses of a plane or of space, and positions of landmarks relative to
them, each landmark seen from consecutive poses. *eliminated* and *all unknowns* are the sparse
factorisation behind the elimination of landmarks and without; *auto* takes one of them, or
something else. Prints milliseconds of a solve with the plan reused, the median of several, and of
one iteration with a plan made anew; Levenberg-Marquardt iterations; and the final cost over the
lowest of all.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from caspar.options import LinearSolverName
from caspar.solver.choice import form

Rows = NDArray[np.float64]


class FlatMark(sf.V2):
    """A landmark in a plane."""


class Mark(sf.V3):
    """A landmark in space."""


@caspar.factor
def flat_move(
    poses: Annotated[caspar.Pair[sf.Pose2], caspar.TunablePair],
    moved: Annotated[sf.Pose2, caspar.ConstSequential],
) -> sf.V3:
    """Odometry."""
    first, second = poses
    turn, *way = moved.local_coordinates(first.inverse() * second)
    return sf.V3(20.0 * turn, *(10.0 * part for part in way))


@caspar.factor
def move(
    poses: Annotated[caspar.Pair[sf.Pose3], caspar.TunablePair],
    moved: Annotated[sf.Pose3, caspar.ConstSequential],
) -> sf.V6:
    """Odometry."""
    first, second = poses
    parts = moved.local_coordinates(first.inverse() * second)
    return sf.V6(*(20.0 * part for part in parts[:3]), *(10.0 * part for part in parts[3:]))


@caspar.factor
def flat_start(
    pose: Annotated[sf.Pose2, caspar.TunableShared],
    known: Annotated[sf.Pose2, caspar.ConstSequential],
) -> sf.V3:
    """Where the path begins."""
    return 100.0 * sf.V3(*known.local_coordinates(pose))


@caspar.factor
def start(
    pose: Annotated[sf.Pose3, caspar.TunableShared],
    known: Annotated[sf.Pose3, caspar.ConstSequential],
) -> sf.V6:
    """Where the path begins."""
    return 100.0 * sf.V6(*known.local_coordinates(pose))


@caspar.factor
def flat_sight(
    pose: Annotated[sf.Pose2, caspar.TunableShared],
    mark: Annotated[FlatMark, caspar.TunableShared],
    seen: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A landmark beside a pose."""
    return 10.0 * (pose.inverse() * mark - seen)


@caspar.factor
def sight(
    pose: Annotated[sf.Pose3, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    seen: Annotated[sf.V3, caspar.ConstSequential],
) -> sf.V3:
    """A landmark beside a pose."""
    return 10.0 * (pose.inverse() * mark - seen)


FLAT, SPACE = (flat_move, flat_start, flat_sight), (move, start, sight)

CASES = (
    (200, 8, 200),
    (1_000, 6, 1_000),
    (2_000, 6, 2_000),
    (2_000, 400, 20),
    (3_500, 100, 300),
    (1_000, 1_000, 20),
    (500, 2_000, 10),
    (500, 10_000, 5),
    (2_000, 20_000, 4),
)
"""Poses, landmarks, poses that see each."""


def flat_path(num_poses: int, num_marks: int, seen_by: int) -> dict[str, Any]:
    """Arrays of a path in a plane, which starts where odometry leads."""
    random = np.random.default_rng(0)
    angles = np.cumsum(random.normal(0.0, 0.1, num_poses))
    ways = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    truth = np.column_stack([ways, np.cumsum(ways, axis=0)])
    moved = _between(truth[:-1], truth[1:])
    turned = np.arctan2(moved[:, 1], moved[:, 0]) + random.normal(0.0, 0.02, num_poses - 1)
    moved[:, :2] = np.stack([np.cos(turned), np.sin(turned)], axis=1)
    moved[:, 2:] += random.normal(0.0, 0.05, (num_poses - 1, 2))
    poses = [truth[0]]
    for one in moved:
        poses.append(np.concatenate([_turn(poses[-1], one[:2]), _apply(poses[-1], one[2:])]))
    first = random.integers(0, num_poses - seen_by + 1, num_marks)
    pose = (first[:, None] + np.arange(seen_by)).reshape(-1)
    mark = np.repeat(np.arange(num_marks), seen_by)
    marks = truth[first + seen_by // 2, 2:] + random.normal(0.0, 5.0, (num_marks, 2))
    seen = _seen_from(truth[pose], marks[mark]) + random.normal(0.0, 0.05, (len(pose), 2))
    return {
        "Pose2": np.array(poses),
        "FlatMark": _apply(np.array(poses)[first], seen[::seen_by]),
        "flat_move": {"moved": moved},
        "flat_start": {"pose": [0], "known": truth[:1]},
        "flat_sight": {"pose": pose, "mark": mark, "seen": seen},
    }


def path(num_poses: int, num_marks: int, seen_by: int) -> dict[str, Any]:
    """The same path in space."""
    flat = flat_path(num_poses, num_marks, seen_by)
    moves, starts, sights = (flat[name] for name in ("flat_move", "flat_start", "flat_sight"))
    return {
        "Pose3": _lifted_pose(flat["Pose2"]),
        "Mark": _lifted(flat["FlatMark"]),
        "move": {"moved": _lifted_pose(moves["moved"])},
        "start": {**starts, "known": _lifted_pose(starts["known"])},
        "sight": {**sights, "seen": _lifted(sights["seen"])},
    }


def _turn(pose: Rows, way: Rows) -> Rows:
    """A vector, or a rotation's cosine and sine, turned by a pose."""
    cosine, sine = pose[..., 0], pose[..., 1]
    x, y = way[..., 0], way[..., 1]
    return np.stack([cosine * x - sine * y, sine * x + cosine * y], axis=-1)


def _apply(pose: Rows, point: Rows) -> Rows:
    return np.asarray(_turn(pose, point) + pose[..., 2:])


def _seen_from(pose: Rows, point: Rows) -> Rows:
    back = pose * [1.0, -1.0, 1.0, 1.0]
    return _turn(back, point - pose[..., 2:])


def _between(first: Rows, second: Rows) -> Rows:
    turned = _turn(first * [1.0, -1.0, 1.0, 1.0], second[:, :2])
    return np.concatenate([turned, _seen_from(first, second[:, 2:])], axis=1)


def _lifted(rows: Rows) -> Rows:
    return np.column_stack([rows, np.zeros(len(rows))])


def _lifted_pose(rows: Rows) -> Rows:
    half = 0.5 * np.arctan2(rows[:, 1], rows[:, 0])
    zeros = np.zeros((len(rows), 2))
    return np.column_stack([zeros, np.sin(half), np.cos(half), _lifted(rows[:, 2:])])


@dataclass(frozen=True)
class Way:
    """How the systems are solved.

    Attributes:
        name: In the table.
        linear_solver: As users name it.
        eliminates: Whether landmarks are eliminated; None: what caspar decides.
    """

    name: str
    linear_solver: LinearSolverName
    eliminates: bool | None = None


WAYS = (
    Way("auto", "auto"),
    Way("eliminated", "sparse", True),
    Way("all unknowns", "sparse", False),
)


@contextmanager
def _decided(way: Way) -> Iterator[None]:
    """Decide for caspar whether to eliminate."""
    if way.eliminates is None:
        yield
        return
    with patch.object(form, "eliminating_pays", return_value=way.eliminates):
        yield


@dataclass(frozen=True)
class Solved:
    """What is measured.

    Attributes:
        result: Of the median solve.
        solve_ms: Of that one, plan reused.
        anew_ms: Of a solve of one iteration, plan made anew.
    """

    result: caspar.SolveResult
    solve_ms: float
    anew_ms: float


def measure(
    solver: caspar.Solver, way: Way, arrays: Mapping[str, Any], runs: int, max_iterations: int
) -> Solved:
    """Solve several times, then once more after the plan is forgotten."""
    with _decided(way):
        solver.solve(arrays, max_iterations=1)
        results = [solver.solve(arrays, max_iterations=max_iterations) for _ in range(runs)]
        solver.release()
        begin = time.perf_counter()
        solver.solve(arrays, max_iterations=1)
        anew_ms = 1e3 * (time.perf_counter() - begin)
    median = statistics.median_low(result.solve_time_s for result in results)
    chosen = next(result for result in results if result.solve_time_s == median)
    return Solved(chosen, 1e3 * median, anew_ms)


def _rows(solved: Mapping[str, Solved | str]) -> Sequence[str]:
    costs = [one.result.final_cost for one in solved.values() if isinstance(one, Solved)]
    rows = []
    for name, one in solved.items():
        if isinstance(one, str):
            rows.append(f"  {name:13} {one}")
            continue
        result = one.result
        rows.append(
            f"  {name:13} {one.solve_ms:9.1f} {one.anew_ms:9.1f} {len(result.iterations):10d} "
            f"{result.final_cost / min(costs) - 1.0:9.1e}  {result.status.name}, "
            f"{result.linear_solver}, {result.precision}"
        )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.landmarks", description=__doc__)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=100, metavar="N")
    parser.add_argument("--cases", type=int, nargs="+", default=range(len(CASES)), metavar="K")
    names = [way.name for way in WAYS]
    parser.add_argument("--ways", nargs="+", default=names, choices=names)
    arguments = parser.parse_args()
    ways = [way for way in WAYS if way.name in arguments.ways]
    print(f"  {'':13} {'solve, ms':>9} {'anew, ms':>9} {'iterations':>10} {'above':>9}")
    choices = {"backend": arguments.backend, "precision": arguments.precision}
    for factors, make, where in ((FLAT, flat_path, "a plane"), (SPACE, path, "space")):
        solvers = {
            way.name: caspar.Solver(factors, linear_solver=way.linear_solver, **choices)
            for way in ways
        }
        for poses, marks, seen_by in (CASES[number] for number in arguments.cases):
            print(f"{poses:,} poses in {where}, {marks:,} landmarks, each seen from {seen_by:,}")
            arrays = make(poses, marks, seen_by)
            solved: dict[str, Solved | str] = {}
            for way in ways:
                try:
                    solved[way.name] = measure(
                        solvers[way.name], way, arrays, arguments.runs, arguments.iterations
                    )
                except (caspar.errors.OutOfMemoryError, caspar.errors.BackendError) as error:
                    solved[way.name] = f"{type(error).__name__}: {error}"
            print("\n".join(_rows(solved)), flush=True)


if __name__ == "__main__":
    main()
