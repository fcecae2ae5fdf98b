"""Interruptions of a solve: Ctrl-C, and errors of the user's callback.

The first Ctrl-C ends a solve with a result; a second one soon after is passed on, so that a loop of
solves ends. The time of the last one is kept for each thread: Python raises Ctrl-C in the main
thread, but a program may raise it in others. No signal handler is installed; a user's own stays.
"""

import math
import threading
import time
from collections.abc import Callable

from caspar.errors import OptionError
from caspar.solver.result.result import IterationRecord

Callback = Callable[[IterationRecord], object]
"""Called after each iteration; a true value stops the solve."""

SECOND_WITHIN_S = 2.0
"""Seconds after an interrupt within which another one is passed on to the caller."""


class _Last(threading.local):
    """The time of the thread's last interrupt, by `time.monotonic`."""

    time_s = -math.inf


_last = _Last()


def is_second() -> bool:
    """Note an interrupt; whether one came shortly before."""
    now = time.monotonic()
    before, _last.time_s = _last.time_s, now
    return now - before <= SECOND_WITHIN_S


def forget() -> None:
    """The next interrupt is a first one."""
    _last.time_s = -math.inf


def asks_to_stop(answer: object) -> bool:
    """Return whether what a callback returned is true."""
    try:
        return bool(answer)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"on_iteration returned {type(answer).__name__}, which is neither true nor false "
            f"({error}): return True to stop, False or nothing to go on"
        ) from error


class PassedOn(BaseException):
    """Carries a callback's MemoryError past those who take every MemoryError for caspar's."""

    def __init__(self, error: MemoryError) -> None:
        super().__init__(error)
        self.error = error


def passing_on(callback: Callback | None) -> Callback | None:
    """A callback whose MemoryError is raised inside a `PassedOn`."""
    if callback is None:
        return None

    def call(record: IterationRecord) -> object:
        try:
            return callback(record)
        except MemoryError as error:
            carrier = PassedOn(error)
        raise carrier

    return call
