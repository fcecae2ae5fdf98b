"""What the assembler makes of blocked accesses: 16 bytes at once, and no local memory."""

import itertools
import re
from typing import Annotated, Any

import pytest

import caspar
from caspar.ir.dtype import DType
from caspar.kernels.kernel import Kernel
from caspar.memory.layout import chunk_widths, padded_width
from tests.covering import alternating
from tests.kernels.patterns import kernel_of, read_kernel, vector_type, write_kernel

READS = (caspar.ReadSequential(), caspar.ReadIndexed(), caspar.ReadShared(), caspar.ReadStrided())


def moving_kernel(dim: int, read: Any) -> Kernel:
    """An object read in some way, twice of it written by items."""
    vector = vector_type(dim)
    return kernel_of(
        f"moving_{dim}",
        lambda x: 2 * x,
        {"x": Annotated[vector, read]},
        Annotated[vector, caspar.WriteSequential],
    )


def full_chunks(dim: int, dtype: str) -> int:
    """Chunks of 16 bytes."""
    scalar = DType(dtype)
    return sum(padded_width(width) * scalar.itemsize == 16 for width in chunk_widths(dim, scalar))


@pytest.mark.parametrize(
    ("dim", "dtype", "read"),
    alternating(itertools.product([4, 6, 7, 9, 16], ["float32", "float64"]), READS),
)
def test_chunks_are_moved_at_once(dim: int, dtype: str, read: Any) -> None:
    inspection = moving_kernel(dim, read).inspect(dtype=dtype)
    sass = inspection.disassembled.text
    chunks = full_chunks(dim, dtype)
    assert len(re.findall(r"LDG\.E\.128", sass)) == chunks
    assert len(re.findall(r"STG\.E\.128", sass)) == chunks
    assert len(re.findall(r"\b(?:LDL|STL)\b", sass)) == 0


@pytest.mark.parametrize(
    ("dtype", "deterministic"), alternating(["float32", "float64"], [False, True])
)
def test_no_pattern_needs_local_memory(dtype: str, deterministic: bool) -> None:
    for kernel in (read_kernel(7), write_kernel(7)):
        report = kernel.inspect(dtype=dtype, deterministic=deterministic).report
        assert report.resources.stack_bytes == 0
        assert report.resources.spill_bytes == 0
