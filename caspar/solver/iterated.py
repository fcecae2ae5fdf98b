"""What Levenberg-Marquardt and evaluations ask of a linearised problem, on one device or several.

`NormalEquations` is it on one device, and has the calling schedule; `shards.system` on several.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.solver.linear.hand_over import HandOver
from caspar.solver.lm.derivative_sizes import DerivativeSizes
from caspar.solver.lm.faults import Findings
from caspar.solver.lm.steps import LinearGoal, PlainSteps, TriedStep
from caspar.solver.plan.plan import Plan


class System(Protocol):
    """A linearised problem; see `NormalEquations` for what the members mean."""

    @property
    def findings(self) -> Findings:
        """What users are told of it."""

    @property
    def plan(self) -> Plan:
        """Memory and structure; on several devices those of one."""

    @property
    def solvers(self) -> HandOver:
        """The linear solver, and what may take its place."""

    @property
    def linear_solver(self) -> str:
        """Name of the linear solver."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Why something was chosen, where that may surprise."""

    @property
    def is_chained(self) -> bool:
        """Whether a factor couples two nodes of a type that remains."""

    @property
    def storage(self) -> DType:
        """Type of residuals, Jacobians and vectors."""

    @property
    def values_type(self) -> DType:
        """Type of the values."""

    @property
    def is_mixed(self) -> bool:
        """Whether values are in float64, and Jacobians in float32."""

    @property
    def usual_options(self) -> Mapping[str, float]:
        """Options of a solve that the user leaves open, by name."""

    @property
    def num_bytes(self) -> int:
        """Bytes of plan and linear solver."""

    @property
    def num_residuals(self) -> int:
        """Rows of all residuals, with those of holes of node tiles."""

    @property
    def device(self) -> str:
        """Where it is, in words."""

    def memory_table(self) -> str:
        """What is held."""

    def score(self) -> float:
        """Cost of the current values."""

    def linearize(self, damping: float) -> None:
        """Linearise at the current values."""

    def try_and_look(self, goal: LinearGoal) -> tuple[TriedStep, DerivativeSizes]:
        """The same as `try_step`, and what D and the gradient are."""

    def level(self, levelling: float) -> None:
        """Level D by that from the next linearisation on."""

    def try_step(self, goal: LinearGoal) -> TriedStep:
        """Solve the damped linear system, retract and score."""

    def take_plain_steps(self, numbers: list[float], max_steps: int) -> PlainSteps | None:
        """Take steps in compiled code; None: the host has to take each."""

    def promise(self, goal: LinearGoal) -> TriedStep:
        """A step that is not taken."""

    def forget(self) -> None:
        """Let D be diag(J^T J) of the current values."""

    def hold_weak(self) -> bool:
        """Let D of nodes with next to no influence be that of others, after `promise`."""

    def accept(self) -> None:
        """Make the candidate the current values."""

    def reject(self) -> None:
        """Keep the current values."""

    def rounded_costs(self) -> tuple[float, ...]:
        """Costs of values that are moved by a rounding each."""

    def coarsely_rounded_change(self) -> float:
        """How much typical residuals change by the last third of the values' digits."""

    def round_values(self, dtypes: Mapping[str, Any]) -> float:
        """Round the current values to narrower types; their cost."""

    def values(self) -> Mapping[str, Array]:
        """The current values by node type, at the end of a solve."""

    def copied_values(self) -> Mapping[str, Array]:
        """The current values by node type, while a solve goes on."""

    def faulty_derivatives(self) -> tuple[str, ...]:
        """The factors whose gradient is not finite; for the end of a solve."""

    def remarks_on_values(self, cost: float, first_cost: float) -> tuple[str, ...]:
        """Sentences on numbers that ran away and nodes that nothing holds."""
