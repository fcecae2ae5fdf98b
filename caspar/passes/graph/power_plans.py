"""How to compute a set of rational powers of one value from products, roots and reciprocals.

Input: exponents and a target's prices. Output: for each exponent needed on the way, one step. The
exponents are handled one after the other; each is reached by a cheapest-first search from the
powers already there. Results are cached: the same few exponents come up again and again.

Which steps are allowed keeps the value of `pow` wherever that is a number:

* A square root is taken only of odd numerators ((x^2)^(1/2) is not x), and two powers with an even
  denominator never combine to one with an odd denominator (sqrt(x) * sqrt(x) is NaN where x is
  not).
* A root is taken only of powers up to 1: x^3 overflows or underflows where x^(3/2) does not.
* Powers of opposite sign are multiplied only if the base is known to be positive (0 * inf), and
  neither a root nor a reciprocal is taken of a negative power.

For a negative base, `pow` with an odd denominator is NaN; here it is the real branch, the power of
the real root (x^(1/3) = cbrt(x)), because excluding it would cost a comparison each time.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from caspar.ir.ops import Op
from caspar.passes.cost import OpCosts

DENOMINATOR = 72
"""Exponents are multiples of 1 / 72: at most three square roots and two cube roots."""

MAX_EXPONENT = 32
PATHS_KEPT = 4
"""Cheapest ways followed to each power: they differ in what they make on the way."""

_HELPERS = (Fraction(1, 2), Fraction(1, 3), Fraction(1, 4))
_ROOTS = ((Op.SQRT, 2), (Op.RSQRT, -2), (Op.CBRT, 3), (Op.RCBRT, -3))


@dataclass(frozen=True, slots=True)
class PowerStep:
    """One step: `op` applied to powers of the base.

    Attributes:
        exponent: The power computed.
        op: MUL, RCP, a root, or POW (of the base itself).
        operands: Exponents of the powers it is computed from.
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
    """Whether (x^inner)^outer = x^(inner * outer) wherever the left side is a number."""
    combined = inner * outer
    if inner.denominator % 2 == 0:
        return combined.denominator % 2 == 0
    return outer.denominator % 2 != 0 or inner.numerator % 2 != 0


def is_combined(inner: Fraction, outer: Fraction) -> bool:
    """Whether (x^inner)^outer is to be taken as one power of x: the same, and one of the plans."""
    combined = inner * outer
    in_reach = DENOMINATOR % combined.denominator == 0 and abs(combined) <= MAX_EXPONENT
    return in_reach and keeps_domain(inner, outer)


@lru_cache(maxsize=4096)
def plan_powers(
    exponents: tuple[Fraction, ...], costs: OpCosts, positive: bool
) -> dict[Fraction, PowerStep]:
    """Steps that compute every exponent of a set.

    Args:
        exponents: Wanted powers, each once.
        costs: Prices of the target.
        positive: Whether the base is known to be positive.

    Returns:
        Exponent -> its step, for the wanted powers and those on the way. Exponent 1 is given.
    """
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
        allowed = allowed and (root % 2 != 0 or _odd_numerator(exponent))
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


def _odd_numerator(units: int) -> bool:
    return Fraction(units, DENOMINATOR).numerator % 2 != 0


def _even_denominator(units: int) -> bool:
    # 72 = 8 * 9: the denominator is odd where the 8 cancels
    return units % 8 != 0
