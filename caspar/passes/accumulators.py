"""Which calls are accumulators, and what contributes to each (paper: Accumulators).

Input: a graph. Output: `Accumulators`, read by the scheduler, which then contributes operands one
by one in the order that frees registers. Linear in the size of the graph.

Rules:

* A SUM looks through NEG: `-x` is contributed by a subtraction, and a NEG that only sums read
  emits nothing.
* A product (or its NEG) that only one sum reads, once, is *fused*: it is multiplied until two
  factors are left, which the sum contributes by one FMA or FNMA.
* Literals are immediate operands and always available.
"""

from dataclasses import dataclass
from enum import Enum, auto

from caspar.ir.graph import Graph
from caspar.ir.ops import Op


class Role(Enum):
    """What the scheduler does with a call."""

    NONE = auto()
    """Emits nothing: constants, and negations that only sums read."""
    PLAIN = auto()
    SUM = auto()
    PRODUCT = auto()


@dataclass(frozen=True, slots=True)
class Term:
    """One contribution to a sum.

    Attributes:
        value: What is added. A fused product's value is never computed by itself.
        product: Index of the fused product's call, or None.
        negative: Whether it is subtracted.
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
    """

    roles: tuple[Role, ...]
    sources: tuple[tuple[int, ...], ...]
    terms: dict[int, tuple[Term, ...]]
    fused_into: dict[int, int]


def plan_accumulators(graph: Graph) -> Accumulators:
    """Find the accumulators of a graph."""
    absorbed = {number for number in range(len(graph.calls)) if _is_absorbed(graph, number)}
    roles: list[Role] = []
    sources: list[tuple[int, ...]] = []
    terms: dict[int, tuple[Term, ...]] = {}
    fused_into: dict[int, int] = {}
    for number, call in enumerate(graph.calls):
        roles.append(Role.NONE if number in absorbed else _role(call.op))
        operands = call.operands
        if call.op is Op.SUM:
            terms[number] = tuple(_term(graph, value, absorbed) for value in operands)
            for term in terms[number]:
                if term.product is not None:
                    fused_into[term.product] = number
            operands = tuple(term.value for term in terms[number] if term.product is None)
        sources.append(() if number in absorbed else operands)
    return Accumulators(tuple(roles), tuple(sources), terms, fused_into)


def _role(op: Op) -> Role:
    return {Op.SUM: Role.SUM, Op.PROD: Role.PRODUCT}.get(op, Role.PLAIN)


def _is_absorbed(graph: Graph, number: int) -> bool:
    """Whether a call is a constant, or a negation that only sums read."""
    call = graph.calls[number]
    if call.op is Op.CONST:
        return True
    if call.op is not Op.NEG:
        return False
    users = graph.users[call.outputs[0]]
    return len(users) > 0 and all(graph.calls[user].op is Op.SUM for user in users)


def _term(graph: Graph, value: int, absorbed: set[int]) -> Term:
    negative = False
    call_number = graph.producer[value]
    used_once = _num_slots(graph, value) == 1
    while call_number in absorbed and graph.calls[call_number].op is Op.NEG:
        negative = not negative
        value = graph.calls[call_number].operands[0]
        call_number = graph.producer[value]
        used_once = used_once and _num_slots(graph, value) == 1
    if used_once and graph.calls[call_number].op is Op.PROD:
        return Term(value, call_number, negative)
    return Term(value, None, negative)


def _num_slots(graph: Graph, value: int) -> int:
    """How many operand positions read a value; counts only up to 2."""
    users = graph.users[value]
    if len(users) != 1:
        return len(users)
    return graph.calls[users[0]].operands.count(value)
