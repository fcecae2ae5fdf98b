"""J^T J of all factors in scaled unknowns, without the node types that are eliminated.

Input: Jacobians. Output: `Linearized`, and of it a `NormalMatrix`. Columns of J are scaled to
length 1, so that units do not matter. Unknowns that no residual depends on have a scale of zero: a
row and column of the identity, and a covariance of zero. Cost tier: once for a covariance.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from caspar.errors import InputError
from caspar.frontend.factors.trace import NodeType
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.covariance.elimination import Elimination, roots_of
from caspar.solver.covariance.jacobians import FactorJacobian
from caspar.solver.covariance.layout import ReducedLayout, reduced_layout
from caspar.solver.covariance.sums import add_rows, pieces

Entries = list[tuple[Array, Array]]
"""Objects, (m,), and the Jacobians of m factor instances by them, (m, rows, width)."""


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


@dataclass(frozen=True)
class Pattern:
    """The blocks of a matrix: pairs of objects, the first not behind the second.

    Attributes:
        keys: (k,) int64 first * num_objects + second, ascending; None: every pair has a block.
        num_objects: Rows of blocks.
    """

    keys: Array | None
    num_objects: int

    @property
    def num_blocks(self) -> int:
        """Blocks."""
        return self.num_objects**2 if self.keys is None else len(self.keys)

    def pairs(self, backend: Backend) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The pairs of a pattern that is listed: (k,) each, on the host."""
        assert self.keys is not None
        first, second = np.divmod(backend.to_host(self.keys), self.num_objects)
        return first, second

    def slots(self, backend: Backend, first: Array, second: Array) -> Array:
        """The number of the block of each pair."""
        keys = first * self.num_objects + second
        return keys if self.keys is None else backend.xp.searchsorted(self.keys, keys)


class NormalMatrix:
    """The scaled system.

    Args:
        linearized: All factors.
        eliminated: Names of the node types to eliminate.

    Attributes:
        backend: Where the arrays are.
        nodes: Node types.
        scales, held: As those of `linearized`.
        layout: The reduced system's objects.
        eliminations: By eliminated node type.
    """

    def __init__(self, linearized: Linearized, eliminated: Sequence[str]) -> None:
        self.backend = linearized.backend
        self.nodes, self.scales = linearized.nodes, linearized.scales
        self.held = linearized.held
        self.layout: ReducedLayout = reduced_layout(
            [node for node in self.nodes if node.name not in eliminated], linearized.counts
        )
        # residuals of which nothing moves are constants
        self._jacobians = [one for one in linearized.jacobians if len(one.nodes) > 0]
        self._dims = {node.name: node.tangent_dim for node in self.nodes}
        self.eliminations = {name: self._eliminate(name) for name in eliminated}

    # -- what factors contribute ---------------------------------------------------------------

    def _pieces(self, factor: FactorJacobian) -> Iterator[tuple[Entries, dict[str, Entries]]]:
        """The scaled Jacobians of some instances at a time: of remaining and eliminated nodes."""
        xp, layout = self.backend.xp, self.layout
        widths = sum(self._dims[one.node] for one in factor.nodes) + layout.width**2
        for piece in pieces(xp, factor.count, factor.num_rows * widths):
            remaining: Entries = []
            eliminated: dict[str, Entries] = {}
            for one in factor.nodes:
                index = one.index[piece]
                entries = one.entries[piece] * self.scales[one.node][index][:, None, :]
                if one.node in layout.nodes:
                    remaining += [
                        (
                            layout.objects(one.node, index, part),
                            layout.padded(xp, one.node, entries, part),
                        )
                        for part in range(layout.nodes[one.node].num_parts)
                    ]
                else:
                    eliminated.setdefault(one.node, []).append((index, entries))
            yield remaining, eliminated

    def _eliminate(self, name: str) -> Elimination:
        xp, scales = self.backend.xp, self.scales[name]
        count, dim = (int(size) for size in scales.shape)
        blocks = xp.zeros((count, dim, dim))
        keys, couplings = [], []
        for factor in self._jacobians:
            if not any(one.node == name for one in factor.nodes):
                continue
            for remaining, eliminated in self._pieces(factor):
                ((node, own),) = eliminated[name]
                turned = own.transpose(0, 2, 1)
                add_rows(xp, blocks, node, turned @ own)
                for objects, entries in remaining:
                    keys.append(node.astype(np.int64) * self.layout.num_objects + objects)
                    couplings.append(turned @ entries)
        diagonal = xp.arange(dim)
        blocks[:, diagonal, diagonal] += scales == 0.0
        roots, free = roots_of(self.backend, blocks)
        key, coupling = self._merged(keys, couplings, dim)
        node, objects = xp.divmod(key, self.layout.num_objects)
        whitened = roots[node].transpose(0, 2, 1) @ coupling
        return Elimination(roots * (scales != 0.0)[:, :, None], node, objects, whitened, free)

    def _merged(
        self, keys: Sequence[Array], couplings: Sequence[Array], dim: int
    ) -> tuple[Array, Array]:
        """Sums of the couplings with one key, in order of keys."""
        xp = self.backend.xp
        if len(keys) == 0:
            return xp.zeros(0, np.int64), xp.zeros((0, dim, self.layout.width))
        key, coupling = xp.concatenate(keys), xp.concatenate(couplings)
        order = xp.argsort(key, kind="stable")
        key = key[order]
        is_new = xp.ones(len(key), bool)
        is_new[1:] = key[1:] != key[:-1]
        if bool(is_new.all()):
            return key, coupling[order]
        merged = xp.zeros((int(is_new.sum()), dim, self.layout.width))
        add_rows(xp, merged, xp.cumsum(is_new) - 1, coupling[order])
        return key[is_new], merged

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
        """The scaled Jacobian of everything by the nodes that remain: (rows, size), on the host."""
        layout = self.layout
        stacked = [np.zeros((0, layout.size))]
        for factor in self._jacobians:
            for remaining, _ in self._pieces(factor):
                count, num_rows = (int(size) for size in remaining[0][1].shape[:2])
                dense = np.zeros((count, num_rows, layout.num_objects, layout.width))
                for objects, entries in remaining:
                    # one instance may touch an object twice
                    dense[np.arange(count), :, self.backend.to_host(objects)] += (
                        self.backend.to_host(entries)
                    )
                stacked.append(dense.reshape(count * num_rows, layout.size))
        return np.concatenate(stacked)

    # -- the matrix ----------------------------------------------------------------------------

    @property
    def num_eliminated_pairs(self) -> int:
        """Pairs of objects that eliminated nodes couple, repetitions counted."""
        return sum(one.num_pairs(self.backend.xp) for one in self.eliminations.values())

    def full_pattern(self) -> Pattern:
        """A block for every pair of objects."""
        return Pattern(None, self.layout.num_objects)

    def pattern(self, *, eliminates: bool = True) -> Pattern:
        """The blocks that are not zero.

        Args:
            eliminates: Count those between objects that an eliminated node couples.
        """
        xp, num = self.backend.xp, self.layout.num_objects
        found = []
        for name, node in self.layout.nodes.items():
            nodes = xp.arange(node.count)
            parts = [self.layout.objects(name, nodes, part) for part in range(node.num_parts)]
            for one, other in combinations_with_replacement(parts, 2):
                found.append(one * num + other)
        for factor in self._jacobians:
            for remaining, _ in self._pieces(factor):
                for (one, _a), (other, _b) in combinations_with_replacement(remaining, 2):
                    keys = xp.minimum(one, other) * num + xp.maximum(one, other)
                    found.append(xp.unique(keys))
        for elimination in self.eliminations.values() if eliminates else ():
            for pairs in elimination.pairs(xp, 8):
                keys = elimination.object[pairs.first] * num + elimination.object[pairs.second]
                found.append(xp.unique(keys))
        return Pattern(xp.unique(xp.concatenate(found)), num)

    def blocks(self, pattern: Pattern, *, eliminates: bool = True) -> Array:
        """The blocks of a pattern, (k, width, width).

        Args:
            pattern: Where they are.
            eliminates: Take off what eliminated nodes leave.
        """
        xp, width = self.backend.xp, self.layout.width
        result = xp.zeros((pattern.num_blocks, width, width))
        for factor in self._jacobians:
            for remaining, _ in self._pieces(factor):
                for a, (first, left) in enumerate(remaining):
                    for b, (second, right) in enumerate(remaining[a:]):
                        product = left.transpose(0, 2, 1) @ right
                        self._add(result, pattern, first, second, product, is_same=b == 0)
        for elimination in self.eliminations.values() if eliminates else ():
            for pairs in elimination.pairs(xp, width * width):
                left = elimination.blocks[pairs.first].transpose(0, 2, 1)
                first, second = elimination.object[pairs.first], elimination.object[pairs.second]
                slots = pattern.slots(self.backend, first, second)
                add_rows(xp, result, slots, -(left @ elimination.blocks[pairs.second]))
        self._complete_diagonal(result, pattern)
        return result

    def _add(
        self,
        result: Array,
        pattern: Pattern,
        first: Array,
        second: Array,
        product: Array,
        *,
        is_same: bool,
    ) -> None:
        """Add blocks of pairs of objects, which may be in either order, or one object twice."""
        xp = self.backend.xp
        if not is_same:
            swapped = first > second
            product = xp.where(swapped[:, None, None], product.transpose(0, 2, 1), product)
            first, second = xp.minimum(first, second), xp.maximum(first, second)
            equal = (first == second)[:, None, None]
            product = xp.where(equal, product + product.transpose(0, 2, 1), product)
        add_rows(xp, result, pattern.slots(self.backend, first, second), product)

    def _complete_diagonal(self, result: Array, pattern: Pattern) -> None:
        """Ones for unknowns that nothing touches, or that are padding."""
        xp, layout = self.backend.xp, self.layout
        is_missing = np.ones(layout.size, bool)
        for name in layout.nodes:
            is_missing[layout.places(name)] = self.backend.to_host(self.scales[name]) == 0.0
        objects = xp.arange(layout.num_objects)
        slots = pattern.slots(self.backend, objects, objects)
        missing = self.backend.upload(is_missing.reshape(-1, layout.width).astype(np.float64))
        diagonal = xp.arange(layout.width)
        result[slots[:, None], diagonal, diagonal] += missing
