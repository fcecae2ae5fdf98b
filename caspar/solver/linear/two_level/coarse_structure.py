"""The structure of the coarse space: clusters, what adds to which block, where entries go.

Input: a plan. Output: index arrays on the device. Once for each structure. Unknowns of the coarse
system are numbered as the scalars of a blocked float64 array of clusters. Its blocks are those of
two clusters and two groups of columns: an array for each two groups, of all clusters (a, b) with
b <= a, in the order a (a + 1) / 2 + b.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from caspar.memory.array import Array
from caspar.runtime.array_tools import ArrayTools
from caspar.solver.linear.explicit.structure import eliminated_nodes, is_item
from caspar.solver.linear.explicit.system import ALIGNMENT
from caspar.solver.linear.two_level.clusters import make_clusters
from caspar.solver.linear.two_level.coarse_form import CoarseForm, is_coarsened
from caspar.solver.linear.two_level.coarse_kernels import LANES
from caspar.solver.normal.blocks import pairs_within, scalar_numbers
from caspar.solver.plan.plan import FactorPlan, Plan

MAX_COLUMNS = 512
"""Columns of all clusters: the inverse takes 1 MB and 0.7 ms of an H200."""

FEWEST_CLUSTERS = 4

NODES_OF_CLUSTER = 6
"""Nodes of a cluster at least, in the mean."""

PAIRS_OF_ITEM = 8
"""Pairs of entries for each item of a factor, about."""

PART = 4
"""Columns that an item of `coarse_apply` multiplies are a multiple of it: chunks are full."""


@dataclass(frozen=True)
class CoarseStructure:
    """What adds to what.

    Attributes:
        form: Columns of a cluster.
        num_clusters: Clusters.
        cluster: (num_nodes,) int32 cluster of each reduced node.
        order: (num_nodes,) int32 nodes by their clusters.
        diagonal: (num_nodes,) int32 block that each of `order` adds to.
        entry: (num_slots,) int32 entry of each item, by the factor's name.
        num_entries: Distinct pairs of an eliminated node and a cluster.
        first: (n,) int32 entry of the rows of a pair of entries of one node, sorted by block.
        second: (n,) int32 entry of its columns.
        block: (n,) int32 block it adds to.
    """

    form: CoarseForm
    num_clusters: int
    cluster: Array
    order: Array
    diagonal: Array
    entry: Mapping[str, Array]
    num_entries: int
    first: Array
    second: Array
    block: Array

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [self.cluster, self.order, self.diagonal, self.first, self.second, self.block]
        return sum(int(array.nbytes) for array in (*arrays, *self.entry.values()))

    @property
    def size(self) -> int:
        """Coarse unknowns."""
        return self.num_clusters * self.form.num_columns

    @property
    def num_blocks(self) -> int:
        """Blocks of two groups."""
        return self.num_clusters * (self.num_clusters + 1) // 2

    @property
    def block_scalars(self) -> int:
        """Scalars from the blocks of two groups to the next ones."""
        return -(-self.num_blocks * self.form.group**2 // ALIGNMENT) * ALIGNMENT

    @property
    def width(self) -> int:
        """Columns that an item of `coarse_apply` multiplies."""
        return PART * -(-self.size // (PART * LANES))


@dataclass(frozen=True)
class CoarseEntries:
    """Where numbers of the coarse matrix come from and go to; all are int32.

    Attributes:
        source: (n,) scalar of the blocks of each entry of the lower triangle.
        row: (n,) its row.
        column: (n,) its column.
        place: (n,) its place in the dense matrix.
        diagonal: (size,) scalar of the blocks of each diagonal entry.
        inverse: (m,) entry of the dense inverse of each number that `coarse_apply` reads.
        inverse_row: (m,) its row.
        inverse_column: (m,) its column; behind the last one there is nothing: `size`.
    """

    source: Array
    row: Array
    column: Array
    place: Array
    diagonal: Array
    inverse: Array
    inverse_row: Array
    inverse_column: Array

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in vars(self).values())


def coarsened(plan: Plan) -> list[FactorPlan]:
    """Factors that couple reduced nodes through eliminated ones."""
    return [factor for factor in plan.factors if is_coarsened(factor.factor, factor.form)]


def num_clusters_for(form: CoarseForm, num_nodes: int) -> int:
    """Clusters of that many nodes."""
    wanted = min(num_nodes // NODES_OF_CLUSTER, MAX_COLUMNS // form.num_columns)
    return max(1, min(num_nodes, max(FEWEST_CLUSTERS, wanted)))


def build_coarse_structure(plan: Plan, form: CoarseForm) -> CoarseStructure:
    """Make clusters, list entries and pairs."""
    backend = plan.library.backend
    tools = ArrayTools(backend, PAIRS_OF_ITEM * sum(factor.count for factor in plan.factors))
    xp = tools.xp
    (reduced,) = plan.reduced
    nodes, neighbours, slots = [], [], []
    for factor in coarsened(plan):
        (argument,) = factor.reduced
        slot = xp.flatnonzero(is_item(tools, factor))
        index = factor.order.index(argument.name, tools.bring)
        assert index is not None
        nodes.append(index[slot])
        neighbours.append(tools.bring(eliminated_nodes(factor))[slot].astype(np.int64))
        slots.append(slot)
    node, neighbour = xp.concatenate(nodes), xp.concatenate(neighbours)
    wanted = num_clusters_for(form, reduced.count)
    host = [one if xp is np else backend.to_host(one) for one in (node, neighbour)]
    labels = make_clusters(host[0], host[1], reduced.count, wanted)
    num_clusters = int(labels.max()) + 1
    on_device = backend.upload(labels)
    cluster = tools.bring(on_device)
    key, number = xp.unique(neighbour * num_clusters + cluster[node], return_inverse=True)
    entry = {}
    ends = np.cumsum([0, *(int(slot.shape[0]) for slot in slots)])
    for place, (factor, slot) in enumerate(zip(coarsened(plan), slots, strict=True)):
        own = xp.zeros(factor.count, dtype=np.int32)
        own[slot] = number.reshape(-1)[ends[place] : ends[place + 1]]
        entry[factor.factor.name] = tools.send(own)
    first, second = pairs_within(xp, key // num_clusters)
    block = _block(key[first] % num_clusters, key[second] % num_clusters)
    by_block = xp.argsort(block, kind="stable")
    order = xp.argsort(cluster, kind="stable").astype(np.int32)
    return CoarseStructure(
        form=form,
        num_clusters=num_clusters,
        cluster=on_device,
        order=tools.send(order),
        diagonal=tools.send(_block(cluster[order], cluster[order]).astype(np.int32)),
        entry=entry,
        num_entries=int(key.shape[0]),
        first=tools.send(first[by_block].astype(np.int32)),
        second=tools.send(second[by_block].astype(np.int32)),
        block=tools.send(block[by_block].astype(np.int32)),
    )


def _block(row: Any, column: Any) -> Any:
    """Number of the block of two clusters, the later one first."""
    return row * (row + 1) // 2 + column


def coarse_entries(xp: Any, structure: CoarseStructure) -> CoarseEntries:
    """Index arrays between blocks, dense matrix and the inverse that is multiplied with."""
    form, size = structure.form, structure.size
    number = np.arange(size)
    cluster, column = np.divmod(number, form.num_columns)
    place = _column_numbers(structure, cluster, column)
    # by (row, column) of clusters and columns, each pair once: blocks are of b <= a
    row, other = (grid.reshape(-1) for grid in np.meshgrid(number, number, indexing="ij"))
    kept = (cluster[row] > cluster[other]) | ((cluster[row] == cluster[other]) & (row >= other))
    row, other = row[kept], other[kept]
    source = _block_scalars(structure, cluster[row], column[row], cluster[other], column[other])
    own = np.empty(size, dtype=np.int64)
    own[place] = _block_scalars(structure, cluster, column, cluster, column)
    later, earlier = np.maximum(place[row], place[other]), np.minimum(place[row], place[other])
    width = structure.width
    part = np.arange(LANES)
    columns = np.asarray(scalar_numbers(np, LANES, width, part, np.arange(width)))
    items = np.arange(size * LANES)
    to = np.asarray(scalar_numbers(np, size * LANES, width, items, np.arange(width)))
    inverse_row = np.empty(size * LANES * width, dtype=np.int64)
    inverse_column = np.empty_like(inverse_row)
    inverse_row[to] = np.repeat(number, LANES)[:, None]
    inverse_column[to] = np.minimum(np.tile(columns, (size, 1)), size)
    inside = np.minimum(inverse_column, size - 1)
    arrays = (
        source,
        later,
        earlier,
        later * size + earlier,
        own,
        inverse_row * size + inside,
        inverse_row,
        inverse_column,
    )
    return CoarseEntries(*(xp.asarray(array.astype(np.int32)) for array in arrays))


def _column_numbers(structure: CoarseStructure, cluster: Any, column: Any) -> Any:
    """Unknown of a column of a cluster."""
    all_columns = np.arange(structure.form.num_columns)
    clusters = np.arange(structure.num_clusters)
    numbers = scalar_numbers(
        np, structure.num_clusters, structure.form.num_columns, clusters, all_columns
    )
    return np.asarray(numbers)[cluster, column]


def _block_scalars(
    structure: CoarseStructure, row: Any, row_column: Any, other: Any, other_column: Any
) -> Any:
    """Scalar of the blocks of two columns of clusters."""
    form = structure.form
    group, i = np.divmod(row_column, form.group)
    other_group, j = np.divmod(other_column, form.group)
    blocks = np.arange(structure.num_blocks)
    places = scalar_numbers(
        np, structure.num_blocks, form.group**2, blocks, np.arange(form.group**2)
    )
    within = np.asarray(places)[_block(row, other), i * form.group + j]
    return (group * form.num_groups + other_group) * structure.block_scalars + within
