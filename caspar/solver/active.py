"""The factors of a problem that have instances, and the node types that a solve does not hold.

A window at the start of a track has no loop closures yet, a survey no scale bars. What has no
instances takes no part: its kernels are not launched, and node types that only it touches keep
their values. Nodes of types that are held become constants of the factors. Cost tier: kernels once
for each set of factors that occurs.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from caspar.equations.solver_form import eliminable_types
from caspar.errors import InputError, UnsuitedError
from caspar.frontend.factors.terms import is_penalised, with_narrow, with_terms
from caspar.frontend.factors.trace import Argument, ArgumentKind, NodeType, TracedFactor
from caspar.frontend.precision import TYPES
from caspar.memory.array import Array
from caspar.options import JacobianChoice, LinearSolverChoice, Precision
from caspar.runtime.backend import Backend
from caspar.solver.choice.form import Recipe, UsualPrecision, usual_precision
from caspar.solver.input.parted_array import every_row
from caspar.solver.input.problem import ConstantArray, FactorArrays, Problem

LOOKED_AT = 1000
"""Rows that are looked at, evenly apart."""

FAR = 32.0
"""Times its spread that a number is from zero, from which on rounding it shows: float32 then moves
differences of a thousandth of the spread by 2e-3 of themselves (docs/design/0002)."""


def is_far_from_zero(node: NodeType, rows: Array, every: Callable[[Array, int], Any]) -> bool:
    """Return whether a number of a node is far from zero in all nodes, as map coordinates are."""
    units = {place for part in node.unit_ranges for place in range(part.start, part.stop)}
    places = [place for place in range(node.storage_dim) if place not in units]
    if len(places) == 0 or int(rows.shape[0]) < 2:
        return False
    step = max(1, int(rows.shape[0]) // LOOKED_AT)
    numbers = np.sort(np.asarray(every(rows, step))[:, places], axis=0)
    # one in twenty is left out on either side; NumPy's percentiles take ten times as long
    out = len(numbers) // 20
    low, middle, high = numbers[out], numbers[len(numbers) // 2], numbers[-1 - out]
    spread = high - low
    return bool(((spread > 0.0) & (np.abs(middle) > FAR * spread)).any())


MOST_TIES = 0.25
"""Instances of a constraint, relative to the nodes of a type, up to which they count as few."""


def is_tie(factor: TracedFactor, problem: Problem) -> bool:
    """Return whether a factor is a constraint between few of the nodes that it may touch."""
    most = MOST_TIES * min(problem.counts[one.node_type.name] for one in factor.nodes)
    return is_penalised(factor) and problem.factors[factor.name].count <= most


_CONSTANT_KINDS = {
    ArgumentKind.NODE_SHARED: ArgumentKind.CONST_INDEXED,
    ArgumentKind.NODE_UNIQUE: ArgumentKind.CONST_UNIQUE,
}
"""The kind of an argument if all of its nodes are held."""


def types_to_hold(
    factors: Sequence[TracedFactor], problem: Problem, min_nodes: int
) -> tuple[str, ...]:
    """Names of the node types that become constants.

    All of a type is held, no factor takes its nodes in pairs, and each factor keeps another type: a
    factor of which everything is held stays as it is, so that its cost counts.
    """
    least = max(min_nodes, 1)
    held = {name for name, free in problem.free.items() if len(free) >= least and not np.any(free)}
    for factor in factors:
        types = {argument.node_type.name for argument in factor.nodes}
        paired = {
            argument.node_type.name
            for argument in factor.nodes
            if argument.kind not in _CONSTANT_KINDS
        }
        held -= types if types <= held else paired
    touched = {argument.node_type.name for factor in factors for argument in factor.nodes}
    return tuple(sorted(held & touched))


def with_constants(factor: TracedFactor, held: Collection[str]) -> TracedFactor:
    """The same residual, with the nodes of some types as constants."""
    if not any(_is_held(argument, held) for argument in factor.arguments):
        return factor
    arguments = tuple(
        replace(argument, kind=_CONSTANT_KINDS[argument.kind], node=None)
        if _is_held(argument, held)
        else argument
        for argument in factor.arguments
    )
    return replace(factor, arguments=arguments)


def arrays_with_constants(
    factor: TracedFactor, problem: Problem, held: Collection[str]
) -> FactorArrays:
    """The arrays of a factor whose nodes of some types are constants."""
    arrays = problem.factors[factor.name]
    nodes, constants = dict(arrays.nodes), dict(arrays.constants)
    for argument in factor.nodes:
        if _is_held(argument, held):
            values = problem.values[argument.node_type.name]
            constants[argument.source] = ConstantArray(values, nodes.pop(argument.name))
    return replace(arrays, nodes=nodes, constants=constants)


def _is_held(argument: Argument, held: Collection[str]) -> bool:
    return argument.node is not None and argument.node.name in held


Made = TypeVar("Made")


@dataclass(frozen=True)
class Active:
    """The factors and node types that take part in a solve.

    Attributes:
        recipe: The user's choices, with the factors that have instances, the node types that they
            touch, and the precision of the solve.
        held: Names of the node types that are constants of the factors, see `held_types`.
    """

    recipe: Recipe
    remarks: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    given: tuple[TracedFactor, ...] = ()

    def part(self, problem: Problem) -> Problem:
        """Return the part of a problem that takes part."""
        recipe = self.recipe
        part = problem.part(recipe.factors, recipe.nodes)
        arrays = part.factors
        if len(self.held) > 0:
            arrays = {
                one.name: arrays_with_constants(one, problem, self.held) for one in self.given
            }
        types = TYPES[recipe.precision]
        narrowed = {one.name: arrays[one.name].narrowed(one, types) for one in recipe.factors}
        return replace(part, factors=narrowed)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Key of problems that have kernels of their own."""
        recipe = self.recipe
        kinds = recipe.precision, recipe.is_far_from_zero, recipe.masked, recipe.bounded
        return _factors_key(recipe.factors), kinds, self.held


@dataclass(frozen=True)
class _Subset:
    """Some factors of a solver."""

    recipe: Recipe
    usual: UsualPrecision


class Chooser:
    """Chooses what of a solver's factors takes part in a problem."""

    def __init__(self, backend: Backend, recipe: Recipe, *, own_precision: bool) -> None:
        self._backend = backend
        self._recipe = recipe
        self._own_precision = own_precision
        self._subsets: dict[tuple[tuple[str, tuple[str, ...], bool], ...], _Subset] = {}

    def choose(self, problem: Problem, precision: Precision | None = None) -> Active:
        """Choose what takes part in a problem."""
        recipe = self._of_instances(problem)
        least = recipe.limits.min_constant_nodes
        held = types_to_hold(recipe.factors, problem, least) if len(problem.free) > 0 else ()
        given, recipe = recipe.factors, self._with_masks(recipe, problem, held)
        if precision is not None:
            recipe = replace(recipe, precision=precision)
        recipe = self._by_values(recipe, problem)
        return Active(recipe, self._idle(recipe), held, given)

    def _of_instances(self, problem: Problem) -> Recipe:
        whole = self._recipe
        present = tuple(
            (one.name, problem.factors[one.name].by_instance, is_tie(one, problem))
            for one in whole.factors
            if problem.factors[one.name].count > 0
        )
        if not any(arrays.num_counted > 0 for arrays in problem.factors.values()):
            names = ", ".join(one.name for one in whole.factors)
            which = "instances" if len(present) == 0 else "instances with a weight above 0"
            raise InputError(f"arrays: no factor has {which} ({names}); give at least one some")
        subset = self._subsets.get(present)
        if subset is None:
            subset = self._subsets[present] = self._subset(present)
        precision = subset.usual.of(problem.counts) if self._own_precision else whole.precision
        if precision is subset.recipe.precision:
            return subset.recipe
        return replace(subset.recipe, precision=precision)

    def _subset(self, present: Sequence[tuple[str, tuple[str, ...], bool]]) -> "_Subset":
        whole, by_name = self._recipe, {one.name: one for one in self._recipe.factors}
        factors = tuple(
            replace(with_terms(by_name[name], by_instance), is_tie=ties)
            for name, by_instance, ties in present
        )
        touched = {argument.node for factor in factors for argument in factor.nodes}
        nodes = tuple(node for node in whole.nodes if node in touched)
        usual = usual_precision(factors, nodes, whole.limits)
        if _factors_key(factors) == _factors_key(whole.factors):
            return _Subset(whole, usual)
        return _Subset(replace(whole, factors=factors, nodes=nodes), usual)

    def _by_values(self, recipe: Recipe, problem: Problem) -> Recipe:
        """Return the recipe that values in two types ask for.

        Constants that are too large for the type of values are in that of storage. Where points
        are far from zero, Jacobians of rounded ones are inexact: they are stored then.
        """
        if not TYPES[recipe.precision].rounds_values:
            return recipe
        if recipe.jacobian is JacobianChoice.AUTO and self._backend.traits.prices_are_known:
            every = partial(every_row, self._backend)
            is_far = any(
                is_far_from_zero(node, problem.values[node.name], every)
                for node in eliminable_types(recipe.factors, recipe.nodes)
            )
            recipe = replace(recipe, is_far_from_zero=is_far)
        most = recipe.limits.max_wide_constant_bytes
        factors = tuple(
            with_narrow(one, problem.factors[one.name].larger_than(most)) for one in recipe.factors
        )
        return replace(recipe, factors=factors)

    def _with_masks(self, recipe: Recipe, problem: Problem, held: tuple[str, ...]) -> Recipe:
        """Return the recipe with held types as constants, and masks for parts of others."""
        if len(problem.free) == 0:
            return recipe
        factors, nodes, precision = recipe.factors, recipe.nodes, recipe.precision
        if len(held) > 0:
            factors = tuple(with_constants(factor, held) for factor in factors)
            nodes = tuple(node for node in nodes if node.name not in held)
            if self._own_precision:
                precision = usual_precision(factors, nodes, recipe.limits).of(problem.counts)
        masked = tuple(node.name for node in nodes if node.name in problem.free)
        bounded = tuple(node.name for node in nodes if node.name in problem.bounds)
        return replace(
            recipe,
            factors=factors,
            nodes=nodes,
            precision=precision,
            masked=masked,
            bounded=bounded,
        )

    def _idle(self, recipe: Recipe) -> tuple[str, ...]:
        whole = self._recipe
        active = {factor.name for factor in recipe.factors}
        idle = [factor.name for factor in whole.factors if factor.name not in active]
        if len(idle) == 0:
            return ()
        touched = {
            argument.node_type.name
            for factor in whole.factors
            if factor.name in active
            for argument in factor.nodes
        }
        held = [node.name for node in whole.nodes if node.name not in touched]
        remark = f"No instances of {', '.join(idle)}: not part of this solve."
        return (remark if len(held) == 0 else f"{remark} {', '.join(held)} did not move.",)


def suited(recipe: Recipe, make: Callable[[Recipe], Made]) -> tuple[Made, tuple[str, ...]]:
    """Make something with the user's linear solver, or else with `auto`, and a remark on that."""
    try:
        return make(recipe), ()
    except UnsuitedError as error:
        remark = f"{error.reason}. So 'auto' was used for the other factors."
    return make(replace(recipe, linear_solver=LinearSolverChoice.AUTO)), (remark,)


def _factors_key(factors: Sequence[TracedFactor]) -> tuple[object, ...]:
    return tuple(
        (
            one.name,
            tuple(f"{term.name} {term.kind.value}" for term in one.terms),
            tuple(given.name for given in one.inputs if given.is_narrow),
            one.is_tie,
        )
        for one in factors
    )
