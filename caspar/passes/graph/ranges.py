"""What is known about the sign of a value, without evaluating anything.

Used where a rewrite is only right away from zero. Linear in the size of the graph.
"""

from collections.abc import Sequence
from enum import IntEnum

from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op


class Sign(IntEnum):
    """A lower bound; greater means more is known."""

    UNKNOWN = 0
    NONNEGATIVE = 1
    POSITIVE = 2


def signs(graph: Graph) -> list[Sign]:
    """What is known about each value. NaN is not excluded by any of it."""
    known = [Sign.UNKNOWN] * graph.num_values
    for call in graph.calls:
        if len(call.outputs) == 1:
            known[call.outputs[0]] = _sign(call, [known[value] for value in call.operands])
    return known


def _sign(call: Call, operands: Sequence[Sign]) -> Sign:
    if call.op is Op.CONST:
        return _sign_of_literal(call.data)
    if call.op is Op.SUM:
        # one positive term among nonnegative ones
        return Sign.UNKNOWN if min(operands) is Sign.UNKNOWN else max(operands)
    if call.op is Op.PROD:
        # a product of positive numbers can underflow to zero
        squares = all(call.operands.count(value) % 2 == 0 for value in call.operands)
        nonnegative = squares or min(operands) is not Sign.UNKNOWN
        return Sign.NONNEGATIVE if nonnegative else Sign.UNKNOWN
    if call.op is Op.MAX:
        return max(operands)
    if call.op in (Op.MIN, Op.SELECT):
        return min(operands[-2:])
    if call.op is Op.SQRT:
        return operands[0]
    if call.op in (Op.ABS, Op.EXP):
        # exp underflows to zero
        return max(operands[0], Sign.NONNEGATIVE) if call.op is Op.ABS else Sign.NONNEGATIVE
    return Sign.UNKNOWN


def _sign_of_literal(number: object) -> Sign:
    assert isinstance(number, float)
    if number > 0.0:
        return Sign.POSITIVE
    return Sign.NONNEGATIVE if number == 0.0 else Sign.UNKNOWN
