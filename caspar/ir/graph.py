"""The expression graph: calls and the values they produce (paper: DABSEG).

A *call* applies an op to values and may hold private data (a literal, a memory chunk); a *value*
is one output of a call, so that a vector load or a sincos has several. Graphs are immutable;
passes build new ones through `GraphBuilder`, which interns calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from caspar.ir.dtype import DType
from caspar.ir.ops import OP_INFO, Op


class TableEntry(NamedTuple):
    """The number of a table that a GATHER loads, and its result outside the table.

    The table begins with the number of samples along each axis, then come its numbers, in the order
    of the axes and channels last. Each operand of the GATHER is a whole number, the place along one
    axis, in the order of the axes. A place outside the table is moved to its edge; a NaN to the
    first sample.

    Attributes:
        argument: The argument that holds the table. The item's object is where its table begins.
        channel: Number within a sample. `num_channels`: 1 in place of a number.
        num_channels: Numbers of a sample.
        is_zero_outside: Whether the result is 0 if a place is outside the table.
    """

    argument: str
    channel: int
    num_channels: int
    is_zero_outside: bool

    @property
    def is_one_inside(self) -> bool:
        """Return whether nothing is loaded: the result says whether places are in the table."""
        return self.channel == self.num_channels


CallData = float | tuple[str, int] | TableEntry | None
"""CONST: the literal. READ, STORE and EXCHANGE: (argument name, chunk number). GATHER: the entry.
Otherwise None."""


@dataclass(frozen=True, slots=True)
class Call:
    """One application of an op to value ids, which produces value ids, in order.

    `origin` says where it comes from, for comments and errors; it is not part of its identity.
    """

    op: Op
    operands: tuple[int, ...]
    outputs: tuple[int, ...]
    data: CallData = None
    origin: str = field(default="", compare=False)


@dataclass(frozen=True)
class Graph:
    """Calls, each after the producers of its operands; value ids are 0 .. num_values - 1.

    Stores are in order of creation; everything is computed in the floating type `dtype`.
    """

    calls: tuple[Call, ...]
    num_values: int
    dtype: DType

    @cached_property
    def producer(self) -> tuple[int, ...]:
        """Index of the call that produces each value."""
        producer = [-1] * self.num_values
        for number, call in enumerate(self.calls):
            for value in call.outputs:
                producer[value] = number
        return tuple(producer)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the calls that read each value, ascending, each once."""
        users: list[list[int]] = [[] for _ in range(self.num_values)]
        for number, call in enumerate(self.calls):
            for value in dict.fromkeys(call.operands):
                users[value].append(number)
        return tuple(tuple(numbers) for numbers in users)

    @cached_property
    def num_reads(self) -> tuple[int, ...]:
        """Number of operand positions that read each value."""
        counts = [0] * self.num_values
        for call in self.calls:
            for value in call.operands:
                counts[value] += 1
        return tuple(counts)

    def call_of(self, value: int) -> Call:
        """The call that produces a value."""
        return self.calls[self.producer[value]]


def needed(calls: Sequence[Call], dtype: DType) -> Graph:
    """The graph of the calls that a store needs, with values renumbered without gaps."""
    is_needed: set[int] = set()
    kept: list[Call] = []
    for call in reversed(calls):
        if OP_INFO[call.op].effect or not is_needed.isdisjoint(call.outputs):
            is_needed.update(call.operands)
            kept.append(call)
    numbers: dict[int, int] = {}
    renumbered: list[Call] = []
    for call in reversed(kept):
        for value in call.outputs:
            numbers[value] = len(numbers)
        operands = tuple([numbers[value] for value in call.operands])
        outputs = tuple([numbers[value] for value in call.outputs])
        if operands != call.operands or outputs != call.outputs:
            call = Call(call.op, operands, outputs, call.data, call.origin)
        renumbered.append(call)
    return Graph(tuple(renumbered), len(numbers), dtype)
