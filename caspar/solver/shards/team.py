"""Threads that each drive one device of this process, and the user's thread beside them.

The user's thread waits meanwhile: it runs callbacks and gets Ctrl-C, so that neither happens in
the middle of something that devices do together. Of several processes each has one such thread.

Cost: some 50 microseconds for each call.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Event
from typing import Any, TypeVar

from caspar.errors import GroupError
from caspar.progress import showing
from caspar.runtime.group.member import Group, Member
from caspar.runtime.group.peers import Peers, add_note
from caspar.solver.lm.interrupts import is_second

Result = TypeVar("Result")

PATIENCE_S = 1.0
"""Seconds after Ctrl-C in which rank 0, which mostly gets it too, may end the solve by itself, and
after a second one in which threads may end by themselves."""

WAIT_S = 0.1
"""Seconds of a wait of the user's thread. A signal that comes right before a wait is noticed behind
it only."""


@dataclass
class _Request:
    """A call that a thread wants the user's thread to make."""

    call: Callable[[], Any]
    answer: Future[Any] = field(default_factory=Future)
    is_begun: bool = False


class Team:
    """A thread for each device here, which meet in the same order in all calls.

    Args:
        members: Devices of this process.
        group: Of all devices of the problem; None: they do not work together.
        peers: The processes that share the problem; None: there is only this one.
    """

    def __init__(
        self, members: Sequence[Member], group: Group | None, peers: Peers | None = None
    ) -> None:
        self.members = tuple(members)
        self.group, self._peers = group, peers
        self._first = 0 if peers is None else peers.rank
        self._threads = [
            ThreadPoolExecutor(1, f"caspar device {self._first + number}")
            for number in range(len(members))
        ]
        self._wake = Event()
        self._request: _Request | None = None
        self._was_interrupted = self._is_given_up = False
        self._told_at_s: float | None = None

    # -- the user's thread ---------------------------------------------------------------------

    def each(
        self,
        work: Callable[[int], Result],
        tell: Callable[[Result], Any] | None = None,
        *,
        takes_interrupts: bool = False,
    ) -> list[Result]:
        """Call a function with the number of each device here, in the threads, and wait for all.

        Args:
            work: The function.
            tell: Makes of what rank 0 has found what other processes get in place of their own.
                None: they get what they have found themselves.
            takes_interrupts: Whether `take_interrupt` is asked while it lasts, so that the first
                Ctrl-C needs no more. Otherwise Ctrl-C is raised when all have ended.

        Raises:
            BaseException: What the first device raised that did not only wait for another one.
                The others were woken.
            KeyboardInterrupt: It came while they worked; they have ended their work.
        """
        self._was_interrupted = self._is_given_up = False
        self._told_at_s = None
        try:
            futures = [
                thread.submit(copy_context().run, self._guarded, work, tell, number)
                for number, thread in enumerate(self._threads)
            ]
            is_raised = self._wait(futures, takes_interrupts)
        except KeyboardInterrupt:
            self._give_up()
            raise
        if is_raised:
            raise KeyboardInterrupt
        self._raise_first(futures)
        if self.group is not None and self._peers is None:
            self.group.check()
        return [future.result() for future in futures]

    def _wait(self, futures: Sequence[Future[Any]], takes_interrupts: bool) -> bool:
        """Serve the threads until all have ended; whether Ctrl-C came that nobody asks for."""
        is_raised = False
        for future in futures:
            future.add_done_callback(lambda _: self._wake.set())
        while True:
            try:
                while not all(future.done() for future in futures):
                    self._serve()
                return is_raised
            except KeyboardInterrupt:
                if not takes_interrupts:
                    is_raised = True
                elif is_second():
                    raise
                elif self._first > 0:
                    self._told_at_s = time.monotonic() + PATIENCE_S
                else:
                    self._was_interrupted = True

    def _serve(self) -> None:
        """Wait until a thread has ended or asks for a call, which is made here."""
        request = self._request
        if request is None or request.answer.done():
            is_awake = self._wake.wait(WAIT_S)
            told_at_s = self._told_at_s
            if not is_awake and told_at_s is not None and told_at_s <= time.monotonic():
                self._told_at_s = None
                assert self._peers is not None
                self._peers.tell_interrupt()
            self._wake.clear()
        elif request.is_begun:
            # Ctrl-C came between the call and its answer
            request.answer.set_exception(KeyboardInterrupt())
        else:
            request.is_begun = True
            try:
                found = request.call()
            except BaseException as error:
                request.answer.set_exception(error)
            else:
                request.answer.set_result(found)

    def _give_up(self) -> None:
        """End what the threads do, and wait for them: nobody may enter what they work on."""
        self._is_given_up = True
        self._abort()
        # a thread does one thing after another
        ends = [thread.submit(int) for thread in self._threads]
        wait(ends, PATIENCE_S)
        if self._peers is not None and not all(end.done() for end in ends):
            self._peers.leave("Ctrl-C ended it")
        wait(ends)

    def _raise_first(self, futures: Sequence[Future[Any]]) -> None:
        errors = {rank: error for rank, one in enumerate(futures) if (error := one.exception())}
        causes = {rank: one for rank, one in errors.items() if not isinstance(one, GroupError)}
        for rank, error in (causes or errors).items():
            if self._peers is None:
                what = f"It was raised on device {rank} of {len(futures)} that share the problem."
                add_note(error, what)
            raise error

    # -- the threads ---------------------------------------------------------------------------

    def in_users_thread(self, call: Callable[[], Result]) -> Result:
        """Have the thread that waits in `each` call a function; what comes of it."""
        self._request = request = _Request(call)
        self._wake.set()
        found: Result = request.answer.result()
        return found

    def take_interrupt(self) -> bool:
        """Return whether Ctrl-C asks for an end, here or on another rank; asked for once."""
        found, self._was_interrupted = self._was_interrupted, False
        if self._peers is not None:
            found, self._peers.was_interrupted = found or self._peers.was_interrupted, False
        return found

    def _guarded(
        self, work: Callable[[int], Result], tell: Callable[[Result], Any] | None, number: int
    ) -> Any:
        def call() -> Result:
            try:
                with self.members[number].scope():
                    return work(number)
            except BaseException:
                self._abort()
                if self._is_given_up:
                    raise KeyboardInterrupt from None
                raise

        with showing(None if self._first + number == 0 else False):
            if self._peers is None:
                return call()
            made: list[Result] = []

            def told() -> Any:
                made.append(call())
                return tell(made[0]) if self._first == 0 and tell is not None else None

            # whatever fails on a rank ends the work of all, and all hear why
            found = self._peers.exchange(told, is_long=True)
            return made[0] if self._first == 0 or tell is None else found[0]

    def _abort(self) -> None:
        if self.group is not None:
            self.group.abort()

    @property
    def has_failed(self) -> bool:
        """Return whether the group can no longer be used."""
        with suppress(GroupError):
            if self.group is not None:
                self.group.check()
            return False
        return True

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads:
            thread.shutdown(wait=False)
