"""The signature of a call: everything that planning it depends on, except where arrays lie.

Cost tier: some microseconds for each call. Nothing is converted, and arguments that are not
understood are left to the planner, which then says what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caspar.arrays.blocked_array import BlockedArray
from caspar.arrays.convert import current_stream, shared_backend
from caspar.arrays.shared_indices import SharedIndices
from caspar.ir.dtype import CHUNK_BYTES
from caspar.memory.array import Array, address
from caspar.options import BackendChoice
from caspar.runtime.arrays import library_of


@dataclass(frozen=True)
class CallSignature:
    """The key that the plan of a call depends on, and the arrays of the call.

    Attributes:
        key: Calls with equal keys are planned alike.
        arrays: Memory that the launches are given, in the order of the key.
        indices: The indices among them: a name for errors, the index and the number of objects.
        indexed: Names of the arguments and outputs that they were passed for.
        written: Places among `arrays` of what the call writes to.
        rows: Places among `arrays` of rows, with the argument's name.
        outputs: Blocked arrays that were passed to be written to, by name.
        prepared: Indices that the key names by identity.
    """

    key: tuple[Any, ...]
    arrays: tuple[Array, ...]
    indices: tuple[tuple[str, Array, int], ...]
    indexed: tuple[str, ...]
    written: tuple[int, ...]
    rows: tuple[tuple[int, str], ...]
    outputs: Mapping[str, BlockedArray]
    prepared: tuple[SharedIndices, ...]


class _SignatureReader:
    """Reads the arguments of a call, one after the other."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.arrays: list[Array] = []
        self.indices: list[tuple[str, Array, int]] = []
        self.indexed: list[str] = []
        self.written: list[int] = []
        self.rows: list[tuple[int, str]] = []
        self.outputs: dict[str, BlockedArray] = {}
        self.prepared: list[SharedIndices] = []

    def add(self, name: str, value: Any, *, is_output: bool) -> bool:
        """Note an argument; False where a call with it has to be planned."""
        self.parts.append(name)
        value = self._own(value)
        if type(value) is BlockedArray:
            return self._add_blocked(name, value, is_output)
        if type(value) is not dict:
            return not is_output and self._add_rows(name, value)
        size = value.get("size")
        where = f"{'output' if is_output else 'argument'} {name}, index"
        for key, part in value.items():
            self.parts.append(key)
            part = self._own(part)
            if type(part) is BlockedArray:
                size = part.length
                if not self._add_blocked(name, part, is_output):
                    return False
            elif type(part) is SharedIndices:
                self.prepared.append(part)
                self.parts.append(id(part))
            elif type(part) is int:
                self.parts.append(part)
            elif key == "values":
                # an index is tested against the number of rows: (n, dim) tells it
                if is_output or getattr(part, "ndim", 0) != 2 or not self._add_rows(name, part):
                    return False
                size = part.shape[0]
            elif key != "index" or not self._add_index(where, part, size):
                return False
            else:
                self.indexed.append(name)
        return True

    def _own(self, value: Any) -> Any:
        """A torch tensor on a GPU as a CuPy array; anything else as it is."""
        if library_of(value) != "torch" or not getattr(value, "is_cuda", False):
            return value
        if value.requires_grad:
            return value
        self.parts.append("torch")
        return shared_backend(BackendChoice.CUDA).upload(value)

    def _add_blocked(self, name: str, array: BlockedArray, is_output: bool) -> bool:
        buffer = array.buffer
        self.parts += (array.length, array.capacity, array.first, array.dim)
        self.parts += (buffer.dtype.char, _device(buffer))
        if is_output:
            if not array.is_writable:
                return False
            self.written.append(len(self.arrays))
            self.outputs[name] = array
        self.arrays.append(buffer)
        return True

    def _add_rows(self, name: str, rows: Any) -> bool:
        if not _is_array(rows) or rows.dtype.char not in "fd" or not 1 <= rows.ndim <= 2:
            return False
        if not rows.flags.c_contiguous:
            return False
        # vectors are loaded straight from rows that lie as blocked arrays do, where aligned
        self.parts += (rows.shape, rows.dtype.char, _device(rows), address(rows) % CHUNK_BYTES)
        self.rows.append((len(self.arrays), name))
        self.arrays.append(rows)
        return True

    def _add_index(self, where: str, index: Any, size: int | None) -> bool:
        if not _is_array(index) or size is None or index.dtype.char != "i" or index.ndim != 1:
            return False
        if not index.flags.c_contiguous:
            return False
        self.parts += (index.shape[0], _device(index))
        self.indices.append((where, index, size))
        self.arrays.append(index)
        return True


def _is_array(value: Any) -> bool:
    """Return whether it is an array of NumPy or CuPy."""
    return type(value) is np.ndarray or type(value).__module__.startswith("cupy")


def _device(array: Array) -> int:
    return -1 if isinstance(array, np.ndarray) else int(array.data.device_id)


def call_signature(
    inputs: Mapping[str, Any], out: Any, output_names: Sequence[str], options: tuple[Any, ...]
) -> CallSignature | None:
    """The signature of a call; None if the call has to be planned.

    Args:
        inputs: What is passed, by argument name.
        out: What is passed as `out`.
        output_names: Names of the outputs.
        options: Whatever else planning depends on, besides the current stream.
    """
    reader = _SignatureReader()
    for name, value in inputs.items():
        if not reader.add(name, value, is_output=False):
            return None
    targets = {}
    if out is not None:
        if type(out) is dict and all(name in output_names for name in out):
            targets = out
        elif len(output_names) == 1:
            targets = {output_names[0]: out}
        else:
            return None
    for name, value in targets.items():
        if not reader.add(name, value, is_output=True):
            return None
    first = {id(array): number for number, array in reversed(list(enumerate(reader.arrays)))}
    same = tuple(first[id(array)] for array in reader.arrays)  # an array may be passed twice
    return CallSignature(
        (*options, current_stream(), *reader.parts, same),
        tuple(reader.arrays),
        tuple(reader.indices),
        tuple(reader.indexed),
        tuple(reader.written),
        tuple(reader.rows),
        reader.outputs,
        tuple(reader.prepared),
    )
