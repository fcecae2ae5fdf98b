"""A large first damping may lead nowhere, but never to what is called a minimum."""

from typing import Annotated, Any

import pytest
import symforce.symbolic as sf

import caspar


class Valley(sf.V2):
    """A point of Rosenbrock's function."""


@caspar.factor
def rosenbrock(point: Annotated[Valley, caspar.TunableUnique]) -> sf.V2:
    return sf.V2(100.0 * (point[1] - point[0] ** 2), 1.0 - point[0])


@pytest.mark.parametrize("precision", ["mixed", "float32", "float64"])
def test_steps_that_damping_alone_makes_small_end_at_no_minimum(precision: str) -> None:
    made = caspar.Solver(rosenbrock, backend="cpu", precision=precision)
    arrays: dict[str, Any] = {"Valley": [[-1.2, 1.0]], "rosenbrock": {}}
    assert made.solve(arrays).status.is_success
    for damping in (1e10, 1e13, 1e16):
        result = made.solve(arrays, initial_damping=damping)
        assert not result.status.is_success or result.final_cost < 1e-6
