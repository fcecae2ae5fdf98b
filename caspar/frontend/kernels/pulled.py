"""The kernel that derives another one: its reads become sums, its writes become reads.

Input: a traced kernel y = f(x). Output: the traced kernel x' = (df/dx)^T y', of which x and the
cotangents y' are inputs. How an array is read says how its derivative is written: what item `i`
reads from object `index[i]` it adds to there, and so on for each access. The result is a kernel
like any other, so it can be pulled again. Once for each kernel; the derivatives themselves are made
when it is compiled.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from caspar.errors import KernelError
from caspar.frontend.kernels.trace import (
    KernelInput,
    KernelOutput,
    KernelPart,
    TracedKernel,
    kernel_argument,
)
from caspar.frontend.names import internal_name, part_name
from caspar.memory.access import Accessor, ReadAccessor, WriteAccessor
from caspar.memory.patterns import (
    AddIndexed,
    AddPair,
    AddSequential,
    AddSharedSum,
    AddStrided,
    AddSum,
    AddUnique,
    ReadIndexed,
    ReadPair,
    ReadSequential,
    ReadShared,
    ReadStrided,
    ReadUnique,
    WriteIndexed,
    WritePair,
    WriteSequential,
    WriteStrided,
    WriteSum,
)

_WRITES: dict[type[Accessor], type[WriteAccessor]] = {
    ReadSequential: WriteSequential,
    ReadUnique: WriteSum,
    ReadIndexed: AddSharedSum,
    ReadShared: AddSharedSum,
    ReadPair: WritePair,
    ReadStrided: AddStrided,
}
"""The access that writes the derivative by the values that an access reads."""

_READS: dict[type[Accessor], type[ReadAccessor]] = {
    WriteSequential: ReadSequential,
    AddSequential: ReadSequential,
    WriteSum: ReadUnique,
    AddSum: ReadUnique,
    AddUnique: ReadUnique,
    WriteIndexed: ReadIndexed,
    AddIndexed: ReadIndexed,
    AddSharedSum: ReadShared,
    WritePair: ReadPair,
    AddPair: ReadPair,
    WriteStrided: ReadStrided,
    AddStrided: ReadStrided,
}
"""The access that reads the cotangent of the values that an access writes."""


def cotangent_name(output: str) -> str:
    """The argument that is the derivative of a loss function by an output."""
    return part_name(output, "cotangent")


def places_name(argument: str) -> str:
    """The output that says which numbers of tables each item loads."""
    return part_name(argument, "places")


def pull_name(argument: str) -> str:
    """The output that is the derivative of a loss function by an argument."""
    return part_name(argument, "pull")


def with_plain_rows(traced: TracedKernel) -> TracedKernel:
    """The same kernel, whose arrays are all (n, storage_dim), but for tables."""
    return replace(
        traced,
        inputs=tuple(replace(one, matrix_shape=(), is_scalar=False) for one in traced.inputs),
        outputs=tuple(replace(one, matrix_shape=(), is_scalar=False) for one in traced.outputs),
        result_type=tuple,
    )


def pulled_kernel(
    traced: TracedKernel,
    wanted: Collection[str],
    num_loads: Mapping[str, int] = MappingProxyType({}),
) -> TracedKernel:
    """The kernel of the derivatives, of the same arguments and `cotangent_name` of each output.

    Its outputs are `pull_name` of each wanted argument, in the order of the arguments. Of tables it
    is the derivative by each number that an item loads, and `places_name` follows, where that is:
    a place along each axis, see `GATHER`. `num_loads` has their numbers; tables of which nothing is
    loaded have no output. Raises a `KernelError` if an access has no derivative.
    """
    cotangents = tuple(_cotangent(traced, one) for one in traced.outputs)
    pulls: list[KernelOutput] = []
    for one in traced.inputs:
        if one.name in wanted:
            pulls += [_pull(traced, one)] if one.table is None else _table_pull(one, num_loads)
    return TracedKernel(
        part_name(traced.name, "pull"),
        traced.location,
        (*traced.inputs, *cotangents),
        tuple(pulls),
        tuple,
        traced.lines,
        pulled_from=traced,
    )


def _pull(traced: TracedKernel, one: KernelInput) -> KernelOutput:
    access = _WRITES.get(type(one.access))
    if access is None:
        raise KernelError(_refusal(traced, f"argument {one.name}", one.access, _WRITES))
    name = pull_name(one.name)
    return KernelOutput(name, access(), one.type_name, one.storage_dim, (), False, ())


def _table_pull(one: KernelInput, num_loads: Mapping[str, int]) -> list[KernelOutput]:
    count = num_loads[one.name]
    assert one.table is not None
    dims = {pull_name(one.name): count, places_name(one.name): count * one.table.dims}
    return [
        KernelOutput(name, WriteSequential(), one.type_name, dim, (), False, ())
        for name, dim in dims.items()
        if count > 0
    ]


def _cotangent(traced: TracedKernel, one: KernelOutput) -> KernelInput:
    read = _READS.get(type(one.access))
    if read is None:
        raise KernelError(_refusal(traced, f"output {one.name}", one.access, _READS))
    access, name = read(), cotangent_name(one.name)
    parts: tuple[KernelPart, ...] = (KernelPart(kernel_argument(name), access, ()),)
    if access.is_pair:
        parts = tuple(
            KernelPart(part_name(internal_name(name), half), access.half(successor=number == 1), ())
            for number, half in enumerate(("first", "second"))
        )
    return KernelInput(name, access, one.type_name, one.storage_dim, (), (), False, None, parts)


def _refusal(
    traced: TracedKernel, what: str, access: Accessor, known: Collection[type[Accessor]]
) -> str:
    names = ", ".join(one.__name__ for one in known)
    return (
        f"kernel {traced.name}, {what}: {access.name} has no derivative; allowed in kernels that "
        f"are differentiated are {names}"
    )
