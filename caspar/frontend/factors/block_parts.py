"""Find the scalars of a tangent that share a diagonal block of J^T J.

Input: a node type. Output: ranges of its tangent, and the places of the blocks that are stored.
Once for each kernel.

Code for a block is unrolled, and a Cholesky factorisation of n rows takes n^3 / 3 operations with
its inverse. So a tangent of more than `MAX_WHOLE_BLOCK` scalars is cut into parts. Conjugate
gradients are then preconditioned by the blocks of the parts, which changes the number of iterations
and not the solution; direct solvers add the entries between the parts: see `explicit_kernels`.
"""

from typing import Any

from symforce.ops import LieGroupOps

from caspar.frontend.factors.trace import NodeType
from caspar.frontend.symbolic.field_types import field_types

MAX_WHOLE_BLOCK = 24
"""Degrees of freedom of a node whose block stays whole: see design record 0018."""

MAX_PART = 6
"""Degrees of freedom of a part of a larger node."""


def block_parts(node: NodeType) -> tuple[range, ...]:
    """The ranges of the tangent whose scalars share a block, in order.

    A field of a dataclass is cut only if it has more than `MAX_PART` degrees of freedom; small
    fields that follow each other share a part.
    """
    if node.tangent_dim <= MAX_WHOLE_BLOCK:
        return (range(node.tangent_dim),)
    sizes: list[int] = []
    for piece in _pieces(node.python_type):
        if len(sizes) > 0 and sizes[-1] + piece <= MAX_PART:
            sizes[-1] += piece
        else:
            sizes.append(piece)
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return tuple(range(end - size, end) for end, size in zip(ends, sizes, strict=True))


def has_whole_block(node: NodeType) -> bool:
    """Return whether all of the node's scalars share one block."""
    return node.tangent_dim <= MAX_WHOLE_BLOCK


def block_places(node: NodeType) -> list[tuple[int, int]]:
    """(row, column) of the stored entries: the lower triangle of each part, by rows."""
    return [
        (row, column)
        for part in block_parts(node)
        for row in part
        for column in range(part.start, row + 1)
    ]


def block_dim(node: NodeType) -> int:
    """Stored entries of a node's blocks."""
    return sum(len(part) * (len(part) + 1) // 2 for part in block_parts(node))


def _pieces(declared: Any) -> list[int]:
    fields = field_types(declared)
    if len(fields) > 0:
        return [piece for field in fields for piece in _pieces(field)]
    dim = int(LieGroupOps.tangent_dim(declared))
    count = max(1, -(-dim // MAX_PART))
    return [dim // count + (number < dim % count) for number in range(count)]
