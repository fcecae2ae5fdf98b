"""What solvers ask of a backend that is one of several.

Cost tiers: a group once for a solver, `all_reduce` once for a plan, its launch in the inner loop.
"""

from collections.abc import Sequence
from typing import Protocol

from caspar.memory.array import Array
from caspar.runtime.backend import Backend, Launch


class Group(Protocol):
    """Members that add up arrays.

    All of them call `add_up` in the same order, each in a thread of its own.
    """

    @property
    def size(self) -> int:
        """Members."""

    def add_up(self, rank: int, arrays: Sequence[Array]) -> None:
        """Replace arrays by their sums over all members, which all get with the same bits.

        On CUDA it is enqueued on the current stream.

        Args:
            rank: Of the calling member.
            arrays: Contiguous, of as many scalars and the same types in all members.

        Raises:
            GroupError: Another member has failed.
        """

    def abort(self) -> None:
        """Wake all who wait in `add_up`, from any thread: one has failed."""

    def check(self) -> None:
        """Whether sums so far are of use.

        Raises:
            GroupError: A member has failed.
        """


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
