"""Check the arrays that users pass: refuse those that a kernel cannot read, or not write to.

Nothing is copied. Before NumPy arrays are read, only their type is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.arrays.convert import FLOATS, shared_array
from caspar.arrays.shared_indices import SharedIndices
from caspar.errors import InputError
from caspar.memory.array import Array
from caspar.runtime.arrays import checked_location, wants_gradient

_MAX_WORK: Any = 100_000
"""Steps that NumPy may take to solve for a common byte of two strided arrays."""

_LIBRARIES_OF_CONSTANTS = ("jax", "jaxlib")
"""Libraries whose arrays never change."""


def is_array(given: Any) -> bool:
    """Return whether this is an array of a library, not a Python sequence or a number."""
    if isinstance(given, np.generic):
        return False
    return hasattr(given, "__array__") or hasattr(given, "__dlpack__")


def check_readable(where: str, given: Any) -> None:
    """Refuse what is no array of numbers, or more than that."""
    if type(given) is np.ndarray:
        return
    if given is None:
        raise InputError(f"{where}: None; pass an array")
    if isinstance(given, SharedIndices):
        raise InputError(
            f"{where}: SharedIndices are not values; pass {{'values': array, 'index': indices}} "
            "where the access takes an index"
        )
    if wants_gradient(given):
        raise InputError(
            f"{where}: {_name(given)} with requires_grad; the result of a kernel carries no "
            "gradient: use caspar.torch.call(kernel, ...), or pass .detach()"
        )
    python_type: type = type(given)
    if _is_traced(python_type):
        raise InputError(
            f"{where}: {_name(given)}, a value that jax traces (in jit, grad or vmap); a kernel "
            "runs over arrays: use caspar.jax.call(kernel, ...), or call it outside"
        )
    place = checked_location(where, given)
    if place.kind not in ("host", "cuda"):
        raise InputError(
            f"{where}: lives on {place}, but kernels run on the host or a CUDA device; copy it to "
            "one of them"
        )


def writable_array(where: str, given: Any) -> Array:
    """The memory of an array that is written to, as NumPy or CuPy array."""
    has_memory = any(hasattr(given, name) for name in ("__dlpack__", "__array_interface__"))
    if not has_memory or isinstance(given, np.generic):
        raise InputError(
            f"{where}: {_name(given)} cannot be written to; pass an array of NumPy, CuPy or torch "
            "or a BlockedArray, or leave it out: a new array is returned"
        )
    if type(given).__module__.split(".")[0] in _LIBRARIES_OF_CONSTANTS:
        raise InputError(
            f"{where}: arrays of jax cannot be written; leave it out: a new array is returned"
        )
    array = shared_array(where, given)
    if array.dtype.newbyteorder("=") not in FLOATS:
        raise InputError(
            f"{where}: results cannot be written to dtype {array.dtype}; allowed are float32 and "
            "float64"
        )
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise InputError(f"{where}: its memory is read-only; pass a copy")
    places = zip(array.strides, array.shape, strict=True)
    if array.size > 0 and any(stride == 0 and size > 1 for stride, size in places):
        raise InputError(
            f"{where}: shape {tuple(array.shape)} with strides {tuple(array.strides)}: several "
            "objects share memory; pass a copy"
        )
    return array


def share_memory(one: Array, other: Array) -> bool:
    """Return whether two arrays of one device share a byte; True if it takes too long to tell."""
    try:
        return bool(np.shares_memory(_outline(one), _outline(other), max_work=_MAX_WORK))
    except np.exceptions.TooHardError:
        return True


@dataclass(frozen=True)
class _Outline:
    """Address, shape and strides of an array, for NumPy."""

    __array_interface__: dict[str, Any]


def _outline(array: Array) -> NDArray[Any]:
    """An array of which NumPy may ask where it lies, but not what it holds."""
    if isinstance(array, np.ndarray):
        return array
    interface = {
        "version": 3,
        "data": (int(array.data.ptr), True),
        "shape": tuple(array.shape),
        "strides": tuple(array.strides),
        "typestr": array.dtype.str,
    }
    return np.asarray(_Outline(interface))


def _name(given: Any) -> str:
    library = type(given).__module__.split(".")[0]
    name = type(given).__name__
    return name if library == "builtins" else f"{library}.{name}"


@cache
def _is_traced(python_type: type) -> bool:
    return any(
        base.__name__ == "Tracer" and base.__module__.split(".")[0] == "jax"
        for base in python_type.__mro__
    )
