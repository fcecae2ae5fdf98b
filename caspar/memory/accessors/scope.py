"""Services that the code generators offer to an access while it writes its lines.

An access writes text: lines of CUDA C, and lines for the processor in the part of Python that
`codegen.cpu.kernel` describes. What it does not know (the computing type, names that are free,
where lines go) it asks of the scope it is given.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from caspar.ir.dtype import DType

SCALAR_TYPE = {
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.INT32: "int",
    DType.UINT16: "u16",
}
"""C names of scalar types."""

VECTOR_TYPE = {
    (DType.FLOAT32, 1): "float",
    (DType.FLOAT32, 2): "float2",
    (DType.FLOAT32, 4): "float4",
    (DType.FLOAT64, 1): "double",
    (DType.FLOAT64, 2): "double2",
    (DType.FLOAT16, 1): "u16",
    (DType.FLOAT16, 2): "u32",
    (DType.FLOAT16, 4): "uint2",
    (DType.FLOAT16, 8): "uint4",
}
"""C type that moves a chunk of some padded width."""

LANES = "xyzw"
"""Members of a vector type."""


class CudaScope(Protocol):
    """A CUDA kernel that is being written.

    In its body `item` is the item of the thread, `active` whether it has one of its own (idle
    threads repeat another item), `tile` the tile's number and `count` the number of items. Where
    threads follow the items' order, a block has `share` items at most from the `own_item` of its
    first thread on. `BLOCK_SIZE` is a macro: the runtime chooses it. A tiled kernel loops over the
    tiles from `first_tile` to `last_tile`, several times where `is_long`, they hold one node:
    `pass` counts. There an item has a place, see `memory.tiling.node_tiles`: where its node's items
    begin in the tile, `tiles_begin`, its own `tiles_position`, and its partner, `tiles_object`.
    """

    @property
    def dtype(self) -> DType:
        """The computing type."""

    @property
    def is_cuda(self) -> bool:
        """Return True: the lines are CUDA C."""

    def emit(self, *lines: str) -> None:
        """Append lines to the body."""

    def emit_by_itself(self, argument: str, line: str) -> None:
        """Append a store to own objects of an argument, which nothing of the item is needed for."""

    def before_tiles(self, *lines: str) -> None:
        """Append lines before the loop over the tiles of the block; it may have one tile."""

    def after_tiles(self, *lines: str) -> None:
        """Append lines after the loop."""

    def temporary(self) -> str:
        """A name that is free."""

    def index(self, name: str, array: str) -> None:
        """Declare `const u32 name`, the item's entry of an array; read before all else."""

    def stream(self, vector: str, load: Callable[[str], str], *, packed: bool) -> str:
        """Declare what an item loads once, and nobody else; its name.

        `load` is by the number of the item. A block that takes several tiles one after the other
        loads what is `packed`, two numbers in a register, at the end of the tile before.
        """

    def shared(self, name: str, declaration: str, *, fenced: bool = False) -> None:
        """Declare `__shared__ declaration`, once for each name, before the body.

        `fenced`: the next tile may use it without a barrier before, as it is a warp's own, or that
        of an exchange, where there is another one before its next use.
        """

    def alternate(self, name: str) -> str:
        """`name[0]` and `name[1]` in turn: arrays that are used in turn need half the barriers."""

    def next_exchange(self) -> int:
        """The number of an exchange that is being written; `pass` is that where it collects."""

    def noted(self, name: str) -> list[int]:
        """Numbers that whoever knows the name keeps while the kernel is written; none at first."""

    def lead(self, argument: str) -> bool:
        """Return whether threads follow this argument's `order`: the first that asks leads them.

        Item `k` of a tile is then where `<argument>_order` says, unless that is null, and blocks
        are spread over `<argument>_regions` stretches of the items. No argument leads where
        another one needs the items as they are.
        """

    def literal(self, number: float, dtype: DType) -> str:
        """A number."""


class CpuScope(Protocol):
    """A function for the processor that is being written; it loops over the items of a tile.

    In its body `item` is the item, `tile` the tile's number, `first` and `last` bound its items.
    A kernel with exchanges has several such loops, in turn over items and over those that lead.
    What a tiled kernel has of each item has the names it has on CUDA.
    """

    @property
    def dtype(self) -> DType:
        """The computing type."""

    @property
    def is_cuda(self) -> bool:
        """Return False: the lines are for the processor."""

    def emit(self, *lines: str) -> None:
        """Append lines to the loop's body."""

    def index(self, name: str, array: str) -> None:
        """Make `name` the item's entry of an array."""

    def once(self, *lines: str) -> None:
        """Append lines at the start of the function."""

    def before(self, *lines: str) -> None:
        """Append lines before the loop over the items of a tile."""

    def after(self, *lines: str) -> None:
        """Append lines after the loop."""

    def temporary(self) -> str:
        """A name that is free."""

    def number(self, value: float, dtype: DType) -> str:
        """A number of a type."""

    def cast(self, expression: str, source: DType, target: DType) -> str:
        """An expression of one type in another."""


def converted(expression: str, source: DType, target: DType) -> str:
    """A C expression of one type in another; one of float16 is its bits."""
    if source is target:
        return expression
    if source is DType.FLOAT16:
        return converted(f"float_of_half({expression})", DType.FLOAT32, target)
    if target is DType.FLOAT16:
        return f"half_of_float({converted(expression, source, DType.FLOAT32)})"
    return f"{SCALAR_TYPE[target]}({expression})"


def converted_all(values: Sequence[str], source: DType, target: DType) -> list[str]:
    """C expressions of one type in another."""
    return [converted(value, source, target) for value in values]


def cuda_array(
    scope: CudaScope, dtype: DType, values: Sequence[str], *, const: bool = False
) -> str:
    """Declare an array with a value in each place; its name."""
    name, kind = scope.temporary(), "const " if const else ""
    scope.emit(f"{kind}{SCALAR_TYPE[dtype]} {name}[{len(values)}] = {{{', '.join(values)}}};")
    return name
