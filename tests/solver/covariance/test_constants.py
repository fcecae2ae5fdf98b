"""Factors that say nothing about what is asked for: all their nodes are held, or weigh nothing."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose

import caspar
from caspar.errors import RankDeficiencyError
from tests.solver.covariance.covariance_cases import METHODS


class Camera(sf.V2):
    """A place."""


class Mark(sf.V2):
    """Another one."""


@caspar.factor
def sight(
    camera: Annotated[Camera, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    seen: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    return mark - camera - seen


@caspar.factor
def known_camera(
    camera: Annotated[Camera, caspar.TunableShared], place: Annotated[sf.V2, caspar.ConstSequential]
) -> sf.V2:
    return 2 * (camera - place)


FACTORS = {"prior last": (sight, known_camera), "prior first": (known_camera, sight)}


def arrays(sights: float = 1.0, priors: float = 1.0) -> dict[str, Any]:
    """Two cameras that see three marks, and weights."""
    return {
        "Camera": np.zeros((2, 2)),
        "Mark": np.zeros((3, 2)),
        "sight": {
            "camera": np.repeat([0, 1], 3),
            "mark": np.tile([0, 1, 2], 2),
            "seen": np.arange(12.0).reshape(6, 2),
            "weight": np.full(6, sights),
        },
        "known_camera": {
            "camera": np.array([0, 1]),
            "place": np.ones((2, 2)),
            "weight": np.full(2, priors),
        },
    }


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("factors", FACTORS.values(), ids=FACTORS)
def test_a_prior_on_held_cameras(method: str, factors: Sequence[caspar.Factor]) -> None:
    solver = caspar.Solver(factors, backend="cpu", limits=METHODS[method])
    result = solver.solve(arrays(), fixed={"Camera": True})
    found = solver.covariance(result, {"Mark": "all"})
    assert found.method == method
    assert (found.rank, found.num_unknowns, found.num_residuals) == (6, 6, 16)
    assert_allclose(found["Mark"], np.tile(0.5 * np.eye(2), (3, 1, 1)), rtol=1e-12)
    # marks are seen at (0..5, 1..5) and (6..): 3 off their means each; priors are off by 2
    assert_allclose(found.residual_variance, (12 * 3.0**2 + 4 * 2.0**2) / 10, rtol=1e-12)
    both = solver.covariance(result, {"Mark": [1], "Camera": "all"})
    assert_allclose(both["Mark"][0], 0.5 * np.eye(2), rtol=1e-12)
    assert_allclose(both["Camera"], 0.0, atol=0.0)
    assert "+- 0.71" in str(result)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_moves(method: str) -> None:
    solver = caspar.Solver([sight, known_camera], backend="cpu", limits=METHODS[method])
    held = {"Camera": True, "Mark": True}
    found = solver.covariance(arrays(), {"Mark": "all"}, fixed=held)
    assert found.rank == found.num_unknowns == 0
    assert_allclose(found["Mark"], 0.0, atol=0.0)


@pytest.mark.parametrize("method", METHODS)
def test_all_weights_are_zero(method: str) -> None:
    solver = caspar.Solver([sight, known_camera], backend="cpu", limits=METHODS[method])
    with pytest.raises(RankDeficiencyError, match="No residual depends on Mark 0, all of it"):
        solver.covariance(arrays(0.0, 0.0), {"Mark": "all"})
    with pytest.raises(RankDeficiencyError, match="6 directions are free"):
        solver.covariance(arrays(0.0, 1.0), {"Mark": "all"}, fixed={"Camera": True})
    found = solver.covariance(arrays(0.0, 1.0), {"Camera": "all"})
    assert_allclose(found["Camera"], np.tile(0.25 * np.eye(2), (2, 1, 1)), rtol=1e-12)
    pseudo = solver.covariance(arrays(0.0, 0.0), {"Mark": "all"}, gauge="minimum_norm")
    assert_allclose(pseudo["Mark"], 0.0, atol=0.0)
