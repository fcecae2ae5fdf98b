"""The sums over factors that phases leave, and that several devices add up.

Each device has some of the factors, with the eliminated nodes that they touch, and all nodes of
the types that remain. What factors add to these, and to numbers of the whole problem, is a part of
a sum on each device; `Leaves` says where which of them is needed whole. What kernels of node types
that remain add is the same on all devices: the first one counts it.

Input: a plan. Output: launches; none on one device. Once for each plan.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import cast

import numpy as np

from caspar.equations.parts import REDUCED, NodePart, SolverPart
from caspar.equations.scalar_kernels import CURVATURE_KERNEL, MERGE, MERGED
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.runtime.backend import Backend, Launch
from caspar.runtime.group.member import Member
from caspar.solver.plan.array_key import Span
from caspar.solver.plan.plan import SCALARS, NodePlan, Plan
from caspar.solver.system.launches import NOTHING, Binder


class Leaves(Enum):
    """What a phase leaves in arrays of the node types that remain.

    LINEARIZED: gradients and diagonals of the linearised factors. BLOCKS: their diagonal blocks, of
    scaled Jacobians if the plan scales them. REDUCED: what eliminated nodes leave of gradients and
    blocks, on top of the system's own. PRODUCT: the product of a PCG iteration.
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
    """The launches that add up, where devices are several.

    Args:
        plan: Memory and structure.
        binder: Binds its kernels.
    """

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
        """What the reduced system is added to: the system's own sums, which one device counts."""
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
        """What `step` reads the product from, where that is not the plan's."""
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
        """What a kernel of a node type is bound to besides, so that one device counts."""
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
