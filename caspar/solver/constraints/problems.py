"""The problems of a solver that has constraints: their arrays and evaluation.

Input: the user's arrays. Output: the same with the data of penalised constraints, which the session
solves. Cost tier: kernels once for a solver, checks once for a solve.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from caspar.errors import InputError
from caspar.frontend.factors.factor import ConstraintKind
from caspar.frontend.factors.terms import ROOT, SHIFT, penalised
from caspar.frontend.factors.trace import WEIGHT, TracedFactor
from caspar.options import Precision
from caspar.runtime.arrays import HOST, location
from caspar.runtime.backend import Backend
from caspar.solver.choice.form import Recipe
from caspar.solver.constraints.lagrangian import Lagrangian
from caspar.solver.constraints.start import Start
from caspar.solver.constraints.tangent import TangentRows
from caspar.solver.constraints.violations import Constraints, Floats, value_sizes
from caspar.solver.evaluation import Evaluation
from caspar.solver.input.constraints import NOTHING
from caspar.solver.input.constraints import Constraints as Restrictions
from caspar.solver.input.problem_reader import Problem, given_factors, read_problem
from caspar.solver.session import Session
from caspar.solver.solving import evaluate

Data = Mapping[str, tuple[Floats, Floats]]
"""By constraint w and s: see `penalised`."""


class ConstrainedProblems:
    """Problems of one solver.

    Args:
        session: Solves what has penalised constraints.
        recipe: With the constraints as their functions are.
        kinds: By constraint what must hold.
    """

    def __init__(
        self, session: Session, recipe: Recipe, kinds: Mapping[str, ConstraintKind]
    ) -> None:
        self.session, self.recipe, self.kinds = session, recipe, kinds
        self.backend = session.backend
        self.constraints = Constraints(
            self.backend, [one for one in recipe.factors if one.name in kinds], kinds
        )
        self.start = Start(self.backend, recipe.nodes)
        self.tangent_rows = TangentRows(self.backend, recipe.nodes, self.constraints)

    @cached_property
    def lagrangian(self) -> Lagrangian:
        """The Lagrangian, for Newton's method."""
        factors = [one for one in self.recipe.factors if one.name not in self.kinds]
        return Lagrangian(self.backend, self.recipe.nodes, self.constraints, factors)

    def read(
        self, arrays: Any, restrictions: Restrictions = NOTHING, *, check_values: bool = True
    ) -> Problem:
        """The user's arrays, checked, in float64.

        Raises:
            InputError: Names what is wrong and what is allowed.
        """
        check_names(arrays, tuple(self.kinds))
        return read_problem(
            arrays,
            self.recipe.factors,
            self.recipe.nodes,
            self.backend,
            Precision.FLOAT64,
            check_values=check_values,
            constraints=restrictions,
        )

    def moved(self, problem: Problem, arrays: Mapping[str, Any]) -> Problem:
        """A problem at other values; only they and the constraints are read.

        Args:
            problem: As it was read.
            arrays: As the user passed them, with values of a solve.
        """
        factors = self.constraints.factors
        nodes, wide = self.recipe.nodes, Precision.FLOAT64
        names = [*(one.name for one in nodes), *(one.name for one in factors)]
        own = {name: arrays[name] for name in names if name in arrays}
        found = read_problem(own, factors, nodes, self.backend, wide, check_values=False)
        return replace(problem, values=found.values)

    def factors_of(self, problem: Problem) -> list[TracedFactor]:
        """Factors that are no constraints, with their weights and losses as given."""
        given = given_factors(self.recipe.factors, problem)
        return [one for one in given if one.name not in self.kinds]

    def with_data(self, arrays: Mapping[str, Any], data: Data) -> dict[str, Any]:
        """Arrays with the data of penalised constraints, where values are.

        Args:
            arrays: As the user passed them.
            data: Of constraints that have instances.
        """
        every = {
            one.name: data.get(one.name, (np.zeros((0, len(one.residual))),) * 2)
            for one in self.constraints.factors
        }
        nodes = arrays[self.recipe.nodes[0].name]
        if isinstance(nodes, list) or location(nodes) == HOST:
            return with_data(arrays, every)
        upload = self.backend.upload
        placed = {name: (upload(root), upload(shift)) for name, (root, shift) in every.items()}
        return with_data(arrays, placed)

    def placed(self, arrays: Mapping[str, Any], problem: Problem) -> Mapping[str, Any]:
        """NumPy arrays on the backend's device; as they are if something else is among them.

        Args:
            arrays: As the user passed them.
            problem: As they were read.
        """
        if not problem.is_on_host or any(type(one) is not np.ndarray for one in _leaves(arrays)):
            return arrays
        placed: dict[str, Any] = _uploaded(self.backend, arrays)
        return placed

    def without_penalties(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays with constraints that cost nothing, for what only evaluates or prepares."""
        return self._costless(arrays, self.read(arrays))

    def _costless(self, arrays: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
        data = {}
        for factor in self.constraints.factors:
            zeros = np.zeros((problem.factors[factor.name].count, len(factor.residual)))
            data[factor.name] = zeros, zeros
        return self.with_data(arrays, data)

    def evaluate(self, arrays: Mapping[str, Any]) -> Evaluation:
        """See `Solver.evaluate`: constraints have no cost, and c as residuals."""
        problem = self.read(arrays)
        found = evaluate(self.session, self._costless(arrays, problem))
        with self.backend.scope():
            rows = self.constraints.at(problem)
        residuals, weights = {}, {}
        for factor in self.recipe.factors:
            name = factor.name
            if name in self.kinds:
                own = rows[name].rows if name in rows else np.zeros((0, len(factor.residual)))
                residuals[name], weights[name] = own, np.ones(len(own))
            else:
                residuals[name], weights[name] = found.residuals(name), found.weights(name)
        costs = {name: cost for name, cost in found.costs.items() if name not in self.kinds}
        return replace(found, costs=costs, _residuals=residuals, _weights=weights)

    def on_host(self, problem: Problem) -> dict[str, Floats]:
        """Values by node type, on the host."""
        return {
            name: rows if isinstance(rows, np.ndarray) else np.asarray(self.backend.to_host(rows))
            for name, rows in problem.values.items()
        }

    def sizes(self, problem: Problem) -> dict[str, Floats]:
        """Return the sizes of the values of a problem: see `value_sizes`."""
        return value_sizes(self.recipe.nodes, self.on_host(problem))


def _leaves(part: Mapping[str, Any]) -> list[Any]:
    found = []
    for one in part.values():
        found += _leaves(one) if isinstance(one, Mapping) else [one]
    return found


def _uploaded(backend: Backend, part: Any) -> Any:
    if isinstance(part, Mapping):
        return {name: _uploaded(backend, one) for name, one in part.items()}
    return backend.upload(part)


def penalised_recipe(recipe: Recipe, kinds: Mapping[str, ConstraintKind]) -> Recipe:
    """A recipe with the factors of constraints in their place.

    Args:
        recipe: With constraints as their functions are.
        kinds: By constraint what must hold.

    Raises:
        FactorError: As `penalised`.
    """
    factors = tuple(
        penalised(one, kinds[one.name]) if one.name in kinds else one for one in recipe.factors
    )
    return replace(recipe, factors=factors)


def check_names(arrays: Any, names: Sequence[str]) -> None:
    """Refuse data that only factors have.

    Raises:
        InputError: Names the constraint and the entry.
    """
    for name in names:
        given = arrays.get(name) if isinstance(arrays, Mapping) else None
        if isinstance(given, Mapping) and WEIGHT in given:
            raise InputError(
                f"constraint {name}: {WEIGHT!r} is given, but a constraint holds whatever it "
                "weighs; leave out the instances that need not hold"
            )


def with_data(arrays: Mapping[str, Any], data: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Arrays with w and s of each constraint.

    Args:
        arrays: As the user passed them.
        data: By constraint w and s, (m, dim) each.
    """
    own = {
        name: {**(arrays.get(name) or {}), ROOT: root, SHIFT: shift}
        for name, (root, shift) in data.items()
    }
    return {**arrays, **own}
