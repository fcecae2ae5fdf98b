"""Find the accumulators of a graph, and the contributions to each (paper: Accumulators).

Input: a graph. Output: `Accumulators`, read by the scheduler, which then contributes operands one
by one in the order that frees registers. Linear in the size of the graph.

Rules:

* SUM and PROD look through NEG: `-x` is contributed by a subtraction, or gives the first
  multiplication its sign. A NEG that nothing else reads emits nothing.
* A product (or its NEG) that only one sum reads, once, is *fused*: it is multiplied until two
  factors are left, which the sum contributes by one FMA or FNMA.
* Literals are immediate operands and always available.
"""

from dataclasses import dataclass
from enum import Enum, auto

from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op


class Role(Enum):
    """The scheduler's treatment of a call."""

    NONE = auto()
    """Emits nothing: constants, and negations that only sums and products read."""
    PLAIN = auto()
    SUM = auto()
    PRODUCT = auto()


_ROLES = {Op.SUM: Role.SUM, Op.PROD: Role.PRODUCT}


@dataclass(frozen=True, slots=True)
class Term:
    """One contribution to a sum, which may be subtracted.

    A fused product's value is never computed by itself; `product` is the index of its call, or
    None.
    """

    value: int
    product: int | None
    negative: bool


@dataclass(frozen=True)
class Accumulators:
    """The micro-steps of a graph, not yet ordered.

    Attributes:
        roles: For each call.
        sources: For each call, the values it reads; for a sum, those that are contributed as
            they are (the factors of fused products are with the product).
        terms: Sum's call index -> its terms.
        fused_into: Fused product's call index -> the sum's call index.
        negative: Call indices of products with an odd number of negated factors.
    """

    roles: tuple[Role, ...]
    sources: tuple[tuple[int, ...], ...]
    terms: dict[int, tuple[Term, ...]]
    fused_into: dict[int, int]
    negative: frozenset[int]


def plan_accumulators(graph: Graph) -> Accumulators:
    """Find the accumulators of a graph."""
    absorbed = {number for number in range(len(graph.calls)) if _is_absorbed(graph, number)}
    roles: list[Role] = []
    sources: list[tuple[int, ...]] = []
    terms: dict[int, tuple[Term, ...]] = {}
    fused_into: dict[int, int] = {}
    factors = {
        n: _factors(graph, call, absorbed)
        for n, call in enumerate(graph.calls)
        if call.op is Op.PROD
    }
    negative = frozenset(n for n, (_, is_negative) in factors.items() if is_negative)
    for number, call in enumerate(graph.calls):
        roles.append(Role.NONE if number in absorbed else _ROLES.get(call.op, Role.PLAIN))
        operands = call.operands
        if call.op is Op.SUM:
            terms[number] = tuple(_term(graph, value, absorbed, negative) for value in operands)
            for term in terms[number]:
                if term.product is not None:
                    fused_into[term.product] = number
            operands = tuple(term.value for term in terms[number] if term.product is None)
        elif call.op is Op.PROD:
            operands, _ = factors[number]
        sources.append(() if number in absorbed else operands)
    return Accumulators(tuple(roles), tuple(sources), terms, fused_into, negative)


def _is_absorbed(graph: Graph, number: int) -> bool:
    """Return whether a call is a constant, or a negation that only sums and products read."""
    call = graph.calls[number]
    if call.op is Op.CONST:
        return True
    if call.op is not Op.NEG:
        return False
    users = graph.users[call.outputs[0]]
    return len(users) > 0 and all(graph.calls[user].op in (Op.SUM, Op.PROD) for user in users)


def _factors(graph: Graph, call: Call, absorbed: set[int]) -> tuple[tuple[int, ...], bool]:
    """The factors of a product without their signs, and whether it is negative."""
    factors = []
    is_negative = False
    for operand in call.operands:
        value = operand
        while graph.producer[value] in absorbed and graph.call_of(value).op is Op.NEG:
            is_negative = not is_negative
            value = graph.call_of(value).operands[0]
        factors.append(value)
    return tuple(factors), is_negative


def _term(graph: Graph, value: int, absorbed: set[int], negative_products: frozenset[int]) -> Term:
    negative = False
    call_number = graph.producer[value]
    used_once = graph.num_reads[value] == 1
    while call_number in absorbed and graph.calls[call_number].op is Op.NEG:
        negative = not negative
        value = graph.calls[call_number].operands[0]
        call_number = graph.producer[value]
        used_once = used_once and graph.num_reads[value] == 1
    if used_once and graph.calls[call_number].op is Op.PROD:
        return Term(value, call_number, negative != (call_number in negative_products))
    return Term(value, None, negative)
