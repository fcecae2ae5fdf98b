"""Where the entries of a Hessian are that instances of factors add to.

Input: the nodes of each instance. Output: the lower triangle by rows, and for each instance the
places of its entries. On the host. Cost tier: once for a structure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.memory.array import Array

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Unknowns:
    """The components of the tangents of all nodes, one node type after the other.

    Attributes:
        first: By node type, its first unknown.
        shapes: By node type, (nodes, tangent_dim).
        size: Unknowns.
    """

    first: Mapping[str, int]
    shapes: Mapping[str, tuple[int, int]]
    size: int

    @staticmethod
    def of(nodes: Sequence[NodeType], counts: Mapping[str, int]) -> "Unknowns":
        """Those of some node types."""
        first, size = {}, 0
        shapes = {node.name: (counts[node.name], node.tangent_dim) for node in nodes}
        for name, (count, dim) in shapes.items():
            first[name] = size
            size += count * dim
        return Unknowns(first, shapes, size)

    def of_instances(
        self, factor: TracedFactor, index: Mapping[str, NDArray[np.int32]]
    ) -> Integers:
        """(m, components of an instance's tangents): the unknown of each."""
        return np.concatenate(
            [
                self.first[node.node_type.name]
                + index[node.name].astype(np.int64)[:, None] * node.tangent_dim
                + np.arange(node.tangent_dim)
                for node in factor.nodes
            ],
            axis=1,
        )

    def split(self, vector: Array) -> dict[str, Array]:
        """(size,) as (nodes, tangent_dim) of each node type."""
        return {
            name: vector[self.first[name] : self.first[name] + shape[0] * shape[1]].reshape(shape)
            for name, shape in self.shapes.items()
        }

    def joined(self, by_node: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """The other way, on the host."""
        return np.concatenate([by_node[name].ravel() for name in self.shapes])

    def moves(self, moving: Mapping[str, Array]) -> NDArray[np.bool_] | None:
        """(size,) false for what is held; None: nothing is.

        Args:
            moving: By node type of which something is held (n, tangent_dim), 0 for that.
        """
        if not any(name in moving for name in self.shapes):
            return None
        ones = {name: np.ones(shape) for name, shape in self.shapes.items()}
        masks = {name: np.asarray(moving[name]) for name in ones if name in moving}
        moves: NDArray[np.bool_] = self.joined({**ones, **masks}) != 0.0
        return moves


@dataclass(frozen=True)
class Pattern:
    """A symmetric sparse matrix: its lower triangle by rows, that is, the upper one by columns.

    Attributes:
        indptr: (size + 1,) int32, where rows begin; each ends with its diagonal entry.
        indices: (nnz,) int32, the column of each entry.
        rows: (nnz,) int32, its row.
        places: For each factor (m, entries of an instance) int64, where they are added.
        doubled: For each factor the entries, as (instance, entry), that are added twice: those
            beside the diagonal of an instance that are on it in the matrix, as one node is touched
            twice.
    """

    indptr: NDArray[np.int32]
    indices: NDArray[np.int32]
    rows: NDArray[np.int32]
    places: tuple[Integers, ...]
    doubled: tuple[tuple[Integers, Integers], ...]

    @property
    def size(self) -> int:
        """Rows."""
        return len(self.indptr) - 1

    @property
    def diagonal(self) -> NDArray[np.int64]:
        """(size,) places of the diagonal."""
        return self.indptr[1:].astype(np.int64) - 1


def pattern_of(size: int, unknowns: Sequence[Integers]) -> Pattern:
    """The pattern of a Hessian.

    Args:
        size: Unknowns.
        unknowns: For each factor, (m, n) the unknowns of each instance.
    """
    keys, doubled = [], []
    for own in unknowns:
        row, column = np.tril_indices(own.shape[1])
        first, second = own[:, row], own[:, column]
        keys.append(np.maximum(first, second) * size + np.minimum(first, second))
        instance, entry = np.nonzero((first == second) & (row != column))
        doubled.append((instance, entry))
    diagonal = np.arange(size, dtype=np.int64) * (size + 1)
    every = np.concatenate([diagonal, *(one.ravel() for one in keys)])
    found, inverse = np.unique(every, return_inverse=True)
    rows, columns = np.divmod(found, size)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=size))])
    places, start = [], size
    for one in keys:
        places.append(inverse[start : start + one.size].reshape(one.shape))
        start += one.size
    return Pattern(
        indptr.astype(np.int32),
        columns.astype(np.int32),
        rows.astype(np.int32),
        tuple(places),
        tuple(doubled),
    )
