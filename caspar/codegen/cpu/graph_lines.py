"""A graph as lines of a kernel for the processor, call by call.

No pass changes it and nothing is fused, so that results have the bits of the same text in Python:
see `ir.traced`. Whatever is quick belongs into a program (`codegen.cpu.kernel`).
"""

from collections.abc import Mapping

from caspar.codegen.cpu.ops import CAST, OP_TEXT, literal
from caspar.ir.graph import Graph
from caspar.ir.ops import Op

_BETWEEN = {Op.SUM: " + ", Op.PROD: " * "}


def graph_lines(graph: Graph, arrays: Mapping[str, str]) -> list[str]:
    """Lines that compute all values of a graph, and store what it stores.

    Args:
        graph: Its arguments have one chunk each.
        arrays: By argument an entry of an array; `{}` is replaced by the number of a scalar.
    """
    cast, lines = CAST[graph.dtype], []
    for call in graph.calls:
        operands = [f"v{operand}" for operand in call.operands]
        if call.op is Op.CONST:
            assert isinstance(call.data, float)
            values = [literal(call.data, graph.dtype)]
        elif call.op in (Op.READ, Op.STORE):
            assert isinstance(call.data, tuple)
            entry = arrays[call.data[0]]
            values = [entry.format(number) for number in range(len(call.outputs))]
            lines += [
                f"{entry.format(number)} = {operand}" for number, operand in enumerate(operands)
            ]
        elif call.op in _BETWEEN:
            values = [_BETWEEN[call.op].join(operands)]
        else:
            values = [OP_TEXT[call.op].format(*operands).replace("@one", f"{cast}(1.0)")]
        lines += [f"v{out} = {value}" for out, value in zip(call.outputs, values, strict=True)]
    return lines
