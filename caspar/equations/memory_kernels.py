"""Kernels that clear and copy stretches of the arena, 16 bytes an item."""

from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_builder import KernelBuilder
from caspar.memory.patterns import ReadSequential, WriteSequential

WIDTH = DType.FLOAT32.chunk_length
"""Scalars of an item."""


def memory_kernels() -> list[KernelSpec]:
    """`clear` writes zeros to `target`, `copy` writes `source` there."""
    clear = KernelBuilder("clear", DType.FLOAT32)
    zero = Scalar(clear.graph, clear.graph.const(0.0))
    clear.write("target", [zero] * WIDTH, DType.FLOAT32, WriteSequential())
    copy = KernelBuilder("copy", DType.FLOAT32)
    source = copy.read("source", WIDTH, DType.FLOAT32, ReadSequential())
    copy.write("target", source, DType.FLOAT32, WriteSequential())
    return [clear.build(), copy.build()]
