"""In which order the blocks of a launch, and the threads of a block, take their turns."""

from dataclasses import dataclass
from enum import IntEnum


class Order(IntEnum):
    """Values are those of `Order` in native/runtime.h."""

    FORWARD = 0
    REVERSED = 1
    SHUFFLED = 2


@dataclass(frozen=True)
class Schedule:
    """A thread keeps its turn until it waits at a barrier or in a warp operation.

    `seed` matters to `Order.SHUFFLED` alone, which draws a new order for every turn.
    """

    order: Order
    seed: int = 0


FORWARD = Schedule(Order.FORWARD)
REVERSED = Schedule(Order.REVERSED)


def shuffled(seed: int) -> Schedule:
    """Return the random schedule of that seed; the same seed gives the same schedule."""
    return Schedule(Order.SHUFFLED, seed)


DEFAULT_SCHEDULES = (FORWARD, REVERSED, shuffled(1), shuffled(2))
