"""The systems of all devices as one, on which Levenberg-Marquardt works.

Each call goes to all of them, in their threads. They add up what they have to (`shared_sums`), so
that all hold the same scalars, and the first one's count. What answers nothing waits for the next
call that does, so that threads meet once an iteration.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from caspar.errors import BackendError
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.solver.iterate.derivative_sizes import DerivativeSizes, first_step
from caspar.solver.iterate.normal_equations import NormalEquations
from caspar.solver.iterate.steps import LinearGoal, TriedStep
from caspar.solver.linear.hand_over import HandOver
from caspar.solver.plan.plan import Plan
from caspar.solver.shards.findings import SharedFindings, joined
from caspar.solver.shards.split import Part
from caspar.solver.shards.team import Team

Result = TypeVar("Result")


class ShardedSystem:
    """A linearised problem on several devices; see `NormalEquations` for the calling schedule.

    Args:
        systems: Of the parts, each loaded.
        parts: What each device has.
        team: Threads of the devices.
        starts: The whole problem's values.
    """

    def __init__(
        self,
        systems: Sequence[NormalEquations],
        parts: Sequence[Part],
        team: Team,
        starts: Mapping[str, Array],
    ) -> None:
        sizes = {system.plan.library.tile_size for system in systems}
        if len(sizes) > 1:
            raise BackendError(
                "devices that share a problem have kernels of different block sizes, "
                f"{sorted(sizes)}, so their sums would differ. Use devices of one kind"
            )
        self._systems = systems
        self._parts = parts
        self._team = team
        self._starts = starts
        # whatever depends on which factors there are
        self._fullest = max(systems, key=lambda system: len(system.plan.factors))
        self.stronger = ""
        self.findings = SharedFindings(systems, parts, team.members, self._ranks)
        self._waiting: list[Callable[[NormalEquations], None]] = []

    def _later(self, call: Callable[[NormalEquations], None]) -> None:
        self._waiting.append(call)

    def _ranks(self, call: Callable[[int], Result]) -> list[Result]:
        """What all answer by their ranks, after what has waited."""
        waiting, self._waiting = self._waiting, []

        def work(rank: int) -> Result:
            for one in waiting:
                one(self._systems[rank])
            return call(rank)

        return self._team.each(work)

    def _each(self, call: Callable[[NormalEquations], Result]) -> list[Result]:
        return self._ranks(lambda rank: call(self._systems[rank]))

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
        """That of the device with the most kinds of factors."""
        return self._fullest.plan

    # -- what it is ----------------------------------------------------------------------------

    @property
    def solvers(self) -> HandOver:
        """The linear solver of the first device."""
        return self._systems[0].solvers

    @property
    def linear_solver(self) -> str:
        """Name of the linear solver."""
        return self._systems[0].linear_solver

    @property
    def remarks(self) -> tuple[str, ...]:
        """Why something was chosen, where that may surprise."""
        return self._systems[0].remarks

    @property
    def is_chained(self) -> bool:
        """Whether a factor couples two nodes of a type that remains."""
        return any(system.is_chained for system in self._systems)

    @property
    def storage(self) -> DType:
        """Type of residuals, Jacobians and vectors."""
        return self._systems[0].storage

    @property
    def values_type(self) -> DType:
        """Type of the values."""
        return self._systems[0].values_type

    @property
    def usual_options(self) -> Mapping[str, float]:
        """Options of a solve that the user leaves open, by name."""
        return self._fullest.usual_options

    @property
    def num_bytes(self) -> int:
        """Bytes on all devices."""
        return sum(system.num_bytes for system in self._systems)

    @property
    def num_residuals(self) -> int:
        """Rows of all residuals, those of holes of node tiles among them."""
        return sum(system.num_residuals for system in self._systems)

    @property
    def device(self) -> str:
        """All of them, in words."""
        names = [system.device for system in self._systems]
        alike = f"{len(names)} x {names[0]}"
        return alike if len(set(names)) == 1 else ", ".join(names)

    def memory_table(self) -> str:
        """What each device holds."""
        tables = [
            f"device {rank} of {len(self._systems)}: {system.device}\n{system.memory_table()}"
            for rank, system in enumerate(self._systems)
        ]
        return "\n\n".join(tables)

    # -- iterations ----------------------------------------------------------------------------

    def score(self) -> float:
        """Cost of the current values."""
        return self._same(lambda system: system.score())

    def linearize(self, damping: float) -> None:
        """Jacobians, gradient, diagonal and blocks at the current values."""
        self._later(lambda system: system.linearize(damping))

    def try_first_step(self, goal: LinearGoal) -> tuple[TriedStep, Mapping[str, bool]]:
        """The same as `try_step`, and choose whether D is levelled from here on."""
        return first_step(self, goal)

    def try_and_look(self, goal: LinearGoal) -> tuple[TriedStep, DerivativeSizes]:
        """The same as `try_step`, and what D and the gradient are."""
        found = self._each(lambda system: system.try_and_look(goal))
        return found[0][0], DerivativeSizes.joined([sizes for _, sizes in found])

    def level(self, levelling: float) -> None:
        """Level D by that from the next linearisation on."""
        self._later(lambda system: system.level(levelling))

    def try_step(self, goal: LinearGoal) -> TriedStep:
        """Solve the damped linear system, retract and score."""
        return self._same(lambda system: system.try_step(goal))

    def promise(self, goal: LinearGoal) -> TriedStep:
        """A step that is not taken: what it promises at the current values."""
        return self._same(lambda system: system.promise(goal))

    def accept(self) -> None:
        """Make the candidate the current values."""
        self._later(lambda system: system.accept())

    def reject(self) -> None:
        """Keep the current values."""
        self._later(lambda system: system.reject())

    def rounded_costs(self) -> tuple[float, ...]:
        """Costs of values that are moved by a rounding each."""
        return self._same(lambda system: system.rounded_costs())

    def coarsely_rounded_change(self) -> float:
        """How much typical residuals change by the last third of the values' digits: the least."""
        return min(self._each(lambda system: system.coarsely_rounded_change()))

    def round_values(self, dtypes: Mapping[str, Any]) -> float:
        """Round the current values to narrower types, for some node types by name; their cost."""
        return self._same(lambda system: system.round_values(dtypes))

    # -- results -------------------------------------------------------------------------------

    def values(self) -> Mapping[str, Array]:
        """The current values as (n, storage_dim) arrays on the first device, as given."""
        found = self._each(lambda system: system.values())
        first = self._team.members[0]
        moved = {}
        for name, rows in found[0].items():
            if name not in self._parts[0].ranges:
                moved[name] = rows
                continue
            # nodes that no part has were touched by no factor
            whole = first.xp.array(first.upload(self._starts[name]))
            first.synchronize()
            for part, own in zip(self._parts, found, strict=True):
                place = part.ranges[name]
                if place.stop > place.start:
                    first.receive(whole[place], own[name])
            moved[name] = whole
        first.synchronize()
        return moved

    def faulty_derivatives(self) -> tuple[str, ...]:
        """The factors whose gradient is not finite; for the end of a solve."""
        return joined(self._each(lambda system: system.faulty_derivatives()))

    def remarks_on_values(self, cost: float, first_cost: float) -> tuple[str, ...]:
        """None: what has run away is looked for on one device only."""
        return ()
