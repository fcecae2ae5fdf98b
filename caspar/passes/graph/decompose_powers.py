"""Powers, roots and reciprocals of one base, computed together as cheaply as possible.

Before: POW with literal exponents, SQRT, RSQRT, CBRT, RCBRT, RCP, nested or not; DIV by any of
them. After: each base's powers share products and roots; DIV by a power is a
product with the negative power, so 1/sqrt(x) is RSQRT(x); POW is left where nothing is cheaper,
and for exponents that are no simple fractions. a/x with a plain x is left to `share_reciprocals`,
but beside another negative power of x it is a product with x^-1. Some rewrites are right only away
from zero: `signs` knows where a value is, without evaluating anything.

Also here: how to compute a set of rational powers of one value from products, roots and
reciprocals.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from functools import lru_cache

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.passes.cost import OpCosts
from caspar.passes.graph.rewrite import rebuild

DENOMINATOR = 72
"""Exponents are multiples of 1 / 72: at most three square roots and two cube roots."""

MAX_EXPONENT = 32
PATHS_KEPT = 4
"""Cheapest ways followed to each power: they differ in what they make on the way."""

_HELPERS = (Fraction(1, 2), Fraction(1, 3), Fraction(1, 4))
_ROOTS = ((Op.SQRT, 2), (Op.RSQRT, -2), (Op.CBRT, 3), (Op.RCBRT, -3))


@dataclass(frozen=True, slots=True)
class PowerStep:
    """One step to a power of the base: `op` applied to other powers, by their exponents.

    The op is MUL, RCP, a root, or POW (of the base itself).
    """

    exponent: Fraction
    op: Op
    operands: tuple[Fraction, ...]


def rational_exponent(exponent: float) -> Fraction | None:
    """The fraction an exponent was rounded from, if a root of it can be taken; else None."""
    if not abs(exponent) <= MAX_EXPONENT:
        return None
    fraction = Fraction(exponent).limit_denominator(DENOMINATOR)
    if DENOMINATOR % fraction.denominator != 0:
        return None
    # one unit in the last place: quotients such as 2/3 are rounded once
    close = abs(float(fraction) - exponent) <= 2.0**-52 * abs(exponent)
    return fraction if close else None


def keeps_domain(inner: Fraction, outer: Fraction) -> bool:
    """Return whether (x^inner)^outer = x^(inner * outer) wherever the left side is a number."""
    combined = inner * outer
    if inner.denominator % 2 == 0:
        return combined.denominator % 2 == 0
    return outer.denominator % 2 != 0 or inner.numerator % 2 != 0


def is_combined(inner: Fraction, outer: Fraction) -> bool:
    """Return whether (x^inner)^outer is taken as one power of x: equal, and in a plan's reach."""
    combined = inner * outer
    in_reach = DENOMINATOR % combined.denominator == 0 and abs(combined) <= MAX_EXPONENT
    return in_reach and keeps_domain(inner, outer)


@lru_cache(maxsize=4096)
def plan_powers(
    exponents: tuple[Fraction, ...], costs: OpCosts, positive: bool
) -> dict[Fraction, PowerStep]:
    """Steps that compute every exponent of a set, and those on the way. Exponent 1 is given."""
    ascending = sorted(exponents, key=_simplicity)
    orders = [ascending, sorted(ascending, key=lambda e: e > 0)]
    plans = [_plan_in_order(order, costs, positive) for order in orders]
    return min(plans, key=lambda plan: _plan_cost(plan.values(), costs))


def _simplicity(exponent: Fraction) -> tuple[bool, int, int]:
    return (exponent < 0, exponent.denominator, abs(exponent.numerator))


def _plan_in_order(
    exponents: list[Fraction], costs: OpCosts, positive: bool
) -> dict[Fraction, PowerStep]:
    plan: dict[Fraction, PowerStep] = {}
    for target in exponents:
        if target == 1 or target in plan:
            continue
        available = frozenset(plan) | {Fraction(1)}
        fallback = (PowerStep(target, Op.POW, ()),)
        candidates = [fallback, *_paths(target, available, costs, positive)]
        for step in min(candidates, key=lambda path: _plan_cost(path, costs)):
            plan[step.exponent] = step
    return plan


def _plan_cost(steps: Iterable[PowerStep], costs: OpCosts) -> float:
    return sum(costs.price(step.op) for step in steps)


def _paths(
    target: Fraction, available: frozenset[Fraction], costs: OpCosts, positive: bool
) -> Iterator[tuple[PowerStep, ...]]:
    """Candidate step lists: direct, or by way of a root that is then multiplied in."""
    direct = cheapest_chain(target, available, costs, positive)
    if direct is not None:
        yield direct
    for helper in _HELPERS:
        signed = helper if target > 0 else -helper
        if signed in available or signed == target:
            continue
        first = cheapest_chain(signed, available, costs, positive)
        if first is None:
            continue
        made = available | {step.exponent for step in first}
        rest = cheapest_chain(target, made, costs, positive)
        if rest is not None:
            yield first + rest


@dataclass(frozen=True, slots=True)
class _Path:
    exponent: int
    steps: tuple[tuple[int, Op, tuple[int, ...]], ...]


@lru_cache(maxsize=65536)
def cheapest_chain(
    target: Fraction, available: frozenset[Fraction], costs: OpCosts, positive: bool
) -> tuple[PowerStep, ...] | None:
    """The cheapest steps from the available powers to one more; None if POW is cheaper.

    Works in units of 1 / DENOMINATOR. A step list counts what it makes on the way as available.
    """
    goal = _units(target)
    known = sorted(_units(exponent) for exponent in available)
    bound = max(4 * DENOMINATOR, 2 * abs(goal))
    limit = costs.price(Op.POW)
    # the counter breaks ties by order of discovery
    counter = 0
    heap = []
    for exponent in known:
        heap.append((0.0, counter, _Path(exponent, ())))
        counter += 1
    reached: Counter[int] = Counter()
    while heap:
        cost, _, path = heapq.heappop(heap)
        if path.exponent == goal:
            return tuple(_step(*step) for step in path.steps)
        if reached[path.exponent] == PATHS_KEPT:
            continue
        reached[path.exponent] += 1
        for op, operands, exponent in _successors(path, known, costs, positive):
            total = cost + costs.price(op)
            kept = reached[exponent] < PATHS_KEPT and exponent not in known
            if kept and abs(exponent) <= bound and total < limit:
                steps = (*path.steps, (exponent, op, operands))
                heapq.heappush(heap, (total, counter, _Path(exponent, steps)))
                counter += 1
    return None


def _successors(
    path: _Path, known: list[int], costs: OpCosts, positive: bool
) -> Iterator[tuple[Op, tuple[int, ...], int]]:
    exponent = path.exponent
    for op, root in _ROOTS:
        allowed = exponent % root == 0 and 0 < exponent <= DENOMINATOR
        allowed = allowed and (root % 2 != 0 or Fraction(exponent, DENOMINATOR).numerator % 2 != 0)
        if costs.has(op) and allowed:
            yield op, (exponent,), exponent // root
    if exponent > 0 and costs.has(Op.RCP):
        yield Op.RCP, (exponent,), -exponent
    for other in dict.fromkeys([exponent, *known, *(step[0] for step in path.steps)]):
        if not positive and (other < 0) != (exponent < 0):
            continue
        total = exponent + other
        halves = _even_denominator(exponent) or _even_denominator(other)
        if total != 0 and (positive or not halves or _even_denominator(total)):
            yield Op.MUL, (exponent, other), total


def _units(exponent: Fraction) -> int:
    return int(exponent * DENOMINATOR)


def _step(exponent: int, op: Op, operands: tuple[int, ...]) -> PowerStep:
    return PowerStep(
        Fraction(exponent, DENOMINATOR),
        op,
        tuple(Fraction(operand, DENOMINATOR) for operand in operands),
    )


def _even_denominator(units: int) -> bool:
    # 72 = 8 * 9: the denominator is odd where the 8 cancels
    return units % 8 != 0


class Sign(IntEnum):
    """A lower bound; greater means more is known."""

    UNKNOWN = 0
    NONNEGATIVE = 1
    POSITIVE = 2


def signs(graph: Graph) -> list[Sign]:
    """Return what is known about the sign of each value. Each may still be NaN."""
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
