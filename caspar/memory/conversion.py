"""Moving objects between rows, as users have them, and the blocked layout."""

from dataclasses import dataclass
from enum import Enum

from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec
from caspar.memory.accessors.rows import ReadRows, WriteRows
from caspar.memory.accessors.sequential import ReadSequential, WriteSequential


class Direction(Enum):
    """Direction of a conversion: to the blocked layout, or from it."""

    PACK = "pack"
    UNPACK = "unpack"


@dataclass(frozen=True)
class ConvertSpec:
    """A kernel whose items are objects: row `i` to object `i` of a window, or back.

    Attributes:
        direction: Which of the two is written.
        dim: Scalars of an object.
        dtype: Type of both.
    """

    direction: Direction
    dim: int
    dtype: DType

    @property
    def name(self) -> str:
        """Entry point: equal specs are the same kernel."""
        return f"{self.direction.value}_{self.dim}_{self.dtype.value}"

    @property
    def rows(self) -> ArgSpec:
        """(n, dim) rows, C-contiguous; on CUDA they may begin at any scalar."""
        if self.direction is Direction.PACK:
            return ArgSpec("rows", self.dim, self.dtype, read=ReadRows())
        return ArgSpec("rows", self.dim, self.dtype, write=WriteRows())

    @property
    def blocked(self) -> ArgSpec:
        """The blocked array, or a window of it; on CUDA it begins at 16 bytes."""
        if self.direction is Direction.PACK:
            return ArgSpec("blocked", self.dim, self.dtype, write=WriteSequential(), windowed=True)
        return ArgSpec("blocked", self.dim, self.dtype, read=ReadSequential(), windowed=True)

    @property
    def args(self) -> tuple[ArgSpec, ArgSpec]:
        """The arguments in the order of the signature."""
        return self.rows, self.blocked
