"""J^T J of all factors in float64 and scaled unknowns, without the node types that are eliminated.

Input: Jacobians. Output: `Linearized`, and of it a `NormalMatrix`, block by block. Columns of J are
scaled to length 1, so that units do not matter. Unknowns that no residual depends on have a scale
of zero: a row and column of the identity, and a covariance of zero.

With E and C the Jacobians of a factor by its eliminated and by its other nodes, V = sum E^T E of an
eliminated node is inverted as R R^T, and Z = R^T sum E^T C are its couplings. Then the reduced
system is B - sum Z^T Z, and the covariance of the node is R (I + Z Sigma Z^T) R^T. Where V is
singular, R R^T is its pseudo-inverse: that direction of the node is free, whatever the others do.
Pairs of couplings are made in pieces, walked and forgotten. Cost tier: once for a covariance.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_matrix

from caspar.errors import InputError
from caspar.frontend.factors.trace import NodeType
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.normal.blocks import (
    BlockList,
    Coupling,
    TypePair,
    Unknowns,
    block_lists,
    coupled,
    pairs_in_pieces,
)
from caspar.solver.normal.instance_kernels import FactorJacobian, NodeJacobian

HOST_PIECE_SCALARS = 1 << 20
"""Scalars of the largest intermediate array of a piece: 8 MB, which caches still help with."""

DEVICE_PIECE_SCALARS = 1 << 25
"""The same on a GPU, where a piece costs some twenty launches: 256 MB."""


FEW_SCALARS = 1 << 13
"""Up to which `numpy.bincount` is quicker than a sparse matrix, which takes 50 us to make."""


def piece_scalars(xp: ModuleType) -> int:
    """Scalars that the largest intermediate array of a piece may have."""
    return HOST_PIECE_SCALARS if xp is np else DEVICE_PIECE_SCALARS


def add_rows(xp: ModuleType, target: Array, index: Array, rows: Array) -> None:
    """Add (m, ...) `rows[k]` to (n, ...) `target[index[k]]`; several rows may have one index."""
    if len(index) == 0:
        return
    width = int(np.prod(target.shape[1:], dtype=np.int64))
    flat = rows.reshape(len(index), width)
    if xp is not np:
        xp.add.at(target.reshape(-1, width), index, flat)
        return
    if max(target.size, flat.size) <= FEW_SCALARS:
        entry = (index[:, None].astype(np.int64) * width + np.arange(width)).ravel()
        sums = np.bincount(entry, weights=flat.ravel(), minlength=target.size)
        target.reshape(-1)[...] += sums
        return
    places = None
    if len(target) > len(index):
        places, index = np.unique(index, return_inverse=True)
    num_rows = len(target) if places is None else len(places)
    # the product with a matrix of ones: ten times as fast as numpy.add.at
    ones = csc_matrix(
        (np.ones(len(index)), index, np.arange(len(index) + 1)), shape=(num_rows, len(index))
    )
    sums = ones @ flat
    if places is None:
        target.reshape(-1, width)[...] += sums
    else:
        target.reshape(-1, width)[places] += sums


def pieces(xp: ModuleType, num_items: int, scalars_of_item: int) -> Iterator[slice]:
    """Ranges of items whose arrays together have about `piece_scalars` scalars."""
    step = max(1, piece_scalars(xp) // max(scalars_of_item, 1))
    for first in range(0, num_items, step):
        yield slice(first, min(first + step, num_items))


FREE_EIGENVALUE = 1e-13
"""Eigenvalues of J^T J up to which a direction counts as free, where columns of J have length 1.
Entries are known to about 1e-15, so an eigenvalue of 1e-13 has two digits."""


@dataclass(frozen=True)
class FreeNodeDirection:
    """A direction of one eliminated node that no residual sees.

    Attributes:
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
    """

    node: Array
    other: Array
    blocks: Array
    count: int

    def __len__(self) -> int:
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
    """The eliminated nodes of one type. `roots`: (n, d, d) R of each node."""

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

    `blocks`: (n, d, d). Returns (n, d, d), upper triangular where a block is regular; and the free
    directions.
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


class Linearized:
    """All factors at some values, and what scales their Jacobians.

    `free`: By node type of which something is held (n, tangent_dim), 0 for what is held.

    Attributes:
        held: By node type of which something is held, (n, tangent_dim), true for what is held.
        scales: By node type, (n, tangent_dim): what makes columns of J have length 1; 0: no
            influence, or held.
    """

    def __init__(
        self,
        backend: Backend,
        jacobians: Sequence[FactorJacobian],
        nodes: Sequence[NodeType],
        counts: Mapping[str, int],
        free: Mapping[str, Array],
    ) -> None:
        touched = {one.node for jacobian in jacobians for one in jacobian.nodes}
        self.backend = backend
        self.jacobians = jacobians
        self.nodes = tuple(node for node in nodes if node.name in touched)
        self.counts = {node.name: counts[node.name] for node in self.nodes}
        self.held = {
            node.name: backend.upload(free[node.name]) == 0.0
            for node in self.nodes
            if node.name in free
        }
        self.scales = self._scales()

    @property
    def num_unknowns(self) -> int:
        """Unknowns of all node types, without what is held."""
        num_held = sum(int(mask.sum()) for mask in self.held.values())
        return sum(node.tangent_dim * self.counts[node.name] for node in self.nodes) - num_held

    @property
    def num_residuals(self) -> int:
        """Rows of all residuals."""
        return sum(one.num_rows * one.count for one in self.jacobians)

    def _scales(self) -> dict[str, Array]:
        """See `scales`: zeros take what is held out of everything that follows."""
        xp = self.backend.xp
        shapes = {node.name: (self.counts[node.name], node.tangent_dim) for node in self.nodes}
        squares = {name: xp.zeros(shape) for name, shape in shapes.items()}
        for jacobian in self.jacobians:
            for one in jacobian.nodes:
                with np.errstate(over="ignore"):  # it is reported below
                    own = (one.entries**2).sum(axis=1)
                add_rows(xp, squares[one.node], one.index, own)
        scales = {}
        for name, sums in squares.items():
            if not bool(xp.isfinite(sums).all()):
                raise InputError(
                    f"covariance, node type {name}: squares of derivatives overflow float64; use "
                    "another unit"
                )
            has_influence = sums > 0.0
            if name in self.held:
                has_influence &= ~self.held[name]
            scales[name] = xp.where(has_influence, xp.where(has_influence, sums, 1.0) ** -0.5, 0.0)
        return scales


class NormalMatrix:
    """The scaled system."""

    def __init__(self, linearized: Linearized, eliminated: Sequence[str]) -> None:
        self.backend = linearized.backend
        self.nodes, self.scales = linearized.nodes, linearized.scales
        self.held = linearized.held
        self._dims = {node.name: node.tangent_dim for node in self.nodes}
        self.unknowns = Unknowns.of(
            {
                name: (linearized.counts[name], dim)
                for name, dim in self._dims.items()
                if name not in eliminated
            }
        )
        self._ranks = {name: rank for rank, name in enumerate(self.unknowns.nodes)}
        # residuals of which nothing moves are constants
        self._jacobians = [one for one in linearized.jacobians if len(one.nodes) > 0]
        self.eliminations = {name: self._eliminate(name) for name in eliminated}

    # -- what factors contribute ---------------------------------------------------------------

    def _pieces(self, factor: FactorJacobian) -> Iterator[list[NodeJacobian]]:
        """The scaled Jacobians of some instances at a time; those that remain in their order."""
        widths = [self._dims[one.node] for one in factor.nodes]
        size = factor.num_rows * sum(widths) + max(widths) ** 2
        nodes = sorted(factor.nodes, key=lambda one: self._ranks.get(one.node, -1))
        for piece in pieces(self.backend.xp, factor.count, size):
            yield [
                NodeJacobian(
                    one.node,
                    one.index[piece],
                    one.entries[piece] * self.scales[one.node][one.index[piece]][:, None, :],
                )
                for one in nodes
            ]

    def _eliminate(self, name: str) -> Elimination:
        xp, scales = self.backend.xp, self.scales[name]
        count, dim = (int(size) for size in scales.shape)
        blocks = xp.zeros((count, dim, dim))
        keys: dict[str, list[Array]] = {other: [] for other in self.unknowns.nodes}
        products: dict[str, list[Array]] = {other: [] for other in self.unknowns.nodes}
        for factor in self._jacobians:
            if not any(one.node == name for one in factor.nodes):
                continue
            for parts in self._pieces(factor):
                (own,) = (one for one in parts if one.node == name)
                turned = own.entries.transpose(0, 2, 1)
                add_rows(xp, blocks, own.index, turned @ own.entries)
                for one in parts:
                    if one.node in keys:
                        num = self.unknowns.nodes[one.node].count
                        keys[one.node].append(own.index.astype(np.int64) * num + one.index)
                        products[one.node].append(turned @ one.entries)
        diagonal = xp.arange(dim)
        blocks[:, diagonal, diagonal] += scales == 0.0
        roots, free = roots_of(self.backend, blocks)
        couplings = {}
        for other, node in self.unknowns.nodes.items():
            if len(keys[other]) > 0:
                key, product = _merged(xp, keys[other], products[other])
                owner, number = xp.divmod(key, node.count)
                whitened = roots[owner].transpose(0, 2, 1) @ product
                couplings[other] = Couplings(owner, number, whitened, node.count)
        return Elimination(roots * (scales != 0.0)[:, :, None], couplings, free)

    def gradients(self, vectors: Mapping[str, Array]) -> dict[str, Array]:
        """J^T (J x), by way of the Jacobian: by node type (n, d, k), of scaled unknowns."""
        xp = self.backend.xp
        scaled = {name: self.scales[name][:, :, None] * part for name, part in vectors.items()}
        result = {name: xp.zeros(part.shape) for name, part in vectors.items()}
        num = int(next(iter(vectors.values())).shape[2])
        for factor in self._jacobians:
            widest = max(factor.num_rows, *(self._dims[one.node] for one in factor.nodes))
            for piece in pieces(xp, factor.count, num * widest):
                moved = sum(
                    one.entries[piece] @ scaled[one.node][one.index[piece]] for one in factor.nodes
                )
                for one in factor.nodes:
                    turned = one.entries[piece].transpose(0, 2, 1)
                    add_rows(xp, result[one.node], one.index[piece], turned @ moved)
        return {name: self.scales[name][:, :, None] * part for name, part in result.items()}

    def dense_jacobian(self) -> NDArray[np.float64]:
        """The scaled Jacobian by the nodes that remain: (rows, unknowns), on the host."""
        to_host, stacked = self.backend.to_host, [np.zeros((0, self.unknowns.size))]
        for factor in self._jacobians:
            for parts in self._pieces(factor):
                count, num_rows = (int(size) for size in parts[0].entries.shape[:2])
                dense = np.zeros((count, self.unknowns.size, num_rows))
                for one in parts:
                    components = np.arange(self._dims[one.node])
                    columns = self.unknowns.numbers(np, one.node, to_host(one.index), components)
                    # one instance may touch a node twice
                    dense[np.arange(count)[:, None], columns] += to_host(
                        one.entries.transpose(0, 2, 1)
                    )
                stacked.append(dense.transpose(0, 2, 1).reshape(count * num_rows, -1))
        return np.concatenate(stacked)

    # -- the matrix ----------------------------------------------------------------------------

    @property
    def num_eliminated_pairs(self) -> int:
        """Pairs of nodes that eliminated nodes couple, repetitions counted."""
        return sum(one.num_pairs(self.backend.xp) for one in self.eliminations.values())

    def lists(self, *, eliminates: bool = True) -> dict[TypePair, BlockList]:
        """The blocks that are not zero."""
        xp, found = self.backend.xp, list[Coupling]()
        for factor in self._jacobians:
            found += coupled(xp, self.unknowns, [(one.node, one.index) for one in factor.nodes])
        for elimination in self.eliminations.values() if eliminates else ():
            for pairs in elimination.pairs(xp, 8):
                row, column = (elimination.couplings[name] for name in pairs.types)
                num = self.unknowns.nodes[pairs.types[1]].count
                keys = xp.unique(row.other[pairs.rows] * num + column.other[pairs.columns])
                found.append(Coupling(pairs.types, *xp.divmod(keys, num)))
        return block_lists(xp, self.unknowns, found)

    def blocks(
        self, lists: Mapping[TypePair, BlockList], *, eliminates: bool = True
    ) -> dict[TypePair, Array]:
        """The blocks of some lists, (k, rows, columns) each."""
        xp = self.backend.xp
        result = {
            types: xp.zeros((one.num_blocks, one.row.dim, one.column.dim))
            for types, one in lists.items()
        }
        for factor in self._jacobians:
            for parts in self._pieces(factor):
                remaining = [one for one in parts if one.node in self._ranks]
                for column, row in combinations_with_replacement(remaining, 2):
                    types = row.node, column.node
                    _add(xp, result[types], lists[types], row, column)
        for elimination in self.eliminations.values() if eliminates else ():
            widest = max((node.dim for node in self.unknowns.nodes.values()), default=1)
            for pairs in elimination.pairs(xp, widest**2):
                left, right = (elimination.couplings[name] for name in pairs.types)
                rows, columns = left.other[pairs.rows], right.other[pairs.columns]
                number = lists[pairs.types].numbers(xp, rows, columns)
                product = left.blocks[pairs.rows].transpose(0, 2, 1) @ right.blocks[pairs.columns]
                add_rows(xp, result[pairs.types], number, -product)
        for name, node in self.unknowns.nodes.items():
            # ones for unknowns that nothing touches
            number, own = lists[name, name].diagonal(xp.arange(node.count)), xp.arange(node.dim)
            result[name, name][number[:, None], own, own] += self.scales[name] == 0.0
        return result


def _merged(
    xp: ModuleType, keys: Sequence[Array], products: Sequence[Array]
) -> tuple[Array, Array]:
    """Sums of the products with one key, in order of keys."""
    key, product = xp.concatenate(keys), xp.concatenate(products)
    order = xp.argsort(key, kind="stable")
    key = key[order]
    is_new = xp.ones(len(key), bool)
    is_new[1:] = key[1:] != key[:-1]
    if bool(is_new.all()):
        return key, product[order]
    merged = xp.zeros((int(is_new.sum()), *product.shape[1:]))
    add_rows(xp, merged, xp.cumsum(is_new) - 1, product[order])
    return key[is_new], merged


def _add(
    xp: ModuleType, result: Array, blocks: BlockList, row: NodeJacobian, column: NodeJacobian
) -> None:
    """Add J_row^T J_column, whose nodes may be in either order, or one and the same."""
    product = row.entries.transpose(0, 2, 1) @ column.entries
    rows, columns = (one.index.astype(np.int64) for one in (row, column))
    if row is column:
        add_rows(xp, result, blocks.diagonal(rows), product)
        return
    if row.node == column.node:
        swapped, equal = (one[:, None, None] for one in (rows < columns, rows == columns))
        turned = product.transpose(0, 2, 1)
        product = xp.where(swapped, turned, product) + xp.where(equal, turned, 0.0)
        rows, columns = xp.maximum(rows, columns), xp.minimum(rows, columns)
    add_rows(xp, result, blocks.numbers(xp, rows, columns), product)
