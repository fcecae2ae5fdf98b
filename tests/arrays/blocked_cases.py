"""Checks of `BlockedArray` on any backend, against the layout written out by hand.

Used with the CPU backend here, with CUDA in tests/gpu.
"""

from typing import Any

import numpy as np
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.arrays.blocked_array import BlockedArray
from caspar.arrays.convert import shared_backend
from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec
from caspar.memory.patterns import WriteSequential
from caspar.options import BackendName
from tests.support_memory import Placement, place

SIZES = (0, 1, 31, 33, 257, 1025)
DIMS = range(1, 18)
GUARD = -77.0
FIRST = 4
"""First object of windows."""

SPARE = 9
"""Objects of an array that are not in its window."""


def placement(length: int, dim: int, dtype: DType) -> Placement:
    """Where the scalars of an array lie."""
    return place(ArgSpec("x", dim, dtype, write=WriteSequential()), length)


def rows_of_size(length: int, dim: int, dtype: DType, seed: int = 0) -> NDArray[Any]:
    """Different numbers."""
    return np.random.default_rng(seed).standard_normal((length, dim)).astype(dtype.value)


def counting(length: int, dim: int, dtype: str = "float32") -> BlockedArray:
    """Row by row 0, 1, 2, ..., on the processor."""
    rows = np.arange(length * dim, dtype=dtype).reshape(length, dim)
    return BlockedArray.from_rows(rows)


def memory(array: BlockedArray) -> NDArray[Any]:
    """Its whole buffer on the host."""
    return shared_backend("cpu" if array.device == "cpu" else "cuda").to_host(array.buffer)


def check_round_trip(backend: BackendName, length: int, dim: int, dtype: DType) -> None:
    """Rows to blocked and back; every scalar is where the layout says."""
    rows = rows_of_size(length, dim, dtype)
    array = BlockedArray.from_rows(rows, backend=backend)
    assert (array.shape, len(array), array.dim) == ((length, dim), length, dim)
    assert (array.dtype, array.scalar) == (np.dtype(dtype.value), dtype)
    where = placement(length, dim, dtype)
    assert array.buffer.shape == (where.size,)
    assert array.nbytes == where.size * dtype.itemsize
    assert_array_equal(memory(array)[where.where], rows)
    assert_array_equal(array.to_numpy(), rows)
    fresh = array.to_rows()
    assert isinstance(fresh, array.xp.ndarray)
    fresh[...] = GUARD
    assert_array_equal(array.to_numpy(), rows)
    assert_array_equal(array.copy().to_numpy(), rows)
    columns = [shared_backend(backend).to_host(chunk) for chunk in array.chunks]
    assert_array_equal(np.concatenate(columns, axis=1), rows)
    for chunk in array.chunks:
        chunk[...] = GUARD
    assert_array_equal(array.to_numpy(), np.full_like(rows, GUARD))


def check_window(backend: BackendName, length: int, dim: int, dtype: DType) -> None:
    """Part of an array is read and written; nothing around it changes."""
    old = rows_of_size(length + SPARE, dim, dtype, 1)
    whole = BlockedArray.from_rows(old, backend=backend)
    window = whole[FIRST : FIRST + length]
    assert (window.shape, window.capacity) == ((length, dim), length + SPARE)
    assert window.buffer is whole.buffer
    assert_array_equal(window.to_numpy(), old[FIRST : FIRST + length])
    alone = window.copy()
    assert (alone.capacity, alone.first) == (length, 0)
    assert_array_equal(alone.to_numpy(), old[FIRST : FIRST + length])
    new = rows_of_size(length, dim, dtype, 2)
    whole[FIRST : FIRST + length] = new
    expected = old.copy()
    expected[FIRST : FIRST + length] = new
    where = placement(length + SPARE, dim, dtype).where
    assert_array_equal(memory(whole)[where], expected)
    assert_array_equal(alone.to_numpy(), old[FIRST : FIRST + length])  # shares nothing
    whole[1 : 1 + length] = alone
    expected[1 : 1 + length] = old[FIRST : FIRST + length]
    whole[FIRST + length :] = 2.5
    expected[FIRST + length :] = 2.5
    whole[-1] = old[0]
    expected[-1] = old[0]
    assert_array_equal(memory(whole)[where], expected)
    window[:] = whole[FIRST - 1 : FIRST - 1 + length]  # overlaps itself
    expected[FIRST : FIRST + length] = expected[FIRST - 1 : FIRST - 1 + length].copy()
    assert_array_equal(memory(whole)[where], expected)
