"""`BlockedArray` on the processor: layout, making, indexing, partial updates, text."""

from dataclasses import FrozenInstanceError
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from caspar.arrays.blocked_array import BlockedArray
from caspar.errors import InputError
from caspar.ir.dtype import DType
from tests.arrays.blocked_cases import (
    DIMS,
    SIZES,
    check_round_trip,
    check_window,
    counting,
    memory,
    placement,
)

both = pytest.mark.parametrize(
    "dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value
)


@both
@pytest.mark.parametrize("dim", DIMS)
def test_round_trip(dim: int, dtype: DType) -> None:
    for length in SIZES:
        check_round_trip("cpu", length, dim, dtype)


@both
@pytest.mark.parametrize("dim", DIMS)
def test_window(dim: int, dtype: DType) -> None:
    for length in SIZES:
        check_window("cpu", length, dim, dtype)


class TestMaking:
    @both
    def test_empty_and_zeros(self, dtype: DType) -> None:
        array = BlockedArray.empty(5, 7, dtype.value, "cpu")
        assert (array.shape, array.ndim, array.scalar) == ((5, 7), 2, dtype)
        assert (array.capacity, array.first) == (5, 0)
        assert (array.device, array.xp) == ("cpu", np)
        length: Any = np.int64(5)
        zeros = BlockedArray.zeros(length, 7, dtype, "cpu")
        assert_array_equal(zeros.buffer, np.zeros(placement(5, 7, dtype).size))

    def test_frozen(self) -> None:
        array = BlockedArray.zeros(2, 3, backend="cpu")
        with pytest.raises(FrozenInstanceError):
            array.length = 1  # type: ignore[misc]

    def test_compares_by_identity(self) -> None:
        array = counting(2, 2)
        assert array == array
        assert array != array.copy()
        assert len({array, array}) == 1

    @pytest.mark.parametrize(
        ("given", "dtype", "expected"),
        [
            (np.ones((2, 3), np.float64), None, "float64"),
            (np.ones((2, 3), np.longdouble), None, "float64"),
            (np.ones((2, 3), np.float16), None, "float32"),
            (np.ones((2, 3), np.int64), None, "float32"),
            (np.ones((2, 3), ">f8"), None, "float64"),
            ([[1.0, 2.0]], None, "float64"),
            (np.ones((2, 3), np.float32), "float64", "float64"),
            (np.ones((2, 3), np.float64), np.float32, "float32"),
        ],
    )
    def test_dtype_of_rows(self, given: Any, dtype: Any, expected: str) -> None:
        array = BlockedArray.from_rows(given, dtype)
        assert array.dtype == np.dtype(expected)
        assert_array_equal(array.to_numpy(), np.asarray(given))

    def test_one_column(self) -> None:
        array = BlockedArray.from_rows(np.arange(5, dtype=np.float32))
        assert array.shape == (5, 1)
        assert_array_equal(array.to_rows(), [[0], [1], [2], [3], [4]])

    def test_rows_are_not_shared(self) -> None:
        rows = np.ones((3, 4), np.float32)
        array = BlockedArray.from_rows(rows)
        rows[...] = 0.0
        assert_array_equal(array.to_rows(), np.ones((3, 4)))

    @pytest.mark.parametrize(
        ("length", "dim", "dtype", "says"),
        [
            (-1, 3, "float32", "length=-1; it must be an integer from 0 to 2,147,483,647"),
            (2**31, 3, "float32", "length=2147483648"),
            (2.0, 3, "float32", "length=2.0"),
            (True, 3, "float32", "length=True"),
            (2, 0, "float32", "dim=0; it must be an integer from 1 to"),
            (2, "3", "float32", "dim='3'"),
            (2, 3, "float16", "dtype float16; allowed are float32 and float64"),
            (2, 3, np.int32, "dtype <class 'numpy.int32'>"),
        ],
    )
    def test_refused(self, length: Any, dim: Any, dtype: Any, says: str) -> None:
        for make in (BlockedArray.empty, BlockedArray.zeros):
            with pytest.raises(InputError) as error:
                make(length, dim, dtype, "cpu")
            assert says in str(error.value)

    def test_rows_refused(self) -> None:
        for given in (np.zeros((2, 3, 3)), np.zeros((2, 0)), [["a"]]):
            with pytest.raises(InputError, match=r"^BlockedArray\.from_rows: "):
                BlockedArray.from_rows(given)
        with pytest.raises(InputError, match=r"use copy\(\)"):
            BlockedArray.from_rows(counting(2, 3))
        with pytest.raises(InputError, match="dtype int32; allowed are"):
            BlockedArray.from_rows(np.zeros((2, 3)), "int32")


class TestIndexing:
    @pytest.mark.parametrize(
        "key",
        [
            slice(None),
            slice(2, 5),
            slice(-3, None),
            slice(None, -7),
            slice(-4, -1),
            slice(5, 2),
            slice(8, 100),
            slice(100, 200),
            slice(np.int32(1), 3, 1),
        ],
        ids=str,
    )
    def test_slices(self, key: slice) -> None:
        array = counting(10, 5)
        expected = np.arange(50, dtype=np.float32).reshape(10, 5)
        assert_array_equal(array[key].to_rows(), expected[key])
        inner = array[1:-1][key]
        assert inner.buffer is array.buffer
        assert_array_equal(inner.to_rows(), expected[1:-1][key])

    @pytest.mark.parametrize("number", [0, 9, -1, -10, np.int64(3)])
    def test_numbers(self, number: int) -> None:
        array = counting(10, 5)
        row = array[number]
        assert_array_equal(row, np.arange(50).reshape(10, 5)[number])
        assert_array_equal(array[:][number], row)
        row[...] = -1.0
        assert array[number][0] != -1.0

    def test_iterates_over_rows(self) -> None:
        assert [list(row) for row in counting(3, 2)] == [[0, 1], [2, 3], [4, 5]]
        assert list(counting(0, 2)) == []

    @pytest.mark.parametrize(
        ("key", "says"),
        [
            (10, "BlockedArray(10, 5)[10]: out of range"),
            (-11, "[-11]: out of range"),
            (slice(None, None, 2), "[::2]: a slice must have step 1"),
            (slice(5, 2, -1), "[5:2:-1]: a slice must have step 1"),
            (slice(0, 5, 0), "[0:5:0]: a slice must have step 1"),
            ((1, 2), "[(1, 2)]: only one integer or one slice is allowed"),
            ([1, 2], "[[1, 2]]: only one integer"),
            (1.0, "[1.0]: only one integer"),
            (True, "[True]: only one integer"),
            (None, "[None]: only one integer"),
            (..., "[Ellipsis]: only one integer"),
            ("x" * 99, "[str]: only one integer"),
            (np.arange(10_000), "[ndarray of shape (10000,)]: only one integer"),
            (np.zeros((10, 5), bool), "[ndarray of shape (10, 5)]: only one integer"),
            (list(range(10_000)), "[list of 10,000]: only one integer"),
            ([1, 2], "use to_rows()[index], or a kernel with ReadIndexed"),
        ],
    )
    def test_refused(self, key: Any, says: str) -> None:
        array = counting(10, 5)
        with pytest.raises(InputError) as error:
            array[key]
        assert says in str(error.value)
        with pytest.raises(InputError) as error:
            array[key] = 0.0
        assert says in str(error.value)
        assert_array_equal(array.to_rows(), np.arange(50).reshape(10, 5))


class TestAssigning:
    @pytest.mark.parametrize(
        "value",
        [
            np.ones((3, 5), np.int16),
            np.ones((5, 3), np.float64).T,
            [[1.0] * 5] * 3,
            1,
            1.0,
            np.float16(1),
            np.array(1.0),
            Fraction(1),
        ],
    )
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_values(self, value: Any, dtype: str) -> None:
        array = counting(10, 5, dtype)
        array[4:7] = value
        expected = np.arange(50.0).reshape(10, 5)
        expected[4:7] = 1.0
        assert_array_equal(array.to_rows(), expected)

    @pytest.mark.parametrize("source", ["float32", "float64"])
    @pytest.mark.parametrize("target", ["float32", "float64"])
    def test_blocked_arrays(self, source: str, target: str) -> None:
        array = counting(10, 5, target)
        array[4:7] = counting(9, 5, source)[1:4]
        expected = np.arange(50).reshape(10, 5)
        expected[4:7] = np.arange(5, 20).reshape(3, 5)
        assert_array_equal(array.to_rows(), expected)

    def test_one_object(self) -> None:
        array = counting(4, 5)
        array[1] = [1, 2, 3, 4, 5]
        array[2] = np.full((1, 5), 7.0)
        array[-1] = 9.0
        assert_array_equal(array.to_rows(), [range(5), range(1, 6), [7] * 5, [9] * 5])
        column = counting(3, 1)
        column[1] = np.array([5.0])
        column[2:] = np.array([6.0])
        assert_array_equal(column.to_rows(), [[0], [5], [6]])

    def test_nothing(self) -> None:
        array = counting(3, 5)
        array[1:1] = np.zeros((0, 5))
        array[3:] = 1.0
        array[2:1] = array[:0]
        assert_array_equal(array.to_rows(), np.arange(15).reshape(3, 5))

    def test_backwards_onto_itself(self) -> None:
        array = counting(6, 5)
        array[:4] = array[2:]
        expected = np.arange(30).reshape(6, 5)
        expected[:4] = expected[2:].copy()
        assert_array_equal(array.to_rows(), expected)

    def test_onto_another_layout_of_its_memory(self) -> None:
        flat = np.arange(44, dtype=np.float32)
        source, target = BlockedArray.wrap(flat[:40], 5), BlockedArray.wrap(flat[4:], 5)
        expected = source.to_numpy()
        target[:] = source
        assert_array_equal(target.to_rows(), expected)

    @pytest.mark.parametrize(
        ("value", "says"),
        [
            (np.zeros((2, 5)), "BlockedArray(10, 5)[4:7]: shape (2, 5); expected (3, 5)"),
            (np.zeros((1, 5)), "shape (1, 5); expected (3, 5)"),
            (np.zeros((3, 4)), "shape (3, 4); expected (n, 5)"),
            (np.zeros(5), "shape (5,); expected (n, 5)"),
            (np.zeros((3, 1, 5)), "shape (3, 1, 5)"),
            (np.zeros((3, 5), bool), "dtype bool"),
            (True, "dtype bool"),
            (1j, "dtype complex128"),
            (None, "dtype object"),
            ("a", "dtype <U1"),
        ],
    )
    def test_refused(self, value: Any, says: str) -> None:
        array = counting(10, 5)
        with pytest.raises(InputError) as error:
            array[4:7] = value
        assert says in str(error.value)
        assert_array_equal(array.to_rows(), np.arange(50).reshape(10, 5))

    @pytest.mark.parametrize(("length", "dim"), [(2, 5), (3, 4)])
    def test_blocked_arrays_refused(self, length: int, dim: int) -> None:
        with pytest.raises(InputError, match=rf"shape \({length}, {dim}\); expected \(3, 5\)"):
            counting(10, 5)[4:7] = counting(length, dim)


class TestViews:
    def test_text(self) -> None:
        array = BlockedArray.from_rows(np.arange(14, dtype=np.float32).reshape(2, 7) / 4)
        assert repr(array) == (
            "BlockedArray(shape=(2, 7), dtype=float32, device=cpu, chunks=4+3)\n"
            "[[0.   0.25 0.5  ... 1.   1.25 1.5 ]\n"
            " [1.75 2.   2.25 ... 2.75 3.   3.25]]"
        )

    def test_text_of_many_rows(self) -> None:
        array = counting(100_000, 2, "float64")
        assert repr(array).splitlines()[1:] == [
            "[[0.00000e+00 1.00000e+00]",
            " [2.00000e+00 3.00000e+00]",
            " [4.00000e+00 5.00000e+00]",
            " ...",
            " [1.99994e+05 1.99995e+05]",
            " [1.99996e+05 1.99997e+05]",
            " [1.99998e+05 1.99999e+05]]",
        ]

    def test_text_of_nothing(self) -> None:
        assert repr(BlockedArray.zeros(0, 3, backend="cpu")) == (
            "BlockedArray(shape=(0, 3), dtype=float32, device=cpu, chunks=3)\n[]"
        )

    @pytest.mark.parametrize(("length", "rows"), [(0, 0), (6, 6), (7, 7), (1000, 7)])
    @pytest.mark.parametrize(("dim", "columns"), [(1, 1), (12, 12), (13, 13), (40, 13)])
    def test_table(self, length: int, rows: int, dim: int, columns: int) -> None:
        html = counting(length, dim)._repr_html_()
        assert html.count("<tr>") == 1 + rows
        assert html.count("<th>") == 1 + columns + rows
        assert html.count("<td>") == rows * columns
        assert f"shape=({length}, {dim})" in html
        if length > 0:
            assert f"<th>{length - 1}</th>" in html
            assert f"<td>{length * dim - 1:.6g}</td></tr></table>" in html
        assert ("…" in html) == (length > 6 or dim > 12)


def test_pads_of_new_memory_are_never_read() -> None:
    """Whatever lies in a pad changes no value."""
    array = counting(5, 7)
    where = placement(5, 7, DType.FLOAT32)
    array.buffer[where.pads] = np.nan
    assert_array_equal(array.to_rows(), np.arange(35).reshape(5, 7))
    array[0:2] = array[2:4]
    assert np.isnan(memory(array)[where.pads]).all()
