"""The model of what several devices take."""

import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.errors import OptionError
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


@pytest.mark.parametrize("devices", [(), (0,), (2, -1)])
def test_numbers_of_devices(devices: tuple[int, ...]) -> None:
    with pytest.raises(OptionError, match="devices="):
        caspar.distributed.estimate(_prepared(), 1e-3, devices)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_times(seconds: float) -> None:
    with pytest.raises(OptionError, match="iteration_s="):
        caspar.distributed.estimate(_prepared(), seconds)
