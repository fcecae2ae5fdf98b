"""How far a graph has come when some steps of its schedule are done.

Calls and values get the states of the paper's figure of the graph: completed, latest and remaining
calls; live, finished, virtual and remaining values, with registers.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from caspar.inspect.contributions import StepPart, step_parts
from caspar.ir.graph import Graph
from caspar.ir.program import Program, Register
from caspar.passes.scheduling.steps import Schedule


class CallState(Enum):
    """What has become of a call."""

    COMPLETED = "completed"
    LATEST = "latest"
    REMAINING = "remaining"


class ValueState(Enum):
    """What has become of a value."""

    LIVE = "live"
    FINISHED = "finished"
    VIRTUAL = "virtual"
    """Never in a register of its own: a product that is fused into a sum, a negation that becomes
    a subtraction."""
    REMAINING = "remaining"


@dataclass(frozen=True)
class Progress:
    """The state of a graph after some steps.

    Attributes:
        graph: What was scheduled.
        schedule: Its steps.
        program: The same steps on registers.
        num_done: Steps that are done.
    """

    graph: Graph
    schedule: Schedule
    program: Program
    num_done: int

    def call_state(self, call: int) -> CallState:
        """The state of a call, by its index."""
        numbers = self._steps_of(call)
        if self.num_done - 1 in numbers:
            return CallState.LATEST
        return CallState.COMPLETED if max(numbers) < self.num_done else CallState.REMAINING

    def value_state(self, value: int) -> ValueState:
        """The state of a value."""
        if value not in self._made_at:
            return ValueState.VIRTUAL
        if min(self._steps_of(self.graph.producer[value])) >= self.num_done:
            return ValueState.REMAINING
        is_made = self._made_at[value] < self.num_done
        is_read = self._last_read.get(value, -1) < self.num_done
        return ValueState.FINISHED if is_made and is_read else ValueState.LIVE

    def register(self, value: int) -> Register | None:
        """The register of a value or of its partial result; None where there is none (yet)."""
        if value not in self._made_at:
            return None
        done = [n for n in self._steps_of(self.graph.producer[value]) if n < self.num_done]
        if len(done) == 0:
            return None
        made = self.schedule.steps[done[-1]].outputs
        return self.program.instructions[done[-1]].outputs[
            made.index(value) if value in made else 0
        ]

    def contributions(self, call: int) -> tuple[int, ...]:
        """The operands a sum or product has taken so far, in the order it took them."""
        taken: list[int] = []
        for number in self._steps_of(call):
            part = self._parts[number]
            if number < self.num_done:
                # a fused product takes the rest of its factors when the sum takes the product
                own = part.calls[0] == call
                taken += part.contributed if own else self.graph.calls[call].operands
        return tuple(dict.fromkeys(taken))

    def _steps_of(self, call: int) -> tuple[int, ...]:
        """Numbers of the steps that work on a call, ascending; of its users where it has none."""
        if call in self._numbers:
            return tuple(self._numbers[call])
        users = {user for value in self.graph.calls[call].outputs for user in self._users(value)}
        return tuple(sorted(number for user in users for number in self._steps_of(user)))

    def _users(self, value: int) -> tuple[int, ...]:
        return self.graph.users[value]

    @cached_property
    def _parts(self) -> tuple[StepPart, ...]:
        return step_parts(self.graph, self.schedule)

    @cached_property
    def _numbers(self) -> dict[int, list[int]]:
        numbers: dict[int, list[int]] = {}
        for number, part in enumerate(self._parts):
            for call in part.calls:
                numbers.setdefault(call, []).append(number)
        return numbers

    @cached_property
    def _made_at(self) -> dict[int, int]:
        steps = enumerate(self.schedule.steps)
        return {value: number for number, step in steps for value in step.outputs}

    @cached_property
    def _last_read(self) -> dict[int, int]:
        steps = enumerate(self.schedule.steps)
        return {value: number for number, step in steps for value in step.operands}
