"""Factors for which there is nothing to pass: `{}`, `[]`, None, or left out."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import InputError


class Stop(sf.V2):
    """A place on a way."""


@caspar.factor
def step(stops: Annotated[caspar.Pair[Stop], caspar.TunablePair]) -> sf.V2:
    first, second = stops
    return second - first - sf.V2(1, 0)


@caspar.factor
def seen(
    stop: Annotated[Stop, caspar.TunableShared], place: Annotated[sf.V2, caspar.ConstSequential]
) -> sf.V2:
    return 3 * (stop - place)


SEEN = {"stop": [0], "place": [[5.0, 5.0]]}
NOTHING: dict[str, dict[str, Any]] = {
    "{}": {"step": {}},
    "[]": {"step": []},
    "()": {"step": ()},
    "None": {"step": None},
    "left out": {},
}


@pytest.mark.parametrize("form", NOTHING)
def test_forms(form: str) -> None:
    arrays = {"Stop": np.zeros((4, 2)), "seen": SEEN, **NOTHING[form]}
    solver = caspar.Solver([step, seen], backend="cpu", precision="float64")
    result = solver.solve(arrays)
    expected = np.array([[5.0, 5.0], [6.0, 5.0], [7.0, 5.0], [8.0, 5.0]])
    np.testing.assert_allclose(result.values["Stop"], expected, atol=1e-9)
    assert result.problem.factors == {"step": 3, "seen": 1}
    assert result.residuals("step").shape == (3, 2)
    assert solver.evaluate(arrays).costs["step"] == pytest.approx(1.5)
    assert solver.prepare(arrays).problem.factors["step"] == 3
    errors = solver.covariance(result, {"Stop": "all"}).standard_errors("Stop")
    np.testing.assert_allclose(errors[0], 1.0 / 3.0, rtol=1e-9)
    by = {"Stop": np.ones((4, 2))}
    for given in (result, {**arrays, **result.values}):
        gradient = solver.gradient(given, by)
        assert gradient["step"] == {}
        np.testing.assert_allclose(gradient["seen"]["place"], [[4.0, 4.0]], rtol=1e-9)
    robust = caspar.solve_gnc(solver, arrays, inlier_threshold={"step": 0.5})
    np.testing.assert_allclose(robust.values["Stop"], expected, atol=1e-6)


@pytest.mark.parametrize("form", NOTHING)
def test_batches(form: str) -> None:
    arrays = {
        "Stop": np.zeros((2, 3, 2)),
        "seen": {"stop": [[0], [1]], "place": np.ones((2, 1, 2))},
    }
    arrays |= NOTHING[form]
    solver = caspar.BatchSolver([step, seen], backend="cpu")
    result = solver.solve(arrays)
    expected = [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]
    np.testing.assert_allclose(result.values["Stop"][0], expected, atol=1e-9)
    assert np.isfinite(solver.covariance(result)).all()
    assert solver.gradient(result, {"Stop": np.ones((2, 3, 2))})["step"] == {}


def test_a_factor_with_arguments_needs_them() -> None:
    solver = caspar.Solver([step, seen], backend="cpu")
    no_arrays: tuple[Any, ...] = (None, [])
    for given in no_arrays:
        with pytest.raises(InputError, match=r"\(stop, place\).*no instances, pass \[\] for each"):
            solver.solve({"Stop": np.zeros((4, 2)), "seen": given})
    with pytest.raises(InputError, match="'seen' is missing"):
        solver.solve({"Stop": np.zeros((4, 2))})
    with pytest.raises(InputError, match="factor step: there is nothing to pass, got ndarray"):
        solver.solve({"Stop": np.zeros((4, 2)), "seen": SEEN, "step": np.zeros(3)})
