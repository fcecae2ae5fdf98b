"""A problem in parts, one for each device.

Nodes of an eliminated type are divided (`shards.cuts`), and instances of factors go with them.
Instances of other factors are cut evenly. Nodes that remain, and constants that are not one for
each instance, are in every part.

Input: a checked problem, and how its kernels are made. Output: parts; a device without instances
has none. Cost: a pass over the indices of eliminated nodes, and copies of what is one for each
instance, unless it stands in the order of the parts. Once for a solve.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from caspar.equations.factor_builder import FactorForm
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.trace import ArgumentKind, TracedFactor
from caspar.memory.array import Array
from caspar.memory.picked_rows import PickedRows
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Member
from caspar.solver.input.bounds import NodeBounds
from caspar.solver.input.parted_array import PartedArray, pieces_of
from caspar.solver.input.problem import ConstantArray, FactorArrays, Problem
from caspar.solver.plan.shard import Chosen, ChosenInstances, ChosenParts, Shard, size_of
from caspar.solver.shards.cuts import Cut, cut_type


@dataclass(frozen=True)
class Part:
    """What one device has.

    Attributes:
        problem: With arrays where the whole problem's are.
        shard: What it knows of the whole.
        nodes: By eliminated type which nodes it has: a range, or (k,) numbers, on the host.
        remarks: On how nodes were divided; of all parts alike.
    """

    problem: Problem
    shard: Shard
    nodes: Mapping[str, Chosen]
    remarks: tuple[str, ...] = ()

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
    cuts = {
        name: cut_type(problem, factors, form, name, num_parts, backend) for name in form.eliminated
    }

    def chosen_of(number: int) -> dict[str, ChosenInstances]:
        with backend.scope():
            return {
                factor.name: _chosen(
                    problem, factor, form.factors[factor.name], cuts, number, num_parts, backend
                )
                for factor in factors
            }

    def part_of(shard: Shard, number: int) -> Part:
        nodes = {name: cut.nodes[number] for name, cut in cuts.items()}
        with backend.scope():
            part = make_part(problem, factors, shard, nodes, form, backend)
        return replace(part, remarks=tuple(cut.remark for cut in cuts.values() if cut.remark))

    # NumPy's copies are made at the same time
    with ThreadPoolExecutor(num_parts) as threads:
        chosen = [*threads.map(chosen_of, range(num_parts))]
        sizes = [{name: size_of(one) for name, one in by_factor.items()} for by_factor in chosen]
        kept = [number for number in range(num_parts) if sum(sizes[number].values()) > 0]
        most = {
            factor.name: max(sizes[number][factor.name] for number in kept) for factor in factors
        }
        shards = [
            Shard(
                rank=rank,
                size=len(kept),
                group=group,
                counts=problem.counts,
                instances={name: arrays.count for name, arrays in problem.factors.items()},
                most=most,
                added=added_of(factors, form, most),
                in_order=tuple(name for name, cut in cuts.items() if cut.owner is not None),
                chosen=chosen[number],
            )
            for rank, number in enumerate(kept)
        ]
        return [*threads.map(part_of, shards, kept)]


def _chosen(
    problem: Problem,
    factor: TracedFactor,
    form: FactorForm,
    cuts: Mapping[str, Cut],
    number: int,
    num_parts: int,
    backend: Backend,
) -> ChosenInstances:
    """Which instances of a factor a part has."""
    arrays = problem.factors[factor.name]
    if form.eliminated is None:
        return _evenly(arrays, number, num_parts)
    cut = cuts[form.eliminated_argument.node_type.name]
    index = arrays.nodes[form.eliminated_argument.name]
    assert index is not None
    if isinstance(index, PartedArray):
        pieces = index.each(lambda part: cut.within(part, number, backend))
        return ChosenParts(tuple(pieces), index.offsets)
    return cut.within(index, number, backend)


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
    backend: Backend,
) -> Part:
    """A part, by what it has of each factor and eliminated type."""
    everything = slice(None)

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
    backend: Backend,
) -> FactorArrays:
    """Some instances of a factor; eliminated nodes are counted from the first of the part."""
    nodes: dict[str, Array | None] = {}
    for argument in factor.nodes:
        index = arrays.nodes[argument.name]
        if index is None:
            nodes[argument.name] = None
            continue
        picked = _picked(index, chosen, backend)
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
            index = _picked(index, chosen, backend)
        elif source in sequential or source in arrays.by_instance:
            rows = _lazily_picked(rows, chosen, backend)
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


def _lazily_picked(array: Array, chosen: ChosenInstances, backend: Backend) -> Array | PickedRows:
    """The chosen rows; those of the host are copied when a device takes them."""
    if not isinstance(array, np.ndarray) or isinstance(chosen, slice | ChosenParts):
        return _picked(array, chosen, backend)
    numbers = chosen if isinstance(chosen, np.ndarray) else backend.to_host(chosen)
    return PickedRows(np.ascontiguousarray(array), numbers)


def _picked(array: Array, chosen: ChosenInstances, backend: Backend) -> Array:
    """The chosen rows of an array."""
    if isinstance(array, PartedArray):
        if isinstance(chosen, ChosenParts):
            return array.pick(chosen.pieces)
        assert isinstance(chosen, slice)
        return array.range(chosen)
    assert not isinstance(chosen, ChosenParts)
    if isinstance(chosen, slice):
        return array[chosen]
    if not isinstance(array, np.ndarray):
        return array[backend.upload(chosen)]
    numbers = chosen if isinstance(chosen, np.ndarray) else backend.to_host(chosen)
    # of what is not contiguous `take` would copy all first
    return array.take(numbers, axis=0) if array.flags.c_contiguous else array[numbers]
