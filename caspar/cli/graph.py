"""`caspar graph`: its arguments; read a pose graph, solve it, report, write what was asked for."""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import caspar
from caspar.cli.arguments import (
    EXIT_CODES,
    add_backend,
    add_iterations,
    add_loss_scale,
    add_precision,
    add_report,
)
from caspar.cli.exit_code import ExitCode
from caspar.cli.outputs import (
    WrittenFiles,
    check_html,
    check_plot,
    check_suffix,
    check_targets,
    chosen_paths,
    finite,
    recording_for,
    run_solve,
    solve_report,
    write_json,
)
from caspar.errors import OptionError
from caspar.io import PoseGraph, read_pose_graph, write_g2o, write_toro
from caspar.io.graphs.g2o import check_g2o
from caspar.io.graphs.toro import check_toro
from caspar.options import Precision
from caspar.progress import phase
from caspar.solver.result.quantities import count_text
from caspar.solver.result.result import SolveResult
from caspar.version import __version__

GRAPH_LOSSES = {
    "huber": "Huber",
    "soft_l1": "SoftL1",
    "cauchy": "Cauchy",
    "geman_mcclure": "GemanMcClure",
    "tukey": "Tukey",
}
"""Losses by what users call them: names in `caspar.loss`."""

INITIALIZE = ("auto", "file", "tree", "chordal", "grow")
"""Values of `caspar.pose_graph.Initialize`, the default first; named here so that --help loads no
solver."""

G2O_SUFFIXES = (".g2o", ".g2o.bz2", ".g2o.gz")
TORO_SUFFIXES = (".graph", ".graph.bz2", ".graph.gz", ".toro", ".toro.bz2", ".toro.gz")


def add_graph(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to those of the program."""
    graph = commands.add_parser(
        "graph",
        help="solve a pose graph (g2o, TORO, or GTSAM's text form), with landmarks and priors",
        description="Solve a pose graph in the plane or in space: a file of g2o, of TORO, or of "
        "GTSAM's landmark examples. If nothing in the file says where the graph is, its first pose "
        "is held.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    graph.add_argument("file", type=Path, metavar="FILE", help="graph, plain, .bz2 or .gz")
    graph.add_argument(
        "--initialize",
        choices=INITIALIZE,
        default=INITIALIZE[0],
        help="where to start: at the poses of the file, along a tree of edges, at the chordal "
        "estimate, or by growing, which solves more and more poses (default: %(default)s, the file "
        "unless the estimate is far better; scattered landmarks are grown)",
    )
    graph.add_argument(
        "--fix-first",
        action=argparse.BooleanOptionalAction,
        help="hold the first pose of each connected part (default: where nothing else holds it)",
    )
    graph.add_argument(
        "--loss", choices=list(GRAPH_LOSSES), help="make wrong edges count less (default: none)"
    )
    add_loss_scale(graph, unit="SIGMAS")
    graph.add_argument(
        "--unknown",
        choices=("error", "skip"),
        default="error",
        help="what to do with kinds of lines that are not read (default: %(default)s)",
    )
    graph.add_argument(
        "--indefinite",
        choices=("error", "clip"),
        default="error",
        help="what to do with information that is not positive semidefinite (default: %(default)s)",
    )
    add_backend(graph)
    add_precision(graph, Precision.FLOAT64)
    add_iterations(graph)
    graph.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="write the solved graph: .g2o, or .graph or .toro (TORO), packed as .bz2 or .gz",
    )
    add_report(graph, drawn="the graph")
    graph.set_defaults(command=solve_graph)


def solve_graph(request: argparse.Namespace) -> ExitCode:
    """Solve a graph."""
    check_suffix("--out", request.out, (*G2O_SUFFIXES, *TORO_SUFFIXES))
    check_plot(request.plot)
    check_html(request.html)
    paths = chosen_paths(request, "out", "json", "plot", "html")
    check_targets(paths.items(), [("the graph itself", request.file)])

    def solve(files: WrittenFiles) -> tuple[SolveResult, list[str]]:
        with phase(f"reading {request.file}"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the report has the lines that were passed over
            graph = read_pose_graph(
                request.file, indefinite=request.indefinite, unknown=request.unknown
            )
        _check_format(request.out, graph)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            recording = recording_for(request.html, graph.num_edges * graph.kind.tangent_dim)
            summary = _solve(request, graph, recording)
        if paths:
            with phase("writing results"):
                writers = _writers(request, graph, summary, recording)
                files.write({path: writers[option] for option, path in paths.items()})
        sizes = [count_text(count, name[:-1]) for name, count in graph.counts().items()]
        lines = [f"{request.file}: {graph.kind.name}, {', '.join(sizes)}"]
        if graph.skipped:
            kinds = ", ".join(f"{count:,} {tag}" for tag, count in graph.skipped.items())
            lines.append(f"passed over: {kinds}")
        lines += summary.remarks
        # once each: a graph that is grown is solved in stages
        lines += dict.fromkeys(f"warning: {one.message}" for one in caught)
        lines.append(f"chi2 {summary.start.chi2:.8g} -> {summary.chi2:.8g}")
        return summary.result, lines

    return run_solve(solve, request.quiet)


def _solve(
    request: argparse.Namespace, graph: PoseGraph, recording: "caspar.Recording | None"
) -> "caspar.pose_graph.Summary":
    options = {} if request.max_iterations is None else {"max_iterations": request.max_iterations}
    return caspar.pose_graph.solve(
        graph,
        initialize=request.initialize,
        fix_first=request.fix_first,
        loss=None if request.loss is None else getattr(caspar.loss, GRAPH_LOSSES[request.loss]),
        loss_scale=request.loss_scale,
        backend=request.backend,
        precision=request.precision,
        on_iteration=recording,
        **options,
    )


def _check_format(out: Path | None, graph: PoseGraph) -> None:
    """Find out before the solve whether the file to be written can hold the graph."""
    if out is not None:
        try:
            (check_toro if _is_toro(out) else check_g2o)(graph)
        except ValueError as error:
            raise OptionError(f"--out {out}: {error}") from error


def _is_toro(path: Path) -> bool:
    return path.name.lower().endswith(TORO_SUFFIXES)


def _writers(
    request: argparse.Namespace,
    graph: PoseGraph,
    summary: "caspar.pose_graph.Summary",
    recording: "caspar.Recording | None",
) -> dict[str, Callable[[Path], None]]:
    report = {
        "version": __version__,
        "problem": {name.replace(" ", "_"): count for name, count in graph.counts().items()},
        "kind": graph.kind.name,
        "skipped": dict(graph.skipped),
        "start": summary.start.choice.value,
        "held_first": list(summary.held_first),
        "file_chi2": finite(summary.start.file_chi2),
        "start_chi2": finite(summary.start.chi2),
        "final_chi2": finite(summary.chi2),
        "final_chi2_by_factor": {
            name: finite(value) for name, value in summary.chi2_by_kind.items()
        },
        **solve_report(summary.result),
    }

    def write_graph(path: Path) -> None:
        (write_toro if _is_toro(path) else write_g2o)(path, summary.graph)

    return {
        "--out": write_graph,
        "--json": lambda path: write_json(path, report),
        "--plot": lambda path: caspar.plot.plot_pose_graph(
            graph, summary.graph, summary.result, path
        ),
        "--html": lambda path: caspar.view.write_html(
            _view(request, graph, summary, recording), path
        ),
    }


def _view(
    request: argparse.Namespace,
    graph: PoseGraph,
    summary: "caspar.pose_graph.Summary",
    recording: "caspar.Recording | None",
) -> "caspar.scene.Scene":
    before = {}
    if summary.start.choice is not caspar.pose_graph.Initialize.FILE:
        known = {"Pose": graph.poses, "Landmark": graph.landmarks.points}
        before["file"] = {name: known[name] for name in summary.result.values}
    return caspar.scene.scene_of_result(
        summary.result, recording, title=request.file.name, unit="sigmas", before=before
    )
