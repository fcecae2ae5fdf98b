"""The systems of a problem on the devices of this process, and what runs on all of them.

Every device runs the same function on the system of its part. After each iteration the first one
asks the user, and tells the others what to do. Cost: a meeting for each iteration.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass, replace
from enum import Enum
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from caspar.errors import UnsuitedError
from caspar.frontend.factors.trace import TracedFactor
from caspar.memory.array import Array
from caspar.progress import hide
from caspar.runtime.backend import Backend
from caspar.solver.active import Active
from caspar.solver.input.problem import Problem
from caspar.solver.lm import interrupts
from caspar.solver.lm.interrupts import Callback
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.plan.shard import Shard
from caspar.solver.result.result import IterationRecord, ProblemSize, ValuesReader
from caspar.solver.solver_kernels import SolverKernels

if TYPE_CHECKING:
    from caspar.solver.shards.devices import Team


@dataclass(frozen=True)
class Reading:
    """The arrays of a solve, checked.

    Attributes:
        own: What this process has of the factors that take part; None: nothing.
        whole: The whole problem; of several processes all nodes, with outlines of the factors.
        sizes: Instances of the factors that take part, by rank of several processes.
        is_spread: Whether each of several processes has passed a part of the factors.
    """

    own: Problem | None
    whole: Problem
    active: Active
    sizes: tuple[Mapping[str, int], ...]
    is_spread: bool = False

    @property
    def instances(self) -> dict[str, int]:
        """Instances of each factor in the whole problem."""
        return {name: sum(sizes[name] for sizes in self.sizes) for name in self.sizes[0]}

    def size(self, factors: tuple[TracedFactor, ...]) -> ProblemSize:
        """Counts of what takes part, beside those of all factors."""
        problem, recipe = self.whole, self.active.recipe
        counts = {one.name: problem.factors[one.name].num_counted for one in factors}
        rows = sum(len(factor.residual) * counts[factor.name] for factor in recipe.factors)
        nodes = {node.name: problem.counts[node.name] for node in recipe.nodes}
        unknowns = sum(node.tangent_dim * nodes[node.name] for node in recipe.nodes)
        unknowns -= sum(problem.num_held(nodes).values())
        held = problem.num_held([*nodes, *self.active.held])
        left_out = {name: problem.factors[name].count - count for name, count in counts.items()}
        left_out = {name: count for name, count in left_out.items() if count > 0}
        bounded = {name: limits.num_bounded for name, limits in problem.bounds.items()}
        return ProblemSize(nodes, counts, rows, unknowns, held, left_out, bounded)


@dataclass
class Share:
    """The parts of a problem on the devices of this process.

    Attributes:
        problems: By device here its part. Whoever pops one holds its last reference.
        shards: By device here its facts on the whole; empty: the first device of all has
            everything.
    """

    problems: dict[int, Problem]
    shards: tuple[Shard, ...]
    active: tuple[int, ...]
    remarks: tuple[str, ...]


Result = TypeVar("Result")


class Told(Enum):
    """A message of the first device to the others after an iteration."""

    GO_ON = "go on"
    STOP = "stop: the callback wants it"
    INTERRUPT = "stop: Ctrl-C"
    VALUES = "bring the values together, and wait"


@dataclass(frozen=True)
class Crew:
    """The devices of this process that work on a problem.

    Attributes:
        systems: By device the system of its part; None: it has no part.
        team: Their threads; None: one device works alone, in the user's thread.
    """

    reading: Reading
    kernels: SolverKernels
    systems: Sequence[NormalEquations | None]
    team: "Team | None" = None

    @property
    def problem(self) -> Problem:
        """The whole problem; of several processes with outlines of the factors."""
        return self.reading.whole

    @property
    def eliminated(self) -> tuple[str, ...]:
        """Names of the eliminated node types, on a device that has a part."""
        system = self.systems[0]
        return () if system is None else tuple(one.node.name for one in system.plan.eliminated)

    def run(
        self,
        work: Callable[[NormalEquations], Result],
        tell: Callable[[Result], Any] = lambda result: result,
    ) -> Result:
        """Run a function on all devices; `tell` makes what other processes get of the result."""
        if self.team is None:
            assert self.systems[0] is not None
            return work(self.systems[0])

        def own(number: int) -> Any:
            system = self.systems[number]
            return None if system is None else work(system)

        found: Result = self.team.each(own, tell, takes_interrupts=True)[0]
        return found

    @property
    def only(self) -> NormalEquations:
        """The system, if one device has all of the problem."""
        system = self.systems[0]
        if self.team is not None or system is None:
            raise UnsuitedError(
                "several devices share this problem, and each has the system of its part",
                "Use devices=1.",
            )
        return system

    def values(self, system: NormalEquations, *, copied: bool = False) -> Mapping[str, Array]:
        """The current values of all nodes for the first device; all devices call it."""
        rows = system.copied_values() if copied else system.values()
        if self.team is None:
            return rows
        from caspar.solver.shards.split import gathered

        return gathered(system, rows, self.problem.values)

    def callback(
        self, system: NormalEquations, on_iteration: Callback | None, backend: Backend
    ) -> Callback | None:
        """Return the function that `minimize` calls on a device after each iteration."""
        asked = None if on_iteration is None else _Asked(self, system, on_iteration, backend)
        if self.team is None:
            return asked
        return _Decisions(self, self.team, system, asked)


@dataclass(frozen=True)
class _Asked:
    """The user's callback, with records whose values can be read while it runs."""

    crew: Crew
    system: NormalEquations
    on_iteration: Callback
    backend: Backend

    def __call__(self, record: IterationRecord) -> object:
        reader = ValuesReader(self._values)
        hide()
        try:
            return self.on_iteration(replace(record, reader=reader))
        finally:
            reader.close()

    def _values(self) -> Mapping[str, Any]:
        if self.system.communicator.group is None:
            moved = self.crew.values(self.system, copied=True)
        else:
            moved = _undisturbed(self._read_by_all)
        return self.crew.problem.moved(moved, self.backend)

    def _read_by_all(self) -> Mapping[str, Array]:
        with self.backend.scope():
            self.system.communicator.broadcast(Told.VALUES)
            return self.crew.values(self.system, copied=True)


@dataclass(frozen=True)
class _Decisions:
    """The callback of each of several devices: all do what the first one tells."""

    crew: Crew
    team: "Team"
    system: NormalEquations
    asked: _Asked | None

    def __call__(self, record: IterationRecord) -> bool:
        """Return whether all stop."""
        communicator = self.system.communicator
        told = communicator.broadcast(self._decided(record) if communicator.is_first else None)
        while told is Told.VALUES:
            self.crew.values(self.system, copied=True)
            told = communicator.broadcast(None)
        if told is Told.INTERRUPT:
            # the first device has noted it, and the others shall find the same
            interrupts.forget()
            raise KeyboardInterrupt
        return told is Told.STOP

    def _decided(self, record: IterationRecord) -> Told:
        asked = self.asked
        try:
            if self.team.take_interrupt():
                raise KeyboardInterrupt
            if asked is None:
                return Told.GO_ON
            stops = self.team.in_users_thread(lambda: interrupts.asks_to_stop(asked(record)))
        except KeyboardInterrupt:
            if interrupts.is_second():
                raise
            return Told.INTERRUPT
        return Told.STOP if stops else Told.GO_ON


def _undisturbed(call: Callable[[], Result]) -> Result:
    """Call a function that Ctrl-C does not end half done: in a thread, once it has begun."""
    outcome: Future[Result] = Future()

    def work() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    context = copy_context()
    try:
        # Ctrl-C may come while the thread starts
        Thread(target=context.run, args=(work,), name="caspar values", daemon=True).start()
        return outcome.result()
    finally:
        if not outcome.cancel():
            wait([outcome])
