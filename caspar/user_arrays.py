"""Say what is wrong with an object that a user passes as an array.

Every part of caspar that reads users' arrays asks here, so that all refuse the same things. Input:
the object, or the NumPy array that was read from it. Nothing is converted or copied.
"""

import ctypes
from array import array as python_array
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, Any]
"""The arrays of `Solver.solve`: node types and factors, by name. With the annotation
`problem: caspar.Arrays = {...}` type checkers accept `{**problem, "fit": {**problem["fit"], ...}}`.
"""

_BUFFERS = (ctypes.Array, python_array, memoryview)
"""Python's own arrays: typed memory without a `dtype`."""

STORAGE_ADVICE = (
    "for SymForce values pass their numbers: "
    "np.array([value.to_storage() for value in values], dtype=float)"
)
"""Advice what to pass instead of a list of SymForce values."""


def refuse_masked(given: Any, where: str = "") -> None:
    """Refuse a masked array that hides numbers, also inside lists and tuples.

    NumPy would read the hidden numbers as if they were data. The message begins with `where`.

    Raises:
        ValueError: Says how many entries are masked.
    """
    if isinstance(given, list | tuple):
        kinds = set(map(type, given))
        if any(issubclass(kind, list | tuple | np.ndarray) for kind in kinds):
            for part in given:
                refuse_masked(part, where)
        return
    if type(given) is np.ndarray or not isinstance(given, np.ndarray):
        return
    # a masked array has a mask, and so have the masked types of other libraries
    mask = np.asarray(getattr(given, "mask", False))
    hidden = mask.view(bool) if mask.dtype.names is not None else mask
    if hidden.dtype == bool and hidden.any():
        raise ValueError(
            f"{where}{np.count_nonzero(hidden)} of {hidden.size} entries are masked; leave out the "
            "rows with masked entries, here and in the arrays that belong to them"
        )


def as_numpy(where: str, given: Any) -> NDArray[Any]:
    """Read what `numpy.asarray` reads, of whatever type.

    Raises:
        ValueError: It is masked, or NumPy cannot read it; names `where`.
    """
    refuse_masked(given, f"{where}: ")
    try:
        return np.asarray(given)
    except MemoryError:
        raise
    except Exception as error:  # the array's own: it is ragged, on a GPU, has been deleted, ...
        raise ValueError(
            f"{where}: {type(given).__name__} cannot be read as an array: {error}"
        ) from error


def with_dtype(given: Any) -> Any:
    """Python's typed arrays (`ctypes`, `array`, `memoryview`) as NumPy arrays of the same memory.

    Everything else is returned as it is.
    """
    return np.asarray(given) if isinstance(given, _BUFFERS) else given


def object_advice(given: Any, read: Any) -> str:
    """Say how to turn what NumPy reads as objects into numbers; empty for other arrays."""
    if read.dtype != object:
        return ""
    if read.ndim == 0 and hasattr(given, "toarray"):
        return "; for a sparse matrix pass .toarray()"
    if isinstance(given, set | frozenset | dict) or hasattr(given, "__next__"):
        return f"; instead of a {type(given).__name__} pass a list in the order of the rows"
    first = read.reshape(-1)[0] if read.size > 0 else None
    parts = given if isinstance(given, list | tuple) and len(given) > 0 else (given,)
    if any(hasattr(value, "to_storage") for value in (parts[0], first)):
        return f"; {STORAGE_ADVICE}"
    if is_dataclass(first):
        return (
            "; for dataclasses pass their numbers: from symforce.ops import StorageOps; "
            "np.array([StorageOps.to_storage(value) for value in values], dtype=float)"
        )
    if hasattr(first, "__float__"):
        return "; its entries are objects: np.array(values, dtype=float) turns them into numbers"
    return ""
