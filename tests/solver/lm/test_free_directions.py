"""Nodes that factors hold in some directions only do not hold up the others."""

from typing import Annotated

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.options import BackendName, JacobianName, LinearSolverName
from tests.solver import reference
from tests.solver.lm.test_rounding import FACTORS, path
from tests.solver.solving import ON_BACKENDS, Arrays


class Spot(sf.V2):
    """A place in the plane."""


@caspar.factor
def ring(spot: Annotated[Spot, caspar.TunableShared]) -> sf.V1:
    return sf.V1(spot.norm() - 1)


@ON_BACKENDS
@pytest.mark.parametrize("seed", range(4))
def test_each_place_is_free_along_a_circle(seed: int, backend: BackendName) -> None:
    """One of them sees the circle along an axis: diag(J^T J) has next to nothing in an entry."""
    spots = np.random.default_rng(seed).normal(size=(100, 2))
    solver = caspar.Solver(ring, backend=backend, precision="float64")
    result = solver.solve({"Spot": spots, "ring": {"spot": np.arange(100)}})
    assert result.status.is_success
    assert result.final_cost < 1e-12
    assert len(result.iterations) < 50


def with_beacons_heard_once(num_beacons: int, seed: int) -> Arrays:
    """Some beacons more, each of one distance."""
    arrays, random = path(), np.random.default_rng(seed)
    robot = random.integers(0, 100, num_beacons)
    places = random.uniform(-12.0, 12.0, (num_beacons, 2))
    heard = arrays["distance"]
    seen = np.linalg.norm(arrays["Robot"][robot] - places, axis=1) + random.normal(size=num_beacons)
    # along the axes, and nearly so
    places[:4] = arrays["Robot"][robot[:4]] + [[3.0, 0.0], [0.0, 3.0], [5.0, 1e-8], [1e-5, -4.0]]
    return {
        **arrays,
        "Beacon": np.vstack([arrays["Beacon"], places]),
        "distance": {
            "robot": np.append(heard["robot"], robot),
            "beacon": np.append(heard["beacon"], 5 + np.arange(num_beacons)),
            "known": np.vstack([heard["known"], seen[:, None]]),
        },
    }


@ON_BACKENDS
@pytest.mark.parametrize("jacobian", ["stored", "recompute"])
@pytest.mark.parametrize("linear_solver", ["pcg", "schur_pcg", "schur_dense", "auto"])
def test_beacons_heard_once(
    linear_solver: LinearSolverName, jacobian: JacobianName, backend: BackendName
) -> None:
    """Each can be at its distance: the cost is what it is without them."""
    optimum = reference.minimize_with_scipy(FACTORS, path()).cost
    solver = caspar.Solver(
        FACTORS,
        backend=backend,
        precision="float64",
        linear_solver=linear_solver,
        jacobian=jacobian,
    )
    for seed in range(3):
        result = solver.solve(with_beacons_heard_once(40, seed), max_linear_iterations=1000)
        assert result.status.is_success
        assert result.final_cost == pytest.approx(optimum, rel=1e-5)
