"""What code generation hands to a runtime: text, and what to pass for each parameter."""

from dataclasses import dataclass
from enum import Enum


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
