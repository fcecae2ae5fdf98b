"""Checks of the first derivatives: units too far apart, squares out of the floating type's range.

D levels the entries of a part of a tangent, which is taken for a place or a rotation
(`node_blocks`). If it is an amplitude of 1e-30 and a rate of 1, levelling holds the rate at every
damping, and the solve would end with success where the rate started. A place shows itself: which
of its entries are small differs from node to node.

Input: D and gradient of a linearisation, once a linear solve has begun. Cost: some kilobytes are
copied to the host.
"""

import math
from collections.abc import Sequence

import numpy as np

from caspar.equations.node_blocks import ABSENT, LEVELLING_DAMPING, WITHIN_REACH
from caspar.equations.parts import NodePart
from caspar.frontend.factors.trace import NodeType
from caspar.memory.array import Array
from caspar.memory.layout import chunk_views, padded_chunks
from caspar.solver.plan.plan import NodePlan, Plan

LOOKED_AT = 200
"""Nodes of a type, its first ones."""

_ROUNDING = 1e-5
"""Relative rounding error of a levelled entry, which may be float32."""

LEAST_SHARE = 1e-2
"""Share of the median of a column of a node type: D is at least as much."""


class DerivativeLook:
    """Copies D and gradient of the first nodes of each type to the host."""

    def __init__(self, plan: Plan) -> None:
        self._nodes = [node.node for node in plan.nodes if node.count > 0]
        self._chunks = [_first_chunks(plan, node) for node in plan.nodes if node.count > 0]
        flat = [chunk for of_node in self._chunks for of_array in of_node for chunk in of_array]
        self._copies = plan.library.backend.host_copies(flat)

    def diagonals(self) -> list[Array]:
        """The entries of D that are looked at, (n, lanes) of each chunk."""
        found = []
        for node, (squares, *_) in zip(self._nodes, self._chunks, strict=True):
            left = node.tangent_dim
            for chunk in squares:  # only the last one is padded
                found.append(chunk[:, :left])
                left -= chunk.shape[1]
        return found

    def begin(self) -> None:
        """Enqueue the copies: of what D and gradient are now."""
        self._copies.fetch()

    def read(self) -> "DerivativeSizes":
        """Wait for the copies."""
        fetched = iter(self._copies.read())
        rows = []
        for node, of_node in zip(self._nodes, self._chunks, strict=True):
            # only the last of an array's chunks is padded
            squares, slopes, *free = (
                _joined([next(fetched) for _ in of_array], node.tangent_dim) for of_array in of_node
            )
            rows.append(_Rows(node, *_without_held(squares, slopes, *free)))
        return DerivativeSizes(rows)


class _Rows:
    """D and gradient of some nodes of a type, (n, tangent_dim) each.

    Attributes:
        least, most: (tangent_dim,) extremes of D: they tell nearly always that nothing is wrong.
    """

    def __init__(self, node: NodeType, squares: Array, slopes: Array) -> None:
        self.node = node
        self.squares = squares
        self.slopes = slopes
        self.least: list[float] = squares.min(axis=0).tolist()
        self.most: list[float] = squares.max(axis=0).tolist()


class DerivativeSizes:
    """D and gradient of some nodes of each type."""

    def __init__(self, rows: Sequence[_Rows]) -> None:
        self._rows = rows

    @classmethod
    def joined(cls, parts: Sequence["DerivativeSizes"]) -> "DerivativeSizes":
        """Join the sizes of several parts of a problem, each with its own eliminated nodes."""
        if len(parts) == 1:
            return parts[0]
        by_type: dict[str, list[_Rows]] = {}
        for rows in (rows for part in parts for rows in part._rows):
            by_type.setdefault(rows.node.name, []).append(rows)
        return cls(
            [
                _Rows(
                    found[0].node,
                    np.concatenate([rows.squares for rows in found]),
                    np.concatenate([rows.slopes for rows in found]),
                )
                for found in by_type.values()
            ]
        )

    def levelling_holds(self, damping: float) -> bool:
        """Return whether a D that is levelled would hold a scalar at every damping.

        Then its entry is a levelled one in all nodes, and not marked by `WITHIN_REACH`.
        """
        share = min(damping / (damping + LEVELLING_DAMPING), 1.0 / WITHIN_REACH)
        share *= 1.0 + _ROUNDING
        return any(
            min(rows.least[place]) <= share * max(rows.most[place])
            and _units_are_apart(rows.squares[:, place], rows.slopes[:, place], share)
            for rows in self._rows
            for place in (slice(part.start, part.stop) for part in rows.node.tangent_parts)
        )

    def lost_squares(self) -> dict[str, bool]:
        """Node types with squares of derivatives that are zero or infinite in the floating type.

        By the type's name, whether nothing can be said of its values: a square is infinite, or that
        of a scalar is zero in all nodes, not only in some, such as points that run to infinity.
        """
        found = {}
        for rows in self._rows:
            squares, least, most = rows.squares, min(rows.least), max(rows.most)
            is_within = 0.0 < least and most < math.inf
            if is_within and not (least <= ABSENT <= most and (squares == ABSENT).any()):
                continue
            is_zero = (rows.slopes != 0.0) & ((squares == ABSENT) | (squares == 0.0))
            is_infinite = squares == np.inf
            if is_zero.any() or is_infinite.any():
                found[rows.node.name] = bool(is_infinite.any() or is_zero.all(axis=0).any())
        return found


def _units_are_apart(squares: Array, slopes: Array, share: float) -> bool:
    """Return whether some entry of a part of D is at most this share of the largest in all nodes.

    If its gradient is zero in all of them, no factor touches it: that says nothing.
    """
    is_small = (squares <= share * squares.max(axis=1, keepdims=True)).all(axis=0)
    is_touched = (slopes != 0.0).any(axis=0)
    return bool((is_small & is_touched).any())


def _without_held(squares: Array, slopes: Array, free: Array | None = None) -> tuple[Array, Array]:
    """D of what is held as large as what moves in its node, and no gradient."""
    if free is None:
        return squares, slopes
    moves = free > 0.5
    largest = np.where(moves, squares, 0.0).max(axis=1, keepdims=True)
    largest = np.where(largest > 0.0, largest, 1.0)
    return np.where(moves, squares, largest), np.where(moves, slopes, 0.0)


def _joined(chunks: list[Array], dim: int) -> Array:
    joined = chunks[0] if len(chunks) == 1 else np.concatenate(chunks, axis=1)
    return joined[:, :dim]


def _first_chunks(plan: Plan, node: NodePlan) -> tuple[list[Array], ...]:
    """Return contiguous chunks of D, of the gradient, and of the mask of held numbers."""
    count, dim = node.count, node.node.tangent_dim
    diagonal, gradient = (
        plan.memory[node.key(part)] for part in (NodePart.DIAGONAL, NodePart.GRADIENT)
    )
    squares = padded_chunks(diagonal, count, dim, plan.types.storage)
    if node.is_eliminated:
        slopes = padded_chunks(gradient, count, dim, plan.types.sums)
    else:
        slopes = [gradient.reshape(count, -1)]
    arrays = [squares, slopes]
    if node.is_masked:
        free = plan.memory[node.key(NodePart.FREE)]
        arrays.append(padded_chunks(free, count, dim, plan.types.storage))
    return tuple([chunk[:LOOKED_AT] for chunk in chunks] for chunks in arrays)


def raise_least_damping(plan: Plan) -> bool:
    """Let D remember more for nodes that have far less of it than others of their type.

    `checks.table.weak_nodes` asks for it, never before a solve would end without success. It fades
    as all that D remembers (`node_kernels.MEMORY`).

    `plan`: Its diagonals are D of a step with little damping at the current values. Returns whether
    there are such nodes.
    """
    xp = plan.library.backend.xp
    is_raised = False
    for node in plan.reduced:
        if node.count < 2:
            continue
        shape = node.count, node.node.tangent_dim, plan.types.storage
        diagonals, remembered = (
            chunk_views(plan.memory[node.key(part)], *shape)
            for part in (NodePart.DIAGONAL, NodePart.INFLUENCE)
        )
        for diagonal, earlier in zip(diagonals, remembered, strict=True):
            least = LEAST_SHARE * xp.median(diagonal, axis=0)
            is_less = diagonal < least
            is_raised = is_raised or bool(is_less.any())
            earlier[...] = xp.where(is_less, least, earlier)
    return is_raised
