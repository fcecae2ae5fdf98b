"""Interface of access patterns: how a kernel's arguments are read and written.

Thread `i` of a kernel handles item `i` (a factor, a node); a *tile* is the run of consecutive
items one block handles together. A pattern is one class, in `memory.accessors`: it holds what the
host passes, which objects items touch, and its text in CUDA C and for the processor. Nothing
else knows the patterns; a class of your own works like those that are there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from caspar.ir.dtype import DType
from caspar.memory.accessors.scope import CpuScope, CudaScope
from caspar.memory.array import Array, Binding
from caspar.memory.layout import PARTIAL_CHUNK, chunk_widths, partial_chunk_widths
from caspar.memory.tiling.tiles import TileIndex, TileOrder

Options = Mapping[str, Any]
"""Options that are passed for an argument beside its values, by the names an access declares."""


TILES = "tiles"
"""The argument that stands for the node tiles of a tiled kernel. Its length is the number of
groups. As the owner of an index: that of the items' partners, see `memory.tiling.node_tiles`."""


@dataclass(frozen=True)
class Field:
    """A parameter `<argument>_<name>` that an access needs besides the array and its length.

    `dtype` is that of the array whose address is passed; None for an int32 number.
    """

    name: str
    dtype: DType | None = None
    written: bool = False


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
        windowed: Whether its objects may be a window of a larger blocked array; they are then
            counted from the parameter `<name>_first`.
    """

    name: str
    dim: int
    dtype: DType
    read: ReadAccessor | None = None
    write: WriteAccessor | None = None
    windowed: bool = False

    @property
    def accessors(self) -> tuple[Accessor, ...]:
        """The read and write accesses that it has."""
        return tuple(access for access in (self.read, self.write) if access is not None)

    @property
    def is_written(self) -> bool:
        """Return whether its array changes."""
        return self.write is not None

    @property
    def has_array(self) -> bool:
        """Return whether an array is passed for it."""
        return all(access.has_array for access in self.accessors)

    @property
    def holds_partials(self) -> bool:
        """Return whether its array holds partial sums rather than objects."""
        return any(access.holds_partials for access in self.accessors)

    @property
    def in_rows(self) -> bool:
        """Return whether the scalars of an object are contiguous, see `layout.row_scalars`."""
        return any(access.rows for access in self.accessors)

    @property
    def has_own_chunks(self) -> bool:
        """Return whether its chunks have PARTIAL_CHUNK scalars, whatever their type."""
        return any(access.has_own_chunks for access in self.accessors)

    @property
    def chunk_length(self) -> int:
        """Scalars of a full chunk."""
        return PARTIAL_CHUNK if self.has_own_chunks else self.dtype.chunk_length

    @property
    def chunk_widths(self) -> tuple[int, ...]:
        """Scalars of each chunk that reads and stores of this argument name."""
        if self.has_own_chunks:
            return partial_chunk_widths(self.dim)
        return chunk_widths(self.dim, self.dtype)

    def object(self, number: str) -> str:
        """Object `number` of its window, as an expression in both languages."""
        return f"({self.name}_first + {number})" if self.windowed else number


class Accessor(ABC):
    """An access pattern.

    Attributes:
        options: Names of what users pass besides values, such as `index`.
        defaults: Options that may be left out.
        cuda_functions: Device functions its CUDA text calls.
        has_array: Whether it reads or writes an array.
        holds_partials: Whether its array holds partial sums: chunks of 4, not padded.
        rows: Whether all scalars of an object stand together: see `layout.row_scalars`.
        needs_rows: Whether its array is (n, dim) and C-contiguous instead of blocked.
        tile_sizes: Where it depends on which items share a tile: the block sizes it allows, the
            preferred one first.
        is_pair: Whether it touches an object and its successor; see `half`.
        is_exact: Whether `num_items` is the number of items, or the most that there can be.
        needs_unique_index: Whether no two items may name one object.
        touches_own_object: Whether item `i` touches object `i` and no other.
        has_one_object: Whether all items touch object 0, and the array holds no other.
        cooperates: Whether the threads of a block work together on it.
        for_node: Whether one item of each eliminated node does it, which leads the others.
        needs_item_order: Whether thread `k` of a block must have item `k` of its tile.
        index_of: Another argument, whose index it goes by, or TILES: by the partners of a tile's
            items; empty: none.
        loads_first: Whether a block of several tiles loads it before all else.
    """

    options: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[Options] = {}
    cuda_functions: ClassVar[str] = ""
    has_array: ClassVar[bool] = True
    holds_partials: ClassVar[bool] = False
    needs_rows: ClassVar[bool] = False
    tile_sizes: ClassVar[tuple[int, ...]] = ()
    is_pair: ClassVar[bool] = False
    is_exact: ClassVar[bool] = True
    needs_unique_index: ClassVar[bool] = False
    touches_own_object: ClassVar[bool] = False
    has_one_object: ClassVar[bool] = False
    cooperates: ClassVar[bool] = False
    for_node: ClassVar[bool] = False
    needs_item_order: ClassVar[bool] = False
    loads_first: ClassVar[bool] = False
    index_of: str = ""
    rows: bool = False

    @property
    def has_own_chunks(self) -> bool:
        """Return whether chunks have four scalars of any type, like those of partial sums."""
        return self.holds_partials

    @property
    def name(self) -> str:
        """The pattern's name, as users write it."""
        return type(self).__name__

    @property
    def min_block_size(self) -> int:
        """Threads a block must have at least, and be a multiple of."""
        return 1

    @property
    def block_multiple(self) -> int:
        """The same where others want another block size: what it cannot do without."""
        return self.min_block_size

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """Parameters it needs besides the array and its length."""
        return ()

    # -- on the host ---------------------------------------------------------------------------

    def num_items(self, length: int | None, options: Options) -> int | None:
        """Items that an array of `length` objects (None: not given) stands for.

        None where any number will do.
        """
        return None

    @abstractmethod
    def num_objects(self, count: int, options: Options) -> int:
        """Objects the array must have for `count` items."""

    def field_values(self, options: Options, num_objects: int) -> dict[str, Array | int]:
        """The value of every field, for an array of `num_objects` objects."""
        return {}

    # -- lines around the instructions ---------------------------------------------------------

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Write what comes before the instructions."""
        return

    def cuda_after(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Write what comes after the instructions."""
        return

    def cpu_before(self, scope: CpuScope, arg: ArgSpec) -> None:
        """Write what comes before the loop (`scope.before`) or first in it (`scope.emit`)."""
        return

    def cpu_after(self, scope: CpuScope, arg: ArgSpec) -> None:
        """Write what comes after the loop."""
        return


class AnyObjects(Accessor):
    """A pattern whose array may have any number of objects.

    Indices are checked against it, or it is scratch memory of whoever binds it.
    """

    def num_objects(self, count: int, options: Options) -> int:
        """Any number."""
        return 0


class ReadAccessor(Accessor):
    """A pattern that reads."""

    def value_dtype(self, arg: ArgSpec) -> DType:
        """Type of the expressions that the reads return."""
        return arg.dtype

    def table_start(self, arg: ArgSpec) -> str:
        """Return where the item's table begins in the argument, in text for both languages."""
        raise NotImplementedError(f"{self.name} reads no tables")

    def half(self, *, successor: bool) -> ReadAccessor:
        """Return how one object of a pair, or its successor, is read."""
        return self

    @abstractmethod
    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Write the read of a chunk; return an expression for each of its scalars."""

    @abstractmethod
    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Write the read of a chunk; return an expression for each of its scalars."""


class ExchangeAccessor(ReadAccessor):
    """A pattern by which items that share an object pass values to each other, such as sums.

    Its kernels are `tiled`: see `memory.tiling.node_tiles`. What comes before the exchange may be
    done several times, so no store may come before it. If it `collects`, values of the items come
    together, for one of them that leads; else what that one has is passed to the others.
    """

    collects: ClassVar[bool] = True

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Refuse: there is nothing to read before values were given."""
        raise NotImplementedError

    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Refuse: there is nothing to read before values were given."""
        raise NotImplementedError

    @abstractmethod
    def cuda_exchange(self, scope: CudaScope, arg: ArgSpec, values: list[str]) -> list[str]:
        """Write the exchange of all scalars; return an expression for each that comes back."""

    def cpu_collect(self, scope: CpuScope, arg: ArgSpec, values: list[str]) -> None:
        """Write what an item does with its scalars, if they are collected."""
        raise NotImplementedError

    def cpu_exchanged(self, scope: CpuScope, arg: ArgSpec) -> list[str]:
        """An expression for each scalar that was collected."""
        raise NotImplementedError


class Kit(Protocol):
    """Services that a write which needs scratch memory asks of whoever binds it."""

    @property
    def count(self) -> int:
        """Items of the kernel."""

    @property
    def tile_size(self) -> int:
        """Items of a tile."""

    def allocate(self, num_scalars: int, dtype: DType) -> Array:
        """Scratch memory; it lives as long as what is bound."""

    @property
    def num_multiprocessors(self) -> int:
        """Multiprocessors of the device."""

    def order(self, options: Options) -> TileOrder:
        """The order of the prepared index in the options."""

    def tiles(self, options: Options, num_objects: int) -> TileIndex:
        """The tiles of the index in the options, built on the device or taken where prepared."""


class FinishSpec(Protocol):
    """A `KernelSpec` or a `ReduceSpec`."""

    @property
    def name(self) -> str:
        """Equal names are the same kernel."""


@dataclass(frozen=True)
class Finish:
    """A kernel that runs after the one whose write it completes."""

    spec: FinishSpec
    bindings: Mapping[str, Binding]
    count: int


@dataclass(frozen=True)
class BoundWrite:
    """The memory of the kernel's argument, and the kernels that complete it."""

    binding: Binding
    finish: tuple[Finish, ...] = ()


class WriteAccessor(Accessor):
    """A pattern that writes or adds.

    Attributes:
        adds: Whether the objects' old values count.
        writes_all: Whether every object of the array gets a value: a fresh array need not be
            cleared.
    """

    adds: ClassVar[bool] = False
    writes_all: ClassVar[bool] = False

    @property
    def begins_with_zeros(self) -> bool:
        """Return whether a fresh array must be cleared: items add to it, or leave objects out."""
        return self.adds or not self.writes_all

    def in_kernel(self, options: Options, is_atomic: bool) -> WriteAccessor:
        """The access that the kernel itself uses: another one where a second kernel completes it.

        `options`: What was passed besides values. `is_atomic`: Sums over shared objects are taken
        by atomics, in any order.
        """
        return self

    def bind(self, arg: ArgSpec, output: Binding, options: Options, kit: Kit) -> BoundWrite:
        """Bind a write that `in_kernel` gave."""
        return BoundWrite(output.with_fields(self.field_values(options, output.num_objects)))

    def stored_dtype(self, dtype: DType) -> DType:
        """Type of the kernel's argument where the user's array has `dtype`."""
        return dtype

    def store_width(self, width: int) -> int:
        """Values a store of a chunk of `width` scalars takes."""
        return width

    def store_order(self, widths: Sequence[int], values: Sequence[Any]) -> list[Sequence[Any]]:
        """The values of each store, chunk by chunk."""
        groups = []
        start = 0
        for width in widths:
            groups.append(values[start : start + width])
            start += width
        return groups

    @abstractmethod
    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Write the store of a chunk; `values` are expressions of the computing type."""

    @abstractmethod
    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Write the store of a chunk; `values` are expressions of the computing type."""
