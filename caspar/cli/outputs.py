"""Run a solve of the command line: its files are checked before the long work, written after it.

Once per command; writing takes as long as the file formats do.

Progress is shown on standard error. A terminal shows a line that is gone afterwards, see
`caspar.progress`; elsewhere each step of the program prints a line, and an iteration every few
seconds.
"""

import argparse
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

import caspar
from caspar.cli.exit_code import ExitCode
from caspar.errors import MissingPackageError, OptionError
from caspar.io.replace import FileTransaction, Target, checked_target, find_target, write_file
from caspar.progress import Display, has_live_output, showing
from caspar.solver.result.report import terminal_report, text_report
from caspar.solver.result.result import SolveResult, SolveStatus

LINE_INTERVAL_S = 5.0
"""Seconds between the lines of iterations where there is no terminal."""


def progress_shown(console: Console, is_quiet: bool) -> AbstractContextManager[None]:
    """Show progress in the way that suits a console."""
    if is_quiet:
        return showing(False)
    return showing(None, None if has_live_output(console.file) else _Lines(console))


class _Lines(Display):
    """A line for each step, which stays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._depth = 0
        self._last_s = 0.0

    def begin(self, phase: str) -> None:
        self._depth += 1
        if self._depth == 1:
            self._print(phase)

    def end(self) -> None:
        self._depth -= 1

    def iteration(self, text: Callable[[], str]) -> None:
        if time.monotonic() - self._last_s >= LINE_INTERVAL_S:
            self._print(text())

    def _print(self, text: str) -> None:
        self._last_s = time.monotonic()
        self._console.print(text, markup=False, soft_wrap=True)


PLOT_SUFFIXES = (".png", ".svg", ".pdf")
HTML_SUFFIXES = (".html", ".htm")

MAX_RECORDED = 2_000_000
"""Residuals of a problem up to which a view shows the iterations: they are evaluated for each."""


@dataclass
class WrittenFiles:
    """The files that a command has written, and those it could not write, with the reason."""

    failures: list[tuple[Path, str]] = field(default_factory=list)
    _groups: list[tuple[FileTransaction, list[Path]]] = field(default_factory=list)
    _unfinished: Path | None = None

    @property
    def paths(self) -> list[Path]:
        """Outputs that are complete and in their places."""
        return [path for files, paths in self._groups if files.is_committed for path in paths]

    def write(self, writers: Mapping[Path, Callable[[Path], None]]) -> None:
        """Write outputs, each a file or a folder, that appear together when all are complete.

        An output that cannot be written stays as it was and does not cost the others. Devices such
        as /dev/stdout are written after the files. After Ctrl-C the message says what is written
        and what is not.
        """
        directly = [path for path in writers if _is_direct(path)]
        together = [path for path in writers if path not in directly]
        try:
            self._write_together({path: writers[path] for path in together})
            for self._unfinished in directly:
                self._write_together({self._unfinished: writers[self._unfinished]})
            self._unfinished = None
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(self.when_interrupted()) from interrupt

    def _write_together(self, writers: Mapping[Path, Callable[[Path], None]]) -> None:
        complete: list[Path] = []
        files = FileTransaction()
        self._groups.append((files, complete))

        def write_each() -> None:
            for path, writer in writers.items():
                try:
                    FileTransaction().run(partial(writer, path))
                except (OSError, ValueError, MemoryError) as error:
                    self.failures.append((path, str(error) or "out of memory"))
                else:
                    complete.append(path)

        try:
            files.run(write_each)
        except (OSError, MemoryError) as error:  # while files were replaced
            self.failures += [(path, str(error) or "out of memory") for path in complete]

    def print_failures(self, console: Console) -> None:
        """Say which files are not written, and why."""
        for path, wrong in self.failures:
            console.print(f"caspar: {path} is not written: {wrong}", markup=False, soft_wrap=True)

    def when_interrupted(self) -> str:
        """Say after Ctrl-C what is written."""
        written = self.paths
        parts = ["interrupted"]
        parts.append(
            f"written: {', '.join(map(str, written))}" if written else "nothing is written"
        )
        if self._unfinished is not None and self._unfinished not in written:
            parts.append(f"{self._unfinished} may have a part of the output")
        return "; ".join(parts)


def _is_direct(path: Path) -> bool:
    try:
        return find_target(path).is_direct
    except OSError:  # writing it will say what is wrong
        return False


def run_solve(
    solve: Callable[[WrittenFiles], tuple[SolveResult, list[str]]], is_quiet: bool
) -> ExitCode:
    """Solve with a view of the progress, print the report, and say which files are not written.

    `solve` writes the files, and returns the result and the first lines of the report.
    """
    messages = Console(stderr=True, highlight=False)
    files = WrittenFiles()
    try:
        with progress_shown(messages, is_quiet):
            result, lines = solve(files)
        try:
            if not is_quiet:
                _print_report(lines, result, files.paths)
        except OSError as error:  # standard output is a file on a full disk
            files.failures.append((Path("the report"), str(error)))
        finally:  # a reader of the report that stops early (`head`) ends the program
            files.print_failures(messages)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(files.when_interrupted()) from interrupt
    if result.status is SolveStatus.INTERRUPTED:
        return ExitCode.INTERRUPTED
    if files.failures:
        return ExitCode.WRONG_INPUT
    return ExitCode.SUCCESS if result.status.is_success else ExitCode.NOT_CONVERGED


def _print_report(lines: list[str], result: SolveResult, written: list[Path]) -> None:
    console = Console(highlight=False)
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    console.print()
    if console.is_terminal:
        console.print(terminal_report(result))
    else:
        console.print(text_report(result), markup=False, soft_wrap=True)
    if written:
        names = ", ".join(map(str, written))
        console.print(f"\nwritten: {names}", markup=False, soft_wrap=True)


def chosen_paths(request: argparse.Namespace, *options: str) -> dict[str, Path]:
    """The outputs that were asked for, by the option that did, such as `--json`."""
    paths = {f"--{option}": getattr(request, option) for option in options}
    return {option: path for option, path in paths.items() if path is not None}


def check_plot(path: Path | None) -> None:
    """Refuse an image that cannot be drawn; None: there will be none."""
    check_suffix("--plot", path, PLOT_SUFFIXES)
    if path is not None and find_spec("matplotlib") is None:
        raise MissingPackageError("--plot", "matplotlib", "plot")


def check_html(path: Path | None) -> None:
    """Refuse a view that cannot be drawn; None: there will be none."""
    check_suffix("--html", path, HTML_SUFFIXES)
    if path is not None and find_spec("plotly") is None:
        raise MissingPackageError("--html", "plotly", "view")


def recording_for(html: Path | None, num_residuals: int) -> "caspar.Recording | None":
    """Return a recording for a view; None: no view is wanted, or the problem is too large."""
    return caspar.Recording() if html is not None and num_residuals <= MAX_RECORDED else None


def check_targets(outputs: Iterable[tuple[str, Path]], inputs: Iterable[tuple[str, Path]]) -> None:
    """Refuse files that cannot be written, that are an input, or that are one file.

    Outputs come with the option that names them, inputs with what to call them; these may be
    missing.
    """
    taken: list[tuple[Target, str]] = []
    for name, path in inputs:
        with contextlib.suppress(OSError):  # reading it will say what is wrong
            taken.append((find_target(path), name))
    for option, path in outputs:
        try:
            target = checked_target(path)
        except OSError as error:
            raise OptionError(f"{option} {path}: {error.strerror}") from error
        for other, name in taken:
            if target.is_same_file(other):
                raise OptionError(f"{option} {path}: this is {name}; name another")
        taken.append((target, f"also the file of {option}"))


def solve_report(result: SolveResult) -> dict[str, Any]:
    """The result without its values, as what JSON can hold; scripts rely on these keys."""
    return {
        "backend": result.backend,
        "device": result.device,
        "precision": result.precision,
        "linear_solver": result.linear_solver,
        "status": result.status.name.lower(),
        "initial_cost": finite(result.initial_cost),
        "final_cost": finite(result.final_cost),
        "compile_time_s": finite(result.compile_time_s),
        "setup_time_s": finite(result.setup_time_s),
        "solve_time_s": finite(result.solve_time_s),
        "peak_memory_bytes": int(result.peak_memory_bytes),
        "iterations": [
            {
                "iteration": int(record.iteration),
                "cost": finite(record.cost),
                "candidate_cost": finite(record.candidate_cost),
                "damping": finite(record.damping),
                "gain_ratio": finite(record.gain_ratio),
                "linear_iterations": int(record.linear_iterations),
                "step_accepted": bool(record.step_accepted),
                "reason": record.reason,
                "time_s": finite(record.time_s),
            }
            for record in result.iterations
        ],
    }


def finite(number: float) -> float | None:
    """Return a number as JSON can hold it: None for infinity and NaN."""
    return float(number) if math.isfinite(number) else None


def write_json(path: Path, report: dict[str, Any]) -> None:
    """Write a report."""
    text = json.dumps(report, indent=2, allow_nan=False)
    write_file(path, f"{text}\n".encode())


def check_suffix(option: str, path: Path | None, allowed: tuple[str, ...]) -> None:
    """Refuse a path whose name does not end as its option needs."""
    if path is not None and not path.name.lower().endswith(allowed):
        raise OptionError(f"{option} {path}: the name must end in {', '.join(allowed)}")
