"""How long kernels take to compile, foretold from their graphs: what is too large is refused.

Code is unrolled: every operation, every scalar that is read and every scalar that is written is a
line or more, and Numba and NVRTC take time for each. Cost tier: once for a kernel that no cache has.
"""

from collections.abc import Iterable

from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.memory.kernel import KernelSpec

READ_SIZE = 4
WRITE_SIZE = 5
"""Operations that take as long to compile as one scalar that is read or written."""

MAX_SIZE = 90_000
"""Operations of all kernels that a solver compiles at once: see design record 0018."""

_FREE_OPS = frozenset({Op.CONST, Op.NEG})


def kernel_size(spec: KernelSpec) -> int:
    """Operations of a kernel; the multiply-adds of a sum of products count once each."""
    return sum(_call_sizes(spec.graph))


def total_size(specs: Iterable[KernelSpec]) -> int:
    """The same of several."""
    return sum(map(kernel_size, specs))


def _call_sizes(graph: Graph) -> Iterable[int]:
    for call in graph.calls:
        if call.op is Op.READ:
            yield READ_SIZE * len(call.outputs)
        elif call.op is Op.STORE:
            yield WRITE_SIZE * len(call.operands)
        elif call.op is Op.SUM:
            products = sum(graph.call_of(value).op is Op.PROD for value in call.operands)
            yield max(1, len(call.operands) - 1 - products)
        elif call.op not in _FREE_OPS:
            yield max(1, len(call.operands) - 1)
