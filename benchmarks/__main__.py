"""`python -m benchmarks`: measure what this machine can, write tables, a plot and JSON.

A run may be cut into parts (`--problems`, `--parts`), each with a `--name` of its own in one
folder; `--merge` makes one page of them.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import caspar_side, growth, pose_graphs, problems, reference_side
from benchmarks.caspar_side import GRAPH_VARIANTS, VARIANTS, Budget, Problem, Variant, released
from benchmarks.figure import draw
from benchmarks.measurement import Growth, Measurement
from benchmarks.new_process import CASES, Startup, measure_startup
from benchmarks.page import markdown
from benchmarks.peers.launch import PEERS, Peer, PeerError, PeerHost, peer_version
from benchmarks.peers.launch import measure as measure_peer
from benchmarks.prepare import Preparation
from benchmarks.problems import Bundle
from benchmarks.reference.build import ReferenceLibrary
from benchmarks.report import Report, environment, merged, read_json, write_json
from caspar.options import BackendChoice, BackendName
from caspar.runtime.nvidia.probe import cuda_problem
from caspar.runtime.select import select_backend

PARTS = ("bundles", "graphs", "growth", "startup")
CPU_MAX_OBSERVATIONS = 1_000_000
"""Of the problems that are measured on a CPU unless they are named."""


@dataclass
class Run:
    """One run of the benchmarks, and what it has found so far."""

    arguments: argparse.Namespace
    backend: BackendName
    device: str
    library: ReferenceLibrary | None = None
    versions: dict[str, str] = field(default_factory=dict)
    known: dict[str, float] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)
    startups: list[Startup] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def report(self) -> Report:
        """What has been measured."""
        return Report(
            environment={**environment(self.device), **self.versions},
            known=self.known,
            measurements=tuple(self.measurements),
            growths=tuple(self.growths),
            startups=tuple(self.startups),
            missing=tuple(self.missing),
        )

    def save(self) -> None:
        """Write what has been measured: a run that is cut short loses nothing."""
        path = self.arguments.folder / f"{self.arguments.name}.json"
        write_json(self.report(), path)

    def keep(self, measurement: Measurement) -> None:
        """Add a measurement and show it."""
        self.measurements.append(measurement)
        self.save()
        print(
            f"{measurement.problem}: {measurement.solver}: {measurement.final_cost:.8g} "
            f"in {1e3 * measurement.solve_s:.2f} ms, {measurement.status}",
            flush=True,
        )

    def lack(self, line: str) -> None:
        """Name what could not be measured."""
        self.missing.append(line)
        print(f"not measured: {line}", flush=True)


def main() -> None:
    """Measure, or merge."""
    arguments = _arguments()
    if arguments.merge:
        _merge(arguments.folder)
        return
    backend = select_backend(BackendChoice(arguments.backend))
    if arguments.name is None:
        arguments.name = f"bundle_adjustment_{backend.name}"
    name: BackendName = "cuda" if backend.name == "cuda" else "cpu"
    run = Run(arguments, name, backend.device)
    names = _problem_names(run) if "bundles" in arguments.parts else []
    wanted = [*names]
    if "growth" in arguments.parts:
        wanted += [f"growth {millions:g}" for millions in arguments.millions]
    with tempfile.TemporaryDirectory() as scratch:
        made = Preparation(wanted, arguments.made or Path(scratch) / "made")
        _build_reference(run)
        made.wait()
        if "startup" in arguments.parts:
            for case in CASES:
                run.startups += measure_startup(case, run.backend, "auto")
        if "graphs" in arguments.parts:
            _graphs(run)
        if "bundles" in arguments.parts:
            _bundles(run, made, names, Path(scratch))
        if "growth" in arguments.parts:
            _growth(run, made)
    run.save()
    _write_page(run.report(), arguments.folder, arguments.name)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--folder", type=Path, default=Path("out"), help="for JSON, page and plot")
    add("--name", default=None, help="of the files; by default bundle_adjustment_BACKEND")
    add("--merge", action="store_true", help="make one page of all JSON files in the folder")
    add("--backend", choices=("auto", "cuda", "cpu"), default="auto")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add("--problems", nargs="+", choices=problems.names(), default=None, metavar="NAME")
    add("--graphs", nargs="+", choices=tuple(pose_graphs.OPTIMA), default=None, metavar="NAME")
    add("--data", nargs="+", type=Path, default=[], help="more folders with g2o files")
    solvers = dict.fromkeys(one.name for one in (*VARIANTS, *GRAPH_VARIANTS))
    add("--solvers", nargs="*", choices=tuple(solvers), default=None)
    add("--peers", nargs="*", choices=[one.name for one in PEERS], default=None)
    add("--peers-python", type=Path, default=Path(sys.executable), help="interpreter of the peers")
    add("--no-reference", action="store_true")
    add("--reference-folder", type=Path, default=None, help="where it is built, and kept")
    add("--made", type=Path, default=None, help="where synthetic problems are kept")
    add("--millions", nargs="+", type=float, default=list(problems.GROWTH_MILLIONS))
    add("--runs", type=int, default=5, help="solves of which the median is taken, at most")
    add("--seconds", type=float, default=20.0, help="of solves, for each solver and problem")
    return parser.parse_args()


def _problem_names(run: Run) -> list[str]:
    if run.arguments.problems is not None:
        named: list[str] = run.arguments.problems
        return named
    if run.backend == "cuda":
        return problems.names()
    small = [
        name for name in problems.names() if problems.num_observations(name) <= CPU_MAX_OBSERVATIONS
    ]
    run.lack(f"problems of more than {CPU_MAX_OBSERVATIONS:,} observations: on a CPU only by name")
    return small


def _build_reference(run: Run) -> None:
    if run.arguments.no_reference:
        run.lack("the reference: left out")
        return
    if run.backend != "cuda":
        run.lack(f"the reference: {cuda_problem() or 'it has no CPU backend'}")
        return
    import cupy

    architecture = str(cupy.cuda.Device().compute_capability)
    try:
        run.library = reference_side.build_reference(
            run.arguments.reference_folder, architecture=architecture
        )
    except subprocess.CalledProcessError as error:
        run.lack(f"the reference could not be built: {error}: {error.stderr[-500:]}")
    except (ImportError, OSError, RuntimeError) as error:
        run.lack(f"the reference could not be built: {error}")


def _chosen(run: Run, variants: Sequence[Variant]) -> list[Variant]:
    names = run.arguments.solvers
    return [variant for variant in variants if names is None or variant.name in names]


def _own(run: Run, variant: Variant, problem: Problem) -> None:
    if not variant.takes(problem):
        run.lack(f"caspar {variant.name} on {problem.name}: too large for it")
        return
    budget = Budget(run.arguments.runs, run.arguments.seconds)
    try:
        with released(run.backend):
            run.keep(caspar_side.measure(variant, problem, run.backend, budget))
    except Exception as error:  # whatever it is, the others are still to be measured
        first = str(error).splitlines()[0] if str(error) else ""
        run.lack(f"caspar {variant.name} on {problem.name}: {type(error).__name__}: {first}")


def _bundles(run: Run, made: Preparation, names: Sequence[str], scratch: Path) -> None:
    host = PeerHost(run.arguments.peers_python, run.arguments.seconds, run.arguments.runs)
    peers = list(_usable_peers(run, host))
    for name in names:
        problem = made.take(name)
        if problem.optimum is not None:
            run.known[name] = problem.optimum
        if run.library is not None:
            _reference(run, run.library, problem)
        for variant in _chosen(run, VARIANTS):
            _own(run, variant, problem)
        for peer in peers:
            _peer(run, peer, problem, host, scratch)


def _reference(run: Run, library: ReferenceLibrary, problem: Bundle) -> None:
    budget = Budget(run.arguments.runs, run.arguments.seconds)
    try:
        for measurement in reference_side.measure_all(library, problem, budget):
            run.keep(measurement)
    except (MemoryError, RuntimeError) as error:
        run.lack(f"the reference on {problem.name}: {error}")


def _usable_peers(run: Run, host: PeerHost) -> Iterator[Peer]:
    for peer in PEERS:
        if run.arguments.peers is not None and peer.name not in run.arguments.peers:
            run.lack(f"{peer.name}: left out")
            continue
        try:
            run.versions[peer.name] = peer_version(peer, host)
        except PeerError as error:
            run.lack(f"{peer.name}: {error}")
            continue
        yield peer


def _peer(run: Run, peer: Peer, problem: Bundle, host: PeerHost, scratch: Path) -> None:
    if problem.num_observations > peer.max_observations:
        run.lack(f"{peer.name} on {problem.name}: takes minutes, left out")
        return
    for setting in peer.settings:
        try:
            run.keep(measure_peer(peer, setting, problem, host, scratch))
        except PeerError as error:
            run.lack(f"{peer.name} {setting} on {problem.name}: {error}")


def _graphs(run: Run) -> None:
    folders = [pose_graphs.DATA, *run.arguments.data]
    for name in run.arguments.graphs or pose_graphs.OPTIMA:
        try:
            problem = pose_graphs.read(name, folders)
        except FileNotFoundError as error:
            run.lack(str(error))
            continue
        run.known[name] = pose_graphs.OPTIMA[name]
        for variant in _chosen(run, GRAPH_VARIANTS):
            _own(run, variant, problem)


def _growth(run: Run, made: Preparation) -> None:
    names = tuple(one.name for one in growth.VARIANTS)
    chosen = run.arguments.solvers
    wanted = names if chosen is None else tuple(name for name in names if name in chosen)
    for millions in run.arguments.millions:
        problem = made.take(f"growth {millions:g}")
        try:
            with released(run.backend):
                for one in growth.measure(problem, run.backend, run.library, wanted):
                    run.growths.append(one)
                    run.save()
                    print(f"growth {millions:g} M: {one}", flush=True)
        except Exception as error:  # whatever it is, the others are still to be measured
            run.lack(f"growth {millions:g}: {type(error).__name__}: {error}")


def _write_page(report: Report, folder: Path, name: str) -> None:
    figure = None
    if len(report.measurements) > 0:
        figure = f"{name}.png"
        draw(report, folder / figure)
    (folder / f"{name}.md").write_text(markdown(report, figure), encoding="utf-8")


def _merge(folder: Path) -> None:
    """One report for each device of the JSON files in the folder, in the order of their dates."""
    paths = sorted(folder.glob("*.json"), key=lambda path: (path.stat().st_mtime, path.name))
    reports = [read_json(path) for path in paths if not path.name.startswith("merged")]
    for number, device in enumerate(sorted({one.environment["device"] for one in reports})):
        report = merged([one for one in reports if one.environment["device"] == device])
        name = "merged" if number == 0 else f"merged_{number}"
        write_json(report, folder / f"{name}.json")
        _write_page(report, folder, name)
        print(f"{device}: {folder / name}.md")


if __name__ == "__main__":
    main()
