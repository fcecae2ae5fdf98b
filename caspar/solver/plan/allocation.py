"""The one allocation of a plan, and what to do if it does not fit."""

from collections.abc import Sequence

from caspar.errors import OutOfMemoryError
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.plan.arena import ArenaPlan
from caspar.solver.plan.array_key import ArrayKey
from caspar.solver.plan.plan import NodePlan
from caspar.solver.result.quantities import bytes_text

MORE_DEVICES = (2, 4, 8)


def allocated(
    arena: ArenaPlan[ArrayKey], backend: Backend, nodes: Sequence[NodePlan]
) -> dict[ArrayKey, Array]:
    """The arrays of an arena.

    Raises:
        OutOfMemoryError: Names needed and available bytes, and what several devices would need.
    """
    try:
        return arena.allocate(backend)
    except OutOfMemoryError as error:
        raise OutOfMemoryError(f"{error} {needed_by_devices(arena, nodes)}") from error


def needed_by_devices(arena: ArenaPlan[ArrayKey], nodes: Sequence[NodePlan]) -> str:
    """What several devices would need each: nodes that remain are on all, the rest is divided."""
    remaining = {plan.node.name for plan in nodes if not plan.is_eliminated}
    sizes = {key.text: region.num_bytes for key, region in arena.regions.items()}
    on_all = sum(
        size for name, size in sizes.items() if "." in name and name.partition(".")[0] in remaining
    )
    on_all = min(on_all, arena.num_bytes)
    each = ", ".join(
        f"{bytes_text(on_all + (arena.num_bytes - on_all) // number)} on each of {number}"
        for number in MORE_DEVICES
    )
    return (
        f"The plan's arrays take {bytes_text(arena.num_bytes)}; shared by devices=... or by ranks "
        f"about {each}."
    )
