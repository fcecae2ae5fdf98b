"""Where the unknowns of the reduced system are: objects of equal width, and their scalars.

A node that remains after elimination is one object, or several if it has many degrees of freedom,
so that the blocks of all node types fit one array. Objects narrower than that are padded; padding
is an unknown that nothing touches. Cost tier: once for a covariance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from caspar.frontend.factors.trace import NodeType
from caspar.memory.array import Array

MAX_WIDTH = 12
"""Unknowns of an object. Larger nodes are cut: padding others to theirs would take memory."""


@dataclass(frozen=True)
class NodeLayout:
    """The objects of a node type.

    Attributes:
        dim: Unknowns of a node.
        num_parts: Objects of a node.
        part_dim: Unknowns of an object, but for the last one of a node, which may have fewer.
        first: Number of the first object.
        count: Nodes.
    """

    dim: int
    num_parts: int
    part_dim: int
    first: int
    count: int

    def part(self, number: int) -> slice:
        """The unknowns of a node that are in one of its objects."""
        return slice(number * self.part_dim, min((number + 1) * self.part_dim, self.dim))


@dataclass(frozen=True)
class ReducedLayout:
    """The objects of the reduced system.

    Attributes:
        nodes: By node type, in order.
        num_objects: All of them.
        width: Unknowns of an object, with padding.
    """

    nodes: Mapping[str, NodeLayout]
    num_objects: int
    width: int

    @property
    def size(self) -> int:
        """Unknowns, with padding."""
        return self.num_objects * self.width

    @property
    def num_unknowns(self) -> int:
        """Unknowns, without padding."""
        return sum(node.count * node.dim for node in self.nodes.values())

    def objects(self, node: str, index: Array, part: int) -> Array:
        """The objects of some nodes' parts: (m,) int64."""
        layout = self.nodes[node]
        return layout.first + index.astype(np.int64) * layout.num_parts + part

    def padded(self, xp: ModuleType, node: str, entries: Array, part: int) -> Array:
        """Columns of a Jacobian that belong to a part: (..., dim) to (..., width)."""
        columns = entries[..., self.nodes[node].part(part)]
        if columns.shape[-1] == self.width:
            return columns
        result = xp.zeros((*columns.shape[:-1], self.width))
        result[..., : columns.shape[-1]] = columns
        return result

    def places(self, node: str) -> np.ndarray:
        """(count, dim) int64: place of each unknown among those with padding."""
        layout = self.nodes[node]
        parts, within = np.divmod(np.arange(layout.dim), layout.part_dim)
        objects = layout.first + layout.num_parts * np.arange(layout.count)[:, None] + parts
        return objects * self.width + within

    def real(self) -> np.ndarray:
        """(size without padding,) int64: the places that are no padding, ascending."""
        if len(self.nodes) == 0:
            return np.zeros(0, np.int64)
        return np.concatenate([self.places(name).ravel() for name in self.nodes])


def reduced_layout(nodes: Sequence[NodeType], counts: Mapping[str, int]) -> ReducedLayout:
    """The layout of the node types that remain."""
    width = 1
    for node in nodes:
        width = max(width, _part_dim(node.tangent_dim))
    layouts, first = {}, 0
    for node in nodes:
        part_dim = _part_dim(node.tangent_dim)
        num_parts = -(-node.tangent_dim // part_dim)
        count = counts[node.name]
        layouts[node.name] = NodeLayout(node.tangent_dim, num_parts, part_dim, first, count)
        first += num_parts * count
    return ReducedLayout(layouts, first, width)


def _part_dim(dim: int) -> int:
    num_parts = -(-dim // MAX_WIDTH)
    return -(-dim // num_parts)
