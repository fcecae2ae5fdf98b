"""`python -m benchmarks.gnc`: graduated non-convexity, beside GTSAM's in one run.

Point clouds of which four fifths of the matches are wrong, solved from no motion; and the first
poses of M3500 with two fifths of the loop closures wrong, solved from the file's own start. Both
sides have the truncated loss, and thresholds that keep 99.9 % of right measurements. Prints, and
writes to a folder, a page.
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from benchmarks.report import environment
from caspar.io import read_g2o

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

GRAPH = Path(__file__).parents[1] / "data/M3500.g2o.bz2"
WORKER = Path(__file__).parent / "peers/gtsam_gnc.py"
PROBABILITY = 0.999
SIGMA = 0.02
PRIOR_SIGMAS = (1e-3, 1e-3, 1e-3)


class Motion(sf.Pose3):
    """Takes one cloud to the other."""


@caspar.factor
def match(
    motion: Annotated[Motion, caspar.TunableUnique],
    here: Annotated[sf.V3, caspar.ConstSequential],
    there: Annotated[sf.V3, caspar.ConstSequential],
) -> sf.V3:
    """A point against where it was seen."""
    return (motion * here - there) / SIGMA


@caspar.factor
def edge(
    a: Annotated[sf.Pose2, caspar.TunableShared],
    b: Annotated[sf.Pose2, caspar.TunableShared],
    measured: Annotated[sf.Pose2, caspar.ConstSequential],
    sqrt_information: Annotated[sf.M33, caspar.ConstSequential],
) -> sf.V3:
    """The motion from a to b against the measured one, as in g2o."""
    error = measured.inverse() * a.inverse() * b
    return sqrt_information * sf.V3(error.t[0], error.t[1], error.R.to_tangent()[0])


@caspar.factor
def prior(
    pose: Annotated[sf.Pose2, caspar.TunableShared],
    expected: Annotated[sf.Pose2, caspar.ConstSequential],
) -> sf.V3:
    """Hold a pose where it is."""
    return sf.V3(*expected.local_coordinates(pose)) / PRIOR_SIGMAS[0]


@dataclass(frozen=True)
class Registration:
    """Two clouds.

    Attributes:
        here: (m, 3) points.
        there: (m, 3) where they were seen.
        is_wrong: (m,) which matches are wrong.
        motion: qx qy qz qw x y z, the true one.
    """

    here: Floats
    there: Floats
    is_wrong: Flags
    motion: Floats

    def error(self, values: Floats) -> float:
        """Largest distance between a point of the unit cube moved by both motions."""
        corners = np.array(np.meshgrid(*[[-1.0, 1.0]] * 3)).reshape(3, -1).T
        moved = [Rotation.from_quat(m[:4]).apply(corners) + m[4:] for m in (values, self.motion)]
        return float(np.linalg.norm(moved[0] - moved[1], axis=1).max())


@dataclass(frozen=True)
class Graph:
    """A pose graph with wrong loop closures.

    Attributes:
        arrays: What `caspar.Solver.solve` takes.
        is_wrong: (m,) which edges are wrong.
        known: Edges of the odometry.
        optimum: (n, 2) positions of the graph without wrong edges.
    """

    arrays: dict[str, Any]
    is_wrong: Flags
    known: NDArray[np.int64]
    optimum: Floats


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        problem: Its name.
        library: Who solved it.
        right_kept: Share of the right measurements that were taken for such.
        wrong_kept: Number of the wrong ones.
        error: Of the values.
        seconds: Of all solves.
    """

    problem: str
    library: str
    right_kept: float
    wrong_kept: int
    error: float
    seconds: float

    @property
    def text(self) -> str:
        """In Markdown."""
        return (
            f"| {self.problem} | {self.library} | {100.0 * self.right_kept:.1f} % | "
            f"{self.wrong_kept} | {self.error:.4f} | {self.seconds:.2f} |"
        )


def registration(seed: int, count: int, share: float = 0.8) -> Registration:
    """Clouds of which a share of the matches is anywhere."""
    random = np.random.default_rng(seed)
    turn, shift = Rotation.random(random_state=seed), random.uniform(-2.0, 2.0, 3)
    here = random.uniform(-1.0, 1.0, (count, 3))
    there = turn.apply(here) + shift + random.normal(0.0, SIGMA, here.shape)
    is_wrong = np.arange(count) < round(share * count)
    there[is_wrong] = shift + random.uniform(-2.0, 2.0, (np.count_nonzero(is_wrong), 3))
    return Registration(here, there, is_wrong, np.concatenate([turn.as_quat(), shift]))


def graph(seed: int, num_poses: int, share: float = 0.4, path: Path = GRAPH) -> Graph:
    """The first poses of a file, with a share of the loop closures replaced by random motions."""
    whole, random = read_g2o(path), np.random.default_rng(seed)
    kept = np.maximum(whole.index_a, whole.index_b) < num_poses
    a, b = whole.index_a[kept], whole.index_b[kept]
    measured, roots = whole.measurement[kept].copy(), whole.sqrt_information[kept]
    poses = whole.poses[:num_poses]
    is_odometry = b - a == 1
    arrays: dict[str, Any] = {
        "Pose2": poses,
        "edge": {"a": a, "b": b, "measured": measured, "sqrt_information": roots},
        "prior": {"pose": [0], "expected": poses[:1]},
    }
    solver = caspar.Solver([edge, prior], backend="cpu", precision="float64")
    optimum = solver.solve(arrays, verbose=False).values["Pose2"][:, 2:]
    closures = np.flatnonzero(~is_odometry)
    wrong = random.choice(closures, round(share * len(closures)), replace=False)
    angle = random.uniform(-np.pi, np.pi, len(wrong))
    replaced = measured.copy()
    replaced[wrong, :2] = np.column_stack([np.cos(angle), np.sin(angle)])
    replaced[wrong, 2:] = random.uniform(-10.0, 10.0, (len(wrong), 2))
    is_wrong = np.zeros(len(a), bool)
    is_wrong[wrong] = True
    arrays["edge"] = {**arrays["edge"], "measured": replaced}
    return Graph(arrays, is_wrong, np.flatnonzero(is_odometry), optimum)


def _row(
    problem: str, library: str, is_wrong: Flags, kept: Flags, error: float, seconds: float
) -> Row:
    return Row(
        problem,
        library,
        float(kept[~is_wrong].mean()),
        int(np.count_nonzero(kept & is_wrong)),
        error,
        seconds,
    )


def registration_rows(given: Registration, name: str, peers_python: str | None) -> list[Row]:
    """By caspar, and by GTSAM where there is an interpreter that has it."""
    start = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    arrays = {"Motion": start[None], "match": {"here": given.here, "there": given.there}}
    solver = caspar.Solver(match, backend="cpu", precision="float64")
    solver.solve(arrays, verbose=False)
    begun = time.perf_counter()
    found = caspar.solve_gnc(solver, arrays, inlier_probability=PROBABILITY, verbose=False)
    seconds = time.perf_counter() - begun
    kept, error = found.weights["match"] > 0.5, given.error(found.values["Motion"][0])
    own = _row(name, "caspar", given.is_wrong, kept, error, seconds)
    plain = solver.solve(arrays, verbose=False).values["Motion"][0]
    everything = np.ones(len(kept), bool)
    rows = [own, _row(name, "least squares", given.is_wrong, everything, given.error(plain), 0.0)]
    if peers_python is not None:
        parts = {"here": given.here, "there": given.there, "sigma": SIGMA, "start": start}
        answer = _gtsam(peers_python, parts)
        kept, error = answer["weights"] > 0.5, given.error(answer["values"][0])
        rows.append(_row(name, "GTSAM", given.is_wrong, kept, error, float(answer["seconds"])))
    return rows


def graph_rows(given: Graph, name: str, peers_python: str | None) -> list[Row]:
    """The same of a pose graph."""

    def error(at: Floats) -> float:
        return float(np.linalg.norm(at - given.optimum, axis=1).max())

    solver = caspar.Solver([edge, prior], backend="cpu", precision="float64")
    plain = solver.solve(given.arrays, verbose=False).values["Pose2"][:, 2:]
    begun = time.perf_counter()
    found = caspar.solve_gnc(
        solver,
        given.arrays,
        inlier_probability={"edge": PROBABILITY},
        known_inliers={"edge": given.known},
        verbose=False,
    )
    seconds = time.perf_counter() - begun
    kept = found.weights["edge"] > 0.5
    own = error(found.values["Pose2"][:, 2:])
    rows = [_row(name, "caspar", given.is_wrong, kept, own, seconds)]
    everything = np.ones(len(kept), bool)
    rows.append(_row(name, "least squares", given.is_wrong, everything, error(plain), 0.0))
    if peers_python is not None:
        edges = given.arrays["edge"]
        roots = edges["sqrt_information"]
        parts = {
            "poses": _angles(given.arrays["Pose2"]),
            "index_a": edges["a"],
            "index_b": edges["b"],
            "measured": _angles(edges["measured"]),
            "information": np.einsum("nki,nkj->nij", roots, roots),
            "prior_sigmas": np.array(PRIOR_SIGMAS),
            "known": given.known,
        }
        answer = _gtsam(peers_python, parts)
        kept, theirs = answer["weights"] > 0.5, error(answer["values"][:, :2])
        rows.append(_row(name, "GTSAM", given.is_wrong, kept, theirs, float(answer["seconds"])))
    return rows


def _angles(poses: Floats) -> Floats:
    """cos sin x y to x y angle."""
    return np.column_stack([poses[:, 2:], np.arctan2(poses[:, 1], poses[:, 0])])


def _gtsam(peers_python: str, parts: Mapping[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "asked.npz", Path(folder) / "answer.npz"
        np.savez(asked, probability=PROBABILITY, **parts)
        subprocess.run([peers_python, str(WORKER), str(asked), str(answer)], check=True)
        return dict(np.load(answer))


def page(rows: Sequence[Row]) -> str:
    """The table in Markdown."""
    lines = ["# Graduated non-convexity, beside GTSAM", ""]
    lines += [f"* {key}: {text}" for key, text in environment("processor").items()]
    lines += [
        "",
        "Truncated loss, thresholds that keep 99.9 % of right measurements. Registrations from no "
        "motion, pose graphs from the start of the file; edges of the odometry are known to be "
        "right. Error: of registrations the largest distance of a corner of the unit cube from "
        "where the true motion takes it, of graphs the largest distance of a pose from the optimum "
        "without wrong edges. Seconds: of the only run, with caspar's kernels compiled before.",
        "",
        "| problem | by | right ones kept | wrong ones kept | error | seconds |",
        "|---|---|--:|--:|--:|--:|",
        *(row.text for row in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gnc")
    parser.add_argument("--peers-python", help="an interpreter that has GTSAM")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--poses", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("out"))
    given = parser.parse_args()
    rows = []
    for seed in range(given.seeds):
        name = f"300 matches, 80 % wrong, {seed}"
        rows += registration_rows(registration(seed, 300), name, given.peers_python)
    for seed in range(given.seeds):
        made = graph(seed, given.poses)
        num_closures = len(made.is_wrong) - len(made.known)
        name = f"{given.poses} poses, 40 % of {num_closures} closures wrong, {seed}"
        rows += graph_rows(made, name, given.peers_python)
    text = page(rows)
    print(text)
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "gnc_cpu.md").write_text(text)


if __name__ == "__main__":
    main()
