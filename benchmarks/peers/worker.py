"""What a peer's process does: read a problem, solve it several times, write the median run.

Usage: `python -m benchmarks.peers.gtsam_worker --check`, which prints a version or fails, and
`... PROBLEM.npz ANSWER.npz --setting NAME --seconds S --runs N`. Costs are 1/2 sum r^2.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

Float = NDArray[np.float64]

_HALF_TURN = Rotation.from_quat([1.0, 0.0, 0.0, 0.0])
"""About x: from cameras that look along -z to cameras that look along +z with y downwards."""
_FLIP = np.array([1.0, -1.0, -1.0])


@dataclass(frozen=True, eq=False)
class PeerProblem:
    """A bundle adjustment problem, in BAL's conventions.

    Attributes:
        cameras: (num_cameras, 10) qx qy qz qw tx ty tz f k1 k2.
        points: (num_points, 3).
        camera_index: (num_observations,) int32.
        point_index: (num_observations,) int32, ascending.
        pixels: (num_observations, 2).
    """

    cameras: Float
    points: Float
    camera_index: NDArray[np.int32]
    point_index: NDArray[np.int32]
    pixels: Float


@dataclass(frozen=True, eq=False)
class PeerSolve:
    """One solve.

    Attributes:
        cameras: (num_cameras, 10) final values, as in `PeerProblem`.
        points: (num_points, 3) final values.
        status: As the library says it.
        setup_s: Seconds from arrays to the first iteration.
        solve_s: Seconds of the iterations.
        num_iterations: Outer iterations.
        num_linear_iterations: Of PCG; None for direct solvers.
        initial_cost: As the library reports it.
        trace: (seconds since the start of the iterations, cost) after each iteration.
    """

    cameras: Float
    points: Float
    status: str
    setup_s: float
    solve_s: float
    num_iterations: int
    num_linear_iterations: int | None
    initial_cost: float
    trace: Sequence[tuple[float, float]]


Solve = Callable[[PeerProblem, str, float], PeerSolve]
"""(problem, name of the setting, seconds after which to stop) -> solve."""


def looking_along_z(cameras: Float) -> tuple[Rotation, Float]:
    """World-to-camera rotations and translations (n, 3) of cameras that look along +z."""
    return _HALF_TURN * Rotation.from_quat(cameras[:, :4]), cameras[:, 4:7] * _FLIP


def from_looking_along_z(rotations: Rotation, translations: Float, calibration: Float) -> Float:
    """The inverse of `looking_along_z`, with (n, 3) f k1 k2: cameras (n, 10)."""
    back = _HALF_TURN.inv() * rotations
    return np.hstack([back.as_quat(), translations * _FLIP, calibration])


def flipped_pixels(pixels: Float) -> Float:
    """Pixels (n, 2) as the cameras of `looking_along_z` see them."""
    flipped: Float = pixels * _FLIP[:2]
    return flipped


def write_problem(problem: PeerProblem, path: Path) -> None:
    """Write what `main` reads."""
    np.savez(path, **vars(problem))


def main(solve: Solve, version: Callable[[], str], least: int = 1) -> None:
    """Run as the command line says, at least `least` times however long that takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("problem", type=Path, nargs="?")
    parser.add_argument("answer", type=Path, nargs="?")
    parser.add_argument("--check", action="store_true", help="print the library's version")
    parser.add_argument("--setting", default="")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.check:
        print(version())
        return
    with np.load(arguments.problem) as stored:
        problem = PeerProblem(**{name: stored[name] for name in stored.files})
    start = time.perf_counter()
    solves: list[PeerSolve] = []
    # the first may compile and load; it counts only where there is no time for a second one
    while len(solves) <= arguments.runs:
        solves.append(solve(problem, arguments.setting, arguments.seconds))
        if len(solves) >= least and time.perf_counter() - start > arguments.seconds:
            break
    _write_answer(solves, arguments.answer)


def _write_answer(solves: Sequence[PeerSolve], path: Path) -> None:
    timed = sorted(solves[1:] or solves, key=lambda one: one.solve_s)
    chosen = timed[len(timed) // 2]
    record = {
        "status": chosen.status,
        "first_s": solves[0].setup_s + solves[0].solve_s,
        "setup_s": sorted(one.setup_s for one in timed)[len(timed) // 2],
        "solve_s": chosen.solve_s,
        "runs": len(timed),
        "num_iterations": chosen.num_iterations,
        "num_linear_iterations": chosen.num_linear_iterations,
        "initial_cost": chosen.initial_cost,
        "trace": list(chosen.trace),
    }
    np.savez(path, cameras=chosen.cameras, points=chosen.points, record=json.dumps(record))
