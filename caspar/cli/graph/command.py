"""`caspar graph`: its arguments; read a pose graph, solve it, report, write what was asked for."""

import argparse
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

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
    finite,
    recording_for,
    solve_report,
    write_json,
)
from caspar.cli.progress import progress_shown
from caspar.errors import OptionError
from caspar.io import PoseGraph, read_pose_graph, write_g2o, write_toro
from caspar.io.graphs.g2o import check_g2o
from caspar.io.graphs.toro import check_toro
from caspar.options import Precision
from caspar.progress import phase
from caspar.solver.result.quantities import count_text
from caspar.solver.result.report import terminal_report, text_report
from caspar.solver.result.result import SolveStatus
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


@dataclass(frozen=True)
class GraphRequest:
    """The arguments of `caspar graph`.

    Attributes:
        file: The graph.
        solve: Arguments of `caspar.pose_graph.solve` except the loss.
        loss: One of `GRAPH_LOSSES`; None: no loss.
        skips_unknown: Pass over lines that are not read.
        clips: Read information that is not positive semidefinite.
        out: Where to write the solved graph; None: nowhere.
        json: Where to write status, chi2 and iterations; None: nowhere.
        plot: Image of the cost and of the graph before and after; None: none.
        html: Interactive view of the graph; None: none.
        is_quiet: Print nothing but errors.
    """

    file: Path
    solve: Mapping[str, Any]
    loss: str | None
    skips_unknown: bool
    clips: bool
    out: Path | None
    json: Path | None
    plot: Path | None
    html: Path | None
    is_quiet: bool


def solve_graph(request: GraphRequest) -> ExitCode:
    """Solve a graph.

    Raises:
        CasparError: Wrong input, or a backend that is not usable.
        OSError: The graph cannot be read.
    """
    check_suffix("--out", request.out, (*G2O_SUFFIXES, *TORO_SUFFIXES))
    check_plot(request.plot)
    check_html(request.html)
    asked = {
        "--out": request.out,
        "--json": request.json,
        "--plot": request.plot,
        "--html": request.html,
    }
    by_option = {option: path for option, path in asked.items() if path is not None}
    check_targets(by_option.items(), [("the graph itself", request.file)])
    files = WrittenFiles()
    try:
        return _solve_and_write(request, files)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(files.when_interrupted()) from interrupt


def _solve_and_write(request: GraphRequest, files: WrittenFiles) -> ExitCode:
    messages = Console(stderr=True, highlight=False)
    with progress_shown(messages, request.is_quiet):
        with phase(f"reading {request.file}"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the report has the lines that were passed over
            graph = read_pose_graph(
                request.file,
                indefinite="clip" if request.clips else "error",
                unknown="skip" if request.skips_unknown else "error",
            )
        _check_format(request.out, graph)
        loss = None if request.loss is None else getattr(caspar.loss, GRAPH_LOSSES[request.loss])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            recording = recording_for(request.html, graph.num_edges * graph.kind.tangent_dim)
            summary = caspar.pose_graph.solve(
                graph, loss=loss, on_iteration=recording, **request.solve
            )
        # once each: a graph that is grown is solved in stages
        said = tuple(dict.fromkeys(str(one.message) for one in caught))
        writers = _writers(request, graph, summary, recording)
        if writers:
            with phase("writing results"):
                files.write(writers)
    try:
        if not request.is_quiet:
            _print_report(request, graph, summary, said, files.paths)
    except OSError as error:  # standard output is a file on a full disk
        files.failures.append((Path("the report"), str(error)))
    finally:  # a reader of the report that stops early (`head`) ends the program
        files.print_failures(messages)
    if summary.result.status is SolveStatus.INTERRUPTED:
        return ExitCode.INTERRUPTED
    if files.failures:
        return ExitCode.WRONG_INPUT
    return ExitCode.SUCCESS if summary.result.status.is_success else ExitCode.NOT_CONVERGED


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
    request: GraphRequest,
    graph: PoseGraph,
    summary: "caspar.pose_graph.Summary",
    recording: "caspar.Recording | None",
) -> dict[Path, Callable[[Path], None]]:
    writers: dict[Path, Callable[[Path], None]] = {}
    if request.out is not None:
        write = write_toro if _is_toro(request.out) else write_g2o
        writers[request.out] = lambda path: write(path, summary.graph)
    if request.json is not None:
        writers[request.json] = lambda path: write_json(path, json_report(graph, summary))
    if request.plot is not None:
        writers[request.plot] = lambda path: caspar.plot.plot_pose_graph(
            graph, summary.graph, summary.result, path
        )
    if request.html is not None:
        writers[request.html] = lambda path: caspar.view.write_html(
            _view(request, graph, summary, recording), path
        )
    return writers


def _view(
    request: GraphRequest,
    graph: PoseGraph,
    summary: "caspar.pose_graph.Summary",
    recording: "caspar.Recording | None",
) -> "caspar.scene.Scene":
    """The graph as the file has it, if the solve started elsewhere, then the solve."""
    before = {}
    if summary.start.choice is not caspar.pose_graph.Initialize.FILE:
        known = {"Pose": graph.poses, "Landmark": graph.landmarks.points}
        before["file"] = {name: known[name] for name in summary.result.values}
    return caspar.scene.scene_of_result(
        summary.result, recording, title=request.file.name, unit="sigmas", before=before
    )


def json_report(graph: PoseGraph, summary: "caspar.pose_graph.Summary") -> dict[str, Any]:
    """The summary without its graph, as what JSON can hold.

    Scripts rely on these keys; new ones may be added.
    """
    return {
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


def _print_report(
    request: GraphRequest,
    graph: PoseGraph,
    summary: "caspar.pose_graph.Summary",
    said: tuple[str, ...],
    written: list[Path],
) -> None:
    console = Console(highlight=False)
    sizes = [count_text(count, name[:-1]) for name, count in graph.counts().items()]
    lines = [f"{request.file}: {graph.kind.name}, {', '.join(sizes)}"]
    if graph.skipped:
        kinds = ", ".join(f"{count:,} {tag}" for tag, count in graph.skipped.items())
        lines.append(f"passed over: {kinds}")
    lines += summary.remarks
    lines += [f"warning: {one}" for one in said]
    lines.append(f"chi2 {summary.start.chi2:.8g} -> {summary.chi2:.8g}")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    console.print()
    if console.is_terminal:
        console.print(terminal_report(summary.result))
    else:
        console.print(text_report(summary.result), markup=False, soft_wrap=True)
    if written:
        names = ", ".join(map(str, written))
        console.print(f"\nwritten: {names}", markup=False, soft_wrap=True)


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
    graph.set_defaults(command=_run_graph)


def _run_graph(request: argparse.Namespace) -> ExitCode:
    options = {} if request.max_iterations is None else {"max_iterations": request.max_iterations}
    return solve_graph(
        GraphRequest(
            file=request.file,
            solve={
                "initialize": request.initialize,
                "fix_first": request.fix_first,
                "loss_scale": request.loss_scale,
                "backend": request.backend,
                "precision": request.precision,
                **options,
            },
            loss=request.loss,
            skips_unknown=request.unknown == "skip",
            clips=request.indefinite == "clip",
            out=request.out,
            json=request.json,
            plot=request.plot,
            html=request.html,
            is_quiet=request.quiet,
        )
    )
