"""Derivatives by reverse accumulation on the graph.

Residuals have few rows and many arguments, so one backward sweep for each row is cheapest; the
sweeps share their subexpressions because the builder interns calls. The result equals symbolic
differentiation. At a kink it is the slope of one side, never their mean: a mean of zero would look
like a stationary point. `Abs` takes the side that `sign_no_zero` names, selections the branch that
was taken; what the other branch is, infinite or NaN, has no influence.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Call
from caspar.ir.ops import OP_INFO, Op

_CONSTANT_OPS = frozenset({Op.SIGN, Op.FLOOR, Op.CONST, Op.READ, Op.EXCHANGE, Op.GATHER})

_SELECTIONS = frozenset({Op.SELECT, Op.MIN, Op.MAX})

_LINEAR_OPS = frozenset({Op.SUM, Op.NEG, Op.READ, Op.CONST})

_TAME_OPS = frozenset(
    {
        *(Op.PROD, Op.SIN, Op.COS, Op.ATAN, Op.TANH, Op.ERF, Op.ERFC),
        *(Op.ABS, Op.SIGN, Op.FLOOR, Op.COPYSIGN),
    }
)
"""Ops whose values and slopes are finite wherever their operands are, but for overflow."""

_MAX_TAME_EXPONENT = 4.0


def gradient(builder: GraphBuilder, output: int, inputs: Sequence[int]) -> list[int]:
    """d output / d input for each input; the literal 0 where the output does not depend on it.

    Inputs are read from memory, or brought back by an exchange. What else an exchange brings back
    counts as constant, whatever it was made of.
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
    outside = builder.origin
    for value in sorted(active, reverse=True):
        call = builder.producer_of(value)
        builder.origin = f"derivative of {call.origin}" if call.origin != "" else outside
        adjoint = builder.sum(terms[value])
        adjoints[value] = adjoint
        if call.op in _CONSTANT_OPS or builder.literal(adjoint) == 0.0:
            continue
        if call.op in _SELECTIONS:
            for target, term in _through_selection(builder, call, adjoint, active, inputs, known):
                if target in active:
                    terms[target].append(term)
            continue
        for place, operand in enumerate(call.operands):
            if operand in active:
                terms[operand].append(_PARTIALS[call.op](builder, call, place, adjoint))
    builder.origin = outside
    zero = builder.const(0.0)
    return [adjoints.get(value, zero) for value in inputs]


def _through_selection(
    builder: GraphBuilder,
    call: Call,
    adjoint: int,
    active: set[int],
    inputs: Sequence[int],
    known: dict[int, list[int]],
) -> Iterator[tuple[int, int]]:
    """(value, term of its adjoint) of a selection: only the branch taken may count.

    A branch gets the adjoint where it is taken, else zero. To sweep on with that zero is cheapest,
    and right where slopes are finite: 0 times the slope of a branch that is not taken because it
    has none there (the root of a negative number, say) is NaN. Other branches pass on their
    gradients, zero where they are not taken. A SELECT may be there to pass over data that are NaN,
    so only literals count as finite in its branches; MIN and MAX keep a NaN anyway.
    """
    condition, *branches = _branches(builder, call, active)
    zero = builder.const(0.0)
    shares = [builder.select(condition, adjoint, zero), builder.select(condition, zero, adjoint)]
    slopes = []
    for branch, share in zip(branches, shares, strict=True):
        if _has_finite_slopes(builder, branch, call.op):
            yield branch, share
            slopes.append([zero] * len(inputs))
        else:
            if branch not in known:
                known[branch] = _gradient(builder, branch, inputs, known)
            slopes.append(known[branch])
    for number, left, right in zip(inputs, *slopes, strict=True):
        is_zero = [builder.literal(slope) == 0.0 for slope in (left, right)]
        # a slope of zero counts even where the adjoint is infinite: sqrt(Max(f(x), 0))
        share = shares[1] if is_zero[0] else shares[0] if is_zero[1] else adjoint
        yield number, builder.prod([share, builder.select(condition, left, right)])


def _branches(builder: GraphBuilder, call: Call, active: set[int]) -> tuple[int, int, int]:
    """(condition, value where it holds, value elsewhere) of a selection.

    At a tie MIN and MAX take the second operand, unless only the first one depends on an input:
    `Max(x, 0) - 1` at 0 is no stationary point.
    """
    if call.op is Op.SELECT:
        condition, if_true, if_false = call.operands
        return condition, if_true, if_false
    left, right = call.operands
    ordered = (left, right) if call.op is Op.MIN else (right, left)
    takes_left_at_tie = left in active and right not in active
    return builder.binary(Op.LE if takes_left_at_tie else Op.LT, *ordered), left, right


def _has_finite_slopes(builder: GraphBuilder, value: int, selection: Op) -> bool:
    """Return whether no slope on the way to a branch is infinite or NaN, whatever is read."""
    pending, seen = [value], {value}
    while pending:
        call = builder.producer_of(pending.pop())
        # the condition of a SELECT is no branch
        followed = call.operands[1:] if call.op is Op.SELECT else call.operands
        open_ones = [operand for operand in followed if builder.literal(operand) is None]
        is_finite = call.op in _LINEAR_OPS or call.op in _SELECTIONS
        is_finite = is_finite or (call.op is Op.PROD and len(open_ones) == 1)
        if not is_finite and not (selection is not Op.SELECT and _is_tame(builder, call)):
            return False
        pending += [operand for operand in open_ones if operand not in seen]
        seen.update(open_ones)
    return True


def _is_tame(builder: GraphBuilder, call: Call) -> bool:
    if call.op is not Op.POW:
        return call.op in _TAME_OPS
    exponent = builder.literal(call.operands[1])
    return exponent is not None and exponent.is_integer() and 0.0 < exponent <= _MAX_TAME_EXPONENT


def _active_values(builder: GraphBuilder, output: int, inputs: Sequence[int]) -> set[int]:
    reachable, pending = {output}, [output]
    while pending:
        call = builder.producer_of(pending.pop())
        for operand in () if call.op in _CONSTANT_OPS else call.operands:
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
    if place == 1:
        return _pow_by_exponent(builder, call, adjoint)
    base, exponent = call.operands
    literal = builder.literal(exponent)
    if literal is not None:
        return builder.prod([adjoint, exponent, builder.pow(base, literal - 1.0)])
    lower = builder.binary(Op.POW, base, builder.sub(exponent, builder.const(1.0)))
    slope = builder.prod([adjoint, exponent, lower])
    # x^0 is 1 at 0 too, where x^-1 is infinite
    zero = builder.const(0.0)
    return builder.select(builder.binary(Op.EQ, exponent, zero), zero, slope)


def _pow_by_exponent(builder: GraphBuilder, call: Call, adjoint: int) -> int:
    """x^y log(x), which tends to 0 with x for y > 0; NaN for negative x."""
    base, exponent = call.operands
    literal = builder.literal(base)
    if literal is not None and literal > 0.0:
        return builder.prod([adjoint, call.outputs[0], builder.const(math.log(literal))])
    slope = builder.prod([adjoint, call.outputs[0], builder.unary(Op.LOG, base)])
    zero = builder.const(0.0)
    is_zero = builder.binary(Op.EQ, base, zero)
    stays_zero = builder.binary(Op.AND, is_zero, builder.binary(Op.LE, zero, exponent))
    return builder.select(stays_zero, zero, slope)


def _chain(derivative: Callable[[GraphBuilder, Call], int]) -> Partial:

    def partial(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
        return builder.prod([adjoint, derivative(builder, call)])

    return partial


def _over(denominator: Callable[[GraphBuilder, Call], int]) -> Partial:

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


def _unit_sign(builder: GraphBuilder, value: int) -> int:
    """1 or -1, as `sign_no_zero`: the sign of a zero counts."""
    return builder.binary(Op.COPYSIGN, builder.const(1.0), value)


def _copysign(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
    """Differentiate |a| sign(b): sign(a) sign(b) by a, with the signs of zeros; 0 by b."""
    if place == 1:
        return builder.const(0.0)
    return builder.prod([adjoint, *(_unit_sign(builder, operand) for operand in call.operands)])


def _erf(sign: float) -> Partial:
    """+-2 / sqrt(pi) exp(-x^2)."""
    factor = sign * 2.0 / math.sqrt(math.pi)

    def partial(builder: GraphBuilder, call: Call, place: int, adjoint: int) -> int:
        square = builder.pow(call.operands[0], 2.0)
        bell = builder.unary(Op.EXP, builder.neg(square))
        return builder.prod([adjoint, builder.const(factor), bell])

    return partial


def _root_of_one_plus_square(builder: GraphBuilder, call: Call, sign: float) -> int:
    return builder.unary(Op.SQRT, _one_plus_square(builder, call.operands[0], sign))


def _root_of_square_minus_one(builder: GraphBuilder, call: Call) -> int:
    """Write x^2 - 1 as (x - 1) (x + 1): it cancels near 1, where the arcosh is steep."""
    x, one = call.operands[0], builder.const(1.0)
    return builder.unary(Op.SQRT, builder.prod([builder.sub(x, one), builder.sum([x, one])]))


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
    Op.ASIN: _over(lambda b, c: _root_of_one_plus_square(b, c, -1.0)),
    Op.ACOS: _acos,
    Op.ATAN: _over(lambda b, c: _one_plus_square(b, c.operands[0], 1.0)),
    Op.ATAN2: _atan2,
    Op.SINH: _chain(lambda b, c: b.unary(Op.COSH, c.operands[0])),
    Op.COSH: _chain(lambda b, c: b.unary(Op.SINH, c.operands[0])),
    Op.TANH: _chain(lambda b, c: _one_plus_square(b, c.outputs[0], -1.0)),
    Op.ASINH: _over(lambda b, c: _root_of_one_plus_square(b, c, 1.0)),
    Op.ACOSH: _over(_root_of_square_minus_one),
    Op.ATANH: _over(lambda b, c: _one_plus_square(b, c.operands[0], -1.0)),
    Op.ERF: _erf(1.0),
    Op.ERFC: _erf(-1.0),
    Op.ABS: _chain(lambda b, c: _unit_sign(b, c.operands[0])),
    Op.COPYSIGN: _copysign,
}
"""Derivative of each op a traced residual can contain, but for selections."""
