"""Choices a user makes: backend, precision, and how a solve iterates."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache, lru_cache
from numbers import Integral, Real
from typing import Any, Literal, TypedDict

from caspar.errors import OptionError, meant

if sys.version_info >= (3, 11):  # the other module takes long to import
    from typing import Unpack as Unpack
else:
    from typing_extensions import Unpack as Unpack

MAX_ITERATIONS = 2**31 - 1
"""Kernels count in 32 bits."""

MAX_DAMPING = 1e30
"""Steps vanish long before."""

MAX_TOLERANCE = 1e100
"""Squares are finite."""

SOLVER_CHOICES = (
    "backend",
    "precision",
    "linear_solver",
    "jacobian",
    "deterministic",
    "inner_iterations",
    "eliminate",
    "limits",
    "devices",
)
"""Arguments of a `Solver`: kernels depend on them."""

DEFAULT_INNER_ITERATIONS = 3
"""Ladybug-49 to 1e-4 of its optimum: 21 iterations without, 10 with one, 6 with 3, 5 with 5."""

MAX_INNER_ITERATIONS = 32
"""Each is in the text of a kernel, and takes half a second more to compile."""


BackendName = Literal["auto", "cuda", "cpu"]
PrecisionName = Literal["auto", "mixed", "float32", "float64"]
LinearSolverName = Literal["auto", "pcg", "schur_pcg", "schur_dense", "dense", "sparse", "qr"]
JacobianName = Literal["auto", "stored", "float16", "recompute"]
BatchPrecisionName = Literal["auto", "float32", "float64"]
GncLossName = Literal["truncated", "geman_mcclure"]
GaugeName = Literal["minimum_norm"]
HessianName = Literal["auto", "exact", "gauss_newton"]
"""Names of choices, as type checkers and editors want them; those of an enum are its values."""


class BackendChoice(Enum):
    """Backend to run on."""

    AUTO = "auto"
    CUDA = "cuda"
    CPU = "cpu"


class Precision(Enum):
    """The floating types of a solve.

    MIXED: values, residuals, costs, gradients and sums in float64; Jacobians, their products and
    PCG vectors in float32. FLOAT64: float64 throughout. FLOAT32: float32 values and sums too.
    """

    MIXED = "mixed"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class LinearSolverChoice(Enum):
    """The solver of an iteration's damped linear system.

    PCG: conjugate gradients on the full normal equations. SCHUR_PCG: the same on the Schur
    complement, without forming it. SCHUR_DENSE: the reduced system is formed and factorised.
    DENSE: nothing is eliminated, and the matrix of all unknowns is formed and factorised. SPARSE:
    the reduced system, or the full one if the nodes to eliminate have the fewer unknowns, is
    formed as a sparse matrix and factorised. QR: nothing is eliminated, and the Jacobian itself is
    decomposed as a dense matrix, which keeps the digits of stiff problems. AUTO chooses by sizes,
    and goes on with QR if a matrix of few unknowns proves to be ill-conditioned.
    """

    AUTO = "auto"
    PCG = "pcg"
    SCHUR_PCG = "schur_pcg"
    SCHUR_DENSE = "schur_dense"
    DENSE = "dense"
    SPARSE = "sparse"
    QR = "qr"


class JacobianChoice(Enum):
    """Storage of Jacobians between linearisation and the products of an iteration.

    STORED: in memory, float32 in mixed precision. FLOAT16: in memory, their columns scaled to
    at most unit length, in 16 bits: half of float32's bytes; steps are a little less exact, the
    solution is not. RECOMPUTE: nowhere: every product derives them again from the values.
    AUTO: recomputed on CUDA where conjugate gradients are likely and, at the device's peak rates,
    deriving Jacobians takes no longer than moving their bytes; otherwise stored, also on the CPU.
    """

    AUTO = "auto"
    STORED = "stored"
    FLOAT16 = "float16"
    RECOMPUTE = "recompute"


class SolveOptionsDict(TypedDict, total=False):
    """The fields of `SolveOptions` as arguments of `solve`, for type checkers and editors."""

    max_iterations: int | None
    initial_damping: float | None
    min_damping: float | None
    max_damping: float
    cost_tolerance: float | None
    gradient_tolerance: float | None
    step_tolerance: float | None
    constraint_tolerance: float | None
    max_time_s: float | None
    linear_tolerance: float
    min_linear_tolerance: float
    min_linear_iterations: int
    max_linear_iterations: int
    check: bool


@dataclass(frozen=True)
class SolveOptions:
    """Options that say how a solve iterates and stops.

    Attributes:
        max_iterations: Levenberg-Marquardt iterations, rejected ones included. None: 100, or 1000
            if linear systems are solved exactly (see `cost_tolerance`).
        initial_damping: First damping, relative to D, the diagonal of J^T J without small entries.
            None: 1 with a loss that levels off, and with any loss if nodes are eliminated; 1e-8 if
            a factorisation solves a chain, such as a pose graph, in float64; 0.02 if all unknowns
            are those of one node, as in a curve fit in float64; else 1e-3. If the
            damping may become 0 and no node has bounds, a step without damping is tried first. It
            is kept if it lowers the cost by at least 0.9 of what the linear model promises.
        min_damping: Lower bound of the damping. None: 0 if linear systems are factorised in
            float64, nothing is eliminated, no factor has a loss, and the problem is not one of
            several nodes that no factor couples; else 1e-14, also if the matrix is singular.
        max_damping: The solve stops if no step is accepted below it.
        cost_tolerance: Stop when neither the actual nor the predicted decrease of the cost by
            two steps in a row, the second solved tightly, exceeds this, relative to the cost.
            None: 1e-8, or 1e-13 if linear systems are solved exactly: in float64, by a
            factorisation or because one node remains; 1e-9 if nodes are eliminated then, also in
            mixed precision; 3e-7 with values in float32.
        gradient_tolerance: Stop when the expected decrease of the cost by a full linear step,
            relative to the cost, is below this. None: 1e-14, or 1e-26 if linear systems are solved
            exactly, 1e-18 if nodes are eliminated then.
        step_tolerance: Stop when a step changes the linearised residuals by less than this,
            relative to their norm. None: 1e-8, or 1e-13 if linear systems are solved exactly, 1e-9
            if nodes are eliminated then.
        constraint_tolerance: How far an entry of a constraint may be from what must hold, relative
            to the terms that it is made of. None: 1e-8, or 1e-5 if values are in float32.
        max_time_s: Wall-clock limit of the iterations, seconds; None: no limit.
        linear_tolerance: PCG stops when the preconditioned residual norm has fallen by this, at
            first; the forcing term then tightens it.
        min_linear_tolerance: Lower bound of the linear tolerance.
        min_linear_iterations: PCG iterations before the tolerance is tested: the residual norm
            does not see directions of low curvature, and one or two iterations look converged.
        max_linear_iterations: PCG iterations of one linear solve.
        check: Test values for NaN and infinity and indices for range before the solve. False is
            unsafe: an index out of range then reads and writes memory that is not its array's, and
            the process crashes or returns garbage. Use it only for arrays that a solve with
            `check=True` has accepted.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
        >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [1.5]]}
        >>> arrays = {"Length": [[0.0]], "measured": values}
        >>> result = solver.solve(arrays, max_iterations=20, cost_tolerance=1e-6, max_time_s=2.0)
        >>> result.status.is_success
        True
    """

    max_iterations: int | None = None
    initial_damping: float | None = None
    min_damping: float | None = None
    max_damping: float = 1e16
    cost_tolerance: float | None = None
    gradient_tolerance: float | None = None
    step_tolerance: float | None = None
    constraint_tolerance: float | None = None
    max_time_s: float | None = None
    linear_tolerance: float = 0.3
    min_linear_tolerance: float = 1e-2
    min_linear_iterations: int = 12
    max_linear_iterations: int = 200
    check: bool = True

    def __post_init__(self) -> None:
        """Reject values outside their range.

        Raises:
            OptionError: Names the option, its value and what is allowed.
        """
        if type(self.max_iterations) is int and self.max_iterations == 0:
            raise OptionError(
                f"max_iterations=0: must be an integer from 1 to {MAX_ITERATIONS}. To score values "
                "without moving them use Solver.evaluate(arrays), which has costs, residuals and "
                "weights; a BatchSolver's result has the costs of its start values in initial_cost"
            )
        for name in ("max_iterations", "min_linear_iterations", "max_linear_iterations"):
            if getattr(self, name) is not None or name != "max_iterations":
                self._keep(name, checked_count, 1, MAX_ITERATIONS)
        allowed = f"a positive number of at most {MAX_DAMPING:g}"
        self._keep("max_damping", _number, allowed, _is_damping)
        if self.min_damping is not None:
            least = f"a number from 0 to {MAX_DAMPING:g}, or None"
            self._keep("min_damping", _number, least, lambda x: 0.0 <= x <= MAX_DAMPING)
        if self.initial_damping is not None:
            self._keep("initial_damping", _number, f"{allowed}, or None", _is_damping)
        for name in _TOLERANCES:
            allowed = f"a number from 0 to {MAX_TOLERANCE:g}, or None"
            if getattr(self, name) is not None:
                self._keep(name, _number, allowed, lambda x: 0.0 <= x <= MAX_TOLERANCE)
        for name in ("linear_tolerance", "min_linear_tolerance"):
            allowed = "between 0 and 1, both excluded"
            self._keep(name, _number, allowed, lambda x: 0.0 < x < 1.0)
        if self.max_time_s is not None:
            allowed = "a positive finite number or None"
            self._keep("max_time_s", _number, allowed, lambda x: 0.0 < x)
        checked_flag("check", self.check)
        least_damping = 0.0 if self.min_damping is None else self.min_damping
        if least_damping > self.max_damping:
            raise OptionError(
                f"min_damping={self.min_damping!r}: must be at most max_damping="
                f"{self.max_damping!r}"
            )
        first = self.initial_damping
        if first is not None and not least_damping <= first <= self.max_damping:
            raise OptionError(
                f"initial_damping={first!r}: must lie between min_damping={least_damping!r} "
                f"and max_damping={self.max_damping!r}"
            )

    def _keep(self, name: str, checked: Callable[..., float], *bounds: Any) -> None:
        """Check a number, and keep it as Python's own: one of NumPy may have few digits."""
        object.__setattr__(self, name, checked(name, getattr(self, name), *bounds))

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> SolveOptions:
        """Options by name.

        Raises:
            OptionError: An unknown name (the known ones are listed) or a value out of range.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name in SOLVER_CHOICES:
                raise OptionError(
                    f"{name!r} is an option of Solver, not of solve: write "
                    f"caspar.Solver(factors, {name}={options[name]!r})"
                )
            if name not in known:
                # what `solve` takes besides is no option
                hint = meant(name, [*known, *_BESIDES_OPTIONS])
                hint = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else hint
                raise OptionError(f"unknown option {name!r}{hint}; allowed: {', '.join(known)}")
        return cls(**options) if len(options) > 0 else _usual_options()


_TOLERANCES = ("cost_tolerance", "gradient_tolerance", "step_tolerance", "constraint_tolerance")
"""Options that are tolerances, or None."""

_BESIDES_OPTIONS = ("fixed", "bounds", "on_iteration", "verbose")
"""Arguments of `solve` that are no options."""

_ELSEWHERE = {
    "loss": "it belongs to a factor: factor.with_loss(caspar.loss.Huber)",
    "loss_scale": "pass it beside the arguments of a factor that has a loss",
    "weight": "pass it beside the arguments of a factor",
    "weights": "pass weight beside the arguments of a factor",
    "callback": "write on_iteration",
    "ftol": "write cost_tolerance",
    "gtol": "write gradient_tolerance",
    "xtol": "write step_tolerance",
    "max_nfev": "write max_iterations",
    "method": "pass linear_solver to caspar.Solver",
}
"""Names that people look for among the options, and where to find each."""


@dataclass(frozen=True)
class CompleteOptions(SolveOptions):
    """Options of a solve, in which nothing is left open.

    Attributes:
        max_iterations, initial_damping, min_damping, cost_tolerance, gradient_tolerance,
            step_tolerance: As in `SolveOptions`.
        tries_undamped: Whether the first step has no damping.
        ends_by_rises: Whether rises of the cost along rejected steps may show a minimum. They tell
            nothing of other directions.
        asks_early: Whether a step that promises very little is compared with rounding at the first
            rejection, not only at the fourth, and if it gains far more than that.
    """

    max_iterations: int = 100
    initial_damping: float = 1e-3
    min_damping: float = 1e-14
    cost_tolerance: float = 3e-7
    gradient_tolerance: float = 1e-14
    step_tolerance: float = 1e-8
    tries_undamped: bool = False
    ends_by_rises: bool = True
    asks_early: bool = True

    @classmethod
    def complete(cls, options: SolveOptions, usual: Mapping[str, float]) -> CompleteOptions:
        """The options, with the usual ones of the problem's linear systems in place of None."""
        return _completed(options, tuple(usual.items()))

    @classmethod
    def checked(cls, options: SolveOptions, usual: Sequence[tuple[str, float]]) -> CompleteOptions:
        """The same, made anew."""
        chosen: dict[str, Any] = {x.name: getattr(options, x.name) for x in fields(options)}
        is_open = options.initial_damping is None
        for name, value in usual:
            if chosen.get(name) is None:
                chosen[name] = value
        least, most = chosen["min_damping"], chosen["max_damping"]
        if is_open:
            chosen["initial_damping"] = min(max(chosen["initial_damping"], least), most)
        else:
            chosen["min_damping"] = min(least, chosen["initial_damping"])
        chosen["tries_undamped"] &= is_open and least == 0.0
        return cls(**chosen)


@cache
def _usual_options() -> SolveOptions:
    return SolveOptions()


_completed = lru_cache(CompleteOptions.checked)
"""Most solves have the options of an earlier one, and to check all of them takes a while."""


def checked_count(name: str, value: Any, least: int, most: int) -> int:
    """An integer option.

    Raises:
        OptionError: Names the option, its value and what is allowed.
    """
    is_integer = not isinstance(value, bool) and isinstance(value, Integral)
    if not is_integer or not least <= int(value) <= most:
        raise OptionError(f"{name}={value!r}: must be an integer from {least} to {most}")
    return int(value)


def checked_flag(name: str, value: Any) -> bool:
    """An option that is True or False.

    Raises:
        OptionError: Names the option and its value.
    """
    if not isinstance(value, bool):
        raise OptionError(f"{name}={value!r}: must be True or False")
    return value


def refuse_constraint_tolerance(options: SolveOptions) -> None:
    """Refuse the option for solvers without constraints.

    Raises:
        OptionError: It is set.
    """
    if options.constraint_tolerance is not None:
        raise OptionError(
            f"constraint_tolerance={options.constraint_tolerance!r}: this solver has no "
            "constraints; leave it out, or give Solver some"
        )


def check_callback(name: str, value: Any) -> None:
    """Test an option that is a function or None.

    Raises:
        OptionError: Names the option and its value.
    """
    if value is not None and not callable(value):
        raise OptionError(f"{name}={value!r}: must be a function or None")


def check_verbose(value: Any) -> None:
    """Test what `verbose` is given.

    Raises:
        OptionError: Names its value.
    """
    if value is not None and not isinstance(value, bool):
        raise OptionError(f"verbose={value!r}: must be True, False or None")


def _is_damping(number: float) -> bool:
    return 0.0 < number <= MAX_DAMPING


def _number(name: str, value: Any, allowed: str, holds: Callable[[float], bool]) -> float:
    """A real option, if it is finite and a test holds."""
    with suppress(OverflowError):  # of integers and fractions that no float is as great as
        if not isinstance(value, bool) and isinstance(value, Real):
            number = float(value)
            if math.isfinite(number) and holds(number):
                return number
    raise OptionError(f"{name}={value!r}: must be {allowed}")


def check_gauge(gauge: Any) -> None:
    """Refuse an unknown choice.

    Raises:
        OptionError: It is neither None nor "minimum_norm".
    """
    if gauge is not None and not (isinstance(gauge, str) and gauge == "minimum_norm"):
        raise OptionError(
            f"gauge={gauge!r}: must be None, which makes free directions an error, or "
            "'minimum_norm', which takes the pseudo-inverse"
        )


_MEANT = {"gpu": "cuda", "double": "float64", "single": "float32"}
"""Other words for choices; of some the nearest name is another one."""


def choice(kind: type[Enum], name: str, value: Any, others: tuple[str, ...] = ()) -> Any:
    """The member of an enum that a user's string (or member) means.

    `others`: What else the caller allows, for the error.

    Raises:
        OptionError: Names the option and the allowed values.
    """
    if isinstance(value, kind):
        return value
    for member in kind:
        if isinstance(value, str) and member.value == value:
            return member
    names = [*others, *(member.value for member in kind)]
    written = str(value).lower()
    hint = meant(_MEANT.get(written, written), names)
    raise OptionError(f"{name}={value!r}: must be one of {', '.join(map(repr, names))}{hint}")
