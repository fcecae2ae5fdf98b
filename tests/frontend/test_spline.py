"""Splines written out in residuals: values and derivatives against SciPy and NumPy."""

from typing import Annotated, Literal

import numpy as np
import pytest
import symforce.symbolic as sf
from scipy.interpolate import CubicHermiteSpline

import caspar

KNOTS = [-1.0, -0.25, 0.5, 2.0, 2.5]
VALUES = [0.5, -1.0, 2.0, 1.5, 3.0]
Method = Literal["linear", "cubic"]


def hermite() -> CubicHermiteSpline:
    """Return SciPy's spline with the slopes that `caspar.spline` documents."""
    knots, values = np.array(KNOTS), np.array(VALUES)
    lines = np.diff(values) / np.diff(knots)
    inner = (values[2:] - values[:-2]) / (knots[2:] - knots[:-2])
    return CubicHermiteSpline(knots, values, np.r_[lines[0], inner, lines[-1]])


def truth(x: np.ndarray, method: Method) -> tuple[np.ndarray, np.ndarray]:
    """Return values and derivatives; outside the knots the outer values continue."""
    inside = (x > KNOTS[0]) & (x < KNOTS[-1])
    clamped = np.clip(x, KNOTS[0], KNOTS[-1])
    if method == "cubic":
        return hermite()(clamped), np.where(inside, hermite().derivative()(clamped), 0.0)
    lines = np.diff(VALUES) / np.diff(KNOTS)
    interval = np.clip(np.searchsorted(KNOTS, clamped) - 1, 0, len(lines) - 1)
    return np.interp(clamped, KNOTS, VALUES), np.where(inside, lines[interval], 0.0)


@pytest.mark.parametrize("method", ["linear", "cubic"])
def test_values_and_derivatives_are_true(method: Method) -> None:
    x = sf.Symbol("x")
    expression = caspar.spline(x, KNOTS, VALUES, method)
    places = np.array([-3.0, -0.9, -0.3, 0.1, 0.4, 1.7, 2.2, 2.4, 5.0])
    values, slopes = truth(places, method)
    got = [float(expression.subs(x, place)) for place in places]
    got_slopes = [float(expression.diff(x).subs(x, place)) for place in places]
    np.testing.assert_allclose(got, values, rtol=0, atol=1e-14)
    np.testing.assert_allclose(got_slopes, slopes, rtol=0, atol=1e-13)


@pytest.mark.parametrize("method", ["linear", "cubic"])
def test_knots_are_met(method: Method) -> None:
    got = [float(caspar.spline(knot, KNOTS, VALUES, method)) for knot in KNOTS]
    np.testing.assert_allclose(got, VALUES, rtol=0, atol=1e-14)


class Place(sf.V1): ...


@caspar.factor
def reaches(
    place: Annotated[Place, caspar.TunableShared],
    height: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(caspar.spline(place[0], KNOTS, VALUES) - height[0])


def test_solver_inverts_a_spline() -> None:
    solver = caspar.Solver([reaches], backend="cpu", precision="float64")
    true_places = np.array([[0.0], [0.1], [0.3]])
    arrays = {
        "Place": true_places + 0.02,
        "reaches": {"place": np.arange(3), "height": hermite()(true_places)},
    }
    result = solver.solve(arrays)
    np.testing.assert_allclose(result.values["Place"], true_places, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("knots", "values", "method", "message"),
    [
        ([0.0], [1.0], "cubic", "knots has 1 entries; allowed are 2 to 64"),
        ([0.0, 1.0], [1.0], "cubic", "values has 1 entries, but knots has 2"),
        ([0.0, 0.0], [1.0, 2.0], "cubic", r"knots\[0\] is 0.0 and knots\[1\] is 0.0"),
        ([0.0, float("nan")], [1.0, 2.0], "linear", "finite and increase"),
        ([0.0, 1.0], [1.0, 2.0], "nearest", "method is 'nearest'; allowed are 'linear'"),
    ],
)
def test_errors_say_what_is_allowed(
    knots: list[float], values: list[float], method: Method, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        caspar.spline(0.5, knots, values, method)
