"""Plain steps of Levenberg-Marquardt, taken in compiled code.

A step is plain if `policy.decide` accepts it and has nothing else to say: it ends nothing, asks
nothing, and the linear solver stays. `runtime.plain_steps` takes such steps and stops at the first
one that is not, which the host then decides about as about any other. Input: the state of the
policy. Output: the state behind the last plain step, and a record of each.
"""

import math
import time

from caspar.equations.node_blocks import ABSENT
from caspar.options import CompleteOptions
from caspar.runtime.plain_steps import Number, Row
from caspar.solver.iterate import policy, stopping
from caspar.solver.iterate.steps import PolicyState
from caspar.solver.iterated import System
from caspar.solver.result.result import IterationRecord


def are_possible(state: PolicyState, options: CompleteOptions) -> bool:
    """Whether the next step may be plain: nothing is left from earlier steps to be decided."""
    return (
        options.max_time_s is None
        and not state.is_rounding
        and math.isinf(state.relief_cost)
        and state.num_iterations + 1 < options.max_iterations
    )


def take_plain_steps(
    system: System,
    state: PolicyState,
    options: CompleteOptions,
    start: float,
    *,
    looks: bool,
) -> tuple[PolicyState, list[IterationRecord]]:
    """Take plain steps from values that were scored, until one is not plain.

    Args:
        system: What moves.
        state: Of the policy.
        options: Limits and tolerances.
        start: When the iterations began, by `time.perf_counter`.
        looks: Whether D has still to be looked at, see `derivative_sizes`.
    """
    begun = time.perf_counter()
    numbers = _numbers(state, options, looks=looks)
    steps = system.take_plain_steps(numbers, options.max_iterations - state.num_iterations - 1)
    if steps is None or steps.numbers[Number.COUNT] == 0.0:
        return state, []
    now = time.perf_counter()
    numbers = steps.numbers.tolist()
    count = int(numbers[Number.COUNT])
    rows = steps.rows[:count].tolist()
    records = [
        IterationRecord(
            iteration=state.num_iterations + number,
            cost=row[Row.COST],
            candidate_cost=row[Row.COST],
            damping=row[Row.DAMPING],
            gain_ratio=row[Row.GAIN_RATIO],
            linear_iterations=1,
            step_accepted=True,
            reason="",
            # all that is known of those between
            time_s=begun - start + (now - begun) * number / count,
        )
        for number, row in enumerate(rows, start=1)
    ]
    return _state_behind(state, numbers, count), records


def _numbers(state: PolicyState, options: CompleteOptions, *, looks: bool) -> list[float]:
    """By `Number`; the system sets the least pivot."""
    undamped = state.tries_undamped
    return [
        0.0,
        state.cost,
        state.damping,
        stopping.step_damping(state, options),
        state.gradient_norm,
        float(state.confirming),
        state.remaining,
        policy.UNDAMPED_GAIN_RATIO if undamped else policy.MIN_GAIN_RATIO,
        0.0,
        policy.MIN_GAIN_RATIO,
        policy.GOOD_GAIN_RATIO,
        state.keeps,
        3.0,
        policy.GREATEST_SHRINK,
        options.min_damping,
        options.max_damping,
        options.cost_tolerance,
        2.0 * options.gradient_tolerance,
        2.0 * options.step_tolerance**2,
        stopping.NEARLY_NEGLIGIBLE * state.initial_cost,
        state.least_relief,
        max(stopping.GREATEST_RELIEF, options.min_damping),
        stopping.LITTLE_DAMPING,
        0.0,
        float(looks),
        ABSENT,
    ]


def _state_behind(state: PolicyState, numbers: list[float], count: int) -> PolicyState:
    """The state behind plain steps: what rejected steps have left is forgotten.

    The tolerance of linear solves stays: they are exact.
    """
    return PolicyState(
        initial_cost=state.initial_cost,
        least_relief=state.least_relief,
        cost=numbers[Number.COST],
        damping=numbers[Number.DAMPING],
        tolerance=state.tolerance,
        relief=state.least_relief,
        gradient_norm=numbers[Number.GRADIENT_NORM],
        num_iterations=state.num_iterations + count,
        confirming=numbers[Number.CONFIRMING] > 0.5,
        remaining=numbers[Number.REMAINING],
        asked_cost=state.asked_cost,
        keeps=state.keeps,
    )
