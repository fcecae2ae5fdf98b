"""The expression graph of a traced kernel function. Once for each kernel, type and way to write."""

from collections.abc import Mapping

from caspar.frontend.kernels.trace import TracedKernel
from caspar.frontend.names import kernel_name
from caspar.frontend.symbolic.epsilon import SYMBOL, value
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar
from caspar.memory.access import WriteAccessor
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_builder import KernelBuilder


def kernel_spec(
    traced: TracedKernel, dtype: DType, writes: Mapping[str, WriteAccessor]
) -> KernelSpec:
    """The kernel of a traced function.

    Args:
        traced: The function.
        dtype: Type it computes in and its arrays have.
        writes: How the kernel itself writes each output, by the output's name: what
            `WriteAccessor.in_kernel` gave.

    Raises:
        UnsupportedFunctionError: Names the function, the kernel and the line.
    """
    kernel = KernelBuilder(kernel_name(traced.name, "kernel"), dtype)
    symbols = {str(SYMBOL): kernel.graph.const(value(dtype))}
    for argument in traced.inputs:
        for part in argument.parts:
            dim = argument.storage_dim
            scalars = kernel.read(part.name, dim, dtype, part.access, windowed=True)
            for symbol, scalar in zip(part.symbols, scalars, strict=True):
                symbols[str(symbol)] = scalar.value
    where = f"kernel {traced.name} ({traced.location})"
    lowering = Lowering(kernel.graph, symbols, where, traced.lines)
    for output in traced.outputs:
        kernel.graph.origin = f"{traced.name}: {output.name}"
        rows = [Scalar(kernel.graph, lowering.lower(row)) for row in output.rows]
        access = writes[output.name]
        stored = output.access.stored_dtype(dtype)
        windowed = not access.holds_partials
        kernel.write(output.kernel_argument, rows, stored, access, windowed=windowed)
    return kernel.build()
