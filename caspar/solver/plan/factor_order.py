"""The order in which a factor's instances are kept, and their indices in that order.

Once for each structure. A factor with an eliminated node is put into node tiles; others are sorted
for locality, unless that does not help. Eliminated nodes are kept in the order in which tiles have
them: a tile then reads and writes neighbours.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from caspar.equations.factor_builder import FactorForm
from caspar.frontend.factors.trace import Argument, ArgumentKind, TracedFactor
from caspar.memory.array import Array
from caspar.memory.tiling.node_tiles import NUM_NARROW_PARTNERS, NodeOrder, NodeTiles, place_dtype
from caspar.memory.tiling.tiles import TileIndex
from caspar.progress import phase
from caspar.runtime.array_tools import ArrayTools
from caspar.runtime.backend import Backend
from caspar.solver.input.problem import FactorArrays, Problem


@dataclass(frozen=True)
class FactorOrder:
    """A factor's structure on the device; none of it is the user's memory.

    Attributes:
        order: (num_slots,) the instance at each place; None: as they were given.
        nodes: (num_slots,) int32 node of each place, by argument name; None for unique nodes. Of an
            eliminated type it is the rank in its order. Without the partner.
        partner: The argument whose nodes are in `node_tiles`; None: there is none.
        constants: (num_slots,) int32 row of each place, of indexed constants, by source.
        constant_rows: Rows that each constant argument has in the arena, by source.
        node_at: (nodes with items,) int32: the rank in their type's order of the nodes of these
            tiles, where they need not be in that order; else None.
    """

    num_slots: int
    order: Array | None
    nodes: Mapping[str, Array | None]
    constants: Mapping[str, Array]
    constant_rows: Mapping[str, int]
    node_tiles: NodeTiles | None
    partner: str | None = None
    node_at: Array | None = None

    def index(
        self, name: str, bring: Callable[[Array], Array] = lambda array: array
    ) -> Array | None:
        """(num_slots,) int32 node of each place; None for unique nodes. The partner's is new."""
        if name != self.partner:
            found = self.nodes[name]
            return None if found is None else bring(found)
        assert self.node_tiles is not None
        return self.node_tiles.partners(bring)

    def item_tiles(
        self, backend: Backend, index: Array, num_objects: int, tile_size: int
    ) -> TileIndex:
        """Tiles of an index; holes name one more object, whose partials nobody reads."""
        if self.node_tiles is None:
            return backend.tile_index(index, num_objects, tile_size)
        tools = ArrayTools(backend, int(index.shape[0]))
        xp, num_items = tools.xp, tools.bring(self.node_tiles.tile_items)
        is_hole = xp.arange(tile_size, dtype=np.int32) >= num_items[:, None]
        named = xp.where(is_hole.reshape(-1), np.int32(num_objects), tools.bring(index))
        return backend.tile_index(tools.send(named), num_objects + 1, tile_size)

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [*self.nodes.values(), *self.constants.values(), self.node_at]
        if self.node_tiles is None:
            arrays.append(self.order)
        in_tiles = 0 if self.node_tiles is None else self.node_tiles.num_bytes
        return in_tiles + sum(int(array.nbytes) for array in arrays if array is not None)

    def order_of(self, argument: Argument) -> Array | None:
        """The order in which a constant's rows go into the arena; None: as they were given."""
        return self.order if argument.kind is ArgumentKind.CONST_SEQUENTIAL else None


def order_factors(
    backend: Backend,
    factors: Sequence[TracedFactor],
    forms: Mapping[str, FactorForm],
    problem: Problem,
    tile_size: int,
    max_narrow_partners: int = NUM_NARROW_PARTNERS,
    in_order: Collection[str] = (),
) -> dict[str, FactorOrder]:
    """Choose an order for each factor, by name, and put the indices into it.

    The factor with the most instances decides in which order the nodes of an eliminated type are,
    unless they are numbered in the order of tiles already (`in_order`).
    """
    orders: dict[str, FactorOrder] = {}
    of_types: dict[str, NodeOrder] = {}
    # one for all factors, as their kernels are made together
    num_partners = most_partners(factors, forms, problem.counts)
    dtype = place_dtype(num_partners, tile_size, max_narrow_partners)
    with phase("ordering factors and nodes"):
        for factor in sorted(factors, key=lambda factor: -problem.factors[factor.name].count):
            eliminated = forms[factor.name].eliminated
            arrays = problem.factors[factor.name]
            if eliminated is None:
                order = _locality_order(backend, factor, arrays, problem.counts)
                orders[factor.name] = _factor_order(backend, factor, arrays, order, None)
                continue
            partner = tile_partner(factor, eliminated, problem.counts)
            tiles = backend.node_tiles(
                arrays.nodes[eliminated.name],
                None if partner is None else arrays.nodes[partner.name],
                _count(eliminated, problem.counts),
                0 if partner is None else _count(partner, problem.counts),
                tile_size,
                dtype,
                keep_order=eliminated.node_type.name in in_order,
            )
            own_order = of_types.setdefault(eliminated.node_type.name, tiles.node_order)
            tiles_in_order = replace(tiles, node_order=own_order)
            found = _in_tiles(backend, factor, forms[factor.name], arrays, tiles_in_order)
            if not forms[factor.name].is_fused:
                own = tiles.node_order.node[: tiles.node_items.shape[0]]
                found = replace(found, node_at=_taken(backend, own_order.rank, own))
            orders[factor.name] = found
    return orders


def most_partners(
    factors: Sequence[TracedFactor], forms: Mapping[str, FactorForm], counts: Mapping[str, int]
) -> int:
    """The most partners that node tiles of a factor have; 0 if there are none."""
    partners = [tile_partner(factor, forms[factor.name].eliminated, counts) for factor in factors]
    return max((_count(partner, counts) for partner in partners if partner is not None), default=0)


def _in_tiles(
    backend: Backend, factor: TracedFactor, form: FactorForm, arrays: FactorArrays, tiles: NodeTiles
) -> FactorOrder:
    partner, eliminated = form.partner(factor), form.eliminated_argument
    of_tiles = None if partner is None else partner.name
    found = _factor_order(backend, factor, arrays, tiles.order, tiles, of_tiles)
    nodes = found.nodes[eliminated.name]
    assert nodes is not None
    ranks = _taken(backend, tiles.node_order.rank, nodes)
    return replace(found, nodes={**found.nodes, eliminated.name: ranks})


def _factor_order(
    backend: Backend,
    factor: TracedFactor,
    arrays: FactorArrays,
    order: Array | None,
    node_tiles: NodeTiles | None,
    partner: str | None = None,
) -> FactorOrder:
    num_slots = arrays.count if node_tiles is None else node_tiles.num_slots
    return FactorOrder(
        num_slots=num_slots,
        order=order,
        nodes={
            name: None if index is None else _ordered(backend, index, order)
            for name, index in arrays.nodes.items()
            if name != partner
        },
        constants={
            name: _ordered(backend, constant.index, order)
            for name, constant in arrays.constants.items()
            if constant.index is not None
        },
        constant_rows=_constant_rows(factor, arrays, num_slots),
        node_tiles=node_tiles,
        partner=partner,
    )


def _ordered(backend: Backend, index: Array, order: Array | None) -> Array:
    """A copy in the order: the user may write to what was given."""
    return index.copy() if order is None else _taken(backend, index, order)


def _taken(backend: Backend, numbers: Array, places: Array) -> Array:
    taken = backend.xp.empty(places.shape, numbers.dtype)
    backend.take_rows(taken[:, None], numbers[:, None], places)
    return taken


def _constant_rows(factor: TracedFactor, arrays: FactorArrays, num_slots: int) -> dict[str, int]:
    rows = {}
    for argument in factor.inputs:
        constant = arrays.constants.get(argument.source)
        if constant is not None:
            is_sequential = argument.kind is ArgumentKind.CONST_SEQUENTIAL
            rows[argument.source] = num_slots if is_sequential else int(constant.rows.shape[0])
    return rows


def _count(argument: Argument, counts: Mapping[str, int]) -> int:
    return counts[argument.node_type.name]


def _shared(factor: TracedFactor) -> list[Argument]:
    return [node for node in factor.nodes if node.kind is not ArgumentKind.NODE_UNIQUE]


def tile_partner(
    factor: TracedFactor, eliminated: Argument | None, counts: Mapping[str, int]
) -> Argument | None:
    """Return the argument that tiles are sorted by: of those that stay, the one with most nodes."""
    if eliminated is None:
        return None
    others = [argument for argument in _shared(factor) if argument is not eliminated]
    return max(others, key=lambda argument: _count(argument, counts), default=None)


def _locality_order(
    backend: Backend, factor: TracedFactor, arrays: FactorArrays, counts: Mapping[str, int]
) -> Array | None:
    """Items of one node together, nodes with the same partners next to each other.

    The argument with the most nodes is kept together; its partner is the one with the fewest.
    """
    shared = _shared(factor)
    if len(shared) == 0 or any(one.kind is ArgumentKind.NODE_PAIR for one in shared):
        return None
    main = max(shared, key=lambda argument: _count(argument, counts))
    others = [argument for argument in shared if argument is not main]
    partner = min(others, key=lambda argument: _count(argument, counts), default=None)
    return backend.locality_order(
        arrays.nodes[main.name],
        None if partner is None else arrays.nodes[partner.name],
        _count(main, counts),
    )
