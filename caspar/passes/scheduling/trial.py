"""One trial: orders the calls of a graph by one policy and one depth-first order.

Input: what all trials of a graph share, and a queue that decides between opening steps. Output:
steps and their peak pressure. Cost tier: up to `MAX_TRIALS` times for each graph, n log n.

The pressure is counted while steps are made, so that a trial ends as soon as it reaches a limit,
which is the peak of the best trial before it. Only two kinds of steps raise the pressure: those of
plain calls, and those that start an accumulator.
"""

from collections import deque

from caspar.ir.ops import Op
from caspar.passes.scheduling.contributions import Move, ProductState, SumState
from caspar.passes.scheduling.dependencies import Dependencies
from caspar.passes.scheduling.priority import OpeningQueue
from caspar.passes.scheduling.steps import Step


class Trial:
    """One run over one graph.

    Args:
        dependencies: What is scheduled.
        queue: Decides which opening step comes next.

    Attributes:
        steps: Steps made so far.
        peak: Greatest number of values, truth values apart, that were live at once.
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
        """Make every step of a call that does not raise the pressure."""
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
        """Make the next step of a call although it raises the pressure."""
        state = self._states[call]
        if state is None:
            self._make_plain(call)
            return
        move = state.next_move(self._sole_reader)
        assert move is not None, "an accumulator in the queue has a first move"
        self._make_move(call, state, move)
        self._pending.append(call)

    def _frees(self, move: Move) -> bool:
        """Whether a move is the last to read some value."""
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
        """The state of an accumulator, which is made when it is first needed."""
        state = self._states[call]
        if state is None:
            state = self._states[call] = self._dependencies.new_state(call)
        return state

    def _offer_product(self, product: ProductState) -> None:
        """A fused product is ready: tell the sum."""
        sum_call = self._fused_into[product.call]
        state = self._state(sum_call)
        assert isinstance(state, SumState)
        state.offer_product(product)
        self._pending.append(sum_call)

    def _consume(self, value: int, call: int, num_reads: int) -> None:
        """A call has read a value."""
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
