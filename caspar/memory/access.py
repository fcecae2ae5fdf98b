"""How a kernel's arguments are read and written.

Thread `i` of a kernel handles item `i` (a factor, a node); a *tile* is the run of consecutive
items one block handles together.
"""

from dataclasses import dataclass
from enum import Enum

from caspar.ir.dtype import DType
from caspar.memory.layout import PARTIAL_CHUNK, chunk_widths, partial_chunk_widths


class Read(Enum):
    """Where the item's operand comes from."""

    SEQUENTIAL = "sequential"
    """Object `i` of a blocked array."""
    INDEXED = "indexed"
    """Object `index[i]` of a blocked array."""
    UNIQUE = "unique"
    """Object 0: the same for every item."""
    ROWS = "rows"
    """Row `i` of a C-contiguous (n, dim) array."""
    SUM = "sum"
    """The sum of all scalars of an array of partial sums; for kernels of one item."""


class Write(Enum):
    """Where the item's result goes."""

    SEQUENTIAL = "sequential"
    """Object `i` of a blocked array."""
    ROWS = "rows"
    """Row `i` of a C-contiguous (n, dim) array."""
    UNIQUE = "unique"
    """Object 0; for kernels of one item."""
    ADD_SHARED = "add_shared"
    """Summed over the items of a tile that share an index: one partial sum for each distinct
    index of each tile, in a blocked array of partials (see `memory.tiles`)."""
    ADD_SUM = "add_sum"
    """Summed over the items of a tile: one partial sum for each tile, in a blocked array."""


@dataclass(frozen=True)
class ArgSpec:
    """One argument of a kernel.

    Attributes:
        name: Unique in the kernel; a C and Python identifier.
        dim: Scalars of one object.
        dtype: Type in memory; converted from and to the kernel's computing type. Partial sums
            are accumulated in it.
        read: How it is read, or None.
        write: How it is written, or None. An argument with both is updated in place.
    """

    name: str
    dim: int
    dtype: DType
    read: Read | None = None
    write: Write | None = None

    @property
    def holds_partials(self) -> bool:
        """Whether its array holds partial sums rather than objects."""
        return self.read is Read.SUM or self.write in (Write.ADD_SHARED, Write.ADD_SUM)

    @property
    def chunk_length(self) -> int:
        """Scalars of a full chunk."""
        return PARTIAL_CHUNK if self.holds_partials else self.dtype.chunk_length

    @property
    def chunk_widths(self) -> tuple[int, ...]:
        """Scalars of each chunk that reads and stores of this argument name."""
        if self.holds_partials:
            return partial_chunk_widths(self.dim)
        return chunk_widths(self.dim, self.dtype)
