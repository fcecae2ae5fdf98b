"""Check what a call passes for each argument.

Input: what the user passed for an argument: an array, or a mapping of `values` and the options of
the argument's access (`index`, `offset`, ...). Output: an `Operand`. Once for each call: nothing
here may cost more than microseconds, or wait for the device unless it checks indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from caspar.arrays.blocked_array import BlockedArray
from caspar.arrays.convert import FLOATS, MAX_LENGTH, checked_size
from caspar.arrays.passed import check_readable, writable_array
from caspar.arrays.shared_indices import SharedIndices, narrowed
from caspar.errors import InputError, meant
from caspar.ir.dtype import DType
from caspar.memory.access import Accessor
from caspar.memory.array import Array
from caspar.memory.layout import rows_are_blocked
from caspar.runtime.arrays import (
    HOST,
    Location,
    checked_location,
    no_index,
    reading,
    to_numpy,
    unreachable,
)
from caspar.runtime.backend import Backend
from caspar.user_arrays import object_advice, with_dtype


@dataclass(frozen=True)
class Operand:
    """The values and options passed for an argument.

    Attributes:
        where: Kernel and argument, for errors.
        given: The values as they were passed; None if only their number is known.
        options: Options that were passed besides values.
        size: Objects of an output that is to be made; None if it was not passed.
        target: Memory (NumPy or CuPy) of an output whose values are not a blocked array.
    """

    where: str
    given: Any
    options: Mapping[str, Any]
    size: int | None = None
    target: Array | None = None

    @property
    def is_blocked(self) -> bool:
        """Return whether the values are a blocked array."""
        return isinstance(self.given, BlockedArray)


def operand(where: str, access: Accessor, given: Any, *, is_output: bool) -> Operand:
    """Take apart what was passed for an argument, by the options that its access declares.

    For an output `values` may be left out, and a `size` given instead. Raises an `InputError` for a
    name that is unknown or missing.
    """
    if not isinstance(given, Mapping):
        missing = [name for name in access.options if name not in access.defaults]
        if missing:
            wanted = ", ".join(f"{name!r}: ..." for name in missing)
            values = "" if is_output and given is None else "'values': array, "
            raise InputError(
                f"{where}: {access.name} needs {' and '.join(missing)}; pass {{{values}{wanted}}}"
            )
        return _operand(where, given, access.defaults, None, is_output)
    allowed = ("values", *(("size",) if is_output else ()), *access.options)
    for name in given:
        if name not in allowed:
            raise InputError(
                f"{where}: unknown name {name!r}{meant(name, allowed)}; {access.name} takes "
                f"{', '.join(allowed)}"
            )
    for name in access.options:
        if given.get(name) is None and name not in access.defaults:
            raise InputError(
                f"{where}: {name!r} is missing; {access.name} takes {', '.join(allowed)}"
            )
    if not is_output and "values" not in given:
        raise InputError(f"{where}: 'values' is missing; it takes {', '.join(allowed)}")
    options = {name: given.get(name, access.defaults.get(name)) for name in access.options}
    return _operand(where, given.get("values"), options, given.get("size"), is_output)


def _operand(
    where: str, given: Any, options: Mapping[str, Any], size: Any, is_output: bool
) -> Operand:
    if size is not None:
        size = checked_size(where, "size", size, 0)
        if given is not None:
            raise InputError(f"{where}: both 'values' and 'size'; 'size' is for a new array")
    if isinstance(given, BlockedArray) or (is_output and given is None):
        return Operand(where, given, options, size)
    check_readable(where, given)
    if not is_output:
        given = with_dtype(given)
    target = writable_array(where, given) if is_output else None
    return Operand(where, given, options, size, target)


def place_of(where: str, given: Any) -> Location | None:
    """Return where values live; None if there are none."""
    if given is None:
        return None
    if isinstance(given, BlockedArray | SharedIndices):
        return given.location
    return checked_location(where, given)


def floating_dtype(given: Any) -> DType | None:
    """The type of values that are float32 or float64 arrays, or None."""
    dtype = getattr(given, "dtype", None)
    if dtype is None:
        return None
    if not isinstance(dtype, np.dtype):  # torch and jax have types of their own
        name = str(dtype).removeprefix("torch.")
        return {"float32": DType.FLOAT32, "float64": DType.FLOAT64}.get(name)
    known = FLOATS.get(dtype)
    if known is None and dtype.kind == "f":
        known = FLOATS.get(dtype.newbyteorder("="))
    return known


class OperandReader:
    """Brings values and indices to a backend's device; `check` tests indices, and waits for it."""

    def __init__(self, backend: Backend, dtype: DType, check: bool) -> None:
        self.backend = backend
        self.dtype = dtype
        self.check = check

    def blocked(
        self, where: str, given: Any, dim: int, shape: Sequence[int], *, share: bool = False
    ) -> BlockedArray:
        """Values as a blocked array: as they are if they are one, else converted as `rows`.

        `share`: rows that have the bytes of the blocked layout are taken without a copy, for what
        is only read.
        """
        if isinstance(given, BlockedArray):
            if given.dim != dim or given.scalar is not self.dtype:
                raise InputError(
                    f"{where}: a BlockedArray of shape {given.shape} and {given.dtype}; expected "
                    f"(n, {dim}) and {self.dtype.value}"
                )
            return given
        rows = self.rows(where, given, dim, shape)
        if share and self._are_blocked(rows, dim):
            length = int(rows.shape[0])
            return BlockedArray(rows.reshape(-1), dim, length, 0, length)
        return BlockedArray.from_rows(rows, dtype=self.dtype.value, backend=self.backend.name)

    def _are_blocked(self, rows: Array, dim: int) -> bool:
        """Return whether rows lie where and as the kernel reads a blocked array."""
        if not rows_are_blocked(dim, self.dtype) or FLOATS.get(rows.dtype) is not self.dtype:
            return False
        if not rows.flags.c_contiguous or not 0 < rows.shape[0] <= MAX_LENGTH:
            return False
        if isinstance(rows, np.ndarray):
            return self.backend.xp is np and bool(rows.flags.aligned)
        return bool(rows.data.ptr % (dim * self.dtype.itemsize) == 0)

    def rows(self, where: str, given: Any, dim: int, shape: Sequence[int]) -> Array:
        """(n, dim) values where they live, of any numeric type.

        They may also be (n, rows, columns) of a matrix, whose `shape` is (rows, columns), (n,) of
        scalars; one object may come without its leading 1.
        """
        array, _ = self._array(where, given)
        if array.dtype.kind not in "iu" and floating_dtype(array) is None:
            raise InputError(
                f"{where}: dtype {array.dtype}; allowed are float32, float64 and integers"
                f"{object_advice(given, array) or ': convert it first'}"
            )
        if len(shape) > 0 and array.ndim == 3 and array.shape[1:] == tuple(shape):
            # SymForce stores matrices column by column
            return array.transpose(0, 2, 1).reshape(-1, dim)
        if array.ndim <= 1 and (dim == 1 or array.shape == (dim,)):
            return array.reshape(-1, dim)
        if array.ndim != 2 or array.shape[1] != dim:
            also = f" or (n, {shape[0]}, {shape[1]})" if len(shape) > 0 else ""
            raise InputError(
                f"{where}: shape {tuple(array.shape)}; expected (n, {dim}){also}: {dim} "
                f"{'scalar' if dim == 1 else 'scalars'} an object"
            )
        return array

    def as_given(self, where: str, given: Any) -> Array:
        """An array of any shape, on the host."""
        array, xp = self._array(where, given)
        return array if xp is np else self.backend.to_host(array)

    def index(self, where: str, given: Any) -> Array:
        """(n,) int32 indices on the device; their range is checked against an array later."""
        if isinstance(given, SharedIndices):
            return given.index
        if isinstance(given, list | tuple) and len(given) == 0:
            given = np.zeros(0, np.int32)  # NumPy would take it for real numbers
        array, xp = self._array(where, given)
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise no_index(where, given, array)
        converted = narrowed(array, check=self.check)
        return self.backend.upload(converted) if xp is np else converted

    def _array(self, where: str, given: Any) -> tuple[Array, ModuleType]:
        place = checked_location(where, given)
        if place != HOST and not self.backend.accepts_device(place.kind, place.number):
            raise unreachable(where, place, self.backend, "kernel")
        with reading(where, given):
            if place == HOST:
                return to_numpy(given), np
            return self.backend.upload(given), self.backend.xp
