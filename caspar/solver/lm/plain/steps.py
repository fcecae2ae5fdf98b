"""Plain steps: accepted ones about which `policy.decide` has nothing else to say.

Such a step ends nothing and asks nothing, and the linear solver stays. Compiled code takes a run of
them (`Backend.plain_steps`), by a decision that is made of the policy's own text
(`plain.decision`), and stops at the first other one, which the host decides about. Here is what the
two tell each other. Cost tier: once a run.
"""

from collections.abc import Sequence
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple

from caspar.driver import cached
from caspar.options import CompleteOptions
from caspar.runtime.backend import PlainDecision
from caspar.solver.lm.policy import step_damping
from caspar.solver.lm.steps import PolicyState


class Number(IntEnum):
    """Places of the float64 numbers that plain steps read and change.

    STOP is not 0 once a step is not plain, COUNT steps were taken. STATE is that of `PolicyState`,
    and the damping of the next step; the rest stays: options, the least pivot of a matrix with
    which a step is taken, and whether D has still to be looked at.
    """

    STOP = 0
    COUNT = 1
    INITIAL_COST = 2
    LEAST_RELIEF = 3
    COST = 4
    DAMPING = 5
    TOLERANCE = 6
    RELIEF = 7
    GROWTH = 8
    GRADIENT_NORM = 9
    NUM_ITERATIONS = 10
    CONFIRMING = 11
    RELIEF_COST = 12
    PROMISED = 13
    NUM_NOT_FINITE = 14
    REMAINING = 15
    NUM_REJECTED = 16
    RISE = 17
    RISE_SQUARE = 18
    ATTAINABLE = 19
    ASKED_COST = 20
    IS_ROUNDING = 21
    KEEPS = 22
    STEP_DAMPING = 23
    INITIAL_DAMPING = 24
    MIN_DAMPING = 25
    MAX_DAMPING = 26
    COST_TOLERANCE = 27
    GRADIENT_TOLERANCE = 28
    STEP_TOLERANCE = 29
    LINEAR_TOLERANCE = 30
    MIN_LINEAR_TOLERANCE = 31
    MAX_ITERATIONS = 32
    LEAST_PIVOT = 33
    LOOKS = 34


_ALL = tuple(Number)
STATE = _ALL[Number.INITIAL_COST : Number.STEP_DAMPING + 1]
OPTIONS = _ALL[Number.INITIAL_DAMPING : Number.MAX_ITERATIONS + 1]

TRUTHS = (Number.CONFIRMING, Number.IS_ROUNDING)
"""Kept as 0 or 1."""

_chosen = attrgetter(*(one.name.lower() for one in OPTIONS))

READ_SCALARS = (
    *("damping", "done", "cost", "step_gradient", "step_residual", "step_damping", "step_norm"),
    *("first_descent", "eliminated_descent", "least_pivot"),
)
"""The solver's scalars that are read; the first one is written, too."""


class PlainSteps(NamedTuple):
    """Steps that were taken in compiled code.

    Attributes:
        numbers: By `Number`, behind them.
        rows: Of each step the cost behind it, its damping and its gain ratio.
    """

    numbers: list[float]
    rows: list[list[float]]


def decision() -> PlainDecision:
    """The kernel that decides, from the cache where it is known."""

    def generate() -> str:
        from caspar.solver.lm.plain.decision import decision_text

        return decision_text()

    def to_json(text: str) -> dict[str, Any]:
        return {"text": text}

    text = cached(["plain steps"], generate, to_json, lambda data: str(data["text"]))
    return PlainDecision(text, len(Number), len(READ_SCALARS))


def may_be_plain(state: PolicyState, options: CompleteOptions) -> bool:
    """Return whether the next step may be plain: it is not the last, and time does not matter."""
    return options.max_time_s is None and state.num_iterations + 1 < options.max_iterations


def plain_numbers(state: PolicyState, options: CompleteOptions, *, looks: bool) -> list[float]:
    """Return the numbers that decide plain steps; the least pivot is the linear solver's.

    Args:
        state: Before them.
        options: Limits and tolerances.
        looks: Whether D has still to be looked at, see `derivative_sizes`.
    """
    return [0.0, 0.0, *state, step_damping(state, options), *_chosen(options), 0.0, looks]


def behind_plain(numbers: Sequence[float]) -> PolicyState:
    """The state behind plain steps.

    Args:
        numbers: By `Number`, behind them.
    """
    state = PolicyState._make(numbers[Number.INITIAL_COST : Number.STEP_DAMPING])
    return state._replace(
        num_iterations=int(state.num_iterations),
        confirming=state.confirming > 0.5,
        num_not_finite=int(state.num_not_finite),
        num_rejected=int(state.num_rejected),
        is_rounding=state.is_rounding > 0.5,
    )
