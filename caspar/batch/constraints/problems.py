"""The constraints of a batch solver: their kernels, their first penalties, their values.

Input: a batch on the backend's device. Output: constraints, linearised, and what the kernel reads
of them. Cost tier: kernels once for a solver; the rest once for a solve of the loop, array code
over all problems.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caspar.batch.constraints.parts import ProblemRows
from caspar.batch.generate.programs import constant_name
from caspar.batch.generate.shape import BatchShape, Instances
from caspar.batch.gradients.flat import as_one_factor, as_one_problem
from caspar.batch.input import Batch
from caspar.batch.result import BatchViolation, equal_violations
from caspar.frontend.factors.factor import ConstraintKind
from caspar.frontend.factors.terms import ROOT, SHIFT, penalised
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.constraints.penalties import FIRST_PENALTY, Terms, first_penalties
from caspar.solver.constraints.problems import check_names
from caspar.solver.constraints.start import moving_components, summed_squares, without_held
from caspar.solver.constraints.violations import Constraints, Linearised
from caspar.solver.input.problem import Problem
from caspar.solver.normal.instance_kernels import DerivativeKernels
from caspar.solver.normal.matrix import add_rows


@dataclass(frozen=True)
class Look:
    """The constraints at the values of some problems, on the device.

    Attributes:
        found: By constraint with instances its linearisation, of all problems' instances.
        scales: By constraint (m, dim): see `Linearised.scale`.
        sizes: By node type (n, tangent_dim), those of the problem that a node belongs to.
        rows: By constraint which instances belong to which problem.
        problem: The batch as one problem.
        num_problems: P.
    """

    found: Mapping[str, Linearised]
    scales: Mapping[str, Array]
    sizes: Mapping[str, Array]
    rows: Mapping[str, ProblemRows]
    problem: Problem
    num_problems: int


class BatchConstraints:
    """The constraints of a batch solver; `kinds`: what must hold, by name.

    Raises:
        FactorError: As `penalised`.
    """

    def __init__(
        self,
        backend: Backend,
        nodes: Sequence[NodeType],
        factors: Sequence[TracedFactor],
        kinds: Mapping[str, ConstraintKind],
    ) -> None:
        self.backend, self.kinds, self._nodes = backend, kinds, nodes
        own = [one for one in factors if one.name in kinds]
        self.dims = {one.name: len(one.residual) for one in own}
        self._penalised = {one.name: penalised(one, kinds[one.name]) for one in own}
        self._constraints = Constraints(backend, [as_one_factor(one) for one in own], kinds)
        self._derivatives = DerivativeKernels(backend)

    def check_names(self, arrays: Any) -> None:
        """Refuse data that only factors have: see `check_names`."""
        check_names(arrays, tuple(self.kinds))

    def shape(self, shape: BatchShape) -> BatchShape:
        """The shape of the problems that the kernel solves."""
        factors = [
            replace(one, factor=self._penalised.get(one.factor.name, one.factor))
            for one in shape.factors
        ]
        return replace(shape, factors=tuple(factors))

    def load(self, shape: BatchShape) -> None:
        """Compile what evaluates the constraints and factors of a shape."""
        self._constraints.load()
        self._derivatives.load(self._factors(shape))

    def rows(self, batch: Batch) -> dict[str, ProblemRows]:
        """Where the instances of each constraint are."""
        return {
            one.factor.name: ProblemRows.of(self.backend, batch, number)
            for number, one in enumerate(batch.shape.factors)
            if one.factor.name in self.kinds
        }

    def _factors(self, shape: BatchShape) -> list[TracedFactor]:
        """Factors that are no constraints, for all problems at once."""
        return [
            as_one_factor(one.factor)
            for one in shape.factors
            if one.factor.name not in self._penalised
        ]

    def with_terms(self, batch: Batch, terms: Mapping[str, Terms]) -> Batch:
        """The batch that the kernel solves: constraints are factors with multipliers, penalties."""
        arrays = dict(batch.arrays)
        for number, one in enumerate(batch.shape.factors):
            name = one.factor.name
            if name not in self._penalised:
                continue
            dim = len(one.factor.residual)
            empty = (np.zeros((0, dim)),) * 2
            data = terms[name].data if name in terms else empty
            is_ragged = one.instances is Instances.RAGGED
            stride = 0 if is_ragged else batch.instances.get(number, 1)
            for argument in self._penalised[name].arguments:
                if argument.source in (ROOT, SHIFT):
                    rows = data[0 if argument.source == ROOT else 1]
                    storage = rows.astype(batch.shape.storage.value)
                    bound = self.backend.xp.ascontiguousarray(self.backend.upload(storage))
                    arrays[constant_name(number, argument)] = bound, stride
        return replace(batch, shape=self.shape(batch.shape), arrays=arrays)

    def look(self, batch: Batch) -> Look:
        """Evaluate the constraints at the values of a batch, as they go back to the user."""
        problem = as_one_problem(batch, self.backend, self.kinds)
        values = {
            name: rows.astype(batch.dtypes[name]).astype(np.float64)
            for name, rows in problem.values.items()
        }
        problem = replace(problem, values=values)
        found = self._constraints.at(problem, on_host=False)
        sizes = self._sizes(batch, values)
        return Look(
            found,
            {name: one.scale(sizes) for name, one in found.items()},
            sizes,
            self.rows(batch),
            problem,
            batch.num_problems,
        )

    def _sizes(self, batch: Batch, values: Mapping[str, Array]) -> dict[str, Array]:
        """`value_sizes` of the problem that a node belongs to: (n, tangent_dim) by node type."""
        xp, sizes = self.backend.xp, {}
        for nodes in batch.shape.nodes:
            name, count = nodes.node.name, nodes.count
            rows = xp.abs(values[name]).reshape(batch.num_problems, count, -1)
            own = xp.ones((batch.num_problems, count, nodes.node.tangent_dim))
            for component, place in nodes.node.shifted_places.items():
                own[:, :, component] = rows[:, :, place].max(axis=1)[:, None]
            sizes[name] = xp.where(own > 0.0, own, 1.0).reshape(-1, nodes.node.tangent_dim)
        return sizes

    def first_terms(self, batch: Batch, look: Look) -> dict[str, Terms]:
        """Multipliers of 0 and penalties that fit the cost: see `first_penalties`.

        Numbers that are not finite count as 0: the kernel says so of their problem.
        """
        xp, problem = self.backend.xp, look.problem
        factors, whole = self._factors(batch.shape), as_one_problem(batch, self.backend)
        derived = self._derivatives.evaluate(factors, whole, check=False)
        found = without_held(look.found, problem, self.backend.upload)
        curvatures = summed_squares(self.backend, self._nodes, problem, derived)
        for name, rows in curvatures.items():
            rows[...] = xp.nan_to_num(rows, posinf=0.0)
            if name in problem.free:
                rows *= self.backend.upload(moving_components(problem, name))
        first = first_penalties(xp, found, curvatures, look.sizes)
        largest = xp.zeros(batch.num_problems)
        for name, rows in first.items():
            first[name] = xp.nan_to_num(rows, posinf=0.0)[:, None]
            largest = xp.maximum(largest, greatest(xp, look.rows[name].by_problem(first[name])))
        usual = xp.where(largest > 0.0, largest, FIRST_PENALTY)
        terms = {}
        for name, rows in first.items():
            other = usual[look.rows[name].owners][:, None]
            penalties = xp.where(rows > 0.0, rows, other) / look.scales[name] ** 2
            made = Terms.of(xp.where(penalties > 0.0, penalties, 1.0))
            # rows of it are written to
            terms[name] = replace(made, first=made.penalties.copy())
        return terms

    def violation(self, look: Look) -> BatchViolation:
        """The worst entries of all problems."""
        parts = []
        for name, one in look.found.items():
            rows, dim = look.rows[name], one.rows.shape[1]
            unscaled = rows.by_problem(one.violation)
            scaled = rows.by_problem(one.violation / look.scales[name])
            three = unscaled.max(axis=1), scaled.max(axis=1), scaled.argmax(axis=1) // dim
            parts.append([np.asarray(self.backend.to_host(array)) for array in three])
        if len(parts) == 0:
            return equal_violations(look.num_problems)
        unscaled, scaled, instance = (np.stack(arrays) for arrays in zip(*parts, strict=True))
        worst, own = scaled.argmax(axis=0), np.arange(look.num_problems)
        names = np.array(list(look.found), object)[worst]
        return BatchViolation(unscaled.max(axis=0), scaled[worst, own], names, instance[worst, own])

    def are_impossible(self, look: Look, terms: Mapping[str, Terms]) -> Array:
        """(P,) booleans by the lemma of Farkas: see `outcome.is_impossible`."""
        xp, num_problems = self.backend.xp, look.num_problems
        gap, reach = xp.zeros(num_problems), xp.zeros(num_problems)
        pull = {name: xp.zeros_like(size) for name, size in look.sizes.items()}
        for name, one in without_held(look.found, look.problem, self.backend.upload).items():
            multipliers = terms[name].multipliers
            gap -= look.rows[name].by_problem(multipliers * one.rows).sum(axis=1)
            for node in one.nodes:
                own = (multipliers[:, :, None] * node.entries).sum(axis=1)
                add_rows(xp, pull[node.node], node.index, own)
        for name, rows in pull.items():
            reach += (xp.abs(rows) * look.sizes[name]).reshape(num_problems, -1).sum(axis=1)
        return gap > reach


def greatest(xp: Any, rows: Array) -> Array:
    """(P,) the greatest of (P, k) numbers that are at least 0; 0 if k is 0."""
    return rows.max(axis=1) if rows.shape[1] > 0 else xp.zeros(len(rows))
