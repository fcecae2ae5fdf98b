"""The device of this process, as one of the ranks of a launch, and their groups.

Cost: connections once for each set of ranks that share problems, and again after a failure.
"""

from collections.abc import Callable, Sequence
from typing import Any

from caspar.driver import SolverDesign
from caspar.errors import OptionError, UnsuitedError
from caspar.options import BackendChoice, choice
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Member
from caspar.runtime.group.peers import Peers
from caspar.runtime.group.ranks import Ranks
from caspar.runtime.group.sockets import ProcessGroup, SocketGroup
from caspar.runtime.select import (
    chosen_target,
    member_of_rank,
    nccl_group_of_ranks,
    nccl_meeting,
)
from caspar.solver.ranks.sharing import share_out
from caspar.solver.shards.devices import Devices, DevicesChoice, chosen_devices
from caspar.solver.shards.share import Reading, Share
from caspar.solver.shards.team import Team


class RankDevices(Devices):
    """This rank's device, and how it works together with those of others.

    Args:
        ranks: All processes.
        member: The device of this one.
    """

    peers: Peers

    def __init__(self, ranks: Ranks, member: Member) -> None:
        self.ranks, self.peers, self.member = ranks, ranks.peers, member
        self.members, self.size = (member,), ranks.size
        self._by_rank: dict[tuple[int, ...], tuple[Team, ProcessGroup | None, int]] = {}
        self._num_groups = 0

    def share(
        self,
        reading: Reading,
        design: Callable[[], SolverDesign],
        least: int,
        make_room: Callable[[], None],
    ) -> Share:
        """See `Devices`; all ranks call it."""
        return share_out(self.peers, self.member, reading, design(), least)

    def team(self, active: Sequence[int]) -> tuple[Team, int]:
        """A thread, and the number of the group of some ranks; all ranks ask for it.

        Args:
            active: The ranks; none: they do not work together.

        Raises:
            GroupError, BackendError: They cannot be connected.
        """
        key = tuple(active)
        found = self._by_rank.pop(key, None)
        is_usable = found is not None and not found[0].has_failed
        if not all(self.peers.exchange(lambda: is_usable)):
            if found is not None:
                found[0].close()
                if found[1] is not None:
                    found[1].close()
            group = None if len(key) == 0 else self._group_of(key)
            found = Team((self.member,), group, self.peers), group, self._num_groups
        assert found is not None
        self._by_rank[key] = found
        team, group, number = found
        if group is not None and self.peers.rank in key:
            self.member.join(group, key.index(self.peers.rank))
        return team, number

    def _group_of(self, active: tuple[int, ...]) -> ProcessGroup:
        self._num_groups += 1
        number, is_leader, meeting = self._num_groups, self.peers.rank == 0, None
        if self.member.traits.adds_up_by_nccl:
            meeting = self.peers.exchange(lambda: nccl_meeting() if is_leader else None)[0]
        # ranks without a part have one by themselves, so that all know whether it failed
        return self.peers.exchange_own(lambda: self._made(number, active, meeting))

    def _made(self, number: int, active: tuple[int, ...], meeting: Any) -> ProcessGroup:
        if self.ranks.rank not in active:
            return ProcessGroup(self.peers, number, active)
        if meeting is None:
            return SocketGroup(self.peers, number, active)
        return nccl_group_of_ranks(self.ranks, number, active, meeting)


def devices_of(given: Any, backend: Any) -> tuple[Backend, Devices | RankDevices | None]:
    """The backend that a user means, and the devices if several share a problem.

    Args:
        given: `Solver`'s argument: as for one process, or ranks.
        backend: The argument of that name.

    Raises:
        OptionError: It names no devices.
        BackendError: They are not usable.
    """
    if not isinstance(given, Ranks):
        return chosen_devices(given, backend)
    if not isinstance(backend, str | BackendChoice):
        raise OptionError(
            f"devices={given!r} with a backend object: an object is one device; pass "
            "backend='auto', 'cuda' or 'cpu'"
        )
    target = chosen_target(choice(BackendChoice, "backend", backend))
    member = member_of_rank(target, given.device)
    return member, None if given.size == 1 else RankDevices(given, member)


def refuse_ranks(devices: object, method: str) -> None:
    """Whether a method of `Solver` is for several ranks too.

    Raises:
        UnsuitedError: It needs all factors in one process.
    """
    if isinstance(devices, Ranks):
        raise UnsuitedError(
            f"Solver.{method} needs all factors in one process, of which ranks have parts",
            "Make a solver with devices=1 on one rank, and pass it everything.",
        )


__all__ = ["DevicesChoice", "RankDevices", "Ranks", "devices_of", "refuse_ranks"]
"""What `Solver` needs of devices."""
