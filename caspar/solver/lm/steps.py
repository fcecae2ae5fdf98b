"""Messages between the loop, the policy and the device, and the state of the device.

Named tuples: an iteration of a small problem makes a dozen, and frozen dataclasses take longer to
make.
"""

import math
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from caspar.equations.node_blocks import KEPT_WAY, NUM_INSIDE
from caspar.equations.scalar_kernels import LinearOutcome
from caspar.solver.result.result import SolveStatus


class LinearGoal(NamedTuple):
    """The request to the linear solver.

    Attributes:
        damping: Factor of D added to J^T J.
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
        model_decrease: Decrease of the cost the linear model predicts for this step.
        gradient_norm: Preconditioned gradient norm, sqrt(g . M^-1 g): its square is about twice
            the decrease that a full linear step promises.
        step_norm: Norm of the step weighted by D.
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
        """True if some numbers have bounds."""
        return self.least_promise > -math.inf

    @property
    def at_optimum(self) -> bool:
        """True if the gradient is zero."""
        return self.outcome is LinearOutcome.AT_OPTIMUM

    @property
    def is_unsolved(self) -> bool:
        """True if the linear system has no solution."""
        return self.outcome is LinearOutcome.NOT_FINITE

    @property
    def is_faulty(self) -> bool:
        """True if its right-hand side is not finite: damping mends matrices, but no gradient."""
        return self.outcome is LinearOutcome.NOT_FINITE and self.linear_iterations == 0

    @property
    def is_limited(self) -> bool:
        """True if PCG stopped at the limit of its iterations."""
        return self.outcome is LinearOutcome.ITERATIONS

    @classmethod
    def of(
        cls, scalars: Mapping[str, float], *, is_bounded: bool = False, is_shortened: bool = False
    ) -> "TriedStep":
        """Make it from the solver's scalars, by name."""
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
        least_relief: Damping of a confirming step at least.
        damping: Next damping, unless the next step confirms with less.
        tolerance: Next tolerance of the linear solver.
        relief: Damping of the next step that confirms, unless the usual one is less.
        growth: Factor of the damping after the next rejection.
        gradient_norm: Of the last accepted step; 0 before the first.
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
        """True if the next step is the first one, and has no damping."""
        return (self.num_iterations <= 0) & (self.damping <= 0.0)


class Verdict(Enum):
    """The verdict on a step: accepted, or the reason why not as the value."""

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
    """The decision about a step that was tried.

    Attributes:
        gain_ratio: Actual over predicted decrease of the cost; NaN if none is predicted.
    """

    verdict: Verdict
    gain_ratio: float
    cost: float
    end: End

    @property
    def accepted(self) -> bool:
        """True if the candidate becomes the current values."""
        return self.verdict is Verdict.ACCEPTED


class Place(Enum):
    """The values at which Jacobians, gradients and blocks were taken."""

    NOWHERE = "none that are needed: the next step must score and linearise first"
    CURRENT = "the current values"
    CANDIDATE = "the candidate of the last step, before it is known whether it is accepted"
    TRIED = "the current values, from which the step with `begun_damping` was tried already"


class Linearization(NamedTuple):
    """The state of the linearised problem on the device.

    Attributes:
        is_scaled: Jacobians are stored, of variables that are scaled by D: they belong to one
            damping. Of the plan, never changes.
        is_shared: Candidates are in the memory of the Jacobians. Of the plan, never changes.
        begun_damping: Damping with which the linear solve has begun; None: it has not.
        levelling: 1 if D levels the entries of a part of a tangent, else 0.
    """

    is_scaled: bool
    is_shared: bool
    place: Place = Place.NOWHERE
    begun_damping: float | None = None
    was_rejected: bool = False
    levelling: float = 1.0
    num_inside: int = 0

    @property
    def controls(self) -> tuple[float, float]:
        """The scalars `levelling` and `shortening`, see `node_blocks.clipped_step`."""
        if self.was_rejected:
            return self.levelling, 1.0
        return self.levelling, KEPT_WAY if self.num_inside > 0 else 0.0

    def loaded(self, *, keeps_inside: bool = False) -> "Linearization":
        """After other start values and constants were packed."""
        num_inside = NUM_INSIDE if keeps_inside else 0
        return Linearization(self.is_scaled, self.is_shared, num_inside=num_inside)

    def overwritten(self) -> "Linearization":
        """After other work in the same memory, such as scoring the current values."""
        return self._at(Place.NOWHERE)

    def linearized(self, damping: float) -> "Linearization":
        """After the current values were linearised for a damping, unless that was done ahead."""
        if self.was_tried(damping):
            return self
        if self.place is not Place.CANDIDATE:
            return self._at(Place.CURRENT)
        if self.is_scaled and self.begun_damping != damping:
            return self._at(Place.NOWHERE)
        return self._at(Place.CURRENT, self.begun_damping)

    def tried(self) -> "Linearization":
        """After a step was solved for, retracted and scored."""
        return self._at(Place.NOWHERE if self.is_shared else Place.CURRENT)

    def took_plain_steps(self, damping: float | None) -> "Linearization":
        """After plain steps; `damping`: of a step that was tried and not taken, or None."""
        if damping is None:
            return self._at(Place.NOWHERE, was_rejected=False)
        return self._at(Place.TRIED, damping, was_rejected=False)

    def was_tried(self, damping: float) -> bool:
        """Return whether the step with that damping was tried already."""
        return self.place is Place.TRIED and self.begun_damping == damping

    def went_ahead(self, damping: float) -> "Linearization":
        """After the candidate was linearised, and the linear solve begun with this damping."""
        return self._at(Place.CANDIDATE, damping)

    def accepted(self) -> "Linearization":
        """After the candidate became the current values: only what was done ahead is of use."""
        if self.place is Place.CANDIDATE:
            return self._at(Place.CANDIDATE, self.begun_damping, was_rejected=False)
        moved = self._at(Place.NOWHERE, was_rejected=False)
        if self.num_inside == 0:
            return moved
        return moved._replace(num_inside=self.num_inside - 1)

    def rejected(self) -> "Linearization":
        """After the current values were kept. The next damping is another one."""
        is_kept = self.place is Place.CURRENT and not self.is_scaled
        return self._at(Place.CURRENT if is_kept else Place.NOWHERE, was_rejected=True)

    def released(self) -> "Linearization":
        """Return it as if no step had been rejected here; values have to be linearised again."""
        return self._at(Place.NOWHERE, was_rejected=False)

    def levelled(self, levelling: float) -> "Linearization":
        """Return it with other levelling from the next linearisation on."""
        return self._replace(levelling=levelling)

    def _at(
        self, place: Place, begun_damping: float | None = None, *, was_rejected: bool | None = None
    ) -> "Linearization":
        """Linearised elsewhere; by default no linear solve has begun."""
        # several times an iteration, where `_replace` takes longer
        return Linearization(
            self.is_scaled,
            self.is_shared,
            place,
            begun_damping,
            self.was_rejected if was_rejected is None else was_rejected,
            self.levelling,
            self.num_inside,
        )
