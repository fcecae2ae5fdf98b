"""`python -m benchmarks.arm_poses`: exact poses of an arm of seven joints, beside SciPy's SLSQP.

The hand must be at a pose, which joint angles within their limits can reach; among these the angles
are as near to the middle of their ranges as they can be, where each problem starts. caspar solves
all problems as one batch, with the pose as a constraint and the limits as bounds; SLSQP solves a
sample one by one on one core, with exact derivatives of cost and constraints, 100 iterations at
most, which is its default, and more accuracy than its default. A pose counts as reached if the hand
is within 1e-6 m and rad (1e-4 in float32) of it, by the same NumPy function. Times are the best of
three solves with compiled kernels, from arrays to results; processor seconds are those of all
threads, which other load changes less. "With restarts": poses whose solve has not ended with
success are solved again from four random starts each, then from 16, then from 64, and all of it is
timed. Writes `arm_poses_cpu.md` or `arm_poses_cuda.md` in the folder, and prints it.
"""

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.spatial.transform import Rotation
from threadpoolctl import threadpool_limits

import caspar
from benchmarks.page import table
from benchmarks.report import environment
from caspar.options import BackendName, BatchPrecisionName
from examples.inverse_kinematics import ABOUT_X, ALONG_X, ALONG_Z, LOWER, MIDDLE, UPPER, hands

Floats = NDArray[np.float64]

REACHED: dict[BatchPrecisionName, float] = {"float64": 1e-6, "float32": 1e-4}
"""Greatest distance of a hand that counts as reached, metres and radians."""

SAME = 1e-6
"""Relative difference of two costs at the same minimum, at most."""

NUM_RUNS = 3

STARTS = (1, 4, 16, 64)
"""Starts of a pose in one batch, then of those that are left in the next."""


class Joints(sf.V7):
    """Angles, from the base to the hand."""


@caspar.factor
def rest(joints: Annotated[Joints, caspar.TunableUnique]) -> sf.V7:
    """Joints stay near the middle of their ranges."""
    return joints - sf.V7(*MIDDLE)


@caspar.constraint(kind="zero")
def hand(
    joints: Annotated[Joints, caspar.TunableUnique],
    goal: Annotated[sf.Pose3, caspar.ConstUnique],
) -> sf.V6:
    """Where the hand is in the frame of its goal: radians, then metres."""
    pose = sf.Pose3.identity()
    for angle, turns, along_x, along_z in zip(joints, ABOUT_X, ALONG_X, ALONG_Z, strict=True):
        to_axis = sf.Rot3.from_angle_axis(turns * sf.pi / 2, sf.V3(1, 0, 0))
        about = sf.Rot3.from_angle_axis(angle, sf.V3(0, 0, 1))
        pose = pose * sf.Pose3(to_axis, sf.V3(along_x, 0, 0))
        pose = pose * sf.Pose3(about, sf.V3(0, 0, along_z))
    apart = goal.inverse() * pose
    return sf.V6(*apart.R.to_tangent(), *apart.t)


def drawn(count: int) -> Floats:
    """(count, 7) poses of hands, by random angles within their limits."""
    return hands(np.random.default_rng(0).uniform(LOWER, UPPER, (count, 7)))


def by_caspar(
    goals: Floats, backend: BackendName, precision: BatchPrecisionName
) -> tuple[caspar.BatchResult, tuple[float, float]]:
    """The result; seconds, and processor seconds, of the fastest solve."""
    solver = caspar.BatchSolver([rest, hand], backend=backend, precision=precision)
    arrays: Any = {"Joints": np.tile(MIDDLE, (len(goals), 1)), "rest": {}, "hand": {"goal": goals}}
    limits = {"Joints": (LOWER, UPPER)}
    result, least = solver.solve(arrays, bounds=limits), [np.inf, np.inf]
    for _ in range(NUM_RUNS):
        start = time.perf_counter(), time.process_time()
        result = solver.solve(arrays, bounds=limits)
        spent = time.perf_counter() - start[0], time.process_time() - start[1]
        least = [min(pair) for pair in zip(least, spent, strict=True)]
    return result, (least[0], least[1])


def with_restarts(
    goals: Floats, backend: BackendName, precision: BatchPrecisionName
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.int64], tuple[float, float]]:
    """Angles, whether a solve ended with success, iterations; seconds and processor seconds."""
    solver = caspar.BatchSolver([rest, hand], backend=backend, precision=precision)
    solver.solve(
        {"Joints": np.tile(MIDDLE, (1, 1)), "rest": {}, "hand": {"goal": goals[:1]}},
        bounds={"Joints": (LOWER, UPPER)},
    )
    rng, count = np.random.default_rng(1), len(goals)
    joints, is_solved = np.tile(MIDDLE, (count, 1)), np.zeros(count, np.bool_)
    iterations = np.zeros(count, np.int64)
    start = time.perf_counter(), time.process_time()
    for tries in STARTS:
        left = np.flatnonzero(~is_solved)
        if len(left) == 0:
            break
        begun = joints[left]
        if tries > 1:
            begun = rng.uniform(LOWER, UPPER, (len(left) * tries, 7))
        given = {"goal": np.repeat(goals[left], tries, axis=0)}
        arrays: Any = {"Joints": begun, "rest": {}, "hand": given}
        result = solver.solve(arrays, bounds={"Joints": (LOWER, UPPER)})
        successes = result.is_success.reshape(-1, tries)
        first = successes.argmax(axis=1)
        ends = np.asarray(result.values["Joints"]).reshape(-1, tries, 7)
        joints[left] = ends[np.arange(len(left)), first]
        is_solved[left] = successes.any(axis=1)
        iterations[left] += result.iterations.reshape(-1, tries).sum(axis=1)
    spent = time.perf_counter() - start[0], time.process_time() - start[1]
    return joints, is_solved, iterations, spent


class Arm:
    """The constraint of one goal in NumPy, with its derivative, at the angles last asked for.

    Args:
        goal: (7,) pose.
    """

    def __init__(self, goal: Floats) -> None:
        self._turn = Rotation.from_quat(goal[:4]).as_matrix()
        self._place, self._joints = goal[4:], np.full(7, np.nan)
        self._rows, self._jacobian = np.zeros(6), np.zeros((6, 7))

    def rows(self, joints: Floats) -> Floats:
        """(6,) as `hand`."""
        self._evaluate(joints)
        return self._rows

    def jacobian(self, joints: Floats) -> Floats:
        """(6, 7) its derivative."""
        self._evaluate(joints)
        return self._jacobian

    def _evaluate(self, joints: Floats) -> None:
        if np.array_equal(joints, self._joints):
            return
        turn, place, axes, origins = np.eye(3), np.zeros(3), [], []
        for number in range(7):
            place = place + ALONG_X[number] * turn[:, 0]
            cosine, sine = np.cos(0.5 * np.pi * ABOUT_X[number]), float(ABOUT_X[number])
            turn = turn @ np.array([[1, 0, 0], [0, cosine, -sine], [0, sine, cosine]])
            axes.append(turn[:, 2])
            origins.append(place)
            cosine, sine = np.cos(joints[number]), np.sin(joints[number])
            turn = turn @ np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])
            place = place + ALONG_Z[number] * turn[:, 2]
        vector = Rotation.from_matrix(self._turn.T @ turn).as_rotvec()
        angle = float(np.linalg.norm(vector))
        x, y, z = vector
        cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        # the inverse of the left Jacobian of rotations
        last = 1.0 / 12.0
        if angle > 1e-4:
            last = 1.0 / angle**2 - (1.0 + np.cos(angle)) / (2.0 * angle * np.sin(angle))
        inverse = np.eye(3) - 0.5 * cross + last * cross @ cross
        spins = np.array(axes).T
        moves = np.cross(axes, place - np.array(origins)).T
        self._rows = np.concatenate([vector, self._turn.T @ (place - self._place)])
        self._jacobian = np.vstack([inverse @ self._turn.T @ spins, self._turn.T @ moves])
        self._joints = joints.copy()


def by_slsqp(goal: Floats) -> tuple[Floats, bool]:
    """Angles by SciPy's SLSQP, and whether it claims success."""
    arm = Arm(goal)
    found = minimize(
        lambda joints: (0.5 * ((joints - MIDDLE) ** 2).sum(), joints - MIDDLE),
        MIDDLE,
        jac=True,
        method="SLSQP",
        bounds=list(zip(LOWER, UPPER, strict=True)),
        constraints={"type": "eq", "fun": arm.rows, "jac": arm.jacobian},
        options={"maxiter": 100, "ftol": 1e-9},
    )
    return np.clip(found.x, LOWER, UPPER), bool(found.success)


def away(joints: Floats, goals: Floats) -> Floats:
    """(P,) how far hands are from their goals, the greater of metres and radians."""
    found = hands(joints)
    turn = Rotation.from_quat(goals[:, :4]).inv() * Rotation.from_quat(found[:, :4])
    apart = np.linalg.norm(found[:, 4:] - goals[:, 4:], axis=1)
    farther: Floats = np.maximum(turn.magnitude(), apart)
    return farther


def _row(
    name: str,
    is_success: NDArray[np.bool_],
    far: Floats,
    limit: float,
    spent: tuple[float, float],
    share: str,
    iterations: str,
) -> list[str]:
    """The line of a table for some solves of caspar."""
    return [
        name,
        f"{len(far):,}",
        share,
        f"{int((is_success & (far > limit)).sum())}",
        f"{far[is_success].max():.1e}",
        *(f"{len(far) / one:,.0f}" for one in spent),
        iterations,
    ]


def page(count: int, num_peer: int, backend: BackendName) -> str:
    """The tables in Markdown."""
    goals = drawn(count)
    rows, ends, exact = [], [], np.zeros(0)
    for precision in REACHED:
        result, times = by_caspar(goals, backend, precision)
        far, is_success = away(np.asarray(result.values["Joints"]), goals), result.is_success
        said = f"{100 * is_success.mean():.1f} %", f"{result.iterations.mean():.0f}"
        rows.append(_row(f"caspar, {precision}", is_success, far, REACHED[precision], times, *said))
        counts = Counter({one.name: number for one, number in result.counts.items()})
        ends.append([precision, ", ".join(f"{number:,} {name}" for name, number in counts.items())])
        joints, is_solved, iterations, spent = with_restarts(goals, backend, precision)
        said = f"{100 * is_solved.mean():.2f} %", f"{iterations.mean():.0f}"
        name, far = f"caspar, {precision}, with restarts", away(joints, goals)
        rows.append(_row(name, is_solved, far, REACHED[precision], spent, *said))
        if precision == "float64":
            costs = 0.5 * ((np.asarray(result.values["Joints"]) - MIDDLE) ** 2).sum(axis=1)
            exact = np.where(is_success, costs, np.nan)
    start = time.perf_counter(), time.process_time()
    with threadpool_limits(1):
        found = [by_slsqp(goal) for goal in goals[:num_peer]]
    times = time.perf_counter() - start[0], time.process_time() - start[1]
    joints, claims = np.array([one for one, _ in found]), np.array([said for _, said in found])
    far = away(joints, goals[:num_peer])
    is_reached = far <= REACHED["float64"]
    both = claims & is_reached
    rows.append(
        [
            "SLSQP, one by one",
            f"{num_peer:,}",
            f"{100 * claims.mean():.1f} %",
            f"{int((claims & ~is_reached).sum())}",
            f"{far[both].max():.1e}",
            *(f"{num_peer / one:,.1f}" for one in times),
            "",
        ]
    )
    theirs = np.where(both, 0.5 * ((joints - MIDDLE) ** 2).sum(axis=1), np.nan)
    own = exact[:num_peer]
    slack = SAME * theirs
    beside = [
        ["caspar alone", f"{int((np.isfinite(own) & ~both).sum())}"],
        ["SLSQP alone", f"{int((~np.isfinite(own) & both).sum())}"],
        ["neither", f"{int((~np.isfinite(own) & ~both).sum())}"],
        ["both, at the same cost", f"{int((np.abs(own - theirs) <= slack).sum())}"],
        ["both, caspar's is lower", f"{int((own < theirs - slack).sum())}"],
        ["both, caspar's is higher", f"{int((own > theirs + slack).sum())}"],
    ]
    device = "processor" if backend == "cpu" else backend
    lines = ["# Exact poses of an arm of seven joints", ""]
    lines += [f"{', '.join(f'{key} {text}' for key, text in environment(device).items())}."]
    lines += ["", *(__doc__ or "").split("\n\n", 1)[1].strip().splitlines(), ""]
    head = [
        "",
        "poses",
        "success",
        "of these not reached",
        "farthest",
        "a second",
        "a processor second",
    ]
    lines += [table([*head, "iterations"], rows)]
    lines += ["## Ends of caspar", "", table(["precision", "problems"], ends)]
    lines += [f"## The first {num_peer:,} poses", "", table(["reached by", "poses"], beside)]
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.arm_poses")
    parser.add_argument("--folder", type=Path, default=Path("out"))
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--poses", type=int, default=1000, help="targets of caspar")
    parser.add_argument("--peer-poses", type=int, default=200, help="targets of SLSQP")
    arguments = parser.parse_args()
    text = page(arguments.poses, arguments.peer_poses, arguments.backend)
    print(text)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (arguments.folder / f"arm_poses_{arguments.backend}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
