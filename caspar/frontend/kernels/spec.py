"""The expression graph of a traced kernel function. Once for each kernel, type and way to write."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from caspar.frontend.kernels.pulled import cotangent_name, places_name, pull_name
from caspar.frontend.kernels.trace import KernelInput, TracedKernel
from caspar.frontend.names import kernel_name
from caspar.frontend.symbolic.derive import gradient
from caspar.frontend.symbolic.epsilon import SYMBOL, value
from caspar.frontend.symbolic.lookups import inside_tables
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.dtype import DType
from caspar.ir.graph import TableEntry
from caspar.ir.scalar import Scalar, dot, total
from caspar.memory.access import WriteAccessor
from caspar.memory.kernel import KernelBuilder, KernelSpec

Read = Mapping[str, list[Scalar]]
"""Values that a kernel has read, by the names of its inputs' parts."""


def kernel_spec(
    traced: TracedKernel, dtype: DType, writes: Mapping[str, WriteAccessor]
) -> KernelSpec:
    """The kernel of a traced function, which computes in `dtype`; its arrays have it, too.

    `writes` says how the kernel itself writes each output: what `WriteAccessor.in_kernel` gave. An
    `UnsupportedFunctionError` names the function, the kernel and the line.
    """
    kernel = KernelBuilder(kernel_name(traced.name, "kernel"), dtype)
    values = _values(kernel, traced, _read(kernel, traced))
    for output in traced.outputs:
        access = writes[output.name]
        stored = output.access.stored_dtype(dtype)
        windowed = not access.holds_partials
        own = values[output.name]
        kernel.write(output.kernel_argument, own, stored, access, windowed=windowed)
    return kernel.build()


def _read(kernel: KernelBuilder, traced: TracedKernel) -> Read:
    """The values of all inputs."""
    return {
        part.name: kernel.read(
            part.name,
            one.storage_dim,
            DType.FLOAT16 if one.is_half else kernel.graph.dtype,
            part.access,
            windowed=True,
        )
        for one in traced.inputs
        for part in one.parts
    }


def _values(kernel: KernelBuilder, traced: TracedKernel, read: Read) -> dict[str, list[Scalar]]:
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
        rows = [Scalar(kernel.graph, lowering.lower(row)) for row in output.rows]
        if any(one.table is not None and one.table.refuses for one in traced.inputs):
            rows = _with_refusals(kernel, lowering, rows, output.rows, traced.is_factor)
        found[output.name] = rows
    return found


def _with_refusals(
    kernel: KernelBuilder,
    lowering: Lowering,
    scalars: Sequence[Scalar],
    rows: Sequence[Any],
    is_factor: bool,
) -> list[Scalar]:
    """The rows of an output, of which some look up outside of tables that refuse that.

    These are NaN; of a factor all are 0, as the instance is left out.
    """
    found = []
    for scalar, row in zip(scalars, rows, strict=True):
        for inside in inside_tables(rows if is_factor else [row]):
            flag = Scalar(kernel.graph, lowering.lower(inside))
            scalar = (0.5 < flag).where(scalar, flag if is_factor else math.nan)
        found.append(scalar)
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
    wanted, found = {}, {}
    for one in base.inputs:
        wanted[pull_name(one.name)] = _scalars(one, read)
        if one.table is not None:
            calls = kernel.graph.gathers(one.parts[0].name)
            wanted[pull_name(one.name)] = [Scalar(kernel.graph, call.outputs[0]) for call in calls]
            found[places_name(one.name)] = [
                Scalar(kernel.graph, place) for call in calls for place in call.operands
            ]
    pulls = [output for output in traced.outputs if output.name not in found]
    scalars = [scalar for pull in pulls for scalar in wanted[pull.name]]
    kernel.graph.origin = f"{traced.name}: derivatives"
    slopes = iter(
        gradient(kernel.graph, total(products).value, [scalar.value for scalar in scalars])
    )
    for pull in pulls:
        found[pull.name] = [Scalar(kernel.graph, next(slopes)) for _ in wanted[pull.name]]
    return found


class TableLoads(NamedTuple):
    """The numbers that an item loads from the tables of an argument.

    Attributes:
        channels: That of each one.
        is_zero_outside: Whether one outside of its table is 0, not the nearest one.
    """

    channels: tuple[int, ...]
    is_zero_outside: bool


def table_loads(traced: TracedKernel) -> dict[str, TableLoads]:
    """Return what an item loads from tables, in the order of derivatives by it."""
    tables = [one for one in traced.inputs if one.table is not None]
    if len(tables) == 0:
        return {}
    kernel = KernelBuilder(kernel_name(traced.name, "kernel"), DType.FLOAT64)
    _values(kernel, traced, _read(kernel, traced))
    found = {}
    for one in tables:
        calls = kernel.graph.gathers(one.parts[0].name)
        entries = [call.data for call in calls if isinstance(call.data, TableEntry)]
        channels = tuple(entry.channel for entry in entries)
        found[one.name] = TableLoads(channels, any(entry.is_zero_outside for entry in entries))
    return found


def _scalars(argument: KernelInput, read: Read) -> list[Scalar]:
    return [scalar for part in argument.parts for scalar in read[part.name]]
