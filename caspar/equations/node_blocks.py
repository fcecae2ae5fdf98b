"""The small blocks of nodes: their damping, and triangles that invert them."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from caspar.equations.parts import TO_LOWER, TO_UPPER, WAS_SENT, has_code
from caspar.frontend.factors.block_parts import block_parts
from caspar.frontend.factors.trace import NodeType
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar, total
from caspar.memory.kernel import KernelBuilder

ABSENT = 1.0 + 2.0**-23
"""Entry of D for a scalar whose entry of diag(J^T J) is zero. With a gradient of zero every number
would do; this one is near 1, and known again: beside a gradient that is not zero it shows a square
that was too small for the floating type."""

LEVELLING_DAMPING = 10.0
"""Damping at which entries of D are half of the largest of their part at least. A hundred places
on a circle, each free to move along it, with 1: 28 to 34 iterations, with 10: 34 to 37, with 100:
38 to 42; without end if D is diag(J^T J), as the one that sees the circle along an axis jumps."""

UNITS_APART = {DType.FLOAT32: 1e-14, DType.FLOAT64: 1e-26}
"""Share of the largest entry of a part, by the type of the values: what is below it is not moved by
steps of little damping where D is levelled, so it must not be."""

WITHIN_REACH = 1.0 + 2.0**-10
"""Factor by which levelling raises entries above `UNITS_APART` further: who looks at D can tell."""

ROUNDING = {DType.FLOAT32: 1e-7, DType.FLOAT64: 1e-15}
"""Shift that rounding may cause in the eigenvalues of a block scaled to unit diagonal, for each of
its rows; by the type of the Jacobian. As much is added to the diagonal: an eliminated block that is
too small makes the Schur complement indefinite, one that is too large is only damped more."""

_SMALLEST_PIVOT = 1e-15
"""Lower bound of a pivot of a block scaled to unit diagonal."""


SURELY_ACTIVE = 1e-2
"""Share of the step that a number would take alone, by its own slope and curvature. If a bound is
as near, the number goes there, and linear solves need not know of it."""

LITTLE_ROOM = 0.1
"""Share of its step up to which the way of a number to its bound is little
(docs/design/0029-bounds.md)."""

KEPT_WAY = 0.1
"""Share of the way to a bound that the first steps keep. A number that they put on its bound may
take their influence from others, as an amplitude of zero does, and stay
(docs/design/0029-bounds.md)."""

NUM_INSIDE = 3
"""Accepted steps that keep it."""

Free = Sequence[Scalar] | None
"""Flags of the components of a tangent that move; None: all of them move."""


def free_block(
    block: Mapping[tuple[int, int], Scalar], free: Free
) -> dict[tuple[int, int], Scalar]:
    """A block near unit diagonal, with the rows and columns of unity for what is held."""
    if free is None:
        return dict(block)
    return {
        (i, j): free[i].where(entry, 1.0) if i == j else (free[i] & free[j]).where(entry, 0.0)
        for (i, j), entry in block.items()
    }


def damped_block(
    block: Mapping[tuple[int, int], Scalar], scale: Sequence[Scalar], damped_one: Scalar
) -> dict[tuple[int, int], Scalar]:
    """A block scaled to unit diagonal, to which the damping is added."""
    return {
        (i, j): entry * scale[i] * scale[j] + (damped_one if i == j else 0.0)
        for (i, j), entry in block.items()
    }


def free_rows(root: Mapping[tuple[int, int], Scalar], free: Free) -> dict[tuple[int, int], Scalar]:
    """A root W of an inverse, W^T W, without the rows of what is held: nothing moves it."""
    if free is None:
        return dict(root)
    return {(i, j): free[i].where(entry, 0.0) for (i, j), entry in root.items()}


def free_within(
    limits: Sequence[Sequence[Scalar]],
    node: NodeType,
    storage: Sequence[Scalar],
    gradient: Sequence[Scalar],
) -> list[Scalar]:
    """Return for each component whether it moves: it is not held, nor pushed out at a bound.

    If a component is held, its lower limit exceeds the upper one. Only the signs of the gradient
    are used.
    """
    free = []
    for component, (lower, upper) in enumerate(zip(*limits, strict=True)):
        moves = lower <= upper
        place = node.shifted_places.get(component)
        if place is not None:
            number, slope = storage[place], gradient[component]
            is_low, is_high = number <= lower, upper <= number
            moves = moves & ~((is_low & (0.0 < slope)) | (is_high & (slope < 0.0)))
        free.append(moves)
    return free


def activated(
    limits: Sequence[Sequence[Scalar]],
    node: NodeType,
    storage: Sequence[Scalar],
    gradient: Sequence[Scalar],
    squares: Sequence[Scalar],
) -> list[Scalar]:
    """FREE of a node at new values: 1, 0, or a code for what the next step takes to a bound."""
    entries = []
    for component, moves in enumerate(free_within(limits, node, storage, gradient)):
        entry, slope = moves.where(1.0, 0.0), gradient[component]
        place = node.shifted_places.get(component)
        if place is not None:
            # the step of the number alone, SURELY_ACTIVE of it
            reach = SURELY_ACTIVE * slope
            lower, upper = (limit[component] for limit in limits)
            to_lower = (storage[place] - lower) * squares[component] <= reach
            to_upper = (upper - storage[place]) * squares[component] <= -reach
            entry = (moves & to_lower & (0.0 < slope)).where(TO_LOWER, entry)
            entry = (moves & to_upper & (slope < 0.0)).where(TO_UPPER, entry)
        entries.append(entry)
    return entries


def clipped_step(
    limits: Sequence[Sequence[Scalar]],
    node: NodeType,
    storage: Sequence[Scalar],
    step: Sequence[Scalar],
    shortening: Scalar,
    free: Sequence[Scalar],
    diagonal: Sequence[Scalar] | None = None,
) -> tuple[list[Scalar], list[Scalar]]:
    """A step that ends at bounds where it would have gone beyond, and FREE for another solve.

    NaN stays. A number with little room before its bound goes there and stops no other number. If
    that step is rejected, the next linear solve holds the number, and the next step takes it to the
    bound. `shortening` below 1/2: numbers keep this share of the way to their bounds, the others go
    on. 1: the node stops where the first number with room meets its bound, so that its step keeps
    its direction. `diagonal` is D, where the step is in variables scaled by it.
    """
    lengths, held = list(step), list(free)
    ends: dict[int, list[tuple[Scalar, Scalar, Scalar]]] = {}
    share, is_whole = step[0] * 0.0 + 1.0, shortening < 0.5
    reach = is_whole.where(1.0 - shortening, 1.0)
    for component, place in node.shifted_places.items():
        lower, upper = (limit[component] for limit in limits)
        root = None if diagonal is None else diagonal[component].sqrt()
        if root is not None:
            lengths[component] = step[component] * root.reciprocal()
        length, has_limits = lengths[component], lower <= upper
        below, above = lower - storage[place], upper - storage[place]
        for is_passed, room, code in (
            (length < reach * below, below, TO_LOWER),
            (reach * above < length, above, TO_UPPER),
        ):
            is_sent = has_code(free[component], code)
            is_beyond, longest = (
                has_limits & (is_passed | is_sent),
                is_sent.where(room, reach * room),
            )
            ratio = is_sent.where(0.0, longest / (is_beyond & ~is_sent).where(length, 1.0))
            has_room = (longest < 0.0) | (0.0 < longest)
            is_near = (ratio <= LITTLE_ROOM) & ~has_code(free[component], WAS_SENT)
            arrives = is_beyond & (is_near | ~has_room)
            limits_share = is_beyond & ~arrives & (ratio < share)
            share = limits_share.where(ratio, share)
            # what is at its bound already stays there
            after = is_sent.where(WAS_SENT, has_room.where(code, 0.0))
            held[component] = arrives.where(after, held[component])
            end = longest if root is None else longest * root
            ends.setdefault(component, []).append((is_beyond, ratio, end))
    share = is_whole.where(1.0, share)
    clipped = [share * entry for entry in step]
    for component, of_bounds in ends.items():
        for is_beyond, ratio, end in of_bounds:
            clipped[component] = (is_beyond & (ratio <= share)).where(end, clipped[component])
    return clipped, held


def clamped(
    limits: Sequence[Sequence[Scalar]],
    node: NodeType,
    before: Sequence[Scalar],
    after: Sequence[Scalar],
    dtype: DType,
) -> list[Scalar]:
    """The storage of a node after a step, at the bounds to the bit where rounding missed them."""
    numbers, rounding = list(after), 4.0 * float(np.finfo(dtype.value).eps)
    for component, place in node.shifted_places.items():
        lower, upper = (limit[component] for limit in limits)
        number, has_limits = after[place], lower <= upper
        for bound, slack in ((lower, before[place] - lower), (upper, upper - before[place])):
            left = number - bound if bound is lower else bound - number
            # with a bound that is infinite so are both
            reaches = (left <= rounding * slack) & (slack < math.inf)
            numbers[place] = (has_limits & reaches).where(bound, numbers[place])
    return numbers


def triangle(num_rows: int) -> list[tuple[int, int]]:
    """Places of a lower triangle, by rows."""
    return [(row, column) for row in range(num_rows) for column in range(row + 1)]


def bounded_inverse_cholesky(
    matrix: dict[tuple[int, int], Scalar], dim: int
) -> dict[tuple[int, int], Scalar]:
    """L^-1 of a symmetric matrix L L^T near unit diagonal; 1 where it is not positive definite.

    Bounding single pivots instead would leave rows of L that are as large as the pivot is small.
    """
    inverse, is_definite = inverse_cholesky(matrix, dim)
    return {
        (i, j): is_definite.where(entry, 1.0 if i == j else 0.0)
        for (i, j), entry in inverse.items()
    }


def inverse_of_parts(
    node: NodeType, matrix: Mapping[tuple[int, int], Scalar]
) -> dict[tuple[int, int], Scalar]:
    """`bounded_inverse_cholesky` of each of a node's blocks, see `block_parts`."""
    inverse = {}
    for part in block_parts(node):
        first = part.start
        own = {(i, j): matrix[first + i, first + j] for i, j in triangle(len(part))}
        found = bounded_inverse_cholesky(own, len(part))
        inverse.update({(first + i, first + j): entry for (i, j), entry in found.items()})
    return inverse


def cholesky(
    matrix: Mapping[tuple[int, int], Scalar], dim: int, least: Scalar | float
) -> tuple[dict[tuple[int, int], Scalar], list[Scalar], Scalar]:
    """L of a symmetric matrix L L^T near unit diagonal, and whether it is positive definite.

    L is below the diagonal, of which the reciprocals come next. Pivots that are not above `least`
    are replaced by it: L means nothing then.
    """
    factor: dict[tuple[int, int], Scalar] = {}
    reciprocal: list[Scalar] = []
    is_definite: Scalar | None = None
    for j in range(dim):
        pivot = minus_products(matrix[j, j], [(factor[j, k], factor[j, k]) for k in range(j)])
        large = pivot > least
        is_definite = large if is_definite is None else is_definite & large
        reciprocal.append(pivot.max(least).sqrt().reciprocal())
        for i in range(j + 1, dim):
            pairs = [(factor[i, k], factor[j, k]) for k in range(j)]
            factor[i, j] = minus_products(matrix[i, j], pairs) * reciprocal[j]
    assert is_definite is not None
    return factor, reciprocal, is_definite


def inverse_cholesky(
    matrix: Mapping[tuple[int, int], Scalar], dim: int
) -> tuple[dict[tuple[int, int], Scalar], Scalar]:
    """L^-1 of the matrix of `cholesky`, and whether that is positive definite."""
    factor, reciprocal, is_definite = cholesky(matrix, dim, _SMALLEST_PIVOT)
    inverse: dict[tuple[int, int], Scalar] = {}
    for j in range(dim):
        inverse[j, j] = reciprocal[j]
        for i in range(j + 1, dim):
            carried = total(factor[i, k] * inverse[k, j] for k in range(j, i))
            inverse[i, j] = -(carried * reciprocal[i])
    return inverse, is_definite


def node_diagonal(
    kernel: KernelBuilder,
    node: NodeType,
    squares: Sequence[Scalar],
    damping: Scalar,
    storage: DType,
    free: Free = None,
) -> list[Scalar]:
    """D, without zeros: of each entry of diag(J^T J) at least a share of its part's largest.

    The share is damping / (damping + 10): 1e-4 at first, nothing near the end, and nearly all in a
    node that no step at smaller damping has helped. It is 0 where the scalar `levelling` is 0, and
    not 1: then D is diag(J^T J), `squares`, see `solver.lm.derivative_sizes`. `free` is what moves:
    D of anything else is of no use, and must not level what moves.
    """
    if free is not None:
        squares = [moves.where(x, 0.0) for moves, x in zip(free, squares, strict=True)]
    diagonal = list(squares)
    for part in node.tangent_parts:
        if len(part) == 1:
            continue
        share = kernel.scalar("levelling") * (damping / (damping + LEVELLING_DAMPING))
        largest = squares[part.start]
        for place in part[1:]:
            largest = largest.max(squares[place])
        raised, least = share * largest, UNITS_APART[storage] * largest
        for place in part:
            is_within_reach = least < squares[place]
            level = is_within_reach.where(raised * WITHIN_REACH, raised)
            diagonal[place] = squares[place].max(level)
    return [safe_diagonal(entry) for entry in diagonal]


def damped_diagonal(
    kernel: KernelBuilder,
    node: NodeType,
    square: Sequence[Scalar],
    damping: Scalar,
    storage: DType,
    free: Free = None,
    *,
    scaled: bool,
) -> list[Scalar]:
    """D of a block J^T J, given by rows; 1 where the variables are scaled by it."""
    if scaled:
        return [Scalar(square[0].builder, square[0].builder.const(1.0))] * node.tangent_dim
    entries = [square[row * (row + 3) // 2] for row in range(node.tangent_dim)]
    return node_diagonal(kernel, node, entries, damping, storage, free)


def damped_step(
    dim: int,
    dtype: DType,
    square: Sequence[Scalar],
    slope: Sequence[Scalar],
    damping: Scalar,
    diagonal: Sequence[Scalar] | None = None,
    free: Free = None,
) -> list[Scalar]:
    """-(A + damping D)^-1 g of a small block A, its lower triangle given by rows.

    Args and D: see `inverse_root`.
    """
    lower = inverse_root(dim, dtype, square, damping, diagonal, free)
    inner = [total(lower[i, j] * slope[j] for j in range(i + 1)) for i in range(dim)]
    return [-total(lower[i, j] * inner[i] for i in range(j, dim)) for j in range(dim)]


def inverse_root(
    dim: int,
    dtype: DType,
    square: Sequence[Scalar],
    damping: Scalar,
    diagonal: Sequence[Scalar] | None = None,
    free: Free = None,
) -> dict[tuple[int, int], Scalar]:
    """W with W^T W = (A + damping D)^-1 of a block A, both lower triangles by rows.

    A is the square of a Jacobian of `dtype`; to the damping more is added, as rounding demands. D
    None: diag(A). `free` is what moves: the rest of W is zero.
    """
    block = dict(zip(triangle(dim), square, strict=True))
    if diagonal is None:
        diagonal = [safe_diagonal(block[row, row]) for row in range(dim)]
    scale = [entry.sqrt().reciprocal() for entry in diagonal]
    scaled = damped_block(block, scale, damping + dim * ROUNDING[dtype])
    inverse = bounded_inverse_cholesky(free_block(scaled, free), dim)
    return free_rows({(i, j): inverse[i, j] * scale[j] for i, j in triangle(dim)}, free)


def safe_diagonal(entry: Scalar) -> Scalar:
    """An entry of the diagonal of J^T J; `ABSENT` if it is zero: no factor touches the scalar.

    There is no other bound: entries have the units of the residuals, so every size is possible.
    And points may run to infinity; clamping the shrinking diagonal would freeze them.
    """
    return (0.0 < entry).where(entry, ABSENT)


def minus_products(first: Scalar, pairs: Sequence[tuple[Scalar, Scalar]]) -> Scalar:
    """The first number without the sum of some products."""
    return total([first, *(-(a * b) for a, b in pairs)])
