"""Checks the arguments of a launch against the parameters that the compiler deduced."""

import ctypes
from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from tests.harness.errors import HarnessError
from tests.harness.memory import Array, ArrayArgument
from tests.harness.source import KernelSignature

KernelArgument = Array | np.generic | None


class Kind(IntEnum):
    """How a parameter is passed. Values are those of `ParameterKind` in native/interface.h."""

    BOOLEAN = 0
    INTEGER = 1
    NATURAL = 2
    REAL = 3
    POINTER = 4
    STRUCTURE = 5


_KIND_OF_DTYPE = {"b": Kind.BOOLEAN, "i": Kind.INTEGER, "u": Kind.NATURAL, "f": Kind.REAL}


class NativeParameter(ctypes.Structure):
    """`Parameter` of native/interface.h."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("pointee_kind", ctypes.c_uint32),
        ("pointee_bytes", ctypes.c_uint32),
        ("pointee_is_const", ctypes.c_uint32),
    )


def check_arguments(
    parameters: Sequence[NativeParameter],
    signature: KernelSignature,
    args: Sequence[KernelArgument],
) -> tuple[list[ArrayArgument], dict[int, bytes]]:
    """Return the arrays, and the bytes of all other arguments by position."""
    if len(args) != len(parameters):
        raise HarnessError(
            f"{signature.name} takes {len(parameters)} arguments "
            f"({', '.join(signature.parameter_names)}), {len(args)} given"
        )
    arrays: list[ArrayArgument] = []
    values: dict[int, bytes] = {}
    for position, (parameter, value) in enumerate(zip(parameters, args, strict=True)):
        label = f"argument {position} `{signature.parameter_names[position]}`"
        is_pointer = parameter.kind == Kind.POINTER
        problem = (_pointer_problem if is_pointer else _scalar_problem)(parameter, value)
        if problem is not None:
            raise HarnessError(f"{signature.name}, {label}: {problem}")
        if isinstance(value, np.ndarray):
            is_const = bool(parameter.pointee_is_const)
            arrays.append(ArrayArgument(position, label, value, is_const))
        else:
            values[position] = pointer_bytes(0) if value is None else value.tobytes()
    return arrays, values


def pointer_bytes(address: int) -> bytes:
    """Return an address as a kernel receives it."""
    return np.uintp(address).tobytes()


def _pointer_problem(parameter: NativeParameter, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, np.ndarray):
        return f"a pointer takes a NumPy array or None, not {type(value).__name__}"
    if not value.flags.c_contiguous:
        return "the array must be C-contiguous"
    if not value.flags.writeable and not parameter.pointee_is_const:
        return "the kernel may write, but the array is read-only"
    size = value.dtype.itemsize
    if parameter.pointee_kind == Kind.STRUCTURE:
        # a vector type or a struct: an array of its elements; void: any array
        fits = parameter.pointee_bytes % size == 0
    else:
        kind = _KIND_OF_DTYPE.get(value.dtype.kind)
        fits = kind == parameter.pointee_kind and size == parameter.pointee_bytes
    kind_name = Kind(parameter.pointee_kind).name.lower()
    expected = f"a pointer to {kind_name} of {parameter.pointee_bytes} bytes"
    return None if fits else f"takes {expected}, not an array of {value.dtype}"


def _scalar_problem(parameter: NativeParameter, value: object) -> str | None:
    expected = f"{Kind(parameter.kind).name.lower()} of {parameter.bytes} bytes"
    if not isinstance(value, np.generic):
        return f"takes a NumPy scalar ({expected}), not {type(value).__name__}"
    if parameter.kind == Kind.STRUCTURE:
        fits = value.dtype.kind == "V"
    else:
        fits = _KIND_OF_DTYPE.get(value.dtype.kind) == parameter.kind
    fits = fits and value.dtype.itemsize == parameter.bytes
    return None if fits else f"takes {expected}, not {value.dtype}"
