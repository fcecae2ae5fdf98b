"""A sign of life on stderr: a live line on a terminal, occasional lines elsewhere.

Updated once per phase and Levenberg-Marquardt iteration; redrawn ten times a second at most.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from caspar.solver.result.quantities import cost_text
from caspar.solver.result.result import IterationRecord

LINE_INTERVAL_S = 5.0
"""Seconds between the lines of iterations where there is no terminal."""


class ProgressDisplay(Protocol):
    """Told what goes on."""

    def phase(self, what: str) -> None:
        """Something that may take a while begins."""

    def iteration(self, record: IterationRecord) -> None:
        """An iteration is done."""


@contextmanager
def progress_display(console: Console, is_quiet: bool) -> Iterator[ProgressDisplay]:
    """The display that suits a console; a live line is gone afterwards."""
    if is_quiet:
        yield _Silence()
    elif console.is_terminal:
        columns = (
            SpinnerColumn("line"),  # in ASCII, so that every terminal has it
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            yield _LiveLine(progress, progress.add_task("", total=None))
    else:
        yield _Lines(console)


class _Silence:
    """Shows nothing."""

    def phase(self, what: str) -> None:
        """Nothing to show."""

    def iteration(self, record: IterationRecord) -> None:
        """Nothing to show."""


class _LiveLine:
    """One line, redrawn."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def phase(self, what: str) -> None:
        self._progress.update(self._task, description=what)

    def iteration(self, record: IterationRecord) -> None:
        self._progress.update(self._task, description=_iteration_text(record))


class _Lines:
    """A line for each phase, and for an iteration every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_s = 0.0

    def phase(self, what: str) -> None:
        self._print(what)

    def iteration(self, record: IterationRecord) -> None:
        if time.monotonic() - self._last_s >= LINE_INTERVAL_S:
            self._print(_iteration_text(record))

    def _print(self, text: str) -> None:
        self._last_s = time.monotonic()
        self._console.print(text, markup=False, soft_wrap=True)


def _iteration_text(record: IterationRecord) -> str:
    step = "" if record.step_accepted else ", step rejected"
    return f"iteration {record.iteration}: cost {cost_text(record.cost)}{step}"
