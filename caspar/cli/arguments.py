"""Arguments that several commands have, and what they may be.

Nothing here loads a solver.
"""

import argparse
import math
from pathlib import Path
from typing import Final

from caspar.options import BackendChoice, Precision

EXIT_CODES: Final = """\
exit code:
  0    converged
  1    not converged; the report says why
  2    wrong usage or input, or a file could not be written
  130  interrupted; a message or the report says what is written
"""


def add_backend(command: argparse.ArgumentParser) -> None:
    """Add the option that says where to run."""
    command.add_argument(
        "--backend",
        choices=[choice.value for choice in BackendChoice],
        default=BackendChoice.AUTO.value,
        help="where to run (default: %(default)s, CUDA where a device answers)",
    )


def add_precision(command: argparse.ArgumentParser, default: Precision) -> None:
    """Floating types."""
    command.add_argument(
        "--precision",
        choices=[precision.value for precision in Precision],
        default=default.value,
        help="floating types; mixed has values, residuals and sums in float64, the rest in float32 "
        "(default: %(default)s)",
    )


def add_iterations(command: argparse.ArgumentParser) -> None:
    """The most iterations."""
    command.add_argument(
        "--max-iterations",
        type=positive_integer,
        metavar="N",
        help="Levenberg-Marquardt iterations, rejected steps included",
    )


def add_loss_scale(command: argparse.ArgumentParser, unit: str = "PIXELS") -> None:
    """The length from which on residuals count as large."""
    command.add_argument(
        "--loss-scale",
        type=positive_number,
        default=1.0,
        metavar=unit,
        help="residuals beyond it are taken for large (default: %(default)s)",
    )


def add_report(command: argparse.ArgumentParser, drawn: str = "the scene") -> None:
    """Add the options of what is written or printed besides."""
    command.add_argument(
        "--json", type=Path, metavar="PATH", help="write status, costs and iterations"
    )
    command.add_argument(
        "--plot", type=Path, metavar="PATH.png", help=f"draw the cost and {drawn} (or .svg, .pdf)"
    )
    command.add_argument(
        "--html",
        type=Path,
        metavar="PATH.html",
        help=f"write {drawn} before and after, to turn it in a browser",
    )
    add_quiet(command)


def add_quiet(command: argparse.ArgumentParser) -> None:
    """Add --quiet."""
    command.add_argument("--quiet", action="store_true", help="print nothing but errors")


def positive_number(text: str) -> float:
    """A finite number greater than 0, for argparse."""
    number = float(text) if _is_plain(text) else math.nan
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number greater than 0")
    return number


def positive_integer(text: str) -> int:
    """An integer of at least 1, for argparse."""
    try:
        number = int(text) if _is_plain(text) else 0
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return number


def _is_plain(text: str) -> bool:
    """Tell whether a number has no underscores and no digits of other scripts."""
    return text.isascii() and "_" not in text
