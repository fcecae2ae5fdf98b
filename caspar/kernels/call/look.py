"""What a call looks like: all that planning depends on, without where arrays lie.

For each call, some microseconds: nothing is converted, and what is not understood is left to the
planner, which then says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caspar.arrays.array_memory import address
from caspar.arrays.blocked_array import BlockedArray
from caspar.arrays.convert import shared_backend
from caspar.arrays.shared_indices import SharedIndices
from caspar.ir.dtype import CHUNK_BYTES
from caspar.memory.array import Array
from caspar.options import BackendChoice
from caspar.runtime.arrays import library_of


@dataclass(frozen=True)
class Look:
    """What a call looks like, and its arrays.

    Attributes:
        key: All that planning depends on.
        arrays: Memory that the launches are given, in the order of the key.
        indices: Of those, what are indices: where, for errors, index and number of objects.
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


class _Looker:
    """Looks at the arguments of a call, one after the other."""

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
    """Whether it is an array of NumPy or CuPy."""
    return type(value) is np.ndarray or type(value).__module__.startswith("cupy")


def _device(array: Array) -> int:
    return -1 if isinstance(array, np.ndarray) else int(array.data.device_id)


def look_at(
    inputs: Mapping[str, Any], out: Any, output_names: Sequence[str], options: tuple[Any, ...]
) -> Look | None:
    """What a call looks like; None where it has to be planned.

    Args:
        inputs: What is passed, by argument name.
        out: What is passed as `out`.
        output_names: Names of the outputs.
        options: Whatever else planning depends on.
    """
    looker = _Looker()
    for name, value in inputs.items():
        if not looker.add(name, value, is_output=False):
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
        if not looker.add(name, value, is_output=True):
            return None
    first = {id(array): number for number, array in reversed(list(enumerate(looker.arrays)))}
    same = tuple(first[id(array)] for array in looker.arrays)  # an array may be passed twice
    return Look(
        (*options, *looker.parts, same),
        tuple(looker.arrays),
        tuple(looker.indices),
        tuple(looker.indexed),
        tuple(looker.written),
        tuple(looker.rows),
        looker.outputs,
        tuple(looker.prepared),
    )
