"""Units do not matter: no number that has one is compared with a constant.

All residuals, or the values, are multiplied by powers of two, which rounds nothing. The solve must
take the same iterations to the same values.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.bundle_adjustment import snavely
from caspar.errors import InputError
from caspar.options import PrecisionName
from caspar.solver.result.result import SolveResult, SolveStatus
from tests.covering import alternating
from tests.solver.bundles import arrays_of, part_of, read


@dataclass
class Model:
    """Height and rate of a decay."""

    height: sf.Scalar
    rate: sf.Scalar


class Sample(sf.V2):
    """Time and height."""


class Unit(sf.V1):
    """What residuals are multiplied by."""


class Eye(sf.V3):
    """Place and logarithm of a magnification."""


class Spot(sf.V2):
    """A place that is seen."""


class Flat(sf.V2):
    """Where it is seen."""


class Offset(sf.V3):
    """A known eye, or what lies between two."""


@caspar.factor
def fading(
    model: Annotated[Model, caspar.TunableUnique],
    sample: Annotated[Sample, caspar.ConstSequential],
) -> sf.V1:
    """A decay, in the unit of the samples."""
    return sf.V1(model.height * sf.exp(-model.rate * sample[0]) - sample[1])


@caspar.factor
def look(
    eye: Annotated[Eye, caspar.TunableShared],
    spot: Annotated[Spot, caspar.TunableShared],
    flat: Annotated[Flat, caspar.ConstSequential],
    unit: Annotated[Unit, caspar.ConstSequential],
) -> sf.V2:
    """A spot as an eye sees it."""
    return unit[0] * ((spot - sf.V2(eye[0], eye[1])) * sf.exp(eye[2]) - flat)


@caspar.factor
def known_eye(
    eye: Annotated[Eye, caspar.TunableShared],
    offset: Annotated[Offset, caspar.ConstSequential],
    unit: Annotated[Unit, caspar.ConstSequential],
) -> sf.V3:
    """An eye that is known."""
    return unit[0] * (eye - offset)


@caspar.factor
def next_eye(
    first: Annotated[Eye, caspar.TunableShared],
    second: Annotated[Eye, caspar.TunableShared],
    offset: Annotated[Offset, caspar.ConstSequential],
    unit: Annotated[Unit, caspar.ConstSequential],
) -> sf.V3:
    """What lies between two eyes."""
    return unit[0] * (second - first - offset)


def decay_arrays(unit: float) -> dict[str, Any]:
    random = np.random.default_rng(0)
    time = np.linspace(0.0, 4.0, 30)
    height = 3.0 * np.exp(-0.7 * time) + 0.05 * random.normal(size=30)
    samples = np.stack([time, unit * height], axis=1)
    return {"Model": [[unit, 0.2]], "fading": {"sample": samples}}


def eye_arrays(unit: float, *, chained: bool) -> dict[str, Any]:
    random = np.random.default_rng(1)
    eyes, spots = random.normal(size=(14, 3)), random.normal(size=(40, 2))
    eyes[:, 2] *= 0.1
    pairs = np.array([(eye, spot) for eye in range(14) for spot in range(40) if (eye + spot) % 3])
    eye, spot = pairs.T
    seen = (spots[spot] - eyes[eye, :2]) * np.exp(eyes[eye, 2:])
    seen += 0.01 * random.normal(size=seen.shape)
    arrays: dict[str, Any] = {
        "Eye": eyes + 0.2 * random.normal(size=eyes.shape),
        "Spot": spots + 0.2 * random.normal(size=spots.shape),
        "look": {"eye": eye, "spot": spot, "flat": seen, "unit": np.full((len(seen), 1), unit)},
        "known_eye": {"eye": [0, 1], "offset": eyes[:2], "unit": [[unit]] * 2},
    }
    if chained:
        first = np.arange(13)
        arrays["next_eye"] = {
            "first": first,
            "second": first + 1,
            "offset": np.diff(eyes, axis=0),
            "unit": np.full((13, 1), unit),
        }
    return arrays


def assert_same_course(found: SolveResult, wanted: SolveResult, unit: float) -> None:
    assert wanted.status.is_success
    assert found.status is wanted.status
    assert found.remarks == wanted.remarks
    assert len(found.iterations) == len(wanted.iterations)
    for one, other in zip(found.iterations, wanted.iterations, strict=True):
        # what the last step leaves of a residual may be too small for float32
        if one.iteration < len(found.iterations):
            assert one.linear_iterations == other.linear_iterations
        assert one.cost / unit / unit == pytest.approx(other.cost, rel=1e-9)
        assert one.damping == pytest.approx(other.damping, rel=1e-6)


UNITS = {
    "float64": [2.0**-50, 2.0**-100, 2.0**-200, 2.0**-330, 2.0**200, 2.0**330],
    "mixed": [2.0**-10, 2.0**-20, 2.0**15, 2.0**30],
    "float32": [2.0**-10, 2.0**-20, 2.0**15, 2.0**30],
}


@pytest.mark.parametrize("precision", UNITS)
def test_a_curve_in_any_unit(precision: PrecisionName) -> None:
    solver = caspar.Solver([fading], precision=precision, backend="cpu")
    wanted = solver.solve(decay_arrays(1.0))
    height, rate = np.asarray(wanted.values["Model"])[0]
    assert rate == pytest.approx(0.7113, abs=1e-4)
    for unit in UNITS[precision]:
        found = solver.solve(decay_arrays(unit))
        assert_same_course(found, wanted, unit)
        np.testing.assert_allclose(np.ravel(found.values["Model"]), [unit * height, rate])


@pytest.mark.parametrize("exponent", [-100, -60, -30, -15, 60, 100])
def test_a_curve_in_decimal_units(exponent: int) -> None:
    """The unit of the samples rounds them, which changes the last digits, or the last steps."""
    solver = caspar.Solver([fading], backend="cpu")
    wanted, found = (solver.solve(decay_arrays(10.0**number)) for number in (0, exponent))
    assert abs(len(found.iterations) - len(wanted.iterations)) <= 2
    rates = [np.asarray(result.values["Model"])[0, 1] for result in (found, wanted)]
    assert rates[0] == pytest.approx(rates[1], rel=1e-8)


CHAIN = (look, known_eye, next_eye)
METHODS: dict[str, tuple[tuple[caspar.Factor, ...], dict[str, Any]]] = {
    "pcg": (CHAIN, {"linear_solver": "pcg"}),
    "schur_pcg": (CHAIN, {"linear_solver": "schur_pcg"}),
    "recompute": (CHAIN, {"linear_solver": "schur_pcg", "jacobian": "recompute"}),
    "float16": (CHAIN, {"linear_solver": "schur_pcg", "jacobian": "float16"}),
    "schur_dense": (CHAIN, {"linear_solver": "schur_dense"}),
    "sparse": (CHAIN, {"linear_solver": "sparse"}),
    "dense": (CHAIN, {"linear_solver": "auto"}),
}


@pytest.mark.parametrize(("name", "precision"), alternating(METHODS, ["float64", "mixed"]))
def test_every_linear_solver(name: str, precision: PrecisionName) -> None:
    factors, choices = METHODS[name]
    solver = caspar.Solver(factors, precision=precision, backend="cpu", **choices)
    chained = len(factors) == len(CHAIN)
    wanted = solver.solve(eye_arrays(1.0, chained=chained))
    assert wanted.final_cost < 0.1 * wanted.initial_cost
    for unit in UNITS[precision]:
        assert_same_course(solver.solve(eye_arrays(unit, chained=chained)), wanted, unit)


@pytest.mark.parametrize("weight", [1e-20, 1e-40, 1e40])
def test_one_type_with_tiny_weights(weight: float) -> None:
    """Two problems side by side, of which one has weights far from the other's."""
    solver = caspar.Solver([look, known_eye], precision="float64", backend="cpu")
    arrays = eye_arrays(1.0, chained=False)
    wanted = solver.solve(arrays)
    spots, eyes = len(arrays["Spot"]), len(arrays["Eye"])
    both: dict[str, Any] = {name: np.concatenate([arrays[name]] * 2) for name in ("Eye", "Spot")}
    for name in ("look", "known_eye"):
        parts = {part: np.asarray(rows) for part, rows in arrays[name].items()}
        both[name] = {part: np.concatenate([rows, rows]) for part, rows in parts.items()}
        half = len(parts["eye"])
        both[name]["eye"][half:] += eyes
        both[name]["unit"][half:] *= weight
    both["look"]["spot"][len(arrays["look"]["spot"]) :] += spots
    found = solver.solve(both)
    for name in ("Eye", "Spot"):
        rows, known = np.asarray(found.values[name]), np.asarray(wanted.values[name])
        for part in (rows[: len(known)], rows[len(known) :]):
            np.testing.assert_allclose(part, known, atol=2e-3)


class Length(sf.V1):
    """A value in some unit."""


class Level(sf.V1):
    """What its exponential should be."""


@caspar.factor
def growth(
    length: Annotated[Length, caspar.TunableShared],
    level: Annotated[Level, caspar.ConstSequential],
    unit: Annotated[Unit, caspar.ConstSequential],
) -> sf.V1:
    """A value in its unit, as an exponent."""
    return sf.V1(sf.exp(length[0] / unit[0]) - level[0])


def length_arrays(unit: float) -> dict[str, Any]:
    return {
        "Length": [[0.5 * unit], [0.1 * unit]],
        "growth": {"length": [0, 0, 1], "level": [[3.0], [3.1], [2.0]], "unit": [[unit]] * 3},
    }


@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_values_in_any_unit(precision: PrecisionName) -> None:
    solver = caspar.Solver([growth], precision=precision, backend="cpu")
    wanted = solver.solve(length_arrays(1.0))
    for unit in UNITS[precision]:
        found = solver.solve(length_arrays(unit))
        assert_same_course(found, wanted, 1.0)
        np.testing.assert_allclose(
            np.ravel(found.values["Length"]) / unit, np.ravel(wanted.values["Length"])
        )


# -- where the floating type ends ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "exponent"), [("float32", -22), ("float32", -30), ("float64", -170)]
)
def test_squares_of_residuals_that_vanish(precision: PrecisionName, exponent: int) -> None:
    solver = caspar.Solver([fading], precision=precision, backend="cpu")
    assert solver.solve(decay_arrays(10.0**exponent)).status is SolveStatus.OUT_OF_RANGE


@pytest.mark.parametrize("exponent", [-30, -22])
def test_such_squares_go_on_in_float64(exponent: int) -> None:
    """From mixed precision, also where a user has asked for it."""
    mixed = caspar.Solver([fading], precision="mixed", backend="cpu")
    found = mixed.solve(decay_arrays(10.0**exponent))
    exact = caspar.Solver([fading], precision="float64", backend="cpu")
    wanted = exact.solve(decay_arrays(1.0))
    assert found.status.is_success
    assert found.precision == "float64"
    assert "OUT_OF_RANGE" in " ".join(found.remarks)
    rates = [np.asarray(result.values["Model"])[0, 1] for result in (found, wanted)]
    assert rates[0] == pytest.approx(rates[1], rel=1e-6)


@pytest.mark.parametrize("precision", ["mixed", "float32"])
@pytest.mark.parametrize("exponent", [-30, -20, 25, 30])
def test_squares_of_derivatives_out_of_range(precision: PrecisionName, exponent: int) -> None:
    solver = caspar.Solver([growth], precision=precision, backend="cpu")
    result = solver.solve(length_arrays(10.0**exponent))
    if precision == "mixed":
        assert result.status.is_success
        assert "went on in float64" in " ".join(result.remarks)
    else:
        assert result.status is SolveStatus.OUT_OF_RANGE
    assert any("Squares of derivatives by Length" in remark for remark in result.remarks)


def test_numbers_that_vanish_in_float32() -> None:
    solver = caspar.Solver([fading], precision="mixed", backend="cpu")
    with pytest.raises(InputError, match="node type Model: all numbers in column 0 become zero"):
        solver.solve(decay_arrays(1e-60))
    arrays = decay_arrays(1.0)
    arrays["fading"]["sample"][:, 1] *= 1e-60
    with pytest.raises(InputError, match="argument sample: all numbers in column 1"):
        solver.solve(arrays)
    # zeros are as good as other numbers, and so is what vanishes beside others
    arrays = decay_arrays(1.0)
    arrays["fading"]["sample"][0, 1] = 0.0
    arrays["fading"]["sample"][1, 1] = 1e-60
    assert solver.solve(arrays).status.is_success


@pytest.mark.parametrize("precision", UNITS)
def test_a_start_without_residuals_is_a_solution(precision: PrecisionName) -> None:
    """Residuals of zero, or of roundings of the values, are not too small."""
    solver = caspar.Solver([fading], precision=precision, backend="cpu")
    time = np.linspace(0.0, 4.0, 30)
    for heights in (np.zeros(30), 3.0 * np.exp(-0.7 * time)):
        samples = np.stack([time, heights], axis=1)
        start = [[3.0 if heights.any() else 0.0, 0.7]]
        assert solver.solve({"Model": start, "fading": {"sample": samples}}).status.is_success


@pytest.mark.parametrize("exponent", [-200, -40, 40, 200])
def test_a_root_of_higher_order_in_any_unit(exponent: int) -> None:
    """x^2 has no slope at its zero: the cost falls by a factor of 16 each time, without end."""

    @caspar.factor
    def parabola(
        length: Annotated[Length, caspar.TunableShared],
        unit: Annotated[Unit, caspar.ConstSequential],
    ) -> sf.V1:
        return sf.V1(unit[0] * length[0] ** 2)

    solver = caspar.Solver([parabola], precision="float64", backend="cpu")
    wanted, found = (
        solver.solve({"Length": [[1.0]], "parabola": {"length": [0], "unit": [[unit]]}})
        for unit in (1.0, 2.0**exponent)
    )
    assert wanted.status is SolveStatus.CONVERGED_GRADIENT
    assert_same_course(found, wanted, 2.0**exponent)


def test_a_huge_start_is_no_measure() -> None:
    """The cost falls by more than 2^104 on the way to a fit that is not exact, in any unit.

    The rate that makes the start huge has no influence once the amplitude is next to nothing: the
    solve goes on from there to the same minimum as from a rate nearby.
    """
    solver = caspar.Solver([fading], precision="float64", backend="cpu")
    time = np.linspace(0.0, 4.0, 9)
    results = []
    for unit in (1.0, 2.0**-150):
        samples = np.stack([time, unit * (5.0 + np.cos(3.0 * time))], axis=1)
        start = [[5.0 * unit, -12.0]]
        results.append(solver.solve({"Model": start, "fading": {"sample": samples}}))
        assert results[-1].initial_cost > 2.0**104 * results[-1].final_cost
        near = {"Model": [[5.0 * unit, -1.0]], "fading": {"sample": samples}}
        assert results[-1].final_cost == pytest.approx(solver.solve(near).final_cost, rel=1e-9)
        assert results[-1].final_cost > 0.1 * unit**2
    assert_same_course(results[1], results[0], 2.0**-150)


@pytest.mark.parametrize("unit", [2.0**-20, 2.0**20, 2.0**60])
def test_a_bundle_in_another_unit_of_length(unit: float) -> None:
    problem = part_of(read("problem-21-11315"), 300)
    arrays = arrays_of(problem)
    solver = caspar.Solver([snavely], precision="float64", backend="cpu")
    wanted = solver.solve(arrays)
    arrays["Point"] = unit * arrays["Point"]
    arrays["Cam"] = arrays["Cam"] * np.array([1.0] * 4 + [unit] * 3 + [1.0] * 3)
    assert_same_course(solver.solve(arrays), wanted, 1.0)
