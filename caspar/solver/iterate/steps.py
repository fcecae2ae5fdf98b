"""What is asked of a step, and what comes of it: all that policy and device tell each other."""

from dataclasses import dataclass

from caspar.equations.scalar_kernels import LinearOutcome


@dataclass(frozen=True)
class LinearGoal:
    """What the linear solver is asked for.

    Attributes:
        damping: Factor of D added to J^T J.
        tolerance: Relative decrease of the preconditioned residual norm.
        min_iterations: PCG iterations before the tolerance is tested.
        max_iterations: PCG iterations at most.
        expected_damping: Of the next step, if this one is as good as the linear model says; None:
            there is no next one.
    """

    damping: float
    tolerance: float
    min_iterations: int
    max_iterations: int
    expected_damping: float | None = None


@dataclass(frozen=True)
class TriedStep:
    """The end of a step that was tried.

    Attributes:
        cost: Cost of the candidate.
        model_decrease: Decrease of the cost the linear model predicts for this step.
        gradient_norm: Preconditioned gradient norm, sqrt(g . M^-1 g): its square is about twice
            the decrease that a full linear step promises.
        step_norm: Norm of the step weighted by D.
        linear_iterations: PCG iterations.
        outcome: Why PCG stopped.
    """

    cost: float
    model_decrease: float
    gradient_norm: float
    step_norm: float
    linear_iterations: int
    outcome: LinearOutcome
