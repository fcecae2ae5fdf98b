"""A part of a tangent is taken to have one unit. Where it has several, a solve takes longer."""

from typing import Annotated

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.optimize import least_squares

import caspar
from tests.solver.solving import ON_BACKENDS, solver

Array = NDArray[np.float64]


class Decay(sf.V3):
    """Amplitude, rate, offset."""


class Sample(sf.V1):
    """A time or what is seen at it."""


@caspar.factor
def decay(
    curve: Annotated[Decay, caspar.TunableUnique],
    time: Annotated[Sample, caspar.ConstSequential],
    seen: Annotated[Sample, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(curve[0] * sf.exp(-curve[1] * time[0]) + curve[2] - seen[0])


class Place(sf.V3):
    """Position and heading."""


class Spot(sf.V2):
    """A place in the plane."""


@caspar.factor
def seen_from(
    place: Annotated[Place, caspar.TunableUnique],
    spot: Annotated[Spot, caspar.ConstSequential],
    seen: Annotated[Spot, caspar.ConstSequential],
) -> sf.V2:
    c, s = sf.cos(place[2]), sf.sin(place[2])
    x, y = c * spot[0] - s * spot[1] + place[0], s * spot[0] + c * spot[1] + place[1]
    return sf.V2(x - seen[0], y - seen[1])


def samples(true: Array, last: float, noise: float) -> tuple[Array, Array]:
    time = np.linspace(0.0, last, 60)
    seen = true[0] * np.exp(-true[1] * time) + true[2]
    return time, seen + np.random.default_rng(0).normal(0.0, noise, 60)


@ON_BACKENDS
@pytest.mark.parametrize("scale", [1e4, 1e5, 1e6, 1e7])
@pytest.mark.parametrize("start", [(0.5, 5e-4, 0.0), (0.9, 9e-4, 0.0)], ids=["far", "near"])
def test_amplitudes_and_rates(start: tuple[float, ...], scale: float, backend: str) -> None:
    """Without a step of little damping the first two steps that gain little end it."""
    time, seen = samples(np.array([scale, 1e-3, 1e-4 * scale]), 5000.0, 1e-4 * scale)
    first = np.array(start) * [scale, 1.0, scale]
    arrays = {"Decay": [first], "decay": {"time": time[:, None], "seen": seen[:, None]}}
    result = solver((decay,), "float64", backend).solve(arrays)
    assert result.status.is_success, result
    found = least_squares(lambda x: x[0] * np.exp(-x[1] * time) + x[2] - seen, first, x_scale="jac")
    assert result.final_cost == pytest.approx(found.cost, rel=1e-6)


@ON_BACKENDS
def test_tiny_amplitudes_and_large_rates(backend: str) -> None:
    time, seen = samples(np.array([1e-6, 1e3, 1e-9]), 5e-3, 1e-9)
    arrays = {"time": time[:, None], "seen": seen[:, None]}
    made = solver((decay,), "float64", backend)
    result = made.solve({"Decay": [[5e-7, 500.0, 0.0]], "decay": arrays})
    assert result.status.is_success, result
    assert result.final_cost == pytest.approx(2.239826e-17, rel=1e-6)


@ON_BACKENDS
@pytest.mark.parametrize("lever", [1.0, 1e2, 1e4, 1e6])
def test_positions_and_a_heading(lever: float, backend: str) -> None:
    rng = np.random.default_rng(1)
    spots = lever * rng.normal(size=(40, 2))
    angle = 0.3
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    seen = spots @ turn.T + [1.0, -2.0] + rng.normal(0.0, 0.01, (40, 2))
    arrays = {"Place": [[0.0, 0.0, 0.0]], "seen_from": {"spot": spots, "seen": seen}}
    result = solver((seen_from,), "float64", backend).solve(arrays)
    assert result.status.is_success, result
    # the best rotation and position are known (Umeyama 1991)
    apart, away = spots - spots.mean(axis=0), seen - seen.mean(axis=0)
    cross = apart[:, 0] @ away[:, 1] - apart[:, 1] @ away[:, 0]
    best = np.arctan2(cross, np.sum(apart * away))
    back = np.array([[np.cos(best), -np.sin(best)], [np.sin(best), np.cos(best)]])
    cost = 0.5 * np.sum((apart @ back.T - away) ** 2)
    assert result.final_cost == pytest.approx(cost, rel=1e-6)
