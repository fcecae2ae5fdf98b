"""The systems of all devices as one, on which Levenberg-Marquardt works.

Each call goes to all of them, in their threads or processes. They add up what they have to
(`shared_sums`), so that all hold the same scalars, and the first one's count. What is called can be
pickled: functions and methods by their names, with arguments. Each call ends before the next
begins: what one device makes of its own accord never waits for a sum of another call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from caspar.errors import BackendError
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.runtime.group.member import Member
from caspar.solver.input.parted_array import PartedArray
from caspar.solver.linear.hand_over import HandOver
from caspar.solver.lm.derivative_sizes import DerivativeSizes
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.lm.steps import LinearGoal, TriedStep
from caspar.solver.plan.plan import Plan
from caspar.solver.plan.shard import Chosen
from caspar.solver.shards.findings import SharedFindings, joined
from caspar.solver.shards.gathering import in_parts
from caspar.solver.system.free_values import remarks_on_free_values

Result = TypeVar("Result")


class Systems(Protocol):
    """The systems of all parts.

    Attributes:
        first: That of the first part, which is in this process.
        member: The device that has it.
    """

    @property
    def first(self) -> NormalEquations:
        """That of the first part, which is in this process."""

    @property
    def member(self) -> Member:
        """The device that has it."""

    def each(self, call: Callable[[NormalEquations], Result]) -> list[Result]:
        """What a function finds of each of them, at the same time.

        Raises:
            BaseException: It failed somewhere; nobody still works then.
        """

    def values(
        self, read: Callable[[NormalEquations], Mapping[str, Array]]
    ) -> list[Mapping[str, Array]]:
        """What a method of each, which reads its values, finds: as the first device receives it."""


Each = Callable[[Callable[[NormalEquations], Any]], list[Any]]
"""Calls a function, which can be pickled, with each system."""


@dataclass(frozen=True)
class _Facts:
    """What does not change in a solve."""

    tile_size: int
    num_factors: int
    usual_options: Mapping[str, float]
    is_chained: bool
    num_bytes: int
    num_residuals: int
    device: str
    memory_table: str


def _facts_of(system: NormalEquations) -> _Facts:
    return _Facts(
        system.plan.library.tile_size,
        len(system.plan.factors),
        dict(system.usual_options),
        system.is_chained,
        system.num_bytes,
        system.num_residuals,
        system.device,
        system.memory_table(),
    )


class ShardedSystem:
    """A linearised problem on several devices; see `NormalEquations` for the calling schedule.

    Args:
        systems: Of the parts, each loaded.
        nodes: By device and eliminated type which nodes it has.
        findings: Makes what users are told of them, by what calls a function with each system.
        starts: The whole problem's values.

    Raises:
        BackendError: Their kernels differ.
    """

    def __init__(
        self,
        systems: Systems,
        nodes: Sequence[Mapping[str, Chosen]],
        findings: Callable[[Each], SharedFindings],
        starts: Mapping[str, Array],
    ) -> None:
        self._facts = systems.each(_facts_of)
        sizes = {facts.tile_size for facts in self._facts}
        if len(sizes) > 1:
            raise BackendError(
                "devices that share a problem have kernels of different block sizes, "
                f"{sorted(sizes)}, so their sums would differ. Use devices of one kind"
            )
        self.systems = systems
        self._nodes = nodes
        self._starts = starts
        self.findings = findings(self._each)

    def _each(self, call: Callable[[NormalEquations], Result]) -> list[Result]:
        return self.systems.each(call)

    def _same(self, call: Callable[[NormalEquations], Result]) -> Result:
        """What all devices found alike.

        Raises:
            BackendError: They did not.
        """
        found = self._each(call)
        if any(repr(one) != repr(found[0]) for one in found):
            raise BackendError(
                "devices that share a problem have come to different results: "
                f"{'; '.join(map(repr, found))}. Use devices of one kind, or devices=1"
            )
        return found[0]

    @property
    def plan(self) -> Plan:
        """That of the first device."""
        return self.systems.first.plan

    # -- what it is ----------------------------------------------------------------------------

    @property
    def solvers(self) -> HandOver:
        """The linear solver of the first device."""
        return self.systems.first.solvers

    @property
    def linear_solver(self) -> str:
        """Name of the linear solver."""
        return self.systems.first.linear_solver

    @property
    def remarks(self) -> tuple[str, ...]:
        """Why something was chosen, where that may surprise."""
        return self.systems.first.remarks

    @property
    def is_chained(self) -> bool:
        """Whether a factor couples two nodes of a type that remains."""
        return any(facts.is_chained for facts in self._facts)

    @property
    def storage(self) -> DType:
        """Type of residuals, Jacobians and vectors."""
        return self.systems.first.storage

    @property
    def values_type(self) -> DType:
        """Type of the values."""
        return self.systems.first.values_type

    @property
    def is_mixed(self) -> bool:
        """Whether values are in float64, and Jacobians in float32."""
        return self.systems.first.is_mixed

    @property
    def usual_options(self) -> Mapping[str, float]:
        """Options of a solve that the user leaves open, by name: of the most kinds of factors."""
        return max(self._facts, key=lambda facts: facts.num_factors).usual_options

    @property
    def num_bytes(self) -> int:
        """Bytes on all devices."""
        return sum(facts.num_bytes for facts in self._facts)

    @property
    def num_residuals(self) -> int:
        """Rows of all residuals, those of holes of node tiles among them."""
        return sum(facts.num_residuals for facts in self._facts)

    @property
    def device(self) -> str:
        """All of them, in words."""
        names = [facts.device for facts in self._facts]
        alike = f"{len(names)} x {names[0]}"
        return alike if len(set(names)) == 1 else ", ".join(names)

    def memory_table(self) -> str:
        """What each device holds."""
        tables = [
            f"device {rank} of {len(self._facts)}: {facts.device}\n{facts.memory_table}"
            for rank, facts in enumerate(self._facts)
        ]
        return "\n\n".join(tables)

    # -- iterations ----------------------------------------------------------------------------

    def score(self) -> float:
        """Cost of the current values."""
        return self._same(NormalEquations.score)

    def linearize(self, damping: float) -> None:
        """Jacobians, gradient, diagonal and blocks at the current values."""
        self._each(partial(NormalEquations.linearize, damping=damping))

    def try_and_look(self, goal: LinearGoal) -> tuple[TriedStep, DerivativeSizes]:
        """The same as `try_step`, and what D and the gradient are."""
        found = self._each(partial(NormalEquations.try_and_look, goal=goal))
        return found[0][0], DerivativeSizes.joined([sizes for _, sizes in found])

    def level(self, levelling: float) -> None:
        """Level D by that from the next linearisation on."""
        self._each(partial(NormalEquations.level, levelling=levelling))

    def try_step(self, goal: LinearGoal) -> TriedStep:
        """Solve the damped linear system, retract and score."""
        return self._same(partial(NormalEquations.try_step, goal=goal))

    def take_plain_steps(self, numbers: list[float], max_steps: int) -> None:
        """None: devices wait for each other in every step."""

    def promise(self, goal: LinearGoal) -> TriedStep:
        """A step that is not taken: what it promises at the current values."""
        return self._same(partial(NormalEquations.promise, goal=goal))

    def forget(self) -> None:
        """Let D be diag(J^T J) of the current values."""
        self._each(NormalEquations.forget)

    def hold_weak(self) -> bool:
        """Let D of nodes with next to no influence be that of others, after `promise`."""
        return self._same(NormalEquations.hold_weak)

    def accept(self) -> None:
        """Make the candidate the current values."""
        self._each(NormalEquations.accept)

    def reject(self) -> None:
        """Keep the current values."""
        self._each(NormalEquations.reject)

    def rounded_costs(self) -> tuple[float, ...]:
        """Costs of values that are moved by a rounding each."""
        return self._same(NormalEquations.rounded_costs)

    def coarsely_rounded_change(self) -> float:
        """How much typical residuals change by the last third of the values' digits: the least."""
        return min(self._each(NormalEquations.coarsely_rounded_change))

    def round_values(self, dtypes: Mapping[str, Any]) -> float:
        """Round the current values to narrower types, for some node types by name; their cost."""
        return self._same(partial(NormalEquations.round_values, dtypes=dtypes))

    # -- results -------------------------------------------------------------------------------

    def values(self) -> Mapping[str, Array]:
        """The current values as (n, storage_dim) arrays on the first device, as given."""
        return self._gathered(NormalEquations.values)

    def copied_values(self) -> Mapping[str, Array]:
        """The same in arrays of their own: the solve may go on."""
        return self._gathered(NormalEquations.copied_values)

    def _gathered(
        self, read: Callable[[NormalEquations], Mapping[str, Array]]
    ) -> Mapping[str, Array]:
        found, first = self.systems.values(read), self.systems.member
        moved = {}
        for name, rows in found[0].items():
            start = self._starts[name]
            if isinstance(start, PartedArray):
                ends = [
                    (nodes.get(name, slice(None)), own[name])
                    for nodes, own in zip(self._nodes, found, strict=True)
                ]
                moved[name] = in_parts(start, ends if name in self._nodes[0] else ends[:1])
                continue
            if name not in self._nodes[0]:
                moved[name] = rows
                continue
            # nodes that no part has were touched by no factor
            whole = first.xp.array(first.upload(self._starts[name]))
            first.synchronize()
            for nodes, own in zip(self._nodes, found, strict=True):
                place, end = nodes[name], own[name]
                if isinstance(end, np.ndarray):
                    # of another process
                    end = first.upload(end)
                if not isinstance(place, slice):
                    whole[first.upload(place)] = first.bring(end)
                elif place.stop > place.start:
                    first.receive(whole[place], end)
            moved[name] = whole
        first.synchronize()
        return moved

    def faulty_derivatives(self) -> tuple[str, ...]:
        """The factors whose gradient is not finite; for the end of a solve."""
        return joined(self._each(NormalEquations.faulty_derivatives))

    def remarks_on_values(self, cost: float, first_cost: float) -> tuple[str, ...]:
        """Sentences on numbers that ran away and nodes that nothing holds."""
        return remarks_on_free_values(self._each, cost, first_cost, self._whole_number)

    def _whole_number(self, device: int, node: str, number: int) -> int:
        """The number of a node in the whole problem, by that among the nodes of a device."""
        nodes = self._nodes[device].get(node)
        if nodes is None:
            return number
        return nodes.start + number if isinstance(nodes, slice) else int(nodes[number])
