"""A linear method computes the steps of the reduced node types from linearised sums.

Input, on the device: gradients and diagonal blocks, damping, Jacobians. Output, on the device:
`step` and `residual` of the reduced node types, and scalars on the outcome. The host reads
nothing. Cost tiers: kernels once for a solver, `make` once for a structure, the launches of a
solver in every linear solve.

`HandOver` changes the linear solver in the middle of a solve. From a factorisation to a QR
decomposition: once a pivot shows that the normal matrix has lost the digits of some direction; back
if the decomposition shows that the matrix is only singular and needs damping, as for a pose graph
that nothing holds. From conjugate gradients to a factorisation: once PCG has taken about as long as
setting a factorisation up would, so that a solve that ends soon never pays for both. Iterations are
counted, and nothing is timed: the same solve hands over at the same step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from caspar.driver import SolverDesign
from caspar.equations.solver_form import SolverForm
from caspar.memory.kernel import KernelSpec
from caspar.runtime.backend import Launch
from caspar.solver.choice.form import Recipe
from caspar.solver.plan.plan import Plan
from caspar.solver.system.launches import Binder
from caspar.solver.system.phases import Phases

Specs = Callable[[], list[KernelSpec]]
"""Makes kernels, before compilation."""


class LinearSolver(Protocol):
    """Solves the damped system.

    Attributes:
        is_direct: Whether it forms a matrix, from Jacobians in float64 where none are stored.
        launches: All of `solve` for a list of launches; empty if the host takes part in it.
    """

    name: str
    num_bytes: int
    is_direct: bool
    launches: Sequence[Launch]

    @property
    def remarks(self) -> tuple[str, ...]:
        """The reasons why a method that users may expect was not chosen."""

    def begin(self) -> None:
        """Enqueue what depends on the linearisation and the damping alone, where that is quick."""

    def solve(self, max_iterations: int, *, probes: bool = False) -> None:
        """Enqueue all that is left from the linearised sums to the steps.

        `probes`: Whether a direct solver finds the least pivot at the price of another solution.
        """


@dataclass(frozen=True)
class LinearSystem:
    """A system that is to be solved.

    Attributes:
        load: Compiles kernels that only some methods need, unless they have been: their name among
            the kernels of the design, and what makes them.
        earlier: The solver of an earlier plan of the same kind, whose launches may be bound again;
            None: there is none.
    """

    recipe: Recipe
    design: SolverDesign
    plan: Plan
    binder: Binder
    phases: Phases
    load: Callable[[str, Specs], None]
    earlier: LinearSolver | None = None


@dataclass(frozen=True)
class Declined:
    """A method leaves a system to the next one.

    Attributes:
        remarks: Why, with advice; empty if users expect nothing else.
    """

    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class LinearMethod:
    """A way to solve the damped system.

    Attributes:
        make: Its solver for a system, with remarks on the methods that declined before it.
        specs: The kernels that it needs besides, as far as a design determines them.
        is_likely: Whether `specs` will be needed, as far as is known without counts.
    """

    name: str
    make: Callable[[LinearSystem, tuple[str, ...]], LinearSolver | Declined]
    specs: Callable[[SolverDesign], list[KernelSpec]] = lambda _: []
    is_likely: Callable[[Recipe, SolverForm], bool] = lambda *_: False


MAX_LIMITED = 2
"""Linear solves that end at the limit of PCG iterations before a factorisation takes over: one such
step may be a lucky one."""

MIN_LIMIT = 50
"""PCG iterations of a linear solve from which on reaching the limit tells that they are too few; a
user who asks for fewer wants inexact steps."""

MOST_SLOWER = 3.0
"""Times as long as PCG up to its limit a factorisation may take then: its steps are exact."""

LEAST_PIVOT = 1e-10
"""The least pivot of a matrix with a diagonal of at most 1: with a smaller one a step has lost six
of its sixteen digits. A damping of as much leaves no smaller pivot."""

COMPILE_S = 0.5
"""Seconds that kernels of a matrix may take to compile: more must have been lost to PCG."""


class Seconds(NamedTuple):
    """The modelled time of a factorisation.

    Attributes:
        step_s: Seconds of a step; infinite if the matrix is too large.
    """

    step_s: float
    setup_s: float


@dataclass(frozen=True)
class Replacement:
    """A factorisation that may take over from PCG.

    Attributes:
        model: Models it. That may take as long as tens of PCG iterations, so it is called once,
            when PCG is first seen to be slow.
        make: Makes it; None if a library or memory is missing.
    """

    iteration_s: float
    least_setup_s: float
    model: Callable[[], Seconds]
    make: Callable[[], LinearSolver | None]


class HandOver:
    """The linear solver of a system, and what may take its place while it solves."""

    def __init__(
        self,
        usual: LinearSolver,
        replacement: Replacement | None = None,
        orthogonal: Callable[[], LinearSolver | None] | None = None,
    ) -> None:
        self.current = usual
        self._usual = usual
        self._replacement = replacement
        self._seconds: Seconds | None = None
        self._orthogonal = orthogonal
        self._other: LinearSolver | None = None
        self.begin()

    def begin(self) -> None:
        """Another solve begins: by the usual solver, as equal input must give equal bits."""
        self.current = self._usual
        self._change: tuple[str, ...] = ()
        self._is_singular: bool | None = None
        self._num_solves = self._num_limited = self._num_iterations = self._limit = 0

    @property
    def remarks(self) -> tuple[str, ...]:
        """The reasons for the choice of solver, and for its replacement."""
        others = () if self.current is self._usual else self.current.remarks
        return (*self._usual.remarks, *others, *self._change)

    @property
    def num_bytes(self) -> int:
        """Bytes that the solvers hold."""
        return self._usual.num_bytes + (0 if self._other is None else self._other.num_bytes)

    def _change_by(self, make: Callable[[], LinearSolver | None]) -> bool:
        """Change to the other solver; whether there is one. Nobody asks again if there is none."""
        if self._other is None:
            self._other = make()
        if self._other is None:
            self._replacement = self._orthogonal = None
            return False
        self.current = self._other
        return True

    def looks_at_pivots(self, damping: float) -> bool:
        """Return whether a step with this damping may show an ill-conditioned matrix."""
        is_usual = self.current is self._usual and self._is_singular is None
        return is_usual and self._orthogonal is not None and damping < LEAST_PIVOT

    def turn_to_orthogonal(self, least_pivot: float) -> bool:
        """Change to the QR decomposition if that is needed; whether to solve the step again."""
        if least_pivot >= LEAST_PIVOT or self._orthogonal is None:
            return False
        return self._change_by(self._orthogonal)

    def turn_back(self, least_pivot: float) -> bool:
        """Go on with the factorisation unless the first decomposition shows ill-conditioning.

        Returns whether the matrix is only singular: then there is no step without damping.
        """
        is_first = self.current is not self._usual and self._is_singular is None
        if self._orthogonal is None or not is_first:
            return False
        self._is_singular = least_pivot >= LEAST_PIVOT
        if self._is_singular:
            self.current = self._usual
        return self._is_singular

    def count(self, num_iterations: int, limit: int, *, is_limited: bool) -> None:
        """Count a linear solve."""
        self._num_solves += 1
        self._num_iterations += num_iterations
        self._num_limited += is_limited
        self._limit = limit

    def take_over(self) -> bool:
        """Change the solver, if that is due; whether it was changed."""
        if self._replacement is None or self.current is not self._usual:
            return False
        reason = self._reason(self._replacement)
        if reason == "" or not self._change_by(self._replacement.make):
            return False
        self._change = (
            f"{reason}, so a factorisation took over: linear_solver={self.current.name!r} begins "
            "with it.",
        )
        return True

    def _reason(self, replacement: Replacement) -> str:
        """Return why a factorisation should take over; empty if it should not."""
        spent_s = self._num_iterations * replacement.iteration_s
        is_limited = self._num_limited >= MAX_LIMITED and self._limit >= MIN_LIMIT
        is_slow = self._num_iterations >= MIN_LIMIT * max(self._num_solves, 1)
        if not is_limited and not (is_slow and spent_s >= COMPILE_S):
            return ""
        if spent_s < replacement.least_setup_s:
            return ""
        if self._seconds is None:
            self._seconds = replacement.model()
        step_s, setup_s = self._seconds
        limit_s = self._limit * replacement.iteration_s
        if is_limited and spent_s >= setup_s and step_s <= MOST_SLOWER * limit_s:
            return (
                f"{self._num_limited} of {self._num_solves} linear solves by PCG stopped at "
                f"max_linear_iterations={self._limit}"
            )
        if spent_s - self._num_solves * step_s > setup_s + COMPILE_S:
            return f"PCG took {self._num_iterations / self._num_solves:.0f} iterations a step"
        return ""
