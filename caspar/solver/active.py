"""The factors of a problem that have instances, and the preparation for just those.

A window at the start of a track has no loop closures yet, a survey no scale bars. What has no
instances takes no part: its kernels are not launched, and node types that only it touches keep
their values. Cost tier: kernels once for each set of factors that occurs.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Protocol

from caspar.equations.solver_form import eliminable_types
from caspar.errors import InputError, UnsuitedError
from caspar.frontend.factors.terms import with_narrow, with_terms
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.frontend.precision import TYPES
from caspar.options import JacobianChoice, LinearSolverChoice, Precision, PreconditionerChoice
from caspar.runtime.backend import Backend
from caspar.solver.choice.form import Recipe, usual_precision
from caspar.solver.choice.offsets import is_far_from_zero
from caspar.solver.held_types import arrays_with_constants, types_to_hold, with_constants
from caspar.solver.input.parted_array import every_row
from caspar.solver.input.problem import Problem
from caspar.solver.iterated import System
from caspar.solver.solver_kernels import SolverKernels

MAX_BESIDE = 3
"""Sets of factors, beside the last one used, whose systems of small problems are kept."""


class Prepares(Protocol):
    """Makes systems and keeps the last one: `preparation`, or `shards.preparation`."""

    kernels: SolverKernels

    def release(self) -> None:
        """Let go of what is kept."""

    def make_room(self) -> None:
        """Let go of what is kept of a large problem."""

    def memory_table(self) -> str | None:
        """What is kept; None: nothing."""

    def system(self, problem: Problem) -> AbstractContextManager[System]:
        """The system of a problem, until the context ends."""


@dataclass(frozen=True)
class Active:
    """What takes part in a solve.

    Attributes:
        recipe: What the user chose, with the factors that have instances, the node types that they
            touch, and the precision of the solve.
        preparation: For it.
        remarks: On what takes no part, and what does not suit the rest.
        held: Names of the node types that are constants of the factors, see `held_types`.
        given: The factors as the user wrote them.
    """

    recipe: Recipe
    preparation: Prepares
    remarks: tuple[str, ...]
    held: tuple[str, ...] = ()
    given: tuple[TracedFactor, ...] = ()

    def part(self, problem: Problem) -> Problem:
        """What of a problem takes part."""
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


class Preparations:
    """A `Preparation` for each set of factors with each set of weights and scales by instance.

    The last one used keeps memory, and a few used before it that of small problems.

    Args:
        backend: Where arrays are, unless they are on the host.
        prepare: Makes the one for a recipe.
        recipe: What the user chose, with all factors.
        own_precision: Whether each set has the precision that is usual for it.

    Attributes:
        whole: The one for all factors.

    Raises:
        UnsuitedError: The linear solver or the preconditioner does not suit all factors together.
    """

    def __init__(
        self,
        backend: Backend,
        prepare: Callable[[Recipe], Prepares],
        recipe: Recipe,
        *,
        own_precision: bool,
    ) -> None:
        self._backend = backend
        self._prepare = prepare
        self._recipe = recipe
        self._own_precision = own_precision
        self.whole = prepare(recipe)
        self._last = Active(recipe, self.whole, ())
        self._made = {_key(recipe, ()): self._last}
        self._variants: dict[tuple[str, tuple[str, ...]], TracedFactor] = {}
        self._backlog_s = 0.0
        self._lock = Lock()

    def choose(self, problem: Problem, precision: Precision | None = None) -> Active:
        """What takes part in a problem.

        Args:
            problem: The arrays.
            precision: Of the solve, in place of the usual one. None: the usual one.

        Raises:
            InputError: No factor has instances.
        """
        recipe = self._of_instances(problem)
        held = types_to_hold(recipe.factors, problem) if len(problem.free) > 0 else ()
        given, recipe = recipe.factors, self._with_masks(recipe, problem, held)
        if precision is not None:
            recipe = replace(recipe, precision=precision)
        recipe = self._by_values(recipe, problem)
        key = _key(recipe, held)
        with self._lock:
            if key not in self._made:
                made = self._part(recipe)
                self._made[key] = replace(made, held=held, given=given)
            # the most recently used one is last
            chosen = self._made[key] = self._last = self._made.pop(key)
            *earlier, _ = self._made.values()
            for other in earlier:
                # its memory goes before there is another
                other.preparation.make_room()
            for other in earlier[:-MAX_BESIDE]:
                other.preparation.release()
        return chosen

    def add_backlog(self, time_s: float) -> None:
        """Seconds of tracing and compiling outside a solve."""
        with self._lock:
            self._backlog_s += time_s

    def take_backlog(self) -> float:
        """Those seconds that no result has reported."""
        with self._lock:
            time_s, self._backlog_s = self._backlog_s, 0.0
        return time_s

    def release(self) -> None:
        """Let go of the memory kept for the next solve."""
        with self._lock:
            for made in self._made.values():
                made.preparation.release()

    def memory_table(self) -> str | None:
        """What is kept of the last solve; None before it."""
        return self._last.preparation.memory_table()

    def _of_instances(self, problem: Problem) -> Recipe:
        """The recipe with those factors that have instances."""
        whole = self._recipe
        factors = tuple(
            self._variant(one, problem.factors[one.name].by_instance)
            for one in whole.factors
            if problem.factors[one.name].count > 0
        )
        if not any(arrays.num_counted > 0 for arrays in problem.factors.values()):
            names = ", ".join(one.name for one in whole.factors)
            which = "instances" if len(factors) == 0 else "instances with a weight above 0"
            raise InputError(f"arrays: no factor has {which} ({names}); give at least one some")
        touched = {argument.node for factor in factors for argument in factor.nodes}
        nodes = tuple(node for node in whole.nodes if node in touched)
        precision = self._precision(factors, nodes, problem)
        is_whole = _factors_key(factors) == _factors_key(whole.factors)
        if is_whole and precision is whole.precision:
            return whole
        return replace(whole, factors=factors, nodes=nodes, precision=precision)

    def _precision(
        self, factors: Sequence[TracedFactor], nodes: Sequence[NodeType], problem: Problem
    ) -> Precision:
        if not self._own_precision:
            return self._recipe.precision
        return usual_precision(factors, nodes, self._recipe.limits, problem.counts)

    def _by_values(self, recipe: Recipe, problem: Problem) -> Recipe:
        """As values in two types ask for it.

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
        """With what is held: whole types as constants, parts of others by masks."""
        if len(problem.free) == 0:
            return recipe
        factors, nodes, precision = recipe.factors, recipe.nodes, recipe.precision
        if len(held) > 0:
            factors = tuple(with_constants(factor, held) for factor in factors)
            nodes = tuple(node for node in nodes if node.name not in held)
            precision = self._precision(factors, nodes, problem)
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

    def _part(self, recipe: Recipe) -> Active:
        """With the recipe of some of the factors."""
        start = time.perf_counter()
        made, remarks = self._suited(recipe)
        made.kernels.compile_time_s += time.perf_counter() - start
        return Active(recipe, made, (*self._idle(recipe), *remarks))

    def _variant(self, factor: TracedFactor, by_instance: tuple[str, ...]) -> TracedFactor:
        """A factor as its weights and the parameters of its loss are given."""
        key = factor.name, by_instance
        if key not in self._variants:
            self._variants[key] = with_terms(factor, by_instance)
        return self._variants[key]

    def _suited(self, recipe: Recipe) -> tuple[Prepares, tuple[str, ...]]:
        """By the user's choices, but for those that do not suit what is left: `auto` for these."""
        usual = replace(recipe, preconditioner=PreconditionerChoice.AUTO)
        by_size = replace(recipe, linear_solver=LinearSolverChoice.AUTO)
        remarks: dict[str, None] = {}
        for tried in (recipe, usual, by_size):
            try:
                return self._prepare(tried), tuple(remarks)
            except UnsuitedError as error:
                remarks[f"{error.reason}. So 'auto' was used for the other factors."] = None
        both = replace(usual, linear_solver=LinearSolverChoice.AUTO)
        return self._prepare(both), tuple(remarks)

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


def _key(recipe: Recipe, held: tuple[str, ...]) -> tuple[object, ...]:
    """What problems differ in that have kernels of their own."""
    kinds = recipe.precision, recipe.is_far_from_zero, recipe.masked, recipe.bounded
    return _factors_key(recipe.factors), kinds, held


def _factors_key(factors: Sequence[TracedFactor]) -> tuple[object, ...]:
    """What sets of factors differ in that have kernels of their own."""
    return tuple(
        (
            one.name,
            tuple(f"{term.name} {term.kind.value}" for term in one.terms),
            tuple(given.name for given in one.inputs if given.is_narrow),
        )
        for one in factors
    )
