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

Number = IntEnum(
    "Number",
    "STOP COUNT INITIAL_COST LEAST_RELIEF COST DAMPING TOLERANCE RELIEF GROWTH GRADIENT_NORM "
    "NUM_ITERATIONS CONFIRMING RELIEF_COST PROMISED NUM_NOT_FINITE REMAINING NUM_REJECTED RISE "
    "RISE_SQUARE ATTAINABLE ASKED_COST IS_ROUNDING KEEPS STEP_DAMPING INITIAL_DAMPING MIN_DAMPING "
    "MAX_DAMPING COST_TOLERANCE GRADIENT_TOLERANCE STEP_TOLERANCE LINEAR_TOLERANCE "
    "MIN_LINEAR_TOLERANCE MAX_ITERATIONS LEAST_PIVOT LOOKS",
    start=0,
)
"""Places of the float64 numbers that plain steps read and change.

STOP is not 0 once a step is not plain, COUNT steps were taken. STATE is that of `PolicyState`, and
the damping of the next step; the rest stays: options, the least pivot of a matrix with which a step
is taken, and whether D has still to be looked at."""

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
        rows: Of each step the cost behind it, its damping and its gain ratio.
    """

    numbers: list[float]
    rows: list[list[float]]


def decision(target: str) -> PlainDecision:
    """The kernel of a target that decides, from the cache where it is known."""

    def generate() -> str:
        from caspar.solver.lm.plain.decision import decision_text

        return decision_text(target)

    def to_json(text: str) -> dict[str, Any]:
        return {"text": text}

    text = cached(["plain steps", target], generate, to_json, lambda data: str(data["text"]))
    return PlainDecision(text, len(Number), len(READ_SCALARS))


def may_be_plain(state: PolicyState, options: CompleteOptions) -> bool:
    """Return whether the next step may be plain: it is not the last, and time does not matter."""
    return options.max_time_s is None and state.num_iterations + 1 < options.max_iterations


def plain_numbers(state: PolicyState, options: CompleteOptions, *, looks: bool) -> list[float]:
    """Return the numbers that decide plain steps; the least pivot is the linear solver's."""
    return [0.0, 0.0, *state, step_damping(state, options), *_chosen(options), 0.0, looks]


def behind_plain(numbers: Sequence[float]) -> PolicyState:
    """The state behind plain steps."""
    state = PolicyState._make(numbers[Number.INITIAL_COST : Number.STEP_DAMPING])
    return state._replace(
        num_iterations=int(state.num_iterations),
        confirming=state.confirming > 0.5,
        num_not_finite=int(state.num_not_finite),
        num_rejected=int(state.num_rejected),
        is_rounding=state.is_rounding > 0.5,
    )
