"""Packed tiles: as one would do it by hand, and nearly full."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.memory.tiling.node_tiles import LOOKAHEAD, TILES_OF_CHUNK, pack_tiles

Sizes = list[int]


def by_hand(sizes: Sizes, tile_size: int) -> list[list[int]]:
    """Tiles of nodes, one after the other; a chunk ends with its last tile."""
    chunk_size = TILES_OF_CHUNK * tile_size
    begins = np.cumsum([0, *sizes])[:-1] // chunk_size
    tiles = []
    for chunk in np.unique(begins):
        left = np.flatnonzero(begins == chunk).tolist()
        while len(left) > 0:
            tile: list[int] = []
            room, looked_at = tile_size, 0
            for node in list(left):
                if looked_at > 0 or sizes[node] > room:
                    looked_at += 1
                if looked_at > LOOKAHEAD:
                    break
                if sizes[node] <= room:
                    room -= sizes[node]
                    tile.append(node)
                    left.remove(node)
            tiles.append(tile)
    return tiles


def packed(sizes: Sizes, tile_size: int, long: Sizes) -> list[list[int]]:
    """What `pack_tiles` makes of them, with long nodes ahead."""
    every = np.array([*long, *sizes], dtype=np.int64)
    order, start = np.arange(len(every)), np.concatenate([[0], np.cumsum(every)])
    first = pack_tiles(order, start, len(long), tile_size)
    assert_array_equal(start, np.concatenate([[0], np.cumsum(every[order])]))
    assert_array_equal(order[: len(long)], np.arange(len(long)))
    ends = [*first.tolist(), len(every)]
    assert ends[0] == len(long)
    return [(order[begin:end] - len(long)).tolist() for begin, end in pairwise(ends)]


@given(st.lists(st.integers(1, 8), max_size=300), st.integers(8, 40), st.integers(0, 3))
@example([8, 8, 7] * 30 + [1] * 40, 8, 0)
@example([5] * (LOOKAHEAD + 3) + [1, 2, 3], 8, 1)
def test_as_by_hand(sizes: Sizes, tile_size: int, num_long: int) -> None:
    assert packed(sizes, tile_size, [tile_size + 1] * num_long) == by_hand(sizes, tile_size)


@pytest.mark.parametrize("largest", [2, 5, 16])
def test_many_chunks(largest: int) -> None:
    count = 3 * TILES_OF_CHUNK * 16 // largest
    sizes = np.random.default_rng(largest).integers(1, largest + 1, count).tolist()
    assert packed(sizes, 16, [40]) == by_hand(sizes, 16)


def test_a_node_may_wait_for_several_tiles() -> None:
    tiles = packed([6, 6, 6, 2, 2, 2], 8, [])
    assert tiles == [[0, 3], [1, 4], [2, 5]]


def test_what_stands_too_far_away_is_left_there() -> None:
    sizes = [5, 5, *[4] * (LOOKAHEAD - 1), 3]
    assert packed(sizes, 8, [])[0] == [0]
    assert packed([*sizes[:-2], 3], 8, [])[0] == [0, LOOKAHEAD]


def track_lengths(count: int) -> NDArray[np.int64]:
    """Half of the nodes have two items, the others a geometric tail."""
    generator = np.random.default_rng(3)
    tail = 2 + generator.geometric(1 / 9, count)
    return np.where(generator.random(count) < 0.5, 2, np.minimum(tail, 256))


def test_tiles_are_nearly_full() -> None:
    """1 % of holes, where 3 % would be left by tiles of what follows each other."""
    sizes = track_lengths(40_000)
    num_items = int(sizes.sum())
    tiles = packed(sizes.tolist(), 256, [])
    assert 256 * len(tiles) < 1.01 * num_items
    in_order, left = 1, 256
    for size in sizes.tolist():
        in_order, left = (in_order, left - size) if size <= left else (in_order + 1, 256 - size)
    assert 256 * in_order > 1.025 * num_items
