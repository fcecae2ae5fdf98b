"""The policy of Levenberg-Marquardt as a graph: what becomes of a step, for one problem.

The rules are those of `solver.lm.policy`, whose text is traced. What is other is passed to it:

* linear systems are solved exactly, so there is no forcing term, and problems are not timed;
* rounding is not asked about at the first rejected step of a slight promise, as eight more scores
  cost more here than three more steps;
* in float32 the damping is never zero, and rises of the cost tell no curvature.

Input: entries of `state` and `tried`, the answers of the device in `answers`, and `options`.
Output: `next`, the state after the step, and `verdict`.
"""

import math
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from caspar.batch.generate.programs import TRIED, WIDE, ProgramBuilder, Tried
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.traced import LARGEST
from caspar.solver.lm import policy, traced_policy
from caspar.solver.lm.steps import PolicyState

STATE, NEXT, OPTIONS, ANSWERS, VERDICT = "state", "next", "options_data", "answers", "verdict"


class State(IntEnum):
    """Places of the state that is kept between steps: attributes of `PolicyState`.

    STEP_DAMPING is the damping of the next step. What a parabola leaves is not kept: a decision
    either ends the problem with it or discards it.
    """

    INITIAL_COST = 0
    COST = 1
    DAMPING = 2
    RELIEF = 3
    GROWTH = 4
    NUM_ITERATIONS = 5
    CONFIRMING = 6
    RELIEF_COST = 7
    PROMISED = 8
    NUM_NOT_FINITE = 9
    NUM_REJECTED = 10
    ASKED_COST = 11
    IS_ROUNDING = 12
    STEP_DAMPING = 13
    RISE = 14
    RISE_SQUARE = 15


TRUTHS = (State.CONFIRMING, State.IS_ROUNDING)
"""Kept as 0 or 1."""


class Option(IntEnum):
    """Options of a batch, by their place.

    FIRST_DAMPING is 0 if a step without is tried first. LEAST_PIVOT is that of a matrix of float64
    scaled to unit diagonal with which a step is taken.
    """

    MAX_ITERATIONS = 0
    INITIAL_DAMPING = 1
    MIN_DAMPING = 2
    MAX_DAMPING = 3
    COST_TOLERANCE = 4
    GRADIENT_TOLERANCE = 5
    STEP_TOLERANCE = 6
    LEAST_RELIEF = 7
    FIRST_DAMPING = 8
    LEAST_PIVOT = 9


class Answer(IntEnum):
    """Places of the changes of the cost by rounding: `NOT_ASKED`, or as the device says."""

    DIGIT = 0
    THIRD = 1


class Verdict(IntEnum):
    """Places of the decision: whether the step is taken, and an `end`."""

    ACCEPTED = 0
    END = 1


NOT_ASKED, ASK_DIGIT = policy.NOT_ASKED, traced_policy.ASK_DIGIT
STATUSES, code = traced_policy.STATUSES, traced_policy.code

FIRST_STATE = {
    place: float(PolicyState._field_defaults[place.name.lower()])
    for place in State
    if place.name.lower() in PolicyState._field_defaults
}
"""First values of the state, besides costs and dampings."""


def policy_graph(storage: DType, *, is_bounded: bool = False, ends_by_rises: bool = True) -> Graph:
    """The whole decision, see `policy.decide`; `is_bounded`: steps may be shortened at bounds."""
    kernel = ProgramBuilder("policy", WIDE)
    kernel.graph.origin = "policy"
    is_exact = storage is DType.FLOAT64
    options: Any = SimpleNamespace(
        **{one.name.lower(): kernel.entry(OPTIONS, one) for one in Option},
        ends_by_rises=is_exact and ends_by_rises,
        asks_early=False,
        max_time_s=math.inf,
        linear_tolerance=1.0,
        min_linear_tolerance=1.0,
    )
    kept: dict[str, Any] = {one.name.lower(): kernel.entry(STATE, one) for one in State}
    kept |= {one.name.lower(): 0.5 < kernel.entry(STATE, one) for one in TRUTHS}
    damping = kept.pop("step_damping")
    state = PolicyState(**kept, least_relief=options.least_relief, tolerance=1.0, gradient_norm=1.0)
    after, end, accepted, _ = traced_policy.rules().next_state(
        state,
        damping,
        _tried(kernel, is_bounded=is_bounded),
        options,
        tuple(kernel.entry(ANSWERS, one) for one in Answer),
        0.0,
        may_vanish=is_exact,
    )
    kernel.put(VERDICT, Verdict.ACCEPTED, accepted.where(1.0, 0.0))
    kernel.put(VERDICT, Verdict.END, end)
    found = {**after._asdict(), "step_damping": traced_policy.rules().step_damping(after, options)}
    for place in State:
        value = found[place.name.lower()]
        kernel.put(NEXT, place, value.where(1.0, 0.0) if place in TRUTHS else value)
    return kernel.graph.build()


def _tried(kernel: ProgramBuilder, *, is_bounded: bool) -> SimpleNamespace:
    """A `TriedStep` of a problem."""
    tried = {one: kernel.entry(TRIED, one) for one in Tried}
    descent, square = tried[Tried.DESCENT], tried[Tried.STEP_SQUARE]
    model, has_slope = tried[Tried.MODEL], descent <= LARGEST
    return SimpleNamespace(
        cost=tried[Tried.COST],
        model_decrease=model,
        promise=model.max(0.5 * descent.max(0.0)) if is_bounded else model,
        descent=descent.max(0.0),
        gradient_norm=1.0,
        step_square=square.max(0.0),
        at_optimum=descent <= 0.0,
        is_faulty=~has_slope,
        is_unsolved=~(has_slope & (square <= LARGEST)),
        is_bounded=is_bounded,
        is_shortened=0.5 < kernel.scalar("shortening") if is_bounded else False,
    )
