"""Kernels measured on the device: by events, beside a copy, with the driver's figures."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_array_equal

import caspar
from caspar.arrays.convert import shared_backend

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

MANY = 8_000_000
NUM_TRIES = 12


@caspar.kernel
def move(x: Annotated[sf.V4, caspar.ReadSequential]) -> Annotated[sf.V4, caspar.WriteSequential]:
    """What a copy does."""
    return x


@caspar.kernel
def add(x: Annotated[sf.V3, caspar.ReadSequential]) -> Annotated[sf.V3, caspar.AddSequential]:
    """Add to what is there."""
    return x


@caspar.kernel
def total(x: Annotated[sf.V3, caspar.ReadSequential]) -> Annotated[sf.V3, caspar.WriteSum]:
    """Two launches."""
    return x


def ones(count: int, dim: int) -> caspar.BlockedArray:
    made = caspar.BlockedArray.zeros(count, dim, backend="cuda")
    made[:] = 1.0
    return made


def test_a_move_is_as_fast_as_a_copy() -> None:
    # others may use the device: the quietest of a few
    profiles = [move.profile(ones(MANY, 4)) for _ in range(NUM_TRIES)]
    profile = min(profiles, key=lambda one: one.spread_s[1] / one.spread_s[0])
    print(profile)
    assert profile.clock == "CUDA events"
    assert 0.8 < profile.copy_fraction < 1.2
    low, high = profile.spread_s
    assert high < 1.1 * low
    assert profile.usage is not None
    assert profile.usage.local_bytes == 0
    assert 8 <= profile.usage.registers <= 40


def test_launching_is_not_measured() -> None:
    """A launch from Python takes longer than this kernel runs."""
    profile = move.profile(ones(1000, 4))
    print(profile)
    assert profile.time_s < 3.5e-6


def test_time_is_that_of_events_around_many_runs() -> None:
    x = ones(MANY, 4)
    bound = move.bind(x, out=ones(MANY, 4))
    bound()
    measured, by_hand = [], []
    for _ in range(NUM_TRIES):  # others may use the device: the least is the kernel's own time
        measured.append(bound.profile().time_s)
        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        first.record()
        for _ in range(50):
            bound()
        last.record()
        last.synchronize()
        by_hand.append(cupy.cuda.get_elapsed_time(first, last) / 50 / 1000)
    assert min(measured) == pytest.approx(min(by_hand), rel=0.1)


@pytest.mark.parametrize("block_size", [None, 64, 256, 1024])
def test_occupancy_is_the_drivers(block_size: int | None) -> None:
    profile = total.profile(ones(100_000, 3), block_size=block_size, runs=2)
    print(profile)
    kernel = total.bind(ones(100_000, 3), block_size=block_size).plan.kernel
    assert kernel is not None
    assert profile.block_size == kernel.block_size
    assert block_size in (None, profile.block_size)
    function: Any = kernel.function  # type: ignore[attr-defined]
    assert profile.usage is not None
    assert profile.usage.registers == function.registers
    assert profile.usage.shared_bytes == function.shared_bytes > 0
    blocks = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
        function.address, profile.block_size, 0
    )
    assert profile.usage.occupancy is not None
    assert profile.usage.occupancy.warps * 32 == blocks * profile.block_size
    assert len(profile.launches_s) == 2


def test_arrays_stay_as_they_are() -> None:
    x, out = ones(10_000, 3), ones(10_000, 3)
    add.profile(x, out=out, runs=2)
    add.profile(x, out=x, runs=2)
    for array in (x, out):
        assert_array_equal(array.to_numpy(), np.ones((10_000, 3)))
    rows = cupy.ones((10_000, 3), "float32")
    add.profile(x, out=rows, runs=2)
    assert_array_equal(rows.get(), np.ones((10_000, 3)))
    bound = add.bind(x, out=out)
    bound()
    bound.profile(runs=2)
    assert_array_equal(out.to_numpy(), np.full((10_000, 3), 2.0))


def test_in_a_stream_of_the_users() -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        out = ones(100_000, 3)
        bound = add.bind(ones(100_000, 3), out=out)
        for _ in range(10):
            bound()
        bound.profile(runs=3)
        bound()
    stream.synchronize()
    assert_array_equal(out.to_numpy()[[0, -1]], np.full((2, 3), 12.0))


def test_the_backend_times_what_it_is_given() -> None:
    backend = shared_backend("cuda")
    counter = cupy.zeros(1, "int64")
    cupy.add(counter, 1, out=counter)
    counter[...] = 0

    def run() -> None:
        cupy.add(counter, 1, out=counter)

    samples = backend.time(run, 4)
    assert len(samples) == 4
    assert all(1e-7 < seconds < 1e-3 for seconds in samples)
    assert int(counter[0]) > 4
