"""The policy of Levenberg-Marquardt as a graph: what becomes of a step, for one problem.

The decisions are those of `solver.lm.policy` and `solver.lm.stopping`, whose functions
this follows one by one; here conditions are values and both sides of each are computed. What it
leaves out: linear systems are solved exactly, so there is no forcing term; there is no time limit;
what remains to be gained is not told; rounding is not asked about at the first rejected step of a
slight promise, as eight more scores cost more here than three more steps.

Input: entries of `state` and `tried`, the answers of the device in `answers`, and `options`.
Output: `next`, the state after the step, and `verdict`.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from caspar.batch.generate.programs import TRIED, WIDE, ProgramBuilder, Tried
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.scalar import Scalar
from caspar.solver.lm import policy, stopping
from caspar.solver.result.result import SolveStatus

STATE, NEXT, OPTIONS, ANSWERS, VERDICT = "state", "next", "options_data", "answers", "verdict"

_LARGEST = sys.float_info.max


class State(IntEnum):
    """What is kept from step to step, by its place: see `PolicyState`.

    A curvature is kept as RISE over half of RISE_SQUARE, of its step; both are 0 if there is none.
    What a parabola leaves is not kept: a decision ends the problem with it, or forgets it.
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
    """What the device has found out for this decision, by its place; KNOWN ones are 0 or 1."""

    DIGIT_KNOWN = 0
    DIGIT = 1
    THIRD_KNOWN = 2
    THIRD = 3


class Verdict(IntEnum):
    """What is decided, by its place: whether the step is taken, and an `end`."""

    ACCEPTED = 0
    END = 1


ASK_DIGIT, ASK_THIRD = -1.0, -2.0
"""Ends that are questions: see `AskRounding`."""

GO_ON = 0.0

STATUSES = tuple(SolveStatus)


def code(status: SolveStatus) -> float:
    """The end that is a status."""
    return float(STATUSES.index(status) + 1)


FIRST_STATE: Mapping[State, float] = {
    State.GROWTH: 2.0,
    State.NUM_ITERATIONS: 0.0,
    State.CONFIRMING: 0.0,
    State.RELIEF_COST: math.inf,
    State.PROMISED: -math.inf,
    State.NUM_NOT_FINITE: 0.0,
    State.NUM_REJECTED: 0.0,
    State.ASKED_COST: math.inf,
    State.IS_ROUNDING: 0.0,
    State.RISE: 0.0,
    State.RISE_SQUARE: 0.0,
}
"""What the state begins with, besides costs and dampings."""


@dataclass(frozen=True)
class _After:
    """The state after a step, as far as it changes, and why the problem ends; truths as values."""

    cost: Scalar
    damping: Scalar
    relief: Scalar
    growth: Scalar
    confirming: Scalar
    relief_cost: Scalar
    promised: Scalar
    num_not_finite: Scalar
    num_rejected: Scalar
    asked_cost: Scalar
    is_rounding: Scalar
    rise: Scalar
    rise_square: Scalar
    end: Scalar

    def ended(self, condition: Scalar, end: float) -> "_After":
        """With an end where a condition holds, unless there is one."""
        goes_on = (self.end <= GO_ON) & (GO_ON <= self.end)
        return replace(self, end=(goes_on & condition).where(end, self.end))

    @property
    def goes_on(self) -> Scalar:
        """Whether nothing has ended it yet."""
        return (self.end <= GO_ON) & (GO_ON <= self.end)


class _Step:
    """The step that was tried, and the state before it."""

    def __init__(
        self, kernel: ProgramBuilder, storage: DType, *, is_bounded: bool, ends_by_rises: bool
    ) -> None:
        self.kernel = kernel
        self.is_exact = storage is DType.FLOAT64
        self.ends_by_rises = self.is_exact and ends_by_rises
        self.is_shortened = 0.5 < kernel.scalar("shortening") if is_bounded else None
        self.state = {one: kernel.entry(STATE, one) for one in State}
        self.option = {one: kernel.entry(OPTIONS, one) for one in Option}
        self.answer = {one: kernel.entry(ANSWERS, one) for one in Answer}
        tried = {one: kernel.entry(TRIED, one) for one in Tried}
        self.cost, self.model = tried[Tried.COST], tried[Tried.MODEL]
        descent = tried[Tried.DESCENT]
        self.descent = descent.max(0.0)
        self.promise = self.model.max(0.5 * self.descent) if is_bounded else self.model
        self.step_square = tried[Tried.STEP_SQUARE].max(0.0)
        self.is_faulty = ~(descent <= _LARGEST)
        self.at_optimum = descent <= 0.0
        self.damping = self.state[State.STEP_DAMPING]
        self.confirming = 0.5 < self.state[State.CONFIRMING]
        self.gain_ratio = (self.state[State.COST] - self.cost) / self.model
        is_first = self.state[State.NUM_ITERATIONS] <= 0.0
        is_speculative = is_first & (self.state[State.DAMPING] <= 0.0)
        self.is_speculative = is_speculative if self.is_exact else self.no
        least = self.is_speculative.where(policy.UNDAMPED_GAIN_RATIO, policy.MIN_GAIN_RATIO)
        self.accepted = (
            ~self.is_faulty
            & ~self.at_optimum
            & is_finite(self.cost)
            & (0.0 < self.model)
            & (least < self.gain_ratio)
        )

    @property
    def no(self) -> Scalar:
        """A condition that never holds."""
        return self.one(1.0) < 0.0

    def one(self, number: float) -> Scalar:
        """A literal."""
        return self.kernel.one(number)

    def answered(self, known: Answer) -> Scalar:
        """Whether the device has answered."""
        return 0.5 < self.answer[known]


def is_finite(number: Scalar) -> Scalar:
    """Whether it is neither infinite nor NaN."""
    return (number <= _LARGEST) & (-_LARGEST <= number)


def least(one: Scalar, other: Scalar) -> Scalar:
    """The smaller one."""
    return (one < other).where(one, other)


def policy_graph(storage: DType, *, is_bounded: bool = False, ends_by_rises: bool = True) -> Graph:
    """The whole decision: see `policy.decide`.

    Args:
        storage: Type of the values. In float32 no first step is without damping, none grows from
            next to nothing, and rises of the cost tell no curvature.
        is_bounded: Whether numbers have bounds, so that steps may be shortened.
        ends_by_rises: See `CompleteOptions`.
    """
    kernel = ProgramBuilder("policy", WIDE)
    kernel.graph.origin = "policy"
    step = _Step(kernel, storage, is_bounded=is_bounded, ends_by_rises=ends_by_rises)
    after = _after_step(step)
    after = _damped(step, after)
    after = _after_fall(step, after)
    after = _at_limit(step, after)
    kernel.put(VERDICT, Verdict.ACCEPTED, step.accepted.where(1.0, 0.0))
    kernel.put(VERDICT, Verdict.END, after.end)
    state = step.state
    confirming = 0.5 < after.confirming
    found = {
        State.INITIAL_COST: state[State.INITIAL_COST],
        State.COST: after.cost,
        State.DAMPING: after.damping,
        State.RELIEF: after.relief,
        State.GROWTH: after.growth,
        State.NUM_ITERATIONS: state[State.NUM_ITERATIONS] + 1.0,
        State.CONFIRMING: after.confirming,
        State.RELIEF_COST: after.relief_cost,
        State.PROMISED: after.promised,
        State.NUM_NOT_FINITE: after.num_not_finite,
        State.NUM_REJECTED: after.num_rejected,
        State.ASKED_COST: after.asked_cost,
        State.IS_ROUNDING: after.is_rounding,
        State.STEP_DAMPING: confirming.where(_relieved(step, after), after.damping),
        State.RISE: after.rise,
        State.RISE_SQUARE: after.rise_square,
    }
    for place, value in found.items():
        kernel.put(NEXT, place, value)
    return kernel.graph.build()


def _relieved(step: _Step, after: _After) -> Scalar:
    """`stopping.step_damping` of a step that confirms."""
    floor = step.option[Option.MIN_DAMPING].max(stopping.GREATEST_RELIEF)
    return least(after.relief, (after.damping < 1.0).where(after.damping, floor))


def _shown(step: _Step, promised: Scalar) -> tuple[Scalar, Scalar]:
    """`stopping._shown`: an end, and whether the next step is to confirm."""
    cost, damping, option = step.state[State.COST], step.damping, step.option
    relief = (damping < 1.0).where(1.0, damping + 1.0)
    slope = relief * step.descent
    flat = slope <= 2.0 * option[Option.GRADIENT_TOLERANCE] * cost
    is_lost = (1.0 < relief) & (step.step_square <= 0.0) & (0.0 < step.descent)
    tolerance = option[Option.STEP_TOLERANCE]
    square = relief * relief * step.step_square
    if step.is_shortened is not None:
        square = square.max(slope)
    short = square <= 2.0 * tolerance * tolerance * cost
    short = ~is_lost & short
    gain = (cost - step.cost).max(step.promise)
    most = option[Option.COST_TOLERANCE] * cost
    gained = (gain <= most) & (damping < 1.0)
    decrease = (damping < 1.0).where(step.promise, step.promise.max(0.5 * slope))
    refused = (0.0 < decrease) & (decrease <= most)
    # of truths: Op.SELECT chooses numbers
    is_small = (step.accepted & gained) | (~step.accepted & refused)
    end = (is_small & step.confirming).where(code(SolveStatus.CONVERGED_COST), GO_ON)
    end = short.where(code(SolveStatus.CONVERGED_STEP), end)
    end = flat.where(code(SolveStatus.CONVERGED_GRADIENT), end)
    confirms = is_small.where(1.0, 0.0)
    unknown = step.is_faulty | ~is_finite(step.cost)
    end = unknown.where(GO_ON, end)
    at_optimum = (0.0 < promised).where(GO_ON, code(SolveStatus.CONVERGED_GRADIENT))
    end = step.at_optimum.where(at_optimum, end)
    same = unknown | step.at_optimum
    confirms = same.where(step.state[State.CONFIRMING], confirms)
    if step.is_shortened is not None:
        confirms = (step.is_shortened & (GO_ON < end)).where(1.0, confirms)
        end = step.is_shortened.where(GO_ON, end)
    return end, confirms


def _after_step(step: _Step) -> _After:
    """`stopping.after_step`."""
    state, damping = step.state, step.damping
    cost, promised = state[State.COST], state[State.PROMISED]
    relieved = (damping < state[State.DAMPING]) & ~step.accepted
    more = step.accepted.where(-math.inf, _promised(step))
    more = relieved.where(promised, more)
    shown, confirming = _shown(step, more)
    count = step.is_faulty.where(state[State.NUM_NOT_FINITE] + 1.0, 0.0)
    is_broken = stopping.MAX_NOT_FINITE <= count
    broken = is_broken.where(code(SolveStatus.DERIVATIVES_NOT_FINITE), GO_ON)
    is_faulty = step.is_faulty & ~relieved
    end = is_faulty.where(broken, shown)
    rests = (0.5 < state[State.IS_ROUNDING]) & ~step.accepted & ~relieved
    end = rests.where(code(SolveStatus.CONVERGED_GRADIENT), end)
    confirming = is_faulty.where(state[State.CONFIRMING], confirming)
    again = (damping < stopping.GREATEST_RELIEF).where(1.0, 0.0)
    has_gained = cost <= (1.0 - stopping.GAINED_SINCE) * state[State.RELIEF_COST]
    relief = has_gained.where(step.option[Option.LEAST_RELIEF], state[State.RELIEF])
    relief_cost = has_gained.where(math.inf, state[State.RELIEF_COST])
    rejected = step.accepted.where(0.0, state[State.NUM_REJECTED] + 1.0)
    is_visible, rise, _ = _rise(step)
    kept = is_visible.where(rise, state[State.RISE])
    rise_square = is_visible.where(step.step_square, state[State.RISE_SQUARE])
    return _After(
        cost=cost,
        damping=state[State.DAMPING],
        relief=relieved.where(stopping.RELIEF_GROWTH * damping, relief),
        growth=state[State.GROWTH],
        confirming=relieved.where(again, confirming),
        relief_cost=relieved.where(cost, relief_cost),
        promised=more,
        num_not_finite=relieved.where(state[State.NUM_NOT_FINITE], count),
        num_rejected=relieved.where(state[State.NUM_REJECTED], rejected),
        asked_cost=state[State.ASKED_COST],
        is_rounding=state[State.IS_ROUNDING],
        rise=step.accepted.where(0.0, kept),
        rise_square=step.accepted.where(0.0, rise_square),
        end=end,
    )


def _rise(step: _Step) -> tuple[Scalar, Scalar, Scalar]:
    """`stopping._with_rise`: whether a step tells a curvature, its RISE, and whether none is left.

    Quotients are compared as products: there is no division.
    """
    if not step.ends_by_rises:
        return step.no, step.one(0.0), step.no
    state, square = step.state, step.step_square
    rise, slope = step.cost - state[State.COST], 2.0 * step.model
    least = stopping.VISIBLE * stopping.COST_ROUNDING * state[State.COST]
    is_visible = (least < rise) & (rise <= _LARGEST) & (0.0 < slope) & (0.0 < square)
    bent = rise + slope
    before, most, same = state[State.RISE_SQUARE], stopping.OTHER_STEP**2, stopping.SAME_CURVATURE
    is_other = ~((before < most * square) & (square < most * before))
    now, then = bent * before, state[State.RISE] * square
    is_same = (then <= same * now) & (now <= same * then) & (0.0 < then)
    is_at_bottom = is_visible & is_other & is_same & (slope * slope < 4.0 * bent * least)
    return is_visible, bent, is_at_bottom


def _promised(step: _Step) -> Scalar:
    """`stopping._promised`."""
    before, promised = step.state[State.PROMISED], step.promise
    alone = 0.5 * (step.damping + 1.0) * step.descent
    is_first = ~(step.damping < 1.0) & ~is_finite(before)
    promised = is_first.where(promised.max(alone), promised)
    return is_finite(step.promise).where(before.max(promised), before)


def _damped(step: _Step, after: _After) -> _After:
    """The damping after the step: `policy.decide`."""
    state, damping, option = step.state, step.damping, step.option
    is_good = ~(step.gain_ratio < policy.GOOD_GAIN_RATIO)
    usual = is_good.where(damping, state[State.DAMPING])
    if step.is_exact:
        usual = (is_good | (0.0 < usual)).where(usual, option[Option.INITIAL_DAMPING])
    ratio = 2.0 * least(step.gain_ratio, step.one(1.0)) - 1.0
    factor = (1.0 - ratio * ratio * ratio).max(policy.GREATEST_SHRINK)
    smaller = least((factor * usual).max(option[Option.MIN_DAMPING]), option[Option.MAX_DAMPING])
    grows = ~(damping < state[State.DAMPING])
    grown = state[State.DAMPING]
    if step.is_exact:
        is_singular = step.is_faulty | ~(step.step_square <= _LARGEST)
        grown = grown.max(is_singular.where(policy.LEAST_GROWN_SINGULAR, policy.LEAST_GROWN))
    larger = grows.where(grown * state[State.GROWTH], state[State.DAMPING])
    growth = grows.where(2.0 * state[State.GROWTH], state[State.GROWTH])
    larger = step.is_speculative.where(option[Option.INITIAL_DAMPING], larger)
    growth = step.is_speculative.where(state[State.GROWTH], growth)
    is_in_vain = step.is_speculative & ~step.accepted
    return replace(
        after,
        cost=step.accepted.where(step.cost, after.cost),
        damping=step.accepted.where(smaller, larger),
        growth=step.accepted.where(2.0, growth),
        num_rejected=is_in_vain.where(0.0, after.num_rejected),
    )


def _after_fall(step: _Step, after: _After) -> _After:
    """`stopping.after_fall`, of an accepted step that has not ended the problem."""
    state, cost = step.state, after.cost
    first = state[State.INITIAL_COST]
    looks = step.accepted & after.goes_on & (cost <= stopping.NEARLY_NEGLIGIBLE * first)
    least_change = stopping.ROUNDING_SHARE * cost
    asks = looks & (cost <= stopping.ASK_AGAIN * state[State.ASKED_COST])
    is_known = step.answered(Answer.DIGIT_KNOWN)
    was_rounding = 0.5 < state[State.IS_ROUNDING]
    is_rounding = least_change <= step.answer[Answer.DIGIT]
    rounding = (asks & is_known).where(is_rounding.where(1.0, 0.0), state[State.IS_ROUNDING])
    after = replace(
        after,
        asked_cost=(asks & is_known).where(cost, state[State.ASKED_COST]),
        is_rounding=rounding,
    )
    converged = code(SolveStatus.CONVERGED_GRADIENT)
    after = after.ended(asks & ~is_known, ASK_DIGIT)
    after = after.ended(looks & ~asks & was_rounding, converged)
    falls = cost <= stopping.FALLING * state[State.COST]
    deep = looks & falls & (cost <= stopping.NEGLIGIBLE * first)
    after = after.ended(deep & (0.5 < rounding), converged)
    after = after.ended(deep & ~step.answered(Answer.THIRD_KNOWN), ASK_THIRD)
    by_thirds = after.goes_on & deep & (least_change <= step.answer[Answer.THIRD])
    after = replace(after, is_rounding=by_thirds.where(1.0, after.is_rounding))
    return after.ended(by_thirds, converged)


def _at_limit(step: _Step, after: _After) -> _After:
    """`stopping.at_limit`."""
    option = step.option
    *_, is_at_bottom = _rise(step)
    after = after.ended(~step.accepted & is_at_bottom, code(SolveStatus.CONVERGED_GRADIENT))
    is_large = option[Option.MAX_DAMPING] < after.damping
    count = after.num_rejected
    is_fourth = (stopping.MAX_REJECTED <= count) & (count <= stopping.MAX_REJECTED)
    looks = is_large | is_fourth
    change = step.answer[Answer.DIGIT]
    explains = is_finite(change) & (0.0 < change) & is_finite(after.promised)
    explains = explains & (least(after.promised, after.cost) <= change)
    after = after.ended(looks & ~step.answered(Answer.DIGIT_KNOWN), ASK_DIGIT)
    after = after.ended(looks & explains, code(SolveStatus.CONVERGED_COST))
    after = after.ended(is_large, code(SolveStatus.DAMPING_LIMIT))
    is_last = option[Option.MAX_ITERATIONS] <= step.state[State.NUM_ITERATIONS] + 1.0
    return after.ended(is_last, code(SolveStatus.ITERATION_LIMIT))
