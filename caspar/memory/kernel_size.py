"""Predict from graphs how long kernels take to compile, and refuse those that are too large.

Code is unrolled: every operation and every scalar that is read or written is a line or more, and
LLVM and NVRTC take time for each. Cost tier: once for a kernel that no cache has.
"""

from collections.abc import Iterator, Sequence

from caspar.errors import SizeError
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.memory.kernel import KernelSpec

READ_SIZE = 4
WRITE_SIZE = 5
"""Operations that take as long to compile as one scalar that is read or written."""

MAX_SIZE = 55_000
"""Operations of all kernels of a solver, or of one `caspar.kernel`: a minute at most, see design
record 0018."""

_FREE_OPS = frozenset({Op.CONST, Op.NEG})


def kernel_size(spec: KernelSpec) -> int:
    """Operations of a kernel; the multiply-adds of a sum of products count once each."""
    return sum(_call_sizes(spec.graph))


def check_sizes(specs: Sequence[KernelSpec]) -> None:
    """Refuse kernels that would take minutes to compile.

    Raises:
        SizeError: Names the largest kernel.
    """
    sizes = {spec.name: kernel_size(spec) for spec in specs}
    total = sum(sizes.values())
    if total > MAX_SIZE:
        largest = max(sizes, key=lambda name: sizes[name])
        together = "" if len(sizes) == 1 else f", and all kernels {total:,}"
        raise SizeError(
            f"kernel {largest} has {sizes[largest]:,} operations{together}; at most {MAX_SIZE:,} "
            "are compiled, because more would take minutes",
            largest,
        )


def _call_sizes(graph: Graph) -> Iterator[int]:
    for call in graph.calls:
        if call.op is Op.GATHER:
            yield READ_SIZE
        elif call.op is Op.READ:
            yield READ_SIZE * len(call.outputs)
        elif call.op is Op.STORE:
            yield WRITE_SIZE * len(call.operands)
        elif call.op is Op.SUM:
            products = sum(graph.call_of(value).op is Op.PROD for value in call.operands)
            yield max(1, len(call.operands) - 1 - products)
        elif call.op not in _FREE_OPS:
            yield max(1, len(call.operands) - 1)
