"""Every access kind, size and type: CPU backend = CUDA source in the harness = NumPy."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from caspar.ir.dtype import DType
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import (
    AddSharedPartials,
    AddSumPartials,
    ReadIndexed,
    ReadPartials,
    ReadRows,
    ReadSequential,
    ReadUnique,
    WriteRows,
    WriteSequential,
    WriteUnique,
)
from tests.covering import first
from tests.harness import find_compiler
from tests.support_cases import SPARE, KernelCase
from tests.support_kernels import CompiledKernels, assert_exact

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

DIMS = (1, 3, 4, 10)
FEW_DIMS = (3, 10)
SIZES = (1, 31, 255, 256, 257, 1025)
NUM_PARTIALS = (1, 31, 1023, 1024, 1025, 3000)
NUM_OBJECTS = 40

INDICES: dict[str, Callable[[np.random.Generator, int], NDArray[np.intp]]] = {
    "all equal": lambda _, count: np.full(count, NUM_OBJECTS - 1),
    "sorted": lambda rng, count: np.sort(rng.integers(0, NUM_OBJECTS, count)),
    "random": lambda rng, count: rng.integers(0, NUM_OBJECTS, count),
    "unique, reversed": lambda _, count: np.arange(count)[::-1],
}

SINGLE, DOUBLE = DType.FLOAT32, DType.FLOAT64

# `test_solver_kernels` has all of them by default
types = pytest.mark.parametrize(
    ("storage", "computing"),
    first(2, [(SINGLE, SINGLE), (DOUBLE, SINGLE), (SINGLE, DOUBLE), (DOUBLE, DOUBLE)]),
    ids=lambda dtype: dtype.value,
)


def move_kernel(dim: int, storage: DType, computing: DType) -> KernelSpec:
    """Reads of every kind to writes of every kind, sums of several arguments in one kernel."""
    kernel = KernelBuilder(f"move_{dim}", computing)
    sequential = kernel.read("sequential", dim, storage, ReadSequential())
    indexed = kernel.read("indexed", dim, storage, ReadIndexed())
    unique = kernel.read("unique", dim, storage, ReadUnique())
    rows = kernel.read("rows", dim, storage, ReadRows())
    kernel.write("indexed_out", indexed, storage, WriteSequential())
    kernel.write("unique_out", unique, storage, WriteRows())
    kernel.write("rows_out", rows, storage, WriteSequential())
    kernel.write("sequential_out", sequential, storage, WriteRows())
    kernel.write("shared", sequential, storage, AddSharedPartials())
    kernel.write("shared_too", indexed, storage, AddSharedPartials())
    kernel.write("sum", sequential, storage, AddSumPartials())
    kernel.write("sum_too", unique, storage, AddSumPartials())
    return kernel.build()


def in_place_kernel(dim: int, storage: DType, computing: DType) -> KernelSpec:
    """x += y, unless the flag is set; adds of every kind, to be left alone then."""
    kernel = KernelBuilder(f"in_place_{dim}", computing)
    kernel.guard("flag")
    x = kernel.read("x", dim, storage, ReadSequential())
    y = kernel.read("y", dim, storage, ReadIndexed())
    kernel.write("x", [a + b for a, b in zip(x, y, strict=True)], storage, WriteSequential())
    kernel.write("shared", y, storage, AddSharedPartials())
    kernel.write("sum", y, storage, AddSumPartials())
    return kernel.build()


def total_kernel(dim: int, storage: DType, computing: DType) -> KernelSpec:
    """Sums of partials to one object; two of them, and one updated in place."""
    kernel = KernelBuilder(f"total_{dim}", computing)
    first = kernel.read("first", dim, storage, ReadPartials())
    second = kernel.read("second", dim, storage, ReadPartials())
    old = kernel.read("running", dim, storage, ReadUnique())
    kernel.write("first_total", first, storage, WriteUnique())
    new = [a + b for a, b in zip(old, second, strict=True)]
    kernel.write("running", new, storage, WriteUnique())
    return kernel.build()


def whole_numbers(rng: np.random.Generator, length: int, dim: int) -> NDArray[np.float64]:
    """Numbers whose sums are exact in float32, in whatever order."""
    return rng.integers(-50, 50, (length, dim)).astype(np.float64)


def padded(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """With spare rows of NaN, which nothing must read."""
    return np.concatenate([rows, np.full((SPARE, rows.shape[1]), np.nan)])


def cases(spec: KernelSpec, dim: int) -> Iterator[KernelCase]:
    """All sizes, each with another kind of indices; all kinds with the largest size."""
    rng = np.random.default_rng(dim)
    kinds = list(INDICES)
    plan = [(size, kinds[(number + dim) % len(kinds)]) for number, size in enumerate(SIZES)]
    plan += [(SIZES[-1], kind) for kind in kinds]
    for count, kind in dict.fromkeys(plan):
        num_objects = max(NUM_OBJECTS, count)
        index = INDICES[kind](rng, count).astype(np.int32)
        other = rng.integers(0, num_objects, count).astype(np.int32)
        rows = {
            arg.name: padded(whole_numbers(rng, num_objects, dim))
            for arg in spec.args
            if arg.read is not None
        }
        if spec.guard is not None:
            rows[spec.guard] = np.zeros((1, 1))
        indices = {"indexed": index, "shared": index, "shared_too": other, "y": index}
        yield KernelCase(spec, count, rows, indices, num_objects)


@types
def test_moves_and_sums_are_exact(storage: DType, computing: DType) -> None:
    # conversions happen scalar by scalar, whatever the layout
    dims = DIMS if storage is computing else FEW_DIMS
    specs = {dim: move_kernel(dim, storage, computing) for dim in dims}
    compiled = CompiledKernels(list(specs.values()))
    for dim, spec in specs.items():
        for case in cases(spec, dim):
            for run in compiled.run(case):
                assert_exact(run, computing)


@types
def test_updates_in_place_and_the_guard(storage: DType, computing: DType) -> None:
    specs = {dim: in_place_kernel(dim, storage, computing) for dim in FEW_DIMS}
    compiled = CompiledKernels(list(specs.values()))
    for dim, spec in specs.items():
        for case in cases(spec, dim):
            for run in compiled.run(case):
                assert_exact(run, computing)


@pytest.mark.parametrize("flag", [1.0, -1e-300, 4.0, np.inf, np.nan])
def test_a_set_guard_leaves_everything_alone(flag: float) -> None:
    spec = in_place_kernel(3, DType.FLOAT32, DType.FLOAT32)
    compiled = CompiledKernels([spec])
    case = list(cases(spec, 3))[-1]
    case.rows["flag"][:] = flag
    for run in compiled.run(case):
        for name, untouched in case.bindings(run.tile_size).items():
            np.testing.assert_array_equal(run.bindings[name].data, untouched.data, name)


@types
def test_sums_of_partials_are_exact(storage: DType, computing: DType) -> None:
    specs = {dim: total_kernel(dim, storage, computing) for dim in (1, 4, 10)}
    compiled = CompiledKernels(list(specs.values()))
    for dim, spec in specs.items():
        rng = np.random.default_rng(dim)
        for length in NUM_PARTIALS:
            rows = {
                "first": whole_numbers(rng, length, dim),
                "second": whole_numbers(rng, 7, dim),
                "running": padded(whole_numbers(rng, 1, dim)),
            }
            for run in compiled.run(KernelCase(spec, 1, rows)):
                assert_exact(run, computing)
