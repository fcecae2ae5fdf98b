"""The residual of a factor as a kernel that writes a row for each instance. Once for a factor."""

from collections.abc import Sequence

from caspar.frontend.factors.trace import Argument, ArgumentKind, TracedFactor
from caspar.frontend.kernels.trace import KernelInput, KernelOutput, KernelPart, TracedKernel
from caspar.memory.access import ReadAccessor
from caspar.memory.patterns import (
    ReadIndexed,
    ReadPair,
    ReadSequential,
    ReadShared,
    ReadUnique,
    WriteSequential,
)

RESIDUAL = "residual"
"""The output; with an underscore or more behind it if an argument has this name."""

_ACCESSES: dict[ArgumentKind, ReadAccessor] = {
    ArgumentKind.NODE_SHARED: ReadShared(),
    ArgumentKind.NODE_UNIQUE: ReadUnique(),
    ArgumentKind.NODE_PAIR: ReadPair(),
    ArgumentKind.CONST_SEQUENTIAL: ReadSequential(),
    ArgumentKind.CONST_INDEXED: ReadIndexed(),
    ArgumentKind.CONST_UNIQUE: ReadUnique(),
}


def residual_kernel(factor: TracedFactor) -> TracedKernel:
    """Items are instances; neither weight nor loss count.

    Args:
        factor: The factor.
    """
    by_source: dict[str, list[Argument]] = {}
    for one in factor.arguments:
        by_source.setdefault(one.source, []).append(one)
    name = RESIDUAL
    while name in by_source:
        name += "_"
    rows = tuple(factor.residual)
    output = KernelOutput(name, WriteSequential(), "residual", len(rows), (), False, rows)
    inputs = tuple(_input(source, halves) for source, halves in by_source.items())
    return TracedKernel(factor.name, factor.location, inputs, (output,), None, factor.lines)


def _input(source: str, halves: Sequence[Argument]) -> KernelInput:
    """An argument; a pair has two halves."""
    first = halves[0]
    access = _ACCESSES[first.kind]
    parts = tuple(
        KernelPart(one.value_name, access.half(successor=one.successor), tuple(one.symbols))
        for one in halves
    )
    return KernelInput(
        source,
        access,
        "" if first.node is None else first.node.name,
        first.storage_dim,
        first.unit_ranges,
        first.matrix_shape,
        False,
        first.symbolic,
        parts,
    )
