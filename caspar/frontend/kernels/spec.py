"""The expression graph of a traced kernel function. Once for each kernel, type and way to write."""

from collections.abc import Mapping

from caspar.frontend.kernels.pulled import cotangent_name, pull_name
from caspar.frontend.kernels.trace import KernelInput, TracedKernel
from caspar.frontend.names import kernel_name
from caspar.frontend.symbolic.derive import gradient
from caspar.frontend.symbolic.epsilon import SYMBOL, value
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar, dot, total
from caspar.memory.access import WriteAccessor
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_builder import KernelBuilder

Read = Mapping[str, list[Scalar]]
"""Values that a kernel has read, by the names of its inputs' parts."""


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
    read = {
        part.name: kernel.read(part.name, one.storage_dim, dtype, part.access, windowed=True)
        for one in traced.inputs
        for part in one.parts
    }
    values = _values(kernel, traced, read)
    for output in traced.outputs:
        access = writes[output.name]
        stored = output.access.stored_dtype(dtype)
        windowed = not access.holds_partials
        own = values[output.name]
        kernel.write(output.kernel_argument, own, stored, access, windowed=windowed)
    return kernel.build()


def _values(kernel: KernelBuilder, traced: TracedKernel, read: Read) -> dict[str, list[Scalar]]:
    """The scalars of each output, by name; of a pair those of both halves."""
    if traced.pulled_from is not None:
        return _pulled(kernel, traced, traced.pulled_from, read)
    symbols = {str(SYMBOL): kernel.graph.const(value(kernel.graph.dtype))}
    for argument in traced.inputs:
        for part in argument.parts:
            for symbol, scalar in zip(part.symbols, read[part.name], strict=True):
                symbols[str(symbol)] = scalar.value
    where = f"kernel {traced.name} ({traced.location})"
    lowering = Lowering(kernel.graph, symbols, where, traced.lines)
    found = {}
    for output in traced.outputs:
        kernel.graph.origin = f"{traced.name}: {output.name}"
        found[output.name] = [Scalar(kernel.graph, lowering.lower(row)) for row in output.rows]
    return found


def _pulled(
    kernel: KernelBuilder, traced: TracedKernel, base: TracedKernel, read: Read
) -> dict[str, list[Scalar]]:
    """Derivatives of the outputs of another kernel, each times its cotangent, by its inputs."""
    values = _values(kernel, base, read)
    own = {one.name: one for one in traced.inputs}
    products = [
        dot(values[output.name], _scalars(own[cotangent_name(output.name)], read))
        for output in base.outputs
    ]
    wanted = {pull_name(one.name): _scalars(one, read) for one in base.inputs}
    scalars = [scalar for one in traced.outputs for scalar in wanted[one.name]]
    kernel.graph.origin = f"{traced.name}: derivatives"
    slopes = iter(
        gradient(kernel.graph, total(products).value, [scalar.value for scalar in scalars])
    )
    return {
        one.name: [Scalar(kernel.graph, next(slopes)) for _ in wanted[one.name]]
        for one in traced.outputs
    }


def _scalars(argument: KernelInput, read: Read) -> list[Scalar]:
    return [scalar for part in argument.parts for scalar in read[part.name]]
