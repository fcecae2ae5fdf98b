"""Powers, roots and reciprocals of one base, computed together as cheaply as possible.

Before: POW with literal exponents, SQRT, RSQRT, CBRT, RCBRT, RCP, nested or not; DIV by any of
them. After: each base's powers share products and roots (`power_plans`); DIV by a power is a
product with the negative power, so 1/sqrt(x) is RSQRT(x); POW is left where nothing is cheaper,
and for exponents that are no simple fractions. a/x with a plain x is left to `share_reciprocals`,
but beside another negative power of x it is a product with x^-1. Some rewrites are right only away
from zero: `signs` knows where a value is, without evaluating anything.
"""

from collections.abc import Sequence
from enum import IntEnum
from fractions import Fraction

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.passes.cost import OpCosts
from caspar.passes.graph.power_plans import PowerStep, is_combined, plan_powers, rational_exponent
from caspar.passes.graph.rewrite import rebuild


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


_EXPONENTS = {
    Op.SQRT: Fraction(1, 2),
    Op.RSQRT: Fraction(-1, 2),
    Op.CBRT: Fraction(1, 3),
    Op.RCBRT: Fraction(-1, 3),
    Op.RCP: Fraction(-1),
}

Power = tuple[int, Fraction]
"""A base (a value of the old graph) and an exponent."""


def decompose_powers(graph: Graph, costs: OpCosts) -> Graph:
    """Replace powers by products, roots and reciprocals."""
    powers = _powers(graph)
    wanted = _wanted(graph, powers)
    known_signs = signs(graph)
    plans = {
        base: plan_powers(tuple(sorted(exponents)), costs, known_signs[base] is Sign.POSITIVE)
        for base, exponents in wanted.items()
    }
    made: dict[Power, int] = {}

    def rule(builder: GraphBuilder, call: Call, operands: tuple[int, ...]) -> list[int] | None:
        for old, new in zip(call.operands, operands, strict=True):
            if old in plans:
                made[old, Fraction(1)] = new
        if call.op is Op.DIV:
            base, exponent = powers.get(call.operands[1], (call.operands[1], Fraction(1)))
            if -exponent not in wanted.get(base, ()):
                return None
            return [builder.prod([operands[0], _make(builder, plans, made, base, -exponent)])]
        if len(call.outputs) != 1 or call.outputs[0] not in powers:
            return None
        base, exponent = powers[call.outputs[0]]
        if exponent not in wanted.get(base, ()):
            # nobody reads this power any more; its operand stands in for it
            return [operands[0]]
        return [_make(builder, plans, made, base, exponent)]

    return rebuild(graph, rule)


def _powers(graph: Graph) -> dict[int, Power]:
    """Every value that is a rational power of another one, by its innermost base."""
    powers: dict[int, Power] = {}
    for call in graph.calls:
        exponent = _exponent(graph, call)
        if exponent is None:
            continue
        base = call.operands[0]
        inner = powers.get(base)
        if inner is not None and is_combined(inner[1], exponent):
            powers[call.outputs[0]] = (inner[0], inner[1] * exponent)
        else:
            powers[call.outputs[0]] = (base, exponent)
    return powers


def _exponent(graph: Graph, call: Call) -> Fraction | None:
    if call.op is not Op.POW:
        return _EXPONENTS.get(call.op)
    exponent = graph.call_of(call.operands[1])
    if exponent.op is not Op.CONST or not isinstance(exponent.data, float):
        return None
    return rational_exponent(exponent.data)


def _wanted(graph: Graph, powers: dict[int, Power]) -> dict[int, dict[Fraction, None]]:
    """Base -> exponents that some other call reads."""
    wanted: dict[int, dict[Fraction, None]] = {}
    for call in graph.calls:
        for position, value in enumerate(call.operands):
            if value not in powers:
                continue
            base, exponent = powers[value]
            if len(call.outputs) == 1 and powers.get(call.outputs[0], (value,))[0] != value:
                continue
            if call.op is Op.DIV and position == 1:
                exponent = -exponent
            wanted.setdefault(base, {})[exponent] = None
    for call in graph.calls:
        if call.op is Op.DIV and any(exponent < 0 for exponent in wanted.get(call.operands[1], ())):
            wanted[call.operands[1]][Fraction(-1)] = None
    return wanted


def _make(
    builder: GraphBuilder,
    plans: dict[int, dict[Fraction, PowerStep]],
    made: dict[Power, int],
    base: int,
    exponent: Fraction,
) -> int:
    """The new value of a power, made with what it needs when it is first asked for."""
    known = made.get((base, exponent))
    if known is not None:
        return known
    step = plans[base][exponent]
    if step.op is Op.POW:
        new_base = made[base, Fraction(1)]
        value = builder.call(Op.POW, [new_base, builder.const(float(exponent))])[0]
    else:
        operands = [_make(builder, plans, made, base, operand) for operand in step.operands]
        value = _emit(builder, step.op, operands)
    made[base, exponent] = value
    return value


def _emit(builder: GraphBuilder, op: Op, operands: list[int]) -> int:
    if op is Op.MUL:
        return builder.prod(operands)
    if op is Op.RCP:
        return builder.div(builder.const(1.0), operands[0])
    return builder.unary(op, operands[0])
