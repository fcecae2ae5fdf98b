"""Values that a launch passes for a kernel's parameters, and its number of blocks."""

from collections.abc import Mapping, Sequence

from caspar.codegen.source import COUNT, DATA, FIRST, LENGTH, KernelSource, Param
from caspar.memory.access import TILES
from caspar.memory.array import Array
from caspar.memory.binding import Binding, Late, at_present


def parameter_values(
    params: Sequence[Param], bindings: Mapping[str, Binding], count: int | Late
) -> list[int | Array]:
    """Return the value of each parameter: an integer or an array whose address is meant."""
    return [at_present(value) for value in parameter_sources(params, bindings, count)]


def parameter_sources(
    params: Sequence[Param], bindings: Mapping[str, Binding], count: int | Late
) -> list[int | Array | Late]:
    """The same, with late values as they are."""
    values: list[int | Array | Late] = []
    for param in params:
        if param.field == COUNT:
            values.append(count)
            continue
        binding = bindings[param.arg]
        if param.field == DATA:
            values.append(binding.data)
        elif param.field == LENGTH:
            values.append(binding.length)
        elif param.field == FIRST:
            values.append(binding.first)
        else:
            values.append(binding.fields[param.field])
    return values


def bound_blocks(
    source: KernelSource, bindings: Mapping[str, Binding], count: int | Late, block_size: int
) -> int:
    """Blocks (on the CPU calls) of a launch: one for each tile, or group of node tiles."""
    if source.tiled:
        num_groups: int = at_present(bindings[TILES].length)
        return num_groups
    return source.num_blocks(at_present(count), block_size)
