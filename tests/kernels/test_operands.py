"""Rows that lie in the blocked layout already are taken as they are, where they are only read."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_array_equal

import caspar
from caspar.arrays.blocked_array import BlockedArray
from caspar.arrays.convert import shared_backend
from caspar.ir.dtype import DType
from caspar.kernels.call.operands import OperandReader
from tests.arrays.blocked_cases import rows_of_size


def read(rows: Any, dim: int, dtype: DType, *, share: bool = True) -> BlockedArray:
    reader = OperandReader(shared_backend("cpu"), dtype, check=True)
    array = reader.blocked("x", rows, dim, (), share=share)
    assert_array_equal(array.to_rows(), rows.reshape(-1, dim).astype(dtype.value))
    return array


def is_shared(rows: Any, dim: int, dtype: DType, *, share: bool = True) -> bool:
    return np.shares_memory(read(rows, dim, dtype, share=share).buffer, rows)


class TestSharing:
    @pytest.mark.parametrize(
        ("dtype", "dims"), [(DType.FLOAT32, (1, 2, 4)), (DType.FLOAT64, (1, 2))], ids=str
    )
    def test_dims_of_one_chunk(self, dtype: DType, dims: tuple[int, ...]) -> None:
        for dim in range(1, 10):
            rows = rows_of_size(7, dim, dtype)
            assert is_shared(rows, dim, dtype) == (dim in dims)
            assert is_shared(rows[2:5], dim, dtype) == (dim in dims)
            assert not is_shared(rows, dim, dtype, share=False)

    def test_scalars_and_single_objects(self) -> None:
        assert is_shared(np.arange(5.0), 1, DType.FLOAT64)
        assert is_shared(np.arange(2.0), 2, DType.FLOAT64)
        assert read(np.empty((0, 2)), 2, DType.FLOAT64).shape == (0, 2)

    def test_what_must_be_converted(self) -> None:
        rows = rows_of_size(8, 8, DType.FLOAT32)
        assert not is_shared(rows[:, :4], 4, DType.FLOAT32)
        assert not is_shared(rows[::2, :1], 1, DType.FLOAT32)
        assert not is_shared(np.asfortranarray(rows[:, :4]), 4, DType.FLOAT32)
        assert not is_shared(rows[:, :4].astype(">f4"), 4, DType.FLOAT32)
        assert not is_shared(rows[:, :4].astype(np.int32), 4, DType.FLOAT32)
        assert not is_shared(rows_of_size(8, 2, DType.FLOAT64), 2, DType.FLOAT32)
        unaligned = np.zeros(33, np.uint8)[1:].view(np.float32).reshape(2, 4)
        assert not is_shared(unaligned, 4, DType.FLOAT32)

    def test_read_only(self) -> None:
        rows = rows_of_size(7, 4, DType.FLOAT32)
        rows.flags.writeable = False
        array = read(rows, 4, DType.FLOAT32)
        assert np.shares_memory(array.buffer, rows)
        assert not array.is_writable


@caspar.kernel(backend="cpu")
def reverse(x: Annotated[sf.V4, caspar.ReadIndexed]) -> Annotated[sf.V4, caspar.WriteSequential]:
    """Objects by number."""
    return 2 * x


def test_an_output_over_its_input_gets_what_was_there_before() -> None:
    rows = rows_of_size(9, 4, DType.FLOAT32)
    expected = 2 * rows[::-1]
    index = np.arange(9, dtype=np.int32)[::-1]
    result = reverse(x={"values": rows, "index": index}, out=rows)
    assert result is rows
    assert_array_equal(rows, expected)
