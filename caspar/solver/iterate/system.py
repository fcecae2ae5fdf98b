"""What Levenberg-Marquardt and evaluations ask of a linearised problem, on one device or several.

`NormalEquations` is it on one device, and has the calling schedule; `solver.shards.system` on
several.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.solver.iterate.derivative_sizes import DerivativeSizes
from caspar.solver.iterate.steps import LinearGoal, TriedStep
from caspar.solver.plan.plan import Plan


class System(Protocol):
    """A linearised problem; see `NormalEquations` for what the members mean."""

    stronger: str

    @property
    def plan(self) -> Plan: ...

    @property
    def linear_solver(self) -> str: ...

    @property
    def remarks(self) -> tuple[str, ...]: ...

    @property
    def is_chained(self) -> bool: ...

    @property
    def storage(self) -> DType: ...

    @property
    def values_type(self) -> DType: ...

    @property
    def usual_options(self) -> Mapping[str, float]: ...

    @property
    def num_bytes(self) -> int: ...

    @property
    def num_residuals(self) -> int: ...

    @property
    def device(self) -> str: ...

    def memory_table(self) -> str: ...

    def score(self) -> float: ...

    def linearize(self, damping: float) -> None: ...

    def try_first_step(self, goal: LinearGoal) -> tuple[TriedStep, Mapping[str, bool]]: ...

    def try_step(self, goal: LinearGoal) -> TriedStep: ...

    def promise(self, goal: LinearGoal) -> TriedStep: ...

    def accept(self) -> None: ...

    def reject(self) -> None: ...

    def rounded_costs(self, *, coarsely: bool = False) -> tuple[float, ...]: ...

    def values(self) -> Mapping[str, Array]: ...

    def faulty_costs(self) -> tuple[str, ...]: ...

    def faulty_derivatives(self) -> tuple[str, ...]: ...

    def largest_residual(self) -> float: ...

    def factor_costs(self) -> dict[str, float]: ...

    def num_beyond_scale(self) -> dict[str, int]: ...

    def residual_rows(self, factor: str) -> NDArray[np.float64]: ...


class FirstSteps(Protocol):
    """What `first_step` asks for."""

    def try_and_look(self, goal: LinearGoal) -> tuple[TriedStep, DerivativeSizes]: ...

    def level(self, levelling: float) -> None: ...

    def score(self) -> float: ...

    def linearize(self, damping: float) -> None: ...

    def reject(self) -> None: ...


def first_step(system: FirstSteps, goal: LinearGoal) -> tuple[TriedStep, Mapping[str, bool]]:
    """Try a step, and choose whether D is levelled from here on; see `try_first_step`."""
    tried, sizes = system.try_and_look(goal)
    if sizes.levelling_holds(goal.damping):
        system.reject()
        system.level(0.0)
        system.score()
        system.linearize(goal.damping)
        tried, sizes = system.try_and_look(goal)
    # a levelled D hides a square of zero, but then levelling would hold its scalar
    return tried, sizes.lost_squares()
