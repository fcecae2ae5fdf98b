"""`python -m benchmarks.live FILE.g2o`: live problems, beside GTSAM's iSAM2 if it is installed.

*Growing*: a planar pose graph comes pose by pose, and is updated after each. *Window*: a robot in
the plane that sees landmarks keeps its last 20 poses; older ones are marginalised. Milliseconds of
the processor for a whole step: adding, updating, reading the newest pose. Prints, and writes to a
folder, a page.
"""

import argparse
import resource
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from benchmarks.report import environment

Rows = NDArray[np.float64]

TOLERANCE, MAX_STEPS = 1e-4, 5
WINDOW_POSES, NUM_MARKS = 20, 40
MOVED_SIGMA, SEEN_SIGMA = np.array([0.02, 0.05, 0.05]), np.array([0.03, 0.08])


class Mark(sf.V2):
    """A landmark in a plane."""


@dataclass(frozen=True)
class Times:
    """Milliseconds of the processor of each step, and what came of it."""

    name: str
    steps_ms: Rows
    note: str

    def row(self) -> str:
        """As a row of a table."""
        ms = self.steps_ms
        numbers = f"{ms.mean():.2f} | {np.percentile(ms, 99):.1f} | {ms.max():.0f}"
        return f"| {self.name} | {len(ms)} | {numbers} | {self.note} |"


def planar(x: Any, y: Any, angle: Any) -> Rows:
    """Poses as SymForce stores them."""
    return np.stack([np.cos(angle), np.sin(angle), x, y], axis=-1)


def moved(pose: Rows, by: Rows) -> Rows:
    """A pose after a motion."""
    (c, s, x, y), (dc, ds, dx, dy) = pose, by
    return np.array([c * dc - s * ds, s * dc + c * ds, x + c * dx - s * dy, y + s * dx + c * dy])


def edges_of(graph: caspar.io.PoseGraph) -> NDArray[np.int64]:
    """(num_edges, 2) rows of poses."""
    return np.stack([graph.index_a, graph.index_b], axis=1).astype(np.int64)


def growing(graph: caspar.io.PoseGraph, num_looks: int) -> list[Times]:
    """A graph that comes pose by pose, and again with a look at the batch optimum now and then."""
    edges, poses, motions = edges_of(graph), graph.poses, graph.measurement
    weights = caspar.factors.rotation_first(graph.sqrt_information)
    newest = edges.max(axis=1)
    odometry = caspar.factors.between(sf.Pose2, noise="sqrt_information", name="odometry")
    looks = set(np.linspace(len(poses) // 10, len(poses) - 1, num_looks).astype(int).tolist())
    found = []
    for is_looked_at in (False, True):
        problem = caspar.Problem([odometry], backend="cpu", precision="float64")
        ids = problem.add_nodes("Pose2", poses[:1])
        problem.set_fixed("Pose2", ids)
        times, worst, last = [], 1.0, poses[0]
        for step in range(1, len(poses)):
            chosen = np.flatnonzero(newest == step)
            start_s = time.process_time()
            value = poses[step]
            for edge in chosen:
                if tuple(edges[edge]) == (step - 1, step):
                    value = moved(last, motions[edge])
            ids = np.append(ids, problem.add_nodes("Pose2", value[None]))
            given = {
                "a": ids[edges[chosen, 0]],
                "b": ids[edges[chosen, 1]],
                "a_from_b": motions[chosen],
                "sqrt_information": weights[chosen],
            }
            problem.add_factors("odometry", given)
            result = problem.update(max_iterations=MAX_STEPS, cost_tolerance=TOLERANCE)
            (last,) = problem.values_of("Pose2", ids[-1:])
            times.append(1e3 * (time.process_time() - start_s))
            if is_looked_at and step in looks:
                solver = caspar.Solver([odometry], backend="cpu", precision="float64")
                best = solver.solve(problem.arrays(), fixed={"Pose2": [0]})
                worst = max(worst, result.cost / best.final_cost)
        if is_looked_at:
            note = f"cost at most {worst:.6f} times the optimum of the moment ({num_looks} looks)"
            found.append(Times("caspar, looked at", np.array(times), note))
        else:
            end = problem.solve()
            note = f"cost {result.cost:.5f}, optimum {end.final_cost:.5f}"
            found.append(Times("caspar", np.array(times), note))
    return found


def isam2(graph: caspar.io.PoseGraph) -> list[Times]:
    """The same by GTSAM, if it is there."""
    try:
        import gtsam
    except ImportError:
        return []
    edges, motions = edges_of(graph), graph.measurement
    newest = edges.max(axis=1)

    def pose(row: Rows) -> Any:
        return gtsam.Pose2(row[2], row[3], float(np.arctan2(row[1], row[0])))

    smoother = gtsam.ISAM2(gtsam.ISAM2Params())
    prior = gtsam.noiseModel.Diagonal.Sigmas(np.full(3, 1e-4))
    full, times, last = gtsam.NonlinearFactorGraph(), [], pose(graph.poses[0])
    for step in range(len(graph.poses)):
        chosen = np.flatnonzero(newest == step)
        start_s = time.process_time()
        new, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
        if step == 0:
            new.add(gtsam.PriorFactorPose2(0, last, prior))
            values.insert(0, last)
        for edge in chosen:
            # translation first, as GTSAM has it
            noise = gtsam.noiseModel.Gaussian.SqrtInformation(graph.sqrt_information[edge])
            first, second = map(int, edges[edge])
            motion = pose(motions[edge])
            new.add(gtsam.BetweenFactorPose2(first, second, motion, noise))
            if (first, second) == (step - 1, step):
                values.insert(step, last.compose(motion))
        if step > 0 and not values.exists(step):
            values.insert(step, pose(graph.poses[step]))
        smoother.update(new, values)
        last = smoother.calculateEstimatePose2(step)
        times.append(1e3 * (time.process_time() - start_s))
        full.push_back(new)
    cost = full.error(smoother.calculateEstimate())
    return [Times("GTSAM, iSAM2", np.array(times[1:]), f"cost {cost:.5f}")]


def window(num_steps: int) -> list[Times]:
    """A robot that keeps its last poses, and marginalises the others."""
    rng = np.random.default_rng(0)
    each = {"sigma": caspar.ConstSequential}
    odometry = caspar.factors.between(sf.Pose2, name="odometry", markers=each)
    sight = caspar.factors.bearing_range(sf.Pose2, Mark, name="sight", markers=each)
    start = caspar.factors.prior(sf.Pose2, name="start", markers=each)
    problem = caspar.Problem([odometry, sight, start], backend="cpu", precision="float64")
    marks = rng.uniform(-8.0, 8.0, (NUM_MARKS, 2))
    known: dict[int, int] = {}
    seen_last: dict[int, int] = {}
    true = planar(np.array(0.0), np.array(0.0), np.array(0.0))
    ids = problem.add_nodes("Pose2", true[None]).tolist()
    given = {"value": ids, "expected": true[None], "sigma": [[0.05] * 3]}
    problem.add_factors("start", given)
    times, bytes_before = [], 0
    for step in range(1, num_steps):
        turn = (
            0.3 * np.sign(true[1] * true[2] - true[0] * true[3])
            if np.abs(true[2:]).max() > 5.0
            else 0.0
        )
        turn = turn + 0.1 * rng.normal()
        motion = planar(np.array(0.5), np.array(0.0), np.array(turn))
        true = moved(true, motion)
        noise = MOVED_SIGMA * rng.normal(size=3)
        measured = planar(0.5 + noise[1], noise[2], turn + noise[0])
        beside = marks - true[2:]
        near = np.flatnonzero(np.linalg.norm(beside, axis=1) < 4.0)
        angles = np.arctan2(beside[near, 1], beside[near, 0]) - np.arctan2(true[1], true[0])
        angles = (angles + SEEN_SIGMA[0] * rng.normal(size=len(near)) + np.pi) % (2 * np.pi) - np.pi
        distances = np.linalg.norm(beside[near], axis=1) + SEEN_SIGMA[1] * rng.normal(
            size=len(near)
        )
        start_s = time.process_time()
        (last,) = problem.values_of("Pose2", ids[-1:])
        value = moved(last, measured)
        ids += problem.add_nodes("Pose2", value[None]).tolist()
        between = {"a": ids[-2:-1], "b": ids[-1:], "a_from_b": measured[None]}
        problem.add_factors("odometry", {**between, "sigma": MOVED_SIGMA[None]})
        heading = np.arctan2(value[1], value[0])
        for mark, angle, distance in zip(near.tolist(), angles, distances, strict=True):
            if mark not in known:
                direction = np.array([np.cos(heading + angle), np.sin(heading + angle)])
                place = value[2:] + distance * direction
                known[mark] = int(problem.add_nodes("Mark", place[None])[0])
            seen_last[mark] = step
        if len(near) > 0:
            problem.add_factors(
                "sight",
                {
                    "pose": [ids[-1]] * len(near),
                    "point": [known[mark] for mark in near.tolist()],
                    "angle": angles[:, None],
                    "distance": distances[:, None],
                    "sigma": np.tile(SEEN_SIGMA, (len(near), 1)),
                },
            )
        problem.update(max_iterations=MAX_STEPS, cost_tolerance=TOLERANCE)
        if len(ids) > WINDOW_POSES:
            gone = [mark for mark, when in seen_last.items() if step - when >= WINDOW_POSES]
            problem.marginalize({"Pose2": ids[:1], "Mark": [known.pop(mark) for mark in gone]})
            ids = ids[1:]
            for mark in gone:
                del seen_last[mark]
        problem.values_of("Pose2", ids[-1:])
        times.append(1e3 * (time.process_time() - start_s))
        if step == num_steps // 2:
            bytes_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - bytes_before
    note = f"memory grew by {grown / 1024:.1f} MiB in the second half"
    return [Times(f"caspar, window of {WINDOW_POSES} planar poses", np.array(times), note)]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live")
    parser.add_argument("graph", type=Path, help="a planar pose graph, such as M3500.g2o")
    parser.add_argument("--steps", type=int, default=2000, help="of the window")
    parser.add_argument("--looks", type=int, default=30, help="at the batch optimum")
    parser.add_argument("--folder", type=Path, default=Path("out"))
    chosen = parser.parse_args()
    facts = environment("processor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        graph = caspar.io.read_g2o(chosen.graph)
        found = [*growing(graph, chosen.looks), *isam2(graph), *window(chosen.steps)]
    lines = [
        "# Live problems",
        "",
        *(f"* {name}: {value}" for name, value in facts.items()),
        f"* graph: {chosen.graph.name}",
        "",
        "| problem | steps | mean | 99 % | worst | |",
        "|---|--:|--:|--:|--:|---|",
        *(one.row() for one in found),
        "",
        "Milliseconds of the processor for a whole step. Method and history: "
        "[record 0048](../../docs/design/0048-live-problems.md).",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    (chosen.folder / "live_cpu.md").write_text(text)


if __name__ == "__main__":
    main()
