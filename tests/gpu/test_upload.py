"""What is copied to a device is what was given, however large and whatever happens to it then."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.memory.array import PickedRows

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

MIB = 1 << 20
SIZES = (1, MIB, 8 * MIB - 4, 8 * MIB, 8 * MIB + 4, 33 * MIB + 12, 100 * MIB)
"""Bytes: small ones, around the fewest that are staged, and more than all pieces hold."""


def cuda_backend() -> Any:
    return pytest.importorskip("caspar.runtime.cuda.backend").CudaBackend()


def numbers(num_bytes: int, seed: int) -> NDArray[np.int32]:
    rng = np.random.default_rng(seed)
    return rng.integers(-(2**31), 2**31, max(1, num_bytes // 4), dtype=np.int32)


@pytest.mark.parametrize("num_bytes", SIZES)
def test_every_byte_arrives(num_bytes: int) -> None:
    backend, host = cuda_backend(), numbers(num_bytes, 0)
    with backend.scope():
        for seed in range(3):
            given = numbers(num_bytes, seed)
            target = cupy.zeros_like(host)
            backend.write(target, given)
            copied = backend.upload(given)
            wanted = given.copy()
            given[:] = 0  # the caller's memory is the caller's again
            assert_array_equal(backend.to_host(target), wanted)
            assert_array_equal(backend.to_host(copied), wanted)


@pytest.mark.parametrize("width", [1, 3, 10])
def test_rows_that_are_picked(width: int) -> None:
    """Fewer than are staged, and more than all pieces hold."""
    backend, random = cuda_backend(), np.random.default_rng(0)
    for dtype in (np.float64, np.float32, np.int32):
        rows = random.normal(size=(3_000_001, width)).astype(dtype)
        for count in (0, 5, 2_900_000):
            chosen = np.sort(random.choice(len(rows), count, replace=False))
            for numbers in (chosen, chosen.astype(np.int32), chosen[::-1]):
                with backend.scope():
                    target = cupy.zeros((count, width), dtype)
                    backend.write(target, PickedRows(rows, numbers))
                    assert_array_equal(backend.to_host(target), rows[numbers])
                    if width == 1:
                        flat = cupy.zeros(count, dtype)
                        backend.write(flat, PickedRows(rows[:, 0], numbers))
                        assert_array_equal(backend.to_host(flat), rows[numbers, 0])


def test_shapes_types_and_orders_are_kept() -> None:
    backend = cuda_backend()
    rows = np.random.default_rng(1).normal(size=(1_500_001, 3))
    with backend.scope():
        for given in (rows, rows.T, rows[::2], rows.astype(">f8"), rows.astype(np.float32)):
            copied = backend.upload(given)
            assert copied.dtype == given.dtype.newbyteorder("=")
            assert_array_equal(backend.to_host(copied), given)


def test_another_shape_is_refused() -> None:
    backend = cuda_backend()
    with backend.scope(), pytest.raises(ValueError, match="shape"):
        backend.write(cupy.zeros(4 * MIB, np.int32), numbers(20 * MIB, 0))


def test_several_threads_may_upload() -> None:
    backends = [cuda_backend() for _ in range(4)]

    def upload(number: int) -> None:
        given = numbers(40 * MIB, number)
        with backends[number].scope():
            assert_array_equal(backends[number].to_host(backends[number].upload(given)), given)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(upload, range(4)))
