"""Where blocks of a loop may send each other partials in place of a barrier.

A barrier of a cluster waits until all that its blocks have stored is seen by all others, which
takes longer than the rest of it. Where the partials of a phase are all that other blocks need
behind it, an exchange does (`codegen.cuda.loop.barriers`): a block goes on when it has that of
each.

Cost tier: once for a plan.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Protocol

from caspar.codegen.cuda.loop.fuse import dealt_in_turn
from caspar.codegen.source import FIRST, LENGTH, KernelSource
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.runtime.cuda.launch.bound_kernel import BoundKernel, overlap

ONE_PARTIAL = "OwnPartials<1, double>"
"""What a thread holds of an array that an exchange may stand for."""


class Copies(Protocol):
    """Scalars of which every block may have a copy."""

    def place(self, value: int | Array) -> int | None:
        """Which of the scalars an array begins with; None: it is none of them."""

    def hold(self, launch: BoundKernel) -> bool:
        """Whether every block runs a kernel by itself, on its copies."""


def exchanged_params(
    phases: Sequence[Sequence[BoundKernel]],
    ahead: Sequence[BoundKernel],
    copies: Copies,
    address: Callable[[Array], int],
) -> dict[str, str]:
    """By kernel: its parameter that holds a partial of each block; empty: a barrier is needed.

    The array of the partials is not written then; nobody behind the loop may read it.

    Args:
        phases: Kernels that run at the same time, each block of theirs by another block.
        ahead: What is launched ahead of them.
        copies: Of the scalars.
        address: Where an array begins.
    """
    shared = [number for number, phase in enumerate(phases) if not all(map(copies.hold, phase))]
    if len(shared) != 2 or shared[1] != len(phases) - 1 or any(map(copies.hold, phases[shared[0]])):
        return {}
    # what ends the loop ahead of the sum would end blocks to which others still send
    summing, *others = phases[shared[0] + 1]
    if len(others) > 0 or not copies.hold(summing):
        return {}
    senders = _with_first_blocks(phases[shared[0]], copies)
    behind = [one for phase in phases[shared[0] + 1 :] for one in _with_first_blocks(phase, copies)]
    num_blocks = sum(one.all_blocks for one, _ in senders)
    partials: set[tuple[str, str]] = set()
    for (one, block), (other, other_block) in product(senders, behind):
        for own, theirs in _shared_arrays(one, other, copies, address):
            if other is summing and _is_sent(one, own) and _is_summed(other, theirs, num_blocks):
                partials.add((one.source.name, one.source.params[own].name))
                partials.add((other.source.name, other.source.params[theirs].name))
            elif block != other_block or not _are_same_objects(one, own, other, theirs, address):
                return {}
    found = dict(partials)
    # one partial of each sender, and one sum of them
    named = [one for phase in phases for one in phase if one.source.name in found]
    is_usual = len(found) == len(partials) and len(named) == len(senders) + 1
    before = [*ahead, *(one for phase in phases[: shared[0]] for one in phase)]
    is_for_others = any(
        _is_sent(one, own)
        for (one, _), other in product(senders, before)
        for own, _ in _shared_arrays(one, other, copies, address)
    )
    if not is_usual or is_for_others:
        return {}
    return found if all(one.source.name in found for one, _ in senders) else {}


def _source(launch: BoundKernel) -> KernelSource:
    return launch.source


def _with_first_blocks(
    phase: Sequence[BoundKernel], copies: Copies
) -> list[tuple[BoundKernel, int | None]]:
    """Launches and the block of the grid that has their first one; None: every block runs it."""
    found: list[tuple[BoundKernel, int | None]] = [(one, None) for one in phase if copies.hold(one)]
    block = 0
    for one in dealt_in_turn([one for one in phase if not copies.hold(one)], _source):
        found.append((one, block))
        block += one.all_blocks
    return found


def _shared_arrays(
    one: BoundKernel, other: BoundKernel, copies: Copies, address: Callable[[Array], int]
) -> Iterator[tuple[int, int]]:
    """Parameters of both that have bytes in common which one of them writes; no scalars.

    What a kernel that every block runs reads ahead of an exchange, it has read before its block
    sends: nobody can write it too early.
    """
    areas = one.all_areas(address), other.all_areas(address)
    for own, theirs in product(range(len(areas[0])), range(len(areas[1]))):
        first, second = areas[0][own], areas[1][theirs]
        written = one.source.params[own].written or other.source.params[theirs].written
        if first is None or second is None or not written or not overlap([first], [second]):
            continue
        if copies.place(one.values[own]) is None:
            yield own, theirs


def _are_same_objects(
    one: BoundKernel, own: int, other: BoundKernel, theirs: int, address: Callable[[Array], int]
) -> bool:
    """Whether each item touches one object of an array alone, the same one in both kernels."""
    first, second = _fields(one, own, address), _fields(other, theirs, address)
    return (
        _is_own(one, own)
        and _is_own(other, theirs)
        and one.values[0] == other.values[0]
        and one.num_blocks == other.num_blocks
        and all(first[name] == second[name] for name in first.keys() & second.keys())
    )


def _fields(
    launch: BoundKernel, place: int, address: Callable[[Array], int]
) -> dict[str, tuple[int, DType | None]]:
    """What is passed for the argument of a parameter, which says where its objects lie."""
    params = launch.source.params
    return {
        param.field: (value if isinstance(value, int) else address(value), param.dtype)
        for param, value in zip(params, launch.values, strict=True)
        if param.arg == params[place].arg
    }


def _is_own(launch: BoundKernel, place: int) -> bool:
    """Whether item `i` touches object `i` of an array alone."""
    params = launch.source.params
    arg = params[place].arg
    return arg in launch.source.own and all((one.arg, one.field) != (arg, FIRST) for one in params)


def _is_sent(launch: BoundKernel, place: int) -> bool:
    """Whether each block writes one partial."""
    return launch.source.params[place].arg in launch.source.sums


def _is_summed(launch: BoundKernel, place: int, num_blocks: int) -> bool:
    """Whether a kernel sums one partial of each block, and does nothing else with the array."""
    params = launch.source.params
    param = params[place]
    bound = zip(params, launch.values, strict=True)
    length = next(
        value for other, value in bound if (other.arg, other.field) == (param.arg, LENGTH)
    )
    loads = [load for load in launch.source.loads if load.arg == param.arg]
    return (
        not param.written
        and [load.vector for load in loads] == [ONE_PARTIAL]
        and length == num_blocks
    )
