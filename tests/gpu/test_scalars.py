"""Scalars that the host writes and reads, on the device."""

import pytest

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")


def test_what_is_read_was_there_when_it_was_fetched() -> None:
    backend = pytest.importorskip("caspar.runtime.cuda.backend").CudaBackend()
    scalars = cupy.arange(5, dtype=cupy.float64)
    own = backend.host_scalars(scalars)
    with backend.scope():
        for number in range(100):
            own.write([number, -1.0])
            own.fetch()
            own.write([7.0])  # enqueued behind it
            assert own.read()[:2] == [number, -1.0]
    backend.synchronize()
    assert scalars.tolist() == [7.0, -1.0, 2.0, 3.0, 4.0]
    with backend.scope():
        own.fetch()
        assert own.read() == scalars.tolist()


def test_copies_are_of_what_was_there_when_they_were_fetched() -> None:
    backend = pytest.importorskip("caspar.runtime.cuda.backend").CudaBackend()
    kept = [cupy.zeros((3, 1), dtype=cupy.float32), cupy.zeros(5), cupy.zeros((0, 2))]
    copies = backend.host_copies(kept)
    with backend.scope():
        for number in range(100):
            for array in kept:
                array.fill(number)
            copies.fetch()
            for array in kept:
                array.fill(-1.0)
            for array, copy in zip(kept, copies.read(), strict=True):
                assert copy.shape == array.shape
                assert copy.dtype == array.dtype
                assert (copy == number).all()
