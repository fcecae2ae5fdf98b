"""Orders a graph's calls and contributions so that few values are live at once.

Input: a graph. Output: a `Schedule`. Greedy (paper: Symbolic Reordering), in two tiers:

* A step that frees at least as many values as it makes never raises the pressure, now or later,
  so it is made at once: contributions to started accumulators, stores, calls on dying operands.
* When no such step is left, one *opening* step has to raise the pressure: a read, or a call or an
  accumulator's start whose operands live on. The one with the best key is made, see `priority`.

So a key is computed for opening steps only, which is what makes scheduling fast; the cost is
n log n. Because it is fast, several orders are tried and the one with the least peak is kept.

Peak pressure found (tests/passes/kernels.py): paper = the paper's key recomputed for every step
that could be made, in an experiment not kept; release = the two tiers with that key; depth = with
K alone; best = of all that were tried.

    ============================= ===== ======= ===== ====
    kernel                        paper release depth best
    ============================= ===== ======= ===== ====
    reprojection_jacobian            40      37    30   30
    reprojection_normal_equations    46      50    38   32
    gram_of_stored_jacobian          22      22    20   20
    cholesky_9                       54      54    54   54
    cholesky_factor_9                34      34    40   34
    matrix_product_6                 76      76    48   48
    ============================= ===== ======= ===== ====
"""

from collections import deque
from collections.abc import Iterator

from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.passes.scheduling.contributions import Move, ProductState, SumState
from caspar.passes.scheduling.orders import OperandOrder, TraversalSpec, depth_first_order
from caspar.passes.scheduling.plan_accumulators import Accumulators, Role, plan_accumulators
from caspar.passes.scheduling.priority import OpeningQueue, Policy
from caspar.passes.scheduling.steps import Schedule, Step, peak_pressure

TRIAL_BUDGET = 8000
"""Calls scheduled in all trials of one graph together; one trial is made in any case."""

HIGH_PRESSURE = 120
SPILL_BUDGET = 100_000
"""The budget while the peak is so high that registers may be spilled: 0.06 s for 4,000 calls."""

MAX_TRIALS = 32
LOW_PRESSURE = 16
"""A peak that is not worth improving: addresses and indices take registers too."""


def schedule(graph: Graph) -> Schedule:
    """The order with the least peak pressure among those tried, the first of equals."""
    accumulators = plan_accumulators(graph)
    best: Schedule | None = None
    best_peak = num_scheduled = 0
    for _, (policy, traversal) in zip(range(MAX_TRIALS), _trials(), strict=False):
        found = schedule_once(graph, accumulators, policy, traversal)
        num_scheduled += len(graph.calls)
        peak = peak_pressure(found)
        if best is None or peak < best_peak:
            best, best_peak = found, peak
        budget = SPILL_BUDGET if best_peak > HIGH_PRESSURE else TRIAL_BUDGET
        if best_peak <= LOW_PRESSURE or num_scheduled + len(graph.calls) > budget:
            break
    assert best is not None
    return best


def _trials() -> Iterator[tuple[Policy, TraversalSpec]]:
    """What to try, most promising first; endless."""
    given = TraversalSpec(0, OperandOrder.GIVEN)
    yield Policy.DEPTH_FIRST, given
    yield Policy.RELEASE, given
    yield Policy.DEPTH_FIRST, TraversalSpec(0, OperandOrder.DEMANDING_FIRST)
    seed = 0
    while True:
        for operands in (OperandOrder.GIVEN, OperandOrder.DEMANDING_FIRST, OperandOrder.SHUFFLED):
            seed += 1
            yield Policy.DEPTH_FIRST, TraversalSpec(seed, operands)


def schedule_once(
    graph: Graph, accumulators: Accumulators, policy: Policy, traversal: TraversalSpec
) -> Schedule:
    """One order.

    Args:
        graph: What to order.
        accumulators: Its accumulators, from `plan_accumulators`.
        policy: What decides between opening steps.
        traversal: Gives the key's K.
    """
    scheduler = _Scheduler(graph, accumulators, policy, depth_first_order(graph, traversal))
    scheduler.run()
    literals = {
        call.outputs[0]: call.data
        for call in graph.calls
        if call.op is Op.CONST and isinstance(call.data, float)
    }
    return Schedule(tuple(scheduler.steps), literals, graph.dtype)


class _Scheduler:
    """One run over one graph.

    Attributes:
        steps: Steps made so far.
        open_users: For each value, the calls that still have to read it and how often; empty
            for a value that is dead.
        num_missing: For each plain call, what it still waits for; -1 once it was made.
    """

    def __init__(
        self, graph: Graph, accumulators: Accumulators, policy: Policy, order: list[int]
    ) -> None:
        self.steps: list[Step] = []
        self._graph = graph
        self._roles = accumulators.roles
        self._fused_into = accumulators.fused_into
        self._sums: dict[int, SumState] = {}
        self._products: dict[int, ProductState] = {}
        self.open_users: list[dict[int, int]] = [{} for _ in range(graph.num_values)]
        self.num_missing = [0] * len(graph.calls)
        self._is_literal = [False] * graph.num_values
        self._next_value = graph.num_values
        self._pending: deque[int] = deque()
        self._add_states(accumulators)
        self._later_stores = self._order_stores()
        self._queue = OpeningQueue(graph, accumulators, self.open_users, policy, order)

    def _add_states(self, accumulators: Accumulators) -> None:
        for call, sources in enumerate(accumulators.sources):
            role = self._roles[call]
            for value in sources:
                users = self.open_users[value]
                users[call] = users.get(call, 0) + 1
            if role is Role.PLAIN:
                self.num_missing[call] = len(set(sources))
            elif role is Role.SUM:
                self._sums[call] = SumState(call, accumulators.terms[call])
            elif role is Role.PRODUCT:
                fused = call in self._fused_into
                negative = call in accumulators.negative
                self._products[call] = ProductState(call, len(sources), fused, negative)

    def _order_stores(self) -> dict[int, list[int]]:
        """Call -> stores that must come after it: of the chunk it reads, after exchanges all.

        What comes before an exchange may be done twice.
        """
        store_of = {
            call.data: number
            for number, call in enumerate(self._graph.calls)
            if call.op is Op.STORE
        }
        later: dict[int, list[int]] = {}
        for number, call in enumerate(self._graph.calls):
            if call.op is Op.READ and call.data in store_of:
                later[number] = [store_of[call.data]]
            elif call.op is Op.EXCHANGE:
                later[number] = list(store_of.values())
        for stores in later.values():
            for store in stores:
                self.num_missing[store] += 1
        return later

    def run(self) -> None:
        """Make every step."""
        for number, call in enumerate(self._graph.calls):
            if call.op is Op.CONST:
                self._is_literal[call.outputs[0]] = True
                self._deliver(call.outputs[0])
            elif self._roles[number] is Role.PLAIN and self.num_missing[number] == 0:
                self._pending.append(number)
        while True:
            while self._pending:
                self._advance(self._pending.popleft())
            opening = self._queue.pop()
            if opening is None:
                break
            self._open(opening)

    # -- progress of one call --------------------------------------------------------------------

    def _advance(self, call: int) -> None:
        """Make every step of a call that does not raise the pressure."""
        role = self._roles[call]
        if role is Role.PLAIN:
            self._advance_plain(call)
            return
        state: SumState | ProductState
        state = self._sums[call] if role is Role.SUM else self._products[call]
        while not state.is_complete():
            move = state.next_move(self._dies)
            if move is None:
                return
            if move.starts and self._num_freed(move) == 0:
                self._queue.push(call)
                return
            self._make_move(call, state, move)

    def _advance_plain(self, call: int) -> None:
        if self.num_missing[call] != 0:
            return
        node = self._graph.calls[call]
        freed = sum(self._dies(value, call) for value in set(node.operands))
        made = sum(len(self.open_users[value]) > 0 for value in node.outputs)
        if freed >= made:
            self._make_plain(call)
        else:
            self._queue.push(call)

    def _open(self, call: int) -> None:
        """Make the next step of a call although it raises the pressure."""
        role = self._roles[call]
        if role is Role.PLAIN:
            self._make_plain(call)
            return
        state: SumState | ProductState
        state = self._sums[call] if role is Role.SUM else self._products[call]
        move = state.next_move(self._dies)
        assert move is not None, "an accumulator in the queue has a first move"
        self._make_move(call, state, move)
        self._pending.append(call)

    # -- steps -----------------------------------------------------------------------------------

    def _make_plain(self, call: int) -> None:
        self._queue.discard(call)
        self.num_missing[call] = -1
        node = self._graph.calls[call]
        self.steps.append(Step(node.op, node.outputs, node.operands, node.data, node.origin))
        for value in dict.fromkeys(node.operands):
            self._consume(value, call, self.open_users[value].get(call, 0))
        for value in node.outputs:
            self._deliver(value)
        for store in self._later_stores.get(call, ()):
            self.num_missing[store] -= 1
            self._pending.append(store)

    def _make_move(self, call: int, state: SumState | ProductState, move: Move) -> None:
        if move.starts:
            self._queue.discard(call)
        node = self._graph.calls[call]
        result = node.outputs[0] if state.gives_result(move) else self._new_value()
        state.made(move, result)
        origin = node.origin
        if (
            move.op in (Op.MUL, Op.NMUL) and move.product is not None
        ):  # a sum that starts with a product
            origin = self._graph.calls[move.product.call].origin
        self.steps.append(Step(move.op, (result,), move.operands, None, origin))
        for value, reader in move.reads:
            self._consume(value, reader, 1)
        if not state.is_complete():
            return
        if isinstance(state, ProductState) and state.num_final == 2:
            self._offer_if_ready(state)
        else:
            self._deliver(result)

    def _new_value(self) -> int:
        self._next_value += 1
        return self._next_value - 1

    # -- values ----------------------------------------------------------------------------------

    def _dies(self, value: int, call: int) -> bool:
        """Whether a value is in a register and read by nothing but one call."""
        if value >= len(self.open_users):
            return True
        users = self.open_users[value]
        return len(users) == 1 and call in users and not self._is_literal[value]

    def _num_freed(self, move: Move) -> int:
        """Values that a move reads last."""
        freed = 0
        for value in {value for value, _ in move.reads}:
            if self._is_literal[value]:
                continue
            for user, num_reads in self.open_users[value].items():
                if move.reads.count((value, user)) != num_reads:
                    break
            else:
                freed += 1
        return freed

    def _deliver(self, value: int) -> None:
        """A value is in its register: tell the calls that read it."""
        literal = self._is_literal[value]
        for user, num_reads in self.open_users[value].items():
            role = self._roles[user]
            if role is Role.PLAIN:
                self.num_missing[user] -= 1
            elif role is Role.SUM:
                self._sums[user].offer(value)
            else:
                product = self._products[user]
                product.available.extend([value] * num_reads)
                self._offer_if_ready(product)
            self._pending.append(user)
        if not literal:
            self._queue.became_live(value)

    def _offer_if_ready(self, product: ProductState) -> None:
        sum_call = self._fused_into.get(product.call)
        if sum_call is not None and product.is_ready():
            self._sums[sum_call].offer_product(product)
            self._pending.append(sum_call)

    def _consume(self, value: int, call: int, num_reads: int) -> None:
        """A call has read a value."""
        if self._is_literal[value]:
            return
        users = self.open_users[value]
        users[call] -= num_reads
        if users[call] > 0:
            return
        del users[call]
        self._queue.was_read(value, call)
        if len(users) == 1:
            (last,) = users
            # the value now dies with this call, which may not raise the pressure any more
            self._pending.append(self._fused_into.get(last, last))
            self._pending.append(last)
            self._queue.has_one_user(last)
