"""The one allocation of a plan: what it needs is known before, and said if it does not fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caspar.errors import OutOfMemoryError
from caspar.runtime.backend import Backend
from caspar.solver.plan.arena import ArenaPlan, ArenaViews
from caspar.solver.plan.array_key import ArrayKey
from caspar.solver.plan.plan import NodePlan
from caspar.solver.plan.shard import Shard
from caspar.solver.result.quantities import bytes_text

MORE_DEVICES = (2, 4, 8)

MOST_DEVICES = 1024
"""Beyond which nobody looks."""

UNEVEN = 1.05
"""Times its even share that a device may have: nodes are not split, tiles have holes."""


@dataclass(frozen=True)
class Demand:
    """What a plan, or the part of one device, needs.

    Attributes:
        arena_bytes: Of the one allocation.
        on_all_bytes: Of that what each of several devices has: nodes that remain.
        outside_bytes: Of indices and tiles, which are there already.
        num_parts: Devices that share the problem.
    """

    arena_bytes: int
    on_all_bytes: int
    outside_bytes: int
    num_parts: int

    def of_each(self, devices: int) -> int:
        """Bytes of the arena that each of several devices needs, if all have as much."""
        divided = (self.arena_bytes - self.on_all_bytes) * self.num_parts
        return self.on_all_bytes + divided // devices

    def num_devices(self, free_bytes: int) -> int | None:
        """On how many devices the problem fits, if each has as much memory as this one.

        Args:
            free_bytes: Of this one, beside indices and tiles.

        Returns:
            None: on none.
        """
        capacity = free_bytes + self.outside_bytes
        for devices in range(self.num_parts + 1, MOST_DEVICES + 1):
            outside = self.outside_bytes * self.num_parts // devices
            if (self.of_each(devices) + outside) * UNEVEN <= capacity:
                return devices
        return None


def demand_of(
    arena: ArenaPlan[ArrayKey], nodes: Sequence[NodePlan], outside_bytes: int, shard: Shard | None
) -> Demand:
    """What a plan needs.

    Args:
        arena: Its regions.
        nodes: All node types.
        outside_bytes: Of indices and tiles.
        shard: Of the part of a problem that this is; None: it is all of it.
    """
    remaining = {plan.node.name for plan in nodes if not plan.is_eliminated}
    sizes = {key.text: region.num_bytes for key, region in arena.regions.items()}
    on_all = sum(
        size for name, size in sizes.items() if "." in name and name.partition(".")[0] in remaining
    )
    num_parts = 1 if shard is None else shard.size
    return Demand(arena.num_bytes, min(on_all, arena.num_bytes), outside_bytes, num_parts)


def allocated(
    arena: ArenaPlan[ArrayKey], backend: Backend, demand: Callable[[], Demand]
) -> ArenaViews[ArrayKey]:
    """The arrays of an arena; `demand` is asked for if it does not fit.

    Raises:
        OutOfMemoryError: It does not fit. Nothing was allocated, if the device says what it has
            left. Names needed and free bytes, and on how many devices the problem fits.
    """
    free = backend.free_bytes
    if free is not None and arena.num_bytes > free:
        raise _does_not_fit(
            f"the plan needs {arena.num_bytes:,} bytes of memory, and {backend.device} has "
            f"{free:,}, so nothing was allocated.",
            backend,
            demand(),
            free,
        )
    try:
        return arena.allocate(backend)
    except OutOfMemoryError as error:
        raise _does_not_fit(str(error), backend, demand(), free) from error


def _does_not_fit(why: str, backend: Backend, demand: Demand, free: int | None) -> OutOfMemoryError:
    """An error with what several devices would need."""
    number = None if free is None else demand.num_devices(free)
    error = OutOfMemoryError(
        f"{why} {_needed_by_devices(demand)} {_fitting(demand, free, number, backend)} Or use "
        "fewer factors, jacobian='recompute', or precision='float32'."
    )
    error.needed_bytes, error.free_bytes, error.num_devices = demand.arena_bytes, free, number
    return error


def _needed_by_devices(demand: Demand) -> str:
    """What several devices would need each: nodes that remain are on all, the rest is divided."""
    each = ", ".join(
        f"{bytes_text(demand.of_each(number))} on each of {number}"
        for number in MORE_DEVICES
        if number > demand.num_parts
    )
    parts = "" if demand.num_parts == 1 else f" of this device, one of {demand.num_parts},"
    taken = f"The plan's arrays{parts} take {bytes_text(demand.arena_bytes)}"
    return f"{taken}; shared by devices=... or by ranks about {each}." if each else f"{taken}."


def _fitting(demand: Demand, free: int | None, number: int | None, backend: Backend) -> str:
    """On how many devices the problem fits."""
    if free is None:
        return ""
    if number is None:
        return (
            f"More devices do not help: nodes that remain take {bytes_text(demand.on_all_bytes)} "
            "on each."
        )
    if backend.traits.members_share_memory:
        return f"It fits on {number} machines with as much memory."
    return f"It fits on {number} such devices with as much memory left."
