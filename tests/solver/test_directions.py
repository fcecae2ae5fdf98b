"""Directions (`Unit3`): what has no step stays, and a fit is as exact as the precision."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import caspar
from tests.solver.solving import ON_BACKENDS, solver

EPSILON = {"float64": 2.2e-16, "mixed": 6e-8, "float32": 6e-8}
PRECISIONS = pytest.mark.parametrize("precision", EPSILON)


class Way(sf.Unit3):
    """Where something is seen."""


class Spot(sf.V3):
    """Where it is."""


@caspar.factor
def seen(
    way: Annotated[Way, caspar.TunableShared], expected: Annotated[sf.V3, caspar.ConstSequential]
) -> sf.V3:
    """A direction against a measured one."""
    return way.to_unit_vector() - expected


@caspar.factor
def depth(
    way: Annotated[Way, caspar.TunableShared],
    spot: Annotated[Spot, caspar.TunableShared],
    along: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    """How far a spot is along a direction."""
    return sf.V1(way.to_unit_vector().dot(spot) - along[0])


def directions(count: int, seed: int) -> NDArray[np.float64]:
    """Of all kinds, those of SymForce's chart that are special among them."""
    found = np.random.default_rng(seed).normal(size=(count, 3))
    found[:2] = [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]
    unit: NDArray[np.float64] = found / np.linalg.norm(found, axis=1, keepdims=True)
    return unit


@pytest.mark.filterwarnings("ignore:node type Way")
@PRECISIONS
@ON_BACKENDS
def test_a_perfect_fit_and_what_nothing_touches(precision: str, backend: str) -> None:
    start, wanted = directions(40, 0), directions(25, 1)
    arrays: dict[str, Any] = {
        "Way": start,
        "seen": {"way": np.arange(25) + 10, "expected": wanted},
    }
    result = solver((seen,), precision, backend).solve(arrays)
    assert result.status.is_success
    found = result.values["Way"]
    assert_allclose(found[10:35], wanted, atol=4 * EPSILON[precision])
    assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=4 * EPSILON[precision])
    assert_array_equal(found[:10], start[:10])
    assert_array_equal(found[35:], start[35:])


@pytest.mark.filterwarnings("ignore:node type Spot")
@PRECISIONS
def test_noise_ends_at_a_minimum(precision: str) -> None:
    """A retraction that moves by no step ends with steps that are rejected at any damping."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        ways, spots = directions(4, seed), random.normal(4.0 * np.eye(3)[2], size=(4, 3))
        way, spot = np.arange(16) % 4, random.integers(0, 4, 16)
        along = (ways[way] * spots[spot]).sum(axis=1, keepdims=True)
        begun = ways + 0.2 * random.normal(size=ways.shape)
        arrays: dict[str, Any] = {
            "Way": begun / np.linalg.norm(begun, axis=1, keepdims=True),
            "Spot": spots + 0.2 * random.normal(size=spots.shape),
            "depth": {
                "way": way,
                "spot": spot,
                "along": along + 0.05 * random.normal(size=along.shape),
            },
        }
        assert solver((depth,), precision).solve(arrays).status.is_success
