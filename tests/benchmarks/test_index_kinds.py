"""Each kind of index has the statistics it is named for."""

import numpy as np
import pytest

from benchmarks.index_kinds import KINDS, MULTIPLICITY, NUM_CAMERAS, Index, IndexKind

NUM_ITEMS = 100_003


def _kind(name: str) -> IndexKind:
    (found,) = (kind for kind in KINDS if kind.name == name)
    return found


def _distinct_of_tiles(index: Index) -> float:
    tiles = index[: len(index) // 256 * 256].reshape(-1, 256)
    return float(np.mean([len(np.unique(tile)) for tile in tiles]))


@pytest.mark.parametrize("num_items", [1, 7, NUM_ITEMS])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_item_names_an_object(kind: IndexKind, num_items: int) -> None:
    index = kind.index(num_items)
    assert index.dtype == np.int32
    assert index.shape == (num_items,)
    assert index.min() >= 0
    assert index.max() < kind.num_objects(num_items)
    assert np.array_equal(index, kind.index(num_items))


@pytest.mark.parametrize("name", ["permutation", "reversed"])
def test_each_object_once(name: str) -> None:
    index = _kind(name).index(NUM_ITEMS)
    assert np.array_equal(np.sort(index), np.arange(NUM_ITEMS))
    assert not np.array_equal(index, np.arange(NUM_ITEMS))


def test_points_come_in_runs() -> None:
    index = _kind("points").index(NUM_ITEMS)
    assert np.all(np.diff(index) >= 0)
    assert np.all(np.bincount(index)[:-1] == MULTIPLICITY)


def test_random_ones_differ_with_the_seed() -> None:
    kind = _kind("random of 1,000")
    assert not np.array_equal(kind.index(NUM_ITEMS, seed=0), kind.index(NUM_ITEMS, seed=1))


def test_cameras_are_unevenly_busy_and_windows_local() -> None:
    cameras = _kind("cameras").index(10 * NUM_ITEMS)
    counts = np.bincount(cameras, minlength=NUM_CAMERAS)
    uniform = np.bincount(_kind("random of 13,682").index(10 * NUM_ITEMS), minlength=NUM_CAMERAS)
    assert counts.max() > 5 * counts.mean() > 2 * uniform.max()
    steps = np.diff(cameras) % NUM_CAMERAS
    assert np.mean((steps >= 1) & (steps < 20)) > 0.75


def test_near_points_share_cameras() -> None:
    """Real data lies between the two."""
    apart = _distinct_of_tiles(_kind("cameras").index(10 * NUM_ITEMS))
    near = _distinct_of_tiles(_kind("cameras, near points").index(30 * NUM_ITEMS))
    assert apart > 240
    assert near < 150
