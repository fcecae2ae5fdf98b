"""Which call of the graph each step of a schedule belongs to.

A sum of five terms is one call and several steps, whose partial sums are values the graph does not
have; a product fused into a sum has no step that makes its value. Both are found again here from
the values that steps read, so that nothing has to be carried through the scheduler for the sake of
a drawing. Linear in the size of the graph.
"""

from dataclasses import dataclass

from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.passes.scheduling.steps import Schedule, Step

_PRODUCTS = (Op.MUL, Op.NMUL)


@dataclass(frozen=True)
class StepPart:
    """What a step is in the graph.

    Attributes:
        calls: Indices of the calls it works on; the first is the one whose result it advances, the
            others are products and negations that have no step of their own.
        contributed: Operands of that call it takes, if it is a sum or product.
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
            if step.op in _PRODUCTS and not self._is_of_graph(step.outputs[0]):
                self._partial_factors[step.outputs[0]] = self._factors_of(step.operands)
        self._keys: dict[int, dict[tuple[int, ...], list[int]]] = {}

    def _is_of_graph(self, value: int) -> bool:
        return value < self._graph.num_values

    def _factors_of(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """What is multiplied in a step; a partial product of a fused one has several."""
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
        if self._is_of_graph(made):
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
        """The calls that make a value and what is read for it, if they have no steps."""
        if value in self._made:
            return []
        operands = self._graph.call_of(value).operands
        inner = [call for operand in operands for call in self._virtual_calls(operand)]
        return [self._graph.producer[value], *inner]
