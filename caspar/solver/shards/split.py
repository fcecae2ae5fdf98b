"""A problem in parts, one for each device.

Nodes of an eliminated type are cut into ranges that have about as many instances of factors; these
go with their nodes. Instances of other factors are cut evenly. Nodes that remain, and constants
that are not one for each instance, are in every part.

Input: a checked problem, and how its kernels are made. Output: parts; a device without instances
has none. Cost: a pass over the indices of eliminated nodes, and copies of what is one for each
instance, unless it stands in the order of the parts. Once for a solve.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.equations.factor_builder import FactorForm
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.trace import ArgumentKind, TracedFactor
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Member
from caspar.solver.input.bounds import NodeBounds
from caspar.solver.input.parted_array import PartedArray, pieces_of, placed
from caspar.solver.input.problem import ConstantArray, FactorArrays, Problem
from caspar.solver.plan.shard import Chosen, ChosenInstances, ChosenParts, Shard, size_of


@dataclass(frozen=True)
class Part:
    """What one device has.

    Attributes:
        problem: With arrays where the whole problem's are.
        shard: What it knows of the whole.
        nodes: By eliminated type which nodes it has: a range, or (k,) numbers in ascending order.
    """

    problem: Problem
    shard: Shard
    nodes: Mapping[str, Chosen]

    def on(self, backend: Member) -> Problem:
        """The same with arrays that a device reads."""
        return self.problem.joined(backend)


def split_problem(
    problem: Problem,
    factors: Sequence[TracedFactor],
    form: SolverForm,
    num_parts: int,
    backend: Backend,
    group: int = 0,
) -> list[Part]:
    """Cut a problem into parts.

    Args:
        problem: The problem.
        factors: Its factors.
        form: How their kernels are made.
        num_parts: Parts at most; those without instances are left out.
        backend: Where the arrays are, unless they are on the host.
        group: Number of the group whose members will have them.
    """
    cuts = {name: _cut_type(problem, form, name, num_parts, backend) for name in form.eliminated}
    chosen = [
        {
            factor.name: _chosen(
                problem, factor, form.factors[factor.name], cuts, number, num_parts
            )
            for factor in factors
        }
        for number in range(num_parts)
    ]
    sizes = [{name: size_of(one) for name, one in by_factor.items()} for by_factor in chosen]
    kept = [number for number in range(num_parts) if sum(sizes[number].values()) > 0]
    most = {factor.name: max(sizes[number][factor.name] for number in kept) for factor in factors}
    shards = [
        Shard(
            rank=rank,
            size=len(kept),
            group=group,
            counts=problem.counts,
            instances={name: arrays.count for name, arrays in problem.factors.items()},
            most=most,
            added=added_of(factors, form, most),
            chosen=chosen[number],
        )
        for rank, number in enumerate(kept)
    ]
    return [
        make_part(problem, factors, shard, {name: cut[number] for name, cut in cuts.items()}, form)
        for shard, number in zip(shards, kept, strict=True)
    ]


def _cut_type(
    problem: Problem, form: SolverForm, name: str, num_parts: int, backend: Backend
) -> list[slice]:
    """Ranges of an eliminated type's nodes that have about as many instances.

    Of a type that is given in as many parts as there are devices, the parts.
    """
    values = problem.values[name]
    if isinstance(values, PartedArray) and len(values.parts) == num_parts:
        return [slice(start, end) for start, end in pairwise(values.offsets)]
    count = problem.counts[name]
    touching = np.zeros(count, np.int64)
    for factor, own in form.factors.items():
        if not own.eliminates(name):
            continue
        index = problem.factors[factor].nodes[own.eliminated_argument.name]
        assert index is not None
        for part, device in placed(index, backend):
            with device.scope():
                touching += _bincount(device, part, count)
    before = np.cumsum(touching)
    goals = before[-1] * np.arange(1, num_parts) / num_parts if count > 0 else np.zeros(0)
    ends = np.searchsorted(before, goals, side="left") + 1 if count > 0 else goals
    places = [0, *(min(int(end), count) for end in ends), count]
    if count == 0:
        places = [0] * (num_parts + 1)
    return [slice(start, end) for start, end in pairwise(places)]


def _bincount(backend: Backend, index: Array, count: int) -> NDArray[np.int64]:
    """(count,) how often an index names each node, on the host."""
    if isinstance(index, np.ndarray):
        return np.bincount(index, minlength=count)
    return backend.to_host(backend.xp.bincount(index, minlength=count))


def _chosen(
    problem: Problem,
    factor: TracedFactor,
    form: FactorForm,
    cuts: Mapping[str, Sequence[slice]],
    number: int,
    num_parts: int,
) -> ChosenInstances:
    """Which instances of a factor a part has."""
    arrays = problem.factors[factor.name]
    if form.eliminated is None:
        return _evenly(arrays, number, num_parts)
    nodes = cuts[form.eliminated_argument.node_type.name][number]
    index = arrays.nodes[form.eliminated_argument.name]
    assert index is not None
    if isinstance(index, PartedArray):
        pieces = index.each(lambda part: _within(part, nodes))
        return ChosenParts(tuple(pieces), index.offsets)
    return _within(index, nodes)


def _evenly(arrays: FactorArrays, number: int, num_parts: int) -> ChosenInstances:
    """As many instances as any other part has; of a factor in as many parts one of these."""
    count = arrays.count
    # pairs of neighbours stay neighbours
    chosen = slice(count * number // num_parts, count * (number + 1) // num_parts)
    offsets = arrays.offsets
    if offsets is None:
        return chosen
    if len(offsets) == num_parts + 1:
        chosen = slice(offsets[number], offsets[number + 1])
    return ChosenParts(tuple(pieces_of(chosen, offsets)), offsets)


def _within(index: Array, nodes: slice) -> Chosen:
    """Which entries of an index name a node of a range: as a range if they stand together."""
    (found,) = ((index >= nodes.start) & (index < nodes.stop)).nonzero()
    size = int(found.shape[0])
    if size == 0:
        return slice(0, 0)
    first, last = int(found[0]), int(found[-1])
    return slice(first, last + 1) if last - first + 1 == size else found


def added_of(
    factors: Sequence[TracedFactor], form: SolverForm, most: Mapping[str, int]
) -> dict[str, int]:
    """By type that remains how many instances add to its nodes in the part with the most."""
    added: dict[str, int] = {}
    for factor in factors:
        eliminated = form.factors[factor.name].eliminated
        for argument in factor.nodes:
            if argument is not eliminated and argument.kind is not ArgumentKind.NODE_UNIQUE:
                name = argument.node_type.name
                added[name] = added.get(name, 0) + most[factor.name]
    return added


def make_part(
    problem: Problem,
    factors: Sequence[TracedFactor],
    shard: Shard,
    nodes: Mapping[str, Chosen],
    form: SolverForm,
) -> Part:
    """A part, by what it has of each factor and eliminated type."""
    everything = slice(None)

    def own(name: str, rows: Any) -> Any:
        return _picked(rows, nodes.get(name, everything))

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
            )
            for factor in factors
        },
        free={name: own(name, rows) for name, rows in problem.free.items()},
        bounds=bounds,
    )
    return Part(part, shard, nodes)


def _instances(
    factor: TracedFactor,
    arrays: FactorArrays,
    chosen: ChosenInstances,
    chosen_nodes: Mapping[str, Chosen],
    form: FactorForm,
) -> FactorArrays:
    """Some instances of a factor; eliminated nodes are counted from the first of the part."""
    nodes: dict[str, Array | None] = {}
    for argument in factor.nodes:
        index = arrays.nodes[argument.name]
        if index is None:
            nodes[argument.name] = None
            continue
        picked = _picked(index, chosen)
        if argument is form.eliminated:
            own = chosen_nodes[argument.node_type.name]
            if isinstance(picked, PartedArray):
                picked = picked.map(partial(_numbered, nodes=own))
            else:
                picked = _numbered(picked, own)
        nodes[argument.name] = picked
    sequential = {one.source for one in factor.inputs if one.kind is ArgumentKind.CONST_SEQUENTIAL}
    constants = {}
    for source, constant in arrays.constants.items():
        rows, index = constant.rows, constant.index
        if index is not None:
            index = _picked(index, chosen)
        elif source in sequential or source in arrays.by_instance:
            rows = _picked(rows, chosen)
        constants[source] = ConstantArray(rows, index)
    size = size_of(chosen)
    return FactorArrays(size, nodes, constants, arrays.by_instance, size)


def _numbered(index: Array, nodes: Chosen) -> Array:
    """Numbers of nodes as numbers among those that a part has."""
    if isinstance(nodes, slice):
        return index - np.int32(nodes.start)
    places = np.zeros(int(nodes[-1]) + 1, np.int32) if len(nodes) > 0 else np.zeros(0, np.int32)
    places[nodes] = np.arange(len(nodes), dtype=np.int32)
    if isinstance(index, np.ndarray):
        return places[index]
    # an array of a device takes its library's indices only
    found: Array = type(index)(index.shape, np.int32)
    found.set(places[index.get()])
    return found


def _picked(array: Array, chosen: ChosenInstances) -> Array:
    """The chosen rows of an array."""
    if isinstance(array, PartedArray):
        if isinstance(chosen, ChosenParts):
            return array.pick(chosen.pieces)
        assert isinstance(chosen, slice)
        return array.range(chosen)
    assert not isinstance(chosen, ChosenParts)
    if isinstance(array, np.ndarray) and not isinstance(chosen, slice | np.ndarray):
        return array[chosen.get()]
    return array[chosen]
