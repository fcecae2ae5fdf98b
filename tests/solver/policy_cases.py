"""Levenberg-Marquardt's decisions as a table: state, tried step and options to the next state."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from caspar.equations.scalar_kernels import LinearOutcome
from caspar.ir.dtype import DType
from caspar.options import CompleteOptions
from caspar.solver.lm import policy
from caspar.solver.lm.policy import FORCING_FACTOR, GREATEST_SHRINK, first_state
from caspar.solver.lm.steps import AskRounding, PolicyState, TriedStep, Verdict
from caspar.solver.result.result import SolveStatus

OPTIONS = CompleteOptions(
    max_iterations=50,
    initial_damping=0.1,
    max_damping=1e6,
    cost_tolerance=1e-6,
    gradient_tolerance=1e-10,
    step_tolerance=1e-5,
    max_time_s=60.0,
)
STATE = first_state(100.0, DType.FLOAT32, OPTIONS)
LEAST = policy.LEAST_RELIEF[DType.FLOAT32]

STEP = TriedStep(
    cost=90.0,
    model_decrease=10.0,
    gradient_norm=1.0,
    step_norm=1.0,
    linear_iterations=7,
    outcome=LinearOutcome.TOLERANCE,
)
"""It is accepted, with a gain ratio of 1."""

WORSE = {"cost": 150.0, "model_decrease": 1.0}
"""A step is rejected, and promised a decrease of 1."""

SLIGHT = {"cost": 100.0 - 2.0**-16, "model_decrease": 2.0**-16}
"""A step gains next to nothing."""

VAIN = {"cost": 100.0, "model_decrease": 1e-5}
"""A step is rejected, and promised next to nothing."""

FALLEN = {"cost": 50.0 * policy.NEARLY_NEGLIGIBLE, "model_decrease": 100.0}
GONE = {"cost": 50.0 * policy.NEGLIGIBLE, "model_decrease": 100.0}
"""After such a step only rounding errors may be left; then the cost may be zero."""


@dataclass(frozen=True)
class Row:
    """A decision, and what is wanted of it.

    Attributes:
        says: What the row shows.
        step: What the tried step has other than `STEP`.
        verdict: Wanted.
        after: Wanted of the state, besides what every acceptance or rejection does.
        end: Wanted.
        before: What the state has other than `STATE`.
        options: What the options have other than `OPTIONS`.
        elapsed_s: Seconds since the start.
        changes: What the device has answered.
    """

    says: str
    step: Mapping[str, Any]
    verdict: Verdict = Verdict.ACCEPTED
    after: Mapping[str, Any] = field(default_factory=dict)
    end: SolveStatus | AskRounding | None = None
    before: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    elapsed_s: float = 1.0
    changes: Mapping[AskRounding, float] = field(default_factory=dict)

    def wanted(self, before: PolicyState, step: TriedStep) -> PolicyState:
        """The state behind the step."""
        if isinstance(self.end, AskRounding):
            return before
        wanted = before._replace(num_iterations=before.num_iterations + 1)
        if self.verdict is Verdict.ACCEPTED:
            wanted = wanted._replace(
                cost=step.cost,
                damping=GREATEST_SHRINK * before.damping,
                growth=2.0,
                gradient_norm=step.gradient_norm,
                promised=-math.inf,
                remaining=math.nan,
                num_rejected=0,
            )
        else:
            promise = -math.inf if step.is_unsolved else step.model_decrease
            wanted = wanted._replace(
                damping=before.growth * before.damping,
                growth=2.0 * before.growth,
                promised=max(before.promised, promise),
                num_rejected=before.num_rejected + 1,
            )
        return wanted._replace(**self.after)


REJECTED = Verdict.TOO_LITTLE_DECREASE
AT_OPTIMUM = {**VAIN, "model_decrease": 0.0, "outcome": LinearOutcome.AT_OPTIMUM}
NOT_FINITE = {"outcome": LinearOutcome.NOT_FINITE}
NOT_BEGUN = {**NOT_FINITE, "linear_iterations": 0}
SAME = {"promised": -math.inf}
"""Of the promise, where a step makes none."""

VERDICTS = [
    Row("a good step", {}),
    Row("at the limit of PCG iterations", {"outcome": LinearOutcome.ITERATIONS}),
    Row("without curvature", {"outcome": LinearOutcome.NO_CURVATURE}),
    Row("no linear solution", NOT_FINITE, Verdict.NO_LINEAR_SOLUTION),
    Row("no cost", {"cost": math.nan}, Verdict.NO_FINITE_COST),
    Row("infinite cost", {"cost": -math.inf}, Verdict.NO_FINITE_COST),
    Row("no promise", {"model_decrease": 0.0}, Verdict.NO_PREDICTED_DECREASE),
    Row("no number", {"model_decrease": math.nan}, Verdict.NO_PREDICTED_DECREASE, SAME),
    Row("no gain", {**WORSE, "cost": 100.0}, REJECTED),
    Row("hardly any gain", {"cost": 100.0 - 0.99e-3, "model_decrease": 1.0}, REJECTED),
    Row("an infinite promise", {"model_decrease": math.inf}, REJECTED, SAME),
    Row("zero after a promise", AT_OPTIMUM, Verdict.NO_GRADIENT, before={"promised": 1.0}),
]

POOR = {"model_decrease": 100.0}

DAMPING = [
    Row("gain 0.5", {"model_decrease": 20.0}, after={"damping": 0.1}),
    Row("gain 0.9", {"model_decrease": 10.0 / 0.9}, after={"damping": 0.1 * (1.0 - 0.8**3)}),
    Row("gain 0.1", POOR, after={"damping": 0.1 * (1.0 + 0.8**3)}),
    Row("gain 3", {"model_decrease": 10.0 / 3.0}),
    Row("huge gain", {"model_decrease": 1e-200}),
    Row("growth starts again", {}, before={"growth": 16.0}),
    Row("growth grows", WORSE, REJECTED, before={"growth": 16.0}),
    Row("lower bound", {}, after={"damping": 0.05}, options={"min_damping": 0.05}),
    Row("upper bound", POOR, after={"damping": 0.12}, options={"max_damping": 0.12}),
]

TIGHT = {"tolerance": 0.1}

FORCING = [
    Row("first gradient", {"gradient_norm": 7.0}, after={"tolerance": 0.3}),
    Row(
        "falls with the gradient",
        {"gradient_norm": 0.4},
        after={"tolerance": FORCING_FACTOR * 0.8},
        before={"gradient_norm": 0.5},
        options={"linear_tolerance": 0.8},
    ),
    Row("least", {}, after={"tolerance": 0.01}, before={"gradient_norm": 1e9, **TIGHT}),
    Row("most", {}, after={"tolerance": 0.3}, before={"gradient_norm": 0.1}),
    Row(
        "never tightened abruptly",
        {},
        after={"tolerance": FORCING_FACTOR * 0.2},
        before={"gradient_norm": 1e9, "tolerance": 0.2},
    ),
    Row("rejected", WORSE, REJECTED, before={"gradient_norm": 1e9, **TIGHT}),
]

UNEXPECTED = {"damping": 0.1 * (1.0 + 0.875**3)}
DAMPED = {"damping": 2.0}
CONFIRMING = {"confirming": True}
RELIEVED = {"confirming": True, "relief": 1e-5}
"""The next step has less than the usual damping, which is 0.1."""

WAITING = {"relief": policy.RELIEF_GROWTH * 1e-5, "relief_cost": 100.0}
"""A step of little damping has failed."""

HELD = {"damping": 0.1, "growth": 2.0, "promised": -math.inf, "num_rejected": 0}
"""A rejected step of less than the usual damping leaves all of these."""

CONVERGENCE = [
    Row("little gain is confirmed", SLIGHT, after=CONFIRMING),
    Row(
        "confirmed",
        SLIGHT,
        after={"damping": GREATEST_SHRINK * LEAST, "remaining": 2.0**-16 / 100.0, **CONFIRMING},
        end=SolveStatus.CONVERGED_COST,
        before=CONFIRMING,
    ),
    Row(
        "not confirmed",
        {},
        after={"damping": GREATEST_SHRINK * LEAST, "remaining": 0.1, "confirming": False},
        before=CONFIRMING,
    ),
    Row("little gain of large damping", SLIGHT, before=DAMPED),
    Row("little promised, much gained", {"model_decrease": 1e-5}),
    Row("much promised", {**SLIGHT, "model_decrease": 2.0**-12}, after=UNEXPECTED),
    Row("vain step", VAIN, REJECTED, after=CONFIRMING),
    Row(
        # rounding explains it, but a step of less damping may promise more
        "vain step, tight tolerances",
        {"cost": 100.0, "model_decrease": 5e-11},
        REJECTED,
        after={"promised": 5e-11, "remaining": math.nan, **CONFIRMING},
        options={"cost_tolerance": 1e-12},
    ),
    Row("vain step of large damping", VAIN, REJECTED, {"promised": 1.5}, before=DAMPED),
    Row(
        "vain step of large damping at a small gradient",
        {**VAIN, "gradient_norm": 7e-3},
        REJECTED,
        after={"promised": 1.5 * 7e-3**2, **CONFIRMING},
        before=DAMPED,
    ),
    Row(
        "confirmed by a vain step",
        VAIN,
        REJECTED,
        after={**HELD, "remaining": 1e-7, **CONFIRMING},
        end=SolveStatus.CONVERGED_COST,
        before=RELIEVED,
    ),
    Row(
        "relieved in vain",
        WORSE,
        REJECTED,
        {**HELD, "remaining": 0.01, **WAITING},
        before=RELIEVED,
    ),
    Row(
        "relieved in vain at last",
        WORSE,
        REJECTED,
        after={
            **HELD,
            "relief": policy.RELIEF_GROWTH * 1e-2,
            "relief_cost": 100.0,
            "confirming": False,
        },
        before={"confirming": True, "relief": 1e-2},
    ),
    Row(
        "relieved without a cost",
        {"cost": math.nan},
        Verdict.NO_FINITE_COST,
        after={**HELD, "remaining": 0.1, **WAITING},
        before=RELIEVED,
    ),
    Row(
        "relieved step of poor gain leaves the usual damping",
        {"cost": 99.0, "model_decrease": 10.0},
        after={"damping": 0.1 * (1.0 + 0.8**3), "remaining": 0.1, "confirming": False},
        before=RELIEVED,
    ),
    Row(
        "relieved step of good gain sets the usual damping",
        {"cost": 97.0, "model_decrease": 10.0},
        after={"damping": 1e-5 * (1.0 + 0.4**3), "remaining": 0.1, "confirming": False},
        before=RELIEVED,
    ),
    Row("little gained since", {}, before={"relief": 1e-2, "relief_cost": 100.5}),
    Row(
        "much gained since: relief starts again",
        {},
        after={"relief": LEAST, "relief_cost": math.inf},
        before={"relief": 1e-2, "relief_cost": 102.0},
    ),
    Row(
        "no linear solution confirms nothing",
        NOT_FINITE,
        Verdict.NO_LINEAR_SOLUTION,
        before={"confirming": True, "relief": 1.0, "relief_cost": 100.0},
    ),
    Row("zero gradient", AT_OPTIMUM, Verdict.NO_GRADIENT, end=SolveStatus.CONVERGED_GRADIENT),
    Row("small gradient", {"gradient_norm": 1.4e-4}, end=SolveStatus.CONVERGED_GRADIENT),
    Row("gradient not small", {"gradient_norm": 1.5e-4}),
    Row("gradient small by damping", {"gradient_norm": 1e-4}, before=DAMPED),
    Row("small step", {"step_norm": 1.4e-4}, end=SolveStatus.CONVERGED_STEP),
    Row("no step at all", {"step_norm": 0.0}, end=SolveStatus.CONVERGED_STEP),
    Row("step not small", {"step_norm": 1.5e-4}),
    Row("step small by damping", {"step_norm": 1e-4}, before=DAMPED),
    Row("step lost by damping", {"step_norm": 0.0}, before=DAMPED),
    Row("promised without damping", WORSE, REJECTED, {"promised": 1.5}, before=DAMPED),
    Row("less was promised before", WORSE, REJECTED, before={**DAMPED, "promised": 0.5}),
    Row("more was promised before", WORSE, REJECTED, before={"promised": 2.0}),
    Row(
        "a linear solve that did not begin",
        NOT_BEGUN,
        Verdict.NO_LINEAR_SOLUTION,
        after={"num_not_finite": 2},
        before={"num_not_finite": 1},
    ),
    Row(
        "none began",
        NOT_BEGUN,
        Verdict.NO_LINEAR_SOLUTION,
        after={"num_not_finite": policy.MAX_NOT_FINITE},
        end=SolveStatus.DERIVATIVES_NOT_FINITE,
        before={"num_not_finite": policy.MAX_NOT_FINITE - 1},
    ),
    Row(
        "one began",
        NOT_FINITE,
        Verdict.NO_LINEAR_SOLUTION,
        after={"num_not_finite": 0},
        before={"num_not_finite": policy.MAX_NOT_FINITE - 1},
    ),
]

LAST = {"num_iterations": OPTIONS.max_iterations - 1}
STALLED = {"damping": 1e6}
"""The damping grows beyond its limit behind a rejected step."""

ASKED = {"asked_cost": FALLEN["cost"]}
ZERO = {"remaining": 0.0}
ENDLESS: dict[str, Any] = {"step_tolerance": 0.0, "gradient_tolerance": 0.0}

LIMITS = [
    Row("last iteration", {}, end=SolveStatus.ITERATION_LIMIT, before=LAST),
    Row("last iteration, rejected", WORSE, REJECTED, end=SolveStatus.ITERATION_LIMIT, before=LAST),
    Row("time is out", {}, end=SolveStatus.TIME_LIMIT, elapsed_s=60.0),
    Row("time is not out", {}, elapsed_s=59.9),
    Row("no limit of time", {}, options={"max_time_s": None}, elapsed_s=1e9),
    Row("both", {}, end=SolveStatus.ITERATION_LIMIT, before=LAST, elapsed_s=60.0),
    Row(
        "convergence outranks limits",
        {"gradient_norm": 0.0},
        end=SolveStatus.CONVERGED_GRADIENT,
        before=LAST,
        elapsed_s=60.0,
    ),
    Row("most damping", WORSE, REJECTED, end=AskRounding.LAST_DIGIT, before=STALLED),
    Row(
        "systems without a solution promise nothing that rounding could explain",
        NOT_FINITE,
        Verdict.NO_LINEAR_SOLUTION,
        after=SAME,
        before={"num_rejected": policy.MAX_REJECTED - 1},
        changes={AskRounding.LAST_DIGIT: 1e3},
    ),
    Row(
        "the damping limit outranks others",
        WORSE,
        REJECTED,
        end=AskRounding.LAST_DIGIT,
        before={**STALLED, **LAST},
        elapsed_s=60.0,
    ),
] + [
    Row(
        f"most damping, {promised} was promised, rounding changes {change}",
        {"cost": 150.0, "model_decrease": 1e-3},
        REJECTED,
        after={"promised": promised},
        end=end,
        before={**STALLED, "promised": promised},
        changes={AskRounding.LAST_DIGIT: change},
    )
    for promised, change, end in (
        (2.0, 2.0, SolveStatus.CONVERGED_COST),
        (2.0, 0.9, SolveStatus.DAMPING_LIMIT),
        (0.1, 0.5, SolveStatus.CONVERGED_COST),
        (1e6, 100.0, SolveStatus.CONVERGED_COST),
        (2.0, math.inf, SolveStatus.DAMPING_LIMIT),
        (2.0, math.nan, SolveStatus.DAMPING_LIMIT),
    )
]

ROUNDINGS = [
    Row("a fallen cost", FALLEN, end=AskRounding.LAST_DIGIT),
    Row("one not yet fallen", {**FALLEN, "cost": 150.0 * policy.NEARLY_NEGLIGIBLE}),
    Row(
        "rounding errors",
        FALLEN,
        after={**ASKED, "is_rounding": True},
        changes={AskRounding.LAST_DIGIT: 0.5 * FALLEN["cost"]},
    ),
    Row(
        "still rounding errors",
        {**FALLEN, "cost": 0.1 * FALLEN["cost"]},
        after=ZERO,
        end=SolveStatus.CONVERGED_GRADIENT,
        before={**ASKED, "is_rounding": True},
    ),
    Row(
        "rounding errors that no step lowers",
        WORSE,
        REJECTED,
        after=ZERO,
        end=SolveStatus.CONVERGED_GRADIENT,
        before={**ASKED, "is_rounding": True},
    ),
    Row(
        "no rounding errors",
        FALLEN,
        after=ASKED,
        changes={AskRounding.LAST_DIGIT: 0.49 * FALLEN["cost"]},
    ),
    Row("asked before", {**FALLEN, "cost": 0.1 * FALLEN["cost"]}, before=ASKED),
    Row(
        "asked long before",
        {**FALLEN, "cost": 0.01 * FALLEN["cost"]},
        end=AskRounding.LAST_DIGIT,
        before=ASKED,
    ),
    Row("a cost of zero", GONE, end=AskRounding.LAST_DIGIT),
    Row(
        "a small cost that hardly falls",
        {**GONE, "model_decrease": 0.05 * GONE["cost"]},
        before={"cost": GONE["cost"] / 0.95, "asked_cost": GONE["cost"] / 0.95},
    ),
    Row(
        "zero by rounding",
        GONE,
        after={"asked_cost": GONE["cost"], "is_rounding": True, **ZERO},
        end=SolveStatus.CONVERGED_GRADIENT,
        changes={AskRounding.LAST_DIGIT: GONE["cost"]},
    ),
    Row(
        "not zero by rounding",
        GONE,
        end=AskRounding.LAST_THIRD,
        changes={AskRounding.LAST_DIGIT: math.nan},
    ),
] + [
    Row(
        f"the last third of the digits changes {change}",
        GONE,
        after={
            "asked_cost": GONE["cost"],
            **({**ZERO, "is_rounding": True} if end is not None else {}),
        },
        end=end,
        changes={AskRounding.LAST_DIGIT: 0.0, AskRounding.LAST_THIRD: change},
    )
    for change, end in (
        (GONE["cost"], SolveStatus.CONVERGED_GRADIENT),
        (0.0, None),
        (math.nan, None),
    )
]

TABLE = [*VERDICTS, *DAMPING, *FORCING, *CONVERGENCE, *LIMITS]
TABLE += [replace(row, options=ENDLESS) for row in ROUNDINGS]
