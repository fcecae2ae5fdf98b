"""Outline the whole problem for ranks over which its factors are spread.

An outline is a problem with the true nodes, and arrays of factors that have the right shapes and no
contents: they take no memory. All decisions by size follow from it, the same on all ranks. Cost
tier: once for a solve; a pass over the nodes.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caspar.errors import InputError
from caspar.frontend.factors.trace import ArgumentKind, TracedFactor
from caspar.memory.array import Array, PickedRows
from caspar.solver.input.problem import ConstantArray, FactorArrays, Problem

ToHost = Callable[[Array], Any]


@dataclass(frozen=True)
class ConstantFacts:
    """Sizes of a constant: rows, scalars in each, their type, and how many indices; None: none."""

    rows: int
    dim: int
    dtype: str
    index: int | None


@dataclass(frozen=True)
class FactorFacts:
    """Sizes of a factor's arrays.

    `nodes` says by argument whether there is an index; `shared` is a digest of the constants that
    all instances have in common.
    """

    count: int
    num_counted: int
    nodes: Mapping[str, bool]
    constants: Mapping[str, ConstantFacts]
    by_instance: tuple[str, ...]
    shared: str


@dataclass(frozen=True)
class Facts:
    """Facts on one rank's arrays that it sends to the others.

    Attributes:
        runs_on: Target and precision, which must be alike.
        names: Factors and node types of the solver.
        counts: Instances of each node type.
        factors: Sizes of each factor's arrays.
        digests: By node type, of its values and of its held and bounded components.
    """

    runs_on: tuple[str, ...]
    names: tuple[str, ...]
    counts: Mapping[str, int]
    factors: Mapping[str, FactorFacts]
    digests: Mapping[str, str]


def facts_of(
    problem: Problem,
    traced: Sequence[TracedFactor],
    runs_on: tuple[str, ...],
    to_host: ToHost,
) -> Facts:
    """Return the facts on a problem that others are told.

    Args:
        problem: This rank's.
        traced: Its factors.
        runs_on: See `Facts`.
        to_host: Brings arrays of the device to the host.
    """
    shared = {one.name: _shared_sources(one, problem.factors[one.name]) for one in traced}
    factors = {
        name: FactorFacts(
            arrays.count,
            arrays.num_counted,
            {argument: index is not None for argument, index in arrays.nodes.items()},
            {
                source: ConstantFacts(
                    int(one.rows.shape[0]),
                    int(one.rows.shape[1]),
                    one.rows.dtype.name,
                    None if one.index is None else int(one.index.shape[0]),
                )
                for source, one in arrays.constants.items()
            },
            arrays.by_instance,
            _digest_of([arrays.constants[source].rows for source in shared[name]], to_host),
        )
        for name, arrays in problem.factors.items()
    }
    digests = {name: _digest(problem, name, to_host) for name in problem.values}
    names = (*problem.factors, *problem.values)
    return Facts(runs_on, names, problem.counts, factors, digests)


def _shared_sources(factor: TracedFactor, arrays: FactorArrays) -> list[str]:
    kinds = {argument.source: argument.kind for argument in factor.arguments}
    return [
        source
        for source in arrays.constants
        if kinds.get(source, ArgumentKind.CONST_UNIQUE) is ArgumentKind.CONST_UNIQUE
        and source not in arrays.by_instance
    ]


def _digest(problem: Problem, name: str, to_host: ToHost) -> str:
    arrays: list[Any] = [problem.values[name]]
    if name in problem.free:
        arrays.append(problem.free[name])
    if name in problem.bounds:
        arrays += [problem.bounds[name].lower, problem.bounds[name].upper]
    return _digest_of(arrays, to_host)


def _digest_of(arrays: Sequence[Any], to_host: ToHost) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        rows = array if isinstance(array, np.ndarray) else to_host(array)
        digest.update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def check_alike(found: Sequence[Facts], name: Callable[[int], str]) -> None:
    """Return whether ranks pass parts of the same problem.

    Args:
        found: Of all ranks.
        name: A rank in words.

    Raises:
        InputError: They do not; says which ranks, and what differs.
    """
    first = found[0]
    for rank, facts in enumerate(found):
        for what, own, other in (
            ("factors and node types", facts.names, first.names),
            ("backends and precisions", facts.runs_on, first.runs_on),
        ):
            if own != other:
                raise InputError(
                    f"{name(rank)} has other {what} than {name(0)}: {', '.join(own)} in place of "
                    f"{', '.join(other)}; make the same solver on all ranks"
                )
        for node, digest in facts.digests.items():
            if facts.counts[node] != first.counts[node]:
                raise InputError(
                    f"node type {node}: {name(rank)} passed {facts.counts[node]} instances, "
                    f"{name(0)} {first.counts[node]}; pass the same node arrays on all ranks"
                )
            if digest != first.digests[node]:
                raise InputError(
                    f"node type {node}: {name(rank)} passed other values, or holds or bounds "
                    f"others, than {name(0)}; pass the same node arrays, fixed and bounds on all "
                    "ranks, or let rank 0 pass everything and the others None"
                )
    for factor in first.factors:
        _check_factor(factor, found, name)


def _check_factor(factor: str, found: Sequence[Facts], name: Callable[[int], str]) -> None:
    with_some = {
        rank: facts.factors[factor]
        for rank, facts in enumerate(found)
        if facts.factors[factor].count > 0
    }
    if len(with_some) == 0:
        return
    first = min(with_some)
    for rank, own in with_some.items():
        if own.by_instance != with_some[first].by_instance:
            raise InputError(
                f"factor {factor}: {name(rank)} passed {_terms(own)}, {name(first)} "
                f"{_terms(with_some[first])}; pass weight and loss_scale on all ranks or on none"
            )
        if own.shared != with_some[first].shared:
            raise InputError(
                f"factor {factor}: {name(rank)} passed other constants for all instances than "
                f"{name(first)}; they must be the same on all ranks"
            )


def _terms(facts: FactorFacts) -> str:
    return " and ".join(facts.by_instance) or "no weight"


def is_whole_everywhere(factor: TracedFactor) -> bool:
    """Return whether all ranks pass all instances of a factor: nothing of it says which ones.

    It takes nodes in pairs of neighbours, or has one instance.
    """
    kinds = {argument.kind for argument in factor.arguments}
    if ArgumentKind.NODE_PAIR in kinds:
        return True
    one_each = {
        ArgumentKind.NODE_SHARED,
        ArgumentKind.CONST_SEQUENTIAL,
        ArgumentKind.CONST_INDEXED,
    }
    return kinds.isdisjoint(one_each)


def without(problem: Problem, names: Sequence[str]) -> Problem:
    """The same with no instances of some factors."""
    none = slice(0, 0)
    factors = dict(problem.factors)
    for name in names:
        arrays = factors[name]
        nodes = {one: None if index is None else index[none] for one, index in arrays.nodes.items()}
        factors[name] = replace(arrays, count=0, num_counted=0, nodes=nodes)
    return replace(problem, factors=factors)


def outline(nodes: Problem, found: Sequence[Facts]) -> Problem:
    """The whole problem, with shapes in place of factors' arrays.

    Args:
        nodes: Has all node types as they are.
        found: Of the ranks that have instances of factors.
    """
    factors = {}
    for name in found[0].factors:
        own = [facts.factors[name] for facts in found]
        known = next((one for one in own if one.count > 0), own[0])
        count = sum(one.count for one in own)
        constants = {source: _constant(source, own) for source in known.constants}
        arguments = {
            argument: np.broadcast_to(np.zeros((), np.int32), (count,)) if has_index else None
            for argument, has_index in known.nodes.items()
        }
        factors[name] = FactorArrays(
            count, arguments, constants, known.by_instance, sum(one.num_counted for one in own)
        )
    return replace(nodes, factors=factors)


def _constant(source: str, own: Sequence[FactorFacts]) -> ConstantArray:
    """Rows of all ranks; one that all factors share is on each."""
    facts = [one.constants[source] for one in own if one.count > 0 and source in one.constants]
    if len(facts) == 0:
        facts = [own[0].constants[source]]
    num_rows = sum(one.rows for one in facts)
    rows = np.broadcast_to(np.zeros((), facts[0].dtype), (num_rows, facts[0].dim))
    if facts[0].index is None:
        return ConstantArray(rows, None)
    size = sum(one.index or 0 for one in facts)
    return ConstantArray(rows, np.broadcast_to(np.zeros((), np.int32), (size,)))


def joined(parts: Sequence[Problem], factors: Sequence[TracedFactor]) -> Problem:
    """One problem of the instances of several, all on the host, which have the same nodes."""
    made = {}
    for factor in factors:
        own = [part.factors[factor.name] for part in parts if part.factors[factor.name].count > 0]
        if len(own) == 0:
            made[factor.name] = parts[0].factors[factor.name]
            continue
        each = {one.source for one in factor.inputs if one.kind is ArgumentKind.CONST_SEQUENTIAL}
        each |= set(own[0].by_instance)
        made[factor.name] = FactorArrays(
            sum(one.count for one in own),
            {
                argument: None
                if index is None
                else np.concatenate([one.nodes[argument] for one in own])
                for argument, index in own[0].nodes.items()
            },
            {
                source: _joined_constant([one.constants[source] for one in own], source in each)
                for source in own[0].constants
            },
            own[0].by_instance,
            sum(one.num_counted for one in own),
        )
    return replace(parts[0], factors=made)


def _joined_constant(own: Sequence[ConstantArray], is_each: bool) -> ConstantArray:
    if own[0].index is not None:
        firsts = np.cumsum([0, *(len(one.rows) for one in own)])
        index = [
            one.index + np.int32(first)
            for one, first in zip(own, firsts, strict=False)
            if one.index is not None
        ]
        return ConstantArray(np.concatenate([one.rows for one in own]), np.concatenate(index))
    if not is_each:
        return own[0]
    return ConstantArray(np.concatenate([one.rows for one in own]), None)


def on_host(problem: Problem, to_host: ToHost) -> Problem:
    """The same with all arrays on the host, for another process."""

    def bring(array: Any) -> Any:
        if isinstance(array, PickedRows):
            return array.on_host()
        return array if isinstance(array, np.ndarray) else to_host(array)

    moved = problem.with_indices(bring)
    factors = {
        name: replace(
            arrays,
            constants={
                source: ConstantArray(bring(one.rows), one.index)
                for source, one in arrays.constants.items()
            },
        )
        for name, arrays in moved.factors.items()
    }
    return replace(
        moved,
        values={name: bring(rows) for name, rows in problem.values.items()},
        given={},
        factors=factors,
        free={name: bring(rows) for name, rows in problem.free.items()},
    )
