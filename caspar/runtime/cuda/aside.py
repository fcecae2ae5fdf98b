"""Work that nobody waits for, except the end of the process, for a moment.

Libraries of the driver crash if the process ends while a thread is in the midst of them.
"""

import atexit
import time
from collections.abc import Callable
from threading import Lock, Thread

WAIT_S = 3.0
"""Seconds that the end of the process waits for all of it."""

_RUNNING: set[Thread] = set()
_LOCK = Lock()


def aside(work: Callable[[], None]) -> None:
    """Start work in a thread of its own."""

    def run() -> None:
        try:
            work()
        finally:
            with _LOCK:
                _RUNNING.discard(thread)

    thread = Thread(target=run, name="caspar aside", daemon=True)
    with _LOCK:
        _RUNNING.add(thread)
    thread.start()


def wait_for_all(seconds: float = WAIT_S) -> None:
    """Wait until all of it has ended, at most some seconds."""
    end = time.monotonic() + seconds
    with _LOCK:
        running = [*_RUNNING]
    for thread in running:
        thread.join(max(end - time.monotonic(), 0.0))


atexit.register(wait_for_all)
