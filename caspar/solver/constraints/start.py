"""Look at the start values of a problem: penalties that fit its cost, undetermined unknowns.

Input: a `Problem` in float64 and its constraints at the start. Output: a `Beginning`. Cost tier:
kernels once for a solver, the rest once for a solve.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caspar.equations.solver_form import couples_reduced, eliminable_types
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.constraints.penalties import Terms, first_terms
from caspar.solver.constraints.violations import Floats, Linearised, NodeRows, Sizes
from caspar.solver.input.problem import Problem
from caspar.solver.normal.instance_kernels import DerivativeKernels, FactorJacobian
from caspar.solver.normal.matrix import add_rows

BUNDLE_DAMPING = 1e-3
"""First damping of bundles, the usual one."""


@dataclass(frozen=True)
class Beginning:
    """The findings at the start values.

    Attributes:
        terms: Penalties for the first solve.
        cost: Cost of the factors.
        is_left_open: Whether some unknowns of constraints are in no factor, so that only
            constraints determine them.
        damping: Damping of the first solve; None: the usual one.
        curvatures: By node type (n, tangent_dim), the diagonal of J^T J of the factors.
    """

    terms: dict[str, Terms]
    cost: float
    is_left_open: bool
    damping: float | None
    curvatures: Mapping[str, Floats]


class Start:
    """Looks at problems of a solver before their first solve.

    Args:
        backend: Where kernels run.
        nodes: Node types.
    """

    def __init__(self, backend: Backend, nodes: Sequence[NodeType]) -> None:
        self._backend, self._nodes = backend, nodes
        self._derivatives = DerivativeKernels(backend)

    def costs(self, factors: Sequence[TracedFactor], problem: Problem) -> dict[str, float]:
        """The cost of each factor.

        Args:
            factors: Factors that are no constraints, with terms.
            problem: The arrays.
        """
        derived = self._derivatives.evaluate(factors, problem)
        return {one.name: float(one.costs.sum()) for one in derived}

    def look(
        self,
        factors: Sequence[TracedFactor],
        problem: Problem,
        found: Mapping[str, Linearised],
        sizes: Sizes,
    ) -> Beginning:
        """Look at the start values.

        Args:
            factors: Factors that are no constraints, with terms.
            problem: The arrays.
            found: The constraints at its values.
            sizes: Of these.
        """
        derived = self._derivatives.evaluate(factors, problem)
        curvatures = curvatures_of(self._backend, self._nodes, problem, derived)
        cost = sum(float(factor.costs.sum()) for factor in derived)
        moving = without_held(found, problem)
        is_left_open = any(
            bool(((curvatures[node.node][node.index] == 0.0) & node.entries.any(axis=1)).any())
            for one in moving.values()
            for node in one.nodes
        )
        # constraints between nodes that remain are no reason for the damping of a chain
        eliminated = eliminable_types(factors, self._nodes)
        is_bundle = len(eliminated) > 0 and not couples_reduced(factors, eliminated)
        damping = BUNDLE_DAMPING if is_bundle else None
        terms = first_terms(moving, curvatures, sizes)
        return Beginning(terms, cost, is_left_open, damping, curvatures)


def curvatures_of(
    backend: Backend,
    nodes: Sequence[NodeType],
    problem: Problem,
    jacobians: Sequence[FactorJacobian],
) -> dict[str, Floats]:
    """Return the (n, tangent_dim) diagonal of J^T J by node type; 0 for what is held."""
    summed = summed_squares(backend, nodes, problem, jacobians)
    found = {name: np.asarray(backend.to_host(rows)) for name, rows in summed.items()}
    for name in problem.free:
        found[name] = found[name] * moving_components(problem, name)
    return found


def summed_squares(
    backend: Backend,
    nodes: Sequence[NodeType],
    problem: Problem,
    jacobians: Sequence[FactorJacobian],
) -> dict[str, Array]:
    """(n, tangent_dim) the diagonal of J^T J by node type, on the backend's device."""
    xp = backend.xp
    found = {}
    for node in nodes:
        total = found[node.name] = xp.zeros((problem.counts[node.name], node.tangent_dim))
        for factor in jacobians:
            for one in factor.nodes:
                if one.node == node.name:
                    add_rows(xp, total, one.index, (one.entries**2).sum(axis=1))
    return found


def without_held(
    found: Mapping[str, Linearised], problem: Problem, upload: Callable[[Any], Array] = np.asarray
) -> dict[str, Linearised]:
    """Constraints without the derivatives by what is held.

    Args:
        found: Constraints.
        problem: Says what is held.
        upload: Brings an array to where they are.
    """
    moves = {name: upload(moving_components(problem, name)) for name in problem.free}

    def moving(node: NodeRows) -> NodeRows:
        if node.node not in moves:
            return node
        return replace(node, entries=node.entries * moves[node.node][node.index][:, None])

    return {name: replace(one, nodes=tuple(map(moving, one.nodes))) for name, one in found.items()}


def moving_components(problem: Problem, name: str) -> Floats:
    """(n, tangent_dim) 1 for what moves, also where it has bounds; else 0."""
    if name in problem.bounds:
        limits = problem.bounds[name]
        return np.asarray(limits.lower <= limits.upper, np.float64)
    free: Floats = problem.free[name].astype(np.float64)
    return free
