"""The policy of a batch decides as that of a solve: on its table, and on random states."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.batch.generate.policy_program import (
    ANSWERS,
    NEXT,
    OPTIONS,
    STATE,
    VERDICT,
    Answer,
    Option,
    State,
    policy_graph,
)
from caspar.batch.generate.programs import TRIED, Tried
from caspar.batch.generate.step_program import damp_graph
from caspar.equations.scalar_kernels import LinearOutcome
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph
from caspar.options import CompleteOptions
from caspar.solver.lm import policy
from caspar.solver.lm.steps import AskRounding, CostChanges, End, PolicyState, TriedStep
from caspar.solver.lm.traced_policy import ASK_DIGIT, ASK_THIRD, GO_ON, code
from caspar.solver.result.result import SolveStatus
from tests.batch.batch_cases import CASES
from tests.solver import policy_cases

NUM_RANDOM = 2500

Decided = tuple[PolicyState, TriedStep, CompleteOptions, CostChanges]


def _state(state: PolicyState, options: CompleteOptions) -> dict[State, float]:
    return {
        State.INITIAL_COST: state.initial_cost,
        State.COST: state.cost,
        State.DAMPING: state.damping,
        State.RELIEF: state.relief,
        State.GROWTH: state.growth,
        State.NUM_ITERATIONS: state.num_iterations,
        State.CONFIRMING: state.confirming,
        State.RELIEF_COST: state.relief_cost,
        State.PROMISED: state.promised,
        State.NUM_NOT_FINITE: state.num_not_finite,
        State.NUM_REJECTED: state.num_rejected,
        State.ASKED_COST: state.asked_cost,
        State.IS_ROUNDING: state.is_rounding,
        State.STEP_DAMPING: policy.step_damping(state, options),
        State.RISE: state.rise,
        State.RISE_SQUARE: state.rise_square,
    }


def _tried(step: TriedStep) -> dict[Tried, float]:
    # a gradient of zero is told by the square here
    descent, step_square = max(step.descent, 1e-300), step.step_square
    if step.is_faulty:
        descent = math.nan
    elif step.is_unsolved:  # see `step_program`
        descent, step_square = 1.0, math.inf
    elif step.outcome is LinearOutcome.AT_OPTIMUM:
        descent = 0.0
    return {
        Tried.COST: step.cost,
        Tried.DESCENT: descent,
        Tried.MODEL: step.model_decrease,
        Tried.STEP_SQUARE: step_square,
        Tried.LEVELS: 0.0,
        Tried.LOST: 0.0,
    }


def _options(state: PolicyState, options: CompleteOptions) -> dict[Option, float]:
    return {
        Option.MAX_ITERATIONS: options.max_iterations,
        Option.INITIAL_DAMPING: options.initial_damping,
        Option.MIN_DAMPING: options.min_damping,
        Option.MAX_DAMPING: options.max_damping,
        Option.COST_TOLERANCE: options.cost_tolerance,
        Option.GRADIENT_TOLERANCE: options.gradient_tolerance,
        Option.STEP_TOLERANCE: options.step_tolerance,
        Option.LEAST_RELIEF: state.least_relief,
        Option.FIRST_DAMPING: 0.0,
        Option.LEAST_PIVOT: 0.0,
    }


def _answers(changes: CostChanges) -> dict[Answer, float]:
    asks = {Answer.DIGIT: AskRounding.LAST_DIGIT, Answer.THIRD: AskRounding.LAST_THIRD}
    return {place: changes.get(ask, policy.NOT_ASKED) for place, ask in asks.items()}


def _row(numbers: Mapping[Any, float]) -> list[float]:
    return [float(numbers[place]) for place in sorted(numbers)]


def _end(end: End) -> float:
    if end is None:
        return GO_ON
    if isinstance(end, AskRounding):
        return ASK_DIGIT if end is AskRounding.LAST_DIGIT else ASK_THIRD
    return code(end)


def check(
    cases: Sequence[Decided], storage: DType = DType.FLOAT64, *, is_bounded: bool = False
) -> list[float]:
    """Compare the graph with the policy on some cases; the ends that they had."""
    inputs = {
        STATE: np.array([_row(_state(state, options)) for state, _, options, _ in cases]),
        TRIED: np.array([_row(_tried(step)) for _, step, _, _ in cases]),
        OPTIONS: np.array([_row(_options(state, options)) for state, _, options, _ in cases]),
        ANSWERS: np.array([_row(_answers(changes)) for *_, changes in cases]),
    }
    with np.errstate(all="ignore"):
        if is_bounded:
            inputs["shortening"] = np.array([[float(step.is_shortened)] for _, step, _, _ in cases])
        names = (*inputs, NEXT, VERDICT)
        graph = policy_graph(storage, is_bounded=is_bounded)
        found = evaluate_graph(graph, inputs, dict.fromkeys(names, 1))
    ends = []
    for number, (state, step, options, changes) in enumerate(cases):
        after, decision = policy.decide(state, step, 0.0, options, changes)
        accepted, end = found[VERDICT][number]
        assert bool(accepted) is decision.accepted, (state, step)
        assert end == _end(decision.end), (state, step, decision)
        ends.append(end)
        if end == GO_ON:
            wanted = _row(_state(after, options))
            told = slice(None) if storage is DType.FLOAT64 else slice(State.RISE)
            now = found[NEXT][number]
            assert_allclose(now[told], wanted[told], rtol=1e-12, err_msg=str((state, step)))
    return ends


def test_the_table_of_the_policy() -> None:
    cases = []
    for row in policy_cases.TABLE:
        options = replace(policy_cases.OPTIONS, **row.options)
        before = policy_cases.STATE._replace(**row.before)
        step = policy_cases.STEP._replace(**row.step)
        if row.end is SolveStatus.TIME_LIMIT:
            continue  # problems of a batch are not timed
        cases.append((before, step, options, row.changes))
    assert len(cases) > 40
    check(cases)


def _random(rng: np.random.Generator) -> Decided:
    """A state and a step near the borders at which decisions change."""
    options = policy_cases.OPTIONS
    # with less, rounding would be asked about at the first rejected step of a slight promise
    options = replace(options, cost_tolerance=policy.SLIGHT_PROMISE)
    cost = 100.0 * 10.0 ** rng.choice([0, 0, -3, -11, -40])
    damping = rng.choice([10.0 ** rng.uniform(-14, 6.5), 0.0], p=[0.9, 0.1])
    number = int(rng.integers(0, 50)) if damping > 0.0 else int(rng.integers(0, 2))
    rise_square = cost * 10.0 ** rng.uniform(-16, 0) if rng.integers(2) == 0 else 0.0
    state = PolicyState(
        initial_cost=100.0,
        least_relief=1e-5,
        cost=cost,
        damping=damping,
        tolerance=0.3,
        relief=10.0 ** rng.uniform(-5, 1),
        growth=2.0 ** rng.integers(1, 5),
        num_iterations=number,
        confirming=bool(rng.integers(2)),
        relief_cost=rng.choice([math.inf, cost, 1.005 * cost, 2.0 * cost]),
        promised=rng.choice([-math.inf, 0.0, 1e-9 * cost, cost]),
        num_not_finite=int(rng.integers(0, 5)),
        num_rejected=int(rng.integers(0, 5)),
        asked_cost=rng.choice([math.inf, cost, 1e-3 * cost]),
        is_rounding=bool(rng.integers(4) == 0),
        rise=10.0 ** rng.uniform(-3, 3) * rise_square,
        rise_square=rise_square,
    )
    model = cost * 10.0 ** rng.uniform(-9, 0)
    gain = rng.choice([-1e6, -1.0, 0.0, 5e-4, 0.1, 0.5, 0.89, 1.0, 1.2])
    step = TriedStep(
        cost=rng.choice([cost - gain * model, math.nan, math.inf], p=[0.9, 0.05, 0.05]),
        model_decrease=rng.choice([model, -model, math.nan], p=[0.9, 0.05, 0.05]),
        gradient_norm=math.sqrt(cost) * 10.0 ** rng.uniform(-8, 0),
        step_norm=math.sqrt(cost) * rng.choice([10.0 ** rng.uniform(-8, 0), 0.0], p=[0.9, 0.1]),
        linear_iterations=int(rng.integers(2)),
        outcome=rng.choice(
            np.array([LinearOutcome.TOLERANCE, LinearOutcome.NOT_FINITE], dtype=object),
            p=[0.9, 0.1],
        ),
    )
    if rng.integers(4) == 0 and step.cost > cost and step.model_decrease > 0.0 < step.step_norm:
        same = (step.cost - cost + 2.0 * step.model_decrease) / step.step_square
        other = step.step_square * rng.choice([0.3, 0.8]) ** 2
        state = state._replace(rise=1.2 * same * other, rise_square=other)
    if step.outcome is LinearOutcome.NOT_FINITE:
        step = step._replace(model_decrease=math.nan, gradient_norm=math.nan)
    elif rng.integers(20) == 0:
        step = step._replace(
            outcome=LinearOutcome.AT_OPTIMUM, gradient_norm=0.0, step_norm=0.0, model_decrease=0.0
        )
    changes: dict[AskRounding, float] = {}
    for ask in AskRounding:
        if rng.integers(2) == 0:
            changes[ask] = float(rng.choice([math.nan, math.inf, 0.0, 1e-9 * cost, cost]))
    return PolicyState(*map(_plain, state)), TriedStep(*map(_plain, step)), options, changes


def _plain(number: Any) -> Any:
    """A number of Python, which warns of nothing."""
    return number.item() if isinstance(number, np.generic) else number


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.reliability)])
def test_random_states(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ends = check([_random(rng) for _ in range(NUM_RANDOM)])
    statuses = (
        *(SolveStatus.CONVERGED_COST, SolveStatus.CONVERGED_GRADIENT, SolveStatus.CONVERGED_STEP),
        *(SolveStatus.DERIVATIVES_NOT_FINITE, SolveStatus.DAMPING_LIMIT),
        SolveStatus.ITERATION_LIMIT,
    )
    assert set(ends) == {GO_ON, ASK_DIGIT, ASK_THIRD, *map(code, statuses)}


def test_random_states_of_bounded_problems() -> None:
    """Ends rest on what is promised if no bound stops the step; shortened steps end nothing."""
    rng = np.random.default_rng(2)
    cases: list[Decided] = []
    while len(cases) < NUM_RANDOM:
        state, step, options, changes = _random(rng)
        if step.outcome is LinearOutcome.NOT_FINITE:
            continue  # bounds change nothing there
        least = 0.5 * step.gradient_norm**2
        step = step._replace(least_promise=least, is_shortened=bool(rng.integers(2)))
        cases.append((state, step, options, changes))
    ends = check(cases, is_bounded=True)
    shown = code(SolveStatus.CONVERGED_COST)
    assert shown in ends
    assert shown not in {end for end, case in zip(ends, cases, strict=True) if _is_cut(case)}


def _is_cut(case: Decided) -> bool:
    """Whether its step was shortened, and no rounding was asked for."""
    return case[1].is_shortened and not case[3]


def test_a_matrix_that_cannot_be_factorised_shows_no_minimum() -> None:
    """Its gradient is taken to be 1, which is nothing beside a cost of 1e30."""
    state = policy_cases.STATE._replace(cost=1e30)
    step = policy_cases.STEP._replace(
        outcome=LinearOutcome.NOT_FINITE, cost=1e30, model_decrease=0.0
    )
    assert check([(state, step, policy_cases.OPTIONS, {})]) == [GO_ON]


def test_random_states_of_float32() -> None:
    """Without what is for float64: dampings near 0, and curvatures."""
    rng = np.random.default_rng(2)
    cases = [
        (state._replace(rise=0.0, rise_square=0.0), step, options, changes)
        for state, step, options, changes in (_random(rng) for _ in range(NUM_RANDOM))
        if state.damping >= policy.LEAST_GROWN_SINGULAR
    ]
    assert len(cases) > NUM_RANDOM / 3
    check(cases, DType.FLOAT32)


def test_squares_of_derivatives_are_remembered() -> None:
    """The diagonal that damping goes by never falls."""
    case = CASES["curves"]()
    shape = caspar.BatchSolver(case.factors, backend="cpu").inspect(case.arrays).shape
    inputs = {
        "damping": np.array([[0.5]]),
        "matrix": np.diag([4.0, 1.0, 9.0]).reshape(1, 9),
        "influence": np.array([[2.0, 3.0, 9.5]]),
        "levelling": np.array([[0.0]]),
    }
    stored = ("influence", "diagonal", "scale")
    found = evaluate_graph(damp_graph(shape), inputs, dict.fromkeys([*inputs, *stored], 1))
    assert_array_equal(found["influence"], [[4.0, 3.0, 9.5]])
