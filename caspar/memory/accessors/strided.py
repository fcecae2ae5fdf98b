"""Item `i` touches object `offset + stride * i`."""

import operator
from dataclasses import dataclass
from typing import Any, ClassVar

from caspar.memory.access import ArgSpec, Field, Options, ReadAccessor
from caspar.memory.accessors.blocked import (
    ReadObject,
    WriteObject,
    cpu_load_or_default,
    cuda_load_or_default,
)
from caspar.memory.accessors.scope import CpuScope, CudaScope
from caspar.memory.array import Array

_HIGHEST = 2**31 - 1
"""Offset, stride and objects are int32."""


_FIRST = "the first object is 0 (ReadStridedWithDefault reads a default where there is none)"


def _stride(options: Options) -> tuple[int, int]:
    """Offset and stride; a `ValueError` if they are not what they can be."""
    offset, stride = _integer("offset", options["offset"]), _integer("stride", options["stride"])
    if stride == 0:
        raise ValueError("stride=0; it must not be 0; to read one object use ReadUnique")
    return offset, stride


def _integer(name: str, given: Any) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        raise ValueError(f"{name}={given!r}; it must be an integer") from None
    if abs(number) > _HIGHEST:
        raise ValueError(f"{name}={number}; it must fit in int32")
    return number


class Strided:
    """The common part of reading and writing with a stride."""

    options: ClassVar[tuple[str, ...]] = ("offset", "stride")
    defaults: ClassVar[Options] = {"offset": 0, "stride": 1}
    is_exact: ClassVar[bool] = False

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """Two numbers."""
        return (Field("offset"), Field("stride"))

    def num_items(self, length: int | None, options: Options) -> int | None:
        """Return the number of items that stay inside the array.

        Raises:
            ValueError: The first item would touch an object before the first.
        """
        offset, stride = _stride(options)
        if offset < 0:
            raise ValueError(f"offset={offset}; {_FIRST}")
        if length is None:
            return None
        if offset >= length:
            return 0
        return (length - 1 - offset if stride > 0 else offset) // abs(stride) + 1

    def num_objects(self, count: int, options: Options) -> int:
        """Up to the highest.

        Raises:
            ValueError: An item would touch an object before the first.
        """
        offset, stride = _stride(options)
        last = offset + stride * max(0, count - 1)
        if min(offset, last) < 0:
            raise ValueError(
                f"offset={offset} and stride={stride} over {count:,} items reach object "
                f"{min(offset, last)}; {_FIRST}"
            )
        return 0 if count == 0 else max(offset, last) + 1

    def field_values(self, options: Options, num_objects: int) -> dict[str, Array | int]:
        """Offset and stride."""
        offset, stride = _stride(options)
        return {"offset": offset, "stride": stride}


def strided_object(arg: ArgSpec, item: str = "item") -> str:
    """The object of an item."""
    return f"({arg.name}_offset + {arg.name}_stride * {item})"


@dataclass(frozen=True)
class ReadStrided(Strided, ReadObject):
    """Item `i` reads object `offset + stride * i`."""

    def touched(self, arg: ArgSpec) -> str:
        """The object at its offset and stride."""
        return strided_object(arg)


@dataclass(frozen=True)
class WriteStrided(Strided, WriteObject):
    """Item `i` writes object `offset + stride * i`."""

    def touched(self, arg: ArgSpec) -> str:
        """The object at its offset and stride."""
        return strided_object(arg)


@dataclass(frozen=True)
class AddStrided(WriteStrided):
    """Item `i` adds to object `offset + stride * i`."""

    adds: ClassVar[bool] = True


@dataclass(frozen=True)
class ReadStridedWithDefault(Strided, ReadAccessor):
    """Item `i` reads object `offset + stride * i`, and a default where there is none.

    Attributes:
        default: Scalars of an object, such as `(0.0, 0.0, 0.0, 1.0)`, or a SymForce value of its
            type; of an object of one scalar a number.
    """

    default: Any = ()

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """Offset, stride and number of objects."""
        return (*super().fields(arg), Field("size"))

    def num_items(self, length: int | None, options: Options) -> int | None:
        """Any number: beyond the array there are defaults."""
        return None

    def num_objects(self, count: int, options: Options) -> int:
        """Any number: beyond the array there are defaults.

        Raises:
            ValueError: An object's number would not fit in int32.
        """
        offset, stride = _stride(options)
        steps = count if self.is_pair else max(0, count - 1)
        if abs(offset) + abs(stride) * steps > _HIGHEST:
            raise ValueError(
                f"offset={offset} and stride={stride} over {count:,} items: the numbers of "
                "objects must fit in int32"
            )
        return 0

    def field_values(self, options: Options, num_objects: int) -> dict[str, Array | int]:
        """Offset, stride and number of objects."""
        return {**super().field_values(options, num_objects), "size": num_objects}

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """One guarded vector load."""
        number = strided_object(arg, "int(item)")
        return cuda_load_or_default(scope, arg, chunk, number, self.default)

    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Guarded scalar loads."""
        return cpu_load_or_default(scope, arg, chunk, strided_object(arg), self.default)
