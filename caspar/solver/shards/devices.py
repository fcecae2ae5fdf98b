"""The devices that a user names, as members of a group, with a thread each.

Cost: connections once for a solver, and again after a device has failed.
"""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from caspar.driver import SolverDesign
from caspar.errors import BackendError, OptionError
from caspar.options import BackendChoice, choice
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Group, Member
from caspar.runtime.group.peers import Peers
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
from caspar.solver.plan.untouched import warn_untouched_of
from caspar.solver.shards.share import Reading, Share
from caspar.solver.shards.split import split_problem
from caspar.solver.shards.team import Team

DevicesChoice = int | str | Sequence[int]
"""The number of devices, `all`, or a list of device numbers."""

UNEVEN = 1.5
"""Times its even share from which on users are told that a device has more."""


class Devices:
    """Devices of this process, as members of a group.

    Args:
        members: One for each device.
        group: Makes a group of the first members.
    """

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
        """Give each device its part of a problem.

        Args:
            reading: The problem.
            design: How kernels are made.
            least: Instances of factors from which on a device pays.
            make_room: Gives back memory of devices that is kept for another solve.
        """
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
                warn_untouched_of(self.members[0], problem, made.factors)
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
    """The backend that a user means, and the devices if several share a problem.

    Args:
        given: `Solver`'s argument.
        backend: The argument of that name.

    Raises:
        OptionError: Something else than a number of devices, `all`, or numbers of devices.
        BackendError: There are not as many, or they are not usable.
    """
    numbers = _checked(given)
    if numbers == 1:
        return chosen_backend(backend), None
    if not isinstance(backend, str | BackendChoice):
        raise OptionError(
            f"devices={given!r} with a backend object: an object is one device; pass "
            "backend='auto', 'cuda' or 'cpu'"
        )
    selected = select_backend(choice(BackendChoice, "backend", backend))
    by_nccl = selected.traits.adds_up_by_nccl
    found = _on_cuda(given, numbers) if by_nccl else _on_processor(numbers)
    return (selected, None) if found is None else (found.members[0], found)


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
