"""Results go back as they were given; large arrays of the host are worked on in pieces."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.runtime.arrays import PIECE_BYTES, Moved, give_back, in_pieces

Rows = NDArray[np.floating]

START = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [np.nan, 0.7]])
END = START.astype(np.float32)
END[0] += 1.0
END[1, 1] += 1.0  # the first column alone does not say that it has moved
EXPECTED = np.vstack([END[:2].astype(np.float64), START[2:]])


def returned(start: Rows, end: Rows, given: Rows, dtype: type) -> Rows:
    moved = Moved(start.astype(np.float32), end)
    result: Rows = give_back(moved, given, np.dtype(dtype), np.asarray, np.asarray)
    return result


PIECED = pytest.mark.parametrize("repeats", [1, PIECE_BYTES // 16], ids=["in one", "in pieces"])


class TestGiveBack:
    @PIECED
    def test_rows_that_stayed_are_those_given(self, repeats: int) -> None:
        start, end, expected = (np.tile(rows, (repeats, 1)) for rows in (START, END, EXPECTED))
        assert_array_equal(returned(start, end, start, np.float64), expected)

    @PIECED
    def test_not_so_rows_that_were_changed_when_read(self, repeats: int) -> None:
        start, end = (np.tile(rows, (repeats, 1)) for rows in (START, END))
        result = returned(start, end, start + 0.01, np.float64)
        assert_array_equal(result, end.astype(np.float64))

    def test_of_the_type_solved_in_nothing_is_restored(self) -> None:
        assert_array_equal(returned(START, END, START, np.float32), END)

    def test_one_row_without_a_second_axis(self) -> None:
        assert_array_equal(returned(START[2:3], END[2:3], START[2], np.float64), START[2:3])

    def test_no_rows(self) -> None:
        assert returned(START[:0], END[:0], START[:0], np.float64).shape == (0, 2)


@pytest.mark.gpu
def test_on_a_device_the_same() -> None:
    import cupy

    moved = Moved(cupy.asarray(START.astype(np.float32)), cupy.asarray(END))
    result = give_back(moved, cupy.asarray(START), np.dtype(np.float64), cupy.asnumpy, cupy.asarray)
    assert_array_equal(cupy.asnumpy(result), EXPECTED)


@pytest.mark.parametrize("piece_bytes", [1, 24, 1 << 20])
def test_pieces_are_all_rows_in_order(piece_bytes: int) -> None:
    rows, weights = np.arange(20.0).reshape(10, 2), np.arange(10)
    made = in_pieces(lambda *part: part, rows, weights, piece_bytes=piece_bytes)
    parts, own = zip(*made, strict=True)
    assert_array_equal(np.concatenate(parts), rows)
    assert_array_equal(np.concatenate(own), weights)


def test_an_error_of_a_piece_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        in_pieces(lambda part: 1 / int(part[0] != 7), np.arange(20), piece_bytes=8)
