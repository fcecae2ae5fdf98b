"""What the start values of a problem show: penalties that fit its cost, and what it leaves open.

Input: a `Problem` in float64 and its constraints at the start. Output: a `Beginning`. Cost tier:
kernels once for a solver, the rest once for a solve.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.runtime.backend import Backend
from caspar.solver.constraints.penalties import Terms, first_terms
from caspar.solver.constraints.violations import Floats, Linearised, Sizes
from caspar.solver.input.problem import Problem
from caspar.solver.normal.jacobians import DerivativeKernels


@dataclass(frozen=True)
class Beginning:
    """What the start values show.

    Attributes:
        terms: Penalties for the first solve.
        cost: Of the factors.
        is_left_open: Whether some unknowns of constraints are in no factor: only constraints say
            what they are.
    """

    terms: dict[str, Terms]
    cost: float
    is_left_open: bool


class Start:
    """Looks at problems of a solver before their first solve.

    Args:
        backend: Where kernels run.
        nodes: Node types.
    """

    def __init__(self, backend: Backend, nodes: Sequence[NodeType]) -> None:
        self._backend, self._nodes = backend, nodes
        self._derivatives = DerivativeKernels(backend)

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
        xp = self._backend.xp
        curvatures = {
            node.name: xp.zeros((problem.counts[node.name], node.tangent_dim))
            for node in self._nodes
        }
        cost = 0.0
        for factor in self._derivatives.evaluate(factors, problem):
            cost += float(factor.costs.sum())
            for node in factor.nodes:
                xp.add.at(curvatures[node.node], node.index, (node.entries**2).sum(axis=1))
        on_host = {name: np.asarray(self._backend.to_host(one)) for name, one in curvatures.items()}
        for name in problem.free:
            on_host[name] = on_host[name] * _free(problem, name)
        moving = without_held(found, problem)
        is_left_open = any(
            bool(((on_host[node.node][node.index] == 0.0) & node.entries.any(axis=1)).any())
            for one in moving.values()
            for node in one.nodes
        )
        return Beginning(first_terms(moving, on_host, sizes), cost, is_left_open)


def without_held(found: Mapping[str, Linearised], problem: Problem) -> dict[str, Linearised]:
    """Constraints without the derivatives by what is held."""
    if len(problem.free) == 0:
        return dict(found)
    return {
        name: replace(
            one,
            nodes=tuple(
                replace(node, entries=node.entries * _free(problem, node.node)[node.index][:, None])
                if node.node in problem.free
                else node
                for node in one.nodes
            ),
        )
        for name, one in found.items()
    }


def _free(problem: Problem, name: str) -> Floats:
    """(n, tangent_dim) 1 for what moves, also where it has bounds; else 0."""
    if name in problem.bounds:
        limits = problem.bounds[name]
        return np.asarray(limits.lower <= limits.upper, np.float64)
    return np.asarray(problem.free[name], np.float64)
