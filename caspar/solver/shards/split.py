"""A problem in parts, one for each device, and values brought together from them.

Nodes of an eliminated type are divided (`shards.cuts`), and instances of factors go with them.
Instances of other factors are cut evenly. Nodes that remain, and constants that are not one for
each instance, are in every part; a device without instances has none. Cost: a pass over the indices
of eliminated nodes, and copies of what is one for each instance, unless it stands in the order of
the parts. Once for a solve.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np

from caspar.equations.factor_builder import FactorForm
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.trace import ArgumentKind, TracedFactor
from caspar.memory.array import Array, PickedRows
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Member
from caspar.solver.input.constraints import NodeBounds
from caspar.solver.input.parted_array import PartedArray, on_host, pieces_of
from caspar.solver.input.problem import ConstantArray, FactorArrays, Problem, sources_by_instance
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.plan.shard import Chosen, ChosenInstances, ChosenParts, Shard, size_of
from caspar.solver.shards.cuts import Cut, cut_type


@dataclass(frozen=True)
class Part:
    """The part of one device.

    Attributes:
        problem: With arrays where the whole problem's are, or on the part's device.
        remarks: On how nodes were divided; the same for all parts.
    """

    problem: Problem
    shard: Shard
    remarks: tuple[str, ...] = ()


def split_problem(
    problem: Problem,
    factors: Sequence[TracedFactor],
    form: SolverForm,
    members: Sequence[Member],
    *,
    to_devices: bool = True,
    make_room: Callable[[], None] = lambda: None,
) -> list[Part]:
    """Cut a problem, with arrays on the first device or on the host, into a part for each member.

    Parts without instances are left out. `to_devices`: Whether each device picks indices of the
    host by itself; else the host does. `make_room`: Gives back memory that is kept for another
    solve.
    """
    first, num_parts = members[0], len(members)
    cuts = {
        name: cut_type(problem, factors, form, name, num_parts, first, make_room)
        for name in form.eliminated
    }
    is_spread = to_devices and problem.is_on_host
    workers = members if is_spread else [first] * num_parts

    def chosen_of(number: int) -> dict[str, ChosenInstances]:
        with workers[number].scope():
            return {
                factor.name: _chosen(
                    problem, factor, form.factors[factor.name], cuts, number, workers
                )
                for factor in factors
            }

    def part_of(shard: Shard, number: int) -> Part:
        worker = workers[number]
        with worker.scope():
            part = make_part(problem, factors, shard, form, worker, to_device=is_spread)
            worker.synchronize()
        return Part(part, shard, tuple(cut.remark for cut in cuts.values() if cut.remark))

    with ThreadPoolExecutor(len({id(worker) for worker in workers})) as threads:
        chosen = [*threads.map(chosen_of, range(num_parts))]
        shards = _shards(problem, factors, form, cuts, chosen)
        return [*threads.map(part_of, shards.values(), shards)]


def _shards(
    problem: Problem,
    factors: Sequence[TracedFactor],
    form: SolverForm,
    cuts: Mapping[str, Cut],
    chosen: Sequence[dict[str, ChosenInstances]],
) -> dict[int, Shard]:
    """Return, for each part that has instances, what it knows of the whole."""
    sizes = [{name: size_of(one) for name, one in by_factor.items()} for by_factor in chosen]
    kept = [number for number, own in enumerate(sizes) if sum(own.values()) > 0]
    most = {factor.name: max(sizes[number][factor.name] for number in kept) for factor in factors}
    return {
        number: Shard(
            rank=rank,
            size=len(kept),
            counts=problem.counts,
            instances={name: arrays.count for name, arrays in problem.factors.items()},
            most=most,
            added=added_of(factors, form, most, cuts),
            in_order=tuple(name for name, cut in cuts.items() if cut.owner is not None),
            chosen=chosen[number],
            nodes={name: cut.nodes[number] for name, cut in cuts.items()},
        )
        for rank, number in enumerate(kept)
    }


def _chosen(
    problem: Problem,
    factor: TracedFactor,
    form: FactorForm,
    cuts: Mapping[str, Cut],
    number: int,
    workers: Sequence[Member],
) -> ChosenInstances:
    arrays, backend = problem.factors[factor.name], workers[number]
    if form.eliminated is None:
        return _evenly(arrays, number, len(workers))
    cut = cuts[form.eliminated_argument.node_type.name]
    index = arrays.nodes[form.eliminated_argument.name]
    assert index is not None
    if isinstance(index, PartedArray):

        def chosen_of(part: Array) -> Chosen:
            found = cut.within(part, number, backend)
            is_host = isinstance(part, np.ndarray) and not isinstance(found, slice)
            return on_host(backend, found) if is_host else found

        return ChosenParts(tuple(index.each(chosen_of)), index.offsets)
    found = cut.within(index, number, backend)
    return found if isinstance(found, slice) else on_host(backend, found)


def _evenly(arrays: FactorArrays, number: int, num_parts: int) -> ChosenInstances:
    """Return an even share of the instances; the factor's own part if it has as many."""
    count = arrays.count
    # pairs of neighbours stay neighbours
    chosen = slice(count * number // num_parts, count * (number + 1) // num_parts)
    offsets = arrays.offsets
    if offsets is None:
        return chosen
    if len(offsets) == num_parts + 1:
        chosen = slice(offsets[number], offsets[number + 1])
    return ChosenParts(tuple(pieces_of(chosen, offsets)), offsets)


def added_of(
    factors: Sequence[TracedFactor],
    form: SolverForm,
    most: Mapping[str, int],
    cuts: Mapping[str, Cut] | None = None,
) -> dict[str, int]:
    """Return, by type that remains, the instances that add to its nodes in the largest part.

    Where few of them have most of these, as many as if all had so many.
    """
    added: dict[str, int] = {}
    for factor in factors:
        eliminated = form.factors[factor.name].eliminated
        cut = None if cuts is None or eliminated is None else cuts[eliminated.node_type.name]
        crowded = {} if cut is None else cut.crowded
        for argument in factor.nodes:
            if argument is not eliminated and argument.kind is not ArgumentKind.NODE_UNIQUE:
                name = argument.node_type.name
                number = round(most[factor.name] * crowded.get(name, 1.0))
                added[name] = added.get(name, 0) + number
    return added


def make_part(
    problem: Problem,
    factors: Sequence[TracedFactor],
    shard: Shard,
    form: SolverForm,
    backend: Backend,
    *,
    to_device: bool = False,
) -> Problem:
    """The problem of a part, by what it has of each factor and eliminated type."""

    def own(name: str, rows: Any) -> Any:
        return _picked(rows, shard.nodes.get(name, slice(None)), backend)

    bounds = {
        name: NodeBounds(
            own(name, limits.lower),
            own(name, limits.upper),
            limits.places,
            own(name, limits.lower_given),
            own(name, limits.upper_given),
        )
        for name, limits in problem.bounds.items()
    }
    return Problem(
        values={name: own(name, rows) for name, rows in problem.values.items()},
        given={},
        dtypes=problem.dtypes,
        factors={
            factor.name: _instances(factor, problem, shard, form, backend, to_device=to_device)
            for factor in factors
        },
        free={name: own(name, rows) for name, rows in problem.free.items()},
        bounds=bounds,
    )


def _instances(
    factor: TracedFactor,
    problem: Problem,
    shard: Shard,
    form: SolverForm,
    backend: Backend,
    *,
    to_device: bool,
) -> FactorArrays:
    """Some instances of a factor; eliminated nodes get their places in the part.

    Rows of the host are copied when a device takes them.
    """
    arrays, chosen = problem.factors[factor.name], shard.chosen[factor.name]

    def picked_of(index: Array) -> Array:
        if to_device and isinstance(index, np.ndarray) and isinstance(chosen, np.ndarray):
            return _on_device(PickedRows(index, chosen), backend)
        return _picked(index, chosen, backend)

    nodes: dict[str, Array | None] = {}
    for argument in factor.nodes:
        index = arrays.nodes[argument.name]
        if index is None:
            nodes[argument.name] = None
            continue
        picked = picked_of(index)
        if argument is form.factors[factor.name].eliminated:
            own = shard.nodes[argument.node_type.name]
            if isinstance(picked, PartedArray):
                picked = picked.map(partial(_numbered, nodes=own, backend=backend))
            else:
                picked = _numbered(picked, own, backend)
        nodes[argument.name] = picked
    each = sources_by_instance(factor, arrays)
    constants = {}
    for source, constant in arrays.constants.items():
        rows, index = constant.rows, constant.index
        if index is not None:
            index = picked_of(index)
        elif source in each:
            if isinstance(rows, np.ndarray) and isinstance(chosen, np.ndarray):
                rows = PickedRows(np.ascontiguousarray(rows), chosen)
            else:
                rows = _picked(rows, chosen, backend)
        constants[source] = ConstantArray(rows, index)
    size = size_of(chosen)
    return FactorArrays(size, nodes, constants, arrays.by_instance, size)


def _numbered(index: Array, nodes: Chosen, backend: Backend) -> Array:
    """Numbers of nodes as places among those that a part has."""
    if isinstance(nodes, slice):
        return index - np.int32(nodes.start)
    own = nodes if isinstance(nodes, np.ndarray) else backend.to_host(nodes)
    places = np.zeros(int(own.max(initial=-1)) + 1, np.int32)
    places[own] = np.arange(len(own), dtype=np.int32)
    return (places if isinstance(index, np.ndarray) else backend.upload(places)).take(index)


def _on_device(rows: PickedRows, backend: Backend) -> Array:
    """Rows of the host where a device reads them."""
    if not backend.traits.host_arrays_are_copied:
        return rows.on_host()
    target = backend.xp.empty(rows.shape, rows.dtype)
    backend.write(target, rows)
    return target


def _picked(array: Array, chosen: ChosenInstances, backend: Backend) -> Array:
    if isinstance(array, PartedArray):
        if isinstance(chosen, ChosenParts):
            return array.pick(chosen.pieces)
        assert isinstance(chosen, slice)
        return array.range(chosen)
    assert not isinstance(chosen, ChosenParts)
    if isinstance(chosen, slice):
        return array[chosen]
    if not isinstance(array, np.ndarray):
        return array.take(backend.upload(chosen), axis=0)
    # of what is not contiguous `take` would copy all first
    return array.take(chosen, axis=0) if array.flags.c_contiguous else array[chosen]


def gathered(
    system: NormalEquations, rows: Mapping[str, Array], starts: Mapping[str, Array]
) -> Mapping[str, Array]:
    """Values of all nodes, on the first device; nothing on the others, which call this too."""
    communicator, shard = system.communicator, system.plan.shard
    if shard is None or communicator.group is None:
        return rows
    member = cast(Member, system.plan.library.backend)
    own: dict[str, Any] = {name: rows[name] for name in shard.nodes}
    if not (communicator.group.shares_memory or communicator.is_first):
        own = {name: member.to_host(end) for name, end in own.items()}
    ends = communicator.collect((shard.nodes, own))
    if not communicator.is_first:
        return {}
    moved = {}
    for name, end in rows.items():
        of_type = [(nodes[name], found[name]) for nodes, found in ends if name in nodes]
        start = starts[name]
        if isinstance(start, PartedArray):
            moved[name] = in_parts(start, of_type or [(slice(None), end)])
        else:
            moved[name] = _whole(start, of_type, member) if len(of_type) > 0 else end
    member.synchronize()
    return moved


def _whole(start: Array, ends: Sequence[tuple[Chosen, Array]], member: Member) -> Array:
    """Values of an eliminated type; nodes that no device has were touched by no factor."""
    whole = member.xp.array(member.upload(start))
    member.synchronize()
    for place, rows in ends:
        # of another process they are on the host
        end = member.upload(rows) if isinstance(rows, np.ndarray) else rows
        if not isinstance(place, slice):
            whole[member.upload(place)] = member.bring(end)
        elif place.stop > place.start:
            member.receive(whole[place], end)
    return whole


def last_values(
    system: NormalEquations, starts: Mapping[str, Array], member: Member
) -> dict[str, Any] | None:
    """Values of the last accepted step, as far as a device has them, on the host."""
    shard = system.plan.shard
    try:
        with member.scope():
            found = {name: member.to_host(rows) for name, rows in system.values().items()}
            whole = {}
            for name, given in starts.items():
                rows = np.array(given if isinstance(given, np.ndarray) else member.to_host(given))
                if name in found:
                    nodes = slice(None) if shard is None else shard.nodes.get(name, slice(None))
                    rows[nodes] = found[name]
                whole[name] = rows
    except Exception:
        # a device that has failed has none
        return None
    return whole


def in_parts(start: PartedArray, ends: Sequence[tuple[Chosen, Array]]) -> PartedArray:
    """Values after a solve in the parts in which start values were given, each where that is."""
    parts = []
    for (first, last), part, member in zip(
        pairwise(start.offsets), start.parts, start.members, strict=True
    ):
        pieces = []
        for nodes, rows in ends:
            assert isinstance(nodes, slice)
            begin, _, _ = nodes.indices(start.shape[0])
            low, high = max(begin, first), min(begin + int(rows.shape[0]), last)
            if low < high:
                pieces.append((low - first, rows[low - begin : high - begin]))
        with member.scope():
            parts.append(_part(part, pieces, member))
            member.synchronize()
    return PartedArray(tuple(parts), start.members)


def _part(start: Array, pieces: Sequence[tuple[int, Array]], member: Member) -> Array:
    """One part: pieces by their first rows; the rest was touched by no factor."""
    is_host = isinstance(start, np.ndarray)
    if len(pieces) == 1 and int(pieces[0][1].shape[0]) == int(start.shape[0]):
        rows = pieces[0][1]
        return member.to_host(rows) if is_host else member.bring(rows)
    whole = (np if is_host else member.xp).array(start)
    member.synchronize()
    for first, rows in pieces:
        place = whole[first : first + int(rows.shape[0])]
        if is_host:
            place[...] = member.to_host(rows)
        else:
            member.receive(place, rows)
    return whole
