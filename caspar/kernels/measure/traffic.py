"""Bytes that an item of a kernel moves from and to memory, argument by argument.

What items ask for: padding is counted as it lies in memory, and of an object that several items
read by index each reads its own, whether or not it comes out of a cache. Kernels that complete a
write, and their scratch memory, are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from caspar.frontend.kernels.trace import TracedKernel
from caspar.ir.dtype import DType
from caspar.memory.access import Accessor
from caspar.memory.layout import object_scalars

_ITEMS = 2**16
"""Items for which objects are counted: a multiple of every run that is summed up."""


@dataclass(frozen=True)
class Traffic:
    """Bytes of one argument, for each item.

    Attributes:
        name: The argument.
        read: Of its objects, before they are changed too.
        written: Of its objects.
        index: Of its index.
    """

    name: str
    read: float
    written: float
    index: float

    @property
    def total(self) -> float:
        """All bytes."""
        return self.read + self.written + self.index

    @property
    def cells(self) -> tuple[str, str, str]:
        """Bytes read, written and of the index, for a table."""
        return f"{self.read:g}", f"{self.written:g}", f"{self.index:g}"


@dataclass(frozen=True)
class ObjectCount:
    """The number of objects that an array has for n items, with options at their defaults.

    Attributes:
        per_item: Objects for each further item; None: any number is allowed.
        spare: Objects besides these.
    """

    per_item: float | None
    spare: int = 0

    def __str__(self) -> str:
        """Return it as the length of an array: `n`, `n + 1`, `n / 256`, `1`; `m` for any length."""
        if self.per_item is None:
            return "m"
        if self.per_item == 0.0:
            return str(self.spare)
        items = "n" if self.per_item >= 1.0 else f"n / {1.0 / self.per_item:g}"
        return items if self.spare == 0 else f"{items} + {self.spare}"


def object_count(access: Accessor) -> ObjectCount:
    """Return how many objects an access needs."""
    try:
        few, many = (access.num_objects(n, access.defaults) for n in (_ITEMS, 2 * _ITEMS))
    except KeyError:  # only a call has the option that tells
        return ObjectCount(None)
    if many == 0:
        return ObjectCount(None)
    return ObjectCount((many - few) / _ITEMS, 2 * few - many)


def item_traffic(traced: TracedKernel, dtype: DType) -> tuple[Traffic, ...]:
    """Return the bytes that an item moves for each argument, then for each output.

    An item touches one object of an argument (of a pair only its own: the other one counts for its
    neighbour), a part of one if several items share an object, and none if all items share one.

    Args:
        traced: The kernel function.
        dtype: Type of its arrays.
    """
    reads = [
        Traffic(one.name, _bytes(one.access, one.storage_dim, dtype), 0.0, _index(one.access))
        for one in traced.inputs
    ]
    writes = []
    for one in traced.outputs:
        written = _bytes(one.access, one.storage_dim, dtype)
        read = written if one.access.adds else 0.0
        writes.append(Traffic(one.name, read, written, _index(one.access)))
    return (*reads, *writes)


def item_bytes(traffic: Sequence[Traffic]) -> float:
    """All bytes that an item moves."""
    return sum(one.total for one in traffic)


def _bytes(access: Accessor, dim: int, dtype: DType) -> float:
    per_item = object_count(access).per_item
    objects = 1.0 if per_item is None else min(1.0, abs(per_item))
    return objects * object_scalars(dim, dtype) * dtype.itemsize


def _index(access: Accessor) -> float:
    """An int32, or two uint16 that stand for it in a tile."""
    return float(DType.INT32.itemsize if "index" in access.options else 0)
