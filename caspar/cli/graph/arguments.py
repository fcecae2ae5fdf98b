"""What can be asked of `caspar graph`."""

import argparse
from pathlib import Path

from caspar.cli.arguments import (
    EXIT_CODES,
    add_backend,
    add_iterations,
    add_loss_scale,
    add_precision,
    add_report,
)
from caspar.cli.exit_code import ExitCode
from caspar.cli.graph.command import GRAPH_LOSSES, INITIALIZE, GraphRequest, solve_graph
from caspar.options import Precision


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
