"""The launches of every phase of an iteration, in order.

Input: a plan. Output: sequences that Levenberg-Marquardt and the linear solvers run. Once for each
plan.

Also here: the sums over factors that phases leave, and that several devices add up.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import cast

import numpy as np

from caspar.equations.node_kernels import STEP_OF_MANY_SLOTS
from caspar.equations.parts import REDUCED, NodePart, SolverPart
from caspar.equations.scalar_kernels import CURVATURE_KERNEL, MERGE, MERGED
from caspar.memory.array import Array, Binding
from caspar.runtime.backend import Backend, Launch
from caspar.runtime.group.member import Member
from caspar.solver.plan.arena import Span
from caspar.solver.plan.plan import SCALARS, FactorPlan, NodePlan, Plan
from caspar.solver.system.launches import NOTHING, Binder


class Leaves(Enum):
    """The sums that a phase leaves in arrays of the node types that remain.

    LINEARIZED: gradients and diagonals of the linearised factors. BLOCKS: their diagonal blocks, of
    scaled Jacobians if the plan scales them. REDUCED: gradients and blocks after elimination.
    PRODUCT: the product of a PCG iteration.
    """

    LINEARIZED = "linearized", (NodePart.DIAGONAL, NodePart.GRADIENT)
    BLOCKS = "blocks", (NodePart.BLOCK,)
    REDUCED = "reduced", tuple(REDUCED.values())
    PRODUCT = "product", (NodePart.PRODUCT,)

    def __init__(self, text: str, parts: tuple[NodePart, ...]) -> None:
        self.text = text
        self.parts = parts


SCORE = ("cost", "eliminated_descent")
"""The first and the last of the scalars that `collect` makes of sums over all factors and nodes."""

DAMPED = ("start", "turn")
"""Kernels of the node types that remain that begin a product, and its curvature, with D p."""

COUNTED = ("retract",)
"""Kernels of the node types that remain that add to the model of a step."""


class SharedSums:
    """The launches that add up, where devices are several."""

    def __init__(self, plan: Plan, binder: Binder) -> None:
        self._plan = plan
        self._binder = binder
        self._is_shared = plan.shard is not None
        if plan.shard is None:
            return
        backend = self._member = cast(Member, plan.library.backend)
        self._is_first = plan.shard.is_first
        sums = plan.types.sums.value
        # of each type whose product has slots: their sum
        self._merged = {
            node.node.name: self._merged_product(backend, node)
            for node in plan.reduced
            if node.num_slots > 1
        }
        self._curvature = backend.allocate(16).view(sums)[:1]
        # what the first device counts: the others have no damping, and a model that nobody reads
        self._no_damping = backend.allocate(16).view(np.float64)[:1]
        backend.clear(self._no_damping)
        size = max(int(plan.memory[SolverPart.MODELS].nbytes), 16)
        self._uncounted = backend.allocate(size).view(sums)

    def leaves(self, *left: Leaves) -> list[Launch]:
        """Add up what phases have left."""
        if not self._is_shared:
            return []
        memory, nodes = self._plan.memory, self._plan.reduced
        parts = [part for leaf in left for part in leaf.parts]
        if not self._plan.is_scaled and len(self._plan.eliminated) == 0:
            # D is of blocks, and no sum
            parts = [part for part in parts if part is not NodePart.DIAGONAL]
        keys = [node.key(part) for part in parts for node in nodes]
        return self._add_up([memory[key] for key in keys if key in memory])

    def reduced_base(self) -> list[Launch]:
        """Return the launches of the system's own sums, which one device counts."""
        if self._is_shared and not self._is_first:
            return [self._binder.clear(Span.REDUCED_SUMS)]
        return [self._binder.copy(Span.REDUCED_SUMS, Span.SUMS)]

    def products(self) -> list[list[Launch]]:
        """Phases after the products: these and their curvature are added up.

        Where sums are ordered each device has as many partials of it as tiles, and adds them first.
        """
        if not self._is_shared:
            return []
        memory = self._plan.memory
        before: list[Launch] = []
        added: list[Array] = []
        for node in self._plan.reduced:
            merged = self._merged.get(node.node.name)
            if merged is None:
                added.append(memory[node.key(NodePart.PRODUCT)])
                continue
            before.append(self._binder.node_launch(node, MERGE, {MERGED: merged}))
            added.append(merged.data)
        if self._plan.is_ordered:
            own = {"curvature_sum": Binding(self._curvature, 1)}
            before.append(self._binder.scalar_launch(CURVATURE_KERNEL, own))
            added.append(self._curvature)
        else:
            added.append(memory[SolverPart.CURVATURES])
        return [phase for phase in (before, self._add_up(added)) if len(phase) > 0]

    def alpha(self) -> Launch:
        """The length of a step, by the curvature of all."""
        if not self._is_shared or not self._plan.is_ordered:
            return self._binder.scalar_launch("pcg_alpha")
        whole = {SolverPart.CURVATURES.text: Binding(self._curvature, 1)}
        return self._binder.scalar_launch("pcg_alpha", whole)

    def stepped(self, node: NodePlan) -> Mapping[str, Binding]:
        """Return the binding that `step` reads the product from, if that is not the plan's."""
        if not self._is_shared or node.node.name not in self._merged:
            return NOTHING
        whole = {"slots": 1, "stride": node.count}
        return {NodePart.PRODUCT.text: self._merged[node.node.name].with_fields(whole)}

    def collected(self) -> list[Launch]:
        """After `collect`."""
        if not self._is_shared:
            return []
        first, last = (SCALARS.index(name) for name in SCORE)
        return self._add_up([self._plan.memory[SolverPart.SCALARS][first : last + 1]])

    def counted(self, node: NodePlan, role: str) -> Mapping[str, Binding]:
        """Return the bindings with which one device counts for a node type."""
        if not self._is_shared or self._is_first or node.is_eliminated:
            return NOTHING
        if role in DAMPED:
            return {"damping": Binding(self._no_damping, 1)}
        if role in COUNTED:
            offset = {"offset": node.first_tile}
            length = self._plan.num_objects(SolverPart.MODELS)
            return {SolverPart.MODELS.addend: Binding(self._uncounted, length, fields=offset)}
        return NOTHING

    def _merged_product(self, backend: Backend, node: NodePlan) -> Binding:
        types, part = self._plan.types, NodePart.PRODUCT
        scalars = part.object_scalars(node.node, types, eliminated=False) * node.count
        dtype = np.dtype(part.dtype(types).in_arrays.value)
        return Binding(backend.allocate(scalars * dtype.itemsize).view(dtype), node.count)

    def _add_up(self, arrays: Sequence[Array]) -> list[Launch]:
        kept = [array for array in arrays if array.size > 0]
        return [self._member.all_reduce(kept)] if len(kept) > 0 else []


LaunchPhases = Sequence[Sequence[Launch]]
"""Launches of a phase may run at the same time."""


class Phases:
    """Lists of launches by what they do."""

    def __init__(self, plan: Plan, binder: Binder) -> None:
        self._plan = plan
        self._binder = binder
        self._sums = SharedSums(plan, binder)

    def score(self, state: NodePart) -> list[Launch]:
        """Cost of NODES or CANDIDATE, and what else the host reads."""
        scores = [self._binder.score(plan, state) for plan in self._plan.factors]
        return [*scores, self._binder.scalar_launch("collect"), *self._sums.collected()]

    def accept(self) -> list[Launch]:
        """The candidate to the nodes."""
        return [self._binder.copy(Span.ALL_NODES, Span.ALL_CANDIDATES)]

    def restore(self) -> list[Launch]:
        """The nodes to the candidate, where Jacobians are taken there; else nothing."""
        if not self._plan.goes_ahead:
            return []
        return [self._binder.copy(Span.ALL_CANDIDATES, Span.ALL_NODES)]

    def linearize(self, *, exact: bool) -> list[Launch]:
        """Jacobians, gradients, diagonals and blocks, where residuals are of the same state.

        `exact`: for a direct solver.
        """
        launches = [*self.round(), self._binder.clear(Span.ALL_SUMS)]
        for plan in self._plan.factors:
            launches += self._binder.linearize(plan, exact=exact)
        is_scaled = self._plan.is_scaled
        left = (Leaves.LINEARIZED,) if is_scaled else (Leaves.LINEARIZED, Leaves.BLOCKS)
        launches += self._sums.leaves(*left)
        bounded = [plan for plan in self._plan.nodes if plan.is_bounded]
        launches += [self._binder.node_launch(plan, "activate") for plan in bounded]
        if not is_scaled:
            return launches
        launches += [self._binder.node_launch(plan, "scale") for plan in self._plan.nodes]
        for plan in self._plan.factors:
            launches += self._binder.store(plan)
        return [*launches, *self._sums.leaves(Leaves.BLOCKS)]

    def gradients(self, factor: FactorPlan) -> list[Launch]:
        """Return the launches that linearise one factor alone."""
        clear = self._binder.clear(Span.ALL_SUMS)
        return [*self.round(), clear, *self._binder.linearize(factor, exact=False)]

    def round(self) -> list[Launch]:
        """Return the launches that round what is linearised, if kernels read rounded copies."""
        if not self._plan.rounds_values:
            return []
        return [self._binder.node_launch(plan, "round") for plan in self._plan.nodes]

    def reduce(self) -> list[Launch]:
        """Factorise blocks with the current damping; gradient and blocks of the reduced system."""
        launches = [*self.clear_curvatures(), *self._each("factorize", eliminated=True)]
        if len(self._plan.eliminated) > 0:
            launches += self._sums.reduced_base()
            for plan in self._schur_factors():
                launches += self._binder.reduce(plan)
            launches += self._sums.leaves(Leaves.REDUCED)
        return [*launches, *self._each("factorize", eliminated=False)]

    def begin_gradients(self) -> list[Launch]:
        """First vectors and scalars of conjugate gradients."""
        starts = self._each("start", eliminated=False)
        return [*starts, self._binder.scalar_launch("pcg_begin")]

    def iteration(self) -> LaunchPhases:
        """One iteration of conjugate gradients with block Jacobi M.

        A p, and what it adds to p.(A p); alpha, the length of the step; step += alpha p,
        r -= alpha A p, z = M^-1 r and r.z; beta, what is kept of p, and whether this was the last
        iteration; p = z + beta p.
        """
        phases = self._inner_phases()
        sums: list[list[Launch]] = []
        together: list[Launch] = []
        for plan in self._plan.factors:
            role = self._product_role(plan)
            if role != "":
                launch, *reductions = self._binder.product(plan, role)
                together.append(launch)
                # reductions of several arguments may add to one node type
                sums += [[reduction] for reduction in reductions]
        return [
            *[*phases, together, *sums, *self._sums.products()],
            [self._sums.alpha()],
            [self._step(plan) for plan in self._plan.reduced],
            [self._binder.scalar_launch("pcg_beta")],
            [*self._each("turn", eliminated=False), *self.clear_curvatures()],
        ]

    def clear_curvatures(self) -> list[Launch]:
        """Clear the sums of p.(A p) that products add to; empty if they write partials."""
        return [] if self._plan.is_ordered else [self._binder.clear_curvatures()]

    def candidate(self) -> list[Launch]:
        """Steps of the eliminated nodes, retraction, inner iterations, cost of the candidate."""
        bounded = [plan for plan in self._plan.reduced if plan.is_bounded]
        launches = [self._binder.node_launch(plan, "clip") for plan in bounded]
        if len(self._plan.eliminated) > 0:
            launches.append(self._binder.clear(Span.ALL_INNER))
            launches += [self._binder.gather(plan, NodePart.STEP) for plan in self._schur_factors()]
        retractions = [self._node_launch(plan, "retract") for plan in self._plan.nodes]
        inner = [
            self._binder.inner(plan)
            for plan in self._schur_factors()
            if plan.form.is_fused and plan.form.inner_iterations > 0
        ]
        return [*launches, *retractions, *inner, *self.score(NodePart.CANDIDATE)]

    def _step(self, plan: NodePlan) -> Launch:
        role = STEP_OF_MANY_SLOTS if plan.has_many_slots else "step"
        return self._binder.node_launch(plan, role, self._sums.stepped(plan))

    def _each(self, role: str, *, eliminated: bool) -> list[Launch]:
        nodes = self._plan.eliminated if eliminated else self._plan.reduced
        return [self._node_launch(plan, role) for plan in nodes]

    def _node_launch(self, plan: NodePlan, role: str) -> Launch:
        return self._binder.node_launch(plan, role, self._sums.counted(plan, role))

    def _schur_factors(self) -> list[FactorPlan]:
        """Factors that touch eliminated nodes and others."""
        return [
            plan
            for plan in self._plan.factors
            if plan.form.eliminated is not None and len(plan.reduced) > 0
        ]

    def _product_role(self, plan: FactorPlan) -> str:
        """The kernel that multiplies; empty where the factor has no part in the reduced system."""
        if plan.form.eliminated is None:
            return "product"
        if len(plan.reduced) == 0:
            return ""
        return "product" if plan.form.is_fused else "scatter"

    def _inner_phases(self) -> list[list[Launch]]:
        """y = V^-1 E^T C p of node types that several factors touch."""
        gathered = [plan for plan in self._schur_factors() if not plan.form.is_fused]
        if len(gathered) == 0:
            return []
        solved = [
            plan
            for plan in self._plan.eliminated
            if any(factor.form.eliminates(plan.node.name) for factor in gathered)
        ]
        return [
            [self._binder.clear(Span.ALL_INNER)],
            *([self._binder.gather(plan, NodePart.DIRECTION)] for plan in gathered),
            [self._binder.node_launch(plan, "solve") for plan in solved],
        ]


def bound_phases(plan: Plan) -> tuple[Binder, Phases]:
    """Bind the kernels of a plan, and return its launches."""
    binder = Binder(plan)
    return binder, Phases(plan, binder)
