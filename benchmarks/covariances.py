"""`python -m benchmarks.covariances`: covariances beside published ones, and how long they take.

Digits are -log10 of the largest relative difference of a standard error. Times are the median of
several calls in a process in which kernels are compiled, from host arrays to all blocks of all
nodes; processor seconds are those of all threads, which other load changes less. Bundles have no
gauge, and get the pseudo-inverse. GTSAM's `Marginals` runs in another interpreter
(`--peers-python`) on the same pose graphs; measurements are those of the poses without errors, as
GTSAM's factors leave out a derivative that is the identity there. Writes `covariances_cpu.md` in
the folder.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from benchmarks.page import table
from benchmarks.peers import gtsam_marginals
from benchmarks.problems import Bundle
from benchmarks.problems import make as make_bundle
from benchmarks.regression import nist
from benchmarks.regression.caspar_fit import TIGHT, CasparFit, Form
from benchmarks.report import environment
from benchmarks.synthetic import make_bal
from caspar.bundle_adjustment import snavely
from caspar.options import BackendName, GaugeName
from examples import calibration_errors, pose_graph, pose_graph_3d

Rows = NDArray[np.float64]
Table = list[list[str]]

NUM_RUNS, MAX_S = 5, 60.0
GROWING = (10_000, 100_000, 1_000_000)
"""Points of a photo collection of 60 cameras, each seen four times on average."""


def digits(found: Any, wanted: Any) -> float:
    """Digits in which the worst number agrees."""
    return float(-np.log10(np.abs(np.asarray(found) / np.asarray(wanted) - 1.0).max()))


def nist_rows() -> Table:
    """The 27 data sets: at the certified parameters, and where a solve from these ends."""
    rows = []
    for problem in nist.problems():
        assert problem.certified is not None
        fit, parameters = CasparFit(problem, Form.VECTOR), np.array(problem.certified)
        values = fit.solve(parameters, TIGHT).parameters
        found = [fit.covariance(at).standard_errors("Parameters")[0] for at in (parameters, values)]
        unscaled = fit.covariance(parameters, scaled=False).standard_errors("Parameters")[0]
        num_left = len(problem.kinds[0].data) - len(parameters)
        found.append(unscaled * np.sqrt(problem.minimum / num_left))
        numbers = [f"{digits(one, problem.standard_errors):.1f}" for one in found]
        rows.append([problem.name, str(problem.num_parameters), *numbers])
    return rows


def calibration_rows() -> Table:
    """OpenCV's own standard deviations of its sample pictures."""
    _, cov = calibration_errors.calibrate()
    published = np.load(calibration_errors.CORNERS)
    lens, places = published["intrinsics_std"][:9], published["extrinsics_std"].reshape(13, 6)
    boards = cov.standard_errors("Board")
    return [
        ["nine numbers of the lens", f"{digits(cov.standard_errors('Lens')[0], lens):.1f}"],
        ["13 translations", f"{digits(boards[:, 3:], places[:, 3:]):.1f}"],
    ]


# -- times -----------------------------------------------------------------------------------------


def facts_of(
    solver: caspar.Solver, arrays: dict[str, Any], names: Sequence[str], gauge: GaugeName | None
) -> list[str]:
    """Facts of a covariance, and medians of its times over some runs after a first one."""
    times: list[tuple[float, float]] = []
    while len(times) <= NUM_RUNS and sum(time_s for time_s, _ in times) < MAX_S:
        start = time.perf_counter(), time.process_time()
        cov = solver.covariance(arrays, dict.fromkeys(names, "all"), gauge=gauge)
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    medians = [statistics.median(column) for column in zip(*times[-NUM_RUNS:], strict=True)]
    free = cov.num_unknowns - cov.rank
    facts = [f"{cov.num_unknowns:,}", str(free), cov.method]
    return [*facts, *(f"{one:.3f}" for one in medians)]


def bundles() -> Iterator[Bundle]:
    """The two real ones, and a growing one."""
    yield make_bundle("problem-21-11315")
    yield make_bundle("problem-49-7776")
    for num_points in GROWING:
        made = make_bal(60, num_points, 4 * num_points, "photos")
        yield Bundle(
            f"synthetic, {num_points:,} points",
            made.cameras,
            made.points,
            made.camera_index,
            made.point_index,
            made.pixels,
            None,
        )


def bundle_rows(backend: BackendName) -> Table:
    """Cameras and points of bundles, by the pseudo-inverse."""
    solver = caspar.Solver(snavely, backend=backend, precision="float64")
    rows = []
    for bundle in bundles():
        arrays: dict[str, Any] = {
            "Cam": bundle.cameras,
            "Point": bundle.points,
            "snavely": {
                "cam": bundle.camera_index,
                "point": bundle.point_index,
                "pixel": bundle.pixels,
            },
        }
        arrays |= solver.solve(arrays, max_iterations=20, max_time_s=20.0).values
        facts = facts_of(solver, arrays, ("Cam", "Point"), "minimum_norm")
        rows.append([bundle.name, f"{bundle.num_observations:,}", *facts])
        print(rows[-1], flush=True)
    return rows


def graph_rows(backend: BackendName, data: Path | None, peers_python: str) -> Table:
    """Pose graphs, their first pose held, beside GTSAM."""
    files = [(pose_graph, pose_graph.GRAPH), (pose_graph_3d, pose_graph_3d.GRAPH)]
    if data is not None:
        files.append((pose_graph_3d, data / "sphere2500.g2o.bz2"))
    rows = []
    for example, path in files:
        solver = caspar.Solver(example.FACTORS, backend=backend)
        arrays = example.read(path)
        if example is pose_graph_3d:
            arrays["Pose"] = caspar.initialize.chordal(caspar.io.read_g2o(path))
        arrays |= solver.solve(arrays).values
        name, edges = _without_errors(arrays)
        facts = facts_of(solver, arrays, (name,), None)
        cov = solver.covariance(arrays, {name: "all"})
        wanted, peer_s = _gtsam(arrays[name], edges, peers_python)
        errors = np.sqrt(np.diagonal(wanted, axis1=1, axis2=2))
        agreed = f"{digits(cov.standard_errors(name), errors):.1f}"
        rows.append([path.name.split(".")[0], *facts, f"{peer_s:.3f}", agreed])
        print(rows[-1], flush=True)
    return rows


def _without_errors(arrays: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Make measurements those of the poses; name of the node type, and its edges for GTSAM."""
    name = "Pose2" if "Pose2" in arrays else "Pose"
    poses = arrays[name]
    edges = arrays["edge" if name == "Pose2" else "odometry"]
    first, second = ("a", "b") if name == "Pose2" else ("start", "end")
    one, two = poses[edges[first]], poses[edges[second]]
    dim = 3 if name == "Pose2" else 6
    roots = np.asarray(edges["sqrt_information"]).reshape(-1, dim, dim)
    if name == "Pose2":
        angle = np.arctan2(two[:, 1], two[:, 0]) - np.arctan2(one[:, 1], one[:, 0])
        turn = _flat_turns(np.arctan2(one[:, 1], one[:, 0]))
        moved = turn.inv().apply(np.pad(two[:, 2:] - one[:, 2:], ((0, 0), (0, 1))))[:, :2]
        edges["measured"] = np.column_stack([np.cos(angle), np.sin(angle), moved])
        peer, order = np.column_stack([moved, angle]), np.arange(3)
    else:
        turn = Rotation.from_quat(one[:, :4])
        way = turn.inv().apply(two[:, 4:] - one[:, 4:])
        quaternion = (turn.inv() * Rotation.from_quat(two[:, :4])).as_quat()
        edges["motion"] = peer = np.column_stack([quaternion, way])
        order = np.array([3, 4, 5, 0, 1, 2])  # GTSAM's rotations come first
    arrays["prior"]["expected"] = poses[:1]
    information = roots.transpose(0, 2, 1) @ roots
    return name, {
        "index_a": edges[first],
        "index_b": edges[second],
        "measured": peer,
        "information": information[:, order][:, :, order],
    }


def _flat_turns(angles: Rows) -> Rotation:
    """Rotations of the plane."""
    return Rotation.from_rotvec(angles[:, None] * np.array([0.0, 0.0, 1.0]))


def _gtsam(poses: Rows, edges: dict[str, Any], peers_python: str) -> tuple[Rows, float]:
    """GTSAM's covariances in the order and axes of caspar's tangents, and its seconds."""
    is_flat = poses.shape[1] == 4
    angles = np.arctan2(poses[:, 1], poses[:, 0])
    given = np.column_stack([poses[:, 2:], angles]) if is_flat else poses
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "in.npz", Path(folder) / "out.npz"
        sigmas = np.full(3 if is_flat else 6, 1e-3)
        np.savez(asked, poses=given, prior_sigmas=sigmas, **edges)
        script = str(Path(gtsam_marginals.__file__))
        subprocess.run([peers_python, script, str(asked), str(answer)], check=True)
        found = dict(np.load(answer))
    # GTSAM moves translations in the axes of the body
    if is_flat:
        turns = _flat_turns(angles).as_matrix()
        chart = np.zeros((len(poses), 3, 3))
        chart[:, 0, 2] = 1.0
        chart[:, 1:, :2] = turns[:, :2, :2]
    else:
        chart = np.zeros((len(poses), 6, 6))
        chart[:, :3, :3] = np.eye(3)
        chart[:, 3:, 3:] = Rotation.from_quat(poses[:, :4]).as_matrix()
    return chart @ found["covariances"] @ chart.transpose(0, 2, 1), float(found["seconds"])


def page(device: str, sections: Sequence[tuple[str, Sequence[str], Table]]) -> str:
    """All tables."""
    facts = ", ".join(f"{name} {value}" for name, value in environment(device).items())
    parts = [f"# Covariances\n\n{facts}.\n\n{__doc__.split(chr(10), 2)[2].strip()}\n"]
    parts += [f"## {title}\n\n{table(head, rows)}" for title, head, rows in sections]
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out"))
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--data", type=Path, help="folder of sphere2500.g2o.bz2")
    parser.add_argument("--peers-python", help="an interpreter that has GTSAM")
    given = parser.parse_args(arguments)
    times = ["unknowns", "free directions", "method", "s", "processor s"]
    sections: list[tuple[str, list[str], Table]] = [
        (
            "Digits of NIST's certified standard deviations",
            [
                *("data", "parameters", "at the certified parameters", "after a solve from these"),
                "with the certified residual deviation",
            ],
            nist_rows(),
        ),
        ("Digits of OpenCV's calibration", ["standard errors of", "digits"], calibration_rows()),
        ("Bundles", ["problem", "observations", *times], bundle_rows(given.backend)),
    ]
    if given.peers_python is not None:
        rows = graph_rows(given.backend, given.data, given.peers_python)
        head = ["graph", *times, "s, GTSAM", "digits of GTSAM's standard errors"]
        sections.append(("Pose graphs", head, rows))
    given.folder.mkdir(parents=True, exist_ok=True)
    path = given.folder / f"covariances_{given.backend}.md"
    device = caspar.Solver(snavely, backend=given.backend).backend.device
    path.write_text(page(device, sections), encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
