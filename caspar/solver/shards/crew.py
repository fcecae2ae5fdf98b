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
from caspar.memory.array import Array
from caspar.progress import hide
from caspar.runtime.backend import Backend
from caspar.solver.input.problem import Problem
from caspar.solver.lm import interrupts
from caspar.solver.lm.interrupts import Callback
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.result.result import IterationRecord, ValuesReader
from caspar.solver.shards.share import Reading
from caspar.solver.solver_kernels import SolverKernels

if TYPE_CHECKING:
    from caspar.solver.shards.team import Team

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
        reading: The problem.
        kernels: Of the first device here.
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
        """Run a function on all devices; what the first one of all returns.

        Args:
            work: Called with each system.
            tell: Makes of what it returns what other processes get, which must be pickled.
        """
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
        """The system, if one device has all of the problem.

        Raises:
            UnsuitedError: Several devices have parts of it.
        """
        system = self.systems[0]
        if self.team is not None or system is None:
            raise UnsuitedError(
                "several devices share this problem, and each has the system of its part",
                "Use devices=1.",
            )
        return system

    def values(self, system: NormalEquations, *, copied: bool = False) -> Mapping[str, Array]:
        """The current values of all nodes for the first device; all devices call it.

        Args:
            system: Of the calling device.
            copied: Whether the solve goes on.
        """
        rows = system.copied_values() if copied else system.values()
        if self.team is None:
            return rows
        from caspar.solver.shards.gathering import gathered

        return gathered(system, rows, self.problem.values)

    def callback(
        self, system: NormalEquations, on_iteration: Callback | None, backend: Backend
    ) -> Callback | None:
        """Return the function that `minimize` calls on a device after each iteration.

        Args:
            system: Of the device.
            on_iteration: The user's, who may read the values of its records.
            backend: The first device.
        """
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
        """Ask the user."""
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
        """Return whether all stop.

        Raises:
            KeyboardInterrupt: Ctrl-C ends the solve.
        """
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
