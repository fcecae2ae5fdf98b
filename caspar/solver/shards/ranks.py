"""One problem in several processes, the ranks of a launch, each with a device of its own.

Each rank passes its part of the factors, with the same nodes; or rank 0 passes all, and the others
None. All ranks read and choose together, and what is wrong on one is an error on all. An outline is
a problem with the true nodes, and arrays of factors that have the right shapes and no contents: all
decisions by size follow from it, the same on all ranks. Then each sets up and solves its part, as
the threads of `devices` do. Whoever fails ends all.

Cost: a pass over the nodes, once for a solve; connections once for each set of ranks that share
problems, and again after a failure.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from caspar.driver import SolverDesign
from caspar.equations.solver_form import SolverForm
from caspar.errors import InputError
from caspar.frontend.factors.trace import ArgumentKind, TracedFactor
from caspar.memory.array import Array, PickedRows
from caspar.options import Precision
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Member
from caspar.runtime.group.peers import Peers
from caspar.runtime.group.ranks import Ranks
from caspar.runtime.group.sockets import ProcessGroup, SocketGroup
from caspar.runtime.select import chosen_target, member_of_rank, nccl_group_of_ranks, nccl_meeting
from caspar.solver.active import Active
from caspar.solver.choice.form import Recipe
from caspar.solver.input.problem import (
    ConstantArray,
    FactorArrays,
    Problem,
    joined_arrays,
    sources_by_instance,
)
from caspar.solver.plan.planning import warn_untouched
from caspar.solver.plan.shard import Chosen, Shard, as_range
from caspar.solver.shards.crew import Reading, Share
from caspar.solver.shards.devices import Devices, Team, chosen_devices, named_backend
from caspar.solver.shards.split import added_of, make_part, split_problem

ToHost = Callable[[Array], Any]


class Shape(NamedTuple):
    """An array without its contents."""

    dtype: Any
    shape: tuple[int, ...]

    @staticmethod
    def joined(shapes: Sequence["Shape"]) -> "Shape":
        """All of them, one behind the other."""
        rows = sum(one.shape[0] for one in shapes)
        return Shape(shapes[0].dtype, (rows, *shapes[0].shape[1:]))


@dataclass(frozen=True)
class Facts:
    """Facts on one rank's arrays that it sends to the others.

    Attributes:
        shared: By factor a digest of the constants that all instances have in common.
        digests: By node type, of its values and of its held and bounded components.
    """

    runs_on: tuple[str, ...]
    names: tuple[str, ...]
    counts: Mapping[str, int]
    factors: Mapping[str, FactorArrays]
    shared: Mapping[str, str]
    digests: Mapping[str, str]


def facts_of(
    problem: Problem, traced: Sequence[TracedFactor], runs_on: tuple[str, ...], to_host: ToHost
) -> Facts:
    """Return the facts on a problem that others are told."""
    shapes = problem.brought(lambda array: Shape(np.dtype(array.dtype.name), array.shape))
    shared = {}
    for one in traced:
        constants = problem.factors[one.name].constants
        sources = _shared_sources(one, problem.factors[one.name])
        shared[one.name] = _digest_of([constants[source].rows for source in sources], to_host)
    digests = {name: _digest(problem, name, to_host) for name in problem.values}
    names = (*problem.factors, *problem.values)
    return Facts(runs_on, names, problem.counts, shapes.factors, shared, digests)


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
    """Return whether ranks pass parts of the same problem."""
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
    with_some = [rank for rank, facts in enumerate(found) if facts.factors[factor].count > 0]
    for rank in with_some[1:]:
        first, own = (found[one].factors[factor] for one in (with_some[0], rank))
        if own.by_instance != first.by_instance:
            passed, other = (" and ".join(one.by_instance) or "no weight" for one in (own, first))
            raise InputError(
                f"factor {factor}: {name(rank)} passed {passed}, {name(with_some[0])} {other}; "
                "pass weight and loss_scale on all ranks or on none"
            )
        if found[rank].shared[factor] != found[with_some[0]].shared[factor]:
            raise InputError(
                f"factor {factor}: {name(rank)} passed other constants for all instances than "
                f"{name(with_some[0])}; they must be the same on all ranks"
            )


def is_whole_everywhere(factor: TracedFactor) -> bool:
    """Return whether all ranks pass all instances of a factor: nothing of it says which ones.

    It takes nodes in pairs of neighbours, or has one instance.
    """
    kinds = {argument.kind for argument in factor.arguments}
    if ArgumentKind.NODE_PAIR in kinds:
        return True
    one_each = {ArgumentKind.NODE_SHARED, ArgumentKind.CONST_SEQUENTIAL, ArgumentKind.CONST_INDEXED}
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
    """The whole problem, with arrays of factors that have the right shapes and no contents."""

    def constant(_: str, own: Sequence[ConstantArray]) -> ConstantArray:
        index = [one.index for one in own if one.index is not None]
        rows = Shape.joined([one.rows for one in own])
        return ConstantArray(rows, Shape.joined(index) if len(index) > 0 else None)

    factors = {}
    for name in found[0].factors:
        every = [facts.factors[name] for facts in found]
        own = [one for one in every if one.count > 0] or every[:1]
        factors[name] = joined_arrays(own, Shape.joined, constant)
    return replace(nodes, factors=factors).brought(
        lambda one: (
            np.broadcast_to(np.zeros((), one.dtype), one.shape) if isinstance(one, Shape) else one
        )
    )


def joined(parts: Sequence[Problem], factors: Sequence[TracedFactor]) -> Problem:
    """One problem of the instances of several, all on the host, which have the same nodes."""
    made = {}
    for factor in factors:
        own = [part.factors[factor.name] for part in parts if part.factors[factor.name].count > 0]
        if len(own) == 0:
            made[factor.name] = parts[0].factors[factor.name]
            continue
        constant = partial(_joined_constant, sources_by_instance(factor, own[0]))
        made[factor.name] = joined_arrays(own, np.concatenate, constant)
    return replace(parts[0], factors=made)


def _joined_constant(each: set[str], source: str, own: Sequence[ConstantArray]) -> ConstantArray:
    index, rows = own[0].index, own[0].rows
    if index is not None or source in each:
        rows = np.concatenate([one.rows for one in own])
    if index is not None:
        firsts = np.cumsum([0, *(len(one.rows) for one in own[:-1])]).astype(np.int32)
        index = np.concatenate([one.index + at for one, at in zip(own, firsts, strict=True)])
    return ConstantArray(rows, index)


def on_host(problem: Problem, to_host: ToHost) -> Problem:
    """The same with all arrays on the host, for another process."""

    def bring(array: Any) -> Any:
        if isinstance(array, PickedRows):
            return array.on_host()
        return array if isinstance(array, np.ndarray) else to_host(array)

    return replace(problem.brought(bring), given={})


ReadOwn = Callable[[Precision], Problem]
"""Reads what the user passed on this rank."""


def read_together(
    devices: "RankDevices",
    choose: Callable[[Problem], Active],
    recipe: Recipe,
    read: ReadOwn | None,
) -> Reading:
    """Check the arrays of all ranks, and choose what takes part; called on all of them."""
    peers = devices.peers
    has_some = peers.exchange(lambda: read is not None)
    if not has_some[0] or (any(has_some[1:]) and not all(has_some)):
        passed = ", ".join(str(rank) for rank, some in enumerate(has_some) if some) or "none"
        raise InputError(
            "arrays: on several ranks either all pass arrays, each its part of the factors, or "
            f"rank 0 does and the others pass None; these passed some: {passed}"
        )
    is_spread = all(has_some)
    known = _read(devices, recipe, read, recipe.precision, is_spread)
    active = choose(known[1])
    if active.recipe.precision is not recipe.precision:
        known = _read(devices, recipe, read, active.recipe.precision, is_spread)
    own, whole, sizes = known
    names = [factor.name for factor in active.recipe.factors]
    of_active = tuple({name: size[name] for name in names} for size in sizes)
    part = None if own is None else active.part(own)
    return Reading(part, whole, active, of_active, is_spread)


def _read(
    devices: "RankDevices",
    recipe: Recipe,
    read: ReadOwn | None,
    precision: Precision,
    is_spread: bool,
) -> tuple[Problem | None, Problem, list[dict[str, int]]]:
    """This rank's problem, the outline of all, and instances of factors by rank."""
    peers, member = devices.peers, devices.member
    everywhere = [one.name for one in recipe.factors if is_whole_everywhere(one)]

    own: list[Problem] = []

    def told() -> tuple[Facts, Problem | None] | None:
        if read is None:
            return None
        problem = read(precision)
        if len(problem.in_parts) > 0:
            raise InputError(
                f"{', '.join(problem.in_parts)}: given in parts, but each of several processes has "
                "one device; pass its part of the factors as plain arrays"
            )
        if is_spread and peers.rank != 0:
            # those of rank 0 count
            problem = without(problem, everywhere)
        own.append(problem)
        # ranks that were given nothing need the nodes
        nodes = None if is_spread else on_host(replace(problem, factors={}), member.to_host)
        runs_on = member.traits.target, precision.value
        return facts_of(problem, recipe.factors, runs_on, member.to_host), nodes

    found = [one for one in peers.exchange(told) if one is not None]
    facts = [one[0] for one in found]
    check_alike(facts, peers.name)
    sizes = [{name: one.count for name, one in each.factors.items()} for each in facts]
    problem = own[0] if len(own) > 0 else None
    nodes = found[0][1] if problem is None else problem
    assert nodes is not None
    return problem, outline(nodes, facts), sizes


def _alone(whole: Problem | None, remarks: tuple[str, ...]) -> Share:
    return Share({} if whole is None else {0: whole}, (), (0,), remarks)


def _gathered(
    peers: Peers, member: Member, reading: Reading, design: SolverDesign
) -> Problem | None:
    """All of it, at rank 0; None at the others."""
    own = reading.own
    if not reading.is_spread:
        return own
    assert own is not None
    parts = peers.collect(lambda: on_host(own, member.to_host))
    if len(parts) == 0:
        return None
    return replace(joined(parts, design.factors), given=own.given)


def _kept(
    peers: Peers, member: Member, reading: Reading, design: SolverDesign
) -> tuple[Share | None, str]:
    """The parts as they were passed, if they share no eliminated node; else why not."""
    own, form = reading.own, design.form
    assert own is not None
    found = peers.exchange(
        lambda: {name: touched(own, form, name, member.to_host) for name in form.eliminated}
    )
    totals = [sum(sizes.values()) for sizes in reading.sizes]
    active = tuple(rank for rank, number in enumerate(totals) if number > 0)
    if 0 not in active or len(active) == 1:
        return None, "Rank 0 divided the factors: not every rank had passed some."
    for name in form.eliminated:
        flags = np.zeros(reading.whole.counts[name], np.int8)
        for nodes in found:
            flags[nodes[name]] += 1
        several = int((flags > 1).sum())
        if several > 0:
            return None, (
                f"Rank 0 collected and divided the factors: {several:,} instances of {name} were "
                "touched by factors of several ranks. Pass all factors of one to the same rank to "
                "spare that."
            )
    most = {name: max(sizes[name] for sizes in reading.sizes) for name in reading.instances}
    is_active = peers.rank in active
    shard = Shard(
        rank=active.index(peers.rank) if is_active else 0,
        size=len(active),
        counts=own.counts,
        instances=reading.instances,
        most=most,
        added=added_of(design.factors, form, most),
        chosen={name: slice(0, arrays.count) for name, arrays in own.factors.items()},
        nodes=found[peers.rank],
    )
    problems = {}
    if is_active:
        problems[0] = make_part(own, design.factors, shard, form, member)
    return Share(problems, (shard,), active, ()), ""


def touched(problem: Problem, form: SolverForm, name: str, to_host: Any) -> Chosen:
    """Nodes of an eliminated type that a part's factors touch: a range, or their numbers."""
    flags = np.zeros(problem.counts[name], bool)
    for factor, own in form.factors.items():
        if own.eliminates(name) and problem.factors[factor].count > 0:
            index: Array | None = problem.factors[factor].nodes[own.eliminated_argument.name]
            assert index is not None
            flags[index if isinstance(index, np.ndarray) else to_host(index)] = True
    return as_range(np.flatnonzero(flags).astype(np.int32))


@dataclass(frozen=True)
class _Handed:
    """A message of rank 0: a part or nothing, and the number of parts."""

    problem: Problem | None
    shard: Shard | None
    num_parts: int
    remarks: tuple[str, ...] = ()


def _cut(
    peers: Peers,
    member: Member,
    design: SolverDesign,
    whole: Problem | None,
    remarks: tuple[str, ...],
) -> Share:
    """Rank 0 cuts the problem and hands out the parts."""
    size = peers.size

    def handed() -> Sequence[_Handed]:
        assert whole is not None
        warn_untouched(member, whole, design.factors)
        parts = split_problem(whole, design.factors, design.form, [member] * size, to_devices=False)
        if len(parts) == 1:
            return [_Handed(None, None, 1)] * size
        handed: list[_Handed] = []
        for part in parts:
            # what stays here need not be brought to the host
            problem = part.problem if len(handed) == 0 else on_host(part.problem, member.to_host)
            handed.append(_Handed(problem, part.shard, len(parts), part.remarks))
        none = _Handed(None, parts[0].shard, len(parts))
        return [*handed, *[none] * (size - len(parts))]

    found: _Handed = peers.hand_out(handed)
    if found.shard is None:
        same = "Rank 0 solved this problem: all factors touch the same node."
        return _alone(whole, (*remarks, same))
    if found.num_parts < size:
        remarks = (*remarks, f"{found.num_parts} of {size} ranks had a part of this problem.")
    problems = {} if found.problem is None else {0: found.problem}
    active = tuple(range(found.num_parts))
    return Share(problems, (found.shard,), active, (*remarks, *found.remarks))


class RankDevices(Devices):
    """This rank's device, and how it works together with those of others."""

    peers: Peers

    def __init__(self, ranks: Ranks, member: Member) -> None:
        self.ranks, self.peers, self.member = ranks, ranks.peers, member
        self.members, self.size = (member,), ranks.size
        self._by_rank: dict[tuple[int, ...], tuple[Team, ProcessGroup | None, int]] = {}
        self._num_groups = 0

    def share(
        self,
        reading: Reading,
        design: Callable[[], SolverDesign],
        least: int,
        make_room: Callable[[], None],
    ) -> Share:
        """See `Devices`; moves what has to be moved. All ranks call it."""
        peers, member, made = self.peers, self.member, design()
        size, total = peers.size, sum(reading.instances.values())
        if total < size * least:
            remark = (
                f"Rank 0 solved this problem, not {size} ranks: with {total:,} instances of "
                f"factors it is quicker (several pay from {size * least:,} on)."
            )
            return _alone(_gathered(peers, member, reading, made), (remark,))
        remarks: tuple[str, ...] = ()
        if reading.is_spread:
            kept, remark = _kept(peers, member, reading, made)
            if kept is not None:
                return kept
            remarks = (remark,)
        return _cut(peers, member, made, _gathered(peers, member, reading, made), remarks)

    def team(self, active: Sequence[int]) -> tuple[Team, int]:
        """A thread, and the number of the group of some ranks; all ranks ask for it."""
        key = tuple(active)
        found = self._by_rank.pop(key, None)
        is_usable = found is not None and not found[0].has_failed
        if not all(self.peers.exchange(lambda: is_usable)):
            if found is not None:
                found[0].close()
                if found[1] is not None:
                    found[1].close()
            group = None if len(key) == 0 else self._group_of(key)
            found = Team((self.member,), group, self.peers), group, self._num_groups
        assert found is not None
        self._by_rank[key] = found
        team, group, number = found
        if group is not None and self.peers.rank in key:
            self.member.join(group, key.index(self.peers.rank))
        return team, number

    def _group_of(self, active: tuple[int, ...]) -> ProcessGroup:
        self._num_groups += 1
        number, is_leader, meeting = self._num_groups, self.peers.rank == 0, None
        if self.member.traits.adds_up_by_nccl:
            meeting = self.peers.exchange(lambda: nccl_meeting() if is_leader else None)[0]
        # ranks without a part have one by themselves, so that all know whether it failed
        return self.peers.exchange_own(lambda: self._made(number, active, meeting))

    def _made(self, number: int, active: tuple[int, ...], meeting: Any) -> ProcessGroup:
        if self.ranks.rank not in active:
            return ProcessGroup(self.peers, number, active)
        if meeting is None:
            return SocketGroup(self.peers, number, active)
        return nccl_group_of_ranks(self.ranks, number, active, meeting)


def devices_of(given: Any, backend: Any) -> tuple[Backend, Devices | RankDevices | None]:
    """The backend that a user means, and the devices if several share a problem."""
    if not isinstance(given, Ranks):
        return chosen_devices(given, backend)
    target = chosen_target(named_backend(given, backend))
    member = member_of_rank(target, given.device)
    return member, None if given.size == 1 else RankDevices(given, member)
