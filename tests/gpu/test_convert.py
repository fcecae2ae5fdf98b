"""Conversions on a device: windows, rows at any scalar, large objects; rows that are shared."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from caspar.arrays.convert import pack, shared_backend, unpack
from caspar.ir.dtype import DType
from caspar.kernels.call.operands import OperandReader
from caspar.memory.array import Binding
from tests.arrays.blocked_cases import placement, rows_of_size

pytestmark = pytest.mark.gpu

DIMS = (*range(1, 18), 24, 45, 100, 384, 1000, 3069)
FIRST, SPARE = 5, 3
"""Objects before and after a window."""

each_dtype = pytest.mark.parametrize(
    "dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value
)


@pytest.fixture(scope="module")
def cupy() -> Any:
    pytest.importorskip("caspar.runtime.cuda.backend")
    return shared_backend("cuda").xp


@each_dtype
@pytest.mark.parametrize("dim", DIMS)
def test_windows_and_rows_at_any_scalar(cupy: Any, dim: int, dtype: DType) -> None:
    for count in (1, 33, 1025, 100_003 if dim < 100 else 5_003):
        rows = rows_of_size(count, dim, dtype)
        length = FIRST + count + SPARE
        where = placement(length, dim, dtype)
        expected = np.full(where.size, np.nan, dtype.value)
        expected[where.where[FIRST : FIRST + count]] = rows
        if len(where.pads) > 0:
            expected[where.pads.reshape(length, -1)[FIRST : FIRST + count]] = 0.0
        for shift in (0, 1):
            flat = cupy.asarray(np.concatenate([np.zeros(shift, dtype.value), rows.reshape(-1)]))
            blocked = cupy.full(where.size, np.nan, dtype.value)
            window = Binding(blocked, length, FIRST, count)
            pack("x", flat[shift:].reshape(count, dim), window)
            assert_array_equal(blocked.get(), expected)
            assert_array_equal(unpack(window, dim).get(), rows)


@each_dtype
def test_rows_that_are_blocked_are_shared(cupy: Any, dtype: DType) -> None:
    """Where they begin at a multiple of their size."""
    reader = OperandReader(shared_backend("cuda"), dtype, check=True)
    flat = cupy.arange(8 * 40 + 8, dtype=dtype.value)
    for dim in range(1, 9):
        for shift in range(5):
            rows = flat[shift : shift + 40 * dim].reshape(40, dim)
            array = reader.blocked("x", rows, dim, (), share=True)
            is_one_chunk = dim in (1, 2, 4)[: 2 if dtype is DType.FLOAT64 else 3]
            is_shared = array.buffer.data.ptr == rows.data.ptr
            assert is_shared == (is_one_chunk and shift % dim == 0)
            assert_array_equal(array.to_numpy(), rows.get())
    on_host = rows_of_size(7, 2, dtype)
    assert reader.blocked("x", on_host, 2, (), share=True).device == "cuda:0"
