"""A large first damping may lead nowhere, but never to what is called a minimum."""

from typing import Annotated

import pytest
import symforce.symbolic as sf

import caspar
from caspar.options import PrecisionName


class Valley(sf.V2):
    """A point of Rosenbrock's function."""


@caspar.factor
def rosenbrock(
    point: Annotated[Valley, caspar.TunableUnique], weight: Annotated[sf.V1, caspar.ConstUnique]
) -> sf.V2:
    return weight[0] * sf.V2(100.0 * (point[1] - point[0] ** 2), 1.0 - point[0])


class Step(sf.V1):
    """One number."""


@caspar.factor
def uphill(
    place: Annotated[Step, caspar.TunableUnique], weight: Annotated[sf.V1, caspar.ConstUnique]
) -> sf.V2:
    """Falls to 3, but for a jump at 0, of which its derivative knows nothing."""
    return weight[0] * sf.V2(10.0 * sf.sign_no_zero(place[0]) + 11.0, 3.0 - place[0])


PRECISIONS = pytest.mark.parametrize("precision", ["mixed", "float32", "float64"])


@PRECISIONS
@pytest.mark.parametrize("weight", [1.0, 1e-9, 1e-12])
def test_a_jump_is_no_minimum_however_small_the_numbers(
    precision: PrecisionName, weight: float
) -> None:
    """Squares of the last steps are too small for float32."""
    made = caspar.Solver(uphill, backend="cpu", precision=precision)
    result = made.solve({"Step": [[-1e-30]], "uphill": {"weight": [weight]}})
    assert result.status is caspar.SolveStatus.DAMPING_LIMIT


@PRECISIONS
@pytest.mark.parametrize(
    ("weight", "damping"), [(1e-12, 1e8), (1e-9, 1e14), (1.0, 1e24), (1.0, 1e30)]
)
def test_steps_too_small_for_float32_end_at_no_minimum(
    precision: PrecisionName, weight: float, damping: float
) -> None:
    made = caspar.Solver(rosenbrock, backend="cpu", precision=precision)
    arrays = {"Valley": [[-1.2, 1.0]], "rosenbrock": {"weight": [weight]}}
    result = made.solve(arrays, initial_damping=damping, max_damping=max(damping, 1e16))
    assert not result.status.is_success or result.final_cost < 1e-6 * weight**2


@PRECISIONS
def test_steps_that_damping_alone_makes_small_end_at_no_minimum(precision: PrecisionName) -> None:
    made = caspar.Solver(rosenbrock, backend="cpu", precision=precision)
    arrays = {"Valley": [[-1.2, 1.0]], "rosenbrock": {"weight": [1.0]}}
    assert made.solve(arrays).status.is_success
    for damping in (1e10, 1e13, 1e16):
        result = made.solve(arrays, initial_damping=damping)
        assert not result.status.is_success or result.final_cost < 1e-6
