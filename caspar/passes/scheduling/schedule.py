"""Orders a graph's calls and contributions so that few values are live at once.

Input: a graph. Output: a `Schedule`. Greedy (paper: Symbolic Reordering), in two tiers:

* A step that frees at least as many values as it makes never raises the pressure, now or later,
  so it is made at once: contributions to started accumulators, stores, calls on dying operands.
* When no such step is left, one *opening* step has to raise the pressure: a read, or a call or an
  accumulator's start whose operands live on. The one with the best key is made, see `priority`.

So a key is computed for opening steps only, which is what makes scheduling fast; the cost is
n log n. Because it is fast, several orders are tried and the one with the least peak is kept.

A trial can only be kept if its peak is lower than the lowest before it. So a trial ends at the step
that reaches that peak, and one whose depth-first order was tried before is left out. Both count as
whole trials for the budget: the schedule is the one that whole trials would have found.

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

import math
from collections.abc import Iterator, Sequence
from itertools import islice

from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.passes.scheduling.dependencies import Dependencies, find_dependencies
from caspar.passes.scheduling.orders import DepthFirstOrders, OperandOrder, TraversalSpec
from caspar.passes.scheduling.plan_accumulators import plan_accumulators
from caspar.passes.scheduling.priority import DepthFirstQueue, Policy, ReleaseQueue
from caspar.passes.scheduling.steps import Schedule
from caspar.passes.scheduling.trial import Trial

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


def schedule_once(graph: Graph, policy: Policy, traversal: TraversalSpec) -> Schedule:
    """One order, whatever its peak.

    Args:
        graph: What to order.
        policy: What decides between opening steps.
        traversal: Gives the key's K.
    """
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
