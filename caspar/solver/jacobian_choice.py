"""Whether a product derives Jacobians again or reads them from memory, where nobody chose.

Input: traced factors and a device. Output: yes or no. Once for each solver.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from caspar.driver import TARGETS
from caspar.frontend.factor_builder import FactorBuilder, FactorForm, SharedSums, computed_jacobian
from caspar.frontend.precision import Types
from caspar.frontend.trace import TracedFactor
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.memory.patterns import WriteSequential
from caspar.passes.cost import OpCosts
from caspar.passes.pipeline import GRAPH_STAGES
from caspar.runtime.backend import Backend

_FREE = frozenset({Op.CONST, Op.READ, Op.STORE, Op.NEG})

_FUNCTIONS = frozenset(
    {
        *(Op.EXP, Op.LOG, Op.TAN, Op.ASIN, Op.ACOS, Op.ATAN, Op.ATAN2, Op.SINH, Op.COSH, Op.TANH),
        *(Op.ASINH, Op.ACOSH, Op.ATANH, Op.ERF, Op.ERFC),
    }
)
"""Without a price of their own: no pass chooses between them and others."""


@dataclass(frozen=True)
class JacobianPrice:
    """What an instance's Jacobian takes.

    Attributes:
        multiplications: To derive it, by the prices of `passes.cost`, which count errors besides;
            a product and a sum are two, though the device may have one instruction for both.
        num_bytes: Of its entries that are not always zero, equal ones as well.
    """

    multiplications: float
    num_bytes: int


def recomputing_pays(factors: Sequence[TracedFactor], types: Types, backend: Backend) -> bool:
    """Whether arithmetic takes no longer than moving the bytes would, both at the device's peak.

    All factors count alike: how many instances each will have is not known yet.

    Products of 5.0 M observations on an H200 (7.0 multiplications a byte, Jacobians of 96 bytes),
    us an iteration by price: 155: 120, 239: 134, 284: 155, 407: 162, 654: 198, 1144: 300; stored
    159. Around PCG recomputing takes 70 to 250 us less. So at the rule's edge, 654, storing is 2 %
    quicker where a step has eight PCG iterations, 5 % where it has twelve; at 407 recomputing is
    by 6 and 5 %. Record 0012 has all figures.
    """
    prices = [jacobian_price(factor, types) for factor in factors]
    multiplications = sum(price.multiplications for price in prices)
    num_bytes = sum(price.num_bytes for price in prices)
    return multiplications <= backend.machine_balance(types.storage) * num_bytes


def jacobian_price(factor: TracedFactor, types: Types) -> JacobianPrice:
    """The price of a factor's Jacobian by all its nodes, after the passes for CUDA."""
    form = FactorForm(SharedSums.ATOMIC)
    kernel = FactorBuilder(factor, "price", form, types.storage, types)
    blocks = computed_jacobian(kernel)
    entries = [
        entry
        for block in blocks.values()
        for row in block
        for entry in row
        if kernel.graph.literal(entry.value) != 0.0
    ]
    kernel.write("jacobian", entries, types.storage, WriteSequential())
    graph, costs = kernel.build().graph, TARGETS["cuda"].costs[types.storage]
    return JacobianPrice(_optimized_price(graph, costs), len(entries) * types.storage.itemsize)


def _optimized_price(graph: Graph, costs: OpCosts) -> float:
    for _, stage in GRAPH_STAGES:
        graph = stage(graph, costs)
    return sum(_price(call, costs) for call in graph.calls)


def _price(call: Call, costs: OpCosts) -> float:
    if call.op in _FREE:
        return 0.0
    if call.op in (Op.SUM, Op.PROD):
        return len(call.operands) - 1.0
    if call.op in _FUNCTIONS:
        return costs.price(Op.SIN)
    return costs.price(call.op) if costs.has(call.op) else 1.0
