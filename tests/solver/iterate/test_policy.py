"""Levenberg-Marquardt's policy alone, without a loop or a device."""

from dataclasses import replace
from typing import Any

import pytest

from caspar.ir.dtype import DType
from caspar.options import CompleteOptions, SolveOptions
from caspar.solver.iterate.policy import (
    CONFIRMING_ITERATIONS,
    GREATEST_SHRINK,
    decide,
    first_state,
    next_goal,
)
from caspar.solver.iterate.steps import AskRounding, LinearGoal, Verdict
from caspar.solver.iterate.stopping import GREATEST_RELIEF
from caspar.solver.iterate.usual_options import USUAL_OPTIONS
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
    assert after._asdict() == pytest.approx(wanted, rel=1e-12, abs=0.0, nan_ok=True)


def test_every_outcome_is_in_the_table() -> None:
    """But for what no step decides: a callback, Ctrl-C, and what is found at start and end."""
    elsewhere = {
        SolveStatus.NO_RESIDUALS,
        *(SolveStatus.STOPPED, SolveStatus.INTERRUPTED),
        *(SolveStatus.INITIAL_COST_NOT_FINITE, SolveStatus.OUT_OF_RANGE),
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
    assert found == LinearGoal(damping, 0.01, CONFIRMING_ITERATIONS, 200, None)


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
