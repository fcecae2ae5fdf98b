"""Find the factors and instances whose cost or derivative is not finite.

Input: a plan, the residuals or gradients that were just evaluated. Output: words for users.
Cost: some passes over the arrays, of a solve that failed or is likely to.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.equations.parts import FactorPart, NodePart, SolverPart
from caspar.frontend.factors.trace import WEIGHT
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.memory.layout import chunk_views
from caspar.runtime.group.member import ALONE
from caspar.solver.linear.explicit.solvers import OrthogonalSolver
from caspar.solver.linear.hand_over import HandOver
from caspar.solver.plan.plan import FactorPlan, NodePlan, Plan
from caspar.solver.result.quantities import count_text
from caspar.solver.system.free_values import Values, remarks_on_free_values
from caspar.solver.system.lone_promises import Promises, are_looked_at, lone_promises
from caspar.solver.system.phases import Phases
from caspar.solver.system.scores import (
    factor_costs,
    hole_places,
    num_beyond_scale,
    residual_rows,
)


class Findings:
    """Findings about a system that users are told, from all devices that share the problem.

    Args:
        plan: Memory and structure.
        phases: Its launches.
        solvers: Its linear solvers.

    Attributes:
        communicator: The other devices, which ask for the same at the same time.
    """

    def __init__(self, plan: Plan, phases: Phases, solvers: HandOver) -> None:
        self._plan = plan
        self._phases = phases
        self._solvers = solvers
        self.communicator = ALONE

    def faulty_costs(self) -> tuple[str, ...]:
        """The factors whose cost was not finite when the values were scored."""
        return self.communicator.joined(faulty_costs(self._plan))

    def faulty_derivatives(self) -> tuple[str, ...]:
        """The factors whose gradient is not finite, after a score; what was linearised is lost."""
        return self.communicator.joined(faulty_derivatives(self._plan, self._phases))

    def largest_residual(self) -> float:
        """The largest magnitude of a residual when the values were scored."""
        return max(self.communicator.gather(largest_residual(self._plan)))

    def factor_costs(self) -> dict[str, float]:
        """The cost of each factor when the values were scored."""
        return self.communicator.summed(factor_costs(self._plan))

    def num_beyond_scale(self) -> dict[str, int]:
        """Return the number of residuals longer than the loss scale, by the factor's name."""
        return self.communicator.summed(num_beyond_scale(self._plan))

    def residual_rows(self, factor: str) -> NDArray[np.float64]:
        """(instances, rows) residuals of a factor when the values were scored, as given.

        On the other devices than the first they may be missing.
        """
        plan = next((one for one in self._plan.factors if one.factor.name == factor), None)
        rows = None if plan is None else residual_rows(self._plan, plan)
        shard = self._plan.shard
        if shard is None:
            assert rows is not None
            return rows
        numbers = None
        if rows is not None:
            to_host = self._plan.library.backend.to_host
            numbers = shard.numbers(factor, np.arange(len(rows)), to_host)
        found = self.communicator.collect((numbers, rows))
        kept = [(places, own) for places, own in found if own is not None]
        if len(kept) == 0:
            return np.empty((0, 0))
        whole = np.empty((sum(len(own) for _, own in kept), kept[0][1].shape[1]))
        for places, own in kept:
            whole[places] = own
        return whole

    @property
    def has_lone_promises(self) -> bool:
        """True if `lone_promises` can be asked for: all nodes are here, and they are few."""
        is_orthogonal = isinstance(self._solvers.current, OrthogonalSolver)
        return all(self.communicator.gather(is_orthogonal or are_looked_at(self._plan)))

    def lone_promises(self, cost: float, least: float) -> Promises | None:
        """Return the promises of nodes one by one at the linearised values; None: not finite.

        Args:
            cost: At these values.
            least: Decrease of the cost that is worth a look.
        """
        orthogonal = self._solvers.current
        if isinstance(orthogonal, OrthogonalSolver):
            return orthogonal.promises()
        found = lone_promises(self._plan, cost, least)
        return self.communicator.broadcast(found)

    def remarks_on_values(self, system: Values, cost: float, first_cost: float) -> tuple[str, ...]:
        """See `system.free_values`."""
        return remarks_on_free_values(system, cost, first_cost)


def faulty_costs(plan: Plan) -> tuple[str, ...]:
    """Factors whose cost is not finite, after their residuals have been evaluated."""
    costs = plan.library.backend.to_host(plan.memory[SolverPart.COSTS])
    return tuple(
        _described(plan, one)
        for one in plan.factors
        if not np.isfinite(costs[one.first_tile : one.first_tile + one.num_tiles]).all()
    )


def _described(plan: Plan, factor: FactorPlan) -> str:
    """The same of the residuals that are not finite."""
    backend, storage = plan.library.backend, plan.types.storage
    residuals = plan.memory[factor.key(FactorPart.RESIDUAL)]
    dim = len(factor.factor.residual)
    is_faulty = _not_finite(backend.xp, residuals, factor.count, dim, storage)
    return _named(plan, factor, is_faulty & _counts(plan, factor))


def _named(plan: Plan, factor: FactorPlan, is_faulty: Array) -> str:
    """Name of a factor, how many of its slots are faulty, and the first instance."""
    backend = plan.library.backend
    slots = np.flatnonzero(backend.to_host(is_faulty))
    if factor.order.node_tiles is not None:
        slots = slots[~hole_places(plan, factor)[slots]]
    if factor.order.order is not None:
        slots = backend.to_host(factor.order.order)[slots]
    if plan.shard is not None:
        slots = plan.shard.numbers(factor.factor.name, slots, backend.to_host)
    if len(slots) == 0:
        # of none by itself
        return factor.factor.name
    return f"{factor.factor.name} ({count_text(len(slots), 'instance')}, first {slots.min():,})"


def largest_residual(plan: Plan) -> float:
    """The largest magnitude of a residual, after they have been evaluated."""
    backend, largest = plan.library.backend, 0.0
    for factor in plan.factors:
        residuals = plan.memory[factor.key(FactorPart.RESIDUAL)]
        dim = len(factor.factor.residual)
        counts = _counts(plan, factor)
        for chunk in chunk_views(residuals, factor.count, dim, plan.types.storage):
            sizes = backend.to_host(backend.xp.where(counts, abs(chunk).max(axis=1), 0.0))
            if factor.order.node_tiles is not None:
                sizes = sizes[~hole_places(plan, factor)]
            largest = max(largest, float(sizes.max(initial=0.0)))
    return largest


def _not_finite(xp: Any, data: Array, count: int, dim: int, dtype: DType) -> Array:
    """(count,) objects of a blocked array of which a scalar is not finite."""
    found = xp.zeros(count, dtype=bool)
    for chunk in chunk_views(data, count, dim, dtype):
        found |= ~xp.isfinite(chunk).all(axis=1)
    return found


def _counts(plan: Plan, factor: FactorPlan) -> Array:
    """(num_slots,) booleans: whose weight is not zero; () where there are no weights."""
    for term in factor.factor.terms:
        if term.source == WEIGHT:
            weights: Array = plan.memory[factor.key(FactorPart.CONSTANT, term)][: factor.count]
            return weights > 0.0
    return plan.library.backend.xp.ones((), dtype=bool)


SUMMED = (NodePart.GRADIENT, NodePart.DIAGONAL, NodePart.BLOCK)
"""Parts of nodes to which a linearisation adds."""


def faulty_derivatives(plan: Plan, phases: Phases) -> tuple[str, ...]:
    """Factors whose derivatives are not finite, or their squares, and which of their instances.

    An instance is named if something of each of its nodes is not finite. Residuals are of the
    linearised values; what was linearised is lost.
    """
    backend = plan.library.backend
    found = []
    for factor in plan.factors:
        backend.sequence(phases.gradients(factor)).run()
        names = {one.node_type.name for one in factor.factor.nodes}
        bad_nodes = {name: _bad_nodes(plan, plan.node_plans[name]) for name in names}
        if not any(bool(bad.any()) for bad in bad_nodes.values()):
            continue
        is_faulty = _counts(plan, factor) & backend.xp.ones(factor.count, dtype=bool)
        for argument in factor.factor.nodes:
            bad, index = bad_nodes[argument.node_type.name], factor.order.index(argument.name)
            is_faulty &= bad[0] if index is None else bad[backend.xp.asarray(index)]
        found.append(_named(plan, factor, is_faulty))
    return tuple(found)


def _bad_nodes(plan: Plan, node: NodePlan) -> Array:
    """(count,) booleans: of which nodes something that was summed is not finite."""
    xp = plan.library.backend.xp
    bad = xp.zeros(node.count, dtype=bool)
    for part in SUMMED:
        data = plan.memory[node.key(part)]
        if part.has_rows(eliminated=node.is_eliminated):
            bad |= ~xp.isfinite(data.reshape(node.count, -1)).all(axis=1)
        else:
            dim, dtype = part.dim(node.node), part.dtype(plan.types)
            bad |= _not_finite(xp, data, node.count, dim, dtype)
    return bad
