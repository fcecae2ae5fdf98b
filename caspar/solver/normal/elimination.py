"""Eliminating nodes: roots of their small blocks, and what couples them with the nodes that remain.

In scaled unknowns, with E and C the Jacobians of a factor by its eliminated and by its other nodes,
V = sum E^T E of an eliminated node is inverted as R R^T, and Z = R^T sum E^T C are its couplings.
Then the reduced system is B - sum Z^T Z, and the covariance of the node is R (I + Z Sigma Z^T) R^T.
Where V is singular, R R^T is its pseudo-inverse: that direction of the node is free, whatever the
others do. Cost tier: once for a covariance.

A solve lists all pairs of couplings (`linear.explicit.structure`), as it walks them in every
iteration; here pieces of them are made, walked and forgotten.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from types import ModuleType

import numpy as np

from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.normal.blocks import TypePair, pairs_in_pieces
from caspar.solver.normal.sums import add_rows, piece_scalars, pieces

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
class Couplings:
    """Couplings between the eliminated nodes of a type and the nodes of another one.

    Attributes:
        node: (c,) the eliminated node of each coupling, ascending.
        other: (c,) the other node, ascending for an eliminated node.
        blocks: (c, d, other d) Z.
        count: Nodes of the other type.
    """

    node: Array
    other: Array
    blocks: Array
    count: int

    def __len__(self) -> int:
        """Couplings."""
        return len(self.node)


@dataclass(frozen=True)
class Pairs:
    """Pairs of couplings that belong to one eliminated node.

    Attributes:
        types: The other nodes' types, of rows and columns of a block.
        rows: (k,) numbers of couplings; their other nodes are not before those of the columns.
        columns: (k,) the same.
    """

    types: TypePair
    rows: Array
    columns: Array


@dataclass(frozen=True)
class Elimination:
    """The eliminated nodes of one type.

    Attributes:
        roots: (n, d, d) R of each node.
        couplings: By the other nodes' type, in order.
        free: Directions that no residual sees.
    """

    roots: Array
    couplings: Mapping[str, Couplings]
    free: tuple[FreeNodeDirection, ...]

    def of_nodes(self, xp: ModuleType, index: Array) -> "Elimination":
        """The couplings of some nodes, ascending, each named once, numbered in their order."""
        if len(index) == len(self.roots):
            return self
        rank = xp.full(len(self.roots), -1, dtype=np.int64)
        rank[index] = xp.arange(len(index))
        couplings = {}
        for name, one in self.couplings.items():
            kept = xp.flatnonzero(rank[one.node] >= 0)
            node = rank[one.node[kept]]
            couplings[name] = replace(
                one, node=node, other=one.other[kept], blocks=one.blocks[kept]
            )
        return Elimination(self.roots[index], couplings, ())

    def moved(self, xp: ModuleType, vectors: Mapping[str, Array]) -> Array:
        """Z x, (n, d, k), of (nodes, dim, k) of each type that remains."""
        num = next(iter(vectors.values())).shape[2]
        moved = xp.zeros((*self.roots.shape[:2], num))
        for name, one in self.couplings.items():
            for piece in pieces(xp, len(one), one.blocks.shape[2] * num):
                product = one.blocks[piece] @ vectors[name][one.other[piece]]
                add_rows(xp, moved, one.node[piece], product)
        return moved

    def taken(self, xp: ModuleType, vectors: Array) -> dict[str, Array]:
        """Z^T y of (n, d, k): by type that remains (nodes, dim, k)."""
        found = {}
        for name, one in self.couplings.items():
            dim, num = one.blocks.shape[2], vectors.shape[2]
            found[name] = xp.zeros((one.count, dim, num))
            for piece in pieces(xp, len(one), dim * num):
                product = one.blocks[piece].transpose(0, 2, 1) @ vectors[one.node[piece]]
                add_rows(xp, found[name], one.other[piece], product)
        return found

    def num_pairs(self, xp: ModuleType) -> int:
        """Pairs of couplings of one node, each once."""
        counts = sum(
            (xp.bincount(one.node, minlength=len(self.roots)) for one in self.couplings.values()),
            start=xp.zeros(len(self.roots)),
        )
        return int((counts * (counts + 1.0)).sum() / 2.0)

    def pairs(self, xp: ModuleType, scalars_of_pair: int) -> Iterator[Pairs]:
        """All pairs, in pieces."""
        names, parts = list(self.couplings), list(self.couplings.values())
        most = max(1, piece_scalars(xp) // scalars_of_pair)
        if len(parts) <= 1:
            for one in parts:
                for later, earlier in pairs_in_pieces(xp, one.node, most):
                    yield Pairs((names[0], names[0]), later, earlier)
            return
        node = xp.concatenate([one.node for one in parts])
        order = xp.argsort(node, kind="stable")
        type_of = xp.concatenate([xp.full(len(one), rank) for rank, one in enumerate(parts)])[order]
        place = xp.concatenate([xp.arange(len(one)) for one in parts])[order]
        for later, earlier in pairs_in_pieces(xp, node[order], most):
            for column, row in combinations_with_replacement(range(len(parts)), 2):
                chosen = xp.flatnonzero((type_of[later] == row) & (type_of[earlier] == column))
                if len(chosen) > 0:
                    rows, columns = place[later[chosen]], place[earlier[chosen]]
                    yield Pairs((names[row], names[column]), rows, columns)


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
