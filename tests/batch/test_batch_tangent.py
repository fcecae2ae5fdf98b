"""Covariances and gradients of batches with constraints, against those of single solves."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import caspar
from caspar.options import BackendName
from tests.batch.test_batch_constraints import (
    above,
    arms,
    as_ragged,
    hand,
    near,
    rest,
    rod,
    web_of,
    webs,
)
from tests.solver.solving import ON_BACKENDS

NUM = 6


@ON_BACKENDS
@pytest.mark.parametrize("scales", [False, True])
def test_covariances_of_webs(backend: BackendName, scales: bool) -> None:
    arrays = webs(NUM)
    batch = caspar.BatchSolver([near, rod, above], backend=backend)
    found = batch.solve(arrays)
    covariance = batch.covariance(found, scale_by_residual_variance=scales)
    solver = caspar.Solver([near, rod, above], backend="cpu")
    assert np.count_nonzero(found.multipliers["above"] > 0.0) > 3
    for number in range(NUM):
        single = solver.solve(web_of(arrays, number))
        own = solver.covariance(single, {"Spot": "all"}, scale_by_residual_variance=scales)
        for spot in range(4):
            part = slice(2 * spot, 2 * spot + 2)
            assert_allclose(covariance[number, part, part], own["Spot"][spot], rtol=1e-5, atol=1e-7)


@ON_BACKENDS
def test_gradients_of_webs(backend: BackendName) -> None:
    arrays = webs(NUM)
    turn = np.random.default_rng(4).normal(size=(NUM, 4, 2))
    batch = caspar.BatchSolver([near, rod, above], backend=backend)
    gradient = batch.gradient(batch.solve(arrays), {"Spot": turn})
    solver = caspar.Solver([near, rod, above], backend="cpu")
    for number in range(NUM):
        single = solver.solve(web_of(arrays, number))
        own = solver.gradient(single, {"Spot": turn[number]})
        for factor, argument in (("near", "place"), ("rod", "length"), ("above", "least")):
            wanted = own[factor][argument]
            assert_allclose(gradient[factor][argument][number], wanted, rtol=1e-4, atol=1e-5)
    assert set(gradient["rod"]) == {"length"}
    assert gradient.remarks == ()


def test_ragged_and_single_nodes() -> None:
    arrays = webs(NUM)
    keeps = np.random.default_rng(2).uniform(size=(NUM, 4)) < 0.6
    ragged = as_ragged(arrays, keeps)
    batch = caspar.BatchSolver([near, rod, above], backend="cpu")
    idle = np.where(keeps[:, :, None], arrays["above"]["least"], -100.0)
    equal = {**arrays, "above": {**arrays["above"], "least": idle}}
    turn = {"Spot": np.random.default_rng(4).normal(size=(NUM, 4, 2))}
    first, second = batch.solve(ragged), batch.solve(equal)
    assert_allclose(batch.covariance(first), batch.covariance(second), atol=1e-6)
    found, wanted = batch.gradient(first, turn), batch.gradient(second, turn)
    rows: Any = ragged["above"]["spot"]
    own = wanted["above"]["least"][rows["problem"], rows["values"]]
    assert_allclose(found["above"]["least"], own, rtol=1e-4, atol=1e-5)
    assert_allclose(found["rod"]["length"], wanted["rod"]["length"], rtol=1e-4, atol=1e-5)


def test_an_exact_hand_does_not_vary() -> None:
    """Five joints, of which three entries of the pose leave two."""
    arrays = arms(NUM)
    batch = caspar.BatchSolver([rest, hand], backend="cpu")
    found = batch.solve(arrays)
    done = found.is_success
    covariance = batch.covariance(found)[done]
    angles = found.values["Arm"][done]
    total = np.cumsum(angles, axis=1)
    slopes = np.stack(
        [
            -np.cumsum(np.sin(total)[:, ::-1], axis=1)[:, ::-1],
            np.cumsum(np.cos(total)[:, ::-1], axis=1)[:, ::-1],
            np.ones_like(angles),
        ],
        axis=1,
    )
    # the projection on what the hand leaves free
    inverse = np.linalg.inv(slopes @ slopes.swapaxes(1, 2))
    free = np.eye(5) - slopes.swapaxes(1, 2) @ inverse @ slopes
    assert_allclose(covariance, free, atol=1e-5)
    gradient = batch.gradient(found, {"Arm": np.ones((NUM, 5))}, hessian="gauss_newton")
    assert np.isfinite(gradient["hand"]["pose"][done]).all()
