"""The kernel that derives another one: its reads become sums, its writes become reads.

Input: a traced kernel y = f(x). Output: the traced kernel x' = (df/dx)^T y', of which x and the
cotangents y' are inputs. How an array is read says how its derivative is written: what item `i`
reads from object `index[i]` it adds to there, and so on for each access. The result is a kernel
like any other, so it can be pulled again. Once for each kernel; the derivatives themselves are made
when it is compiled.
"""

from collections.abc import Collection
from dataclasses import replace

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


def pull_name(argument: str) -> str:
    """The output that is the derivative of a loss function by an argument."""
    return part_name(argument, "pull")


def with_plain_rows(traced: TracedKernel) -> TracedKernel:
    """The same kernel, whose arrays are all (n, storage_dim): no matrices, no bare numbers.

    Raises:
        KernelError: It looks values up in tables.
    """
    for one in traced.inputs:
        if one.table is not None:
            raise KernelError(
                f"kernel {traced.name}, argument {one.name}: {one.type_name} is a type of tables; "
                "kernels that look values up in tables are not differentiated"
            )
    return replace(
        traced,
        inputs=tuple(replace(one, matrix_shape=(), is_scalar=False) for one in traced.inputs),
        outputs=tuple(replace(one, matrix_shape=(), is_scalar=False) for one in traced.outputs),
        result_type=tuple,
    )


def pulled_kernel(traced: TracedKernel, wanted: Collection[str]) -> TracedKernel:
    """The kernel of the derivatives.

    Returns:
        A kernel of the same arguments and `cotangent_name` of each output; its outputs are
        `pull_name` of each wanted argument, in the order of the arguments.

    Raises:
        KernelError: An access has no derivative.
    """
    cotangents = tuple(_cotangent(traced, one) for one in traced.outputs)
    pulls = tuple(_pull(traced, one) for one in traced.inputs if one.name in wanted)
    return TracedKernel(
        part_name(traced.name, "pull"),
        traced.location,
        (*traced.inputs, *cotangents),
        pulls,
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
