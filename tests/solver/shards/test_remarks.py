"""What is remarked of a solve on several devices is what one device remarks."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.bundle_adjustment import snavely
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.system.lone_promises import Promises
from tests.solver.bundles import arrays_of, part_of, read
from tests.solver.lm.test_lone_promises import BOX_BOD, saturation
from tests.solver.shards.sharing import crew_of, each, sharing
from tests.solver.test_free_values import (
    SEEN,
    TIMES,
    Growth,
    Sample,
    between,
    growth,
    prior,
    square,
)
from tests.solver.test_free_values import sighting as landmark

DEVICES = pytest.mark.parametrize(
    ("backend", "devices"),
    [("cpu", 2), ("cpu", 3), pytest.param("cuda", 2, marks=pytest.mark.gpu)],
)


class Offset(sf.V1):
    """What is added to several curves."""


@caspar.factor
def growth_of(
    curve: Annotated[Growth, caspar.TunableShared],
    offset: Annotated[Offset, caspar.TunableShared],
    time: Annotated[Sample, caspar.ConstSequential],
    seen: Annotated[Sample, caspar.ConstSequential],
) -> sf.V1:
    """One of several curves."""
    return sf.V1(curve.limit * (1 - sf.exp(-curve.rate * time[0])) + offset[0] - seen[0])


@caspar.factor
def known_offset(
    offset: Annotated[Offset, caspar.TunableShared],
    known: Annotated[Sample, caspar.ConstSequential],
) -> sf.V1:
    """From elsewhere."""
    return sf.V1(offset[0] - known[0])


def _remarks(result: caspar.SolveResult) -> list[str]:
    """Those on values: one device has others on its linear solver."""
    return [one for one in result.remarks if "went from" in one or "moved together" in one]


@DEVICES
def test_a_number_that_ran_away_on_all_devices(backend: str, devices: int) -> None:
    arrays = {
        "Growth": np.array([(30.0, 30.0)]),
        "growth": {"time": TIMES[:, None], "seen": SEEN[:, None]},
    }
    (wanted,) = _remarks(sharing((growth,), 1, precision="float64").solve(arrays))
    (found,) = _remarks(sharing((growth,), devices, backend, precision="float64").solve(arrays))
    assert found.startswith("Growth 0, rate, went from 30 to ")
    assert found.split(":")[1] == wanted.split(":")[1]


@DEVICES
@pytest.mark.parametrize("number", [0, 5])
def test_a_number_that_ran_away_on_one_device(number: int, backend: str, devices: int) -> None:
    """Of an eliminated type, by the number that users know."""
    curves = np.tile([100.0, 0.75], (6, 1))
    curves[number] = 30.0, 30.0
    arrays = {
        "Growth": curves,
        "Offset": np.zeros((1, 1)),
        "growth_of": {
            "curve": np.repeat(np.arange(6), 6),
            "offset": np.zeros(36, int),
            "time": np.tile(TIMES, 6)[:, None],
            "seen": np.tile(SEEN, 6)[:, None],
        },
        "known_offset": {"offset": [0], "known": [[0.0]]},
    }
    factors, choices = (growth_of, known_offset), {"eliminate": ("Growth",)}
    solver = sharing(factors, devices, backend, precision="float64", **choices)
    result = solver.solve(arrays, cost_tolerance=1e-12, max_iterations=200)
    (found,) = _remarks(result)
    assert found.startswith(f"Growth {number}, rate, went from 30 to ")
    assert found.count("went from") == 1


@DEVICES
def test_a_map_that_nothing_holds(backend: str, devices: int) -> None:
    arrays = square()
    solver = sharing((between,), devices, backend, precision="float64")
    for _ in range(2):
        result = solver.solve(arrays, cost_tolerance=1e-12)
        assert result.status.is_success
        assert any("All Pose2 can be moved together" in one for one in result.remarks)


@DEVICES
def test_landmarks_move_too(backend: str, devices: int) -> None:
    arrays: dict[str, Any] = square()
    marks = np.array([[0.5, 2.0], [3.0, 1.0]])
    sight = {"pose": [0, 3, 5, 7], "mark": [0, 0, 1, 1], "seen": np.full((4, 2), 0.7)}
    solver = sharing((between, landmark), devices, backend, precision="float64")
    result = solver.solve({**arrays, "Matrix21": marks, "sighting": sight}, cost_tolerance=1e-12)
    assert result.linear_solver == "schur_pcg"
    assert any("All Pose2 and Matrix21 can be moved" in one for one in result.remarks)


@DEVICES
def test_what_holds_a_map(backend: str, devices: int) -> None:
    arrays: dict[str, Any] = {**square(), "prior": {"pose": [0], "known": [[0.0, 0.0]]}}
    result = sharing((between, prior), devices, backend, precision="float64").solve(
        arrays, cost_tolerance=1e-12
    )
    assert _remarks(result) == []
    held = sharing((between,), devices, backend, precision="float64").solve(
        square(), fixed={"Pose2": [0]}
    )
    assert _remarks(held) == []


@DEVICES
@pytest.mark.parametrize("start", [(1.0, 0.75), (1.3, 0.75), (10.0, 3.0)])
def test_a_rate_that_has_lost_its_influence(
    start: tuple[float, float], backend: str, devices: int
) -> None:
    """The promise of single nodes is asked for, as on one device."""
    arrays = {"Growth": [start], "saturation": {"sample": BOX_BOD}}
    result = sharing((saturation,), devices, backend, precision="float64").solve(arrays)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(0.5 * 1168.0088766, rel=1e-9)


def _promises(system: NormalEquations) -> Promises | None:
    cost = system.score()
    system.linearize(1e-3)
    assert system.findings.has_lone_promises
    return system.findings.lone_promises(cost, 0.0)


def test_promises_are_those_of_one_device() -> None:
    arrays = {"Growth": [(100.0, 0.7)], "saturation": {"sample": BOX_BOD}}
    found: list[Promises | None] = []
    for devices in (1, 2):
        solver = sharing((saturation,), devices, precision="float64", linear_solver="pcg")
        with crew_of(solver, arrays) as crew:
            found += each(crew, _promises)
    one, two, other = found
    assert other == two
    assert one is not None
    assert two is not None
    assert two.decrease == pytest.approx(one.decrease, rel=1e-9)
    assert two.trusted == pytest.approx(one.trusted, rel=1e-9)
    assert (two.where, two.free) == (one.where, one.free)


@DEVICES
def test_instances_are_named_by_their_numbers_in_each_solve(backend: str, devices: int) -> None:
    """Two solves whose parts are alike, of observations that are mixed otherwise."""
    arrays = arrays_of(part_of(read("problem-21-11315"), 120))
    observed = {name: np.asarray(rows) for name, rows in arrays["snavely"].items()}
    # the cut of two devices, and a part of its own for a third one
    middle = int(
        np.searchsorted(np.cumsum(np.bincount(observed["point"])), len(observed["point"]) / 2)
    )
    is_second = observed["point"] > middle
    apart = np.argsort(is_second, kind="stable")
    turns = np.argsort(
        np.where(is_second, np.cumsum(is_second), np.cumsum(~is_second)), kind="stable"
    )
    solver = sharing((snavely,), devices, backend, precision="float64")
    for order in (apart, turns):
        pixels = observed["pixel"].copy()
        wrong = int(np.flatnonzero(is_second)[0])
        pixels[wrong, 0] = np.nan
        mixed = {**observed, "pixel": pixels}
        given = {**arrays, "snavely": {name: rows[order] for name, rows in mixed.items()}}
        result = solver.solve(given, check=False)
        place = int(np.flatnonzero(order == wrong)[0])
        assert f"snavely (1 instance, first {place:,})" in result.remarks[-1]
