"""The processes that work together, as one of them sees the others.

Rank 0 is the hub: all others have a connection to it for messages, one for heartbeats and
news, and one for each group that adds up (`sockets`). Whoever fails wakes everybody.
Cost tiers: connections once for a process; `exchange` some 100 microseconds.

Also here: who still lives: heartbeats between rank 0 and the others, and news that cannot wait.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from threading import Event, Lock, Thread
from typing import Any, TypeVar

from caspar.errors import GroupError
from caspar.runtime.group.wire import Hub, Wire, readable

STEP_S = 0.25
"""Between two looks; heartbeats are sent as often."""


class News(Enum):
    """Messages between ranks besides those of their work.

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
    """Watches connections to other ranks in a thread; `on_news` gets news, rank and detail.

    `wires` are by rank: those of all others at rank 0, that of rank 0 at the others. A rank that is
    silent for `silence_s` seconds counts as gone.
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


Result = TypeVar("Result")

REASON_S = 3.0
"""Seconds within which the reason of a closed connection is known."""


class Purpose(IntEnum):
    """The purpose of a connection."""

    MESSAGES = 1
    WATCH = 2
    SUMS = 3


@dataclass(frozen=True)
class Outcome:
    """The value of a rank, or what failed, in words, and whether only because of another rank."""

    value: Any = None
    failure: str | None = None
    is_consequence: bool = False


class Peers:
    """All ranks, from one of them.

    `hub` is where rank 0 listens; the others `dial` it for a purpose and the number of a group. A
    rank without a heartbeat for `silence_s` counts as gone; ranks wait `wait_s` for each other to
    call the same method.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        hub: Hub | None,
        dial: Callable[[Purpose, int], Wire],
        *,
        join_s: float,
        silence_s: float,
        wait_s: float,
    ) -> None:
        self.rank, self.size = rank, size
        self.wait_s = wait_s
        self._hub, self._dial = hub, dial
        self._lock = Lock()
        self._known = Event()
        self._reason, self._left = "", ""
        self._aborts: dict[int, Callable[[str], None]] = {}
        self.was_interrupted = self.is_closed = False
        others = range(1, size) if hub is not None else (0,)
        end_s = time.monotonic() + join_s
        self._wires: dict[int, Wire] = {}
        watched: dict[int, Wire] = {}
        for other in others if size > 1 else ():
            left_s = max(end_s - time.monotonic(), 0.1)
            self._wires[other] = self._wire(Purpose.MESSAGES, other, 0, left_s)
            watched[other] = self._wire(Purpose.WATCH, other, 0, left_s)
        self._names = {rank: f"host {socket.gethostname()}, process {os.getpid()}"}
        self._watch = Watch(watched, silence_s, self._on_news) if size > 1 else None
        own = self._names[rank]
        self._names = dict(enumerate(self.exchange(lambda: own)))

    def _wire(self, purpose: Purpose, other: int, number: int, timeout_s: float) -> Wire:
        if self._hub is None:
            return self._dial(purpose, number)
        return self._hub.take(int(purpose), other, number, timeout_s, self.check)

    @property
    def own_address(self) -> str:
        """Address of this host by which it reaches rank 0, or is reached."""
        wires = [*self._wires.values()]
        return str(wires[0].socket.getsockname()[0]) if len(wires) > 0 else "127.0.0.1"

    def name(self, rank: int) -> str:
        """A rank, in words."""
        known = self._names.get(rank)
        return f"rank {rank} of {self.size}" + ("" if known is None else f" ({known})")

    # -- failures ------------------------------------------------------------------------------

    @property
    def reason(self) -> str:
        """The reason why ranks cannot work together any more; empty if they can."""
        return self._reason or self._left

    def check(self) -> None:
        """Raise a `GroupError` if a rank is gone without having left as it should; it says why."""
        if self._reason != "":
            raise GroupError(self._reason)

    def failure(self) -> GroupError:
        """The error of a connection that was closed, when its reason is known."""
        self._known.wait(REASON_S)
        return GroupError(self.reason or "the connection to the other ranks was closed")

    def on_abort(self, number: int, abort: Callable[[str], None]) -> None:
        """Set a function that is called if the group of that number fails somewhere."""
        with self._lock:
            self._aborts[number] = abort
        if self.reason != "":
            abort(self.reason)

    def forget(self, number: int) -> None:
        """Call it no more."""
        with self._lock:
            self._aborts.pop(number, None)

    def tell_abort(self, number: int, why: str) -> None:
        """Wake all ranks that wait in a group that adds up."""
        if self._watch is not None:
            self._watch.tell(News.ABORT, (number, why))

    def tell_interrupt(self) -> None:
        """Tell rank 0 that Ctrl-C asks for an end."""
        if self._watch is not None:
            self._watch.tell(News.INTERRUPT)

    def _on_news(self, news: News, source: int, detail: Any) -> None:
        if news is News.INTERRUPT:
            self.was_interrupted = True
            return
        if news is News.LEAVE:
            # what it has said before can still be read
            self._left = f"{self.name(source)} has left the group: its program has ended"
            self._known.set()
            return
        if self._watch is not None and self._hub is not None:
            self._watch.tell(news, detail, but=source)
        if news is News.ABORT:
            number, why = detail
            with self._lock:
                abort = self._aborts.get(number)
            if abort is not None:
                abort(why)
            return
        rank, why = detail
        self.fail(f"{self.name(rank)} is gone: {why}. See what it printed last")

    def leave(self, why: str) -> None:
        """Tell all others that this rank takes part no more, and why."""
        if self._watch is not None:
            self._watch.tell(News.GONE, (self.rank, why))
        self.fail(f"{self.name(self.rank)} is gone: {why}")

    def fail(self, reason: str) -> None:
        """Record a failure that ends all work; wake whoever waits."""
        with self._lock:
            if self._reason == "":
                self._reason = reason
        self._known.set()
        self._abort_all(self._reason)
        for wire in self._wires.values():
            wire.close()

    def _abort_all(self, why: str) -> None:
        with self._lock:
            aborts = [*self._aborts.values()]
        for abort in aborts:
            abort(why)

    def close(self) -> None:
        """Leave."""
        self.is_closed = True
        if self._watch is not None:
            self._watch.close()
        self.fail(f"{self.name(self.rank)} has left the group")
        if self._hub is not None:
            self._hub.close()

    # -- messages ------------------------------------------------------------------------------

    def send(self, other: int, message: object) -> None:
        """Send to a rank: rank 0 to any, the others to rank 0; `GroupError` if a rank is gone."""
        self.check()
        try:
            self._wires[other].send(message)
        except OSError:
            raise self.failure() from None

    def receive(self, other: int, timeout_s: float | None = None) -> Any:
        """Wait for a message of a rank; `GroupError` if it is gone, or silent for `timeout_s`."""
        self.check()
        try:
            if not self._wires[other].has_message(timeout_s):
                raise GroupError(
                    f"{self.name(other)} is alive, but has not called the same method within "
                    f"{timeout_s:g} s. All ranks call solve and prepare equally often; see "
                    "init(wait_s=...)"
                )
            return self._wires[other].receive()
        except (OSError, EOFError):
            raise self.failure() from None

    def exchange(self, work: Callable[[], Result], *, is_long: bool = False) -> list[Result]:
        """Do something on all ranks, and tell each other what came of it, in the order of ranks.

        Raises what `work` raised here, or a `GroupError` if it went wrong on another rank, or one
        is gone or does not come. `is_long`: ranks may take longer than others by more than
        `wait_s`.
        """
        own, error = attempted(work)
        wait_s = None if is_long else self.wait_s
        if self.size == 1:
            found = [own]
        elif self.rank != 0:
            self.send(0, own)
            found = self.receive(0, wait_s)
        else:
            # all are told, also if one is gone
            found = [own, *(self._outcome_of(rank, wait_s) for rank in range(1, self.size))]
            for rank in range(1, self.size):
                with suppress(GroupError):
                    self.send(rank, found)
        self.raise_first(dict(enumerate(found)), error)
        return [one.value for one in found]

    def _outcome_of(self, rank: int, wait_s: float | None) -> Outcome:
        found, error = attempted(lambda: self.receive(rank, wait_s))
        sent: Outcome = found if error is not None else found.value
        return sent

    def exchange_own(self, work: Callable[[], Result]) -> Result:
        """The same with what the others need not see: the outcome of this rank."""
        kept: list[Result] = []
        self.exchange(lambda: kept.append(work()))
        return kept[0]

    def collect(self, work: Callable[[], Result]) -> list[Result]:
        """Return the results of all ranks, in their order, at rank 0; nothing at the others."""
        own, error = attempted(work)
        found = {self.rank: own}
        if self.rank != 0:
            self.send(0, own)
        else:
            found |= {rank: self._outcome_of(rank, self.wait_s) for rank in range(1, self.size)}
        self.exchange(lambda: self.raise_first(found, error))
        return [one.value for one in found.values()] if self.rank == 0 else []

    def hand_out(self, work: Callable[[], Sequence[Any]]) -> Any:
        """Return the value for this rank that `work` makes at rank 0, for all ranks in order.

        Raises as `exchange` does.
        """
        if self.rank != 0:
            found = self.receive(0, self.wait_s)
            self.raise_first({0: found}, None)
            return found.value
        made, error = attempted(work)
        for rank in range(1, self.size):
            own = made if error is not None else Outcome(made.value[rank])
            self.send(rank, own)
        self.raise_first({0: made}, error)
        return made.value[0]

    def raise_first(self, found: Mapping[int, Outcome], error: BaseException | None) -> None:
        """Raise what went wrong first, here or on another rank, if something did."""
        failed = {rank: one for rank, one in found.items() if one.failure is not None}
        if len(failed) == 0:
            return
        if error is not None and not isinstance(error, GroupError):
            add_note(error, f"It was raised on {self.name(self.rank)}; the others ended with it.")
            raise error
        causes = {rank: one for rank, one in failed.items() if not one.is_consequence}
        for rank, one in causes.items():
            raise GroupError(f"{self.name(rank)} failed: {one.failure}") from None
        self.check()
        raise GroupError(next(iter(failed.values())).failure)

    # -- groups that add up ----------------------------------------------------------------------

    def sum_wires(self, number: int, active: Sequence[int]) -> Mapping[int, Wire]:
        """New connections between some ranks, among them 0, and rank 0."""
        if self.rank != 0:
            return {0: self._wire(Purpose.SUMS, 0, number, self.wait_s)}
        return {
            rank: self._wire(Purpose.SUMS, rank, number, self.wait_s)
            for rank in active
            if rank != 0
        }


def attempted(work: Callable[[], Result]) -> tuple[Outcome, BaseException | None]:
    """Try some work; return its outcome for others, and its error for this rank."""
    try:
        return Outcome(work()), None
    except BaseException as error:
        text = str(error) if isinstance(error, GroupError) else f"{type(error).__name__}: {error}"
        return Outcome(None, text, isinstance(error, GroupError)), error


def add_note(error: BaseException, note: str) -> None:
    """Add a note, which Python prints with the error from 3.11 on."""
    if hasattr(error, "add_note") and note not in getattr(error, "__notes__", ()):
        error.add_note(note)
