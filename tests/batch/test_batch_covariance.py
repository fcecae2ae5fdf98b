"""Covariances of batches: each problem as `Solver.covariance` alone."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.errors import InputError, OptionError
from tests.batch.batch_cases import CASES, Case, curves, decay, paths, reprojection, views
from tests.batch.test_batch_solver import ragged
from tests.covering import usual
from tests.harness_backend import HarnessBackend


def _solved(case: Case) -> tuple[caspar.BatchSolver, dict[str, object]]:
    solver = caspar.BatchSolver(case.factors, backend="cpu")
    result = solver.solve(case.arrays, fixed=case.fixed)
    return solver, {**case.arrays, **result.values}


@pytest.mark.parametrize(
    ("name", "scaled"), usual([("paths", True), ("cameras", False)], CASES, [False, True])
)
def test_as_one_by_one(name: str, scaled: bool) -> None:
    case = CASES[name]()
    solver, arrays = _solved(case)
    found = solver.covariance(arrays, fixed=case.fixed, scale_by_residual_variance=scaled)
    single = caspar.Solver(case.factors, backend="cpu")
    values = [key for key in case.arrays if key[0].isupper()]
    for number in range(case.num_problems):
        own = dict(case.single(number))
        for key in values:
            own[key] = np.asarray(arrays[key])[number].reshape(np.shape(own[key]))
        fixed = None if case.single_fixed is None else case.single_fixed(number)
        wanted = single.covariance(
            own,
            dict.fromkeys(solver_order(solver), "all"),
            fixed=fixed,
            scale_by_residual_variance=scaled,
        )
        first = 0
        for node in solver_order(solver):
            for block in wanted[node]:
                size = len(block)
                part = slice(first, first + size)
                assert_allclose(found[number, part, part], block, rtol=1e-7, atol=1e-14)
                first += size
        assert found.shape == (case.num_problems, first, first)


def solver_order(solver: caspar.BatchSolver) -> list[str]:
    """Node types as a batch orders them."""
    text = repr(solver).partition("node types: ")[2].partition(";")[0]
    return text.split(", ")


def test_cuda_text_gives_the_same() -> None:
    for case in (curves(num_problems=6), paths()):
        solver, arrays = _solved(case)
        expected = solver.covariance(arrays, fixed=case.fixed)
        other = caspar.BatchSolver(case.factors, backend=HarnessBackend())
        assert_allclose(other.covariance(arrays, fixed=case.fixed), expected, rtol=1e-12)


def test_what_is_held_and_what_is_at_a_bound() -> None:
    case = curves(num_problems=10)
    solver, arrays = _solved(case)
    held = np.zeros((10, 3), dtype=bool)
    held[2, 1] = True
    found = solver.covariance(arrays, fixed={"Curve": held})
    assert_array_equal(found[2, 1], 0.0)
    assert_array_equal(found[2, :, 1], 0.0)
    whole = solver.covariance(arrays)
    assert_allclose(found[:2], whole[:2], rtol=1e-12)
    upper = np.asarray(arrays["Curve"]).copy()
    upper[:, 0] += 1.0
    upper[:, 2] += 1.0
    bounded = solver.covariance(arrays, bounds={"Curve": (None, upper)})
    assert_allclose(bounded[2], found[2], rtol=1e-12)
    assert (np.diagonal(bounded, axis1=1, axis2=2)[:, [0, 2]] > 0.0).all()


def test_problems_that_are_not_determined() -> None:
    """Two samples for three unknowns, none, and NaN: the others are not touched."""
    arrays, _, _ = ragged([9, 2, 0, 12, 9])
    solver = caspar.BatchSolver(decay, backend="cpu")
    arrays["Curve"][4] = np.nan
    found = solver.covariance(arrays)
    assert_array_equal(np.isnan(found).all(axis=(1, 2)), [False, True, True, False, True])
    assert not np.isnan(found[[0, 3]]).any()
    exact, _, _ = ragged([3, 9])
    scaled = solver.covariance(exact, scale_by_residual_variance=True)
    assert_array_equal(np.isnan(scaled).all(axis=(1, 2)), [True, False])


def test_losses_weigh() -> None:
    start, points, pixels = views()
    robust = reprojection.with_loss(caspar.loss.Huber)
    given = {"point": points, "pixel": pixels, "loss_scale": 0.5}
    solver = caspar.BatchSolver(robust, backend="cpu")
    values = solver.solve({"Camera": start, "reprojection": given}).values["Camera"]
    found = solver.covariance({"Camera": values, "reprojection": given})
    single = caspar.Solver([robust], backend="cpu")
    for number in range(0, len(start), 5):
        own = {"point": points[number], "pixel": pixels[number], "loss_scale": 0.5}
        index = {"camera": np.zeros(points.shape[1], np.int32)}
        wanted = single.covariance(
            {"Camera": values[number : number + 1], "reprojection": {**index, **own}},
            {"Camera": "all"},
        )
        assert_allclose(found[number], wanted["Camera"][0], rtol=1e-8)


def test_a_wrong_flag() -> None:
    case = curves(num_problems=2)
    solver = caspar.BatchSolver(case.factors, backend="cpu")
    with pytest.raises(OptionError, match="must be True or False"):
        solver.covariance(case.arrays, scale_by_residual_variance=1)  # type: ignore[arg-type]


def test_of_a_result() -> None:
    """A result knows its arrays, what was held, and its bounds."""
    case = paths()
    solver = caspar.BatchSolver(case.factors, backend="cpu")
    result = solver.solve(case.arrays, fixed=case.fixed)
    expected = solver.covariance({**case.arrays, **result.values}, fixed=case.fixed)
    assert_array_equal(solver.covariance(result), expected)
    nothing_held: dict[str, object] = {}
    assert np.isnan(solver.covariance(result, fixed=nothing_held)).all() or not np.array_equal(
        solver.covariance(result, fixed=nothing_held), expected
    )
    with pytest.raises(InputError, match=r"does not hold the arrays of its solve: pass \{"):
        solver.covariance(pickle.loads(pickle.dumps(result)))
