"""The devices that a user names, as members of a group, with a thread each.

Cost: connections once for a solver, and again after a device has failed.
"""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from caspar.errors import BackendError, OptionError
from caspar.options import BackendChoice, choice
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Group, Member
from caspar.runtime.group.threads import ThreadGroup
from caspar.runtime.select import (
    chosen_backend,
    members_on_cuda,
    members_on_processor,
    nccl_group,
    num_cuda_devices,
    select_backend,
)
from caspar.solver.shards.team import Team

DevicesChoice = int | str | Sequence[int]
"""How many, `all`, or their numbers."""


class Devices:
    """Members of a group.

    Args:
        members: One for each device.
        group: Makes a group of the first members.
    """

    def __init__(self, members: Sequence[Member], group: Callable[[int], Group]) -> None:
        self.members = tuple(members)
        self.size = len(members)
        self._group = group
        self._teams: dict[int, tuple[Team, int]] = {}
        self._num_groups = 0

    @property
    def first(self) -> Member:
        """Where results are put together."""
        return self.members[0]

    def team(self, size: int) -> tuple[Team, int]:
        """Threads of the first members, and a number of their group that no other has."""
        found = self._teams.pop(size, None)
        if found is None or found[0].has_failed:
            if found is not None:
                found[0].close()
            self._num_groups += 1
            found = Team(self.members[:size], self._group(size)), self._num_groups
        self._teams[size] = found
        for rank, member in enumerate(self.members[:size]):
            member.join(found[0].group, rank)
        return found


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
    return (selected, None) if found is None else (found.first, found)


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
