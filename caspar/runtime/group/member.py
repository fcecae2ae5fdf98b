"""Interface of a backend that is one of several, and agreement of ranks on small values.

Every rank runs the same loop. Arrays are added up on the devices (`all_reduce`); values of the host
go through a `Communicator`, so that all ranks take the same decisions. Cost tiers: a group once for
a solver, `all_reduce` once for a plan, its launch in the inner loop; `gather` some 50 microseconds
between threads, 150 between processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from caspar.errors import BackendError
from caspar.memory.array import Array
from caspar.runtime.backend import Backend, Launch

Value = TypeVar("Value")


class Group(Protocol):
    """Members that add up arrays and exchange values.

    All of them call `add_up`, `gather` and `collect` in the same order, each in a thread of its
    own.
    """

    shares_memory: bool
    """True if members are in one process, and read each other's arrays."""

    @property
    def size(self) -> int:
        """Members."""

    def add_up(self, rank: int, arrays: Sequence[Array]) -> None:
        """Replace arrays by their sums over all members, which all get with the same bits.

        On CUDA it is enqueued on the current stream. The arrays are contiguous, of as many scalars
        and the same types in all members. Raises a `GroupError` if another member has failed.
        """

    def gather(self, rank: int, value: Any) -> list[Any]:
        """The values of all members, by rank, pickled between processes, or a `GroupError`."""

    def collect(self, rank: int, value: Any) -> list[Any]:
        """The same for rank 0; the others may get nothing."""

    def abort(self) -> None:
        """Wake all who wait for other members, from any thread: one has failed."""

    def check(self) -> None:
        """Raise a `GroupError` if a member has failed, so that sums are of no use."""


class Member(Backend, Protocol):
    """A backend that is one of a group."""

    def join(self, group: Group, rank: int) -> None:
        """Launches that are bound from here on add up with this group."""

    def all_reduce(self, arrays: Sequence[Array]) -> Launch:
        """A launch that adds up arrays over the group; it may stand in any sequence or loop."""

    def receive(self, target: Array, source: Array) -> None:
        """Copy a contiguous array of another member's device, which has done its work."""

    def bring(self, array: Array) -> Array:
        """An array of the host, or of another member's device, as one that `upload` takes."""


@dataclass(frozen=True)
class Communicator:
    """One rank's means to agree with the others on values of the host.

    All ranks call the same methods in the same order. Without a group nothing is exchanged.
    """

    rank: int = 0
    group: Group | None = None

    @property
    def is_first(self) -> bool:
        """Return whether this rank speaks to the user."""
        return self.rank == 0

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks, by rank."""
        return [value] if self.group is None else self.group.gather(self.rank, value)

    def collect(self, value: Value) -> list[Value]:
        """The same for rank 0; the others may get nothing."""
        return [value] if self.group is None else self.group.collect(self.rank, value)

    def broadcast(self, value: Value) -> Value:
        """The value of rank 0."""
        if self.group is None:
            return value
        found: list[Any] = self.gather(value if self.is_first else None)
        return found[0]  # type: ignore[no-any-return]

    def joined(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the texts of all ranks, each once."""
        found = self.gather(tuple(names))
        return tuple(dict.fromkeys(name for names in found for name in names))

    def summed(self, numbers: dict[str, Any]) -> dict[str, Any]:
        """The sums of all ranks' numbers, by name."""
        total: dict[str, Any] = {}
        for part in self.gather(numbers):
            for name, number in part.items():
                total[name] = total.get(name, 0) + number
        return total

    def same(self, value: Value) -> Value:
        """A value that all ranks have found alike; a `BackendError` if they have not."""
        if self.group is not None:
            found = self.gather(repr(value))
            if any(one != found[0] for one in found):
                raise BackendError(
                    "devices that share a problem have come to different results: "
                    f"{'; '.join(found)}. Use devices of one kind, or devices=1"
                )
        return value


ALONE = Communicator()
"""The communicator of a solve on one device."""
