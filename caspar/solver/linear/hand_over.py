"""Decide when another linear solver takes over in the middle of a solve.

*From a factorisation to a QR decomposition*: once a pivot shows that the normal matrix has lost the
digits of some direction. If the decomposition then shows that the matrix is only singular, as for a
pose graph that nothing holds, the factorisation goes on: it only needs damping.

*From conjugate gradients to a factorisation*:

Before a solve nobody knows how many PCG iterations its steps will take. They are counted here, and
compared with the modelled seconds of a factorisation (`costs`). It takes over when PCG has taken
about as long as setting it up would, so a solve that ends soon never pays for both. Nothing is
timed: the same solve hands over at the same step. Cost tier: a few comparisons after each linear
solve.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from caspar.solver.linear.method import LinearSolver

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
        setup_s: Seconds of the setup, once for a structure.
    """

    step_s: float
    setup_s: float


@dataclass(frozen=True)
class Replacement:
    """A factorisation that may take over from PCG.

    Attributes:
        iteration_s: Modelled seconds of a PCG iteration.
        least_setup_s: Modelled seconds that every factorisation takes to set up.
        model: Models it. That may take as long as tens of PCG iterations, so it is called once,
            when PCG is first seen to be slow.
        make: Makes it; None if a library or memory is missing.
    """

    iteration_s: float
    least_setup_s: float
    model: Callable[[], Seconds]
    make: Callable[[], LinearSolver | None]


class HandOver:
    """The linear solver of a system, and what may take its place while it solves.

    Args:
        usual: The solver that every solve begins with.
        replacement: What may take the place of PCG. None: nothing does.
        orthogonal: Makes the QR decomposition that takes the place of a factorisation; None if it
            cannot be made. None: nothing does.

    Attributes:
        current: The solver that solves now.
    """

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
        """Change to the QR decomposition, if the factorisation has shown that it is needed.

        Args:
            least_pivot: Of the factorisation.

        Returns:
            Whether the same step has to be solved for again.
        """
        if least_pivot >= LEAST_PIVOT or self._orthogonal is None:
            return False
        return self._change_by(self._orthogonal)

    def turn_back(self, least_pivot: float) -> bool:
        """Go on with the factorisation, if the first decomposition shows no ill-conditioning.

        Args:
            least_pivot: Of the decomposition, squared; zero ones do not count.

        Returns:
            Whether the matrix is only singular: then there is no step without damping.
        """
        is_first = self.current is not self._usual and self._is_singular is None
        if self._orthogonal is None or not is_first:
            return False
        self._is_singular = least_pivot >= LEAST_PIVOT
        if self._is_singular:
            self.current = self._usual
        return self._is_singular

    def count(self, num_iterations: int, limit: int, *, is_limited: bool) -> None:
        """Count a linear solve.

        Args:
            num_iterations: PCG iterations that it took.
            limit: PCG iterations that it might have taken.
            is_limited: Whether it ended at the limit.
        """
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
