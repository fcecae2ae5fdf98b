"""The device of this process, as one of the ranks of a launch, and their groups.

Cost: connections once for each set of ranks that share problems, and again after a failure.

Also here: which rank has what of a problem.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caspar.driver import SolverDesign
from caspar.equations.solver_form import SolverForm
from caspar.errors import OptionError, UnsuitedError
from caspar.memory.array import Array
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
from caspar.solver.input.problem import Problem
from caspar.solver.plan.shard import Chosen, Shard
from caspar.solver.plan.untouched import warn_untouched_of
from caspar.solver.ranks.outline import joined, on_host
from caspar.solver.shards.devices import Devices, DevicesChoice, chosen_devices
from caspar.solver.shards.share import Reading, Share
from caspar.solver.shards.split import added_of, make_part, split_problem
from caspar.solver.shards.team import Team


def share_out(
    peers: Peers, member: Member, reading: Reading, design: SolverDesign, least: int
) -> Share:
    """Give this rank its part of a problem, and move what has to be moved. All ranks call it.

    Args:
        peers: All ranks.
        member: The device of this one.
        reading: What the ranks were given.
        design: How kernels are made.
        least: Instances of factors from which on a rank pays.
    """
    size, total = peers.size, sum(reading.instances.values())
    if total < size * least:
        remark = (
            f"Rank 0 solved this problem, not {size} ranks: with {total:,} instances of factors "
            f"it is quicker (several pay from {size * least:,} on)."
        )
        return _alone(_gathered(peers, member, reading, design), (remark,))
    remarks: tuple[str, ...] = ()
    if reading.is_spread:
        kept, remark = _kept(peers, member, reading, design)
        if kept is not None:
            return kept
        remarks = (remark,)
    return _cut(peers, member, design, _gathered(peers, member, reading, design), remarks)


def _alone(whole: Problem | None, remarks: tuple[str, ...]) -> Share:
    return Share({} if whole is None else {0: whole}, (), (0,), remarks)


def _gathered(
    peers: Peers, member: Member, reading: Reading, design: SolverDesign
) -> Problem | None:
    """All of it, at rank 0; None at the others."""
    own = reading.own
    if not reading.is_spread:
        return own
    assert own is not None
    parts = peers.collect(lambda: on_host(own, member.to_host))
    if len(parts) == 0:
        return None
    return replace(joined(parts, design.factors), given=own.given)


def _kept(
    peers: Peers, member: Member, reading: Reading, design: SolverDesign
) -> tuple[Share | None, str]:
    """The parts as they were passed, if they share no eliminated node; else why not."""
    own, form = reading.own, design.form
    assert own is not None
    found = peers.exchange(
        lambda: {name: touched(own, form, name, member.to_host) for name in form.eliminated}
    )
    totals = [sum(sizes.values()) for sizes in reading.sizes]
    active = tuple(rank for rank, number in enumerate(totals) if number > 0)
    if 0 not in active or len(active) == 1:
        return None, "Rank 0 divided the factors: not every rank had passed some."
    for name in form.eliminated:
        flags = np.zeros(reading.whole.counts[name], np.int8)
        for nodes in found:
            flags[nodes[name]] += 1
        several = int((flags > 1).sum())
        if several > 0:
            return None, (
                f"Rank 0 collected and divided the factors: {several:,} instances of {name} were "
                "touched by factors of several ranks. Pass all factors of one to the same rank to "
                "spare that."
            )
    most = {name: max(sizes[name] for sizes in reading.sizes) for name in reading.instances}
    is_active = peers.rank in active
    shard = Shard(
        rank=active.index(peers.rank) if is_active else 0,
        size=len(active),
        counts=own.counts,
        instances=reading.instances,
        most=most,
        added=added_of(design.factors, form, most),
        chosen={name: slice(0, arrays.count) for name, arrays in own.factors.items()},
        nodes=found[peers.rank],
    )
    problems = {}
    if is_active:
        problems[0] = make_part(own, design.factors, shard, form, member).problem
    return Share(problems, (shard,), active, ()), ""


def touched(problem: Problem, form: SolverForm, name: str, to_host: Any) -> Chosen:
    """Nodes of an eliminated type that a part's factors touch: a range, or their numbers."""
    flags = np.zeros(problem.counts[name], bool)
    for factor, own in form.factors.items():
        if own.eliminates(name) and problem.factors[factor].count > 0:
            index: Array | None = problem.factors[factor].nodes[own.eliminated_argument.name]
            assert index is not None
            flags[index if isinstance(index, np.ndarray) else to_host(index)] = True
    found = np.flatnonzero(flags).astype(np.int32)
    if len(found) == 0:
        return slice(0, 0)
    first, last = int(found[0]), int(found[-1])
    return slice(first, last + 1) if last - first + 1 == len(found) else found


@dataclass(frozen=True)
class _Handed:
    """A message of rank 0: a part or nothing, and the number of parts."""

    problem: Problem | None
    shard: Shard | None
    num_parts: int
    remarks: tuple[str, ...] = ()


def _cut(
    peers: Peers,
    member: Member,
    design: SolverDesign,
    whole: Problem | None,
    remarks: tuple[str, ...],
) -> Share:
    """Rank 0 cuts the problem and hands out the parts."""
    size = peers.size

    def handed() -> Sequence[_Handed]:
        assert whole is not None
        warn_untouched_of(member, whole, design.factors)
        parts = split_problem(whole, design.factors, design.form, [member] * size, to_devices=False)
        if len(parts) == 1:
            return [_Handed(None, None, 1)] * size
        handed: list[_Handed] = []
        for part in parts:
            # what stays here need not be brought to the host
            problem = part.problem if len(handed) == 0 else on_host(part.problem, member.to_host)
            handed.append(_Handed(problem, part.shard, len(parts), part.remarks))
        none = _Handed(None, parts[0].shard, len(parts))
        return [*handed, *[none] * (size - len(parts))]

    found: _Handed = peers.hand_out(handed)
    if found.shard is None:
        same = "Rank 0 solved this problem: all factors touch the same node."
        return _alone(whole, (*remarks, same))
    if found.num_parts < size:
        remarks = (*remarks, f"{found.num_parts} of {size} ranks had a part of this problem.")
    problems = {} if found.problem is None else {0: found.problem}
    active = tuple(range(found.num_parts))
    return Share(problems, (found.shard,), active, (*remarks, *found.remarks))


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
    """Return whether a method of `Solver` is for several ranks too.

    Raises:
        UnsuitedError: It needs all factors in one process.
    """
    if isinstance(devices, Ranks):
        raise UnsuitedError(
            f"Solver.{method} needs all factors in one process, of which ranks have parts",
            "Make a solver with devices=1 on one rank, and pass it everything.",
        )


__all__ = ["DevicesChoice", "RankDevices", "Ranks", "devices_of", "refuse_ranks"]
"""The names that `Solver` needs."""
