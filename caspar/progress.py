"""What goes on while a user waits: a line on a terminal or in a notebook, and the logger `caspar`.

Input: phases that may take a while, iterations. Output: the logger gets all of them; what else is
shown is up to whoever called, see `showing`. What goes wrong while something is shown ends nothing.

Cost: some microseconds a phase; the thread that redraws a line is started by the first phase of a
call where a line may be shown, and drawing begins after a second.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Event, Lock, Thread
from typing import IO, Protocol

LOGGER = logging.getLogger("caspar")
"""Phases and ends of solves are of level INFO, iterations and the starts of phases DEBUG."""
LOGGER.addHandler(logging.NullHandler())

FIRST_S = 1.0
"""Seconds after which a line appears."""

REDRAW_S = 0.1
"""Seconds between two forms of the line."""


class Display(Protocol):
    """What shows phases and iterations of one thread."""

    def begin(self, phase: str) -> None:
        """A phase begins, perhaps within another one."""

    def end(self) -> None:
        """The innermost phase has ended."""

    def iteration(self, text: Callable[[], str]) -> None:
        """An iteration is done; its text is made if it is shown."""

    def close(self) -> None:
        """Nothing more is shown: a line is gone."""


_DISPLAY: ContextVar[Display | None] = ContextVar("display", default=None)


@contextmanager
def phase(text: str) -> Iterator[None]:
    """Something that may take a while.

    Args:
        text: What it is, such as `compiling 23 kernels`.
    """
    LOGGER.debug("%s", text)
    start = time.monotonic()
    with showing(None):
        display = _DISPLAY.get()
        if display is not None:
            display.begin(text)
        try:
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


@contextmanager
def showing(verbose: bool | None, display: Display | None = None) -> Iterator[None]:
    """What is shown of what this thread does meanwhile.

    Args:
        verbose: True: iterations are printed, and a line shows longer phases where there is a
            terminal or a notebook; False: nothing; None: the line alone. Within another `showing`
            None changes nothing.
        display: What shows it instead.
    """
    outer = _DISPLAY.get()
    if verbose is None and display is None and outer is not None:
        yield
        return
    shown = display if display is not None else _Line(prints=bool(verbose))
    if verbose is False:
        shown = _Silence()
    token = _DISPLAY.set(shown)
    try:
        yield
    finally:
        _DISPLAY.reset(token)
        shown.close()


class _Silence:
    """Shows nothing."""

    def begin(self, phase: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def iteration(self, text: Callable[[], str]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def has_live_output(stream: IO[str] | None) -> bool:
    """Whether a line on a stream can be drawn over: on a terminal and in a notebook."""
    with suppress(Exception):  # a stream of the user's may be anything
        if stream is None:
            return False
        return stream.isatty() or _is_of_notebook(stream)
    return False


def _is_of_notebook(stream: IO[str]) -> bool:
    return type(stream).__module__.startswith("ipykernel.") and "IPython" in sys.modules


class _Line:
    """A line on standard error that is drawn over, and is gone in the end.

    Args:
        prints: Iterations are printed to standard output as they come.
    """

    _drawing = Lock()
    """One line at a time, of whichever thread has drawn first."""

    def __init__(self, *, prints: bool = False) -> None:
        self._prints = prints
        self._start_s = time.monotonic()
        self._phases: list[str] = []
        self._ended = Event()
        self._thread: Thread | None = None
        self._has_line = False
        self._width = 0
        self._drawn_s = 0.0

    def begin(self, phase: str) -> None:
        self._phases.append(phase)
        if self._thread is None and has_live_output(sys.stderr):
            self._thread = Thread(target=self._redraw, daemon=True)
            self._thread.start()

    def end(self) -> None:
        self._phases.pop()

    def iteration(self, text: Callable[[], str]) -> None:
        if self._prints:
            self._erase()
            with suppress(OSError, ValueError):
                print(text(), flush=True)
            return
        now = time.monotonic()
        if now - self._start_s < FIRST_S or now - self._drawn_s < REDRAW_S:
            return
        if has_live_output(sys.stderr):
            self._draw(text())

    def close(self) -> None:
        if self._thread is not None:
            self._ended.set()
            self._thread.join(1.0)  # it may wait for a terminal that takes nothing
        self._erase()
        if self._has_line:
            self._has_line = False
            self._drawing.release()

    def _redraw(self) -> None:
        wait_s = FIRST_S
        while not self._ended.wait(wait_s):
            wait_s = REDRAW_S
            phases = self._phases[-1:]
            if phases:
                self._draw(f"{phases[0]} ({time.monotonic() - self._start_s:.0f} s)")

    def _draw(self, text: str) -> None:
        if not self._has_line:
            self._has_line = self._drawing.acquire(blocking=False)
        if self._has_line:
            self._write(text)

    def _erase(self) -> None:
        if self._width > 0:
            self._write("")
            self._put("\r")

    def _write(self, text: str) -> None:
        line = f"caspar: {text}"[:100] if text else ""
        self._put(f"\r{line.ljust(self._width)}")
        self._width, self._drawn_s = len(line), time.monotonic()

    def _put(self, text: str) -> None:
        with suppress(OSError, ValueError, AttributeError):  # closed, broken, None
            sys.stderr.write(text)
            sys.stderr.flush()
