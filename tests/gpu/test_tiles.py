"""Tiles and orders built on a device equal those built by NumPy, array by array."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import caspar
from caspar.errors import InputError
from caspar.memory.tiling.tiles import (
    ORDER_TILE_SIZES,
    TileIndex,
    TileOrder,
    build_tile_index,
    build_tile_order,
)
from tests.arrays.test_shared_indices import BEYOND_INT32
from tests.kernels.patterns import INDEX_KINDS
from tests.memory.tiling.test_tiles import FAR_APART

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

SIZES = (0, 1, 31, 32, 33, 255, 256, 257, 1023, 1025, 10_003)
MANY = 200_003
tile_sizes = pytest.mark.parametrize("tile_size", ORDER_TILE_SIZES)


def cuda_backend() -> Any:
    return pytest.importorskip("caspar.runtime.cuda.backend").CudaBackend()


def assert_same(made: TileOrder | TileIndex, expected: TileOrder | TileIndex, what: str) -> None:
    for field in fields(expected):
        wanted, found = getattr(expected, field.name), getattr(made, field.name)
        if isinstance(wanted, np.ndarray):
            assert found.dtype == wanted.dtype
            found = cupy.asnumpy(found)
        assert np.array_equal(found, wanted), f"{what}: {field.name}"


def check(backend: Any, index: NDArray[np.int32], num_objects: int, tile_size: int) -> None:
    what = f"{len(index)} items, tiles of {tile_size}"
    with backend.scope():
        here = backend.upload(index)
        made = backend.tile_index(here, num_objects, tile_size)
        assert_same(made, build_tile_index(index, num_objects, tile_size), what)
        assert_same(backend.tile_order(here, tile_size), build_tile_order(index, tile_size), what)


@tile_sizes
@pytest.mark.parametrize("kind", list(INDEX_KINDS))
def test_equal_those_of_numpy(kind: str, tile_size: int) -> None:
    backend, rng = cuda_backend(), np.random.default_rng(1)
    for count in (*SIZES, MANY):
        check(backend, INDEX_KINDS[kind](rng, count, count + 2), count + 2, tile_size)


@tile_sizes
@pytest.mark.parametrize("num_objects", [1, 40, 2**16, 2**16 + 1, 1_000_000])
def test_few_and_many_objects(num_objects: int, tile_size: int) -> None:
    """Partials of up to 65,536 objects are grouped by numbers of 16 bits."""
    index = np.random.default_rng(2).integers(0, num_objects, MANY).astype(np.int32)
    index[[5, 100_000]] = num_objects - 1
    check(cuda_backend(), index, num_objects, tile_size)


@tile_sizes
@pytest.mark.parametrize("name", sorted(FAR_APART))
def test_numbers_that_lie_far_apart(name: str, tile_size: int) -> None:
    backend = cuda_backend()
    for count in (1, 33, 1025, MANY):
        index = FAR_APART[name](np.random.default_rng(count), count)
        with backend.scope():
            made = backend.tile_order(backend.upload(index), tile_size)
            assert_same(made, build_tile_order(index, tile_size), name)


@tile_sizes
def test_an_index_that_is_not_aligned(tile_size: int) -> None:
    backend = cuda_backend()
    whole = np.random.default_rng(0).integers(0, 300, MANY).astype(np.int32)
    with backend.scope():
        for offset in range(1, 5):
            here = backend.upload(whole)[offset:]
            made = backend.tile_index(here, 300, tile_size)
            assert_same(made, build_tile_index(whole[offset:], 300, tile_size), f"{offset}")


class TestSharedIndices:
    @pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
    def test_all_integers(self, dtype: str) -> None:
        index = np.random.default_rng(0).integers(0, 100, MANY).astype(dtype)
        for given, backend in ((index, "cuda"), (cupy.asarray(index), None)):
            shared = caspar.SharedIndices(given, 100, backend)
            assert shared.location.kind == "cuda"
            assert shared.index.dtype == np.int32
            assert np.array_equal(cupy.asnumpy(shared.index), index)
            expected = build_tile_index(index.astype(np.int32), 100, 256)
            assert_same(shared.tiles(256), expected, dtype)
            assert "pair in tiles of 256" in repr(shared)

    def test_int32_is_not_copied(self) -> None:
        index = cupy.arange(1000, dtype=cupy.int32)
        assert caspar.SharedIndices(index, 1000).index.data.ptr == index.data.ptr
        odd = caspar.SharedIndices(index[1:], 1000)
        assert odd.index.data.ptr == index.data.ptr + 4
        assert odd.order(512).num_partials == 999

    @pytest.mark.parametrize("wrong", [*BEYOND_INT32, 100, -1])
    def test_the_first_wrong_entry_is_named(self, wrong: int) -> None:
        for dtype in ("i8", "u8", "u4", "i4"):
            if not np.iinfo(dtype).min <= wrong <= np.iinfo(dtype).max:
                continue
            index = cupy.zeros(MANY, dtype)
            index[700] = wrong
            index[800] = 101
            with pytest.raises(InputError, match=f"index {wrong} at entry 700 is out of range"):
                caspar.SharedIndices(index, 100)

    def test_no_items(self) -> None:
        shared = caspar.SharedIndices(cupy.zeros(0, cupy.int64), 3)
        assert shared.order(512).num_partials == 0
        assert np.array_equal(cupy.asnumpy(shared.tiles(256).object_start), np.zeros(4))

    def test_torch(self) -> None:
        torch = pytest.importorskip("torch")
        index = torch.arange(1000, device="cuda").flip(0)
        shared = caspar.SharedIndices(index, 1000)
        assert np.array_equal(cupy.asnumpy(shared.index), np.arange(1000)[::-1])
        assert shared.order(512).num_unsorted_tiles == 2

    def test_an_index_of_the_device_for_the_processor(self) -> None:
        with pytest.raises(
            InputError, match=r"SharedIndices: lives on cuda:0, but must be on .*CPU"
        ):
            caspar.SharedIndices(cupy.zeros(3, cupy.int32), 3, "cpu")
