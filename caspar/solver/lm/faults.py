"""Findings about a system for its users: costs and residuals by factor, and what is not finite.

Input: a plan whose values were just scored or linearised. Output: numbers, arrays and words on the
host. Cost: some passes over the arrays, at the end of a solve or when users ask.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.equations.parts import FactorPart, NodePart, SolverPart
from caspar.frontend.factors.trace import WEIGHT
from caspar.memory.array import Array
from caspar.memory.layout import chunk_views
from caspar.runtime.group.member import ALONE
from caspar.solver.linear.explicit.solvers import OrthogonalSolver
from caspar.solver.linear.method import HandOver
from caspar.solver.plan.plan import FactorPlan, NodePlan, Plan
from caspar.solver.result.quantities import count_text
from caspar.solver.system.lone_promises import Promises, are_looked_at, lone_promises
from caspar.solver.system.phases import Phases

MANY_SLOTS = 1 << 16
"""Instances of a factor from which on its typical cost is that of a tile, not of an instance."""

SUMMED = (NodePart.GRADIENT, NodePart.DIAGONAL, NodePart.BLOCK)
"""Parts of nodes to which a linearisation adds."""


class Findings:
    """Findings about a system that users are told, from all devices that share the problem."""

    def __init__(self, plan: Plan, phases: Phases, solvers: HandOver) -> None:
        self._plan = plan
        self._phases = phases
        self._solvers = solvers
        self.communicator = ALONE

    def factor_costs(self) -> dict[str, float]:
        """The cost of each factor, summed in float64, when the values were scored."""
        return self.communicator.summed(_sums(self._plan, SolverPart.COSTS))

    def num_beyond_scale(self) -> dict[str, int]:
        """Return, by factor with a loss, the number of residuals that are longer than its scale."""
        with_loss = [one.factor.name for one in self._plan.factors if one.factor.loss is not None]
        found = _sums(self._plan, SolverPart.BEYOND_SCALE) if len(with_loss) > 0 else {}
        return self.communicator.summed({name: round(found[name]) for name in with_loss})

    def residual_rows(self, factor: str) -> NDArray[np.float64]:
        """(instances, rows) residuals of a factor when the values were scored, as given.

        On the other devices than the first they may be missing.
        """
        plan = next((one for one in self._plan.factors if one.factor.name == factor), None)
        rows = None if plan is None else _residual_rows(self._plan, plan)
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

    def largest_residual(self) -> float:
        """The largest magnitude of a residual when the values were scored."""
        plan, backend, largest = self._plan, self._plan.library.backend, 0.0
        for factor in plan.factors:
            counts = _counts(plan, factor)
            for chunk in _residual_chunks(plan, factor):
                sizes = backend.to_host(backend.xp.where(counts, abs(chunk).max(axis=1), 0.0))
                if factor.order.node_tiles is not None:
                    sizes = sizes[~_hole_places(plan, factor)]
                largest = max(largest, float(sizes.max(initial=0.0)))
        return max(self.communicator.gather(largest))

    def faulty_costs(self) -> tuple[str, ...]:
        """The factors whose cost was not finite when the values were scored."""
        plan, backend = self._plan, self._plan.library.backend
        costs, found = backend.to_host(plan.memory[SolverPart.COSTS]), []
        for one in plan.factors:
            if not np.isfinite(costs[one.first_tile : one.first_tile + one.num_tiles]).all():
                is_faulty = _not_finite(backend.xp, _residual_chunks(plan, one), one.count)
                found.append(_named(plan, one, is_faulty & _counts(plan, one)))
        return self.communicator.joined(tuple(found))

    def faulty_derivatives(self) -> tuple[str, ...]:
        """Factors whose derivatives are not finite, or their squares, and which of their instances.

        An instance is named if something of each of its nodes is not finite. Residuals are of the
        linearised values; what was linearised is lost.
        """
        plan, backend, found = self._plan, self._plan.library.backend, []
        for factor in plan.factors:
            backend.sequence(self._phases.gradients(factor)).run()
            names = {one.node_type.name for one in factor.factor.nodes}
            bad_nodes = {name: _bad_nodes(plan, plan.node_plans[name]) for name in names}
            if not any(bool(bad.any()) for bad in bad_nodes.values()):
                continue
            is_faulty = _counts(plan, factor) & backend.xp.ones(factor.count, dtype=bool)
            for argument in factor.factor.nodes:
                bad, index = bad_nodes[argument.node_type.name], factor.order.index(argument.name)
                is_faulty &= bad[0] if index is None else bad[backend.xp.asarray(index)]
            found.append(_named(plan, factor, is_faulty))
        return self.communicator.joined(tuple(found))

    @property
    def has_lone_promises(self) -> bool:
        """True if `lone_promises` can be asked for: all nodes are here, and they are few."""
        is_orthogonal = isinstance(self._solvers.current, OrthogonalSolver)
        return all(self.communicator.gather(is_orthogonal or are_looked_at(self._plan)))

    def lone_promises(self, cost: float, least: float) -> Promises | None:
        """Return the promises of nodes one by one at the linearised values; None: not finite."""
        orthogonal = self._solvers.current
        if isinstance(orthogonal, OrthogonalSolver):
            return orthogonal.promises()
        return self.communicator.broadcast(lone_promises(self._plan, cost, least))


def typical_costs(plan: Plan) -> dict[str, float]:
    """Return, by factor, the median of its instances' squared residuals, or of its tiles' costs.

    A few huge residuals do not change it.
    """
    costs = plan.library.backend.to_host(plan.memory[SolverPart.COSTS]).astype(np.float64)
    typical = {}
    for one in plan.factors:
        if one.count >= MANY_SLOTS:
            parts = costs[one.first_tile : one.first_tile + one.num_tiles]
        else:
            parts = (_residual_rows(plan, one) ** 2).sum(axis=1)
        typical[one.factor.name] = float(np.median(parts))
    return typical


def _sums(plan: Plan, part: SolverPart) -> dict[str, float]:
    partials = plan.library.backend.to_host(plan.memory[part]).astype(np.float64)
    return {
        one.factor.name: float(partials[one.first_tile : one.first_tile + one.num_tiles].sum())
        for one in plan.factors
    }


def _residual_chunks(
    plan: Plan, factor: FactorPlan, bring: Callable[[Array], Array] = lambda data: data
) -> list[Array]:
    data, dim = plan.memory[factor.key(FactorPart.RESIDUAL)], len(factor.factor.residual)
    return chunk_views(bring(data), factor.count, dim, plan.types.storage)


def _residual_rows(plan: Plan, factor: FactorPlan) -> NDArray[np.float64]:
    """(instances, rows) residuals of a factor, in the order in which they were given."""
    to_host = plan.library.backend.to_host
    rows = np.concatenate(_residual_chunks(plan, factor, to_host), axis=1)
    if factor.order.order is None:
        return rows.astype(np.float64)
    instance = to_host(factor.order.order)
    if factor.order.node_tiles is not None:
        is_used = ~_hole_places(plan, factor)
        rows, instance = rows[is_used], instance[is_used]
    # holes are left out before numbers are converted: nothing has written to them
    given = np.empty(rows.shape, np.float64)
    given[instance] = rows
    return given


def _hole_places(plan: Plan, factor: FactorPlan) -> NDArray[Any]:
    """(num_slots,) booleans: places of node tiles that no instance is at."""
    items = plan.library.backend.to_host(factor.node_tiles.tile_items)
    return (np.arange(plan.library.tile_size) >= items[:, None]).reshape(-1)


def _named(plan: Plan, factor: FactorPlan, is_faulty: Array) -> str:
    """Name of a factor, how many of its slots are faulty, and the first instance."""
    to_host = plan.library.backend.to_host
    slots = np.flatnonzero(to_host(is_faulty))
    if factor.order.node_tiles is not None:
        slots = slots[~_hole_places(plan, factor)[slots]]
    if factor.order.order is not None:
        slots = to_host(factor.order.order)[slots]
    if plan.shard is not None:
        slots = plan.shard.numbers(factor.factor.name, slots, to_host)
    if len(slots) == 0:
        # of none by itself
        return factor.factor.name
    return f"{factor.factor.name} ({count_text(len(slots), 'instance')}, first {slots.min():,})"


def _not_finite(xp: Any, chunks: Sequence[Array], count: int) -> Array:
    """(count,) objects of a blocked array of which a scalar is not finite."""
    found = xp.zeros(count, dtype=bool)
    for chunk in chunks:
        found |= ~xp.isfinite(chunk).all(axis=1)
    return found


def _counts(plan: Plan, factor: FactorPlan) -> Array:
    """(num_slots,) booleans: whose weight is not zero; () where there are no weights."""
    for term in factor.factor.terms:
        if term.source == WEIGHT:
            weights: Array = plan.memory[factor.key(FactorPart.CONSTANT, term)][: factor.count]
            return weights > 0.0
    return plan.library.backend.xp.ones((), dtype=bool)


def _bad_nodes(plan: Plan, node: NodePlan) -> Array:
    """(count,) booleans: of which nodes something that was summed is not finite."""
    bad = plan.library.backend.xp.zeros(node.count, dtype=bool)
    for part in SUMMED:
        data, dim = plan.memory[node.key(part)], part.dim(node.node)
        if part.has_rows(eliminated=node.is_eliminated):
            chunks = [data.reshape(node.count, -1)]
        else:
            chunks = chunk_views(data, node.count, dim, part.dtype(plan.types))
        bad |= _not_finite(plan.library.backend.xp, chunks, node.count)
    return bad
