"""What is linearised before a step is accepted: no solve can tell, but by the clock."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import caspar
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend, HarnessLaunch
from tests.solver.lm.ahead_cases import BUNDLE, CASES, NEVER_AHEAD, VIEWS, course, made
from tests.solver.solving import assert_same_values

BY_DEFAULT = (CASES[0], *CASES[3:])
"""One bundle, and all that are none."""

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine"),
    pytest.mark.filterwarnings("ignore:node type"),
]


def solved(name: str, times: int = 2, **choices: Any) -> list[caspar.SolveResult]:
    """In the harness, with the same bits for the same input; with one plan."""
    factors, arrays = made(name)
    solver = caspar.Solver(factors, backend=HarnessBackend(128), deterministic=True, **choices)
    return [solver.solve(arrays, initial_damping=1e-9, max_iterations=8) for _ in range(times)]


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("two factors on marks", {"linear_solver": "schur_dense"}),
        *(
            pytest.param(*case, marks=[] if case in BY_DEFAULT else pytest.mark.reliability)
            for case in CASES
        ),
    ],
)
def test_steps_and_values_are_the_same(name: str, choices: Mapping[str, str]) -> None:
    first, *others = [
        result
        for times, limits in ((1, NEVER_AHEAD), (2, None))
        for result in solved(name, times, limits=limits, **choices)
    ]
    assert name != BUNDLE or {one.step_accepted for one in first.iterations} == {True, False}
    for other in others:
        assert course(other) == course(first)
        assert other.status is first.status
        assert_same_values(other.values, first.values)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of all kernels that were launched."""
    found: list[str] = []
    run = HarnessLaunch.run

    def noted(launch: HarnessLaunch) -> None:
        found.append(launch.kernel.source.name)
        run(launch)

    monkeypatch.setattr(HarnessLaunch, "run", noted)
    return found


def test_what_was_begun_is_used(names: list[str]) -> None:
    """All steps are as good as expected, and with the one that confirms nothing goes ahead.

    What was begun ahead of it had more damping.
    """
    result, _ = solved(VIEWS, linear_solver="pcg")
    assert all(one.step_accepted for one in result.iterations)
    assert names.count("View__start") == 2 * (len(result.iterations) + 1)


def test_nothing_is_done_ahead_after_a_rejection(names: list[str]) -> None:
    result, _ = solved(BUNDLE, linear_solver="schur_pcg")
    accepted = [one.step_accepted for one in result.iterations]
    assert {*accepted} == {True, False}
    assert names.count("snavely__linearize") == 2 * num_linearizations(accepted)


def num_linearizations(accepted: Sequence[bool]) -> int:
    """Before the first step, and with each that neither follows a rejected one nor is the last.

    Then after the first of several rejections, and after an acceptance that follows a rejection;
    but not behind the last step.
    """
    found, was_accepted = 1, True
    for is_accepted in accepted[:-1]:
        found += was_accepted
        found += was_accepted != is_accepted
        was_accepted = is_accepted
    return found
