"""The iteration alone: what it asks of the linearised problem, and what it makes of the answers."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from caspar.equations.scalar_kernels import LinearOutcome
from caspar.solver.lm.policy import FORCING_FACTOR, GREATEST_SHRINK
from caspar.solver.lm.steps import TriedStep
from caspar.solver.result.result import SolveStatus
from tests.solver.lm.scripted import REJECTED, STEP, run, step, steps


def dampings(script: Sequence[TriedStep], **options: Any) -> list[float]:
    """The damping of each step that is tried; one more than is given."""
    script = [*script, REJECTED]
    _, system = run(script, **options)
    return [goal.damping for goal in system.goals]


def tolerances(script: Sequence[TriedStep], **options: Any) -> list[float]:
    _, system = run([*script, REJECTED], **options)
    return [goal.tolerance for goal in system.goals]


# -- damping ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gain_ratio", "factor"),
    [
        *((1.0, GREATEST_SHRINK), (0.5, 1.0), (0.9, 1.0 - 0.8**3), (0.1, 1.0 + 0.8**3)),
        (3.0, GREATEST_SHRINK),
    ],
)
def test_accepted_steps_change_the_damping_by_their_gain(gain_ratio: float, factor: float) -> None:
    first, second = dampings([step(100.0, 10.0, gain_ratio)], initial_damping=0.1)
    assert first == 0.1
    assert second == pytest.approx(0.1 * factor)


def test_rejected_steps_grow_the_damping_faster_and_faster() -> None:
    found = dampings([REJECTED] * 4, initial_damping=0.1)
    assert found == pytest.approx([0.1, 0.2, 0.8, 6.4, 102.4])


def test_growth_starts_again_after_an_accepted_step() -> None:
    found = dampings([REJECTED, REJECTED, step(100.0, 10.0, 0.5), REJECTED], initial_damping=0.1)
    assert found == pytest.approx([0.1, 0.2, 0.8, 0.8, 1.6])


def test_damping_has_a_lower_bound() -> None:
    script = steps(10.0, 10.0, 10.0)
    least = 0.1 * GREATEST_SHRINK**1.5
    found = dampings(script, initial_damping=0.1, min_damping=least)
    assert found == pytest.approx([0.1, 0.1 * GREATEST_SHRINK, least, least])


def test_no_solve_ends_because_an_accepted_step_gained_little() -> None:
    """The damping grows behind it, to the limit at most."""
    script = [step(100.0, 10.0, 0.1), step(90.0, 10.0)]
    course, system = run(script, initial_damping=0.1, max_damping=0.15)
    assert [goal.damping for goal in system.goals] == [0.1, 0.15]
    assert course.status is SolveStatus.ITERATION_LIMIT


@pytest.mark.parametrize("name", ["gain_ratio", "step_norm", "gradient_norm"])
def test_huge_numbers_overflow_nowhere(name: str) -> None:
    """As beside a jump, where the slope says next to nothing."""
    changes: dict[str, Any] = {name: 1e200}
    course, _ = run([step(100.0, 10.0, **changes), step(90.0, 10.0)])
    assert course.cost == 80.0


# -- which steps are taken -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"outcome": LinearOutcome.NOT_FINITE}, "the linear solve is not finite"),
        ({"cost": math.nan}, "the cost of the candidate is not finite"),
        ({"cost": math.inf}, "the cost of the candidate is not finite"),
        ({"cost": -math.inf}, "the cost of the candidate is not finite"),
        ({"model_decrease": 0.0}, "the linear model predicts no decrease"),
        ({"model_decrease": -1.0}, "the linear model predicts no decrease"),
        ({"model_decrease": math.nan}, "the linear model predicts no decrease"),
        ({"cost": 100.0}, "the cost did not decrease as predicted"),
        ({"cost": 101.0}, "the cost did not decrease as predicted"),
        ({"model_decrease": 1e9}, "the cost did not decrease as predicted"),
        ({"model_decrease": math.inf}, "the cost did not decrease as predicted"),
    ],
)
def test_rejection_says_why(changes: dict[str, Any], reason: str) -> None:
    course, system = run([step(100.0, 10.0, **changes), step(100.0, 1.0)])
    first, second = course.records
    assert (first.step_accepted, first.reason) == (False, reason)
    assert first.cost == 100.0
    assert (second.step_accepted, second.reason) == (True, "")
    assert system.goals[1].damping > system.goals[0].damping
    assert system.calls.count("linearize") == 1


@pytest.mark.parametrize("outcome", [LinearOutcome.ITERATIONS, LinearOutcome.NO_CURVATURE])
def test_unfinished_linear_solves_are_judged_by_the_cost(outcome: LinearOutcome) -> None:
    course, _ = run([step(100.0, 10.0, outcome=outcome)])
    assert course.cost == 90.0


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["cost", "model_decrease", "gradient_norm", "step_norm"])
def test_what_is_not_finite_never_ends_as_a_success(name: str, wrong: float) -> None:
    """It is no convergence, and it never becomes the cost."""
    changes: dict[str, Any] = {name: wrong}
    course, _ = run([step(100.0, 10.0, **changes)] * 3)
    assert not course.is_success
    assert math.isfinite(course.cost)
    assert course.cost <= 100.0


def test_everything_nan() -> None:
    nothing = STEP._replace(gradient_norm=math.nan, step_norm=math.nan)
    course, system = run([nothing] * 20)
    assert course.status is SolveStatus.DAMPING_LIMIT
    assert course.cost == 100.0
    assert "accept" not in system.calls
    assert all(math.isnan(record.gain_ratio) for record in course.records)


def test_order_of_calls() -> None:
    """Linearised after every move but the last, not after a rejection."""
    _, system = run([*steps(10.0), REJECTED, *steps(10.0, 20.0, start=90.0)])
    assert system.calls == [
        *["score", "linearize"],
        *["try_step", "accept", "linearize"],
        *["try_step", "reject"],
        *["try_step", "accept", "linearize"],
        *["try_step", "accept"],
    ]


def test_records() -> None:
    course, _ = run([step(100.0, 10.0, 0.5), REJECTED], initial_damping=0.1)
    first, second = course.records
    assert (first.iteration, first.cost, first.candidate_cost) == (1, 90.0, 90.0)
    assert (first.damping, first.gain_ratio, first.linear_iterations) == (0.1, 0.5, 7)
    assert (second.iteration, second.cost, second.candidate_cost) == (2, 90.0, 150.0)
    assert second.gain_ratio == -60.0
    assert 0.0 < first.time_s <= second.time_s
    assert (course.initial_cost, course.cost) == (100.0, 90.0)


# -- how tightly systems are solved ----------------------------------------------------------------


def test_tolerance_follows_the_gradient() -> None:
    """By 0.9 times its decrease from the second step on, between the two bounds."""
    script = [
        step(100.0, 10.0, gradient_norm=8.0),
        step(90.0, 10.0, gradient_norm=2.0),
        step(80.0, 10.0, gradient_norm=0.1),
        step(70.0, 10.0, gradient_norm=1e-6),
        step(60.0, 10.0, gradient_norm=1.0),
    ]
    options = {"linear_tolerance": 0.5, "min_linear_tolerance": 0.01}
    kept = FORCING_FACTOR * 0.5
    expected = [
        *[0.5, 0.5],
        kept,  # 0.9 / 4 would tighten abruptly
        FORCING_FACTOR * kept,
        FORCING_FACTOR**2 * kept,
        0.5,  # the gradient grew
    ]
    assert tolerances(script, **options) == pytest.approx(expected)


def test_tolerance_tightens_at_once_where_it_is_tight() -> None:
    script = [
        step(100.0, 10.0, gradient_norm=1.0),
        step(90.0, 10.0, gradient_norm=0.05),
        step(80.0, 10.0, gradient_norm=0.05e-6),
    ]
    found = tolerances(script, linear_tolerance=0.1, min_linear_tolerance=0.02)
    assert found == pytest.approx([0.1, 0.1, FORCING_FACTOR * 0.05, 0.02])


def test_rejected_steps_leave_the_tolerance() -> None:
    wild = REJECTED._replace(gradient_norm=1e-9)
    script = [*steps(10.0, gradient_norm=1.0), wild, *steps(10.0, start=90.0, gradient_norm=0.9)]
    assert tolerances(script, linear_tolerance=0.3) == pytest.approx([0.3, 0.3, 0.3, 0.3])


@pytest.mark.parametrize(("least", "most", "expected"), [(8, 200, 8), (8, 5, 5), (1, 1, 1)])
def test_bounds_of_linear_iterations(least: int, most: int, expected: int) -> None:
    _, system = run([REJECTED], min_linear_iterations=least, max_linear_iterations=most)
    goal = system.goals[0]
    assert (goal.min_iterations, goal.max_iterations) == (expected, most)


# -- remarks on linear solves ----------------------------------------------------------------------


def remarks_on(script: Sequence[TriedStep], **options: Any) -> str:
    course, _ = run(script, cost_tolerance=0.0, **options)
    return " ".join(course.remarks)


def test_linear_solves_at_the_limit_are_remarked() -> None:
    """A factorisation counts as one iteration, and PCG may just get to its tolerance."""
    limited = steps(*[1.0] * 4, linear_iterations=1, outcome=LinearOutcome.ITERATIONS)
    assert "max_linear_iterations=1 in 4 of 4" in remarks_on(limited, max_linear_iterations=1)
    there = steps(*[1.0] * 4, linear_iterations=1)
    assert remarks_on(there, max_linear_iterations=1) == ""
