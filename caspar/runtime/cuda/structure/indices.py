"""Checking indices on a CUDA device."""

from threading import Lock
from typing import Any

import cupy
import numpy as np

from caspar.codegen.cuda.header import BLOCK_SIZE
from caspar.codegen.cuda.structure.indices import INDEX_KERNELS, INDEX_SOURCE
from caspar.memory.array import Array
from caspar.runtime.cuda.compile.modules import load_functions

_NO_ENTRY = 0xFFFFFFFF


def _entry(first: Array) -> int | None:
    entry = int(first[0])
    return None if entry == _NO_ENTRY else entry


class IndexChecker:
    """The compiled kernels of `codegen.cuda.structure.indices`."""

    def __init__(self) -> None:
        self._kernels = load_functions(INDEX_SOURCE, INDEX_KERNELS)
        self._flag = np.frombuffer(cupy.cuda.alloc_pinned_memory(4), np.uint32, 1)
        self._lock = Lock()

    def first_outside(self, index: Array, size: int) -> int | None:
        """First entry outside 0 .. size - 1; waits for the device.

        A word on the host says whether there is one: 9 us, where reading a minimum back takes 54.
        """
        count = int(index.shape[0])
        with self._lock:
            self._flag[0] = 0
            num_blocks = -(-count // BLOCK_SIZE)
            where = np.uint64(self._flag.ctypes.data)
            self._run("any_outside", num_blocks, count, index, np.uint32(size), where)
            cupy.cuda.get_current_stream().synchronize()
            if self._flag[0] == 0:
                return None
        first = cupy.asarray(np.full(1, _NO_ENTRY, dtype=np.uint32))
        num_blocks = -(-count // BLOCK_SIZE)
        self._run("first_outside", num_blocks, count, index, np.uint32(size), first)
        return _entry(first)

    def first_repeated(self, index: Array, size: int) -> int | None:
        """First entry whose object an earlier one names; waits for the device."""
        count = int(index.shape[0])
        owner = cupy.empty(size, dtype=cupy.uint32)
        owner.data.memset_async(0xFF, owner.nbytes)
        first = cupy.asarray(np.full(1, _NO_ENTRY, dtype=np.uint32))
        num_blocks = -(-count // BLOCK_SIZE)
        for find in (0, 1):
            self._run("first_repeated", num_blocks, count, index, owner, np.uint32(find), first)
        return _entry(first)

    def _run(self, name: str, num_blocks: int, count: int, *arguments: Any) -> None:
        kernel = self._kernels[name].function
        kernel((num_blocks,), (BLOCK_SIZE,), (np.uint32(count), *arguments))
