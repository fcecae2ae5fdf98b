"""Several units in one part of a tangent: D is not levelled where they are far apart."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.options import LinearSolverName, PrecisionName
from tests.solver.lm.test_units import Sample, Unit, assert_same_course, decay_arrays


class Decay(sf.V2):
    """Height and rate of a decay."""


class Shape(sf.V3):
    """Logarithm of a common factor, rate and offset."""


class Height(sf.V2):
    """Height of a curve, and its offset."""


@caspar.factor
def vector_fading(
    model: Annotated[Decay, caspar.TunableUnique],
    sample: Annotated[Sample, caspar.ConstSequential],
) -> sf.V1:
    """The decay above, with height and rate in one vector."""
    return sf.V1(model[0] * sf.exp(-model[1] * sample[0]) - sample[1])


@caspar.factor
def family(
    shape: Annotated[Shape, caspar.TunableShared],
    height: Annotated[Height, caspar.TunableShared],
    sample: Annotated[Sample, caspar.ConstSequential],
    unit: Annotated[Unit, caspar.ConstSequential],
) -> sf.V1:
    """Curves of a few shapes; heights have a unit, the last number of a shape its inverse."""
    fallen = sf.exp(shape[0] - shape[1] * sample[0])
    return sf.V1(height[0] * fallen + height[1] + unit[0] ** 2 * shape[2] * sample[0] - sample[1])


def vector_arrays(unit: float) -> dict[str, Any]:
    arrays = decay_arrays(unit)
    return {"Decay": arrays["Model"], "vector_fading": arrays["fading"]}


FAR_APART = {
    "float64": [2.0**-50, 2.0**-100, 2.0**-330, 2.0**50, 2.0**200, 2.0**330],
    "mixed": [2.0**-25, 2.0**-35, 2.0**25, 2.0**35],
    "float32": [2.0**-25, 2.0**-35, 2.0**25, 2.0**35],
}


@pytest.mark.parametrize("linear_solver", ["auto", "pcg"])
@pytest.mark.parametrize("precision", FAR_APART)
def test_a_vector_of_several_units(
    precision: PrecisionName, linear_solver: LinearSolverName
) -> None:
    """D held the rate at every damping: success, with the rate where it started."""
    solver = caspar.Solver(
        [vector_fading], precision=precision, linear_solver=linear_solver, backend="cpu"
    )
    wanted = solver.solve(vector_arrays(1.0))
    height, rate = np.asarray(wanted.values["Decay"])[0]
    assert rate == pytest.approx(0.7113, abs=1e-4)
    for unit in FAR_APART[precision]:
        found = solver.solve(vector_arrays(unit))
        assert found.status.is_success
        assert abs(len(found.iterations) - len(wanted.iterations)) <= 1
        np.testing.assert_allclose(
            np.ravel(found.values["Decay"]), [unit * height, rate], rtol=1e-4
        )
    # the next solve levels again
    assert_same_course(solver.solve(vector_arrays(1.0)), wanted, 1.0)


@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_a_vector_of_several_units_near_enough(precision: PrecisionName) -> None:
    """D is levelled, and steps of little damping move the rate nevertheless."""
    solver = caspar.Solver([vector_fading], precision=precision, backend="cpu")
    for exponent in range(-13, 14) if precision == "float64" else range(-7, 8):
        unit = 10.0**exponent
        found = solver.solve(
            vector_arrays(unit), cost_tolerance=3e-7, gradient_tolerance=1e-14, step_tolerance=1e-8
        )
        assert found.status.is_success
        assert len(found.iterations) <= 16
        assert np.ravel(found.values["Decay"])[1] == pytest.approx(0.7113, abs=1e-4)


FAMILY_METHODS: dict[str, dict[str, Any]] = {
    "pcg": {"linear_solver": "pcg"},
    "pcg_recompute": {"linear_solver": "pcg", "jacobian": "recompute"},
    "schur_pcg": {"linear_solver": "schur_pcg"},
    "schur_pcg_recompute": {"linear_solver": "schur_pcg", "jacobian": "recompute"},
    "no_inner_iterations": {"linear_solver": "schur_pcg", "inner_iterations": 0},
    "schur_dense": {"linear_solver": "schur_dense"},
    "sparse": {"linear_solver": "sparse"},
}


def family_arrays(unit: float) -> dict[str, Any]:
    random = np.random.default_rng(2)
    count = 25
    heights = np.stack([1.0 + random.random(count), 0.3 * random.normal(size=count)], axis=1)
    height = np.repeat(np.arange(count), 12)
    shape = np.arange(len(height)) % 3
    rates = np.array([0.5, 0.8, 1.3])
    time = random.uniform(0.0, 3.0, len(height))
    level = heights[height, 0] * np.exp(-rates[shape] * time) + heights[height, 1] + 0.1 * time
    level += 0.01 * random.normal(size=len(height))
    return {
        "Shape": [[0.05, 0.4, 0.0], [0.0, 0.6, 0.0], [-0.05, 1.0, 0.0]],
        "Height": unit * (heights + 0.1 * random.normal(size=heights.shape)),
        "family": {
            "shape": shape,
            "height": height,
            "sample": np.stack([time, unit * level], axis=1),
            "unit": np.full((len(height), 1), unit),
        },
    }


@pytest.mark.parametrize("name", FAMILY_METHODS)
def test_vectors_of_several_units_by_every_method(name: str) -> None:
    """Also where the vector of one unit is eliminated."""
    choices = FAMILY_METHODS[name]
    solver = caspar.Solver([family], precision="float64", backend="cpu", **choices)
    wanted = solver.solve(family_arrays(1.0))
    assert wanted.status.is_success
    for unit in (2.0**-60, 2.0**-150, 2.0**60, 2.0**150):
        found = solver.solve(family_arrays(unit))
        assert found.status.is_success
        assert found.final_cost / unit / unit == pytest.approx(wanted.final_cost, rel=1e-5)
        assert len(found.iterations) <= 2 * len(wanted.iterations)


class Place(sf.V2):
    """A place in the plane."""


@caspar.factor
def ring(place: Annotated[Place, caspar.TunableShared]) -> sf.V1:
    """Any place on a circle."""
    return sf.V1(place.norm() - 1)


@pytest.mark.parametrize("precision", FAR_APART)
def test_places_that_all_see_one_axis_are_levelled(precision: PrecisionName) -> None:
    """What is small in all of them is no unit if it is not far below what the axis has."""
    solver = caspar.Solver([ring], precision=precision, backend="cpu")
    for across in (0.0, 1e-5, 1e-3):
        places = [[1.4, across], [0.7, -across], [-2.0, across]]
        result = solver.solve({"Place": places, "ring": {"place": [0, 1, 2]}})
        assert result.status.is_success
        assert result.final_cost < 1e-10


@pytest.mark.parametrize("precision", ["mixed", "float32"])
def test_a_square_that_vanishes_beside_another_unit(precision: PrecisionName) -> None:
    """D is not zero there if it is levelled."""

    @caspar.factor
    def tilted(
        place: Annotated[Place, caspar.TunableShared],
        unit: Annotated[Unit, caspar.ConstSequential],
    ) -> sf.V2:
        return sf.V2(place[0] - 1, sf.exp(unit[0] * place[1]) - 3)

    solver = caspar.Solver([tilted], precision=precision, backend="cpu")
    arrays = {"Place": [[0.3, 0.0]], "tilted": {"place": [0], "unit": [[1e-25]]}}
    result = solver.solve(arrays)
    assert result.status.is_success is (precision == "mixed")  # it goes on in float64
    assert any("Squares of derivatives by Place" in remark for remark in result.remarks)
