"""The kernels of a node type: retract, and its part of the preconditioned conjugate gradients.

The linear system is (J^T J + damping D) step = -gradient with D by `node_diagonal`, preconditioned
by the inverse of its diagonal blocks. Blocks are factorised after scaling to unit diagonal; what is
stored is W = L^-1 S, so that W^T W r is positive semidefinite whatever rounding does to W.

Where Jacobians are stored (`scaled`) the system is in the variables D^1/2 step, in which it is
(J'^T J' + damping I) step' = -gradient' with J' = J D^-1/2: `gradient`, `block`, what `reduce`
makes of them, `preconditioner`, and all vectors are in these variables. `scale` gets there, after
the linearisation of all factors; `retract` takes the step back.

D is diag(J^T J) while damping is small. A node that factors hold in one direction only, such as a
beacon whose distance was measured once, may have next to nothing in one entry, and a step that goes
there far is all that the damped system sees: so with growing damping the entries of one part of the
tangent become alike, see `node_diagonal`.

Components that are held (`NodePart.FREE`) have rows and columns of unity in a block, and no row in
W. So z = W^T W r, and every direction and step made of it, are zero there whatever r is, and the
eliminated nodes' V^-1 becomes M V^-1 M, M the mask. No kernel of a factor knows of it.

Where numbers have bounds, `activate` makes the mask anew after each linearisation: what is at a
bound or next to it, and whose gradient pushes it out, is held. Steps are clipped at the bounds by
`clip`, before eliminated nodes take theirs, and those in `retract`. See docs/design/0029-bounds.md.

Gradients and blocks are padded rows, but those of an eliminated type: see `factor_builder`.
"""

import math
from collections.abc import Sequence

from caspar.equations.node_blocks import (
    ROUNDING,
    activated,
    clamped,
    clipped_step,
    damped_block,
    free_block,
    free_rows,
    inverse_of_parts,
    node_diagonal,
)
from caspar.equations.parts import NodeBuilder, NodePart, SolverPart, add_total
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.block_parts import block_parts, block_places
from caspar.frontend.factors.retraction import retracted
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.names import kernel_name
from caspar.frontend.precision import Types
from caspar.ir.scalar import Scalar, dot, total
from caspar.memory.accessors.sums.slots import BeginSlots, ReadSlots
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import ReadSequential, WriteSequential

NODE_ROLES = (
    "round",
    "scale",
    "factorize",
    "start",
    "step",
    "turn",
    "solve",
    "retract",
    "activate",
    "clip",
)
"""Ends of the names of a node type's kernels."""

MEMORY = 0.9
"""Share of an entry that D keeps for each accepted step, if diag(J^T J) has become smaller. Without
it, a parameter that loses influence for a moment loses its damping, and runs away
(docs/design/0014)."""

STEP_OF_MANY_SLOTS = "step_of_many_slots"
"""The same of the `step` of few nodes, whose products have many slots; made when first needed."""


def node_kernels(node: NodeType, types: Types, form: SolverForm) -> list[KernelSpec]:
    """All kernels of a node type."""
    eliminated, scaled = node.name in form.eliminated, form.is_scaled
    masked, bounded = node.name in form.masked, node.name in form.bounded
    held = {"eliminated": eliminated, "masked": masked, "bounded": bounded}
    made = [scale_kernel(node, types, **held)] if scaled else []
    if form.rounds_values(types):
        made.append(round_kernel(node, types))
    reduced = not eliminated and len(form.eliminated) > 0
    if bounded:
        kinds = {"eliminated": eliminated, "reduced": reduced, "scaled": scaled}
        made.append(activate_kernel(node, types, **kinds))
    if eliminated:
        return [
            *made,
            factorize_kernel(node, types, scaled=scaled, **held),
            solve_kernel(node, types),
            eliminated_retract_kernel(node, types, scaled=scaled, masked=masked, bounded=bounded),
        ]
    if bounded:
        made.append(clip_kernel(node, types, scaled=scaled))
    return [
        *made,
        factorize_kernel(node, types, reduced=reduced, scaled=scaled, **held),
        start_kernel(node, types, scaled=scaled),
        step_kernel(node, types),
        turn_kernel(node, types, scaled=scaled),
        retract_kernel(node, types, scaled=scaled, masked=masked, bounded=bounded),
    ]


def damping_diagonal(kernel: NodeBuilder, *, scaled: bool) -> list[Scalar]:
    """Return what the damping multiplies in the linear system: D, or 1 if it is scaled."""
    if scaled:
        return [Scalar(kernel.graph, kernel.graph.const(1.0))] * kernel.node.tangent_dim
    return kernel.read_part(NodePart.DIAGONAL)


def round_kernel(node: NodeType, types: Types) -> KernelSpec:
    """Return the kernel that rounds what is linearised to `rounded`, in the type of storage."""
    kernel = NodeBuilder(node, "round", types.values, types)
    kernel.write_part(NodePart.ROUNDED, kernel.read_part(NodePart.NODES))
    return kernel.build()


def scale_kernel(
    node: NodeType,
    types: Types,
    *,
    eliminated: bool = False,
    masked: bool = False,
    bounded: bool = False,
) -> KernelSpec:
    """After linearisation, in place: `diagonal` D without zeros, `gradient` times D^-1/2."""
    kernel = NodeBuilder(
        node, "scale", types.sums, types, eliminated=eliminated, masked=masked, bounded=bounded
    )
    squares = kernel.read_part(NodePart.DIAGONAL)
    if not eliminated:
        squares = _remembered(kernel, squares)
    gradient = kernel.read_part(NodePart.GRADIENT)
    damping, moving = kernel.scalar("damping"), kernel.read_moving()
    diagonal = node_diagonal(kernel, node, squares, damping, types.storage, moving)
    slope = [g * entry.sqrt().reciprocal() for g, entry in zip(gradient, diagonal, strict=True)]
    kernel.write_part(NodePart.DIAGONAL, diagonal)
    kernel.write_part(NodePart.GRADIENT, slope)
    return kernel.build()


def _remembered(kernel: NodeBuilder, squares: Sequence[Scalar]) -> list[Scalar]:
    """diag(J^T J), or what is left of its earlier entries where these are larger.

    In place: a linearisation at the same values changes nothing.
    """
    earlier = kernel.read_part(NodePart.INFLUENCE)
    largest = [square.max(entry) for square, entry in zip(squares, earlier, strict=True)]
    kernel.write_part(NodePart.INFLUENCE, largest)
    return largest


def factorize_kernel(
    node: NodeType,
    types: Types,
    *,
    eliminated: bool = False,
    reduced: bool = False,
    scaled: bool = False,
    masked: bool = False,
    bounded: bool = False,
) -> KernelSpec:
    """Write `preconditioner` W, lower triangle by rows, and `diagonal` D of a block and `damping`.

    If blocks are scaled, D is not written. Else it is derived from `block`; that of a reduced type
    was summed before, and its zeros are replaced in place. The type may be eliminated; if others
    are, `reduced`, W is of `reduced_block`, a block of the system that is solved. `masked`:
    components may be held, for which W has no rows; `bounded`: numbers have bounds.
    """
    dim = node.tangent_dim
    kernel = NodeBuilder(
        node, "factorize", types.sums, types, eliminated=eliminated, masked=masked, bounded=bounded
    )
    free = kernel.read_free()
    places = block_places(node)
    packed = kernel.read_part(NodePart.REDUCED_BLOCK if reduced else NodePart.BLOCK)
    block = dict(zip(places, packed, strict=True))
    num_rows = max(len(part) for part in block_parts(node))
    damped_one = kernel.scalar("damping") + num_rows * ROUNDING[types.storage]
    if scaled:
        for row in range(dim):
            block[row, row] = block[row, row] + damped_one
        inverse = free_rows(inverse_of_parts(node, free_block(block, free)), free)
        stored = [inverse[place] for place in places]
        kernel.write_part(NodePart.PRECONDITIONER, stored)
        return kernel.build()
    squares = [block[row, row] for row in range(dim)]
    if reduced:
        squares = kernel.read_part(NodePart.DIAGONAL)
    if not eliminated:
        squares = _remembered(kernel, squares)
    damping = kernel.scalar("damping")
    moving = kernel.read_moving()
    diagonal = node_diagonal(kernel, node, squares, damping, types.storage, moving)
    scale = [entry.sqrt().reciprocal() for entry in diagonal]
    damped = damped_block(block, scale, damped_one)
    inverse = free_rows(inverse_of_parts(node, free_block(damped, free)), free)
    stored = [inverse[i, j] * scale[j] for i, j in places]
    kernel.write_part(NodePart.DIAGONAL, diagonal)
    kernel.write_part(NodePart.PRECONDITIONER, stored)
    return kernel.build()


def solved_by_blocks(kernel: NodeBuilder, residual: Sequence[Scalar]) -> list[Scalar]:
    """z = W^T (W r)."""
    packed, node = kernel.read_part(NodePart.PRECONDITIONER), kernel.node
    lower = dict(zip(block_places(node), packed, strict=True))
    parts = [part for part in block_parts(node) for _ in part]
    inner = [
        total(lower[i, j] * residual[j] for j in range(part.start, i + 1))
        for i, part in enumerate(parts)
    ]
    return [
        total(lower[i, j] * inner[i] for i in range(j, part.stop)) for j, part in enumerate(parts)
    ]


def _write_direction(kernel: NodeBuilder, direction: Sequence[Scalar], *, scaled: bool) -> None:
    """Write `direction` p, and `product` = damping D p with its part of the curvature p.(A p)."""
    diagonal = damping_diagonal(kernel, scaled=scaled)
    damping = kernel.scalar("damping")
    damped = [damping * entry * p for entry, p in zip(diagonal, direction, strict=True)]
    kernel.write_part(NodePart.DIRECTION, direction)
    kernel.write_part(NodePart.PRODUCT, damped, BeginSlots())
    add_total(kernel, SolverPart.CURVATURES, [dot(damped, direction)], kernel.types)


def start_kernel(node: NodeType, types: Types, *, scaled: bool = False) -> KernelSpec:
    """First vectors of PCG: step 0, residual -gradient, direction z; sums `descent` = r.z."""
    kernel = NodeBuilder(node, "start", types.storage, types, few_items=True)
    residual = [-entry for entry in kernel.read_part(NodePart.GRADIENT)]
    preconditioned = solved_by_blocks(kernel, residual)
    zero = Scalar(kernel.graph, kernel.graph.const(0.0))
    kernel.write_part(NodePart.STEP, [zero] * node.tangent_dim)
    kernel.write_part(NodePart.RESIDUAL, residual)
    add_total(kernel, SolverPart.DESCENTS, [dot(residual, preconditioned)], types)
    _write_direction(kernel, preconditioned, scaled=scaled)
    return kernel.build()


def step_kernel(node: NodeType, types: Types, *, many_slots: bool = False) -> KernelSpec:
    """step += alpha p, residual -= alpha A p, z = W^T W r; sums `descent` = r.z."""
    role = STEP_OF_MANY_SLOTS if many_slots else "step"
    kernel = NodeBuilder(node, role, types.storage, types, few_items=True)
    kernel.guard("done")
    alpha = kernel.scalar("alpha")
    previous, direction = kernel.read_part(NodePart.STEP), kernel.read_part(NodePart.DIRECTION)
    step = [x + alpha * p for x, p in zip(previous, direction, strict=True)]
    product = kernel.read_part(NodePart.PRODUCT, ReadSlots(many=many_slots))
    before = kernel.read_part(NodePart.RESIDUAL)
    residual = [r - alpha * q for r, q in zip(before, product, strict=True)]
    kernel.write_part(NodePart.STEP, step)
    kernel.write_part(NodePart.RESIDUAL, residual)
    preconditioned = solved_by_blocks(kernel, residual)
    kernel.write_part(NodePart.PRECONDITIONED, preconditioned)
    add_total(kernel, SolverPart.DESCENTS, [dot(residual, preconditioned)], types)
    return kernel.build()


def turn_kernel(node: NodeType, types: Types, *, scaled: bool = False) -> KernelSpec:
    """The next direction: p = z + beta p."""
    kernel = NodeBuilder(node, "turn", types.storage, types, few_items=True)
    kernel.guard("done")
    beta = kernel.scalar("beta")
    preconditioned = kernel.read_part(NodePart.PRECONDITIONED)
    previous = kernel.read_part(NodePart.DIRECTION)
    direction = [z + beta * p for z, p in zip(preconditioned, previous, strict=True)]
    _write_direction(kernel, direction, scaled=scaled)
    return kernel.build()


def solve_kernel(node: NodeType, types: Types) -> KernelSpec:
    """Return the kernel of an eliminated type that computes `inner` = W^T W `inner`."""
    kernel = NodeBuilder(node, "solve", types.storage, types, eliminated=True)
    kernel.guard("done")
    inner = kernel.read_part(NodePart.INNER)
    kernel.write_part(NodePart.INNER, solved_by_blocks(kernel, inner))
    return kernel.build()


def activate_kernel(
    node: NodeType,
    types: Types,
    *,
    eliminated: bool = False,
    reduced: bool = False,
    scaled: bool = False,
) -> KernelSpec:
    """After linearisation: FREE, by `nodes`, their `gradient`, diag(J^T J) and their bounds."""
    kernel = NodeBuilder(node, "activate", types.sums, types, eliminated=eliminated, bounded=True)
    limits = kernel.read_limits()
    assert limits is not None
    storage, gradient = kernel.read_part(NodePart.NODES), kernel.read_part(NodePart.GRADIENT)
    if scaled or reduced:
        squares = kernel.read_part(NodePart.DIAGONAL)
    else:
        block = dict(zip(block_places(node), kernel.read_part(NodePart.BLOCK), strict=True))
        squares = [block[row, row] for row in range(node.tangent_dim)]
    entries = activated(limits, node, storage, gradient, squares)
    # at the same values as before what steps were to push out stays held
    is_new = kernel.scalar("shortening") < 0.5
    before = kernel.read_part(NodePart.FREE)
    kept = [is_new.where(entry, earlier) for entry, earlier in zip(entries, before, strict=True)]
    kernel.write_part(NodePart.FREE, kept)
    return kernel.build()


def clip_kernel(node: NodeType, types: Types, *, scaled: bool = False) -> KernelSpec:
    """Return the kernel of a type that remains which ends `step` at the bounds, in place."""
    kernel = NodeBuilder(node, "clip", types.values, types, bounded=True, few_items=True)
    clipped = _clipped(kernel, kernel.read_part(NodePart.STEP), scaled=scaled)
    kernel.write_part(NodePart.STEP, clipped)
    return kernel.build()


def move_kernel(node: NodeType, types: Types) -> KernelSpec:
    """Writes `moved`, (storage_dim,): `value` after `step` in its tangent.

    No solver runs it: it moves the nodes of live problems.
    """
    kernel = KernelBuilder(kernel_name(node.name, "move"), types.values)
    storage = kernel.read("value", node.storage_dim, types.values, ReadSequential())
    step = kernel.read("step", node.tangent_dim, types.values, ReadSequential())
    free = kernel.read("free", node.tangent_dim, types.values, ReadSequential())
    moved = retracted(node, storage, step, [0.0 < entry for entry in free])
    kernel.write("moved", moved, types.values, WriteSequential(rows=True))
    return kernel.build()


def retract_kernel(
    node: NodeType,
    types: Types,
    *,
    scaled: bool = False,
    masked: bool = False,
    bounded: bool = False,
) -> KernelSpec:
    """Move `nodes` by `step` to `candidate`, and fade what D remembers; sums `model`.

    The sums are step.gradient, step.residual, damping step.D step, D-weighted squared norm of
    the step, and 0: the first three give the decrease of the linear model by an inexact step,
    -1/2 step.gradient + 1/2 step.residual + 1/2 damping step.D step (residual = b - A step).
    """
    kernel = NodeBuilder(
        node, "retract", types.values, types, masked=masked, bounded=bounded, few_items=True
    )
    step = kernel.read_part(NodePart.STEP)
    _write_moved(kernel, step, scaled=scaled)
    faded = [MEMORY * entry for entry in kernel.read_part(NodePart.INFLUENCE)]
    # squares that overflowed are forgotten at once
    kept = [(entry < math.inf).where(entry, 0.0) for entry in faded]
    kernel.write_part(NodePart.CANDIDATE_INFLUENCE, kept)
    gradient = kernel.read_part(NodePart.GRADIENT)
    residual = kernel.read_part(NodePart.RESIDUAL)
    model = [dot(step, gradient), dot(step, residual)]
    _write_model(kernel, step, model, 0.0, scaled=scaled)
    return kernel.build()


def eliminated_retract_kernel(
    node: NodeType,
    types: Types,
    *,
    scaled: bool = False,
    masked: bool = False,
    bounded: bool = False,
) -> KernelSpec:
    """Return the kernel of an eliminated type: step -W^T W (gradient + `inner`), then retract.

    Its rows of the system hold exactly, so there is no residual; the last sum is |W gradient|^2,
    twice the decrease that these nodes promise by themselves.
    """
    kernel = NodeBuilder(
        node, "retract", types.values, types, eliminated=True, masked=masked, bounded=bounded
    )
    gradient = kernel.read_part(NodePart.GRADIENT)
    inner = kernel.read_part(NodePart.INNER)
    rest = [g + t for g, t in zip(gradient, inner, strict=True)]
    step = _clipped(kernel, [-entry for entry in solved_by_blocks(kernel, rest)], scaled=scaled)
    _write_moved(kernel, step, scaled=scaled)
    zero = Scalar(kernel.graph, kernel.graph.const(0.0))
    promised = dot(gradient, solved_by_blocks(kernel, gradient))
    _write_model(kernel, step, [dot(step, gradient), zero], promised, scaled=scaled)
    return kernel.build()


def _clipped(kernel: NodeBuilder, step: Sequence[Scalar], *, scaled: bool) -> Sequence[Scalar]:
    """A step that ends at the bounds, if there are any; holds what it would push out of them."""
    limits = kernel.read_limits()
    if limits is None:
        return step
    diagonal = kernel.read_part(NodePart.DIAGONAL) if scaled else None
    storage, shortening = kernel.read_part(NodePart.NODES), kernel.scalar("shortening")
    free = kernel.read_part(NodePart.FREE)
    clipped, held = clipped_step(limits, kernel.node, storage, step, shortening, free, diagonal)
    kernel.write_part(NodePart.FREE, held)
    return clipped


def _write_moved(kernel: NodeBuilder, step: Sequence[Scalar], *, scaled: bool) -> None:
    """`candidate`: the node after the step."""
    if scaled:
        pairs = zip(step, kernel.read_part(NodePart.DIAGONAL), strict=True)
        step = [x * entry.sqrt().reciprocal() for x, entry in pairs]
    storage, limits = kernel.read_part(NodePart.NODES), kernel.read_limits()
    moved = retracted(kernel.node, storage, step, kernel.read_moving())
    if limits is not None:
        moved = clamped(limits, kernel.node, storage, moved, kernel.types.storage)
    kernel.write_part(NodePart.CANDIDATE, moved)


def _write_model(
    kernel: NodeBuilder,
    step: Sequence[Scalar],
    first: Sequence[Scalar],
    last: Scalar | float,
    *,
    scaled: bool,
) -> None:
    diagonal = damping_diagonal(kernel, scaled=scaled)
    squared = dot([d * x for d, x in zip(diagonal, step, strict=True)], step)
    promised = squared * 0.0 + last
    model = [*first, kernel.scalar("damping") * squared, squared, promised]
    add_total(kernel, SolverPart.MODELS, model, kernel.types)
