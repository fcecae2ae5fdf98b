"""Fitted values by the names of fields, in a result and in its report."""

import pickle
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.errors import InputError
from caspar.report import text_report
from caspar.solver.result.quantities import fields_text


@dataclass
class Decay:
    """Height, rate, and where it is measured."""

    height: sf.Scalar
    rate: sf.Scalar
    place: sf.V2


class Level(sf.V1): ...


@caspar.factor
def decay(
    curve: Annotated[Decay, caspar.TunableShared],
    level: Annotated[Level, caspar.TunableUnique],
    x: Annotated[sf.V1, caspar.ConstSequential],
    y: Annotated[sf.V3, caspar.ConstSequential],
) -> sf.V3:
    height = curve.height * sf.exp(-curve.rate * x[0]) + level[0]
    return sf.V3(height - y[0], *(curve.place - sf.V2(y[1], y[2])))


def problem(num_curves: int = 1) -> dict[str, Any]:
    x = np.tile(np.linspace(0.0, 3.0, 20), num_curves)[:, None]
    which = np.repeat(np.arange(num_curves), 20)
    height = (2.0 + which) * np.exp(-1.5 * x[:, 0]) + 0.25
    y = np.column_stack([height, np.full(len(x), 3.0), np.full(len(x), -4.0)])
    return {
        "Decay": np.tile([1.0, 1.0, 0.0, 0.0], (num_curves, 1)),
        "Level": np.zeros((1, 1)),
        "decay": {"curve": which, "x": x, "y": y},
    }


def solver() -> caspar.Solver:
    return caspar.Solver([decay], backend="cpu")


def solved(num_curves: int = 1, **changes: Any) -> caspar.SolveResult:
    return solver().solve({**problem(num_curves), **changes})


def test_fields_are_parts_of_the_values() -> None:
    result = solved(3)
    found = result.values_of("Decay")
    assert list(found) == ["height", "rate", "place"]
    assert_allclose(found["height"], [2.0, 3.0, 4.0], rtol=1e-6)
    assert_allclose(found["rate"], 1.5, rtol=1e-6)
    assert_allclose(found["place"], [[3.0, -4.0]] * 3, rtol=1e-6)
    assert np.shares_memory(found["rate"], result.values["Decay"])


def test_blocked_arrays_are_read_as_rows() -> None:
    rows = np.array([[1.0, 1.0, 0.0, 0.0]])
    result = solved(Decay=caspar.BlockedArray.from_rows(rows))
    assert_array_equal(result.values_of("Decay")["place"].shape, (1, 2))


def test_what_has_no_fields_is_refused() -> None:
    result = solved()
    with pytest.raises(InputError, match=r"node type Level is no dataclass.* values\['Level'\]"):
        result.values_of("Level")
    with pytest.raises(InputError, match=r"'Curve' is no node type; these are Dec"):
        result.values_of("Curve")


def test_a_report_of_a_small_problem_shows_them() -> None:
    text = text_report(solved(), width=120)
    assert "fitted        Decay: height 2, rate 1.5, place (3, -4)\n" in text
    assert "fitted        Level: 0.25\n" in text
    several = text_report(solved(3), width=120)
    assert "fitted        Decay[2]: height 4, rate 1.5, place (3, -4)\n" in several
    assert "fitted" in text_report(solved(5), width=120)


def test_a_report_of_a_larger_one_does_not() -> None:
    assert "fitted" not in text_report(solved(6), width=120)
    assert solved(6).values["Decay"].size + 1 == 25


def noisy() -> dict[str, Any]:
    arrays = problem()
    noise = 0.01 * np.random.default_rng(0).normal(size=(20, 3))
    return {**arrays, "decay": {**arrays["decay"], "y": arrays["decay"]["y"] + noise}}


@pytest.mark.parametrize("how", ["by result", "by values"])
def test_standard_errors_after_a_covariance(how: str) -> None:
    """The result that had the values shows them, also if it is asked for by its values."""
    made, arrays = solver(), noisy()
    other, result = made.solve(arrays), made.solve(arrays)
    given = result if how == "by result" else {**arrays, **result.values}
    cov = made.covariance(given, {"Decay": "all"}, scale_by_residual_variance=True)
    values, errors = result.values["Decay"][0], cov.standard_errors("Decay")[0]
    height, rate, x, y = (f"{v:.6g} +- {e:.2g}" for v, e in zip(values, errors, strict=True))
    text = " ".join(text_report(result, width=200).split())
    assert f"fitted Decay: height {height}, rate {rate}, place ({x}, {y}) fitted Level: " in text
    assert f"uncertainty Residual variance {cov.residual_variance:.6g} with 55 degrees" in text
    assert "have been multiplied by it" in text
    assert " +- " not in text.split("fitted Level: ")[1]  # which was not asked for
    assert "+-" not in text_report(other, width=200)
    assert result.standard_errors is not None
    assert_array_equal(result.standard_errors.by_type["Decay"], errors[None])
    assert "+-" in text_report(pickle.loads(pickle.dumps(result)), width=200)
    assert "+-" in result._repr_html_()
    made.covariance(result, {"Level": "all"})
    assert text_report(result, width=200).count("+-") == 1


def test_a_result_knows_what_was_held() -> None:
    made, arrays = solver(), noisy()
    fixed = {"Decay": {"rate": True}}
    bounds = {"Decay": {"height": (None, 1.5)}}
    result = made.solve(arrays, fixed=fixed, bounds=bounds)
    cov = made.covariance(result, {"Decay": "all"})
    text = text_report(result, width=200)
    assert "height 1.5 (held), rate 1 (held), place (" in text
    assert cov.num_unknowns == 3
    same = made.covariance(
        {**arrays, **result.values}, {"Decay": "all"}, fixed=fixed, bounds=bounds
    )
    assert_array_equal(same["Decay"], cov["Decay"])
    assert made.covariance(result, {"Decay": "all"}, fixed={}).num_unknowns == 4
    assert made.covariance(result, {"Decay": "all"}, fixed={}, bounds={}).num_unknowns == 5


def test_a_result_of_another_solver_has_no_covariance() -> None:
    with pytest.raises(InputError, match=r"of another solver, or a copy.* pass {\*\*arrays, "):
        solver().covariance(solved(), {"Decay": "all"})


def test_a_covariance_of_a_larger_problem_leaves_its_result_alone() -> None:
    made = solver()
    result = made.solve(problem(6))
    made.covariance(result, {"Decay": [1]})
    assert result.standard_errors is None


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (3.0, 0.1, "3 +- 0.1"),
        (1234567.8, 12.0, "1234568 +- 12"),
        (2.0 / 3.0, 1.2e-9, "0.6666666667 +- 1.2e-09"),
        (1.0 / 3.0, 1e-30, "0.333333333333333 +- 1e-30"),
        (0.0, 0.1, "0 +- 0.1"),
        (2.0, 0.0, "2 (held)"),
        (2.0, np.nan, "2"),
        (2.0, np.inf, "2 +- inf"),
    ],
)
def test_values_have_the_digits_of_their_errors(value: float, error: float, text: str) -> None:
    assert fields_text([value], [error], {}, {}) == text


def test_rotations_have_more_numbers_than_errors() -> None:
    places = {"at": range(2), "turn": range(2, 6)}
    tangent = {"at": range(2), "turn": range(2, 5)}
    errors = [0.5, np.nan, 0.1, 0.2, 0.3]
    text = fields_text([1.0, 2.0, 0.0, 0.0, 0.0, 1.0], errors, places, tangent)
    assert text == "at (1 +- 0.5, 2), turn (0, 0, 0, 1; standard errors 0.1, 0.2, 0.3)"
