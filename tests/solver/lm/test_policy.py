"""Levenberg-Marquardt's policy alone, without a loop or a device."""

import math
from dataclasses import replace
from typing import Any

import pytest

from caspar.equations.scalar_kernels import LinearOutcome
from caspar.ir.dtype import DType
from caspar.options import CompleteOptions, SolveOptions
from caspar.solver.lm.policy import (
    CONFIRMING_ITERATIONS,
    GREATEST_RELIEF,
    GREATEST_SHRINK,
    LEAST_GROWN,
    LEAST_GROWN_SINGULAR,
    decide,
    first_state,
    next_goal,
)
from caspar.solver.lm.steps import AskRounding, LinearGoal, Verdict
from caspar.solver.lm.usual_options import USUAL_OPTIONS
from caspar.solver.result.result import SolveStatus
from tests.solver.policy_cases import CONFIRMING, LAST, LEAST, OPTIONS, STATE, STEP, TABLE, Row


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.says)
def test_decisions(row: Row) -> None:
    before, step = STATE._replace(**row.before), STEP._replace(**row.step)
    options = replace(OPTIONS, **row.options)
    after, decision = decide(before, step, row.elapsed_s, options, row.changes)
    assert (decision.verdict, decision.end) == (row.verdict, row.end)
    assert decision.accepted is (row.verdict is Verdict.ACCEPTED)
    assert decision.cost == (step.cost if decision.accepted else before.cost)
    wanted = row.wanted(before, step)._asdict()
    # see `test_a_parabola_through_rejected_steps`
    wanted |= {name: getattr(after, name) for name in ("rise", "rise_square")}
    assert after._asdict() == pytest.approx(wanted, rel=1e-12, abs=0.0, nan_ok=True)


def test_every_outcome_is_in_the_table() -> None:
    """But for what no step decides: callbacks, Ctrl-C, constraints, and the start and the end."""
    elsewhere = {
        SolveStatus.NO_RESIDUALS,
        *(SolveStatus.STOPPED, SolveStatus.INTERRUPTED),
        *(SolveStatus.INITIAL_COST_NOT_FINITE, SolveStatus.OUT_OF_RANGE),
        *(SolveStatus.INFEASIBLE, SolveStatus.FEASIBLE_NOT_OPTIMAL),
    }
    ends = {row.end for row in TABLE}
    assert ends == {*SolveStatus, *AskRounding, None} - elsewhere
    assert {row.verdict for row in TABLE} == {*Verdict}


# -- goals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "options", "changes"),
    [
        ({}, {}, {}),
        ({"damping": 1e-14}, {}, {"damping": 1e-14, "expected_damping": 1e-14}),
        (LAST, {}, {"expected_damping": None}),
        ({}, {"max_linear_iterations": 5}, {"min_iterations": 5, "max_iterations": 5}),
    ],
    ids=["usual", "least damping", "last iteration", "few PCG iterations"],
)
def test_goals(before: dict[str, Any], options: dict[str, Any], changes: dict[str, Any]) -> None:
    usual = LinearGoal(0.1, 0.3, 12, 200, GREATEST_SHRINK * 0.1)
    found = next_goal(STATE._replace(**before), replace(OPTIONS, **options))
    assert found._asdict() == pytest.approx(usual._replace(**changes)._asdict())


@pytest.mark.parametrize(
    ("before", "options", "damping"),
    [
        ({}, {}, LEAST),
        ({"relief": 1e-2}, {}, 1e-2),
        ({"relief": 10.0}, {}, 0.1),
        ({"relief": 1e-2, "damping": 2.0}, {}, GREATEST_RELIEF),
        ({"relief": 8.0, "damping": 8.0}, {"min_damping": 2.0, "initial_damping": 8.0}, 2.0),
    ],
)
def test_goals_of_confirming_steps(
    before: dict[str, Any], options: dict[str, Any], damping: float
) -> None:
    options = {"min_linear_iterations": 3, **options}
    found = next_goal(STATE._replace(**CONFIRMING, **before), replace(OPTIONS, **options))
    assert found == LinearGoal(damping, 0.01, CONFIRMING_ITERATIONS, 200, is_whole=True)


# -- the first state -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "damping"),
    [
        ({}, 1e-3),
        ({"initial_damping": 0.5}, 0.5),
        ({"min_damping": 0.1}, 0.1),
        ({"max_damping": 1e-4}, 1e-4),
    ],
)
def test_first_damping(options: dict[str, Any], damping: float) -> None:
    complete = CompleteOptions.complete(SolveOptions(**options), USUAL_OPTIONS)
    assert first_state(100.0, DType.FLOAT32, complete).damping == damping


@pytest.mark.parametrize(
    ("storage", "least", "relief"),
    [
        (DType.FLOAT32, 1e-14, LEAST),
        (DType.FLOAT32, 1e-4, 1e-4),
        (DType.FLOAT64, 1e-14, 1e-14),
    ],
)
def test_first_relief(storage: DType, least: float, relief: float) -> None:
    state = first_state(100.0, storage, CompleteOptions(min_damping=least))
    assert (state.relief, state.least_relief) == (relief, relief)


NO_CHANGE = {AskRounding.LAST_DIGIT: 0.0}


def test_a_parabola_through_rejected_steps() -> None:
    """(x - 1)^2 + 5: the linear model promises the whole cost; the rises tell that none is left."""
    options = replace(OPTIONS, cost_tolerance=0.0, max_damping=1e16)
    state = first_state(12.5, DType.FLOAT64, options)
    distance, ends = 1e-9, []
    for length in (1e-2, 1e-3, 1e-4):
        step = STEP._replace(
            cost=12.5 + 5.0 * (length**2 - 2.0 * length * distance),
            model_decrease=5.0 * distance * length,
            step_norm=length,
        )
        state, decision = decide(state, step, 0.0, options, NO_CHANGE)
        ends.append(decision.end)
    assert ends[:2] == [None, SolveStatus.CONVERGED_GRADIENT]
    assert state.attainable == pytest.approx(5.0 * distance**2, rel=1e-3)


def test_a_jump_is_no_parabola() -> None:
    """The residual jumps beside the values: a rise that stays is no curvature."""
    options = replace(OPTIONS, cost_tolerance=0.0)
    state = first_state(12.5, DType.FLOAT64, options)
    for length in (1e-2, 1e-3, 1e-4):
        step = STEP._replace(cost=12.6, model_decrease=1e-8 * length, step_norm=length)
        state, decision = decide(state, step, 0.0, options, NO_CHANGE)
        assert decision.end is None
    assert state.attainable == math.inf


def test_a_first_step_without_damping_needs_a_good_gain() -> None:
    options = replace(OPTIONS, tries_undamped=True, min_damping=0.0)
    before = first_state(100.0, DType.FLOAT64, options)
    assert next_goal(before, options).damping == 0.0
    kept, decision = decide(before, STEP._replace(cost=90.9), 0.0, options, {})
    assert (decision.accepted, kept.damping, kept.tries_undamped) == (True, 0.0, False)
    left, decision = decide(before, STEP._replace(cost=91.1), 0.0, options, {})
    assert (decision.accepted, left.damping, left.growth) == (False, options.initial_damping, 2.0)
    assert not left.tries_undamped
    grown, _ = decide(kept, STEP._replace(cost=150.0), 0.0, options, {})
    assert grown.damping == 2.0 * LEAST_GROWN
    singular = STEP._replace(cost=math.nan, outcome=LinearOutcome.NOT_FINITE)
    grown, _ = decide(kept, singular, 0.0, options, {})
    assert grown.damping == 2.0 * LEAST_GROWN_SINGULAR
