"""Kernels of few items, which all blocks of the grid share: CUDA source = NumPy, to the bit."""

from dataclasses import replace

import numpy as np
import pytest

from caspar.codegen.cuda.header import BLOCK_SIZE
from caspar.codegen.cuda.loop.fuse import CLUSTER_BLOCKS
from caspar.codegen.source import (
    CLUSTERED_BLOCKS,
    CLUSTERED_ITEMS,
    ENOUGH_BLOCKS,
    WARP,
    KernelSource,
)
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.equations.scalar_kernels import memory_kernels
from caspar.ir.dtype import DType
from caspar.memory.accessors.sums.partials import MAX_SLOTS
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import AddSumPartials, ReadSequential, WriteSequential
from tests.harness import find_compiler
from tests.support_cases import SPARE, KernelCase
from tests.support_kernels import CompiledKernels, assert_exact

FULL = WARP * ENOUGH_BLOCKS
"""Items that fill a warp of each of enough blocks."""

SOURCE = KernelSource("few", "", (), (BLOCK_SIZE,), few_items=True)

DIM = 24


def sum_kernel(dtype: DType) -> KernelSpec:
    """More is read than may be read at first, and some of it is written in place."""
    kernel = KernelBuilder("few", dtype, few_items=True)
    given = [kernel.read(name, DIM, dtype, ReadSequential()) for name in "abcd"]
    total = [sum(entries[1:], entries[0]) for entries in zip(*given, strict=True)]
    kernel.write("a", total, dtype, WriteSequential())
    kernel.write("found", total, dtype, WriteSequential())
    kernel.write("sum", total[:1], dtype, AddSumPartials())
    return kernel.build()


@pytest.mark.parametrize(
    ("count", "num_blocks"),
    [
        (1, 1),
        (BLOCK_SIZE, 1),
        (BLOCK_SIZE + 1, 5),
        (330, 6),
        (CLUSTERED_ITEMS, CLUSTERED_BLOCKS),
        (CLUSTERED_ITEMS + 1, CLUSTERED_ITEMS // WARP + 1),
        (FULL, ENOUGH_BLOCKS),
        (FULL + 1, ENOUGH_BLOCKS // 2 + 1),
        (BLOCK_SIZE * 1000, 1000),
    ],
)
def test_number_of_blocks(count: int, num_blocks: int) -> None:
    assert SOURCE.num_blocks(count, BLOCK_SIZE) == num_blocks


def test_few_blocks_and_those_that_clear_make_a_cluster() -> None:
    """What products add curvatures to is cleared meanwhile."""
    clear = compile_kernel(memory_kernels()[0], TARGETS["cuda"])
    num_chunks = MAX_SLOTS * DType.FLOAT64.itemsize // 16
    assert CLUSTERED_BLOCKS + clear.num_blocks(num_chunks, BLOCK_SIZE) == CLUSTER_BLOCKS
    counts = range(BLOCK_SIZE + 1, CLUSTERED_ITEMS + 1)
    assert all(1 < SOURCE.num_blocks(count, BLOCK_SIZE) <= CLUSTERED_BLOCKS for count in counts)


@pytest.mark.parametrize("block_size", [WARP, 128, BLOCK_SIZE])
def test_every_block_has_items_and_every_item_a_thread(block_size: int) -> None:
    for count in (*range(1, 3 * FULL, 7), 10**6 + 1):
        num_blocks = SOURCE.num_blocks(count, block_size)
        share = -(-count // num_blocks)
        assert share <= block_size
        assert (num_blocks - 1) * share < count <= num_blocks * share


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value)
def test_shares_are_summed(dtype: DType) -> None:
    spec = sum_kernel(dtype)
    compiled = CompiledKernels([spec], cpu=False)
    rng = np.random.default_rng(0)
    for count in (1, 100, BLOCK_SIZE + 1, CLUSTERED_ITEMS + 1, FULL + 1):
        rows = {
            name: rng.integers(-5, 6, (count + SPARE, DIM)).astype(np.float64) for name in "abcd"
        }
        case = KernelCase(spec, count, rows)
        assert_exact(compiled.run_cuda(case), dtype)
        assert_exact(compiled.run_cuda(replace(case, rows={**rows, "a": -rows["b"]})), dtype)


def test_loads_go_before_the_first_store() -> None:
    spec = sum_kernel(DType.FLOAT32)
    text = CompiledKernels([spec], cpu=False).cuda_sources["few"].text
    body = text.rpartition("few(")[2]
    first_store = body.index("if (active) *reinterpret_cast<float4*>(a_data")
    chunks = DIM // 4
    assert body[:first_store].count("_data +") >= 2 * chunks
