"""Show progress while a user waits: a line on a terminal or in a notebook, the logger `caspar`.

Input: phases that may take a while, iterations. Output: the logger gets all of them; the caller
chooses what else is shown, see `showing`. Errors in the display do not end the work.

Cost: some microseconds a phase; if a line may be shown, a thread while a phase lasts. Calls like
earlier ones have no phases. Drawing begins after a second.
"""

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Event, Lock, Thread
from typing import IO

LOGGER = logging.getLogger("caspar")
"""Phases and ends of solves are of level INFO, iterations and the starts of phases DEBUG."""
LOGGER.addHandler(logging.NullHandler())

FIRST_S = 1.0
"""Seconds after which a line appears."""

REDRAW_S = 0.1
"""Seconds between two forms of the line."""


class Display:
    """A display for phases and iterations of one thread; this one shows nothing."""

    def begin(self, phase: str) -> None:
        """A phase begins, perhaps within another one."""

    def end(self) -> None:
        """The innermost phase has ended."""

    def iteration(self, text: Callable[[], str]) -> None:
        """An iteration is done; its text is made if it is shown."""

    def hide(self) -> None:
        """Others want to print: no line is in their way."""

    def close(self) -> None:
        """Show nothing more, and remove the line."""


_DISPLAY: ContextVar[Display | None] = ContextVar("display", default=None)


@contextmanager
def phase(text: str) -> Iterator[None]:
    """Something that may take a while, such as `compiling 23 kernels`."""
    LOGGER.debug("%s", text)
    start = time.monotonic()
    with showing(None):
        display = _DISPLAY.get()
        try:
            if display is not None:
                display.begin(text)
            yield
        finally:
            if display is not None:
                display.end()
    LOGGER.info("%s: %.3f s", text, time.monotonic() - start)


def iteration(text: Callable[[], str]) -> None:
    """An iteration is done.

    Args:
        text: Makes its line.
    """
    if LOGGER.isEnabledFor(logging.DEBUG):
        LOGGER.debug("%s", text())
    display = _DISPLAY.get()
    if display is not None:
        display.iteration(text)


def log_end(status: str, num_iterations: int, initial_cost: float, final_cost: float) -> None:
    """A solve has ended."""
    LOGGER.info(
        "%s after %d iterations: cost %.6g -> %.6g",
        *(status, num_iterations, initial_cost, final_cost),
    )


def hide() -> None:
    """Take a line away before something else is printed; it comes back."""
    display = _DISPLAY.get()
    if display is not None:
        display.hide()


@contextmanager
def showing(verbose: bool | None, display: Display | None = None) -> Iterator[None]:
    """Show the progress of this thread in the body.

    Args:
        verbose: True: iterations are printed, and a line shows longer phases if there is a
            terminal or a notebook; False: nothing; None: the line alone. Within another `showing`
            None changes nothing.
        display: Shows progress instead.
    """
    outer = _DISPLAY.get()
    if verbose is None and display is None and outer is not None:
        yield
        return
    if verbose is False:
        shown = Display()
    else:
        shown = display if display is not None else _Line(prints=verbose is True)
    token = _DISPLAY.set(shown)
    try:
        yield
    finally:
        _DISPLAY.reset(token)
        shown.close()


def has_live_output(stream: IO[str] | None) -> bool:
    """Return whether a line on a stream can be drawn over: on a terminal and in a notebook."""
    with suppress(Exception):  # a stream of the user's may be anything
        if stream is not None:
            is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
            is_ipython = type(stream).__module__.startswith("ipykernel.")
            return is_terminal or (is_ipython and "IPython" in sys.modules)
    return False


class _Line(Display):
    """A line on standard error that is drawn over, and is gone in the end.

    A thread draws it while phases last; without one, whoever has done an iteration. `prints`:
    Iterations are printed to standard output as they come.
    """

    _one = Lock()
    """Held by the line that is on the screen: that of whichever thread has drawn first."""

    def __init__(self, *, prints: bool = False) -> None:
        self._prints = prints
        self._start_s = time.monotonic()
        self._texts: list[str] = []
        self._ended: Event | None = None
        self._drawing = Lock()
        self._is_shown = False
        self._width = 0
        self._last_s = -math.inf

    def begin(self, phase: str) -> None:
        self._texts.append(phase)
        if self._ended is None and has_live_output(sys.stderr):
            self._ended = Event()
            try:
                Thread(target=self._redraw, args=(self._ended,), daemon=True).start()
            except RuntimeError:  # no thread is to be had
                self._ended = None

    def end(self) -> None:
        del self._texts[-1:]  # none, if an interrupt came first
        if not self._texts:
            self._stop()

    def iteration(self, text: Callable[[], str]) -> None:
        if self._prints:
            self.hide()
            with suppress(OSError, ValueError):
                print(text(), flush=True)
            return
        now = time.monotonic()
        if now - self._start_s < FIRST_S or now - self._last_s < REDRAW_S:
            return
        if self._texts:  # what the phase is at
            self._texts[-1], self._last_s = text(), now
        elif has_live_output(sys.stderr):
            self._draw(text(), Event())

    def hide(self) -> None:
        with self._drawing:
            if self._width > 0:
                self._write("")
                self._put("\r")

    def close(self) -> None:
        self._stop()
        try:
            self.hide()
        finally:
            if self._is_shown:
                self._is_shown = False
                self._one.release()

    def _stop(self) -> None:
        if self._ended is not None:
            self._ended.set()
            self._ended = None

    def _redraw(self, ended: Event) -> None:
        wait_s = max(self._start_s + FIRST_S - time.monotonic(), 0.0)
        while not ended.wait(wait_s):
            wait_s = REDRAW_S
            texts = self._texts[-1:]
            if texts:
                self._draw(f"{texts[0]} ({time.monotonic() - self._start_s:.0f} s)", ended)

    def _draw(self, text: str, ended: Event) -> None:
        with self._drawing:
            if ended.is_set():
                return
            if not self._is_shown:
                self._is_shown = self._one.acquire(blocking=False)
            if self._is_shown:
                self._write(f"caspar: {text}"[: _columns() - 1])
                self._last_s = time.monotonic()

    def _write(self, line: str) -> None:
        self._put(f"\r{line.ljust(self._width)}")
        self._width = len(line)

    def _put(self, text: str) -> None:
        with suppress(OSError, ValueError, AttributeError):  # closed, broken, None
            sys.stderr.write(text)
            sys.stderr.flush()


def _columns() -> int:
    with suppress(OSError, ValueError, AttributeError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80  # 0: it does not know
    return 80
