"""`python -m benchmarks.live FILE.g2o ...`: live problems, beside GTSAM's iSAM2 if it is installed.

*Growing*: a planar pose graph comes pose by pose, and is updated after each. *Window*: a robot in
the plane that sees landmarks keeps its last 20 poses; older ones are marginalised. *Inertial*: a
body with a camera and an inertial sensor keeps 10 keyframes of 15 numbers and the landmarks that
they see. Milliseconds of CPU for a whole step: adding, updating, marginalising, reading the newest
pose (inertial: and its covariance). Prints, and writes to a folder, a page.
"""

import argparse
import resource
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation
from scipy.stats import chi2

import caspar
from benchmarks.report import environment

Rows = NDArray[np.float64]

TOLERANCE, TIGHT, MAX_STEPS = 1e-4, 1e-6, 5
WINDOW_POSES, NUM_MARKS = 20, 40
KEYFRAMES, READINGS, NUM_POINTS, NUM_SEEN = 10, 40, 2400, 160
RATE_HZ, TURN = 200.0, 0.4
GRAVITY = np.array([0.0, 0.0, -9.81])
START_SIGMA, NEES_STEPS = 0.05, 60
MOVED_SIGMA, SEEN_SIGMA = np.array([0.02, 0.05, 0.05]), np.array([0.03, 0.08])


class Mark(sf.V2):
    """A landmark in a plane."""


class Point(sf.V3):
    """A landmark in space."""


class Bias(sf.V6):
    """Bias of gyroscope and accelerometer."""


@caspar.factor
def pixel(
    state: Annotated[caspar.factors.NavState, caspar.TunableShared],
    point: Annotated[Point, caspar.TunableShared],
    seen: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A camera that looks along -y of the body; sigma is half a pixel of 500 a radian."""
    x, y, z = state.pose.inverse() * point
    return 1000 * (sf.V2(x / -y, z / -y) - seen)


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
    """A graph that comes pose by pose, by each of two tolerances.

    With the tighter one there is a look at the batch optimum now and then.
    """
    edges, poses, motions = edges_of(graph), graph.poses, graph.measurement
    weights = caspar.factors.rotation_first(graph.sqrt_information)
    newest = edges.max(axis=1)
    odometry = caspar.factors.between(sf.Pose2, noise="sqrt_information", name="odometry")
    looks = set(np.linspace(len(poses) // 10, len(poses) - 1, num_looks).astype(int).tolist())
    found = []
    for tolerance in (TOLERANCE, TIGHT):
        is_looked_at = tolerance == TIGHT
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
            result = problem.update(max_iterations=MAX_STEPS, cost_tolerance=tolerance)
            (last,) = problem.values_of("Pose2", ids[-1:])
            times.append(1e3 * (time.process_time() - start_s))
            if is_looked_at and step in looks:
                solver = caspar.Solver([odometry], backend="cpu", precision="float64")
                best = solver.solve(problem.arrays(), fixed={"Pose2": [0]})
                worst = max(worst, result.cost / best.final_cost)
        end = problem.solve()
        excess = result.cost / end.final_cost - 1.0
        note = f"cost {result.cost:.5f}, {excess:.1e} of it above the optimum"
        if is_looked_at:
            note += f"; at most {worst:.6f} times that of the moment ({num_looks} looks)"
        found.append(Times(f"caspar, tolerance {tolerance:g}", np.array(times), note))
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


def window(num_steps: int, seed: int = 0) -> tuple[Times, float]:
    """A robot that keeps its last poses, and marginalises the others.

    Also the squared error of its last pose, relative to the covariance (NEES): 3 on average if the
    window is consistent.
    """
    rng = np.random.default_rng(seed)
    each = {"sigma": caspar.ConstSequential}
    odometry = caspar.factors.between(sf.Pose2, name="odometry", markers=each)
    sight = caspar.factors.bearing_range(sf.Pose2, Mark, name="sight", markers=each)
    start = caspar.factors.prior(sf.Pose2, name="start", markers=each)
    problem = caspar.Problem([odometry, sight, start], backend="cpu", precision="float64")
    marks = rng.uniform(-8.0, 8.0, (NUM_MARKS, 2))
    known: dict[int, int] = {}
    seen_last: dict[int, int] = {}
    true = planar(np.array(0.0), np.array(0.0), np.array(0.0))
    angle, x, y = START_SIGMA * rng.normal(size=3)
    guess = planar(x, y, angle)[None]
    ids = problem.add_nodes("Pose2", guess).tolist()
    given = {"value": ids, "expected": guess, "sigma": [[START_SIGMA] * 3]}
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
    (last,) = problem.values_of("Pose2", ids[-1:])
    covariance = problem.covariance({"Pose2": ids[-1:]})["Pose2"][0]
    turned = np.arctan2(last[1] * true[0] - last[0] * true[1], last[:2] @ true[:2])
    error = np.array([turned, *(last[2:] - true[2:])])
    squared_error = float(error @ np.linalg.solve(covariance, error))
    name = f"caspar, window of {WINDOW_POSES} planar poses"
    return Times(name, np.array(times), note), squared_error


def consistency(num_runs: int) -> str:
    """The mean squared error of many windows, beside the band in which 95 % of such means are."""
    errors = [window(NEES_STEPS, seed)[1] for seed in range(num_runs)]
    low, high = chi2.ppf([0.025, 0.975], 3 * num_runs) / num_runs
    return (
        f"Consistency: over {num_runs} runs of {NEES_STEPS} steps the mean squared error of the "
        f"last pose, relative to its covariance, is {np.mean(errors):.2f}; 95 % of such means are "
        f"within {low:.2f} and {high:.2f}."
    )


def flight(count: int) -> tuple[Rows, Rows, Rows]:
    """A circle that waves: times, true states (qx qy qz qw, position, velocity), readings."""
    times = np.arange(count) / RATE_HZ
    angle = TURN * times
    up, over = np.sin(3.0 * angle), 3.0 * TURN * np.cos(3.0 * angle)
    turned = Rotation.from_rotvec(np.outer(angle + np.pi / 2, [0.0, 0.0, 1.0]))
    place = np.stack([5.0 * np.cos(angle), 5.0 * np.sin(angle), up], axis=1)
    velocity = np.stack([-5.0 * TURN * np.sin(angle), 5.0 * TURN * np.cos(angle), over], axis=1)
    accel = np.stack(
        [-TURN * velocity[:, 1], TURN * velocity[:, 0], -9.0 * TURN * TURN * up], axis=1
    )
    force = turned.inv().apply(accel - GRAVITY)
    gyro = np.tile([0.0, 0.0, TURN], (count, 1))
    states = np.concatenate([turned.as_quat(), place, velocity], axis=1)
    return times, states, np.concatenate([gyro, force], axis=1)


def inertial(num_steps: int) -> list[Times]:
    """A body that keeps its last keyframes and what they see."""
    rng = np.random.default_rng(0)
    sensor = caspar.factors.ImuNoise(1e-3, 1e-2)
    times, states, readings = flight(num_steps * READINGS + 1)
    readings = readings + rng.normal(size=readings.shape) * np.repeat([0.014, 0.14], 3)
    moved_by = caspar.factors.preintegrate(
        times, readings[:, :3], readings[:, 3:], times[::READINGS], sensor
    ).arrays()
    states = states[::READINGS]
    around = rng.uniform(0.0, 2.0 * np.pi, NUM_POINTS)
    far, high = rng.uniform(9.0, 14.0, NUM_POINTS), rng.uniform(-3.0, 3.0, NUM_POINTS)
    points = np.stack([far * np.cos(around), far * np.sin(around), high], axis=1)
    state_type, each = caspar.factors.NavState, {"sigma": caspar.ConstSequential}
    imu = caspar.factors.imu(state_type, Bias, noise="sqrt_information", name="imu")
    drift = caspar.factors.between(Bias, name="drift", markers=each)
    begin = caspar.factors.prior(state_type, name="begin", markers=each)
    unbiased = caspar.factors.prior(Bias, name="unbiased", markers=each)
    factors = [pixel, imu, drift, begin, unbiased]
    problem = caspar.Problem(factors, backend="cpu", precision="float64")
    first = problem.add_nodes("NavState", states[:1])
    biases = problem.add_nodes("Bias", np.zeros((1, 6))).tolist()
    problem.add_factors("begin", {"value": first, "expected": states[:1], "sigma": [[0.01] * 9]})
    problem.add_factors(
        "unbiased", {"value": biases, "expected": np.zeros((1, 6)), "sigma": [[0.02] * 6]}
    )
    frames, steps_ms, errors, num_kept = first.tolist(), [], [], []
    known: dict[int, int] = {}  # ids of the landmarks in the window
    seen: list[list[int]] = [[]]  # by each keyframe
    for step in range(1, len(states)):
        turned = Rotation.from_quat(states[step, :4])
        local = turned.inv().apply(points - states[step, 4:7])
        ahead = (local[:, 1] < -1.0) & (np.abs(local[:, 0] / local[:, 1]) < 0.8)
        # those that are known are followed
        inside: list[int] = sorted(
            np.flatnonzero(ahead).tolist(), key=lambda one: one not in known
        )[:NUM_SEEN]
        pixels = local[inside][:, [0, 2]] / -local[inside][:, 1:2]
        pixels = pixels + 1e-3 * rng.normal(size=pixels.shape)
        seen.append(inside)
        new = [one for one in inside if one not in known]
        guess = states[step] + np.repeat([0.0, 0.05], [4, 6]) * rng.normal(size=10)
        start_s = time.process_time()
        frames += problem.add_nodes("NavState", guess[None]).tolist()
        biases += problem.add_nodes("Bias", problem.values_of("Bias", biases[-1:])).tolist()
        near = points[new] + 0.1 * rng.normal(size=(len(new), 3))
        known |= dict(zip(new, problem.add_nodes("Point", near).tolist(), strict=True))
        ends = {"start": frames[-2:-1], "end": frames[-1:], "bias": biases[-2:-1]}
        own = {name: array[step - 1 : step] for name, array in moved_by.items()}
        problem.add_factors("imu", {**ends, **own, "gravity": GRAVITY})
        beside = {"a": biases[-2:-1], "b": biases[-1:], "a_from_b": np.zeros((1, 6))}
        problem.add_factors("drift", {**beside, "sigma": [[1e-3] * 6]})
        sights = {"state": frames[-1:] * len(inside), "point": [known[one] for one in inside]}
        problem.add_factors("pixel", {**sights, "seen": pixels})
        problem.update(max_iterations=MAX_STEPS, cost_tolerance=TOLERANCE)
        covariance = problem.covariance({"NavState": frames[-1:]})["NavState"][0]
        if len(frames) > KEYFRAMES:
            # with all landmarks that it sees: what they knew is left to the other keyframes
            points_gone = [known.pop(one) for one in seen.pop(0)]
            gone = {"NavState": frames[:1], "Bias": biases[:1], "Point": points_gone}
            num_kept.append(len(known) + len(points_gone))
            problem.marginalize(gone)
            frames, biases = frames[1:], biases[1:]
            # one that is seen again is another one
            seen = [[one for one in ones if one in known] for ones in seen]
        (last,) = problem.values_of("NavState", frames[-1:])
        steps_ms.append(1e3 * (time.process_time() - start_s))
        errors.append((last[4:7] - states[step, 4:7]) / np.sqrt(covariance.diagonal()[3:6]))
    root = np.sqrt(np.mean(np.square(errors)))
    note = (
        f"{np.mean(num_kept):.0f} landmarks; errors of the position {root:.2f} standard deviations"
    )
    return [Times(f"caspar, window of {KEYFRAMES} inertial keyframes", np.array(steps_ms), note)]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live")
    parser.add_argument("graphs", type=Path, nargs="+", help="planar pose graphs: M3500.g2o")
    parser.add_argument("--steps", type=int, default=2000, help="of the window")
    parser.add_argument("--runs", type=int, default=200, help="windows, for their consistency")
    parser.add_argument("--looks", type=int, default=30, help="at the batch optimum")
    parser.add_argument("--folder", type=Path, default=Path("out"))
    chosen = parser.parse_args()
    facts = environment("processor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        # kernels are compiled before
        window(WINDOW_POSES + 5)
        inertial(KEYFRAMES + 3)
        found = []
        for path in chosen.graphs:
            graph = caspar.io.read_g2o(path)
            for one in (*growing(graph, chosen.looks), *isam2(graph)):
                found.append(replace(one, name=f"{path.stem}: {one.name}"))
        found.append(window(chosen.steps)[0])
        found += inertial(chosen.steps // 4)
        said = consistency(chosen.runs)
    lines = [
        "# Live problems",
        "",
        *(f"* {name}: {value}" for name, value in facts.items()),
        f"* graphs: {', '.join(path.name for path in chosen.graphs)}",
        "",
        "| problem | steps | mean | 99 % | worst | |",
        "|---|--:|--:|--:|--:|---|",
        *(one.row() for one in found),
        "",
        said,
        "",
        "Milliseconds of CPU for a whole step. Method and history: "
        "[record 0048](../../docs/design/0048-live-problems.md).",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    (chosen.folder / "live_cpu.md").write_text(text)


if __name__ == "__main__":
    main()
