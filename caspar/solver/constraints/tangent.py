"""Constraints as rows of great weight, for covariances and gradients within what they leave free.

Input: the Jacobians of factors at some values. Output: rows of active entries, with a weight that
makes what they hold vary by next to nothing. Cost tier: kernels once for a solver, the rest once
for a covariance.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from caspar.frontend.factors.factor import ConstraintKind
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.runtime.backend import Backend
from caspar.solver.constraints.penalties import FIRST_PENALTY, Terms, first_terms
from caspar.solver.constraints.start import curvatures_of, without_held
from caspar.solver.constraints.violations import Constraints, Linearised, Sizes, value_sizes
from caspar.solver.input.parted_array import on_host
from caspar.solver.input.problem import Problem
from caspar.solver.normal.instance_kernels import DerivativeKernels, FactorJacobian, NodeJacobian

WEIGHT = 1e8
"""Curvature of a row in variables in which factors have 1. A variance is off by its inverse, and by
that many times rounding."""

ACTIVE = 1e-6
"""Distance from 0, relative to its terms, up to which an inequality counts as active."""


class TangentRows:
    """Rows of the constraints of a solver.

    Args:
        backend: Where Jacobians are.
        nodes: Node types.
        constraints: The constraints.
    """

    def __init__(
        self, backend: Backend, nodes: Sequence[NodeType], constraints: Constraints
    ) -> None:
        self._backend, self._nodes, self._constraints = backend, nodes, constraints
        self._derivatives = DerivativeKernels(backend)

    @property
    def names(self) -> frozenset[str]:
        """Names of the constraints."""
        return frozenset(self._constraints.kinds)

    def of(self, problem: Problem, jacobians: Sequence[FactorJacobian]) -> list[FactorJacobian]:
        """The rows at the values of a problem.

        Args:
            problem: With values that meet the constraints.
            jacobians: Of the factors.
        """
        backend = self._backend
        found = without_held(self._constraints.at(problem), problem)
        sizes = self._sizes(problem)
        terms = self._terms(problem, jacobians, found)
        made = []
        for name, one in found.items():
            is_active = np.ones(one.rows.shape, bool)
            if one.kind is ConstraintKind.POSITIVE:
                is_active = one.rows <= ACTIVE * one.scale(sizes)
            instance, row = np.nonzero(is_active)
            if len(instance) == 0:
                continue
            roots = np.sqrt(terms[name].penalties[instance, row])
            nodes = tuple(
                NodeJacobian(
                    node.node,
                    backend.upload(node.index[instance]),
                    backend.upload(roots[:, None, None] * node.entries[instance, row][:, None, :]),
                )
                for node in one.nodes
            )
            costs = backend.upload(np.zeros(len(instance)))
            made.append(FactorJacobian(name, 1, costs, nodes))
        return made

    def penalties(
        self,
        problem: Problem,
        factors: Sequence[TracedFactor],
        found: Mapping[str, Linearised],
    ) -> dict[str, Terms]:
        """Penalties of that weight for all entries.

        Args:
            problem: With values that meet the constraints.
            factors: Factors that are no constraints, with terms.
            found: The constraints at these values.
        """
        jacobians = self._derivatives.evaluate(factors, problem)
        return self._terms(problem, jacobians, without_held(found, problem))

    def _sizes(self, problem: Problem) -> Sizes:
        values = {name: on_host(self._backend, rows) for name, rows in problem.values.items()}
        return value_sizes(self._nodes, values)

    def _terms(
        self,
        problem: Problem,
        jacobians: Sequence[FactorJacobian],
        found: Mapping[str, Linearised],
    ) -> dict[str, Terms]:
        curvatures = curvatures_of(self._backend, self._nodes, problem, jacobians)
        first = first_terms(found, curvatures, self._sizes(problem))
        return {
            name: Terms.of(WEIGHT / FIRST_PENALTY * one.penalties) for name, one in first.items()
        }
