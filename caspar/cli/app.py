"""Arguments in, exit code out.

Errors meant for the user become one message on stderr; a traceback is always a defect.
"""

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from caspar.cli.bal import add_bal
from caspar.cli.colmap import add_colmap, add_map
from caspar.cli.doctor import clear_caches, examine, show_caches
from caspar.cli.exit_code import ExitCode
from caspar.cli.graph import add_graph
from caspar.cli.inspect import add_inspect
from caspar.errors import CasparError, CompileError, VerificationError
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
    add_bal(commands)
    add_colmap(commands)
    add_map(commands)
    add_graph(commands)
    add_inspect(commands)
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


def _message(error: Exception) -> str:
    if isinstance(error, CasparError) or not isinstance(error, OSError):
        return str(error) or "out of memory"
    if error.filename is not None and error.strerror is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def _say(message: str) -> None:
    print(f"caspar: {message}", file=sys.stderr)
