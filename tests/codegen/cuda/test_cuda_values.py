"""The kernels that check values on a device, run on the host, against NumPy."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.codegen.cuda.structure.checks import VALUE_KERNELS, VALUE_SOURCE
from caspar.codegen.cuda.structure.texts import structure_texts
from caspar.memory.host_values import largest_of_columns, write_moved
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.harness import CudaModule, compile_cuda, find_compiler

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")
both_types = pytest.mark.parametrize("dtype", [np.float32, np.float64])
NAMES = {name for names in VALUE_KERNELS.values() for name in names}


@cache
def _module() -> CudaModule:
    return compile_cuda(VALUE_SOURCE)


def drawn(num_rows: int, width: int, dtype: Any) -> NDArray[Any]:
    """Numbers of all sizes and both signs, with zeros."""
    random = np.random.default_rng(num_rows)
    sizes = 10.0 ** random.integers(-20, 20, (num_rows, width))
    values = random.normal(size=(num_rows, width)) * sizes
    values[random.random((num_rows, width)) < 0.1] = 0.0
    return values.astype(dtype)


@needs_compiler
@both_types
@pytest.mark.parametrize(("num_rows", "width", "stride"), [(1, 1, 1), (700, 2, 2), (3000, 3, 4)])
def test_largest_of_columns(num_rows: int, width: int, stride: int, dtype: Any) -> None:
    """Padding is not looked at; a NaN is the largest of all, and infinity above all numbers."""
    padded = np.full((num_rows, stride), np.nan, dtype)
    padded[:, :width] = drawn(num_rows, width, dtype)
    name, _ = VALUE_KERNELS[padded.itemsize]
    for value in (padded[0, 0], -np.inf, np.nan):
        padded[-1, 0] = value
        found = np.zeros(width, np.uint64)
        arguments: list[Any] = [np.uint64(num_rows), np.uint64(stride), padded.reshape(-1), found]
        _module().launch(name, (2, width, 1), 256, arguments)
        assert_array_equal(found.view(np.float64), largest_of_columns(padded[:, :width]))


@needs_compiler
@both_types
@pytest.mark.parametrize("draw", [None, 13, 20])
@pytest.mark.parametrize("added", [[0.0], [1e-3, -2.0], [0.0, 1.0, 3.0, 1e-9]])
def test_values_are_moved(added: list[float], draw: int | None, dtype: Any) -> None:
    given = drawn(600, len(added), dtype)
    wanted, moved = np.empty_like(given), np.empty_like(given)
    write_moved(wanted, given, added, draw)
    _, name = VALUE_KERNELS[given.itemsize]
    sizes = np.zeros(4, dtype)
    sizes[: len(added)] = added
    numbers = (
        np.uint64(given.size),
        np.uint32(len(added)),
        np.uint32(32 if draw is None else draw),
    )
    arguments: list[Any] = [*numbers, *sizes, given.reshape(-1), moved.reshape(-1)]
    _module().launch(name, -(-given.size // 256), 256, arguments)
    assert_array_equal(moved, wanted)
    assert (moved != given).any() == (draw is not None or added != [0.0])


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
def test_the_compiler_has_nothing_to_say(arch: str) -> None:
    compiled = compile_text(VALUE_SOURCE, arch)
    assert compiled.warnings == (), compiled.log
    assert set(compiled.resources) == NAMES
    assert all(entry.stack_bytes == 0 for entry in compiled.resources.values())


@pytest.mark.parametrize("tiled", [False, True])
def test_they_are_compiled_before_they_are_needed(tiled: bool) -> None:
    assert any(set(group.get(VALUE_SOURCE, ())) == NAMES for group in structure_texts(tiled=tiled))
