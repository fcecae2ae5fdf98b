"""Orders a graph's calls and contributions so that few values are live at once.

Input: a graph. Output: a `Schedule`. Greedy (paper: Symbolic Reordering), in two tiers:

* A step that frees at least as many values as it makes never raises the pressure, now or later,
  so it is made at once: contributions to started accumulators, stores, calls on dying operands.
* When no such step is left, one *opening* step has to raise the pressure: a read, or a call or an
  accumulator's start whose operands live on. The one with the best key is made, see `priority`.

So a key is computed for opening steps only, which is what makes scheduling fast; the cost is
n log n. Because it is fast, several depth-first orders are tried (the K of the key) and the one
with the least peak is kept. An order is decided by the sequence in which stored arguments are
visited and the sequence of operands within a call.

A trial can only be kept if its peak is lower than the lowest before it. So a trial ends at the step
that reaches that peak, and one whose depth-first order was tried before is left out. Both count as
whole trials for the budget: the schedule is the one that whole trials would have found.

Peak pressure of the variants: docs/design/0004-scheduling.md.

Also here: one trial: orders the calls of a graph by one policy and one depth-first order.
"""

import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice

from caspar.ir.graph import Call, Graph
from caspar.ir.ops import OP_INFO, Op
from caspar.passes.scheduling.contributions import Move, ProductState, SumState
from caspar.passes.scheduling.dependencies import Dependencies, find_dependencies
from caspar.passes.scheduling.plan_accumulators import plan_accumulators
from caspar.passes.scheduling.priority import DepthFirstQueue, OpeningQueue, Policy, ReleaseQueue
from caspar.passes.scheduling.steps import Schedule, Step


class Trial:
    """One run over one graph; the queue decides which opening step comes next.

    `peak` is the greatest number of values, truth values apart, that were live at once.
    """

    def __init__(self, dependencies: Dependencies, queue: OpeningQueue) -> None:
        self.steps: list[Step] = []
        self.peak = 0
        self._num_live = 0
        self._dependencies = dependencies
        self._calls = dependencies.graph.calls
        self._fused_into = dependencies.accumulators.fused_into
        self._plain_steps = dependencies.plain_steps
        self._states: list[SumState | ProductState | None] = [None] * len(self._calls)
        self._open_readers = [readers.copy() for readers in dependencies.readers]
        self._num_reads = list(dependencies.num_reads)
        self._sole_reader = list(dependencies.sole_reader)
        self._num_missing = list(dependencies.num_missing)  # -1 for a call that was made
        self._next_value = dependencies.graph.num_values
        self._pending: deque[int] = deque()
        self._queue = queue

    def run(self, limit: float) -> bool:
        """Make every step; False if the peak reaches the limit, where the trial ends."""
        for number, call in enumerate(self._calls):
            if call.op is Op.CONST:
                self._deliver(call.outputs[0])
            elif self._plain_steps[number] is not None and self._num_missing[number] == 0:
                self._pending.append(number)
        pending, queue = self._pending, self._queue
        while self.peak < limit:
            if pending:
                self._advance(pending.popleft())
                continue
            opening = queue.pop()
            if opening is None:
                return True
            self._open(opening)
        return False

    # -- progress of one call --------------------------------------------------------------------

    def _advance(self, call: int) -> None:
        state = self._states[call]
        if state is None:
            # or an accumulator to which nothing is available yet
            if self._plain_steps[call] is not None:
                self._advance_plain(call)
            return
        while state.num_left > state.num_final:
            move = state.next_move(self._sole_reader)
            if move is None:
                return
            if not state.is_started and not self._frees(move):
                self._queue.push(call)
                return
            self._make_move(call, state, move)

    def _advance_plain(self, call: int) -> None:
        if self._num_missing[call] != 0:
            return
        num_freed = 0
        for value in self._dependencies.distinct_operands[call]:
            num_freed += self._sole_reader[value] == call
        if num_freed >= self._dependencies.num_made[call]:
            self._make_plain(call)
        else:
            self._queue.push(call)

    def _open(self, call: int) -> None:
        state = self._states[call]
        if state is None:
            self._make_plain(call)
            return
        move = state.next_move(self._sole_reader)
        assert move is not None, "an accumulator in the queue has a first move"
        self._make_move(call, state, move)
        self._pending.append(call)

    def _frees(self, move: Move) -> bool:
        reads = move.reads
        if move.product is not None:
            reads = (*reads, *move.product.final_reads())
        num_freed = 0
        for value in reads:
            num_freed += reads.count(value) == self._num_reads[value]
        return num_freed > 0

    # -- steps -----------------------------------------------------------------------------------

    def _make_plain(self, call: int) -> None:
        dependencies = self._dependencies
        step = self._plain_steps[call]
        assert step is not None
        self._queue.discard(call)
        self._num_missing[call] = -1
        self.steps.append(step)
        for value in dependencies.distinct_operands[call]:
            self._consume(value, call, self._open_readers[value][call])
        for value in step.outputs:
            self._num_live += dependencies.pressure[value]
        self.peak = max(self.peak, self._num_live)
        for value in step.outputs:
            self._deliver(value)
        for store in dependencies.later_stores.get(call, ()):
            self._num_missing[store] -= 1
            self._pending.append(store)

    def _make_move(self, call: int, state: SumState | ProductState, move: Move) -> None:
        is_start, product = not state.is_started, move.product
        node = self._calls[call]
        result = node.outputs[0] if state.gives_result(move) else self._new_value()
        origin = node.origin
        if is_start and product is not None and len(move.reads) == 0:
            # a sum that starts with a product
            origin = self._calls[product.call].origin
        state.made(move, result)
        self.steps.append(Step(move.op, (result,), move.operands, None, origin))
        for value in move.reads:
            self._consume(value, call, 1)
        if product is not None:
            self._num_live -= product.is_started
            for value in product.final_reads():
                self._consume(value, product.call, 1)
        if is_start:
            self._queue.discard(call)
            self._num_live += 1
            self.peak = max(self.peak, self._num_live)
        if state.num_left > state.num_final:
            return
        if state.num_final != 2:
            self._deliver(result)
        elif isinstance(state, ProductState) and state.is_ready():
            self._offer_product(state)

    def _new_value(self) -> int:
        self._next_value += 1
        return self._next_value - 1

    # -- values ----------------------------------------------------------------------------------

    def _deliver(self, value: int) -> None:
        """A value is in its register: tell the calls that read it."""
        readers = self._dependencies.readers[value]
        for reader, num_reads in readers.items():
            if self._plain_steps[reader] is not None:
                self._num_missing[reader] -= 1
                self._pending.append(reader)
                continue
            state = self._state(reader)
            state.offer(value, num_reads)
            if state.num_left > state.num_final:
                self._pending.append(reader)
            elif isinstance(state, ProductState) and state.is_ready():
                self._offer_product(state)
        if self._num_reads[value] > 0:
            self._queue.became_live(value)
        elif not readers:
            self._num_live -= self._dependencies.pressure[value]

    def _state(self, call: int) -> SumState | ProductState:
        state = self._states[call]
        if state is None:
            state = self._states[call] = self._dependencies.new_state(call)
        return state

    def _offer_product(self, product: ProductState) -> None:
        sum_call = self._fused_into[product.call]
        state = self._state(sum_call)
        assert isinstance(state, SumState)
        state.offer_product(product)
        self._pending.append(sum_call)

    def _consume(self, value: int, call: int, num_reads: int) -> None:
        if self._num_reads[value] == 0:
            return  # a literal
        self._num_reads[value] -= num_reads
        readers = self._open_readers[value]
        readers[call] -= num_reads
        if readers[call] > 0:
            return
        del readers[call]
        self._queue.was_read(call, not readers)
        if len(readers) == 0:
            self._num_live -= self._dependencies.pressure[value]
        elif len(readers) == 1:
            (last,) = readers
            self._sole_reader[value] = last
            # the value now dies with this call, which may not raise the pressure any more
            if last in self._fused_into:
                self._pending.append(self._fused_into[last])
            state = self._states[last]
            if state is None or state.num_left > state.num_final:
                self._pending.append(last)
            self._queue.has_one_reader(last)


class OperandOrder(Enum):
    """The rule that decides which operand's subtree comes first."""

    GIVEN = auto()
    DEMANDING_FIRST = auto()
    """The one that needs most registers, by the rule of Sethi and Ullman for trees."""
    SHUFFLED = auto()


@dataclass(frozen=True, slots=True)
class TraversalSpec:
    """A depth-first traversal, with an order of the operands.

    The seed 0 visits stores as they are; another number shuffles the stored arguments, keeping the
    chunks of each argument together and in order.
    """

    seed: int
    operands: OperandOrder


class DepthFirstOrders:
    """The orders of one graph. One that several traversals have in common is found once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._stores: dict[str, list[int]] = {}
        for number, call in enumerate(graph.calls):
            if call.op is Op.STORE and isinstance(call.data, tuple):
                self._stores.setdefault(call.data[0], []).append(number)
        self._sorted: dict[OperandOrder, list[list[int]]] = {}
        self._known: dict[tuple[OperandOrder, tuple[int, ...]], tuple[int, ...]] = {}

    def order(self, traversal: TraversalSpec) -> tuple[int, ...]:
        """Position of each call in a post-order traversal from the stores."""
        generator = random.Random(traversal.seed)
        stores = self._ordered_stores(traversal.seed, generator)
        if traversal.operands is OperandOrder.SHUFFLED:
            weights = [generator.random() for _ in range(self._graph.num_values)]
            return _positions(stores, self._sorted_operands(weights))
        key = (traversal.operands, stores)
        if key not in self._known:
            self._known[key] = _positions(stores, self._operands(traversal.operands))
        return self._known[key]

    def _operands(self, order: OperandOrder) -> list[list[int]]:
        if order not in self._sorted:
            is_given = order is OperandOrder.GIVEN
            weights = None if is_given else [-need for need in _register_needs(self._graph)]
            self._sorted[order] = self._sorted_operands(weights)
        return self._sorted[order]

    def _ordered_stores(self, seed: int, generator: random.Random) -> tuple[int, ...]:
        if seed == 0:
            return tuple(sorted(store for stores in self._stores.values() for store in stores))
        arguments = list(self._stores)
        generator.shuffle(arguments)
        return tuple(store for argument in arguments for store in self._stores[argument])

    def _sorted_operands(self, weights: Sequence[float] | None) -> list[list[int]]:
        producer = self._graph.producer
        if weights is None:
            return [[producer[value] for value in call.operands] for call in self._graph.calls]
        weight = weights.__getitem__
        return [
            [producer[value] for value in sorted(call.operands, key=weight)]
            for call in self._graph.calls
        ]


def _positions(stores: Sequence[int], operands: Sequence[Sequence[int]]) -> tuple[int, ...]:
    position = [-1] * len(operands)
    count = 0
    for store in stores:
        path = [(store, iter(operands[store]))]
        while path:
            call, rest = path[-1]
            for operand in rest:
                if position[operand] != -1:
                    continue
                if operands[operand]:
                    path.append((operand, iter(operands[operand])))
                    break
                position[operand] = count
                count += 1
            else:
                path.pop()
                position[call] = count
                count += 1
    return tuple(position)


def _register_needs(graph: Graph) -> list[int]:
    """Registers each value would need if the graph were a tree."""
    needs = [0] * graph.num_values
    for call in graph.calls:
        need = _register_need(call, needs)
        for value in call.outputs:
            needs[value] = need
    return needs


def _register_need(call: Call, needs: Sequence[int]) -> int:
    if call.op is Op.CONST:
        return 0
    descending = sorted([needs[value] for value in set(call.operands)], reverse=True)
    # operands of a reduction are contributed one by one beside a single accumulator
    most_held = 1 if OP_INFO[call.op].associative else len(descending)
    by_operands = [need + min(held, most_held) for held, need in enumerate(descending)]
    return max([len(call.outputs), *by_operands])


TRIAL_BUDGET = 8000
"""Calls scheduled in all trials of one graph together; one trial is made in any case."""

HIGH_PRESSURE = 120
SPILL_BUDGET = 100_000
"""The budget while the peak is so high that registers may be spilled."""

MAX_TRIALS = 32
LOW_PRESSURE = 16
"""A peak that is not worth improving: addresses and indices take registers too."""


def schedule(graph: Graph) -> Schedule:
    """The order with the least peak pressure among those tried, the first of equals."""
    dependencies = find_dependencies(graph, plan_accumulators(graph))
    orders = DepthFirstOrders(graph)
    best: Trial | None = None
    num_scheduled = 0
    tried: set[tuple[Policy, tuple[int, ...]]] = set()
    for policy, traversal in islice(trials(), MAX_TRIALS):
        order = orders.order(traversal)
        num_scheduled += len(graph.calls)
        if (policy, order) not in tried:
            tried.add((policy, order))
            trial = _trial(dependencies, policy, order)
            if trial.run(math.inf if best is None else best.peak):
                best = trial
        assert best is not None, "nothing cuts the first trial short"
        budget = SPILL_BUDGET if best.peak > HIGH_PRESSURE else TRIAL_BUDGET
        if best.peak <= LOW_PRESSURE or num_scheduled + len(graph.calls) > budget:
            break
    assert best is not None, "there is at least one trial"
    return _schedule_of(graph, best)


def trials() -> Iterator[tuple[Policy, TraversalSpec]]:
    """Yield policies and traversals, most promising first, without end."""
    given = TraversalSpec(0, OperandOrder.GIVEN)
    yield Policy.DEPTH_FIRST, given
    yield Policy.RELEASE, given
    yield Policy.DEPTH_FIRST, TraversalSpec(0, OperandOrder.DEMANDING_FIRST)
    seed = 0
    while True:
        for operands in (OperandOrder.GIVEN, OperandOrder.DEMANDING_FIRST, OperandOrder.SHUFFLED):
            seed += 1
            yield Policy.DEPTH_FIRST, TraversalSpec(seed, operands)


def schedule_once(graph: Graph, policy: Policy, traversal: TraversalSpec) -> Schedule:
    """One order, whatever its peak; the policy decides, the traversal gives the key's K."""
    dependencies = find_dependencies(graph, plan_accumulators(graph))
    trial = _trial(dependencies, policy, DepthFirstOrders(graph).order(traversal))
    trial.run(math.inf)
    return _schedule_of(graph, trial)


def _trial(dependencies: Dependencies, policy: Policy, order: Sequence[int]) -> Trial:
    is_release = policy is Policy.RELEASE
    queue = ReleaseQueue(dependencies, order) if is_release else DepthFirstQueue(order)
    return Trial(dependencies, queue)


def _schedule_of(graph: Graph, trial: Trial) -> Schedule:
    literals = {
        call.outputs[0]: call.data
        for call in graph.calls
        if call.op is Op.CONST and isinstance(call.data, float)
    }
    return Schedule(tuple(trial.steps), literals, graph.dtype)
