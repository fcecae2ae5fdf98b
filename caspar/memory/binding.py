"""What a kernel argument is bound to before a launch."""

from dataclasses import dataclass

from caspar.memory.tiles import Array, TileIndex


@dataclass(frozen=True)
class Binding:
    """Memory for one kernel argument.

    Attributes:
        data: The array: blocked, rows or partials, as the argument's access says.
        length: Objects, rows or partials it holds; the distance between chunks.
        index: (n,) int32 object of each item, for `Read.INDEXED`.
        tiles: Where items add to, for `Write.ADD_SHARED`.
        offset: Partial of tile 0, for `Write.ADD_SUM`: kernels may share an array of partials.
    """

    data: Array
    length: int
    index: Array | None = None
    tiles: TileIndex | None = None
    offset: int = 0
