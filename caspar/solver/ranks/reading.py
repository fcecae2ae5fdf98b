"""Checking what the ranks were given, all together.

Each rank passes its part of the factors, with the same nodes; or rank 0 passes all, and the others
None. What is wrong on one rank is an error on all. Cost tier: once for a solve.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from caspar.errors import InputError
from caspar.options import Precision, SolveOptions
from caspar.solver.active import Active
from caspar.solver.choice.form import Recipe
from caspar.solver.input.constraints import Constraints
from caspar.solver.input.problem import Problem
from caspar.solver.input.problem_reader import read_problem
from caspar.solver.ranks.devices import RankDevices
from caspar.solver.ranks.outline import (
    Facts,
    check_alike,
    facts_of,
    is_whole_everywhere,
    on_host,
    outline,
    without,
)
from caspar.solver.shards.share import Reading


@dataclass(frozen=True)
class Given:
    """The user's arguments of a solve on this rank."""

    arrays: Mapping[str, Any] | None
    constraints: Constraints
    options: SolveOptions


def read_together(
    devices: RankDevices, choose: Callable[[Problem], Active], recipe: Recipe, given: Given
) -> Reading:
    """Check the arrays of all ranks, and choose what takes part; called on all of them.

    Args:
        devices: Of the ranks.
        choose: Chooses it.
        recipe: All factors and node types.
        given: What this rank was given.

    Raises:
        InputError: They do not fit the factors, or each other.
        GroupError: Those of another rank do not fit, or it is gone.
    """
    peers = devices.peers
    has_some = peers.exchange(lambda: given.arrays is not None)
    if not has_some[0] or (any(has_some[1:]) and not all(has_some)):
        passed = ", ".join(str(rank) for rank, some in enumerate(has_some) if some) or "none"
        raise InputError(
            "arrays: on several ranks either all pass arrays, each its part of the factors, or "
            f"rank 0 does and the others pass None; these passed some: {passed}"
        )
    is_spread = all(has_some)
    known = _read(devices, recipe, given, recipe.precision, is_spread)
    active = choose(known[1])
    if active.recipe.precision is not recipe.precision:
        known = _read(devices, recipe, given, active.recipe.precision, is_spread)
    own, whole, sizes = known
    names = [factor.name for factor in active.recipe.factors]
    of_active = tuple({name: size[name] for name in names} for size in sizes)
    part = None if own is None else active.part(own)
    return Reading(part, whole, active, of_active, is_spread)


def _read(
    devices: RankDevices, recipe: Recipe, given: Given, precision: Precision, is_spread: bool
) -> tuple[Problem | None, Problem, list[dict[str, int]]]:
    """This rank's problem, the outline of all, and instances of factors by rank."""
    peers, member = devices.peers, devices.member
    everywhere = [one.name for one in recipe.factors if is_whole_everywhere(one)]

    def read() -> tuple[Problem, Facts] | None:
        if given.arrays is None:
            return None
        problem = read_problem(
            given.arrays,
            recipe.factors,
            recipe.nodes,
            member,
            precision,
            check_values=given.options.check,
            constraints=given.constraints,
        )
        if len(problem.in_parts) > 0:
            raise InputError(
                f"{', '.join(problem.in_parts)}: given in parts, but each of several processes has "
                "one device; pass its part of the factors as plain arrays"
            )
        if is_spread and peers.rank != 0:
            # those of rank 0 count
            problem = without(problem, everywhere)
        runs_on = member.traits.target, precision.value
        return problem, facts_of(problem, recipe.factors, runs_on, member.to_host)

    own: list[Problem] = []

    def told() -> tuple[Facts, Problem | None] | None:
        made = read()
        if made is None:
            return None
        own.append(made[0])
        # ranks that were given nothing need the nodes
        nodes = None if is_spread else on_host(replace(made[0], factors={}), member.to_host)
        return made[1], nodes

    found = [one for one in peers.exchange(told) if one is not None]
    facts = [one[0] for one in found]
    check_alike(facts, peers.name)
    sizes = [{name: one.count for name, one in each.factors.items()} for each in facts]
    problem = own[0] if len(own) > 0 else None
    nodes = found[0][1] if problem is None else problem
    assert nodes is not None
    return problem, outline(nodes, facts), sizes
