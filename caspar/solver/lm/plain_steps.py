"""Plain steps: accepted ones about which `policy.decide` has nothing else to say.

Such a step ends nothing and asks nothing, and the linear solver stays. Compiled code takes a run of
them (`Backend.plain_steps`), by the same operations in the same order, and stops at the first other
one, which the host decides about. Here is what the two tell each other. Cost tier: once a run.
"""

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from caspar.equations.node_blocks import ABSENT
from caspar.options import CompleteOptions
from caspar.solver.lm.policy import (
    GOOD_GAIN_RATIO,
    GREATEST_RELIEF,
    GREATEST_SHRINK,
    LITTLE_DAMPING,
    MIN_GAIN_RATIO,
    NEARLY_NEGLIGIBLE,
    UNDAMPED_GAIN_RATIO,
    step_damping,
)
from caspar.solver.lm.steps import PolicyState


class Number(IntEnum):
    """What plain steps are decided by and what changes, by its place among float64 numbers.

    Of the state: STOP is not 0 once a step is not plain; COST, DAMPING, STEP_DAMPING,
    GRADIENT_NORM, CONFIRMING, REMAINING, LEAST_GAIN are those of `PolicyState` and the policy for
    the next step; COUNT steps were taken. The others stay: limits, tolerances and constants of the
    policy.
    """

    STOP = 0
    COST = 1
    DAMPING = 2
    STEP_DAMPING = 3
    GRADIENT_NORM = 4
    CONFIRMING = 5
    REMAINING = 6
    LEAST_GAIN = 7
    COUNT = 8
    MIN_GAIN = 9
    GOOD_GAIN = 10
    KEEPS = 11
    GREATEST_SHRINK = 12
    MIN_DAMPING = 13
    MAX_DAMPING = 14
    COST_TOLERANCE = 15
    TWICE_GRADIENT_TOLERANCE = 16
    TWICE_STEP_TOLERANCE_SQUARE = 17
    NEGLIGIBLE_COST = 18
    RELIEF = 19
    GREATEST_RELIEF = 20
    LITTLE_DAMPING = 21
    LEAST_PIVOT = 22
    LOOKS = 23
    ABSENT = 24


class PlainSteps(NamedTuple):
    """Steps that were taken in compiled code.

    Attributes:
        numbers: By `Number`, behind them.
        rows: Of each step the cost behind it, its damping and its gain ratio.
    """

    numbers: list[float]
    rows: list[list[float]]


def may_be_plain(state: PolicyState, options: CompleteOptions) -> bool:
    """Whether the next step may be plain: earlier ones have left nothing to be decided."""
    return (
        options.max_time_s is None
        and not state.is_rounding
        and math.isinf(state.relief_cost)
        and state.num_iterations + 1 < options.max_iterations
    )


def plain_numbers(state: PolicyState, options: CompleteOptions, *, looks: bool) -> list[float]:
    """What plain steps are decided by.

    Args:
        state: Before them.
        options: Limits and tolerances.
        looks: Whether D has still to be looked at, see `derivative_sizes`.
    """
    return [  # in the order of `Number`
        0.0,
        state.cost,
        state.damping,
        step_damping(state, options),
        state.gradient_norm,
        float(state.confirming),
        state.remaining,
        UNDAMPED_GAIN_RATIO if state.tries_undamped else MIN_GAIN_RATIO,
        0.0,
        MIN_GAIN_RATIO,
        GOOD_GAIN_RATIO,
        state.keeps,
        GREATEST_SHRINK,
        options.min_damping,
        options.max_damping,
        options.cost_tolerance,
        2.0 * options.gradient_tolerance,
        2.0 * options.step_tolerance * options.step_tolerance,
        NEARLY_NEGLIGIBLE * state.initial_cost,
        state.least_relief,
        max(GREATEST_RELIEF, options.min_damping),
        LITTLE_DAMPING,
        0.0,  # of the linear solver
        float(looks),
        ABSENT,
    ]


def behind_plain(state: PolicyState, numbers: Sequence[float]) -> PolicyState:
    """The state behind plain steps: what rejected ones before them have left is forgotten.

    The tolerance of linear solves stays: they are exact.

    Args:
        state: Before the steps.
        numbers: By `Number`, behind them.
    """
    return PolicyState(
        initial_cost=state.initial_cost,
        least_relief=state.least_relief,
        cost=numbers[Number.COST],
        damping=numbers[Number.DAMPING],
        tolerance=state.tolerance,
        relief=state.least_relief,
        gradient_norm=numbers[Number.GRADIENT_NORM],
        num_iterations=state.num_iterations + int(numbers[Number.COUNT]),
        confirming=numbers[Number.CONFIRMING] > 0.5,
        remaining=numbers[Number.REMAINING],
        asked_cost=state.asked_cost,
        keeps=state.keeps,
    )
