"""The blocked layout against the same written out by hand."""

import pytest

from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec
from caspar.memory.layout import (
    array_scalars,
    chunk_widths,
    object_scalars,
    padded_width,
    partial_chunk_widths,
    row_scalars,
)
from caspar.memory.patterns import AddSharedPartials, AddSumPartials, ReadPartials, WriteSequential
from tests.support_memory import place

FLOATS = (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)


@pytest.mark.parametrize(
    ("dim", "dtype", "widths", "scalars"),
    [
        (1, DType.FLOAT32, (1,), 1),
        (2, DType.FLOAT32, (2,), 2),
        (3, DType.FLOAT32, (3,), 4),
        (4, DType.FLOAT32, (4,), 4),
        (7, DType.FLOAT32, (4, 3), 8),
        (10, DType.FLOAT32, (4, 4, 2), 10),
        (1, DType.FLOAT64, (1,), 1),
        (2, DType.FLOAT64, (2,), 2),
        (3, DType.FLOAT64, (2, 1), 3),
        (7, DType.FLOAT64, (2, 2, 2, 1), 7),
        (1, DType.FLOAT16, (1,), 1),
        (2, DType.FLOAT16, (2,), 2),
        (3, DType.FLOAT16, (3,), 4),
        (5, DType.FLOAT16, (5,), 8),
        (8, DType.FLOAT16, (8,), 8),
        (10, DType.FLOAT16, (8, 2), 10),
        (14, DType.FLOAT16, (8, 6), 16),
        (24, DType.FLOAT16, (8, 8, 8), 24),
    ],
)
def test_objects_are_cut_into_chunks(
    dim: int, dtype: DType, widths: tuple[int, ...], scalars: int
) -> None:
    assert chunk_widths(dim, dtype) == widths
    assert object_scalars(dim, dtype) == scalars
    assert array_scalars(dim, dtype, 11) == 11 * scalars


@pytest.mark.parametrize(
    ("dim", "dtype", "scalars"),
    [
        (1, DType.FLOAT32, 1),
        (3, DType.FLOAT32, 4),
        (5, DType.FLOAT32, 8),
        (9, DType.FLOAT32, 16),
        (3, DType.FLOAT64, 4),
        (5, DType.FLOAT64, 8),
        (45, DType.FLOAT64, 48),
    ],
)
def test_rows_are_whole_sectors(dim: int, dtype: DType, scalars: int) -> None:
    assert row_scalars(dim, dtype) == scalars
    placement = place(ArgSpec("x", dim, dtype, write=WriteSequential(rows=True)), 5)
    assert placement.size == 5 * scalars


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("dim", range(1, 20))
def test_chunks_are_vectors_and_lose_nothing(dim: int, dtype: DType) -> None:
    widths = chunk_widths(dim, dtype)
    assert sum(widths) == dim
    assert all(dtype.itemsize * padded_width(width) in (2, 4, 8, 16) for width in widths)
    assert all(dtype.itemsize * width == 16 for width in widths[:-1])
    placement = place(ArgSpec("x", dim, dtype, write=WriteSequential()), 5)
    assert placement.size == array_scalars(dim, dtype, 5)
    # every chunk of every object is aligned for the vector instruction that moves it
    for first in range(0, dim, dtype.chunk_length):
        padded = padded_width(min(dtype.chunk_length, dim - first))
        assert not (placement.where[:, first] % padded).any()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.value)
def test_partials_have_their_own_chunks(dtype: DType) -> None:
    assert [partial_chunk_widths(dim) for dim in (1, 3, 4, 9)] == [(1,), (3,), (4,), (4, 4, 1)]
    for arg in (
        ArgSpec("x", 9, dtype, read=ReadPartials()),
        ArgSpec("x", 9, dtype, write=AddSumPartials()),
        ArgSpec("x", 9, dtype, write=AddSharedPartials()),
    ):
        assert arg.chunk_widths == (4, 4, 1)
        assert arg.chunk_length == 4
        assert place(arg, 5).size == 45
    assert ArgSpec("x", 9, dtype, write=WriteSequential()).chunk_length == dtype.chunk_length
