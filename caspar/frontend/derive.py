"""Derivatives by reverse accumulation on the graph.

Residuals have few rows and many arguments, so one backward sweep for each row is cheapest; the
sweeps share their subexpressions because the builder interns calls. The result equals symbolic
differentiation; where a function has a kink the derivative of the chosen branch is taken.
"""

from collections.abc import Callable, Sequence

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Call
from caspar.ir.ops import OP_INFO, Op

_CONSTANT_OPS = frozenset({Op.SIGN, Op.FLOOR, Op.CONST, Op.READ})


def gradient(builder: GraphBuilder, output: int, inputs: Sequence[int]) -> list[int]:
    """d output / d input for each input.

    Args:
        builder: Holds the expressions and receives the derivatives.
        output: A value.
        inputs: Values to derive by, read from memory.

    Returns:
        One value for each input; the literal 0 where the output does not depend on it.
    """
    return _gradient(builder, output, inputs, {})


def _gradient(
    builder: GraphBuilder, output: int, inputs: Sequence[int], known: dict[int, list[int]]
) -> list[int]:
    """The same; `known` keeps the gradients of the branches of selections."""
    active = _active_values(builder, output, inputs)
    terms: dict[int, list[int]] = {value: [] for value in active}
    if output in terms:
        terms[output].append(builder.const(1.0))
    adjoints: dict[int, int] = {}
    # ids are in creation order, so every user of a value comes before it here
    for value in sorted(active, reverse=True):
        adjoint = builder.sum(terms[value])
        adjoints[value] = adjoint
        if builder.literal(adjoint) == 0.0:
            continue
        call = builder.producer_of(value)
        if call.op is Op.SELECT:
            slopes = _selected(builder, call, inputs, known)
            for number, slope in zip(inputs, slopes, strict=True):
                if number in active:
                    terms[number].append(builder.prod([adjoint, slope]))
            continue
        for place, operand in enumerate(call.operands):
            if operand in active:
                terms[operand].append(_PARTIALS[call.op](builder, call, place, adjoint))
    zero = builder.const(0.0)
    return [adjoints.get(value, zero) for value in inputs]


def _selected(
    builder: GraphBuilder, call: Call, inputs: Sequence[int], known: dict[int, list[int]]
) -> list[int]:
    """The gradient of a selection: that of the branch taken, selected input by input.

    Sweeping on with an adjoint of zero would not do: 0 times the slope of a branch that is not
    taken because it has none there (the root of a negative number, say) is NaN.
    """
    condition, *branches = call.operands
    for branch in branches:
        if branch not in known:
            known[branch] = _gradient(builder, branch, inputs, known)
    if_true, if_false = (known[branch] for branch in branches)
    return [
        builder.select(condition, left, right)
        for left, right in zip(if_true, if_false, strict=True)
    ]


def _active_values(builder: GraphBuilder, output: int, inputs: Sequence[int]) -> set[int]:
    """Values on a differentiable path from an input to the output."""
    reachable, pending = {output}, [output]
    while pending:
        for operand in builder.producer_of(pending.pop()).operands:
            if operand not in reachable:
                reachable.add(operand)
                pending.append(operand)
    active = reachable.intersection(inputs)
    for value in sorted(reachable):
        call = builder.producer_of(value)
        is_flat = call.op in _CONSTANT_OPS or OP_INFO[call.op].boolean
        if not is_flat and any(operand in active for operand in call.operands):
            active.add(value)
    return active


Partial = Callable[[GraphBuilder, Call, int, int], int]
"""(builder, call, place of the operand, adjoint of the output) -> adjoint of the operand."""


def _sum(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
    return adjoint


def _prod(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
    others = [operand for number, operand in enumerate(call.operands) if number != place]
    return builder.prod([adjoint, *others])


def _neg(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
    return builder.neg(adjoint)


def _div(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
    quotient = builder.div(adjoint, call.operands[1])
    if place == 0:
        return quotient
    return builder.neg(builder.prod([quotient, call.outputs[0]]))


def _rcp(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
    return builder.neg(builder.prod([adjoint, call.outputs[0], call.outputs[0]]))


def _pow(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
    base, exponent = call.operands
    if place == 1:
        logarithm = builder.unary(Op.LOG, base)
        return builder.prod([adjoint, call.outputs[0], logarithm])
    literal = builder.literal(exponent)
    if literal is not None:
        lower = builder.pow(base, literal - 1.0)
    else:
        lower = builder.binary(Op.POW, base, builder.sub(exponent, builder.const(1.0)))
    return builder.prod([adjoint, exponent, lower])


def _chain(derivative: Callable[[GraphBuilder, Call], int]) -> Partial:
    """A function of one operand with the given derivative."""

    def partial(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
        return builder.prod([adjoint, derivative(builder, call)])

    return partial


def _over(denominator: Callable[[GraphBuilder, Call], int]) -> Partial:
    """A function of one operand whose derivative is 1 / denominator."""

    def partial(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
        return builder.div(adjoint, denominator(builder, call))

    return partial


def _one_plus_square(builder: GraphBuilder, value: int, sign: float) -> int:
    square = builder.pow(value, 2.0)
    signed = square if sign > 0.0 else builder.neg(square)
    return builder.sum([builder.const(1.0), signed])


def _acos(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
    return builder.neg(_PARTIALS[Op.ASIN](builder, call, place, adjoint))


def _atan2(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
    """atan2(y, x): dy = x / (x^2 + y^2), dx = -y / (x^2 + y^2)."""
    y, x = call.operands
    square = builder.sum([builder.pow(x, 2.0), builder.pow(y, 2.0)])
    numerator = x if place == 0 else builder.neg(y)
    return builder.div(builder.prod([adjoint, numerator]), square)


def _copysign(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
    """Only the magnitude counts: d |a| sign(b) / da = sign(a) sign(b)."""
    if place == 1:
        return builder.const(0.0)
    magnitude, sign = call.operands
    one = builder.binary(Op.COPYSIGN, builder.const(1.0), sign)
    return builder.prod([adjoint, builder.unary(Op.SIGN, magnitude), one])


def _extremum(wins: Op) -> Partial:
    def partial(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
        condition = builder.binary(wins, call.operands[0], call.operands[1])
        zero = builder.const(0.0)
        if place == 0:
            return builder.select(condition, adjoint, zero)
        return builder.select(condition, zero, adjoint)

    return partial


def _greater(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
    condition = builder.binary(Op.LT, call.operands[1], call.operands[0])
    zero = builder.const(0.0)
    if place == 0:
        return builder.select(condition, adjoint, zero)
    return builder.select(condition, zero, adjoint)


_PARTIALS: dict[Op, Partial] = {
    Op.SUM: _sum,
    Op.PROD: _prod,
    Op.NEG: _neg,
    Op.DIV: _div,
    Op.RCP: _rcp,
    Op.POW: _pow,
    Op.SQRT: _over(lambda b, c: b.prod([b.const(2.0), c.outputs[0]])),
    Op.EXP: _chain(lambda b, c: c.outputs[0]),
    Op.LOG: _over(lambda b, c: c.operands[0]),
    Op.SIN: _chain(lambda b, c: b.unary(Op.COS, c.operands[0])),
    Op.COS: _chain(lambda b, c: b.neg(b.unary(Op.SIN, c.operands[0]))),
    Op.TAN: _chain(lambda b, c: _one_plus_square(b, c.outputs[0], 1.0)),
    Op.ASIN: _over(lambda b, c: b.unary(Op.SQRT, _one_plus_square(b, c.operands[0], -1.0))),
    Op.ACOS: _acos,
    Op.ATAN: _over(lambda b, c: _one_plus_square(b, c.operands[0], 1.0)),
    Op.ATAN2: _atan2,
    Op.SINH: _chain(lambda b, c: b.unary(Op.COSH, c.operands[0])),
    Op.COSH: _chain(lambda b, c: b.unary(Op.SINH, c.operands[0])),
    Op.TANH: _chain(lambda b, c: _one_plus_square(b, c.outputs[0], -1.0)),
    Op.ABS: _chain(lambda b, c: b.unary(Op.SIGN, c.operands[0])),
    Op.COPYSIGN: _copysign,
    Op.MIN: _extremum(Op.LT),
    Op.MAX: _greater,
}
"""Derivative of each op a traced residual can contain."""
