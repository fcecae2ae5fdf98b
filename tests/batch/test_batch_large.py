"""Problems that are too large for a kernel: solved one after the other, as `Solver` solves each."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.batch.options import MAX_UNKNOWNS
from caspar.errors import InputError
from caspar.solver.result.result import SolveStatus
from tests.batch.batch_cases import CASES, Case, anchor, decay, distance
from tests.batch.test_batch_solver import ragged
from tests.batch.test_batch_stiff import lines, sample
from tests.batch.test_batch_teams import spectra
from tests.covering import usual


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems take that way too."""
    monkeypatch.setitem(MAX_UNKNOWNS, "cpu", 0)


ALL = {**CASES, "spectra": spectra}


@pytest.mark.parametrize(
    ("name", "precision"),
    usual([("paths", "float64"), ("curves", "float32")], ALL, ["float64", "float32"]),
)
@pytest.mark.usefixtures("all_are_large")
def test_each_is_as_singly(name: str, precision: Any) -> None:
    case: Case = ALL[name]()
    batch = caspar.BatchSolver(case.factors, backend="cpu", precision=precision)
    found = batch.solve(case.arrays, fixed=case.fixed, max_iterations=50)
    solver = caspar.Solver(case.factors, backend="cpu", precision=precision)
    for number in range(min(case.num_problems, 4)):
        fixed = None if case.single_fixed is None else case.single_fixed(number)
        single = solver.solve(case.single(number), fixed=fixed, max_iterations=50)
        assert found.status[number] is single.status
        assert_allclose(found.final_cost[number], single.final_cost, rtol=1e-12)
        assert_allclose(found.initial_cost[number], single.initial_cost, rtol=1e-12)
        assert found.iterations[number] == len(single.iterations)
        for node, values in single.values.items():
            own = found.values[node][number].reshape(values.shape)
            assert_allclose(own, values, rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("all_are_large")
def test_ragged_empty_spoilt_held_and_bounded_problems() -> None:
    arrays, _, _ = ragged([7, 0, 70, 4, 1, 33, 0, 32])
    arrays["Curve"][3] = np.nan
    lower = np.zeros((8, 3))
    lower[2, 1] = 0.01
    bounds = {"Curve": (lower, 3.01)}
    held = {"Curve": np.arange(8) == 5}
    found = caspar.BatchSolver([decay], backend="cpu").solve(arrays, bounds=bounds, fixed=held)
    small = pytest.MonkeyPatch()
    small.setitem(MAX_UNKNOWNS, "cpu", 96)
    expected = caspar.BatchSolver([decay], backend="cpu").solve(arrays, bounds=bounds, fixed=held)
    small.undo()
    assert list(found.status[[1, 3, 6]]) == [
        SolveStatus.NO_RESIDUALS,
        SolveStatus.INITIAL_COST_NOT_FINITE,
        SolveStatus.NO_RESIDUALS,
    ]
    # with one sample there is no single minimum
    told = np.array([0, 1, 2, 3, 5, 6, 7])
    assert_array_equal(found.is_success[told], expected.is_success[told])
    assert_allclose(found.values["Curve"][told], expected.values["Curve"][told], atol=1e-6)
    assert_array_equal(found.active_bounds["Curve"][told], expected.active_bounds["Curve"][told])
    assert_array_equal(found.values["Curve"][5], arrays["Curve"][5])
    assert_array_equal(found.num_residuals, expected.num_residuals)


@pytest.mark.usefixtures("all_are_large")
def test_what_no_residual_pulls_is_no_success() -> None:
    """Beyond its scale Tukey's loss weighs nothing."""
    given, _, _ = lines(0.0, 2)
    start = np.array([[1.0, 2.5], [1e6, 0.0]])
    solver = caspar.BatchSolver(sample.with_loss(caspar.loss.Tukey), backend="cpu")
    found = solver.solve({"Line": start, "sample": {**given, "loss_scale": 0.5}})
    assert found.is_success[0]
    assert found.status[1] is SolveStatus.NO_RESIDUALS
    assert_array_equal(found.values["Line"][1], start[1])


SIZE = 50
"""Places of a ring: 100 unknowns."""


def webs(num_problems: int = 3, size: int = SIZE, seed: int = 0) -> dict[str, Any]:
    """Places and the distances between neighbours of a ring, (P, size, 2)."""
    rng = np.random.default_rng(seed)
    true = np.cumsum(rng.normal(1.0, 0.5, (num_problems, size, 2)), axis=1)
    first = np.concatenate([np.arange(size), np.arange(size)])
    second = (first + np.repeat([1, 3], size)) % size
    measured = np.linalg.norm(true[:, first] - true[:, second], axis=2)
    return {
        "Place": true + rng.normal(0.0, 0.1, true.shape),
        "distance": {
            "first": first[None],
            "second": second[None],
            "measured": measured + rng.normal(0.0, 0.02, measured.shape),
            "weight": rng.uniform(0.5, 2.0, measured.shape),
        },
        "anchor": {"place": np.arange(size)[None], "at": true},
    }


def test_a_hundred_unknowns() -> None:
    arrays = webs()
    batch = caspar.BatchSolver([distance, anchor], backend="cpu")
    found = batch.solve(arrays)
    assert found.is_success.all()
    assert "3 problems" in str(found)
    # each ends by itself: one that starts at its minimum takes fewer iterations
    again = batch.solve({**arrays, "Place": [found.values["Place"][0], *arrays["Place"][1:]]})
    assert again.iterations[0] < again.iterations[1]
    assert_allclose(again.final_cost, found.final_cost, rtol=1e-9)
    gradient = batch.gradient(found, {"Place": np.ones((3, SIZE, 2))})
    solver = caspar.Solver([distance, anchor], backend="cpu", precision="float64")
    own = arrays["distance"]
    single = {
        "Place": found.values["Place"][1],
        "distance": {
            "first": own["first"][0],
            "second": own["second"][0],
            "measured": own["measured"][1],
            "weight": own["weight"][1],
        },
        "anchor": {"place": np.arange(SIZE), "at": arrays["anchor"]["at"][1]},
    }
    expected = solver.gradient(single, {"Place": np.ones((SIZE, 2))})
    assert_allclose(
        gradient["distance"]["measured"][1], expected["distance"]["measured"], atol=1e-9
    )


def test_sixty_unknowns_by_a_kernel_and_singly(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = webs(size=30)
    batch = caspar.BatchSolver([distance, anchor], backend="cpu")
    found = batch.solve(arrays)
    monkeypatch.setitem(MAX_UNKNOWNS, "cpu", 48)
    singly = batch.solve(arrays)
    assert found.is_success.all()
    assert singly.is_success.all()
    assert_allclose(found.final_cost, singly.final_cost, rtol=1e-12)
    assert_allclose(found.values["Place"], singly.values["Place"], atol=1e-5)


@pytest.mark.parametrize("what", ["covariance", "source", "inspect"])
def test_what_large_problems_have_not(what: str) -> None:
    batch = caspar.BatchSolver([distance, anchor], backend="cpu")
    with pytest.raises(InputError, match=rf"{what}: a problem has 100 unknowns \(50 Place of 2\)"):
        getattr(batch, what)(webs())
