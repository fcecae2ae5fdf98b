"""Better options for kernels, looked for by a thread while the kernels as they are do their work.

What is found is kept in the store: the next solver of such factors has it, and the next process.
The thread does not touch the device.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from caspar.codegen.source import KernelSource
from caspar.errors import CasparError
from caspar.runtime.nvidia.resident_search import search


class OptionSearch:
    """Kernels to look at, one after the other.

    Args:
        architecture: Of the device.
        found: Called in the thread with a kernel for which options were found.
    """

    def __init__(self, architecture: str, found: Callable[[KernelSource], None]) -> None:
        self._architecture = architecture
        self._found = found
        self._queue: SimpleQueue[tuple[KernelSource, int]] = SimpleQueue()
        self._seen: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, source: KernelSource, block_size: int) -> None:
        """Look for options, unless that is done or under way."""
        key = (source.text, block_size)
        with self._lock:
            if key in self._seen:
                return
            self._seen.add(key)
            self._queue.put((source, block_size))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="caspar search")
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                try:
                    source, block_size = self._queue.get_nowait()
                except Empty:
                    self._thread = None
                    return
            if not _goes_on():
                continue
            # where nothing is found, the kernel as it is works
            with suppress(CasparError):
                if search(source, block_size, self._architecture, _goes_on):
                    self._found(source)


def _goes_on() -> bool:
    """Return whether the program has not ended: it waits for this thread."""
    return threading.main_thread().is_alive()
