"""Tiles against a brute-force reference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.memory.tiles import TileIndex, build_tile_index, single_object_tiles
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
