"""Data that all trials of one graph share: readers of values, and what each call waits for.

Input: a graph and its accumulators. Output: `Dependencies`, which trials read and never change;
they copy the counts that fall while steps are made. Cost tier: once for each graph.
"""

from dataclasses import dataclass

from caspar.ir.graph import Graph
from caspar.ir.ops import OP_INFO, Op
from caspar.passes.scheduling.contributions import ProductState, SumState, SumTerms
from caspar.passes.scheduling.plan_accumulators import Accumulators, Role
from caspar.passes.scheduling.steps import Step


@dataclass(frozen=True)
class Dependencies:
    """A graph as trials see it.

    Attributes:
        readers: For each value, the calls that read it, and how often each does.
        num_reads: For each value, all reads together; 0 for a literal, which is never freed.
        sole_reader: For each value, the call that alone reads it; -1 if there are several or
            none, or if the value is a literal.
        pressure: For each value, the registers it takes: 0 for truth values and literals.
        plain_steps: For each call, its step if it is plain.
        distinct_operands: For each call, the values it reads if it is plain, each once.
        num_made: For each call, its outputs that are read.
        num_missing: For each plain call, what it waits for.
        later_stores: Call -> stores that must come after it.
        sum_terms: Sum's call index -> its terms.
    """

    graph: Graph
    accumulators: Accumulators
    readers: tuple[dict[int, int], ...]
    num_reads: tuple[int, ...]
    sole_reader: tuple[int, ...]
    pressure: tuple[int, ...]
    plain_steps: tuple[Step | None, ...]
    distinct_operands: tuple[tuple[int, ...], ...]
    num_made: tuple[int, ...]
    num_missing: tuple[int, ...]
    later_stores: dict[int, list[int]]
    sum_terms: dict[int, SumTerms]

    def new_state(self, call: int) -> SumState | ProductState:
        """The state of an accumulator to which nothing was contributed."""
        if call in self.sum_terms:
            return SumState(self.sum_terms[call])
        sources = self.accumulators.sources[call]
        is_fused = call in self.accumulators.fused_into
        return ProductState(call, len(sources), is_fused, call in self.accumulators.negative)


def find_dependencies(graph: Graph, accumulators: Accumulators) -> Dependencies:
    """Find what all trials share."""
    calls, sources, roles = graph.calls, accumulators.sources, accumulators.roles
    is_plain = [role is Role.PLAIN for role in roles]
    literals = {call.outputs[0] for call in calls if call.op is Op.CONST}
    reads: list[dict[int, int]] = [{} for _ in range(graph.num_values)]
    for call, values in enumerate(sources):
        for value in values:
            reads[value][call] = reads[value].get(call, 0) + 1
    later_stores = _order_stores(graph)
    num_missing = [
        len(set(values)) if plain else 0 for values, plain in zip(sources, is_plain, strict=True)
    ]
    for stores in later_stores.values():
        for store in stores:
            num_missing[store] += 1
    return Dependencies(
        graph,
        accumulators,
        readers=tuple(reads),
        num_reads=tuple(
            0 if value in literals else sum(users.values()) for value, users in enumerate(reads)
        ),
        sole_reader=tuple(
            next(iter(users)) if len(users) == 1 and value not in literals else -1
            for value, users in enumerate(reads)
        ),
        pressure=tuple(
            0 if value in literals or OP_INFO[calls[producer].op].boolean else 1
            for value, producer in enumerate(graph.producer)
        ),
        plain_steps=tuple(
            Step(call.op, call.outputs, call.operands, call.data, call.origin) if plain else None
            for call, plain in zip(calls, is_plain, strict=True)
        ),
        distinct_operands=tuple(tuple(dict.fromkeys(call.operands)) for call in calls),
        num_made=tuple(sum(len(reads[value]) > 0 for value in call.outputs) for call in calls),
        num_missing=tuple(num_missing),
        later_stores=later_stores,
        sum_terms={
            call: SumTerms.of(call, accumulators.terms[call]) for call in accumulators.terms
        },
    )


def _order_stores(graph: Graph) -> dict[int, list[int]]:
    """Call -> stores that must come after it: of the chunk it reads, after exchanges all.

    What comes before an exchange may be done twice.
    """
    store_of = {call.data: number for number, call in enumerate(graph.calls) if call.op is Op.STORE}
    later: dict[int, list[int]] = {}
    for number, call in enumerate(graph.calls):
        if call.op is Op.READ and call.data in store_of:
            later[number] = [store_of[call.data]]
        elif call.op is Op.EXCHANGE:
            later[number] = list(store_of.values())
    return later
