"""Arguments in, exit code out.

Errors meant for the user become one message on stderr; a traceback is always a defect.
"""

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from caspar.cli.arguments import (
    EXIT_CODES,
    add_backend,
    add_iterations,
    add_loss_scale,
    add_precision,
    add_report,
    positive_integer,
    positive_number,
)
from caspar.cli.bal import FIXED, LOSSES, BalRequest, solve_bal
from caspar.cli.cache import clear_caches, show_caches
from caspar.cli.colmap import (
    COLMAP_FLAGS,
    COLMAP_FORMATS,
    COLMAP_GAUGES,
    COLMAP_LOSSES,
    ColmapRequest,
    add_map,
    solve_colmap,
)
from caspar.cli.doctor import examine
from caspar.cli.exit_code import ExitCode
from caspar.cli.graph.command import add_graph
from caspar.cli.inspect import InspectRequest, inspect_kernels
from caspar.cli.outputs import Outputs
from caspar.errors import CasparError, CompileError, VerificationError
from caspar.options import Precision
from caspar.runtime.nvidia.nvrtc import DEFAULT_ARCHITECTURE
from caspar.version import __version__

_Command = Callable[[argparse.Namespace], ExitCode]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Without the program's name; None: those of the process.

    Returns:
        The exit code. Wrong usage raises SystemExit(2), `--help` and `--version` SystemExit(0), a
        reader of the output that stops early (`head`) SystemExit(1), as argparse and rich do.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A file's name that the terminal cannot show must not end a command that wrote the file.
        sys.stdout.reconfigure(errors="backslashreplace")
    request = _parser().parse_args(arguments)
    command: _Command = request.command
    try:
        return int(command(request))
    except KeyboardInterrupt as interrupt:
        _say(str(interrupt) or "interrupted; nothing is written")
        return int(ExitCode.INTERRUPTED)
    except (CompileError, VerificationError) as error:
        _say(f"defect: {error}")
        return int(ExitCode.DEFECT)
    except (CasparError, OSError, MemoryError) as error:
        _say(_message(error))
        return int(ExitCode.WRONG_INPUT)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="caspar", description="Nonlinear least squares on the GPU from symbolic residuals."
    )
    parser.add_argument("--version", action="version", version=f"caspar {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_bal(commands)
    _add_colmap(commands)
    add_map(commands)
    add_graph(commands)
    _add_inspect(commands)
    doctor = commands.add_parser(
        "doctor",
        help="say what this machine has and what is missing",
        description="Say what this machine has, which backends work, and what to install.",
        epilog="exit code: 0 when at least one backend works, else 1",
    )
    doctor.set_defaults(command=lambda _: examine(Console(highlight=False)))
    cache = commands.add_parser("cache", help="show or delete what is kept between runs")
    actions = cache.add_subparsers(title="actions", required=True, metavar="ACTION")
    info = actions.add_parser("info", help="say where the cache is and how large")
    info.set_defaults(command=lambda _: show_caches(Console(highlight=False)))
    clear = actions.add_parser("clear", help="delete the cache; the next solve compiles anew")
    clear.set_defaults(command=lambda _: clear_caches(Console(highlight=False)))
    return parser


def _add_bal(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    bal = commands.add_parser(
        "bal",
        help="solve a bundle adjustment problem (BAL text file)",
        description="Solve a bundle adjustment problem: all cameras (pose, focal length, two "
        "distortion coefficients) and all points move, but for what --fixed names.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bal.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="problem, plain, .bz2 or .gz; or a .out file of Bundler",
    )
    add_backend(bal)
    add_precision(bal, Precision.MIXED)
    add_iterations(bal)
    bal.add_argument(
        "--loss", choices=list(LOSSES), help="make wrong observations count less (default: none)"
    )
    add_loss_scale(bal)
    bal.add_argument(
        "--fixed",
        action="append",
        choices=list(FIXED),
        default=[],
        help="hold calibrations, poses, the first pose or points as they are; may be repeated",
    )
    bal.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="write the solved problem: .txt, .txt.bz2, .txt.gz (BAL) or .ply (point cloud)",
    )
    add_report(bal)
    bal.set_defaults(command=_run_bal)


def _run_bal(request: argparse.Namespace) -> ExitCode:
    return solve_bal(
        BalRequest(
            file=request.file,
            backend=request.backend,
            precision=request.precision,
            max_iterations=request.max_iterations,
            loss=request.loss,
            loss_scale=request.loss_scale,
            fixed=request.fixed,
            outputs=Outputs(
                json=request.json,
                problem=request.out,
                plot=request.plot,
                html=request.html,
            ),
            is_quiet=request.quiet,
        )
    )


def _add_colmap(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    colmap = commands.add_parser(
        "colmap",
        help="adjust a COLMAP model (a folder of binary or text files)",
        description="Bundle adjustment of a COLMAP model, with the defaults of COLMAP's "
        "bundle_adjuster: any of its camera models, rigs, shared and single intrinsics.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    colmap.add_argument("model", type=Path, metavar="IN", help="folder of the model")
    colmap.add_argument("out", type=Path, metavar="OUT", help="folder for the adjusted model")
    for name, what in COLMAP_FLAGS.items():
        flag = f"--{name.replace('_', '-')}"
        colmap.add_argument(flag, action=argparse.BooleanOptionalAction, help=what)
    colmap.add_argument(
        "--min-track-length",
        type=positive_integer,
        default=2,
        metavar="N",
        help="points of fewer observations take no part (default: %(default)s)",
    )
    colmap.add_argument(
        "--gauge",
        choices=COLMAP_GAUGES,
        default=COLMAP_GAUGES[0],
        help="what keeps the model from moving as a whole (default: %(default)s)",
    )
    known = colmap.add_mutually_exclusive_group()
    what = "of cameras that hold the model; lines: image name, "
    known.add_argument("--positions", type=Path, metavar="PATH", help=f"positions {what}x, y, z")
    known.add_argument(
        "--gps", type=Path, metavar="PATH", help=f"the same {what}latitude, longitude, altitude"
    )
    colmap.add_argument(
        "--position-stddev",
        type=positive_number,
        default=1.0,
        metavar="LENGTH",
        help="standard deviation of each coordinate of a position (default: %(default)s)",
    )
    colmap.add_argument(
        "--loss",
        choices=COLMAP_LOSSES,
        default=COLMAP_LOSSES[0],
        help="make wrong observations count less (default: %(default)s)",
    )
    add_loss_scale(colmap)
    add_backend(colmap)
    add_precision(colmap, Precision.FLOAT64)
    add_iterations(colmap)
    colmap.add_argument(
        "--format",
        choices=COLMAP_FORMATS,
        default=COLMAP_FORMATS[0],
        help="files that are written (default: %(default)s)",
    )
    add_report(colmap)
    colmap.set_defaults(command=_run_colmap)


def _run_colmap(request: argparse.Namespace) -> ExitCode:
    flags = {name: getattr(request, name) for name in COLMAP_FLAGS}
    options = {
        **{name: value for name, value in flags.items() if value is not None},
        "min_track_length": request.min_track_length,
        "loss_function_type": request.loss,
        "loss_function_scale": request.loss_scale,
        "backend": request.backend,
        "precision": request.precision,
    }
    if request.max_iterations is not None:
        options["max_num_iterations"] = request.max_iterations
    return solve_colmap(
        ColmapRequest(
            folder=request.model,
            output=request.out,
            format=request.format,
            options=options,
            gauge=request.gauge,
            positions=request.positions or request.gps,
            is_gps=request.gps is not None,
            position_stddev=request.position_stddev,
            json=request.json,
            plot=request.plot,
            html=request.html,
            is_quiet=request.quiet,
        )
    )


def _add_inspect(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "inspect",
        help="show what a factor or kernel is compiled to, at any stage; no GPU is needed",
        description="Show what a factor or kernel is compiled to, at any stage of the compiler. "
        "No GPU is needed: stages from ptx on need the extra `inspect`.",
        epilog="exit code: 0 when it is shown, 2 for wrong usage or something missing",
    )
    command.add_argument(
        "function",
        metavar="FUNCTION",
        help="module:function or path/to/file.py:function, for example "
        "caspar.bundle_adjustment:snavely",
    )
    command.add_argument(
        "--stage",
        metavar="STAGE",
        help="trace, graph, the name of a graph pass, schedule, program, cuda, cpu, ptx, sass or "
        "resources (default: resources: registers, spills, instructions)",
    )
    command.add_argument(
        "--kernel",
        metavar="NAME",
        help="of a factor score, linearize, product, or a kernel of a node type such as "
        "Cam__retract (default: all for resources, else linearize)",
    )
    command.add_argument(
        "--target", choices=["cuda", "cpu"], help="what to compile for (default: cuda)"
    )
    add_precision(command, Precision.MIXED)
    command.add_argument(
        "--arch",
        default=DEFAULT_ARCHITECTURE,
        metavar="SM",
        help="architecture of machine code (default: %(default)s)",
    )
    _add_inspect_output(command)
    command.set_defaults(command=_run_inspect)


def _add_inspect_output(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--svg", type=Path, metavar="PATH", help="draw the stage: those from graph to program"
    )
    command.add_argument(
        "--after", type=int, metavar="N", help="draw the schedule after N steps (default: all)"
    )
    command.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="NAME",
        help="draw only what this output of the kernel needs; may be given several times",
    )
    command.add_argument(
        "--diff",
        action="store_true",
        help="show what the pass named by --stage changed in the graph (default: every pass)",
    )
    command.add_argument(
        "--complete",
        action="store_true",
        help="show the source with the functions that all kernels have in common",
    )
    command.add_argument("--out", type=Path, metavar="PATH", help="write the text to a file")


def _run_inspect(request: argparse.Namespace) -> ExitCode:
    return inspect_kernels(
        InspectRequest(
            function=request.function,
            stage=request.stage,
            kernel=request.kernel,
            target=request.target,
            precision=request.precision,
            arch=request.arch,
            svg=request.svg,
            after=request.after,
            outputs=tuple(request.output),
            diff=request.diff,
            complete=request.complete,
            out=request.out,
        )
    )


def _message(error: Exception) -> str:
    """Return the message for an error of the input or the machine."""
    if isinstance(error, CasparError) or not isinstance(error, OSError):
        return str(error) or "out of memory"
    if error.filename is not None and error.strerror is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def _say(message: str) -> None:
    print(f"caspar: {message}", file=sys.stderr)
