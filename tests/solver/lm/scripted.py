"""A linearised problem that answers by a script, to test the iteration alone."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from caspar.equations.scalar_kernels import LinearOutcome
from caspar.ir.dtype import DType
from caspar.options import SolveOptions
from caspar.runtime.group.member import ALONE, Communicator
from caspar.solver.lm.course import Course
from caspar.solver.lm.derivative_sizes import DerivativeSizes
from caspar.solver.lm.minimize import minimize
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.lm.steps import LinearGoal, TriedStep
from caspar.solver.lm.usual_options import USUAL_OPTIONS
from caspar.solver.system.lone_promises import Promises

STEP = TriedStep(
    cost=math.nan,
    model_decrease=math.nan,
    gradient_norm=1.0,
    step_norm=1.0,
    linear_iterations=7,
    outcome=LinearOutcome.TOLERANCE,
)


@dataclass
class FakeSystem:
    """A linearised problem that answers by a script.

    Attributes:
        cost: Cost of the values it holds.
        script: One answer for each step that is tried.
        calls: Names of what was called.
        goals: What each linear solve was asked for.
        rounding: How much rounding the values changes the cost.
        coarse_rounding: How much changing half of their digits does.
        storage: Type of the values.
        usual_options: What the user leaves open.
        is_chained: Whether a factor couples two nodes of a type that remains.
        lone: What nodes promise one by one; None: it is not looked at.
        weak: Whether there are nodes of next to no influence, each time that it is asked.
        promised: Decreases that steps promise which are not taken: with next to no damping, and
            with more.
    """

    cost: float
    script: Sequence[TriedStep]
    calls: list[str] = field(default_factory=list)
    goals: list[LinearGoal] = field(default_factory=list)
    rounding: float = 0.0
    coarse_rounding: float = 0.0
    num_residuals: int = 1
    storage: DType = DType.FLOAT32
    values_type: DType = DType.FLOAT32
    is_mixed: bool = False
    usual_options: Mapping[str, float] = field(default_factory=lambda: USUAL_OPTIONS)
    communicator: Communicator = ALONE
    is_chained: bool = True
    lone: Promises | None = None
    weak: tuple[bool, ...] = ()
    promised: tuple[float, float] = (math.nan, math.nan)

    def score(self) -> float:
        self.calls.append("score")
        return self.cost

    def linearize(self, damping: float) -> None:
        assert damping > 0.0
        self.calls.append("linearize")

    def try_step(self, goal: LinearGoal) -> TriedStep:
        self.calls.append("try_step")
        self.goals.append(goal)
        return self.script[len(self.goals) - 1]

    def take_plain_steps(self, numbers: list[float], max_steps: int) -> None:
        """None: it answers step by step."""

    def promise(self, goal: LinearGoal) -> TriedStep:
        assert goal.expected_damping is None
        self.calls.append("promise")
        return STEP._replace(model_decrease=self.promised[goal.damping > 1e-5])

    @property
    def has_lone_promises(self) -> bool:
        return self.lone is not None

    def lone_promises(self, _cost: float, _least: float) -> Promises | None:
        self.calls.append("lone_promises")
        return self.lone

    def hold_weak(self) -> bool:
        self.calls.append("hold_weak")
        number = self.calls.count("hold_weak") - 1
        return number < len(self.weak) and self.weak[number]

    def forget(self) -> None:
        self.calls.append("forget")

    def accept(self) -> None:
        self.calls.append("accept")
        self.cost = self.script[len(self.goals) - 1].cost

    def reject(self) -> None:
        self.calls.append("reject")

    def rounded_costs(self) -> tuple[float, ...]:
        self.calls.append("rounded_costs")
        return self.cost + 0.01 * self.rounding, self.cost - self.rounding, self.cost

    def coarsely_rounded_change(self) -> float:
        self.calls.append("coarsely_rounded_change")
        return self.coarse_rounding / self.cost

    @property
    def findings(self) -> Any:
        """What is told of it."""
        return self

    def largest_residual(self) -> float:
        return math.sqrt(2.0 * self.cost)

    def try_and_look(self, goal: LinearGoal) -> tuple[TriedStep, DerivativeSizes]:
        return self.try_step(goal), DerivativeSizes([])

    def faulty_costs(self) -> tuple[str, ...]:
        return ("any",)

    def faulty_derivatives(self) -> tuple[str, ...]:
        self.calls.append("faulty_derivatives")
        return ("any", "other")

    def remarks_on_values(self, cost: float, first_cost: float) -> tuple[str, ...]:
        return ()


def step(before: float, decrease: float, gain_ratio: float = 1.0, **changes: Any) -> TriedStep:
    """A step from a cost of `before` that lowers it."""
    made = STEP._replace(cost=before - decrease, model_decrease=decrease / gain_ratio)
    return made._replace(**changes)


def steps(*decreases: float, start: float = 100.0, **changes: Any) -> list[TriedStep]:
    """Steps one after the other."""
    made = []
    for decrease in decreases:
        made.append(step(start, decrease, **changes))
        start -= decrease
    return made


REJECTED = STEP._replace(cost=150.0, model_decrease=1.0)


def run(
    script: Sequence[TriedStep],
    initial_cost: float = 100.0,
    on_iteration: Callable[[Any], object] | None = None,
    rounding: float = 0.0,
    coarse_rounding: float = 0.0,
    **options: Any,
) -> tuple[Course, FakeSystem]:
    """Iterate over a script, at most once through it; by default no gradient is too small."""
    system = FakeSystem(initial_cost, script, rounding=rounding, coarse_rounding=coarse_rounding)
    options = {"max_iterations": len(script), "gradient_tolerance": 0.0, **options}
    course = minimize(
        cast(NormalEquations, system), SolveOptions.from_mapping(options), on_iteration
    )
    assert course.cost == system.cost or math.isnan(initial_cost)
    return course, system
