"""A graph as lines of a program, call by call, in the language of a backend.

No pass changes it and nothing is fused, so that results have the bits of the same text in Python:
see `ir.traced`. Whatever is quick belongs into a program (`codegen.body`).
"""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import NamedTuple

from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import Op


class Language(NamedTuple):
    """How a language writes what a graph has.

    Attributes:
        ops: Right-hand side of each one-output op; `@one` stands for the literal 1.
        literal: A number of a type.
        named: A line of a body with a new name, `{0}`, for a value, `{1}`.
        stored: The same with a value, `{1}`, at a place, `{0}`.
    """

    ops: Mapping[Op, str]
    literal: Callable[[float, DType], str]
    named: str
    stored: str


_OF_TWO = {Op.SUM: Op.ADD, Op.PROD: Op.MUL}
"""Ops of many operands: as those of two, from the first operand on."""


def graph_lines(graph: Graph, arrays: Mapping[str, str], language: Language) -> list[str]:
    """Lines that compute all values of a graph, and store what it stores, in chunks of one.

    `arrays` has by argument an entry of an array; `{}` is replaced by the number of a scalar.
    """
    lines = []
    one = language.literal(1.0, graph.dtype)
    for call in graph.calls:
        operands = [f"v{operand}" for operand in call.operands]
        if call.op is Op.CONST:
            assert isinstance(call.data, float)
            values = [language.literal(call.data, graph.dtype)]
        elif call.op in (Op.READ, Op.STORE):
            assert isinstance(call.data, tuple)
            entry = arrays[call.data[0]]
            values = [entry.format(number) for number in range(len(call.outputs))]
            lines += [
                language.stored.format(entry.format(number), operand)
                for number, operand in enumerate(operands)
            ]
        elif call.op in _OF_TWO:
            values = [reduce(language.ops[_OF_TWO[call.op]].format, operands)]
        else:
            values = [language.ops[call.op].format(*operands).replace("@one", one)]
        named = zip(call.outputs, values, strict=True)
        lines += [language.named.format(f"v{out}", value) for out, value in named]
    return lines
