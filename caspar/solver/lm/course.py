"""The state of a solve, and what a check of its end may say.

`minimize` moves a `Course` on, the checks judge its end. Nothing here decides anything.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from caspar.options import CompleteOptions, SolveOptions
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.lm.policy import (
    CONFIRMING_ITERATIONS,
    is_at_bottom,
    remaining_decrease,
    resumed_state,
)
from caspar.solver.lm.steps import AskRounding, LinearGoal, PolicyState, TriedStep
from caspar.solver.result.result import IterationRecord, SolveStatus
from caspar.solver.system.lone_promises import Promises

LEAST_GAINED = 1e-9
"""Share of the cost that a solve must have gained since it went on from an end, to go on again."""


@dataclass
class Course:
    """A solve, as far as it went.

    Attributes:
        status: Why the iterations ended; None: they go on.
        too_narrow: Why the solve should go on in float64, as the end of a sentence; empty: it need
            not. The status means little then.
        has_moved: Whether the values have to be linearised before the next step.
        is_looked_at: Whether D was looked at in a step with damping, see `derivative_sizes`.
        num_limited: Linear solves that ended at the limit of PCG iterations.
        cost_changes: How much rounding changes the cost of the current values, if it was asked.
        explained_by: Such a change, if it was why a solve ended with `CONVERGED_COST`.
        held_cost: Cost at which the solve last went on with weak nodes held, see
            `checks.table.weak_nodes`.
        resumed_cost: Cost at which it last went on from a success, see `held_back`.
        promises: What nodes promised at the last end that was looked at.
    """

    system: NormalEquations
    chosen: SolveOptions
    options: CompleteOptions
    initial_cost: float
    start_s: float
    state: PolicyState
    status: SolveStatus | None = None
    records: list[IterationRecord] = field(default_factory=list)
    remarks: tuple[str, ...] = ()
    remaining_decrease: float = math.nan
    too_narrow: str = ""
    has_moved: bool = True
    is_looked_at: bool = False
    num_limited: int = 0
    lost_at_start: Mapping[str, bool] = field(default_factory=dict)
    is_tiny_at_start: bool = False
    cost_changes: dict[AskRounding, float] = field(default_factory=dict)
    explained_by: float | None = None
    held_cost: float = math.inf
    resumed_cost: float = math.inf
    doubted: SolveStatus | None = None
    promises: Promises | None = None
    promised_cost: float = math.inf

    @property
    def cost(self) -> float:
        """Cost of the current values."""
        return self.state.cost

    @property
    def end(self) -> SolveStatus:
        """The status of a course that has ended."""
        assert self.status is not None
        return self.status

    @property
    def is_success(self) -> bool:
        """True if the iterations ended with success."""
        return self.status is not None and self.status.is_success

    @property
    def told_promises(self) -> Promises | None:
        """Promises of nodes, if they were computed at the values that are returned."""
        return self.promises if self.cost >= self.promised_cost else None

    @property
    def is_at_bottom(self) -> bool:
        """True if rejected steps have shown that the cost cannot fall further."""
        return self.options.ends_by_rises and is_at_bottom(self.state)

    def first_step(self, goal: LinearGoal) -> tuple[TriedStep, Mapping[str, bool]]:
        """Try a step, and choose whether D is levelled from here on: not if units are far apart.

        Returns the step, and node types with squares out of range: see `DerivativeSizes`.
        """
        system = self.system
        tried, sizes = system.try_and_look(goal)
        if sizes.levelling_holds(goal.damping):
            system.reject()
            system.level(0.0)
            system.score()
            system.linearize(goal.damping)
            tried, sizes = system.try_and_look(goal)
        # a levelled D hides a square of zero, but then levelling would hold its scalar
        return tried, sizes.lost_squares()

    def rounding_change(self, ask: AskRounding, cost: float) -> float:
        """How much the cost changes by a rounding: the most of several draws; NaN if any is."""
        if ask not in self.cost_changes:
            if ask is AskRounding.LAST_THIRD:
                change = cost * self.system.coarsely_rounded_change()
            else:
                changes = [abs(other - cost) for other in self.system.rounded_costs()]
                change = math.nan if any(map(math.isnan, changes)) else max(changes)
            self.cost_changes[ask] = change
        return self.cost_changes[ask]

    def promised_with(self, damping: float) -> float:
        """The decrease that a step of that damping promises, relative to the cost."""
        most = self.options.max_linear_iterations
        goal = LinearGoal(
            damping=damping,
            tolerance=self.options.min_linear_tolerance,
            min_iterations=min(CONFIRMING_ITERATIONS, most),
            max_iterations=most,
            is_whole=True,
        )
        return remaining_decrease(self.cost, self.system.promise(goal))

    def promised_undamped(self) -> float:
        """Return the promise of a step of next to no damping, by one more linear solve if need be.

        It is not known either if confirming steps had to take more damping: those with less
        promised something and did not keep it.
        """
        state = self.state
        if self.is_at_bottom:
            return state.attainable / state.cost
        if not math.isnan(state.remaining) and state.relief <= state.least_relief:
            return state.remaining
        return self.promised_with(state.least_relief)

    def go_on(self) -> None:
        """Go on from an end that was none: at the same values, as at the start."""
        self.status, self.has_moved = None, True
        self.state = resumed_state(self.state, self.options)


class Judgment(NamedTuple):
    """The answer of a check about the end of a course.

    Attributes:
        goes_on: The iterations go on from the first damping; nothing else is asked.
        status: Instead of the one that the iterations ended with; None: that one stays.
        remaining_decrease: See `Course`; None: not known.
    """

    goes_on: bool = False
    status: SolveStatus | None = None
    remarks: tuple[str, ...] = ()
    too_narrow: str = ""
    remaining_decrease: float | None = None


Check = Callable[[Course], Judgment | None]
"""Looks at the course of a solve that has ended; None: there is nothing to say."""
