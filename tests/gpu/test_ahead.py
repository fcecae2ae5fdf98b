"""What is linearised before a step is accepted, on the device."""

from collections.abc import Mapping
from typing import Any

import pytest

import caspar
from tests.solver.lm.ahead_cases import BUNDLE, CASES, NEVER_AHEAD, course, made
from tests.solver.solving import assert_same_values

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:node type")]
pytest.importorskip("cupy")


@pytest.mark.parametrize(("name", "choices"), CASES)
def test_steps_and_values_are_the_same(name: str, choices: Mapping[str, Any]) -> None:
    """With and without, twice with one plan each."""
    factors, arrays = made(name)
    results = []
    for limits in (NEVER_AHEAD, None):
        solver = caspar.Solver(
            factors, backend="cuda", deterministic=True, limits=limits, **choices
        )
        results += [solver.solve(arrays, initial_damping=1e-9, max_iterations=8) for _ in range(2)]
    first, *others = results
    assert name != BUNDLE or {one.step_accepted for one in first.iterations} == {True, False}
    for other in others:
        assert course(other) == course(first)
        assert other.status is first.status
        assert_same_values(other.values, first.values)
