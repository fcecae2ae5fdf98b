"""Predict the decrease by each node alone, and find unknowns that nothing holds.

D remembers earlier values of diag(J^T J) (`node_kernels.MEMORY`). An unknown that has lost its
influence on the residuals is then held by every damping, and steps predict no decrease although its
own gradient does not vanish. The blocks of the nodes themselves show this.

Input: a plan that was just linearised. Output: numbers and words. Cost tier: once for a solve, of
few unknowns; their gradients and blocks are copied to the host.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caspar.equations.parts import NodePart
from caspar.frontend.factors.block_parts import block_places, has_whole_block
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.symbolic.field_types import tangent_fields
from caspar.memory.layout import chunk_views
from caspar.solver.plan.plan import NodePlan, Plan

MAX_UNKNOWNS = 1000
"""Unknowns of plans that are looked at, if factors couple nodes. Of larger ones steps tell as much,
and reading each node would take its time."""

MAX_SEPARATE_UNKNOWNS = 100_000
"""The same if no factor couples nodes: many fits in one solve. Their eigenvalues take some tenths
of a second then (docs/design/0014-levenberg-policy.md)."""

UNRESOLVED = 4.0
"""Roundings of 1 for each unknown of a node: as much curvature may be rounding, in variables in
which the diagonal is 1."""

FEW_NODES, FEW_UNKNOWNS = 4, 8
"""Nodes of a type, and unknowns of each, that are looked at number by number."""

SHOWN = 0.1
"""Share of a direction that an unknown has to have to be named."""

MOST_NAMED = 3
"""Nodes of a type that are named."""

MOST_DIRECTIONS = 4
"""Directions without curvature that are looked at. Of more, one more is kept, to tell."""

Numbers = NDArray[np.float64]

Direction = Mapping[str, Numbers]
"""Numbers that are added to the nodes of each type, (n, storage_dim); the largest is 1."""


@dataclass(frozen=True)
class Promises:
    """The decreases that the linear model predicts for steps of next to no damping.

    Attributes:
        decrease: Decrease of the cost by the node with the largest, 1/2 g^T (H + e I)^-1 g, where
            rounding may cause a curvature of e; or by all nodes together.
        trusted: The same along only those directions whose curvature has half of its digits, and
            along which the residuals change by more than rounding: along others the curvature of
            the residuals themselves may count for more.
        where: That node and its steepest unknown; empty if the decrease is by all together.
        free: Nodes with directions of a curvature of at most e, and the unknowns these move.
        doubtful: The first of them of which an unknown has derivatives; a type with more digits may
            resolve the direction.
        directions: Those of a curvature of at most e, for types whose numbers are their unknowns.
    """

    decrease: float
    trusted: float
    where: str = ""
    free: tuple[str, ...] = ()
    doubtful: str = ""
    directions: tuple[Direction, ...] = ()


def are_looked_at(plan: Plan) -> bool:
    """Return whether the plan is small, without eliminated nodes, for which D has no memory."""
    num_unknowns = sum(node.count * node.node.tangent_dim for node in plan.nodes)
    is_separate = all(len(one.factor.nodes) == 1 for one in plan.factors)
    most = MAX_SEPARATE_UNKNOWNS if is_separate else MAX_UNKNOWNS
    return len(plan.eliminated) == 0 and 0 < num_unknowns <= most


def lone_promises(plan: Plan, cost: float, worth: float) -> Promises | None:
    """Return the promises of a plan whose gradients and blocks are those of the current values.

    `plan`: Gradients and blocks may be scaled by D, which changes nothing here. Returns None if
    something is not finite. Nothing is promised if all nodes are plainly held and promise less than
    `worth`, or than what the cost is rounded.
    """
    rounding = float(np.finfo(plan.types.storage.value).eps)
    worth = max(worth, rounding * cost)
    if all(_is_at_rest(plan, node, rounding, worth) for node in plan.nodes if node.count > 0):
        return Promises(0.0, 0.0)
    found = [_of_type(plan, node, cost) for node in plan.nodes if node.count > 0]
    finite = [one for one in found if one is not None]
    if len(finite) < len(found):
        return None
    most = max(finite, key=lambda one: one.decrease)
    free = tuple(text for one in finite for text in one.free)
    doubtful = next((one.doubtful for one in finite if one.doubtful != ""), "")
    ways = tuple(way for one in finite for way in one.directions)
    return Promises(most.decrease, most.trusted, most.where, free, doubtful, ways)


def _is_at_rest(plan: Plan, node: NodePlan, rounding: float, most: float) -> bool:
    """Return whether the nodes of a type plainly are held, and promise no more.

    NumPy takes a hundred times as long for a single node as these numbers do.
    """
    dim, to_host = node.node.tangent_dim, plan.library.backend.to_host
    if node.is_masked or dim > FEW_UNKNOWNS or not has_whole_block(node.node):
        return False
    least_curvature = UNRESOLVED * rounding * dim
    if node.count > FEW_NODES:
        return _all_are_at_rest(*_scaled(plan, node), least_curvature, most)
    gradients, blocks = (
        to_host(plan.memory[node.key(part)]).reshape(node.count, -1).tolist()
        for part in (NodePart.GRADIENT, NodePart.BLOCK)
    )
    return all(
        _is_held_at_rest(gradient[:dim], block, least_curvature, most)
        for gradient, block in zip(gradients, blocks, strict=True)
    )


def _all_are_at_rest(
    slopes: Numbers, blocks: Numbers, squares: Numbers, least_curvature: float, most: float
) -> bool:
    """`_is_held_at_rest` of many nodes."""
    if not (np.isfinite(slopes).all() and np.isfinite(blocks).all() and (squares > 0.0).all()):
        return False
    try:
        lower = np.linalg.cholesky(blocks)
    except np.linalg.LinAlgError:
        return False
    dim = slopes.shape[1]
    pivots = np.einsum("nii->ni", lower) ** 2
    least = pivots.prod(axis=1).min() * ((dim - 1) / dim) ** (dim - 1)
    if not (least > 2.0 * least_curvature and pivots.min() > least_curvature):
        return False
    steps = np.linalg.solve(blocks, slopes[:, :, None])[:, :, 0]
    return bool(0.5 * (steps * slopes).sum(axis=1).max() <= most)


def _is_held_at_rest(
    gradient: Sequence[float], block: Sequence[float], least_curvature: float, most: float
) -> bool:
    """Return whether a node has more curvature than that in all directions, and promises no more.

    Cholesky's factorisation of the block H, scaled to a diagonal of 1. The other eigenvalues have
    the mean n / (n - 1) at most, so the least one is at least det H ((n - 1) / n)^(n - 1).
    """
    dim = len(gradient)
    firsts = [row * (row + 1) // 2 for row in range(dim)]
    squares = [block[first + row] for row, first in enumerate(firsts)]
    if not all(0.0 < square < math.inf for square in squares):
        return False
    scale = [1.0 / math.sqrt(square) for square in squares]
    lower: list[list[float]] = []
    solved: list[float] = []
    determinant, promised = 1.0, 0.0
    for row, first in enumerate(firsts):
        entries: list[float] = []
        left, slope = 1.0, gradient[row] * scale[row]
        for column, above in enumerate(lower):
            entry = block[first + column] * scale[row] * scale[column]
            for one, other in zip(entries, above, strict=False):
                entry -= one * other
            entry /= above[column]
            entries.append(entry)
            left -= entry * entry
            slope -= entry * solved[column]
        if not left > least_curvature:
            return False
        entries.append(math.sqrt(left))
        lower.append(entries)
        solved.append(slope / entries[row])
        determinant *= left
        promised += 0.5 * solved[row] * solved[row]
    least = determinant * ((dim - 1) / dim) ** (dim - 1)
    return least > 2.0 * least_curvature and promised <= most


def _of_type(plan: Plan, node: NodePlan, cost: float) -> Promises | None:
    slopes, blocks, squares = _scaled(plan, node)
    if not (np.isfinite(slopes).all() and np.isfinite(blocks).all()):
        return None
    rounding = float(np.finfo(plan.types.storage.value).eps)
    least = UNRESOLVED * rounding * node.node.tangent_dim
    curvatures, directions = np.linalg.eigh(blocks)
    along = np.einsum("nij,ni->nj", directions, slopes)
    promised = 0.5 * along**2 / (np.maximum(curvatures, 0.0) + least)
    is_seen = ~(_changes(plan, node, squares) <= rounding * math.sqrt(2.0 * cost))
    is_free = curvatures <= least
    is_trusted = (curvatures >= math.sqrt(rounding)) & (
        is_seen[:, :, None] & (np.abs(directions) > SHOWN)
    ).any(axis=1)
    decreases, trusted = promised.sum(axis=1), np.where(is_trusted, promised, 0.0).sum(axis=1)
    row = int(np.argmax(decreases))
    steepest = np.arange(node.node.tangent_dim) == np.argmax(np.abs(slopes[row]))
    moved = (is_free[:, None, :] & (np.abs(directions) > SHOWN)).any(axis=2)
    doubtful = _free_texts(plan, node, moved & (squares > 0.0))
    return Promises(
        float(decreases[row]),
        float(trusted[row]),
        _text(plan, node, row, steepest),
        _free_texts(plan, node, moved),
        doubtful[0] if len(doubtful) > 0 else "",
        _ways(plan, node, is_free, directions, _lengths(plan, node, squares)),
    )


def _ways(
    plan: Plan, node: NodePlan, is_free: NDArray[np.bool_], directions: Numbers, lengths: Numbers
) -> tuple[Direction, ...]:
    """Return the moves of a type's nodes along their (n, dim, dim) directions of no curvature."""
    found, units = [], np.where(lengths > 0.0, lengths, 1.0)
    for row, column in np.argwhere(is_free)[: MOST_DIRECTIONS + 1].tolist():
        added = np.zeros((node.count, node.node.tangent_dim))
        added[row] = directions[row, :, column] / units[row]
        found.append(direction_of(plan, {node.node.name: added}))
    return tuple(one for one in found if len(one) > 0)


def direction_of(plan: Plan, added: Mapping[str, Numbers]) -> Direction:
    """A direction without types whose numbers are not their unknowns; empty if nothing is left."""
    kept = {
        name: one
        for name, one in added.items()
        if plan.node_plans[name].node.storage_dim == one.shape[1] and np.any(one)
    }
    largest = max((float(np.abs(one).max()) for one in kept.values()), default=0.0)
    return {name: one / largest for name, one in kept.items()}


def _changes(plan: Plan, node: NodePlan, squares: Numbers) -> Numbers:
    """(n, dim) change of the residuals if a number were changed by its size, were they linear.

    It is infinite for numbers whose size says nothing: zeros, rotations and poses.
    """
    if node.node.storage_dim != node.node.tangent_dim:
        return np.full_like(squares, math.inf)
    sizes = np.abs(numbers_of(plan, node, NodePart.NODES))
    with np.errstate(over="ignore", invalid="ignore"):
        changes = _lengths(plan, node, squares) * sizes
    return np.where(sizes > 0.0, changes, math.inf)


def _lengths(plan: Plan, node: NodePlan, squares: Numbers) -> Numbers:
    """(n, dim) lengths of the columns of the Jacobian, without the scales of D."""
    if not plan.is_scaled:
        return np.sqrt(squares)
    diagonal = numbers_of(plan, node, NodePart.DIAGONAL)
    with np.errstate(over="ignore", invalid="ignore"):
        lengths: Numbers = np.sqrt(squares) * np.sqrt(diagonal)
    return lengths


def numbers_of(plan: Plan, node: NodePlan, part: NodePart) -> Numbers:
    """(n, dim) numbers of nodes on the host."""
    dim, data = part.dim(node.node), plan.library.backend.to_host(plan.memory[node.key(part)])
    chunks = chunk_views(data, node.count, dim, part.dtype(plan.types))
    return np.concatenate(chunks, axis=1)[:, :dim].astype(np.float64)


def _scaled(plan: Plan, node: NodePlan) -> tuple[Numbers, Numbers, Numbers]:
    """Gradients and blocks, in variables in which the diagonal of the blocks is 1; the diagonal.

    They are (n, dim), (n, dim, dim) and (n, dim). The diagonal stays 0 without curvature. What is
    held has no gradient. Of a node with several blocks only the diagonal is kept.
    """
    to_host, dim = plan.library.backend.to_host, node.node.tangent_dim
    gradient, packed = (
        to_host(plan.memory[node.key(part)]).reshape(node.count, -1).astype(np.float64)
        for part in (NodePart.GRADIENT, NodePart.BLOCK)
    )
    slopes, blocks = gradient[:, :dim], np.zeros((node.count, dim, dim))
    for number, (i, j) in enumerate(block_places(node.node)):
        if i == j or has_whole_block(node.node):
            blocks[:, i, j] = blocks[:, j, i] = packed[:, number]
    squares = np.einsum("nii->ni", blocks)
    scale = np.zeros_like(squares)
    np.divide(1.0, np.sqrt(squares, where=squares > 0.0, out=scale), where=squares > 0.0, out=scale)
    if node.is_masked:
        free = numbers_of(plan, node, NodePart.FREE) > 0.5
        scale = np.where(free, scale, 0.0)
    else:
        free = np.ones(slopes.shape, dtype=bool)
    with np.errstate(over="ignore", invalid="ignore"):
        blocks = blocks * scale[:, :, None] * scale[:, None, :]
        blocks[:, np.arange(dim), np.arange(dim)] += np.where(free, 0.0, 1.0)
        return slopes * scale, blocks, squares


def joint_texts(
    plan: Plan, shares: Mapping[str, Numbers], moved: Mapping[str, NDArray[np.bool_]]
) -> tuple[str, tuple[str, ...]]:
    """The node of the largest share with its steepest unknown, and nodes that may move.

    By type (n, tangent_dim): what each unknown promises, and whether something undetermined moves
    it.
    """
    sums = {node.node.name: shares[node.node.name].sum(axis=1) for node in plan.nodes}
    most = max(plan.nodes, key=lambda node: sums[node.node.name].max(initial=-math.inf))
    name = most.node.name
    row = int(np.argmax(sums[name]))
    steepest = np.arange(most.node.tangent_dim) == np.argmax(shares[name][row])
    free = (text for node in plan.nodes for text in _free_texts(plan, node, moved[node.node.name]))
    return _text(plan, most, row, steepest), tuple(free)


def _free_texts(plan: Plan, node: NodePlan, moved: NDArray[np.bool_]) -> tuple[str, ...]:
    """Name the nodes with a direction that nothing holds: the first ones, and how many more."""
    rows = np.flatnonzero(moved.any(axis=1))
    texts = [_text(plan, node, int(row), moved[row]) for row in rows[:MOST_NAMED]]
    if len(rows) > MOST_NAMED:
        texts.append(f"{len(rows) - MOST_NAMED:,} more of {node.node.name}")
    return tuple(texts)


def _text(plan: Plan, node: NodePlan, row: int, chosen: NDArray[np.bool_]) -> str:
    """A node, in the order of the user's arrays, and some of its unknowns."""
    order = None if node.order is None else node.order.node
    number = row if order is None else int(plan.library.backend.to_host(order[row]))
    return f"{node.node.name} {number}, {' and '.join(_names(node.node, chosen))}"


def _names(node: NodeType, chosen: NDArray[np.bool_]) -> Sequence[str]:
    fields = tangent_fields(node.python_type)
    if len(fields) > 0:
        return [name for name, place in fields.items() if chosen[place.start : place.stop].any()]
    return [f"entry {entry}" for entry in np.flatnonzero(chosen)]
