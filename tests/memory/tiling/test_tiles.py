"""Tiles against a brute-force reference."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.memory.tiling.tiles import (
    NEW_INDEX,
    PLACE_MASK,
    TileIndex,
    TileOrder,
    build_tile_index,
    build_tile_order,
    single_object_tiles,
)
from tests.support_memory import tile_partials

Index = NDArray[np.int32]


@st.composite
def indices(draw: st.DrawFn) -> tuple[Index, int]:
    """An index array and the number of objects."""
    num_objects = draw(st.integers(1, 12))
    items = draw(st.lists(st.integers(0, num_objects - 1), min_size=1, max_size=60))
    if draw(st.booleans()):
        items.sort()
    return np.array(items, np.int32), num_objects + draw(st.integers(0, 3))


def assert_is_tile_index(tiles: TileIndex, index: Index, num_objects: int, tile_size: int) -> None:
    """Every array of a `TileIndex` is what its documentation says."""
    partials = tile_partials(index, tile_size)
    num_tiles = -(-len(index) // tile_size)
    tile_of = [items[0] // tile_size for _, items in partials]
    assert tiles.num_partials == len(partials)
    assert_array_equal(
        tiles.tile_start, [sum(t < tile for t in tile_of) for tile in range(num_tiles + 1)]
    )
    for number, (_, items) in enumerate(partials):
        tile = tile_of[number]
        first = tiles.tile_start[tile]
        assert_array_equal(tiles.slot[items], number - first)
        begin = 0 if number == first else int(tiles.segment_end[number - 1])
        # items keep their order within the segment: sums have a fixed order
        assert_array_equal(tiles.position[items], begin + np.arange(len(items)))
        assert tiles.segment_end[number] == begin + len(items)
    for number in range(num_objects):
        own = tiles.object_partials[tiles.object_start[number] : tiles.object_start[number + 1]]
        assert_array_equal(own, [i for i, (owner, _) in enumerate(partials) if owner == number])
    assert len(tiles.object_start) == num_objects + 1


_INT32 = np.iinfo(np.int32)


def _shuffled(rng: np.random.Generator, index: Index) -> Index:
    rng.shuffle(index)
    return index


def _two_numbers(distance: int, rng: np.random.Generator, count: int) -> Index:
    return rng.choice(np.array([-3, distance - 3], np.int32), count)


FAR_APART: dict[str, Callable[[np.random.Generator, int], Index]] = {
    "from 0 to the highest": lambda rng, count: _shuffled(
        rng, np.linspace(0, _INT32.max, count).astype(np.int32)
    ),
    "two groups": lambda rng, count: (
        rng.integers(0, 2, count) * 2_000_000_000 + rng.integers(0, 3, count)
    ).astype(np.int32),
    "one far from the others": lambda rng, count: _shuffled(
        rng, np.append(rng.integers(0, 9, count - 1), _INT32.max).astype(np.int32)
    ),
    "all the highest": lambda _, count: np.full(count, _INT32.max, np.int32),
    "negative too": lambda rng, count: rng.integers(
        _INT32.min, _INT32.max, count, endpoint=True
    ).astype(np.int32),
    "the lowest and the highest": lambda rng, count: rng.choice(
        np.array([_INT32.min, -1, 0, _INT32.max], np.int32), count
    ),
    **{
        f"32 bits less {bits}, {more:+d}": partial(_two_numbers, 2 ** (32 - bits) - 1 + more)
        for bits in (7, 8, 9, 10)
        for more in (-1, 0, 1)
    },
}
"""Draw (count,) numbers; a sort key of place and number does not always fit into 32 bits: places in
tiles of 128 to 1024 have 7 to 10."""


def assert_is_tile_order(made: TileOrder, index: Index, tile_size: int) -> None:
    """Everything in a `TileOrder` is what its documentation says."""
    num_tiles = -(-len(index) // tile_size)
    assert made.order.dtype == np.uint16
    tiles = [index[first : first + tile_size] for first in range(0, len(index), tile_size)]
    expected = []
    for tile in tiles:
        places = sorted(range(len(tile)), key=lambda item: int(tile[item]))
        previous = None
        for place in places:
            is_first = previous is None or tile[place] != previous
            expected.append(place | (NEW_INDEX if is_first else 0))
            previous = tile[place]
        expected += range(len(tile), tile_size)
    assert_array_equal(made.order, expected)
    assert len(made.order) == num_tiles * tile_size
    assert made.num_partials == sum(len(set(tile.tolist())) for tile in tiles)
    assert made.num_unsorted_tiles == sum(sorted(tile) != tile.tolist() for tile in tiles)
    assert (made.lowest, made.highest) == (min(index, default=0), max(index, default=-1))


@given(indices(), st.integers(1, 17))
def test_every_number_of_an_order_is_right(made: tuple[Index, int], tile_size: int) -> None:
    index, _ = made
    assert_is_tile_order(build_tile_order(index, tile_size), index, tile_size)


@pytest.mark.parametrize("name", sorted(FAR_APART))
def test_an_order_of_any_numbers(name: str) -> None:
    for count in (1, 33, 300):
        index = FAR_APART[name](np.random.default_rng(count), count)
        assert_is_tile_order(build_tile_order(index, 128), index, 128)


def test_an_order_of_the_largest_tile() -> None:
    """Places are numbers of 15 bits."""
    index = np.arange(PLACE_MASK + 1, dtype=np.int32)[::-1].copy()
    order = build_tile_order(index, PLACE_MASK + 1).order
    assert_array_equal(order & PLACE_MASK, index)
    assert np.all(order & NEW_INDEX == NEW_INDEX)


def test_no_items() -> None:
    none = np.zeros(0, np.int32)
    assert_is_tile_order(build_tile_order(none, 256), none, 256)
    tiles = build_tile_index(none, 3, 256)
    assert_is_tile_index(tiles, none, 3, 256)
    assert tiles.num_bytes == 4 + 4 * 4


@given(indices(), st.integers(1, 17))
def test_every_array_is_right(made: tuple[Index, int], tile_size: int) -> None:
    index, num_objects = made
    tiles = build_tile_index(index, num_objects, tile_size)
    assert_is_tile_index(tiles, index, num_objects, tile_size)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1025])
@pytest.mark.parametrize("num_objects", [1, 3, 5000])
def test_tiles_as_large_as_those_in_use(count: int, num_objects: int) -> None:
    index = np.random.default_rng(count).integers(0, num_objects, count).astype(np.int32)
    for tile_size in (256, 1024):
        tiles = build_tile_index(index, num_objects, tile_size)
        assert_is_tile_index(tiles, index, num_objects, tile_size)


def test_types_are_those_of_the_kernels() -> None:
    tiles = build_tile_index(np.array([2, 0, 2], np.int32), 3, 2)
    for name in ("slot", "position", "segment_end"):
        assert getattr(tiles, name).dtype == np.uint16
    for name in ("tile_start", "object_start", "object_partials"):
        assert getattr(tiles, name).dtype == np.int32


def test_tile_number_times_number_of_objects_needs_64_bits() -> None:
    count, num_objects = 9000, 300_000
    index = np.linspace(0, num_objects - 1, count).astype(np.int32)[::-1].copy()
    tiles = build_tile_index(index, num_objects, 1)
    assert tiles.num_partials == count
    assert_array_equal(index[tiles.object_partials], np.sort(index))


def test_the_largest_tile() -> None:
    """Positions and ends of segments are 16-bit numbers."""
    size = 2**16 - 1
    tiles = build_tile_index(np.zeros(size + 1, np.int32), 1, size)
    assert_array_equal(tiles.segment_end, [size, 1])
    assert_array_equal(tiles.position, [*range(size), 0])


@pytest.mark.parametrize("num_tiles", [1, 2, 33])
def test_one_object(num_tiles: int) -> None:
    """As far as a reduction reads it: the tiles of a constant index."""
    tiles = single_object_tiles(num_tiles)
    built = build_tile_index(np.zeros(4 * num_tiles, np.int32), 1, 4)
    assert tiles.num_partials == built.num_partials == num_tiles
    for name in ("tile_start", "object_start", "object_partials"):
        assert_array_equal(getattr(tiles, name), getattr(built, name))
        assert getattr(tiles, name).dtype == getattr(built, name).dtype
