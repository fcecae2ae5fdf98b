"""Rank 0 iterates, the others do what it asks, until it says how the work ended.

What is asked for is a function of a system that can be pickled. It runs in a thread, so that Ctrl-C
interrupts nothing half done. Cost: some 150 microseconds for each question to all.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, TimeoutError, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from caspar.errors import GroupError
from caspar.memory.array import Array
from caspar.progress import showing
from caspar.runtime.group.member import Group
from caspar.runtime.group.peers import attempted
from caspar.solver.lm.interrupts import is_second
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.plan.shard import Chosen
from caspar.solver.ranks.devices import RankDevices

Result = TypeVar("Result")

PATIENCE_S = 1.0
"""Seconds after Ctrl-C in which rank 0, which mostly gets it too, may end the solve by itself."""


@dataclass(frozen=True)
class Asked:
    """What rank 0 wants to know of each system."""

    call: Callable[[NormalEquations], Any]


@dataclass(frozen=True)
class Done:
    """The work has ended, and this came of it."""

    content: Any


@dataclass(frozen=True)
class Failed:
    """The work has ended because something failed: why, in words."""

    why: str


class RankSystems:
    """The systems of all ranks, from rank 0; see `shards.system.Systems`.

    Args:
        devices: Of the ranks.
        group: What they add up by.
        system: That of rank 0.
        active: Ranks that have one.

    Attributes:
        first: The system of rank 0.
        member: Its device.
    """

    def __init__(
        self,
        devices: RankDevices,
        group: Group,
        system: NormalEquations,
        active: Sequence[int],
    ) -> None:
        self.first, self.member = system, devices.member
        self._peers, self._group = devices.peers, group
        self._others = [rank for rank in active if rank != 0]
        self._thread = ThreadPoolExecutor(1, "caspar rank 0")

    def each(self, call: Callable[[NormalEquations], Result]) -> list[Result]:
        """Ask all ranks."""
        return self._in_thread(lambda: self._asked(call, call))

    def values(
        self, read: Callable[[NormalEquations], Mapping[str, Array]]
    ) -> list[Mapping[str, Array]]:
        """Values of each, those of other ranks on the host, and of eliminated types."""
        return self._in_thread(lambda: self._asked(read, partial(_values_on_host, read)))

    def _in_thread(self, work: Callable[[], Result]) -> Result:
        def scoped() -> Result:
            with self.member.scope():
                return work()

        future = self._thread.submit(copy_context().run, scoped)
        try:
            wait([future])
        except BaseException:
            # nothing is left half done
            wait([future])
            raise
        return future.result()

    def _asked(
        self,
        own: Callable[[NormalEquations], Result],
        others: Callable[[NormalEquations], Any],
    ) -> list[Result]:
        for rank in self._others:
            self._peers.send(rank, Asked(others))
        found, error = attempted(lambda: own(self.first))
        if error is not None:
            self._group.abort()
        outcomes = {0: found}
        for rank in self._others:
            answer, lost = attempted(lambda: self._peers.receive(rank))  # noqa: B023
            outcomes[rank] = answer if lost is not None else answer.value
        self._peers.raise_first(outcomes, error)
        self._group.check()
        return [one.value for one in outcomes.values()]

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)


def _values_on_host(
    read: Callable[[NormalEquations], Mapping[str, Array]], system: NormalEquations
) -> dict[str, Any]:
    to_host = system.plan.library.backend.to_host
    names = {plan.node.name for plan in system.plan.eliminated}
    return {name: to_host(rows) for name, rows in read(system).items() if name in names}


def follow(devices: RankDevices, group: Group | None, system: NormalEquations | None) -> Any:
    """Do what rank 0 asks for until the work has ended; what came of it.

    Raises:
        BaseException: What failed on this rank.
        GroupError: The work failed on another rank, or a rank is gone.
        KeyboardInterrupt: The second Ctrl-C; the first asks rank 0 for an end.
    """

    def work() -> Any:
        with showing(False), devices.member.scope():
            return _answered(devices, group, system)

    thread = ThreadPoolExecutor(1, f"caspar rank {devices.ranks.rank}")
    future = thread.submit(copy_context().run, work)
    try:
        while True:
            try:
                return future.result()
            except KeyboardInterrupt:
                if future.done() or is_second():
                    raise
                with suppress(TimeoutError):
                    future.exception(PATIENCE_S)
                if not future.done():
                    devices.peers.tell_interrupt()
    finally:
        thread.shutdown(wait=False)


def _answered(devices: RankDevices, group: Group | None, system: NormalEquations | None) -> Any:
    peers, own_error = devices.peers, None
    while True:
        message = peers.receive(0)
        if isinstance(message, Done):
            return message.content
        if isinstance(message, Failed):
            if own_error is not None and not isinstance(own_error, GroupError):
                raise own_error
            raise GroupError(message.why)
        assert system is not None
        assert group is not None
        asked, one = message, system
        found, error = attempted(lambda: asked.call(one))  # noqa: B023
        if error is not None:
            own_error = error
            group.abort()
        peers.send(0, found)


def tell_all(devices: RankDevices, message: Done | Failed) -> None:
    """Tell the other ranks how the work ended, also if one is gone.

    Raises:
        GroupError: One is gone.
    """
    errors = []
    for rank in range(1, devices.peers.size):
        try:
            devices.peers.send(rank, message)
        except GroupError as error:
            errors.append(error)
    if len(errors) > 0:
        raise errors[0]


def failure_of(error: BaseException, name: str) -> str:
    """An error in words, for other ranks."""
    if isinstance(error, GroupError):
        return str(error)
    return f"{name} failed: {type(error).__name__}: {error}"


def last_values(
    devices: RankDevices,
    system: NormalEquations,
    nodes: Mapping[str, Chosen],
    starts: Mapping[str, Array],
) -> dict[str, Any] | None:
    """Values of the last accepted step, as far as this rank has them; see `GroupError`.

    Args:
        devices: Of the ranks.
        system: This rank's.
        nodes: By eliminated type which nodes it has.
        starts: Values of all nodes before the solve.
    """
    to_host = devices.member.to_host
    try:
        with devices.member.scope():
            found = {name: to_host(rows) for name, rows in system.values().items()}
            whole = {}
            for name, given in starts.items():
                rows = np.array(given if isinstance(given, np.ndarray) else to_host(given))
                if name in found:
                    rows[nodes.get(name, slice(None))] = found[name]
                whole[name] = rows
    except Exception:
        # a device that has failed has none
        return None
    return whole
