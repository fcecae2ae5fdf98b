"""Arrays that are written to after a solve: no question to its result is answered from them."""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import InputError
from tests.solver.lm.test_units import growth, length_arrays

X = np.linspace(0.0, 1.0, 40)


class Line(sf.V2):
    """Height and slope."""


@caspar.factor
def sample(
    line: Annotated[Line, caspar.TunableShared],
    x: Annotated[sf.V1, caspar.ConstSequential],
    y: Annotated[sf.V1, caspar.ConstIndexed],
) -> sf.V1:
    return sf.V1(line[0] + line[1] * x[0] - y[0])


def line_arrays() -> dict[str, Any]:
    """Exact samples, so that the cost is 0 with any weights; the second line has the last one."""
    return {
        "Line": np.array([[0.0, 0.0], [1.0, 2.0]]),
        "sample": {
            "line": (np.arange(40) == 39).astype(np.int32),
            "x": X.copy(),
            "y": {"values": 1.0 + 2.0 * X, "index": np.arange(40)},
            "weight": np.ones(40),
        },
    }


Arrays = dict[str, Any]
Write = Callable[[Arrays, Arrays, Any], object]


def fill(array: Any, number: float) -> None:
    array[...] = number


WRITES: dict[str, tuple[Write, str]] = {
    "argument": (lambda a, f, r: fill(a["sample"]["x"], 3.0), "factor sample, x"),
    "weight": (lambda a, f, r: fill(a["sample"]["weight"], 60.0), "factor sample, weight"),
    "one number": (lambda a, f, r: fill(a["sample"]["x"][7:8], 0.2), "factor sample, x"),
    "values of an argument": (
        lambda a, f, r: fill(a["sample"]["y"]["values"], 3.0),
        "factor sample, y, values",
    ),
    "two rows swapped": (
        lambda a, f, r: a["sample"]["x"].__setitem__([1, 2], a["sample"]["x"][[2, 1]]),
        "factor sample, x",
    ),
    "index of nodes": (lambda a, f, r: fill(a["sample"]["line"], 1), "factor sample, line"),
    "values of the result": (lambda a, f, r: fill(r.values["Line"], 0.0), "result.values, Line"),
}
"""By name what is written (to arrays, what is held, the result), and what the error names."""


@pytest.mark.parametrize("name", WRITES)
def test_written_arrays_are_refused(name: str) -> None:
    write, names = WRITES[name]
    arrays, held = line_arrays(), {"Line": np.array([False, True])}
    solver = caspar.Solver(sample, backend="cpu")
    result = solver.solve(arrays, fixed=held)
    write(arrays, held, result)
    for ask in (
        lambda: result.residuals("sample"),
        lambda: result.weights("sample"),
        lambda: solver.covariance(result, {"Line": [0]}),
        lambda: solver.gradient(result, {"Line": np.ones((2, 2))}),
    ):
        with pytest.raises(InputError, match=f"the arrays have changed since .*: {names}"):
            ask()


@pytest.mark.parametrize("which", ["fixed", "bounds"])
def test_written_constraints_are_refused(which: str) -> None:
    arrays = line_arrays()
    held = {"Line": np.array([[False, False], [True, True]])}
    lower = np.array([[0.0, 0.0], [-9.0, -9.0]])
    solver = caspar.Solver(sample, backend="cpu")
    result = solver.solve(arrays, fixed=held, bounds={"Line": (lower, None)})
    before = solver.covariance(result, {"Line": [0]}).standard_errors("Line")
    assert np.isfinite(before).all()
    fill(held["Line"] if which == "fixed" else lower, 1)
    for ask in (
        lambda: solver.covariance(result, {"Line": [0]}),
        lambda: solver.gradient(result, {"Line": np.ones((2, 2))}),
    ):
        with pytest.raises(InputError, match=f"the arrays have changed since .*: {which}, Line"):
            ask()
    np.testing.assert_allclose(result.residuals("sample"), 0.0, atol=1e-12)


def test_what_does_not_matter_may_be_written() -> None:
    """Start values, and other arrays in the same mapping."""
    arrays, held = line_arrays(), {"Line": [1]}
    solver = caspar.Solver(sample, backend="cpu")
    result = solver.solve(arrays, fixed=held)
    expected = solver.covariance(result, {"Line": [0]}).standard_errors("Line")
    arrays["Line"][:] = 7.0
    arrays["sample"]["x"] = X + 1.0
    held["Line"] = [0]
    found = solver.covariance(result, {"Line": [0]}).standard_errors("Line")
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(result.residuals("sample"), 0.0, atol=1e-12)
    by_y = solver.gradient(result, {"Line": np.array([[1.0, 0.0], [0.0, 0.0]])})["sample"]["y"]
    assert by_y[:39].sum() == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("kind", ["list", "float32", "reversed", "large"])
def test_all_kinds_of_arrays(kind: str) -> None:
    count = 3_000_000 if kind == "large" else 40
    x = np.linspace(0.0, 1.0, count)
    given: Any = {
        "list": x.tolist(),
        "float32": x.astype(np.float32),
        "reversed": x[::-1][::-1],
        "large": x,
    }[kind]
    arrays = line_arrays()
    arrays["sample"] = {
        "line": (np.arange(count) == count - 1).astype(np.int32),
        "x": given,
        "y": {"values": [[1.0]], "index": np.zeros(count, np.int32)},
    }
    solver = caspar.Solver(sample, backend="cpu")
    result = solver.solve(arrays, fixed={"Line": [1]})
    assert result.residuals("sample").shape == (count, 1)
    given[count - 1] = 0.5
    with pytest.raises(InputError, match="factor sample, x"):
        solver.covariance(result, {"Line": [0]})


@pytest.mark.parametrize("name", ["argument", "weight", "values of the result"])
def test_batches_refuse_too(name: str) -> None:
    write, names = WRITES[name]
    one = line_arrays()
    own = {key: one["sample"][key][None] for key in ("line", "x", "weight")}
    arrays = {
        "Line": one["Line"][None],
        "sample": {**own, "y": {"values": (1.0 + 2.0 * X)[None], "index": np.arange(40)[None]}},
    }
    solver = caspar.BatchSolver(sample, backend="cpu")
    result = solver.solve(arrays, fixed={"Line": [1]})
    assert np.isfinite(solver.covariance(result)).all()
    write(arrays, {}, result)
    for ask in (
        lambda: solver.covariance(result),
        lambda: solver.gradient(result, {"Line": np.ones((1, 2, 2))}),
    ):
        with pytest.raises(InputError, match=f"the arrays have changed since .*: {names}"):
            ask()


@caspar.factor
def between(
    pose: Annotated[caspar.Pair[sf.Pose2], caspar.TunablePair],
    distance: Annotated[sf.V1, caspar.ConstUnique],
) -> sf.V1:
    first, second = pose
    return sf.V1((second.t - first.t).norm(sf.epsilon()) - distance[0])


def test_a_scene_begins_with_the_start_values_of_the_solve() -> None:
    poses = np.array([[1.0, 0.0, float(place), 0.0] for place in range(4)])
    arrays = {"Pose2": poses, "between": {"distance": [2.0]}}
    solver = caspar.Solver(between, backend="cpu", precision="float64")
    result = solver.solve(arrays, fixed={"Pose2": [0]})
    assert caspar.scene.scene_of_result(result).states[0].cost == pytest.approx(1.5)
    poses[:] = result.values["Pose2"]
    with pytest.raises(InputError, match="start values of Pose2"):
        caspar.scene.scene_of_result(result)


def test_a_solve_that_went_on_in_float64_begins_where_it_began() -> None:
    arrays = length_arrays(1e25)
    result = caspar.Solver(growth, precision="mixed", backend="cpu").solve(arrays)
    assert "went on in float64" in " ".join(result.remarks)
    assert len(result.iterations) > 1
    assert result.given is not None
    np.testing.assert_array_equal(result.given.arrays.at_start()["Length"], arrays["Length"])
