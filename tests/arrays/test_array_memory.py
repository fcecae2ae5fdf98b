"""`BlockedArray` on memory of others, and others on its memory: nothing is copied."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from caspar.arrays.blocked_array import BlockedArray
from caspar.errors import InputError
from caspar.ir.dtype import DType
from tests.arrays.blocked_cases import counting, placement, rows_of_size
from tests.support_memory import canaries_live, with_canaries


class TestWrap:
    @pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
    @pytest.mark.parametrize("dim", [1, 3, 7, 10])
    def test_shares_memory(self, dim: int, dtype: DType) -> None:
        where = placement(33, dim, dtype)
        rows = rows_of_size(33, dim, dtype)
        flat = np.full(where.size, np.nan, dtype.value)
        flat[where.where] = rows
        flat = with_canaries(flat)
        array = BlockedArray.wrap(flat, dim)
        assert array.shape == (33, dim)
        assert_array_equal(array.to_rows(), rows)
        array[3:30] = rows[:27]
        rows[3:30] = rows[:27].copy()
        assert_array_equal(flat[where.where], rows)
        assert np.isnan(flat[where.pads]).all()
        assert canaries_live(flat)

    def test_length(self) -> None:
        assert BlockedArray.wrap(np.zeros(24, np.float32), 3, 6).shape == (6, 3)
        assert BlockedArray.wrap(np.zeros(0, np.float32), 3).shape == (0, 3)

    def test_read_only_memory(self) -> None:
        flat = np.arange(8, dtype=np.float32)
        flat.flags.writeable = False
        array = BlockedArray.wrap(flat, 2)
        assert not array.is_writable
        assert array.copy().is_writable
        assert_array_equal(array[1], [2, 3])
        for value in (0.0, np.zeros((4, 2)), counting(4, 2)):
            with pytest.raises(InputError, match=r"its memory is read-only; write to a copy\(\)"):
                array[:] = value
        assert_array_equal(flat, np.arange(8))

    @pytest.mark.parametrize(
        ("flat", "dim", "length", "says"),
        [
            (np.zeros(25, np.float32), 3, None, "25 scalars; it must be a multiple of 4"),
            (np.zeros(24, np.float32), 3, 8, "24 scalars; it must be 32, which 8 objects of dim 3"),
            (np.zeros(24, np.float32), 3, -1, "length=-1"),
            (np.zeros(24, np.float32), 0, None, "dim=0"),
            (np.zeros(24, np.float16), 3, None, "dtype float16; allowed"),
            (np.zeros(24, np.int32), 3, None, "dtype int32; allowed"),
            (np.zeros(24, ">f4"), 3, None, "dtype >f4; allowed"),
            (np.zeros((6, 4), np.float32), 3, None, "shape (6, 4) with strides (4, 1)"),
            (np.zeros(24, np.float32)[::2], 3, None, "shape (12,) with strides (2,)"),
            (np.zeros(33, np.uint8)[1:].view("f4"), 1, None, "begins 1 bytes after a multiple"),
        ],
    )
    def test_refused(self, flat: Any, dim: int, length: int | None, says: str) -> None:
        with pytest.raises(InputError) as error:
            BlockedArray.wrap(flat, dim, length)
        assert says in str(error.value)


def rows_with_strides(shape: tuple[int, int], row: int, column: int, dtype: str) -> Any:
    """A view of numbers with these strides in scalars."""
    base = np.arange(shape[0] * row + shape[1] * column + 4, dtype=dtype)
    strides = (row * base.itemsize, column * base.itemsize)
    return np.lib.stride_tricks.as_strided(base, shape, strides)


class TestFromDlpack:
    @pytest.mark.parametrize(
        ("dtype", "dim", "row"),
        [
            ("float32", 1, 1),
            ("float32", 2, 2),
            ("float32", 3, 4),
            ("float32", 4, 4),
            ("float64", 1, 1),
            ("float64", 2, 2),
        ],
    )
    @pytest.mark.parametrize("length", [0, 1, 33])
    def test_shares_memory(self, dtype: str, dim: int, row: int, length: int) -> None:
        rows = rows_with_strides((length, dim), row, 1, dtype)
        array = BlockedArray.from_dlpack(rows)
        assert array.shape == (length, dim)
        assert_array_equal(array.to_rows(), rows)
        array[:] = -1.0
        assert_array_equal(rows, np.full((length, dim), -1.0))
        back = np.from_dlpack(array)
        assert back.shape == (length, dim)
        back[...] = 5.0
        assert_array_equal(array.to_rows(), np.full((length, dim), 5.0))
        assert_array_equal(rows, np.full((length, dim), 5.0))

    def test_padding_is_left_alone(self) -> None:
        four = np.arange(40, dtype=np.float32).reshape(10, 4)
        array = BlockedArray.from_dlpack(four[:, :3])
        array[2:5] = np.zeros((3, 3))
        array[5:7] = counting(2, 3)
        array[7] = 1.0
        assert_array_equal(four[:, 3], np.arange(3, 40, 4))

    def test_one_dimension(self) -> None:
        array = BlockedArray.from_dlpack(np.arange(5.0))
        assert array.shape == (5, 1)

    def test_a_stride_that_is_never_taken(self) -> None:
        for rows in (
            rows_with_strides((1, 2), 7, 1, "float32"),
            rows_with_strides((1, 1), 9, 5, "float32"),
            rows_with_strides((0, 3), 3, 1, "float32"),
            rows_with_strides((4, 1), 1, 5, "float32"),
        ):
            assert_array_equal(BlockedArray.from_dlpack(rows).to_rows(), rows)

    @pytest.mark.parametrize(
        ("rows", "says"),
        [
            (
                rows_with_strides((5, 3), 3, 1, "float32"),
                "shape (5, 3) and float32 with strides (3, 1) in scalars; they must be (4, 1)",
            ),
            (rows_with_strides((1, 3), 3, 1, "float32"), "strides (3, 1) in scalars; they must be"),
            (rows_with_strides((5, 4), 5, 1, "float32"), "strides (5, 1) in scalars; they must be"),
            (rows_with_strides((5, 2), 1, 5, "float64"), "strides (1, 5) in scalars; they must be"),
            (rows_with_strides((5, 2), 2, 3, "float64"), "strides (2, 3) in scalars; they must be"),
            (rows_with_strides((5, 1), 2, 1, "float64"), "strides (2, 1) in scalars; they must be"),
            (
                rows_with_strides((5, 10), 10, 1, "float32"),
                "strides (10, 1) in scalars; no strides describe its chunks 4+4+2",
            ),
            (rows_with_strides((5, 3), 4, 1, "float64"), "no strides describe its chunks 2+1"),
            (np.zeros((5, 2), np.int32), "dtype int32; allowed are float32 and float64"),
            (np.zeros((5, 2), np.float16), "dtype float16"),
            (np.zeros((5, 2, 2)), "shape (5, 2, 2)"),
        ],
    )
    def test_refused(self, rows: Any, says: str) -> None:
        with pytest.raises(InputError) as error:
            BlockedArray.from_dlpack(rows)
        assert says in str(error.value)
        if "strides" in says:
            assert "BlockedArray.from_rows" in str(error.value)


class TestToOtherLibraries:
    def test_more_than_one_chunk(self) -> None:
        array = counting(3, 6)
        with pytest.raises(BufferError, match=r"chunks=4\+2.*\.chunks, or \.to_rows\(\)"):
            np.from_dlpack(array)

    def test_a_window(self) -> None:
        array = counting(9, 3)
        assert_array_equal(np.from_dlpack(array[2:4]), [[6, 7, 8], [9, 10, 11]])
        assert array.__dlpack_device__() == (1, 0)

    def test_numpy(self) -> None:
        array = counting(3, 6)
        assert_array_equal(np.asarray(array), np.arange(18).reshape(3, 6))
        assert np.asarray(array).dtype == np.float32
        assert np.asarray(array, np.float64).dtype == np.float64
        assert_array_equal(np.sin(np.array(array[1:2])), np.sin([[6, 7, 8, 9, 10, 11]], dtype="f4"))

    def test_numpy_without_a_copy(self) -> None:
        array = counting(3, 3)
        np.asarray(array, copy=False)[1, 2] = -1.0
        assert array[1][2] == -1.0
        for other, dtype in ((counting(3, 6), None), (array, np.float64)):
            with pytest.raises(ValueError, match="without a copy"):
                np.asarray(other, dtype, copy=False)


class TestOverlaps:
    def test_views_of_one_array(self) -> None:
        array = counting(10, 5)
        assert array.overlaps(array)
        assert array[2:5].overlaps(array[4:6])
        assert not array[2:5].overlaps(array[5:6])
        assert not array[2:5].overlaps(array[3:3])
        assert not array.overlaps(array.copy())

    def test_other_layouts_of_one_memory(self) -> None:
        flat = np.zeros(48, np.float32)
        fives, fours = BlockedArray.wrap(flat[:40], 5), BlockedArray.wrap(flat, 4)
        assert fives.overlaps(fours)
        assert fours.overlaps(fives)
        assert not fives.overlaps(fours[10:])
        assert not fives[:4].overlaps(fours[4:8])  # between its chunks
        assert fives[:4].overlaps(fours[8:9])
        assert not fives[4:4].overlaps(fours)

    def test_is_same_as(self) -> None:
        array = counting(10, 4)
        assert array.is_same_as(BlockedArray.wrap(array.buffer, 4))
        assert array[1:3].is_same_as(array[1:][:2])
        assert not array[1:3].is_same_as(array[1:4])
        assert not array[1:3].is_same_as(array[2:4])
        assert not array.is_same_as(BlockedArray.wrap(array.buffer, 2))
        assert not array.is_same_as(array.copy())
