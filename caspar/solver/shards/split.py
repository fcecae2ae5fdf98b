"""A problem in parts, one for each device.

Nodes of an eliminated type are divided (`shards.cuts`), and instances of factors go with them.
Instances of other factors are cut evenly. Nodes that remain, and constants that are not one for
each instance, are in every part.

Input: a checked problem, and how its kernels are made. Output: parts; a device without instances
has none. Cost: a pass over the indices of eliminated nodes, and copies of what is one for each
instance, unless it stands in the order of the parts. Once for a solve.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from caspar.equations.factor_builder import FactorForm
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.trace import ArgumentKind, TracedFactor
from caspar.memory.array import Array, PickedRows
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Member
from caspar.solver.input.bounds import NodeBounds
from caspar.solver.input.parted_array import PartedArray, on_host, pieces_of
from caspar.solver.input.problem import ConstantArray, FactorArrays, Problem
from caspar.solver.plan.shard import Chosen, ChosenInstances, ChosenParts, Shard, size_of
from caspar.solver.shards.cuts import Cut, cut_type


@dataclass(frozen=True)
class Part:
    """The part of one device.

    Attributes:
        problem: With arrays where the whole problem's are, or on the part's device.
        shard: Its facts on the whole.
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
    """Cut a problem into parts.

    Args:
        problem: The problem, with arrays on the first device or on the host.
        factors: Its factors.
        form: How their kernels are made.
        members: The device of each part, of which those without instances are left out.
        to_devices: Whether each device picks indices of the host by itself; else the host does.
        make_room: Gives back memory of devices that is kept for another solve.
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
        return replace(part, remarks=tuple(cut.remark for cut in cuts.values() if cut.remark))

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
    """Return the instances of a factor that a part has."""
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
) -> Part:
    """A part, by what it has of each factor and eliminated type.

    Args:
        problem: The whole, or what one process has of it.
        factors: Its factors.
        shard: Its instances and nodes.
        form: How kernels are made.
        backend: Where the arrays are, unless they are on the host.
        to_device: Whether picked indices of the host go there.
    """
    everything, nodes = slice(None), shard.nodes

    def own(name: str, rows: Any) -> Any:
        return _picked(rows, nodes.get(name, everything), backend)

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
    part = Problem(
        values={name: own(name, rows) for name, rows in problem.values.items()},
        given={},
        dtypes=problem.dtypes,
        factors={
            factor.name: _instances(
                factor,
                problem.factors[factor.name],
                shard.chosen[factor.name],
                nodes,
                form.factors[factor.name],
                backend,
                to_device=to_device,
            )
            for factor in factors
        },
        free={name: own(name, rows) for name, rows in problem.free.items()},
        bounds=bounds,
    )
    return Part(part, shard)


def _instances(
    factor: TracedFactor,
    arrays: FactorArrays,
    chosen: ChosenInstances,
    chosen_nodes: Mapping[str, Chosen],
    form: FactorForm,
    backend: Backend,
    *,
    to_device: bool,
) -> FactorArrays:
    """Some instances of a factor; eliminated nodes get their places in the part.

    Rows of the host are copied when a device takes them.
    """

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
        if argument is form.eliminated:
            own = chosen_nodes[argument.node_type.name]
            if isinstance(picked, PartedArray):
                picked = picked.map(partial(_numbered, nodes=own, backend=backend))
            else:
                picked = _numbered(picked, own, backend)
        nodes[argument.name] = picked
    sequential = {one.source for one in factor.inputs if one.kind is ArgumentKind.CONST_SEQUENTIAL}
    constants = {}
    for source, constant in arrays.constants.items():
        rows, index = constant.rows, constant.index
        if index is not None:
            index = picked_of(index)
        elif source in sequential or source in arrays.by_instance:
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
    """The chosen rows of an array, where it is."""
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
