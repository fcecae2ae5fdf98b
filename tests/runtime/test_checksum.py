"""The processor's checksum; tests/gpu has the same for a device."""

import numpy as np
from numpy.typing import NDArray

from caspar.runtime.cpu.backend import CpuBackend


def test_it_tells_arrays_apart() -> None:
    array = np.arange(1000, dtype=np.int32)
    swapped, changed = array.copy(), array.copy()
    swapped[[5, 6]] = swapped[[6, 5]]
    changed[999] += 1
    lists: tuple[list[NDArray[np.int32]], ...] = (
        [array],
        [swapped],
        [changed],
        [array, array],
        [array[:10], array[10:]],
        [],
    )
    wide = CpuBackend().checksum([array.view(np.int64)])
    assert len({wide, *(CpuBackend().checksum(arrays) for arrays in lists)}) == 7


def test_it_depends_on_numbers_only() -> None:
    array = np.arange(1000, dtype=np.int32)
    strided = np.repeat(array, 2)[::2]
    assert CpuBackend().checksum([strided]) == CpuBackend().checksum([array])
