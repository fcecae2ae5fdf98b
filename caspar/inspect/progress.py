"""Tell how far a graph is after some steps of its schedule, and which part a step computes.

A sum of five terms is one call and several steps, whose partial sums are values the graph does not
have; a product fused into a sum has no step that makes its value. `step_parts` finds both again
from the values that steps read, so that the scheduler need not carry anything for a drawing.

Calls and values get the states of the paper's figure of the graph: completed, latest and remaining
calls; live, finished, virtual and remaining values, with registers.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.ir.program import Program, Register
from caspar.passes.scheduling.steps import Schedule, Step

_PRODUCTS = (Op.MUL, Op.NMUL)


@dataclass(frozen=True)
class StepPart:
    """The calls of a graph that a step works on; it advances the result of the first one.

    The others are products and negations that have no step of their own; `contributed` are the
    operands that a sum or product takes.
    """

    calls: tuple[int, ...]
    contributed: tuple[int, ...] = ()


def step_parts(graph: Graph, schedule: Schedule) -> tuple[StepPart, ...]:
    """The part of each step, in order."""
    return _Finder(graph, schedule).parts()


class _Finder:
    """Finds the parts of one schedule.

    A value of the graph is *virtual* if no step makes it: a negation whose operand is read instead,
    or a fused product, whose *factors* are read instead.
    """

    def __init__(self, graph: Graph, schedule: Schedule) -> None:
        self._graph = graph
        self._steps = schedule.steps
        self._reader = {value: n for n, step in enumerate(self._steps) for value in step.operands}
        self._made = {value for step in self._steps for value in step.outputs}
        self._made.update(schedule.literals)
        self._store_of = {
            call.data: number for number, call in enumerate(graph.calls) if call.op is Op.STORE
        }
        self._partial_factors: dict[int, tuple[int, ...]] = {}
        for step in self._steps:
            if step.op in _PRODUCTS and step.outputs[0] >= self._graph.num_values:
                self._partial_factors[step.outputs[0]] = self._factors_of(step.operands)
        self._keys: dict[int, dict[tuple[int, ...], list[int]]] = {}

    def _factors_of(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """Return the factors a step multiplies; a partial product stands for several."""
        parts = (self._partial_factors.get(value, (value,)) for value in values)
        return tuple(sorted(factor for part in parts for factor in part))

    def parts(self) -> tuple[StepPart, ...]:
        """Backwards: a partial result belongs where the step that reads it belongs."""
        parts: dict[int, StepPart] = {}
        for number in reversed(range(len(self._steps))):
            parts[number] = self._part(self._steps[number], parts)
        return tuple(parts[number] for number in range(len(self._steps)))

    def _part(self, step: Step, parts: dict[int, StepPart]) -> StepPart:
        if step.op is Op.STORE:
            return StepPart((self._store_of[step.data],))
        made = step.outputs[0]
        if made < self._graph.num_values:
            return self._part_of(self._graph.producer[made], step)
        reader = self._steps[self._reader[made]]
        above = parts[self._reader[made]]
        products = [call for call in above.calls[1:] if self._graph.calls[call].op is Op.PROD]
        if step.op in _PRODUCTS and made in reader.operands[:2] and len(products) > 0:
            return self._part_of(products[0], step)
        return self._part_of(above.calls[0], step)

    def _part_of(self, call: int, step: Step) -> StepPart:
        op = self._graph.calls[call].op
        if op not in (Op.SUM, Op.PROD):
            return StepPart((call,))
        if op is Op.SUM and step.op in (Op.FMA, Op.FNMA):
            keys = [(step.operands[2],), self._factors_of(step.operands[:2])]
        elif op is Op.SUM and step.op in _PRODUCTS:
            keys = [self._factors_of(step.operands)]
        else:
            keys = [(value,) for value in step.operands]
        known = self._operands_by_key(call)
        taken = tuple(value for key in keys for value in known.get(key, ()))
        virtual = (number for value in taken for number in self._virtual_calls(value))
        return StepPart((call, *dict.fromkeys(virtual)), taken)

    def _operands_by_key(self, call: int) -> dict[tuple[int, ...], list[int]]:
        """The operands of a sum or product by what steps read instead of them: -x and x by x."""
        if call not in self._keys:
            keys: dict[tuple[int, ...], list[int]] = {}
            for operand in dict.fromkeys(self._graph.calls[call].operands):
                keys.setdefault(self._key(operand), []).append(operand)
            self._keys[call] = keys
        return self._keys[call]

    def _key(self, value: int) -> tuple[int, ...]:
        """The value that is read for a value, or the sorted factors."""
        if value in self._made:
            return (value,)
        read = (
            factor for part in self._graph.call_of(value).operands for factor in self._key(part)
        )
        return tuple(sorted(read))

    def _virtual_calls(self, value: int) -> list[int]:
        if value in self._made:
            return []
        operands = self._graph.call_of(value).operands
        inner = [call for operand in operands for call in self._virtual_calls(operand)]
        return [self._graph.producer[value], *inner]


class CallState(Enum):
    """The progress of a call."""

    COMPLETED = "completed"
    LATEST = "latest"
    REMAINING = "remaining"


class ValueState(Enum):
    """The progress of a value."""

    LIVE = "live"
    FINISHED = "finished"
    VIRTUAL = "virtual"
    """Never in a register of its own: a product that is fused into a sum, a negation that becomes
    a subtraction."""
    REMAINING = "remaining"


@dataclass(frozen=True)
class Progress:
    """The state of a graph after `num_done` steps of its schedule, with its registers."""

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
        users = {
            user for value in self.graph.calls[call].outputs for user in self.graph.users[value]
        }
        return tuple(sorted(number for user in users for number in self._steps_of(user)))

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
