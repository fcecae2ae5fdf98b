"""What is prepared of an index: equal to what NumPy finds; wrong indices are named."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import caspar
from caspar.arrays.convert import shared_backend
from caspar.arrays.shared_indices import ORDER_TILE_SIZE, SharedIndices
from caspar.errors import InputError
from caspar.memory.tiling.tiles import ORDER_TILE_SIZES, build_tile_index, build_tile_order
from caspar.options import BackendChoice
from caspar.runtime.cpu.backend import CpuBackend
from tests.arrays.test_convert import Exported
from tests.codegen.cuda.test_cuda_tiles import assert_same
from tests.harness_backend import HarnessBackend
from tests.kernels.patterns import INDEX_KINDS

INTEGERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">i8")
BEYOND_INT32 = (2**31, 2**32, 2**32 + 3, 2**62, -(2**31) - 1, -(2**32), -(2**32) + 2, -(2**62))


@pytest.fixture(params=["cpu", "cuda"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that arrays of the host are prepared for; CUDA's arrays are then NumPy's."""
    known = {BackendChoice.CUDA: HarnessBackend(), BackendChoice.CPU: CpuBackend()}
    monkeypatch.setattr("caspar.arrays.convert._BACKENDS", known)
    name: str = request.param
    return name


class CountingBackend(HarnessBackend):
    """Counts what is built."""

    def __init__(self) -> None:
        super().__init__()
        self.built: list[tuple[str, int]] = []

    def tile_order(self, index: Any, tile_size: int) -> Any:
        self.built.append(("order", tile_size))
        return super().tile_order(index, tile_size)

    def tile_index(self, index: Any, num_objects: int, tile_size: int) -> Any:
        self.built.append(("tiles", tile_size))
        return super().tile_index(index, num_objects, tile_size)

    def first_outside(self, index: Any, size: int) -> int | None:
        self.built.append(("first outside", 0))
        return super().first_outside(index, size)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> CountingBackend:
    """Stands for CUDA."""
    made = CountingBackend()
    monkeypatch.setattr("caspar.arrays.convert._BACKENDS", {BackendChoice.CUDA: made})
    return made


class TestArrays:
    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_all_integers(self, backend: str, dtype: str) -> None:
        given = np.array([4, 0, 99, 7, 4], dtype)
        for check in (True, False):
            shared = SharedIndices(given, 100, backend, check=check)
            assert shared.index.dtype == np.dtype(np.int32)
            assert shared.index.dtype.isnative
            assert_array_equal(shared.index, given)

    @pytest.mark.parametrize(
        "make",
        [list, tuple, lambda array: array[::-1][::-1], lambda array: np.repeat(array, 2)[::2]],
        ids=["list", "tuple", "view", "stride"],
    )
    def test_sequences_and_views(self, backend: str, make: Callable[[Any], Any]) -> None:
        given = np.array([4, 0, 99, 7, 4], np.int32)
        shared = SharedIndices(make(given), 100, backend)
        assert_array_equal(shared.index, given)
        assert shared.index.flags.c_contiguous

    def test_dlpack(self) -> None:
        given = np.array([4, 0, 3], np.int64)
        assert_array_equal(SharedIndices(Exported(given), 5).index, given)

    @pytest.mark.parametrize("library", ["torch", "jax.numpy"])
    def test_other_libraries(self, library: str) -> None:
        module = pytest.importorskip(library)
        given = module.asarray([4, 0, 3])
        shared = SharedIndices(given, 5)
        assert_array_equal(shared.index, [4, 0, 3])
        assert shared.backend.name == "cpu"

    def test_int32_is_shared_and_read_only(self, backend: str) -> None:
        given = np.arange(5, dtype=np.int32)
        index = SharedIndices(given, 5, backend).index
        assert np.shares_memory(index, given)
        with pytest.raises(ValueError, match="read-only"):
            index[0] = 1
        assert given.flags.writeable

    def test_what_it_is(self, backend: str) -> None:
        shared = SharedIndices([3, 1, 3], 7, backend)
        assert (len(shared), shared.shape, shared.size) == (3, (3,), 7)
        assert shared.backend is shared_backend(backend)
        assert str(shared.location) == "the host"

    @pytest.mark.parametrize("given", [[], (), np.zeros(0, np.int64), np.zeros(0, np.int32)])
    @pytest.mark.parametrize("size", [0, 3])
    def test_no_items(self, backend: str, given: Any, size: int) -> None:
        shared = SharedIndices(given, size, backend)
        assert (len(shared), shared.size) == (0, size)
        assert shared.order(256).num_partials == 0
        assert_array_equal(shared.tiles(256).object_start, np.zeros(size + 1))
        assert "no items" in repr(shared)
        assert "no items" in shared._repr_html_()


class TestTiles:
    @pytest.mark.parametrize("tile_size", ORDER_TILE_SIZES)
    @pytest.mark.parametrize("kind", list(INDEX_KINDS))
    def test_equal_those_of_numpy(self, backend: str, kind: str, tile_size: int) -> None:
        for count in (1, 257, 2049):
            index = INDEX_KINDS[kind](np.random.default_rng(0), count, count + 5)
            shared = SharedIndices(index, count + 5, backend)
            assert_same(shared.order(tile_size), build_tile_order(index, tile_size), kind)
            expected = build_tile_index(index, count + 5, tile_size)
            assert_same(shared.tiles(tile_size), expected, kind)

    def test_built_once_and_when_needed(self, counting: CountingBackend) -> None:
        shared = SharedIndices([3, 1, 3], 7, "cuda")
        assert counting.built == [("order", ORDER_TILE_SIZE)]  # it has the range too
        assert shared.order(ORDER_TILE_SIZE) is shared.order(ORDER_TILE_SIZE)
        assert shared.prepare() is shared
        assert counting.built == [("order", ORDER_TILE_SIZE)]
        assert shared.tiles(256) is shared.tiles(256)
        assert shared.prepare(256).order(256) is shared.order(256)
        assert counting.built[1:] == [("tiles", 256), ("order", 256)]

    def test_nothing_is_built_without_the_check(self, counting: CountingBackend) -> None:
        shared = SharedIndices([3, 1, 3], 7, "cuda", check=False)
        repr(shared)
        assert counting.built == []

    def test_no_order_is_built_for_the_processor(self) -> None:
        shared = SharedIndices([3, 1, 3], 7, "cpu")
        assert "pair" not in repr(shared)


class TestRange:
    @pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u8"])
    @pytest.mark.parametrize("wrong", [7, 100, -1, -100])
    def test_the_first_wrong_entry_is_named(self, backend: str, dtype: str, wrong: int) -> None:
        if wrong < 0 and dtype[0] == "u":
            wrong = 120
        index = np.zeros(1000, dtype)
        index[[600, 700]] = wrong, 110
        with pytest.raises(
            InputError,
            match=rf"SharedIndices: index {wrong} at entry 600 is out of range; there are 7 "
            "objects, so 0 to 6 are allowed",
        ):
            SharedIndices(index, 7, backend)

    @pytest.mark.parametrize("wrong", BEYOND_INT32)
    def test_numbers_that_int32_does_not_hold(self, backend: str, wrong: int) -> None:
        """Some would be right after losing their upper bits."""
        for dtype in ("i8", "u8", "u4", ">i8"):
            if not np.iinfo(dtype).min <= wrong <= np.iinfo(dtype).max:
                continue
            index = np.zeros(600, dtype)
            index[[300, 400]] = wrong, 5
            for size in (4, 2**31 - 1):
                with pytest.raises(InputError, match=f"index {wrong} at entry 300 is out of range"):
                    SharedIndices(index, size, backend)

    def test_the_highest_of_all_objects(self, backend: str) -> None:
        index = np.array([2**31 - 2, 0], np.int64)
        assert_array_equal(SharedIndices(index, 2**31 - 1, backend).index, index)

    def test_no_objects(self, backend: str) -> None:
        with pytest.raises(InputError, match="there are 0 objects, so no index is allowed"):
            SharedIndices([0], 0, backend)

    def test_unchecked(self, backend: str) -> None:
        assert_array_equal(SharedIndices([9, -1], 3, backend, check=False).index, [9, -1])


class TestRefused:
    @pytest.mark.parametrize("size", [-1, 2**31, 2.0, "3", None, True])
    def test_size(self, size: Any) -> None:
        with pytest.raises(InputError, match=r"SharedIndices: size=.* of 0 to 2,147,483,647"):
            SharedIndices([0], size)

    @pytest.mark.parametrize(
        "index",
        [np.zeros((3, 1), np.int32), np.zeros(3), np.zeros(3, bool), 3, [1.5], [None], ["1"]],
    )
    def test_index(self, index: Any) -> None:
        with pytest.raises(InputError, match=r"SharedIndices, index: .* must be \(n,\) integers"):
            SharedIndices(index, 3)

    def test_no_array(self) -> None:
        with pytest.raises(InputError, match="SharedIndices, index: list cannot be read"):
            SharedIndices([[0], [0, 1]], 3)

    def test_other_devices(self) -> None:
        with pytest.raises(InputError, match=r"SharedIndices: lives on DLPack device type 10"):
            SharedIndices(Exported(np.zeros(3, np.int32), (10, 0)), 3)
        with pytest.raises(
            InputError, match=r"SharedIndices: lives on cuda:0, but must be on .*CPU"
        ):
            SharedIndices(Exported(np.zeros(3, np.int32), (2, 0)), 3, "cpu")


class TestLook:
    def test_line(self, backend: str) -> None:
        shared = SharedIndices(np.repeat(np.arange(400), 3), 1234567, backend)
        start = "SharedIndices(1,200 items, 1,234,567 objects, "
        end = f"{shared.backend.device})"
        pair = "2.99 items a (tile, object) pair in tiles of {}, "
        if backend == "cpu":
            assert repr(shared) == start + end
            shared.tiles(1024)
        assert repr(shared) == start + pair.format(1024 if backend == "cpu" else 512) + end

    def test_table(self) -> None:
        shared = caspar.SharedIndices([2, 1, 2, 2], 5, "cpu").prepare(128)
        shared.tiles(256)
        html = shared._repr_html_()
        for text in (
            "SharedIndices(4 items, 5 objects, 2 items a (tile, object) pair in tiles of 128",
            "1 to 2",
            "2 (tile, object) pairs of 2 items",
            "256 bytes; 1 of 1 tiles are not sorted",
            f"{shared.tiles(256).num_bytes:,} bytes",
        ):
            assert text in html
        assert html.count("<tr>") == 7
