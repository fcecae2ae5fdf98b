"""Threads that each drive one device.

Cost: some 50 microseconds for each call of all.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TypeVar

from caspar.errors import GroupError
from caspar.memory.array import Array
from caspar.progress import showing
from caspar.runtime.group.member import Group, Member
from caspar.solver.lm.normal_equations import NormalEquations

Result = TypeVar("Result")


class Team:
    """A thread for each member of a group, which meet in the same order in all calls.

    Args:
        members: Backends.
        group: Their group.
    """

    def __init__(self, members: Sequence[Member], group: Group) -> None:
        self.members = tuple(members)
        self.group = group
        self._threads = [ThreadPoolExecutor(1, f"caspar device {rank}") for rank in _ranks(members)]

    def each(self, work: Callable[[int], Result]) -> list[Result]:
        """Call a function with each rank, in the threads, and wait for all.

        Raises:
            BaseException: What the first member raised that did not only wait for another one.
                The others were woken.
            KeyboardInterrupt: It came while they worked; they have ended their work.
        """
        futures = [
            thread.submit(copy_context().run, self._guarded, work, rank)
            for rank, thread in enumerate(self._threads)
        ]
        try:
            wait(futures)
        except BaseException:
            # nobody may enter what they still work on
            wait(futures)
            raise
        _raise_first(futures)
        self.group.check()
        return [future.result() for future in futures]

    def _guarded(self, work: Callable[[int], Result], rank: int) -> Result:
        try:
            with showing(None if rank == 0 else False), self.members[rank].scope():
                return work(rank)
        except BaseException:
            self.group.abort()
            raise

    @property
    def has_failed(self) -> bool:
        """Whether the group is of no more use."""
        try:
            self.group.check()
        except GroupError:
            return True
        return False

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads:
            thread.shutdown(wait=False)


class ThreadSystems:
    """The systems of a team; see `system.Systems`.

    Args:
        systems: By rank.
        team: Their threads.

    Attributes:
        all: The systems.
        first: That of rank 0.
        member: Its device.
    """

    def __init__(self, systems: Sequence[NormalEquations], team: Team) -> None:
        self.all = tuple(systems)
        self._team = team
        self.first, self.member = systems[0], team.members[0]

    def each(self, call: Callable[[NormalEquations], Result]) -> list[Result]:
        """Call a function with each, in its thread."""
        return self._team.each(lambda rank: call(self.all[rank]))

    def values(
        self, read: Callable[[NormalEquations], Mapping[str, Array]]
    ) -> list[Mapping[str, Array]]:
        """Values of each, on its device."""
        return self.each(read)


def _ranks(members: Sequence[Member]) -> range:
    return range(len(members))


def _raise_first(futures: Sequence[Future[Result]]) -> None:
    errors = {rank: error for rank, one in enumerate(futures) if (error := one.exception())}
    causes = {rank: one for rank, one in errors.items() if not isinstance(one, GroupError)}
    for rank, error in (causes or errors).items():
        error.add_note(f"It was raised on device {rank} of {len(futures)} that share the problem.")
        raise error
