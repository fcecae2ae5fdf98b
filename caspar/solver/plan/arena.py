"""One allocation for everything a solve writes, and the keys of its arrays.

Regions are reserved first, then the arena is allocated and handed out as typed views. Nothing is
allocated inside an iteration.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from caspar.equations.parts import FactorPart, NodePart, SolverPart
from caspar.frontend.names import part_name
from caspar.ir.dtype import DType
from caspar.memory.array import Array, PickedRows
from caspar.runtime.backend import Backend, view

ALIGNMENT = 256
"""Bytes; CUDA's own alignment of allocations."""

Key = TypeVar("Key")
"""The key by which a region is requested."""

Entry = tuple[Key, int, DType]
"""A region to be reserved: key, scalars, type."""


class Region(NamedTuple):
    """A reserved stretch of the arena."""

    first_byte: int
    num_scalars: int
    dtype: DType

    @property
    def num_bytes(self) -> int:
        """Size in bytes."""
        return self.num_scalars * self.dtype.itemsize


@dataclass
class ArenaPlan(Generic[Key]):
    """Reserves regions one behind the other."""

    regions: dict[Key, Region] = field(default_factory=dict)
    num_bytes: int = 0
    _begun: dict[Key, int] = field(default_factory=dict)

    def reserve(self, key: Key, num_scalars: int, dtype: DType) -> None:
        """Reserve a region of its own."""
        self.regions[key] = Region(self.num_bytes, num_scalars, dtype)
        size = num_scalars * dtype.itemsize
        self.num_bytes += -(-size // ALIGNMENT) * ALIGNMENT

    def reserve_shared(self, groups: Sequence[Sequence[Entry[Key]]]) -> None:
        """Reserve groups that are never in use at the same time: they share their bytes."""
        start = end = self.num_bytes
        for group in groups:
            self.num_bytes = start
            for entry in group:
                self.reserve(*entry)
            end = max(end, self.num_bytes)
        self.num_bytes = end

    def join(self, key: Key, joined: Sequence[Key]) -> None:
        """Name regions that stand together, as 4-byte scalars, in whole 16 bytes."""
        regions = [self.regions[one] for one in joined]
        first_byte = min(region.first_byte for region in regions)
        size = max(region.first_byte + region.num_bytes for region in regions) - first_byte
        self.regions[key] = Region(first_byte, -(-size // 16) * 4, DType.FLOAT32)

    def begin(self, key: Key) -> None:
        """Begin a region that has all that is reserved until its `end`."""
        self._begun[key] = self.num_bytes

    def end(self, key: Key) -> None:
        """End it; it has 4-byte scalars."""
        first_byte = self._begun.pop(key)
        self.regions[key] = Region(first_byte, (self.num_bytes - first_byte) // 4, DType.FLOAT32)

    def allocate(self, backend: Backend) -> "ArenaViews[Key]":
        """The views, by key."""
        return ArenaViews(backend.allocate(self.num_bytes), self.regions)


class ArenaViews(Mapping[Key, Array]):
    """Typed views of the regions of an arena, made when first asked for."""

    def __init__(self, memory: Array, regions: Mapping[Key, Region]) -> None:
        self._memory = memory
        self._regions = regions
        self._made: dict[Key, Array] = {}

    def __getitem__(self, key: Key) -> Array:
        made = self._made.get(key)
        if made is None:
            region = self._regions[key]
            made = self._made[key] = view(
                self._memory, region.first_byte, region.num_scalars, region.dtype.value
            )
        return made

    def __contains__(self, key: object) -> bool:
        return key in self._regions

    def __iter__(self) -> Iterator[Key]:
        return iter(self._regions)

    def __len__(self) -> int:
        return len(self._regions)


class Scratch:
    """Hands out a region piece by piece; where it is used up, arrays of their own."""

    def __init__(self, backend: Backend, region: Array) -> None:
        self._backend = backend
        self._bytes = region.view(np.uint8)
        self._first_byte = 0

    def take(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An array with any numbers in it, C-contiguous."""
        num_scalars = math.prod(shape)
        size = num_scalars * np.dtype(dtype).itemsize
        if self._first_byte + size > self._bytes.shape[0]:
            return self._backend.xp.empty(shape, dtype=dtype)
        taken = view(self._bytes, self._first_byte, num_scalars, dtype)
        self._first_byte += -(-size // ALIGNMENT) * ALIGNMENT
        return taken.reshape(shape)

    def on_device(self, rows: Array | PickedRows) -> Array:
        """Rows of the host are copied, if the backend is another device."""
        if not self._backend.traits.host_arrays_are_copied:
            return rows.on_host() if isinstance(rows, PickedRows) else rows
        if not isinstance(rows, np.ndarray | PickedRows):
            return rows
        copied = self.take(rows.shape, rows.dtype.name)
        self._backend.write(copied, rows)
        return copied

    def in_order(self, rows: Array, order: Array | None) -> Array:
        """(n, dim) rows in another order, given by the row of each; None: as they are."""
        if order is None:
            return rows
        shape = (int(order.shape[0]), int(rows.shape[1]))
        sorted_rows = self.take(shape, rows.dtype.name)
        self._backend.take_rows(sorted_rows, rows, order)
        return sorted_rows


class Span(Enum):
    """Arrays that one launch clears or copies.

    ALL_NODES, ALL_CANDIDATES: of all types, or none is accepted. ALL_SUMS: what a linearisation
    adds to. SUMS, REDUCED_SUMS: gradients and blocks of reduced types, of which the second begin as
    a copy of the first. ALL_INNER: `inner` of eliminated types. SCRATCH: everything but values,
    constants and sums over all items: free while values are brought in.
    """

    __hash__ = object.__hash__  # each member is there once; Enum's own hashes its name in Python

    ALL_NODES = "all nodes"
    ALL_CANDIDATES = "all candidate"
    ALL_SUMS = "all sums"
    SUMS = "sums"
    REDUCED_SUMS = "reduced_sums"
    ALL_INNER = "all inner"
    SCRATCH = "all scratch"

    @property
    def text(self) -> str:
        """Text in tables."""
        return self.value


@dataclass(frozen=True)
class OwnedPart:
    """An array of a node type or of a factor.

    Attributes:
        part: What it is. Of a factor and a `NodePart` it is partial sums of the argument's nodes.
        argument: The factor's argument that has it; empty: it is no argument's.
    """

    part: NodePart | FactorPart
    owner: str
    argument: str = ""

    @property
    def text(self) -> str:
        """Text in tables: `Pose.gradient`, `snavely.residual`, `snavely.point__gradient`."""
        array = self.part.text if self.argument == "" else part_name(self.argument, self.part.text)
        return f"{self.owner}.{array}"


ArrayKey = SolverPart | OwnedPart | Span
"""An array of a plan."""
