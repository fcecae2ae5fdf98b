"""Objects that an array holds several times: CPU backend = CUDA source = NumPy, to the bit.

Values are whole numbers, so that the order of a sum does not matter.
"""

from dataclasses import replace

import numpy as np
import pytest

from caspar.codegen.cuda.header import BLOCK_SIZE
from caspar.ir.dtype import DType
from caspar.memory.accessors.sums.runs import MANY_SCALARS, AddRuns
from caspar.memory.accessors.sums.slots import (
    BUSY_ITEMS,
    FEW_ROWS,
    FEWER_SLOTS,
    ITEMS_OF_SLOT,
    MAX_OBJECT_SLOTS,
    USUAL_SLOTS,
    BeginSlots,
    ReadSlots,
    num_object_slots,
)
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import ReadSequential, WriteSequential
from tests.covering import alternating
from tests.harness import find_compiler
from tests.memory.tiling.node_tile_problems import draw_problem
from tests.support_cases import SPARE, KernelCase
from tests.support_kernels import CompiledKernels, assert_exact

needs_compiler = pytest.mark.skipif(
    find_compiler() is None, reason="no C++ compiler on this machine"
)
SINGLE, DOUBLE = DType.FLOAT32, DType.FLOAT64
TYPES = ((DOUBLE, SINGLE), (SINGLE, DOUBLE), (SINGLE, SINGLE), (DOUBLE, DOUBLE))
"""Of storage, and what is computed in."""

DIMS = (1, 3, 4, 9)
COUNTS = (1, 31, BLOCK_SIZE, 2500)
COPIES = (1, 2, FEWER_SLOTS, USUAL_SLOTS, MAX_OBJECT_SLOTS)


def sum_kernel(dim: int, storage: DType, computing: DType, *, many: bool) -> KernelSpec:
    """The sum over all slots; another array begins with it."""
    kernel = KernelBuilder(f"sum_{dim}", computing)
    found = kernel.read("added", dim, storage, ReadSlots(many=many))
    kernel.write("found", found, storage, WriteSequential())
    kernel.write("begun", found, storage, BeginSlots())
    return kernel.build()


def add_kernel(dim: int, storage: DType, computing: DType, *, tiled: bool) -> KernelSpec:
    """x added to objects with slots and without, of both layouts, by one index."""
    kernel = KernelBuilder(f"add_{dim}_{tiled}", computing, tiled=tiled)
    x = kernel.read("x", dim, storage, ReadSequential())
    kernel.write("first", x, storage, AddRuns(rows=True, spread=True))
    kernel.write("second", x, storage, AddRuns("first", "first", spread=True))
    kernel.write("third", x, storage, AddRuns("first", "first", rows=True))
    kernel.write("plain", x, storage, AddRuns("first", "first"))
    return kernel.build()


def rows_of_slots(copies: int, length: int, dim: int) -> np.ndarray:
    """Whole numbers slot by slot; behind those of each slot are rows that nothing may touch."""
    rows = np.full((copies, length + SPARE, dim), np.nan)
    rows[:, :length] = np.random.default_rng(copies).integers(-5, 6, (copies, length, dim))
    return rows.reshape(-1, dim)


@pytest.mark.parametrize(
    ("num_items", "num_objects", "slots"),
    [
        (0, 0, 1),
        (ITEMS_OF_SLOT * 7, 7, 1),
        (ITEMS_OF_SLOT * 7 + 1, 7, 2),
        (ITEMS_OF_SLOT * 14, 7, 2),
        (ITEMS_OF_SLOT * 14 + 1, 7, 4),
        (BUSY_ITEMS - 1, FEW_ROWS // (2 * FEWER_SLOTS) + 1, FEWER_SLOTS),
        (BUSY_ITEMS - 1, FEW_ROWS // (2 * FEWER_SLOTS), 2 * FEWER_SLOTS),
        (BUSY_ITEMS, FEW_ROWS // (2 * FEWER_SLOTS) + 1, USUAL_SLOTS),
        (10**9, FEW_ROWS, USUAL_SLOTS),
        (10**9, 200_000, USUAL_SLOTS),
        (ITEMS_OF_SLOT * 4 * FEWER_SLOTS, 4, FEWER_SLOTS),
        (10**9, 1, MAX_OBJECT_SLOTS),
    ],
)
def test_number_of_slots(num_items: int, num_objects: int, slots: int) -> None:
    assert num_object_slots(num_items, num_objects) == slots


@needs_compiler
@pytest.mark.parametrize(("many", "types"), alternating([False, True], TYPES))
def test_slots_are_summed_and_begun(many: bool, types: tuple[DType, DType]) -> None:
    storage, computing = types
    specs = {dim: sum_kernel(dim, storage, computing, many=many) for dim in DIMS}
    compiled = CompiledKernels(list(specs.values()))
    for dim, spec in specs.items():
        for count in COUNTS if dim == 3 else (BLOCK_SIZE + 1,):
            for copies in COPIES if many else COPIES[:-1]:
                rows = {"added": rows_of_slots(copies, count, dim)}
                case = KernelCase(spec, count, rows, copies=copies)
                assert_exact(compiled.run_cuda(case), computing)
                if copies == 1:
                    assert_exact(compiled.run_cpu(case), computing)


@needs_compiler
@pytest.mark.parametrize(("tiled", "types"), alternating([True, False], TYPES))
def test_tiles_add_to_their_slots(tiled: bool, types: tuple[DType, DType]) -> None:
    """Only on CUDA. Many scalars are added in groups."""
    storage, computing = types
    dims = (3, 9, MANY_SCALARS + 1, 45)
    specs = {dim: add_kernel(dim, storage, computing, tiled=tiled) for dim in dims}
    compiled = CompiledKernels(list(specs.values()), cpu=False)
    for dim, spec in specs.items():
        for count in COUNTS if dim == 3 else (BLOCK_SIZE + 1,):
            problem = draw_problem("long tail", count)
            assert problem.partner is not None
            case = KernelCase(spec, count, {}, {"first": problem.partner})
            if tiled:
                case = replace(case, node=problem.node, partner=problem.partner)
            for copies in COPIES:
                rows = {
                    "x": rows_of_slots(1, count, dim),
                    "first": rows_of_slots(copies, problem.num_partners, dim),
                    "second": rows_of_slots(copies, problem.num_partners, dim),
                    "third": rows_of_slots(1, problem.num_partners, dim),
                    "plain": rows_of_slots(1, problem.num_partners, dim),
                }
                assert_exact(compiled.run_cuda(replace(case, rows=rows, copies=copies)), computing)
