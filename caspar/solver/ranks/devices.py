"""The device of this process, as one of the ranks of a launch, and the groups that add up.

Cost: connections once for each set of ranks that share problems, and again after a failure.
"""

from collections.abc import Sequence
from typing import Any

from caspar.errors import OptionError, UnsuitedError
from caspar.options import BackendChoice, choice
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Group, Member
from caspar.runtime.group.ranks import Ranks
from caspar.runtime.group.sockets import ProcessGroup, SocketGroup
from caspar.runtime.select import (
    chosen_target,
    member_of_rank,
    nccl_group_of_ranks,
    nccl_meeting,
)
from caspar.solver.shards.devices import Devices, DevicesChoice, chosen_devices


class RankDevices:
    """This rank's device, and how it adds up with others.

    Args:
        ranks: All processes.
        member: The device of this one.
    """

    def __init__(self, ranks: Ranks, member: Member) -> None:
        self.ranks, self.peers = ranks, ranks.peers
        self.member = member
        self.is_leader = ranks.rank == 0
        self._groups: dict[tuple[int, ...], tuple[ProcessGroup, int]] = {}
        self._num_groups = 0

    def group(self, active: Sequence[int]) -> tuple[Group | None, int]:
        """The group of some ranks, and its number; all ranks ask for it.

        Returns:
            None in place of the group on ranks that have no part.

        Raises:
            GroupError, BackendError: They cannot be connected.
        """
        key = tuple(active)
        found = self._groups.pop(key, None)
        is_usable = found is not None and not found[0].has_failed
        if not all(self.peers.exchange(lambda: is_usable)):
            if found is not None:
                found[0].close()
            self._num_groups += 1
            number, meeting = self._num_groups, None
            if self.member.traits.adds_up_by_nccl:
                is_leader = self.is_leader
                meeting = self.peers.exchange(lambda: nccl_meeting() if is_leader else None)[0]
            # ranks without a part have one by themselves, so that all know whether it failed
            made = self.peers.exchange_own(lambda: self._made(number, key, meeting))
            found = made, number
        assert found is not None
        self._groups[key] = found
        if self.ranks.rank in key:
            self.member.join(found[0], key.index(self.ranks.rank))
        return found

    def _made(self, number: int, active: tuple[int, ...], meeting: Any) -> ProcessGroup:
        if self.ranks.rank not in active:
            return ProcessGroup(self.peers, number, len(active))
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
