"""What code generation hands to a runtime: text, and what to pass for each parameter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from caspar.memory.access import ArgSpec, Read, Write


class ParamKind(Enum):
    """What a parameter of a generated kernel holds."""

    COUNT = "count"
    """Number of items."""
    DATA = "data"
    """Address of the argument's array."""
    LENGTH = "length"
    """Objects (or partials) in that array."""
    OFFSET = "offset"
    """Partial of tile 0."""
    INDEX = "index"
    """Address of the object of each item."""
    SLOT = "slot"
    POSITION = "position"
    TILE_START = "tile_start"
    SEGMENT_END = "segment_end"
    OBJECT_START = "object_start"
    OBJECT_PARTIALS = "object_partials"
    """Addresses of the arrays of `memory.tiles.TileIndex`."""


ADDRESS_KINDS = frozenset(ParamKind) - {ParamKind.COUNT, ParamKind.LENGTH, ParamKind.OFFSET}
"""Parameters that are addresses; the rest are 32-bit integers."""


@dataclass(frozen=True)
class Param:
    """One parameter: `kind` of argument `arg` (empty for COUNT)."""

    kind: ParamKind
    arg: str = ""


@dataclass(frozen=True)
class KernelSource:
    """A generated kernel.

    Attributes:
        name: Name of the entry point.
        text: Complete source.
        params: What to pass, in order.
        block_size: CUDA: threads of a block. CPU: items of a tile.
        threads_per_item: CUDA: threads that work on one item.
        num_layers: CUDA: blocks in y; each handles one chunk of an object.
        num_registers: Peak register pressure predicted by the scheduler.
    """

    name: str
    text: str
    params: tuple[Param, ...]
    block_size: int
    threads_per_item: int = 1
    num_layers: int = 1
    num_registers: int = 0


ExtraParams = Mapping[Read | Write, tuple[ParamKind, ...]]
"""What a language needs for an access besides the array and its length."""


def kernel_params(args: Sequence[ArgSpec], extra: ExtraParams) -> tuple[Param, ...]:
    """The parameters of a kernel: the count, then what each argument's access needs."""
    params = [Param(ParamKind.COUNT)]
    for arg in args:
        params += [Param(ParamKind.DATA, arg.name), Param(ParamKind.LENGTH, arg.name)]
        for access in (arg.read, arg.write):
            kinds = () if access is None else extra.get(access, ())
            params += [Param(kind, arg.name) for kind in kinds]
    return tuple(params)


def reduce_params() -> tuple[Param, ...]:
    """The parameters of a kernel that sums `partials` into `output`."""
    return (
        Param(ParamKind.COUNT),
        Param(ParamKind.DATA, "partials"),
        Param(ParamKind.LENGTH, "partials"),
        Param(ParamKind.OBJECT_START, "partials"),
        Param(ParamKind.OBJECT_PARTIALS, "partials"),
        Param(ParamKind.DATA, "output"),
        Param(ParamKind.LENGTH, "output"),
    )
