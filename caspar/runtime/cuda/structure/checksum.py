"""Telling whether arrays on a CUDA device have changed."""

import hashlib
from collections.abc import Sequence
from threading import Lock

import cupy
import numpy as np
from numpy.typing import NDArray

from caspar.codegen.cuda.header import BLOCK_SIZE
from caspar.codegen.cuda.structure.checksum import CHECKSUM_KERNEL, CHECKSUM_SOURCE
from caspar.memory.array import Array
from caspar.runtime.cuda.compile.modules import load_functions

_WORDS_OF_THREAD = 8
"""At least, if there is more than one block."""

_BLOCKS_OF_MULTIPROCESSOR = 8


def _pinned(num_words: int) -> NDArray[np.uint64]:
    """Memory of the host that the device reads and writes at the same address."""
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(8 * num_words), np.uint64, num_words)


class Checksum:
    """The compiled kernel of `codegen.cuda.structure.checksum`.

    Args:
        num_multiprocessors: Of the device.
    """

    def __init__(self, num_multiprocessors: int) -> None:
        loaded = load_functions(CHECKSUM_SOURCE, (CHECKSUM_KERNEL,))
        self._kernel = loaded[CHECKSUM_KERNEL].function
        self._most_blocks = _BLOCKS_OF_MULTIPROCESSOR * num_multiprocessors
        self._state = cupy.zeros(2, dtype=cupy.uint64)
        self._words = _pinned(1 + 2 * 16)
        self._lock = Lock()
        cupy.cuda.get_current_stream().synchronize()

    def of(self, arrays: Sequence[Array]) -> int:
        """A number of 64 bits; one launch, then waits for the device."""
        kept = [_aligned(cupy.ascontiguousarray(array)) for array in arrays]
        lengths = [array.nbytes // 4 for array in kept]
        wanted = -(-max(lengths, default=0) // (_WORDS_OF_THREAD * BLOCK_SIZE))
        num_blocks = min(max(wanted, 1), self._most_blocks)
        with self._lock:
            if 1 + 2 * len(kept) > len(self._words):
                self._words = _pinned(1 + 2 * len(kept))
            self._words[1 : 1 + 2 * len(kept) : 2] = [array.data.ptr for array in kept]
            self._words[2 : 2 + 2 * len(kept) : 2] = lengths
            address = self._words.ctypes.data
            places = (np.uint64(address + 8), self._state, np.uint64(address))
            self._kernel((num_blocks,), (BLOCK_SIZE,), (np.uint32(len(kept)), *places))
            cupy.cuda.get_current_stream().synchronize()
            total = int(self._words[0])
        # the kernel does not see where one array ends and the next begins
        text = f"{total} {[(array.dtype.str, array.shape, _rest(array)) for array in kept]}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _aligned(array: Array) -> Array:
    """A contiguous array that words of four bytes can be read from."""
    return array if array.data.ptr % 4 == 0 else array.copy()


def _rest(array: Array) -> bytes:
    """The bytes behind the last whole word, such as of an odd number of booleans."""
    num_bytes = array.nbytes % 4
    if num_bytes == 0:
        return b""
    return bytes(cupy.asnumpy(array.reshape(-1).view(np.uint8)[-num_bytes:]))
