"""Show the progress of `caspar bal` on standard error.

A terminal shows a line that is gone afterwards, see `caspar.progress`; elsewhere each step of the
program prints a line, and an iteration every few seconds.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from rich.console import Console

from caspar.progress import has_live_output, showing

LINE_INTERVAL_S = 5.0
"""Seconds between the lines of iterations where there is no terminal."""


def progress_shown(console: Console, is_quiet: bool) -> AbstractContextManager[None]:
    """Show progress in the way that suits a console."""
    if is_quiet:
        return showing(False)
    return showing(None, None if has_live_output(console.file) else _Lines(console))


class _Lines:
    """A line for each outer phase, and for an iteration every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._depth = 0
        self._last_s = 0.0

    def begin(self, phase: str) -> None:
        """A line, unless it is part of another phase."""
        self._depth += 1
        if self._depth == 1:
            self._print(phase)

    def end(self) -> None:
        """End the phase, and show nothing."""
        self._depth -= 1

    def iteration(self, text: Callable[[], str]) -> None:
        """A line, if the last one was seconds ago."""
        if time.monotonic() - self._last_s >= LINE_INTERVAL_S:
            self._print(text())

    def hide(self) -> None:
        """Do nothing: lines stay."""

    def close(self) -> None:
        """Do nothing: lines stay."""

    def _print(self, text: str) -> None:
        self._last_s = time.monotonic()
        self._console.print(text, markup=False, soft_wrap=True)
