"""The model of what several devices take."""

from dataclasses import replace

import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.errors import OptionError
from caspar.ir.dtype import DType
from caspar.solver.plan.arena import Region
from tests.solver.bundles import arrays_of, part_of, read


def _prepared() -> caspar.Prepared:
    solver = caspar.Solver([snavely], backend="cpu", linear_solver="schur_pcg")
    return solver.prepare(arrays_of(part_of(read("problem-21-11315"), 300)))


def test_one_device_is_what_was_measured() -> None:
    prepared = _prepared()
    (one,) = caspar.distributed.estimate(prepared, 1e-3, (1,))
    assert (one.iteration_s, one.speedup, one.adding_up_s) == (1e-3, 1.0, 0.0)
    assert one.bytes_of_device == prepared.num_bytes


def test_more_devices_hold_less_and_add_up_longer() -> None:
    found = caspar.distributed.estimate(_prepared(), 1e-3)
    assert [one.devices for one in found] == [1, 2, 4, 8, 16, 32, 64]
    held = [one.bytes_of_device for one in found]
    assert held == sorted(held, reverse=True)
    # cameras are on each of them
    assert held[-1] > 21 * 9 * 4
    adding_up = [one.adding_up_s for one in found]
    assert adding_up == sorted(adding_up)
    assert all(one.speedup < one.devices for one in found[1:])


def test_the_vector_of_the_largest_set_takes_what_was_measured() -> None:
    link = caspar.distributed.NVLINK
    assert link.latency_s + 0.49e6 * link.byte_s == pytest.approx(9.7e-6, rel=0.03)
    assert link.latency_s + 4e6 * link.byte_s == pytest.approx(33e-6, rel=0.03)


# of benchmarks/results/devices_cuda.md: bytes of a vector, us of an iteration on 1, 2 and 4
MEASURED = [(84_960, 111.0, 82.4, 65.2), (492_768, 728.8, 409.2, 231.9)]
MEASURED += [(1_699_164, 2677.2, 1394.7, 738.0), (6_796_728, 12903.9, 6749.0, 3402.9)]


@pytest.mark.parametrize(("num_bytes", "one", "two", "four"), MEASURED)
def test_iterations_that_were_measured(num_bytes: int, one: float, two: float, four: float) -> None:
    prepared = replace(
        _prepared(), regions={"Cam.direction": Region(0, num_bytes // 4, DType.FLOAT32)}
    )
    found = caspar.distributed.estimate(prepared, one * 1e-6, (1, 2, 4))
    assert [1e6 * each.iteration_s for each in found] == pytest.approx([one, two, four], rel=0.1)


@pytest.mark.parametrize("devices", [(), (0,), (2, -1)])
def test_numbers_of_devices(devices: tuple[int, ...]) -> None:
    with pytest.raises(OptionError, match="devices="):
        caspar.distributed.estimate(_prepared(), 1e-3, devices)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_times(seconds: float) -> None:
    with pytest.raises(OptionError, match="iteration_s="):
        caspar.distributed.estimate(_prepared(), seconds)
