"""J^T J of all factors in float64 and scaled unknowns, without the node types that are eliminated.

Input: Jacobians. Output: `Linearized`, and of it a `NormalMatrix`, block by block. Columns of J are
scaled to length 1, so that units do not matter. Unknowns that no residual depends on have a scale
of zero: a row and column of the identity, and a covariance of zero. Cost tier: once for a
covariance.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

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
)
from caspar.solver.normal.elimination import Couplings, Elimination, roots_of
from caspar.solver.normal.jacobians import FactorJacobian, NodeJacobian
from caspar.solver.normal.sums import add_rows, pieces


class Linearized:
    """All factors at some values, and what scales their Jacobians.

    Args:
        backend: Where the arrays are.
        jacobians: Of the factors that have instances.
        nodes: Node types.
        counts: Instances of each.
        free: By node type of which something is held (n, tangent_dim), 0 for what is held.

    Attributes:
        nodes: Those node types that one of the factors touches.
        counts: Instances of these.
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
    """The scaled system.

    Args:
        linearized: All factors.
        eliminated: Names of the node types to eliminate.

    Attributes:
        backend: Where the arrays are.
        nodes: Node types.
        scales, held: As those of `linearized`.
        unknowns: Those of the reduced system.
        eliminations: By eliminated node type.
    """

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
        """The blocks that are not zero.

        Args:
            eliminates: Count those between nodes that an eliminated node couples.
        """
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
        """The blocks of some lists, (k, rows, columns) each.

        Args:
            lists: Where they are.
            eliminates: Take off what eliminated nodes leave.
        """
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
