"""How many blocks share node tiles, where a block may take several one after the other."""

MOST_TILES = 6
"""Tiles that a block takes one after the other, at most: it has the indices of the next before it
is done with one, and fewer blocks have to begin. Iterations of PCG on bundle adjustment, H200, us,
with 2, 3, 4 and 6 turns of blocks, and in parentheses with stretches of 3: 3 M observations 76.1,
75.7, 74.9 and 75.5 recomputed (76.0), 100.5, 99.1, 96.1 and 95.6 stored (94.9); 5.0 M stored with
2, 3, 5 and 7 turns 156, 159, 152 and 149 (152 with stretches of 8)."""

LEAST_TURNS = 2
"""Blocks that a multiprocessor has one after the other in each of its places, at least, where not
all tiles are begun at the same time. With 1, 2 and 3, and in parentheses with stretches of two,
whose last turn is not full: 0.7 M observations 27.4, 20.3 and 21.0 recomputed (21.4), 33.0, 19.3
and 19.4 with float16 (19.9), 32.4, 23.1 and 23.6 stored (24.2); 1.3 M with 2, 3 and 4: 33.1, 34.4
and 33.9 recomputed (34.6), 31.2, 29.0 and 29.6 with float16 (30.1)."""


def num_shares(num_tiles: int, num_resident: int) -> int:
    """Blocks that tiles are dealt to evenly, so that the last ones to run are as many as the rest.

    Args:
        num_tiles: Tiles.
        num_resident: Blocks that run at the same time.
    """
    if num_tiles <= num_resident:
        return num_tiles
    if num_tiles <= 2 * num_resident:
        # two for each block: all run at the same time, and a loop may be one kernel
        return -(-num_tiles // 2)
    turns = -(-num_tiles // (MOST_TILES * num_resident))
    return max(turns, LEAST_TURNS) * num_resident
