"""Constraints as rows of a Jacobian, for covariances within what constraints leave free.

Input: the Jacobians of factors at some values. Output: rows of active entries, with a weight that
makes what they hold vary by next to nothing. Cost tier: kernels once for a solver, the rest once
for a covariance.
"""

from collections.abc import Sequence

import numpy as np

from caspar.frontend.factors.factor import ConstraintKind
from caspar.frontend.factors.trace import NodeType
from caspar.runtime.backend import Backend
from caspar.solver.constraints.penalties import FIRST_PENALTY, first_terms
from caspar.solver.constraints.start import curvatures_of, without_held
from caspar.solver.constraints.violations import Constraints, value_sizes
from caspar.solver.input.parted_array import on_host
from caspar.solver.input.problem import Problem
from caspar.solver.normal.jacobians import FactorJacobian, NodeJacobian

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

    @property
    def names(self) -> frozenset[str]:
        """Of the constraints."""
        return frozenset(self._constraints.kinds)

    def of(self, problem: Problem, jacobians: Sequence[FactorJacobian]) -> list[FactorJacobian]:
        """The rows at the values of a problem.

        Args:
            problem: With values that meet the constraints.
            jacobians: Of the factors.
        """
        backend = self._backend
        found = without_held(self._constraints.at(problem), problem)
        values = {name: on_host(backend, rows) for name, rows in problem.values.items()}
        sizes = value_sizes(self._nodes, values)
        curvatures = curvatures_of(backend, self._nodes, problem, jacobians)
        terms = first_terms(found, curvatures, sizes)
        made = []
        for name, one in found.items():
            is_active = np.ones(one.rows.shape, bool)
            if one.kind is ConstraintKind.POSITIVE:
                is_active = one.rows <= ACTIVE * one.scale(sizes)
            instance, row = np.nonzero(is_active)
            if len(instance) == 0:
                continue
            roots = np.sqrt(WEIGHT / FIRST_PENALTY * terms[name].penalties[instance, row])
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
