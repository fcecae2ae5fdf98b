"""Node tiles: every sentence of their documentation, and what they are for."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.memory.tiling.node_tiles import (
    HOLE,
    LENGTH_SHIFT,
    NodeOrder,
    NodeTiles,
    build_node_order,
    build_node_tiles,
)
from caspar.memory.tiling.partner_labels import KEY_BITS, along_curve
from tests.memory.tiling.node_tile_problems import PROBLEMS, Index, Problem, draw_problem


def build(problem: Problem, tile_size: int) -> NodeTiles:
    sizes = (problem.num_nodes, problem.num_partners, tile_size)
    return build_node_tiles(problem.node, problem.partner, *sizes)


def bits_of(place: NDArray[Any]) -> int:
    return {4: 8, 8: 16}[place.dtype.itemsize]


def begins(place: NDArray[Any]) -> NDArray[np.int64]:
    return (place & ((1 << bits_of(place)) - 1)).astype(np.int64)


def positions(place: NDArray[Any]) -> NDArray[np.int64]:
    return begins(place >> bits_of(place))


def partners(place: NDArray[Any]) -> NDArray[np.int64]:
    return (place >> (2 * bits_of(place))).astype(np.int64)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Few nodes or many, in any order, with gaps."""
    num_nodes, num_partners = draw(st.integers(1, 40)), draw(st.integers(1, 50))
    count = draw(st.integers(0, 80))
    node = draw(st.lists(st.integers(0, num_nodes - 1), min_size=count, max_size=count))
    partner = draw(
        st.none() | st.lists(st.integers(0, num_partners - 1), min_size=count, max_size=count)
    )
    if draw(st.booleans()):
        node.sort()
    of_items = None if partner is None else np.array(partner, np.int32)
    return Problem("drawn", np.array(node, np.int32), of_items, num_nodes, num_partners)


def items_of_tiles(tiles: NodeTiles, tile_size: int) -> Iterator[tuple[Index, NDArray[Any]]]:
    """Items and places of each tile, without holes; holes are looked at here."""
    assert tiles.num_slots == tiles.num_tiles * tile_size
    assert len(tiles.tile_items) == tiles.num_tiles
    assert len(tiles.order) == len(tiles.place) == tiles.num_slots
    for number, count in enumerate(tiles.tile_items):
        slots = slice(number * tile_size, (number + 1) * tile_size)
        order, place = tiles.order[slots], tiles.place[slots]
        assert 1 <= count <= tile_size
        assert np.all(order[count:] == order[0])
        assert np.all(begins(place[count:]) == HOLE)
        assert np.all(positions(place[count:]) == 0)
        assert np.all(partners(place[count:]) == partners(place[:1]))
        yield order[:count], place[:count]


def assert_is_right(tiles: NodeTiles, problem: Problem, tile_size: int) -> None:
    tiles_of: dict[int, list[int]] = {}
    seen: list[int] = []
    for number, (items, place) in enumerate(items_of_tiles(tiles, tile_size)):
        position = positions(place)
        assert_array_equal(np.sort(position), np.arange(len(items)))
        by_position = items[np.argsort(position)]
        node = problem.node[items]
        own_of = {one: np.sort(items[node == one]) for one in set(node.tolist())}
        for one, begin in set(zip(node.tolist(), begins(place).tolist(), strict=True)):
            assert_array_equal(by_position[begin : begin + len(own_of[one])], own_of[one])
        if problem.partner is None:
            assert_array_equal(position, np.arange(len(items)))
        else:
            assert_array_equal(partners(place), problem.partner[items])
            partner = problem.partner[items].tolist()
            rounds = [-(partner.count(one) - 1).bit_length() for one in partner]
            keys = list(zip(rounds, partner, position.tolist(), strict=True))
            assert keys == sorted(keys)
        for node in np.unique(problem.node[items]):
            tiles_of.setdefault(int(node), []).append(number)
        seen += items.tolist()
    assert sorted(seen) == list(range(len(problem.node)))
    assert_groups_are_right(tiles, problem, tiles_of, tile_size)
    assert_nodes_are_in_order(tiles, problem, tiles_of, tile_size)


def assert_nodes_are_in_order(
    tiles: NodeTiles, problem: Problem, tiles_of: dict[int, list[int]], tile_size: int
) -> None:
    node, rank = tiles.node_order.node, tiles.node_order.rank
    numbers = np.arange(problem.num_nodes)
    assert_array_equal(node[rank], numbers)
    assert_array_equal(rank[node], numbers)
    ranks = [
        rank[problem.node[items[np.argsort(positions(place))]]]
        for items, place in items_of_tiles(tiles, tile_size)
    ]
    assert np.all(np.diff(np.concatenate([np.zeros(1, np.int32), *ranks])) >= 0)
    absent = [one for one in numbers.tolist() if one not in tiles_of]
    assert node[len(tiles_of) :].tolist() == absent


def assert_groups_are_right(
    tiles: NodeTiles, problem: Problem, tiles_of: dict[int, list[int]], tile_size: int
) -> None:
    assert len(tiles.group_start) == tiles.num_groups + 1
    assert (tiles.group_start[0], tiles.group_start[-1]) == (0, tiles.num_tiles)
    groups = [list(range(begin, end)) for begin, end in pairwise(tiles.group_start.tolist())]
    sizes = np.bincount(problem.node, minlength=problem.num_nodes)
    long = [node for node in tiles_of if sizes[node] > tile_size]
    assert groups[: len(long)] == sorted(tiles_of[node] for node in long)
    assert all(len(group) == 1 for group in groups[len(long) :])
    for node, own in tiles_of.items():
        assert len(own) == -(-sizes[node] // tile_size)
        if node in long:
            assert np.all(tiles.tile_items[own[:-1]] == tile_size)
            others = (set(found) for other, found in tiles_of.items() if other != node)
            assert set(own).isdisjoint(set[int]().union(*others))
    assert_nodes_of_groups_are_right(tiles, groups, tile_size)


def assert_nodes_of_groups_are_right(
    tiles: NodeTiles, groups: list[list[int]], tile_size: int
) -> None:
    """From the places of the items, which name their nodes' first positions and lengths."""
    places = tiles.place.reshape(tiles.num_tiles, tile_size)
    assert (tiles.group_node[0], tiles.group_node[-1]) == (0, len(tiles.node_items))
    for number, (first, end) in enumerate(pairwise(tiles.group_node.tolist())):
        if number < tiles.num_long:
            assert end == first + 1
            assert tiles.node_items[first] == 0
            continue
        (tile,) = groups[number]
        place = places[tile][: tiles.tile_items[tile]]
        begin, length = np.unique(begins(place), return_counts=True)
        assert_array_equal(tiles.node_items[first:end], begin | (length << LENGTH_SHIFT))


@given(problems(), st.sampled_from([1, 2, 3, 8, 31]))
def test_every_number_is_right(problem: Problem, tile_size: int) -> None:
    assert_is_right(build(problem, tile_size), problem, tile_size)


@pytest.mark.parametrize("name", sorted(PROBLEMS))
@pytest.mark.parametrize("tile_size", [128, 1024])
def test_tiles_as_large_as_those_in_use(name: str, tile_size: int) -> None:
    for count in (1, 127, 1024, 3001):
        problem = draw_problem(name, count)
        assert_is_right(build(problem, tile_size), problem, tile_size)


def test_no_items() -> None:
    tiles = build(draw_problem("any", 0), 256)
    assert (tiles.num_slots, tiles.num_tiles, tiles.num_groups) == (0, 0, 0)
    assert_array_equal(tiles.group_start, [0])
    assert_array_equal(tiles.group_node, [0])
    assert tiles.num_bytes == 8


@pytest.mark.parametrize("tile_size", [1, 2, 3])
def test_many_chunks(tile_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks end inside nodes, and a chunk may have no node; small ones are checked sooner."""
    tiles_of_chunk = 48  # more than the nodes that are looked at
    monkeypatch.setattr("caspar.memory.tiling.node_tiles.TILES_OF_CHUNK", tiles_of_chunk)
    for count in range(tiles_of_chunk * tile_size - 3, tiles_of_chunk * tile_size + 4):
        node = (np.arange(3 * count) // tile_size).astype(np.int32)
        for problem in (
            Problem("whole", node, None, 3 * count, 0),
            Problem("one more", np.append(node[: count - 1] + 1, 0), None, 3 * count, 0),
        ):
            assert_is_right(build(problem, tile_size), problem, tile_size)


def runs(problem: Problem, tile_size: int) -> float:
    """Distinct (tile, partner) pairs for each item."""
    assert problem.partner is not None
    tiles = items_of_tiles(build(problem, tile_size), tile_size)
    pairs = sum(len(np.unique(problem.partner[items])) for items, _ in tiles)
    return pairs / len(problem.node)


def scrambled(problem: Problem) -> Problem:
    """The same with partners numbered at random."""
    assert problem.partner is not None
    number = np.random.default_rng(5).permutation(problem.num_partners).astype(np.int32)
    sizes = (problem.num_nodes, problem.num_partners)
    return Problem("scrambled", problem.node, number[problem.partner], *sizes)


def test_tiles_have_few_partners_whatever_their_numbers() -> None:
    """A tile of 128 of a chain of 200 partners, which nodes of four see in windows of eight."""
    chain = draw_problem("chain", 40_000)
    in_any_order = Problem(
        "in any order",
        np.random.default_rng(1).permutation(chain.num_nodes).astype(np.int32)[chain.node],
        chain.partner,
        chain.num_nodes,
        chain.num_partners,
    )
    assert runs(in_any_order, 128) < 0.1
    assert runs(scrambled(in_any_order), 128) < 0.12
    assert runs(chain, 128) < 0.1


def test_the_curve_goes_from_neighbour_to_neighbour() -> None:
    size = 16
    x, y = (axis.ravel().astype(np.int32) for axis in np.mgrid[:size, :size])
    distance = along_curve(x, y, 4)
    assert_array_equal(np.sort(distance), np.arange(size * size))
    step = np.argsort(distance)
    assert np.all(np.abs(np.diff(x[step])) + np.abs(np.diff(y[step])) == 1)
    last = np.array([(1 << 15) - 1], np.int32)
    assert 0 <= along_curve(last, last, 15)[0] < 1 << KEY_BITS


def test_types_are_those_of_the_kernels() -> None:
    tiles = build(draw_problem("any", 1000), 256)
    for name in ("order", "tile_items", "group_start", "group_node", "node_items"):
        assert getattr(tiles, name).dtype == np.int32
    assert tiles.place.dtype == np.uint32


@pytest.mark.parametrize(
    ("num_partners", "tile_size", "is_wide"),
    [(65_536, 256, False), (65_537, 256, True), (3, 257, True), (3, 1024, True), (0, 128, False)],
)
def test_places_are_as_wide_as_they_must_be(
    num_partners: int, tile_size: int, is_wide: bool
) -> None:
    node = np.arange(20, dtype=np.int32) // 3
    highest = np.full(20, num_partners - 1, np.int32)
    partner = None if num_partners == 0 else highest - (np.arange(20, dtype=np.int32) % 2)
    problem = Problem("", node, partner, 7, num_partners)
    tiles = build(problem, tile_size)
    assert (tiles.place.dtype == np.uint64) == is_wide
    assert_is_right(tiles, problem, tile_size)
    expected = np.zeros_like(tiles.order) if partner is None else partner[tiles.order]
    assert_array_equal(tiles.partners(), expected)
    assert tiles.partners().dtype == np.int32


@pytest.mark.parametrize(
    ("num_long", "num_short", "stretch", "num_longer", "num_stretches"),
    [
        (0, 0, 0, 0, 0),
        (1, 1, 1, 0, 2),
        (2, 500, 1, 0, 502),
        (2, 501, 1, 250, 253),
        (0, 1001, 1, 1, 1000),
        (0, 2823, 2, 823, 1000),
        (0, 6000, 6, 0, 1000),
        (0, 6001, 4, 1, 1500),
        (3, 100_000, 5, 15_000, 17_003),
    ],
)
def test_tiles_are_dealt_evenly(
    num_long: int, num_short: int, stretch: int, num_longer: int, num_stretches: int
) -> None:
    num_tiles, none = 3 * num_long + num_short, np.zeros(0, np.int32)
    order = NodeOrder(none, none)
    counts = (0, num_tiles, num_long + num_short, num_long)
    tiles = NodeTiles(*counts, none, none, none, none, none, none, order)
    assert (tiles.num_short, tiles.num_stretches(500)) == (num_short, num_stretches)
    fields = tiles.stretch_fields(num_stretches)
    assert fields["num_long_tiles"] == 3 * num_long
    assert (fields["stretch"], fields["num_longer"]) == (stretch, num_longer)


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_nodes_that_are_numbered_in_order_stay_there(name: str) -> None:
    problem = draw_problem(name, 5003)
    if problem.partner is None:
        return
    sizes = (problem.num_nodes, problem.num_partners, 128)
    order = build_node_order(problem.node, problem.partner, *sizes)
    usual = build(problem, 128)
    assert_array_equal(order.node, usual.node_order.node)
    assert_array_equal(order.node[order.rank], np.arange(problem.num_nodes))
    # the other way round: by partners they would turn again
    numbered = (problem.num_nodes - 1 - order.rank[problem.node]).astype(np.int32)
    turned = replace(problem, node=numbered)
    kept = build_node_tiles(numbered, problem.partner, *sizes, keep_order=True)
    assert_is_right(kept, turned, 128)
    present = np.unique(numbered[np.bincount(numbered)[numbered] <= 128])
    if len(present) > 50:
        assert np.corrcoef(kept.node_order.rank[present], present)[0, 1] > 0.99
        assert np.corrcoef(build(turned, 128).node_order.rank[present], present)[0, 1] < 0.5
    # packed in the other direction
    assert _num_runs(kept) <= 1.05 * _num_runs(usual)


def _num_runs(tiles: NodeTiles) -> int:
    """Distinct partners of tiles, summed up."""
    size = tiles.num_slots // tiles.num_tiles
    return sum(len(np.unique(own)) for own in partners(tiles.place).reshape(-1, size))
