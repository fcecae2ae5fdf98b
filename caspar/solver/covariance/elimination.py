"""Eliminating nodes: roots of their small blocks, and what couples them with the nodes that remain.

In scaled unknowns, with E and C the Jacobians of a factor by its eliminated and by its other nodes,
V = sum E^T E of an eliminated node is inverted as R R^T, and Z = R^T sum E^T C are its couplings.
Then the reduced system is B - sum Z^T Z, and the covariance of the node is R (I + Z Sigma Z^T) R^T.
Where V is singular, R R^T is its pseudo-inverse: that direction of the node is free, whatever the
others do. Cost tier: once for a covariance.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.covariance.sums import piece_scalars

FREE_EIGENVALUE = 1e-13
"""Eigenvalues of J^T J up to which a direction counts as free, where columns of J have length 1.
Entries are known to about 1e-15, so an eigenvalue of 1e-13 has two digits."""


@dataclass(frozen=True)
class FreeNodeDirection:
    """A direction of one eliminated node that no residual sees.

    Attributes:
        number: The node.
        direction: (dim,) in scaled unknowns, of length 1.
    """

    number: int
    direction: np.ndarray


@dataclass(frozen=True)
class Pairs:
    """Pairs of couplings that belong to one eliminated node.

    Attributes:
        first: (k,) numbers of couplings.
        second: (k,) the same, not less than `first`.
    """

    first: Array
    second: Array


@dataclass(frozen=True)
class Elimination:
    """The eliminated nodes of one type.

    Attributes:
        roots: (n, d, d) R of each node.
        node: (c,) the node of each coupling, ascending.
        object: (c,) the object of the reduced system that it is coupled with, ascending for a node.
        blocks: (c, d, width) Z.
        free: Directions that no residual sees.
    """

    roots: Array
    node: Array
    object: Array
    blocks: Array
    free: tuple[FreeNodeDirection, ...]

    def of_nodes(self, xp: ModuleType, index: Array) -> "Elimination":
        """The couplings of some nodes, ascending, each named once, numbered in their order."""
        if len(index) == len(self.roots):
            return self
        rank = xp.full(len(self.roots), -1, dtype=np.int64)
        rank[index] = xp.arange(len(index))
        kept = xp.flatnonzero(rank[self.node] >= 0)
        node = rank[self.node[kept]]
        return Elimination(self.roots[index], node, self.object[kept], self.blocks[kept], ())

    def num_pairs(self, xp: ModuleType) -> int:
        """Pairs of couplings of one node, each once."""
        counts = xp.bincount(self.node, minlength=1).astype(np.float64)
        return int((counts * (counts + 1.0)).sum() / 2.0)

    def pairs(self, xp: ModuleType, scalars_of_pair: int) -> Iterator[Pairs]:
        """All pairs, in pieces."""
        num = len(self.node)
        if num == 0:
            return
        ends = xp.searchsorted(self.node, self.node, side="right")
        behind = ends - xp.arange(num)
        total = xp.cumsum(behind)
        step = max(1, piece_scalars(xp) // scalars_of_pair)
        limits = xp.arange(step, int(total[-1]) + step, step)
        cuts = xp.searchsorted(total, limits, side="right").tolist()
        first = 0
        for cut in [*cuts, num]:
            last = min(max(cut, first + 1), num)
            if last > first:
                yield _pairs(xp, first, behind[first:last])
                first = last


def _pairs(xp: ModuleType, begin: int, behind: Array) -> Pairs:
    """Each of some couplings with itself and those behind it."""
    total = int(behind.sum())
    ends = xp.cumsum(behind)
    # CuPy's repeat takes no array
    first = xp.searchsorted(ends, xp.arange(total), side="right")
    second = first + xp.arange(total) - (ends - behind)[first]
    return Pairs(begin + first, begin + second)


def roots_of(backend: Backend, blocks: Array) -> tuple[Array, tuple[FreeNodeDirection, ...]]:
    """R of symmetric positive semidefinite blocks with a unit diagonal: R R^T is the inverse.

    Args:
        backend: Where the arrays are.
        blocks: (n, d, d).

    Returns:
        (n, d, d), upper triangular where a block is regular; and the free directions.
    """
    xp = backend.xp
    inverse_root, least_pivot = _inverse_root(xp, blocks)
    weak = xp.flatnonzero(~(least_pivot > FREE_EIGENVALUE))
    if len(weak) == 0:
        return inverse_root, ()
    values, vectors = np.linalg.eigh(backend.to_host(blocks[weak]))
    is_free = values <= FREE_EIGENVALUE
    factors = np.where(is_free, 0.0, 1.0 / np.sqrt(np.where(is_free, 1.0, values)))
    inverse_root[weak] = backend.upload(vectors * factors[:, None, :])
    numbers = backend.to_host(weak)
    free = [
        FreeNodeDirection(int(numbers[row]), vectors[row, :, column])
        for row, column in zip(*np.nonzero(is_free), strict=True)
    ]
    return inverse_root, tuple(free)


def _inverse_root(xp: ModuleType, blocks: Array) -> tuple[Array, Array]:
    """L^-T of V = L L^T, entry by entry for all blocks at once, and the least pivot of each."""
    count, dim = len(blocks), int(blocks.shape[1])
    lower: dict[tuple[int, int], Array] = {}
    least = xp.full(count, np.inf)
    for j in range(dim):
        pivot = blocks[:, j, j] - sum(lower[j, k] ** 2 for k in range(j))
        least = xp.minimum(least, xp.where(xp.isfinite(pivot), pivot, -np.inf))
        lower[j, j] = xp.sqrt(xp.where(pivot > 0.0, pivot, 1.0))
        for i in range(j + 1, dim):
            rest = blocks[:, i, j] - sum(lower[i, k] * lower[j, k] for k in range(j))
            lower[i, j] = rest / lower[j, j]
    roots = xp.zeros((count, dim, dim))
    for column in range(dim):
        solved: dict[int, Array] = {}
        for i in range(column, dim):
            unit = 1.0 if i == column else 0.0
            rest = unit - sum(lower[i, k] * solved[k] for k in range(column, i))
            solved[i] = rest / lower[i, i]
            roots[:, column, i] = solved[i]
    return roots, least
