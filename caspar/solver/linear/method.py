"""A linear method computes the steps of the reduced node types from linearised sums.

Input, on the device: gradients and diagonal blocks, damping, Jacobians. Output, on the device:
`step` and `residual` of the reduced node types, and scalars on the outcome. The host reads
nothing. Cost tiers: kernels once for a solver, `make` once for a structure, the launches
of a solver in every linear solve.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

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
        name: As users choose it.
        num_bytes: Bytes on the device beside the plan's.
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
        """Enqueue what depends on the linearisation and the damping alone, where that is quick.

        It may be done again, with another damping.
        """

    def solve(self, max_iterations: int, *, probes: bool = False) -> None:
        """Enqueue all that is left from the linearised sums to the steps.

        Args:
            max_iterations: Iterations at most, of an iterative solver.
            probes: Whether a direct solver finds the least pivot at the price of another solution.
        """


@dataclass(frozen=True)
class LinearSystem:
    """A system that is to be solved.

    Attributes:
        recipe: What the user chose.
        design: What its kernels depend on.
        plan: Memory and structure.
        binder: Binds its kernels.
        phases: Its launches.
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


def _makes_none(design: SolverDesign) -> list[KernelSpec]:
    return []


def _is_unlikely(recipe: Recipe, form: SolverForm) -> bool:
    return False


@dataclass(frozen=True)
class LinearMethod:
    """A way to solve the damped system.

    Attributes:
        name: Also of its kernels.
        make: Its solver for a system, with remarks on the methods that declined before it.
        specs: The kernels that it needs besides, as far as a design determines them.
        is_likely: Whether `specs` will be needed, as far as is known without counts.
    """

    name: str
    make: Callable[[LinearSystem, tuple[str, ...]], LinearSolver | Declined]
    specs: Callable[[SolverDesign], list[KernelSpec]] = _makes_none
    is_likely: Callable[[Recipe, SolverForm], bool] = _is_unlikely
