"""How the iteration alone ends: convergence, limits, callbacks and interrupts.

Its rules one by one are in `policy_cases`.
"""

import itertools
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from caspar.equations.scalar_kernels import LinearOutcome
from caspar.errors import OptionError
from caspar.ir.dtype import DType
from caspar.solver.lm.checks.table import CRAWLING
from caspar.solver.lm.policy import (
    CONFIRMING_ITERATIONS,
    GREATEST_RELIEF,
    GREATEST_SHRINK,
    LEAST_RELIEF,
    MAX_REJECTED,
    NEGLIGIBLE,
)
from caspar.solver.lm.steps import TriedStep
from caspar.solver.result.result import SolveStatus
from tests.solver.lm.scripted import REJECTED, STEP, FakeSystem, run, step, steps

# -- convergence -----------------------------------------------------------------------------------


def test_small_decrease_is_confirmed_by_a_tighter_solve() -> None:
    script = steps(50.0, 1e-6, 1e-6)
    course, system = run([*script, REJECTED], cost_tolerance=1e-6, min_linear_iterations=3)
    assert course.status is SolveStatus.CONVERGED_COST
    assert len(course.records) == 3
    confirming = system.goals[2]
    assert confirming.tolerance == 0.01
    assert confirming.min_iterations == CONFIRMING_ITERATIONS
    assert system.goals[1].min_iterations == 3
    assert course.cost == pytest.approx(50.0 - 2e-6)
    assert system.calls[-1] == "accept"  # not linearised once more


def test_confirming_step_that_gains_goes_on() -> None:
    script = steps(50.0, 1e-6, 10.0, 1e-6, 10.0)
    course, system = run(script, cost_tolerance=1e-6, min_linear_iterations=8)
    assert course.status is SolveStatus.ITERATION_LIMIT
    assert [goal.min_iterations for goal in system.goals] == [8, 8, 10, 8, 10]


@pytest.mark.parametrize(
    ("damping", "gradient_norm", "converges"),
    [
        (0.1, 1.0, True),
        # the whole gradient promises 0.5 * 101 * 1e-4**2 = 5e-7 at first, and 5e-3
        (100.0, 1e-4, True),
        (100.0, 1e-2, False),
    ],
)
def test_rejected_steps_of_large_damping_promise_little_anyway(
    damping: float, gradient_norm: float, converges: bool
) -> None:
    rejected = REJECTED._replace(model_decrease=1e-9, gradient_norm=gradient_norm)
    script = [rejected] * 3
    course, _ = run(script, cost_tolerance=1e-6, initial_damping=damping)
    wanted = SolveStatus.CONVERGED_COST if converges else SolveStatus.ITERATION_LIMIT
    assert course.status is wanted


SMALL = REJECTED._replace(model_decrease=1e-9, gradient_norm=1e-6)
LARGE = REJECTED._replace(model_decrease=10.0)


def test_a_step_of_large_damping_is_confirmed_by_one_of_little() -> None:
    """What it promises without damping is not known: D is more than the diagonal."""
    options: dict[str, Any] = {"cost_tolerance": 1e-6, "initial_damping": 8.0}
    course, system = run([SMALL, *[LARGE] * 2, *steps(1.0), REJECTED], **options)
    found = [goal.damping for goal in system.goals]
    reliefs = [LEAST_RELIEF[DType.FLOAT32], GREATEST_RELIEF]
    assert found == pytest.approx([8.0, *reliefs, 16.0, 16.0 * GREATEST_SHRINK])
    assert course.status is SolveStatus.ITERATION_LIMIT
    # it may be the better step
    course, system = run([SMALL, *steps(1.0), REJECTED], **options, min_damping=1e-4)
    assert [goal.damping for goal in system.goals] == [8.0, 1e-4, 1e-4]
    course, _ = run([SMALL, SMALL], **options)
    assert course.status is SolveStatus.CONVERGED_COST
    _, system = run([SMALL, SMALL], **options, min_damping=2.0)
    assert [goal.damping for goal in system.goals] == [8.0, 2.0]


@pytest.mark.parametrize(
    "wrong",
    [LARGE, LARGE._replace(cost=math.nan), REJECTED._replace(outcome=LinearOutcome.NOT_FINITE)],
    ids=["no gain", "no cost", "no step"],
)
def test_where_no_step_of_little_damping_gains_the_usual_one_confirms(wrong: TriedStep) -> None:
    options: dict[str, Any] = {"cost_tolerance": 1e-6, "initial_damping": 1e-2}
    course, system = run([SMALL, *[wrong] * 2, SMALL, SMALL], **options)
    found = [goal.damping for goal in system.goals]
    assert found == pytest.approx([1e-2, 1e-5, 1e-2, 2e-2, 8e-2], rel=1e-9)
    assert course.status is SolveStatus.CONVERGED_COST
    # the usual step gains: little damping is not asked again, but where much has been gained
    for gain, later in ((0.5, 2e-2 * GREATEST_SHRINK**2), (5.0, 1e-5)):
        script = [SMALL, *[wrong] * 2, *steps(gain, 1e-9), SMALL]
        course, system = run(script, **options)
        assert course.status is SolveStatus.CONVERGED_COST
        assert system.goals[-1].damping == pytest.approx(later, rel=1e-9)


def test_a_poor_step_of_little_damping_leaves_the_usual_one() -> None:
    options: dict[str, Any] = {"cost_tolerance": 1e-6, "initial_damping": 0.1}
    for gain_ratio, damping in ((0.1, 0.2 * (1.0 + 0.8**3)), (0.3, 1e-5 * (1.0 + 0.4**3))):
        _, system = run([SMALL, step(100.0, 1.0, gain_ratio), REJECTED], **options)
        assert system.goals[-1].damping == pytest.approx(damping, rel=1e-9)


def test_a_gradient_that_is_zero_needs_no_second_look() -> None:
    zero = REJECTED._replace(model_decrease=0.0, outcome=LinearOutcome.AT_OPTIMUM)
    course, _ = run([*steps(1e-9), zero], cost_tolerance=1e-6)
    assert course.status is SolveStatus.CONVERGED_GRADIENT
    assert len(course.records) == 2


def test_rounding_errors_end_with_the_next_step_that_gains_little() -> None:
    fallen = step(100.0, 100.0 - 1e-9)
    for next_step in (REJECTED, step(1e-9, 0.9e-9)):
        for share, ends in ((0.6, True), (0.4, False)):
            options: dict[str, Any] = {"initial_damping": 1e6, "max_damping": 1e30}
            course, _ = run([fallen, *[next_step] * 3], rounding=share * 1e-9, **options)
            assert (course.status is SolveStatus.CONVERGED_GRADIENT) is ends
            assert course.remaining_decrease == 0.0 or not ends


def test_rounding_errors_that_a_step_lowers_by_much_are_none() -> None:
    costs = (1e30, 1e9, 1e6, 0.9e6)
    falls = [
        STEP._replace(cost=after, model_decrease=before - after)
        for before, after in itertools.pairwise(costs)
    ]
    anyway: dict[str, Any] = {"step_tolerance": 0.0, "gradient_tolerance": 0.0}
    course, _ = run([*falls, REJECTED], 1e30, rounding=1e9, initial_damping=1e6, **anyway)
    assert len(course.records) == 3
    assert course.status is SolveStatus.CONVERGED_GRADIENT


@pytest.mark.parametrize(("promised", "ends"), [(0.5, True), (1.9, True), (2.1, False)])
def test_rejected_steps_that_rounding_explains(promised: float, ends: bool) -> None:
    rejected = REJECTED._replace(model_decrease=promised)
    course, system = run([rejected] * 6, rounding=1.0, initial_damping=0.1)
    assert (course.status is SolveStatus.CONVERGED_COST) is ends
    assert len(course.records) == (MAX_REJECTED if ends else 6)
    assert system.calls.count("rounded_costs") == 1


def test_rejected_steps_converge_where_little_was_promised() -> None:
    promised = REJECTED._replace(cost=100.0, model_decrease=1e-6)
    course, _ = run([promised] * 3, cost_tolerance=1e-6)
    assert course.status is SolveStatus.CONVERGED_COST
    assert [record.step_accepted for record in course.records] == [False, False]


AT_OPTIMUM = STEP._replace(
    cost=100.0, model_decrease=0.0, gradient_norm=0.0, outcome=LinearOutcome.AT_OPTIMUM
)


def test_zero_gradient_ends_at_once() -> None:
    course, system = run([AT_OPTIMUM, REJECTED])
    assert course.status is SolveStatus.CONVERGED_GRADIENT
    assert system.calls == ["score", "linearize", "try_step", "reject"]
    assert course.cost == 100.0


def test_a_gradient_that_damping_alone_makes_zero_is_none() -> None:
    """A step from the same values had promised something."""
    course, _ = run([REJECTED, *[AT_OPTIMUM] * 8], initial_damping=0.1, max_damping=6.0)
    assert course.status is SolveStatus.DAMPING_LIMIT


@pytest.mark.parametrize("unit", [1e-30, 1e-9, 1.0, 1e100])
@pytest.mark.parametrize(
    ("initial_cost", "cost", "rounding", "coarse_rounding", "ends"),
    [
        (100.0, 50.0 * NEGLIGIBLE, 2e-30, 0.0, True),
        (100.0, 50.0 * NEGLIGIBLE, 0.0, 2e-30, True),
        (100.0, 50.0 * NEGLIGIBLE, 0.0, 0.0, False),
        (100.0, 200.0 * NEGLIGIBLE, 1e-30, 1e-30, False),
        (1e40, 1e3, 1e-10, 1e-2, False),
        (100.0, 0.0, 0.0, 0.0, True),
    ],
    ids=["rounding", "the last third", "neither", "not yet", "a huge start", "nothing"],
)
def test_cost_that_falls_to_rounding_errors_is_zero(
    initial_cost: float,
    cost: float,
    rounding: float,
    coarse_rounding: float,
    ends: bool,
    unit: float,
) -> None:
    """In any unit."""
    first, last = unit * initial_cost, unit * cost
    script = [STEP._replace(cost=last, model_decrease=first), REJECTED._replace(cost=2.0 * first)]
    course, _ = run(
        script,
        first,
        rounding=unit * rounding,
        coarse_rounding=unit * coarse_rounding,
        step_tolerance=0.0,
    )
    assert (course.status is SolveStatus.CONVERGED_GRADIENT) is ends
    assert course.cost == last


def test_rounding_is_asked_for_where_the_cost_fell() -> None:
    """Not after each step, as it takes many evaluations."""
    costs = [1e10 * 0.05**number for number in range(30)]
    script = [step(before, 0.95 * before) for before in costs]
    _, system = run(script, costs[0])
    # from 1e-10 of the first cost on, which is after the eighth step, then after every second one
    assert system.calls.count("rounded_costs") == 12


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_iteration_limit_counts_rejected_steps(limit: int) -> None:
    script = [*steps(1.0), REJECTED, *steps(1.0, 1.0, 1.0, 1.0, start=99.0)]
    course, _ = run(script, max_iterations=limit)
    assert course.status is SolveStatus.ITERATION_LIMIT
    assert len(course.records) == limit


def test_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    course, _ = run(steps(*[1.0] * 10), max_time_s=2.5)
    assert course.status is SolveStatus.TIME_LIMIT
    assert [record.time_s for record in course.records] == [1.0, 2.0, 3.0]
    assert course.cost == 97.0


def test_damping_limit() -> None:
    course, _ = run([REJECTED] * 9, initial_damping=0.1, max_damping=6.0)
    assert course.status is SolveStatus.DAMPING_LIMIT
    assert [record.damping for record in course.records] == pytest.approx([0.1, 0.2, 0.8])


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_start_values_without_a_finite_cost(wrong: float) -> None:
    course, system = run([REJECTED], initial_cost=wrong)
    assert course.status is SolveStatus.INITIAL_COST_NOT_FINITE
    assert system.calls == ["score"]
    assert course.records == []


# -- callbacks and interrupts ----------------------------------------------------------------------


def test_callback_sees_every_record() -> None:
    seen: list[Any] = []
    course, _ = run([*steps(1.0, 1.0), REJECTED], on_iteration=seen.append)
    assert seen == course.records
    assert course.status is SolveStatus.ITERATION_LIMIT


def test_callback_stops() -> None:
    course, _ = run(steps(1.0, 1.0, 1.0), on_iteration=lambda record: record.iteration == 2)
    assert course.status is SolveStatus.STOPPED
    assert course.cost == 98.0


def test_reaching_a_limit_outranks_the_callback() -> None:
    course, _ = run(steps(1.0), on_iteration=lambda record: True)
    assert course.status is SolveStatus.ITERATION_LIMIT


def test_callback_that_answers_neither_yes_nor_no() -> None:
    with pytest.raises(OptionError, match="on_iteration returned ndarray"):
        run(steps(1.0, 1.0), on_iteration=lambda _: np.zeros(3))


def test_interrupt_in_the_callback() -> None:
    def interrupt(record: Any) -> None:
        if record.iteration == 2:
            raise KeyboardInterrupt

    course, _ = run([*steps(1.0), REJECTED, REJECTED], on_iteration=interrupt)
    assert course.status is SolveStatus.INTERRUPTED
    assert course.cost == 99.0
    assert len(course.records) == 2


@pytest.mark.parametrize("name", ["linearize", "try_step"])
def test_interrupt_in_the_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost is that of the values the system holds."""
    work = getattr(FakeSystem, name)

    def interrupted(system: FakeSystem, *args: Any) -> Any:
        if system.calls.count(name) == 1:
            raise KeyboardInterrupt
        return work(system, *args)

    monkeypatch.setattr(FakeSystem, name, interrupted)
    course, system = run(steps(1.0, 1.0, 1.0, 1.0))
    assert course.status is SolveStatus.INTERRUPTED
    assert course.cost == system.cost < 100.0


def test_interrupt_between_a_move_and_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = FakeSystem.accept

    def interrupted(system: FakeSystem) -> None:
        accept(system)
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeSystem, "accept", interrupted)
    course, system = run(steps(1.0, 1.0))
    assert course.status is SolveStatus.INTERRUPTED
    assert course.cost == system.cost == 99.0


def run_interrupted() -> SolveStatus:
    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    return run(steps(1.0, 1.0), on_iteration=interrupt)[0].end


def test_a_second_interrupt_soon_after_ends_a_loop_of_solves() -> None:
    assert run_interrupted() is SolveStatus.INTERRUPTED
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_interrupted()


def test_a_second_interrupt_much_later_is_a_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    assert run_interrupted() is SolveStatus.INTERRUPTED
    now += 2.1
    assert run_interrupted() is SolveStatus.INTERRUPTED
    now += 1.9
    with pytest.raises(KeyboardInterrupt):
        run_interrupted()


def test_threads_have_interrupts_of_their_own() -> None:
    assert run_interrupted() is SolveStatus.INTERRUPTED
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run_interrupted).result(60.0) is SolveStatus.INTERRUPTED
        with pytest.raises(KeyboardInterrupt):
            pool.submit(run_interrupted).result(60.0)


@pytest.mark.parametrize("error", [SystemExit, MemoryError, GeneratorExit])
def test_what_a_callback_raises_is_its_own(error: type[BaseException]) -> None:
    raised = error("mine")

    def fail(_: Any) -> None:
        raise raised

    with pytest.raises(error) as caught:
        run(steps(1.0, 1.0), on_iteration=fail)
    assert caught.value is raised


def test_other_errors_of_a_callback_pass() -> None:
    def fail(record: Any) -> None:
        raise ZeroDivisionError("in the callback")

    with pytest.raises(ZeroDivisionError, match="in the callback"):
        run(steps(1.0), on_iteration=fail)


def test_where_rounding_takes_what_steps_promise_it_is_a_minimum() -> None:
    course, _ = run([REJECTED] * 9, rounding=2.0, initial_damping=0.1, max_damping=6.0)
    assert course.status is SolveStatus.CONVERGED_COST
    assert "float32" in course.remarks[0]


def test_no_step_lowers_the_cost_by_more_than_all_of_it() -> None:
    """Rounding is known to a factor of two."""
    lofty = REJECTED._replace(model_decrease=1e6)
    for rounding, status in (
        (51.0, SolveStatus.CONVERGED_COST),
        (49.0, SolveStatus.DAMPING_LIMIT),
    ):
        course, _ = run([lofty] * 9, rounding=rounding, initial_damping=0.1, max_damping=6.0)
        assert course.status is status


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_roundings_that_are_not_finite_excuse_nothing(wrong: float) -> None:
    course, _ = run([REJECTED] * 9, rounding=wrong, initial_damping=0.1, max_damping=6.0)
    assert course.status is SolveStatus.DAMPING_LIMIT
    assert course.remarks == ()


# -- rounding at the limit -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decrease", "rounding", "is_told"),
    [
        (1e-3, 0.2, True),
        (0.1, 5.0, True),
        (0.1, 1.0, False),
        (1.0, 0.2, False),
        (1e-3, 0.01, False),
    ],
    ids=["crawls", "wanders", "goes on slowly", "goes on", "little rounding"],
)
def test_what_crawls_to_the_limit_says_why(decrease: float, rounding: float, is_told: bool) -> None:
    course, system = run(steps(*[decrease] * CRAWLING), rounding=rounding, cost_tolerance=0.0)
    assert course.status is SolveStatus.ITERATION_LIMIT
    assert any("Rounding the values to float32" in remark for remark in course.remarks) is is_told
    # scoring once more takes time
    assert ("rounded_costs" in system.calls) is (decrease < 1.0)
