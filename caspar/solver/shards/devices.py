"""The devices that a user names, as members of a group, with a thread each.

The user's thread waits meanwhile: it runs callbacks and gets Ctrl-C, so that neither happens in
the middle of something that devices do together. Of several processes each has one such thread.

Cost: connections once for a solver, and again after a device has failed; some 50 microseconds for
each call of the threads.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from numbers import Integral
from threading import Event
from typing import Any, TypeVar

from caspar.driver import SolverDesign
from caspar.errors import BackendError, GroupError, OptionError
from caspar.options import BackendChoice, choice
from caspar.progress import showing
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Group, Member
from caspar.runtime.group.peers import Peers, add_note
from caspar.runtime.group.threads import ThreadGroup
from caspar.runtime.select import (
    chosen_backend,
    members_on_cuda,
    members_on_processor,
    nccl_group,
    num_cuda_devices,
    select_backend,
)
from caspar.solver.input.problem import Problem
from caspar.solver.lm.interrupts import is_second
from caspar.solver.plan.planning import warn_untouched
from caspar.solver.shards.crew import Reading, Share
from caspar.solver.shards.split import split_problem

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
    """A thread for each device here, which meet in the same order in all calls."""

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

        `tell`: Makes of what rank 0 has found what other processes get in place of their own. None:
        they get what they have found themselves. `takes_interrupts`: Whether `take_interrupt` is
        asked while it lasts, so that the first Ctrl-C needs no more. Otherwise Ctrl-C is raised
        when all have ended.

        Raises:
            BaseException: What the first device raised that did not only wait for another one. The
                others were woken.
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


DevicesChoice = int | str | Sequence[int]
"""The number of devices, `all`, or a list of device numbers."""

UNEVEN = 1.5
"""Times its even share from which on users are told that a device has more."""


class Devices:
    """Devices of this process, as members of a group."""

    peers: Peers | None = None
    """Processes that share problems, each with one device; None: only this one."""

    def __init__(self, members: Sequence[Member], group: Callable[[int], Group]) -> None:
        self.members = tuple(members)
        self.size = len(members)
        self._group = group
        self._teams: dict[int, tuple[Team, Group, int]] = {}
        self._num_groups = 0
        self._told: tuple[dict[str, int], dict[str, int]] | None = None

    def share(
        self,
        reading: Reading,
        design: Callable[[], SolverDesign],
        least: int,
        make_room: Callable[[], None],
    ) -> Share:
        """Give each device its part of a problem."""
        problem, wanted = reading.own, self.size
        assert problem is not None
        num_instances = sum(reading.instances.values())
        remark = ""
        if wanted > 1 and num_instances < wanted * least:
            remark = (
                f"One device solved this problem, not {wanted}: with {num_instances:,} instances "
                f"of factors it is quicker (several pay from {wanted * least:,} on)."
            )
        elif wanted > 1:
            made = design()
            sizes = problem.counts, problem.num_instances
            if sizes != self._told:
                # once for each structure, as on one device
                warn_untouched(self.members[0], problem, made.factors)
                self._told = sizes
            parts = split_problem(
                problem, made.factors, made.form, self.members, make_room=make_room
            )
            if len(parts) > 1:
                problems = {rank: part.problem for rank, part in enumerate(parts)}
                shards = tuple(part.shard for part in parts)
                remarks = (*parts[0].remarks, *_on_sizes(wanted, [*problems.values()]))
                return Share(problems, shards, tuple(range(len(parts))), remarks)
            remark = "One device solved this problem: all factors touch the same node."
        remarks = () if remark == "" else (remark,)
        return Share({0: problem.joined(self.members[0])}, (), (0,), remarks)

    def team(self, active: Sequence[int]) -> tuple[Team, int]:
        """Threads of the first members, and a number of their group that no other has."""
        size = len(active)
        found = self._teams.pop(size, None)
        if found is None or found[0].has_failed:
            if found is not None:
                found[0].close()
            self._num_groups += 1
            group = self._group(size)
            found = Team(self.members[:size], group), group, self._num_groups
        self._teams[size] = found
        for rank, member in enumerate(self.members[:size]):
            member.join(found[1], rank)
        return found[0], found[2]


def _on_sizes(wanted: int, problems: Sequence[Problem]) -> tuple[str, ...]:
    remarks: tuple[str, ...] = ()
    if len(problems) < wanted:
        remarks = (f"{len(problems)} of {wanted} devices had a part of this problem.",)
    sizes = [sum(arrays.count for arrays in problem.factors.values()) for problem in problems]
    most = max(sizes)
    if most * len(problems) > UNEVEN * sum(sizes):
        remark = (
            f"Device {sizes.index(most)} had {100 * most // sum(sizes)} % of the instances of "
            f"factors, and {len(problems)} devices take as long as the one that has most. Pass "
            "arrays as a whole, or in parts that have about as many."
        )
        remarks = (*remarks, remark)
    return remarks


def chosen_devices(given: Any, backend: Any) -> tuple[Backend, Devices | None]:
    """The backend that a user means, and the devices if several share a problem."""
    numbers = _checked(given)
    if numbers == 1:
        return chosen_backend(backend), None
    selected = select_backend(named_backend(given, backend))
    by_nccl = selected.traits.adds_up_by_nccl
    found = _on_cuda(given, numbers) if by_nccl else _on_processor(numbers)
    return (selected, None) if found is None else (found.members[0], found)


def named_backend(given: Any, backend: Any) -> BackendChoice:
    """The backend for several devices, which is given by its name."""
    if not isinstance(backend, str | BackendChoice):
        raise OptionError(
            f"devices={given!r} with a backend object: an object is one device; pass "
            "backend='auto', 'cuda' or 'cpu'"
        )
    named: BackendChoice = choice(BackendChoice, "backend", backend)
    return named


def _checked(given: Any) -> int | str | list[int]:
    allowed = "must be a number of devices of at least 1, 'all', or numbers of devices as [0, 3]"
    if isinstance(given, str):
        if given != "all":
            raise OptionError(f"devices={given!r}: {allowed}")
        return given
    if _is_number(given, 1):
        return int(given)
    if not isinstance(given, Sequence) or not all(_is_number(one, 0) for one in given):
        raise OptionError(f"devices={given!r}: {allowed}")
    numbers = [int(one) for one in given]
    if len(numbers) == 0 or len(set(numbers)) < len(numbers):
        raise OptionError(f"devices={given!r}: each device once, and at least one")
    return numbers


def _is_number(given: Any, least: int) -> bool:
    return isinstance(given, Integral) and given is not True and int(given) >= least


def _on_processor(numbers: int | str | list[int]) -> Devices | None:
    """Parts on the host's cores: one device by itself takes all of them."""
    if isinstance(numbers, str):
        return None
    size = numbers if isinstance(numbers, int) else len(numbers)
    return Devices(members_on_processor(size), ThreadGroup)


def _on_cuda(given: Any, numbers: int | str | list[int]) -> Devices | None:
    present = num_cuda_devices()
    if isinstance(numbers, str):
        numbers = present
    if numbers == 1:
        return None
    wanted = [*range(numbers)] if isinstance(numbers, int) else numbers
    if max(wanted) >= present:
        raise BackendError(
            f"devices={given!r}: this process sees {present} CUDA devices, numbered from 0; "
            "CUDA_VISIBLE_DEVICES may hide others"
        )
    return Devices(members_on_cuda(wanted), lambda size: nccl_group(wanted[:size]))
