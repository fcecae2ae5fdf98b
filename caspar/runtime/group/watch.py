"""Who still lives: heartbeats between rank 0 and the others, and news that cannot wait.

A process that ends closes its connections, which the others see at once; a machine that vanishes,
or a process that is stopped, is silent. Rank 0 passes on what one rank has to tell all others.
Cost: a thread of each process, which wakes a few times a second.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from threading import Lock, Thread

from caspar.runtime.group.wire import Wire, readable

STEP_S = 0.25
"""Between two looks; heartbeats are sent as often."""


class News(Enum):
    """What ranks tell each other beside their work.

    BEAT: alive. ABORT: a group that adds up has failed. GONE: a rank has ended. INTERRUPT: Ctrl-C.
    LEAVE: the rank ends as it should.
    """

    BEAT = "beat"
    ABORT = "abort"
    GONE = "gone"
    INTERRUPT = "interrupt"
    LEAVE = "leave"


@dataclass
class _Other:
    wire: Wire
    heard_s: float = field(default_factory=time.monotonic)


class Watch:
    """Watches connections to other ranks in a thread.

    Args:
        wires: By rank: those of all others at rank 0, that of rank 0 at the others.
        silence_s: Seconds without a heartbeat after which a rank counts as gone.
        on_news: Called with each piece of news, the rank it is from, and its detail.
    """

    def __init__(
        self,
        wires: Mapping[int, Wire],
        silence_s: float,
        on_news: Callable[[News, int, object], None],
    ) -> None:
        self._others = {rank: _Other(wire) for rank, wire in wires.items()}
        self._silence_s = silence_s
        self._on_news = on_news
        self._lock = Lock()
        self._is_closed = False
        self._thread = Thread(target=self._run, name="caspar watch", daemon=True)
        self._thread.start()

    def tell(self, news: News, detail: object = None, but: int | None = None) -> None:
        """Send to all others that are still there."""
        with self._lock:
            for rank, other in [*self._others.items()]:
                if rank == but:
                    continue
                with suppress(OSError):  # the thread will find out
                    other.wire.send((news, detail))

    def close(self) -> None:
        """Leave: the others are told that this rank ends as it should."""
        self.tell(News.LEAVE)
        self._is_closed = True
        self._thread.join(2.0 * STEP_S)
        for other in self._others.values():
            other.wire.close()

    def _run(self) -> None:
        last_s = time.monotonic()
        while not self._is_closed:
            others = dict(self._others)
            if len(others) == 0:
                return
            sockets = {other.wire.socket: rank for rank, other in others.items()}
            try:
                ready = readable(sockets, STEP_S)
            except OSError:
                # closed by this rank, or the system lacks memory: the others hear of it meanwhile
                ready = []
                time.sleep(STEP_S)
            for found in ready:
                self._hear(sockets[found])
            now_s = time.monotonic()
            if now_s - last_s >= STEP_S:
                if now_s - last_s > self._silence_s / 2.0:
                    # this process itself was stopped: it has heard nobody, and nobody is late
                    for other in self._others.values():
                        other.heard_s = now_s
                last_s = now_s
                self.tell(News.BEAT)
                self._check_silence(now_s)

    def _hear(self, rank: int) -> None:
        other = self._others[rank]
        try:
            news, detail = other.wire.receive()
        except (OSError, EOFError):
            self._lose(rank, "its connection was closed, so its process has ended")
            return
        other.heard_s = time.monotonic()
        if news is News.LEAVE:
            with self._lock:
                self._others.pop(rank)
            self._on_news(news, rank, None)
            other.wire.close()
        elif news is not News.BEAT:
            self._on_news(news, rank, detail)

    def _check_silence(self, now_s: float) -> None:
        for rank, other in [*self._others.items()]:
            if now_s - other.heard_s > self._silence_s:
                self._lose(rank, f"nothing was heard of it for {self._silence_s:g} s")

    def _lose(self, rank: int, why: str) -> None:
        with self._lock:
            other = self._others.pop(rank)
        self._on_news(News.GONE, rank, (rank, why))
        other.wire.close()
