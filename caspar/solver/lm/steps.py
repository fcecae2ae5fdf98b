"""What the loop, the policy and the device pass to each other.

Named tuples: an iteration of a small problem makes a dozen, and frozen dataclasses take longer to
make.
"""

import math
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from caspar.equations.scalar_kernels import LinearOutcome
from caspar.solver.result.result import SolveStatus


class LinearGoal(NamedTuple):
    """What the linear solver is asked for.

    Attributes:
        damping: Factor of D added to J^T J.
        tolerance: Relative decrease of the preconditioned residual norm.
        min_iterations: PCG iterations before the tolerance is tested.
        max_iterations: PCG iterations at most.
        expected_damping: Of the next step, if this one is as good as the linear model says; None:
            there is no next one.
        is_whole: Whether it must tell of a minimum: what rejected steps held at bounds is free, and
            nodes do not stop at the first bound that one of their numbers meets.
    """

    damping: float
    tolerance: float
    min_iterations: int
    max_iterations: int
    expected_damping: float | None = None
    is_whole: bool = False


class TriedStep(NamedTuple):
    """The end of a step that was tried.

    Attributes:
        cost: Cost of the candidate.
        model_decrease: Decrease of the cost the linear model predicts for this step.
        gradient_norm: Preconditioned gradient norm, sqrt(g . M^-1 g): its square is about twice
            the decrease that a full linear step promises.
        step_norm: Norm of the step weighted by D.
        linear_iterations: PCG iterations.
        outcome: Why PCG stopped.
        least_pivot: Of a factorisation.
        least_promise: Decrease of the cost that is promised if no bound stops the step; nothing
            without bounds. `model_decrease` is of the step up to there, and tells of no minimum.
        is_shortened: Whether nodes stopped at the first bound that one of their numbers met: then
            a small step, and a small promise, tell nothing of a minimum.
    """

    cost: float
    model_decrease: float
    gradient_norm: float
    step_norm: float
    linear_iterations: int
    outcome: LinearOutcome
    least_pivot: float = 1.0
    least_promise: float = -math.inf
    is_shortened: bool = False

    @property
    def promise(self) -> float:
        """Decrease of the cost that the linear model predicts, bounds left aside."""
        return max(self.model_decrease, self.least_promise)

    @property
    def descent(self) -> float:
        """Square of the gradient's norm."""
        return self.gradient_norm * self.gradient_norm

    @property
    def step_square(self) -> float:
        """Square of the step's norm."""
        return self.step_norm * self.step_norm

    @property
    def is_bounded(self) -> bool:
        """Whether some numbers have bounds."""
        return self.least_promise > -math.inf

    @property
    def at_optimum(self) -> bool:
        """Whether the gradient is zero."""
        return self.outcome is LinearOutcome.AT_OPTIMUM

    @property
    def is_unsolved(self) -> bool:
        """Whether the linear system has no solution."""
        return self.outcome is LinearOutcome.NOT_FINITE

    @property
    def is_faulty(self) -> bool:
        """Whether its right-hand side is not finite: damping mends matrices, but no gradient."""
        return self.outcome is LinearOutcome.NOT_FINITE and self.linear_iterations == 0

    @property
    def unsolved(self) -> "TriedStep":
        """The same if the linear system has no solution."""
        return self._replace(outcome=LinearOutcome.NOT_FINITE)

    @property
    def is_limited(self) -> bool:
        """Whether PCG stopped at the limit of its iterations."""
        return self.outcome is LinearOutcome.ITERATIONS

    @classmethod
    def of(
        cls, scalars: Mapping[str, float], *, is_bounded: bool = False, is_shortened: bool = False
    ) -> "TriedStep":
        """From the solver's scalars, by name."""
        model = -scalars["step_gradient"] + scalars["step_residual"] + scalars["step_damping"]
        promised = scalars["first_descent"] + scalars["eliminated_descent"]
        outcome = LinearOutcome(int(scalars["done"]))
        if outcome is LinearOutcome.AT_OPTIMUM and promised > 0.0:
            # only the eliminated nodes have anywhere to go, and theirs is a full step
            outcome = LinearOutcome.TOLERANCE
        return cls(
            cost=scalars["cost"],
            model_decrease=0.5 * model,
            gradient_norm=math.sqrt(max(promised, 0.0)),
            step_norm=math.sqrt(max(scalars["step_norm"], 0.0)),
            linear_iterations=int(scalars["linear_iterations"]),
            outcome=outcome,
            least_pivot=scalars["least_pivot"],
            least_promise=0.5 * promised if is_bounded else -math.inf,
            is_shortened=is_shortened,
        )


class PolicyState(NamedTuple):
    """Everything that decisions depend on, besides the step and the options.

    Attributes:
        initial_cost: Cost of the start values.
        least_relief: Damping of a confirming step at least.
        cost: Cost of the current values.
        damping: Next damping, unless the next step confirms with less.
        tolerance: Next tolerance of the linear solver.
        relief: Damping of the next step that confirms, unless the usual one is less.
        growth: Factor of the damping after the next rejection.
        gradient_norm: Of the last accepted step; 0 before the first.
        num_iterations: Iterations so far.
        confirming: The next step decides whether the solve has converged.
        relief_cost: Cost at which a step of little damping last failed to gain what it promised.
        promised: Largest decrease that a step promised since the last one was accepted.
        num_not_finite: Linear solves in a row that could not begin.
        remaining: Decrease of the cost that the latest step of little damping promised at the
            current values, relative to the cost; NaN if none was tried there.
        num_rejected: Steps in a row that were rejected.
        rise: Rise of the cost above its tangent along the latest of them whose rise is no rounding;
            0 if there was none. Twice that over `rise_square` is the curvature.
        rise_square: Square of that step's norm.
        attainable: Decrease of the cost that a parabola through two such steps leaves, if it is
            less than the cost's rounding; else infinite.
        asked_cost: Cost at which the device was last asked whether only rounding errors are left.
        is_rounding: Whether they were: then the solve goes on only if the next step lowers the cost
            by much.
        keeps: Gain ratio that keeps the damping.
    """

    initial_cost: float
    least_relief: float
    cost: float
    damping: float
    tolerance: float
    relief: float
    growth: float = 2.0
    gradient_norm: float = 0.0
    num_iterations: int = 0
    confirming: bool = False
    relief_cost: float = float("inf")
    promised: float = float("-inf")
    num_not_finite: int = 0
    remaining: float = float("nan")
    num_rejected: int = 0
    rise: float = 0.0
    rise_square: float = 0.0
    attainable: float = float("inf")
    asked_cost: float = float("inf")
    is_rounding: bool = False
    keeps: float = 0.5

    @property
    def tries_undamped(self) -> bool:
        """Whether the next step is the first one, and has no damping."""
        return (self.num_iterations <= 0) & (self.damping <= 0.0)


class Verdict(Enum):
    """Whether a step is accepted; the value says why not."""

    ACCEPTED = ""
    NO_GRADIENT = "the gradient is zero: there is no step"
    NO_LINEAR_SOLUTION = "the linear solve is not finite"
    NO_FINITE_COST = "the cost of the candidate is not finite"
    NO_PREDICTED_DECREASE = "the linear model predicts no decrease"
    TOO_LITTLE_DECREASE = "the cost did not decrease as predicted"


class AskRounding(Enum):
    """A question to the device: how much does the cost change if the current values are moved?"""

    LAST_DIGIT = "by a rounding each"
    LAST_THIRD = "by the last third of their digits"


CostChanges = Mapping[AskRounding, float]
"""Answers of the device: the greatest change of several draws; NaN if one of them has no cost."""

End = SolveStatus | AskRounding | None
"""Why a solve ends; None: it goes on; or what has to be known to decide that."""


class Decision(NamedTuple):
    """What becomes of a step that was tried.

    Attributes:
        verdict: Whether the candidate becomes the current values.
        gain_ratio: Actual over predicted decrease of the cost; NaN if none is predicted.
        cost: Cost of the current values after the verdict.
        end: Whether the solve ends.
    """

    verdict: Verdict
    gain_ratio: float
    cost: float
    end: End

    @property
    def accepted(self) -> bool:
        """Whether the candidate becomes the current values."""
        return self.verdict is Verdict.ACCEPTED
