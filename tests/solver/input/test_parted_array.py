"""Rows in parts: what is picked, cut, joined."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from caspar.runtime.cpu.member import CpuMember
from caspar.solver.input.parted_array import (
    PartedArray,
    every_row,
    joined,
    on_host,
    pieces_of,
    placed,
)
from caspar.solver.input.parts import INDEX, is_in_parts

MEMBERS = CpuMember(), CpuMember()


def parted(whole: np.ndarray, places: list[int]) -> PartedArray:
    parts = tuple(np.split(whole, places))
    return PartedArray(parts, tuple(MEMBERS[number % 2] for number in range(len(parts))))


WHOLE = np.arange(20.0).reshape(10, 2)


@given(
    places=st.lists(st.integers(0, 10), max_size=4).map(sorted),
    start=st.integers(0, 10),
    size=st.integers(0, 10),
)
def test_ranges_are_those_of_the_whole(places: list[int], start: int, size: int) -> None:
    array, rows = parted(WHOLE, places), slice(start, min(start + size, 10))
    found = array.range(rows)
    assert_array_equal(found.on_host(), WHOLE[rows])
    assert all(np.shares_memory(part, WHOLE) for part in found.parts if part.size > 0)
    pieces = pieces_of(rows, array.offsets)
    assert sum(piece.stop - piece.start for piece in pieces) == len(WHOLE[rows])
    assert_array_equal(array.range(slice(None)).on_host(), WHOLE)


def test_it_is_like_the_whole() -> None:
    array = parted(WHOLE, [3, 3, 9])
    assert array.shape == (10, 2)
    assert array.nbytes == WHOLE.nbytes
    assert array.offsets == [0, 3, 3, 9, 10]
    assert array.astype(np.float32).dtype == np.float32
    assert_array_equal(array.map(lambda part: part + 1).on_host(), WHOLE + 1)
    assert_array_equal(joined(MEMBERS[1], array), WHOLE)
    assert_array_equal(on_host(MEMBERS[0], array), WHOLE)
    assert_array_equal(every_row(MEMBERS[0], array, 4), WHOLE[[0, 3, 7, 9]])
    assert_array_equal(every_row(MEMBERS[0], WHOLE, 4), WHOLE[::4])
    assert [len(part) for part, _ in placed(array, MEMBERS[0])] == [3, 0, 6, 1]
    cut = array.cut(WHOLE * 2)
    assert [len(part) for part in cut.parts] == [3, 0, 6, 1]
    assert_array_equal(cut.on_host(), WHOLE * 2)
    picked = array.pick([np.array([0, 2]), slice(0, 0), slice(1, 2), slice(0, 0)])
    assert_array_equal(picked.on_host(), WHOLE[[0, 2, 4]])
    assert len(picked.parts) == 2


def test_a_part_that_has_all_is_not_copied() -> None:
    array = parted(WHOLE, [0, 10])
    assert joined(MEMBERS[0], array) is array.parts[1]


def test_it_is_no_array() -> None:
    with pytest.raises((TypeError, ValueError)):
        np.asarray(parted(WHOLE, [3]), dtype=np.float64)


@pytest.mark.parametrize(
    ("given_array", "dim", "matrix_shape", "wanted"),
    [
        ([np.zeros((3, 2)), np.zeros((4, 2))], 2, (), True),
        ((np.zeros((3, 2)),), 2, (), True),
        ([np.zeros(2), np.zeros(2)], 2, (), False),
        ([[0.0, 1.0], [2.0, 3.0]], 2, (), False),
        ([np.zeros(3, int), np.zeros(4, int)], INDEX, (), True),
        ([np.zeros(1, int), np.zeros(1, int)], INDEX, (), True),
        ([0, 1, 2], INDEX, (), False),
        ([np.int64(0), np.int64(1)], INDEX, (), False),
        ([np.zeros(3), np.zeros((4, 1))], 1, (), True),
        ([np.zeros(1), np.zeros(1)], 1, (), False),
        ([np.zeros((2, 2)), np.zeros((2, 2))], 4, (2, 2), False),
        ([np.zeros((2, 4)), np.zeros((3, 4))], 4, (2, 2), True),
        ([np.zeros((5, 2, 2)), np.zeros((1, 2, 2))], 4, (2, 2), True),
        ([], 2, (), False),
        (np.zeros((3, 2)), 2, (), False),
        (None, 2, (), False),
    ],
)
def test_what_is_a_list_of_parts(
    given_array: object, dim: int, matrix_shape: tuple[int, ...], wanted: bool
) -> None:
    assert is_in_parts(given_array, dim, matrix_shape) is wanted
