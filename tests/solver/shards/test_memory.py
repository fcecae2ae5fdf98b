"""What a plan needs is said before it is taken, and on how many devices the problem fits."""

import re
import sys
from typing import Any

import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.errors import OutOfMemoryError
from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.plan.arena import ArenaPlan
from caspar.solver.plan.regions import Demand, allocated
from tests.solver.bundles import arrays_of, part_of, read
from tests.solver.shards.sharing import ALL_SHARE, plans_of


def _arrays() -> dict[str, Any]:
    return arrays_of(part_of(read("problem-21-11315"), 3000))


def _solver(devices: int) -> caspar.Solver:
    return caspar.Solver(
        [snavely], backend="cpu", linear_solver="schur_pcg", devices=devices, limits=ALL_SHARE
    )


class Limited:
    """The processor, as if it had little memory, and what it was asked for.

    Args:
        monkeypatch: Undoes it.
        free_bytes: That it has.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free_bytes: int | None) -> None:
        self.asked: list[int] = []
        allocate = CpuBackend.allocate

        def count(backend: CpuBackend, num_bytes: int) -> Any:
            self.asked.append(num_bytes)
            return allocate(backend, num_bytes)

        monkeypatch.setattr(CpuBackend, "free_bytes", property(lambda _: free_bytes))
        monkeypatch.setattr(CpuBackend, "allocate", count)


def _sizes(solver: caspar.Solver) -> list[tuple[int, int]]:
    """By device the bytes of its arena, and of its indices and tiles."""
    plans = plans_of(solver, _arrays())
    return [(plan.arena.num_bytes, plan.num_bytes - plan.arena.num_bytes) for plan in plans]


@pytest.mark.parametrize("wanted", [2, 3, 5])
def test_it_fits_on_as_many_devices_as_is_said(
    wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = int(1.08 * max(sum(sizes) for sizes in _sizes(_solver(wanted))))
    ((_, outside),) = _sizes(_solver(1))
    free = whole - outside
    limited = Limited(monkeypatch, free)
    with pytest.raises(OutOfMemoryError) as caught:
        _solver(1).prepare(_arrays())
    assert limited.asked == []
    error = caught.value
    assert error.free_bytes == free
    assert error.needed_bytes is not None
    assert error.needed_bytes > free
    assert error.num_devices is not None
    assert abs(error.num_devices - wanted) <= 1
    assert f"the plan needs {error.needed_bytes:,} bytes of memory, and " in str(error)
    assert f" has {free:,}, so nothing was allocated. " in str(error)
    assert f"It fits on {error.num_devices} machines with as much memory." in str(error)
    monkeypatch.undo()
    most = max(outside for _, outside in _sizes(_solver(error.num_devices)))
    Limited(monkeypatch, whole - most)
    prepared = _solver(error.num_devices).prepare(_arrays())
    assert prepared.device.startswith(f"{error.num_devices} x ")


def test_too_few_devices_say_how_many_more(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = int(1.08 * max(sum(sizes) for sizes in _sizes(_solver(4))))
    limited = Limited(monkeypatch, whole - max(outside for _, outside in _sizes(_solver(2))))
    with pytest.raises(OutOfMemoryError, match=r"of this device, one of 2, take") as caught:
        _solver(2).solve(_arrays())
    assert limited.asked == []
    assert caught.value.num_devices in (3, 4, 5)
    if sys.version_info >= (3, 11):
        assert re.fullmatch(
            r"It was raised on device [01] of 2 that share the problem\.", caught.value.__notes__[0]
        )


def test_more_devices_do_not_help_if_what_is_on_all_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Limited(monkeypatch, 2000)
    demand = Demand(arena_bytes=9000, on_all_bytes=4096, outside_bytes=0, num_parts=1)
    told = "More devices do not help: nodes that remain take 4.00 KiB on each"
    with pytest.raises(OutOfMemoryError, match=told) as caught:
        allocated(ArenaPlan(num_bytes=9000), CpuBackend(), lambda: demand)
    assert caught.value.num_devices is None


def test_memory_that_is_not_known_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = Limited(monkeypatch, None)
    assert _solver(1).solve(_arrays(), max_iterations=1).final_cost > 0.0
    assert max(limited.asked) > 100_000


def test_demands() -> None:
    demand = Demand(arena_bytes=1000, on_all_bytes=200, outside_bytes=100, num_parts=1)
    assert [demand.of_each(number) for number in (1, 2, 4, 8)] == [1000, 600, 400, 300]
    # (200 + 900 / n) * 1.05 has to be at most 500 + 100
    assert demand.num_devices(500) == 3
    assert demand.num_devices(100) is None
    half = Demand(arena_bytes=600, on_all_bytes=200, outside_bytes=50, num_parts=2)
    assert half.of_each(4) == 400
    assert half.num_devices(550) == 3
