"""Every access pattern: CPU backend = CUDA source in the harness = NumPy."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from caspar.kernels.kernel import Kernel
from caspar.options import BackendChoice
from caspar.runtime.backend import Backend
from caspar.runtime.cpu.backend import CpuBackend
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend
from tests.kernels.patterns import (
    ANY_ORDER,
    INDEX_KINDS,
    WRITE_CASES,
    Draw,
    read_cases,
    read_kernel,
    write_kernel,
)

SIZES = (0, 1, 31, 32, 33, 255, 256, 257, 1023, 1025)
USUAL = {
    "cpu": ((9, "float32"), (16, "float64")),
    "harness": ((7, "float32"), (3, "float64")),
}
"""By backend the types of the default run, of which each has another last chunk."""

OTHERS = (
    *((1, "float32"), (2, "float32"), (3, "float32"), (4, "float32"), (17, "float32")),
    (1, "float64"),
)

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")

backends = pytest.mark.parametrize(
    "backend", ["cpu", pytest.param("harness", marks=needs_compiler)], indirect=True
)


def _rows() -> Iterator[Any]:
    """Backends with types; `-m reliability` has those that are not usual."""
    for backend in USUAL:
        for one in dict.fromkeys((*itertools.chain(*USUAL.values()), *OTHERS)):
            marks = [] if one in USUAL[backend] else [pytest.mark.reliability]
            marks += [needs_compiler] if backend == "harness" else []
            yield pytest.param(backend, *one, marks=marks)


on_types = pytest.mark.parametrize(("backend", "dim", "dtype"), list(_rows()), indirect=["backend"])


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run kernels there."""
    name: str = request.param
    if name == "harness":
        use_backend(monkeypatch, HarnessBackend())
    return name


def use_backend(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    """Let it stand for CUDA; its arrays are NumPy's."""
    known = {
        BackendChoice.AUTO: backend,
        BackendChoice.CUDA: backend,
        BackendChoice.CPU: CpuBackend(),
    }
    monkeypatch.setattr("caspar.arrays.convert._BACKENDS", known)
    monkeypatch.setattr("caspar.kernels.call.compiled._FINISHES", {})


def draws(dim: int, dtype: str, sizes: tuple[int, ...] = SIZES) -> Iterator[Draw]:
    """All sizes, each with another kind of indices; all kinds with the largest size."""
    rng = np.random.default_rng(dim)
    kinds = list(INDEX_KINDS)
    plan = [(size, kinds[(number + dim) % len(kinds)]) for number, size in enumerate(sizes)]
    plan += [(sizes[-1], kind) for kind in kinds]
    for count, kind in dict.fromkeys(plan):
        yield Draw(rng, count, dim, dtype, INDEX_KINDS[kind])


def check_reads(kernel: Kernel, draw: Draw) -> None:
    """Every read moves exactly what NumPy says."""
    made = {name: case.make(draw) for name, case in read_cases(draw.dim).items()}
    found = kernel(**{name: operand for name, (operand, _) in made.items()}, count=draw.count)
    for (name, (_, expected)), rows in zip(made.items(), found, strict=True):
        assert rows.dtype == draw.dtype
        assert_array_equal(rows, expected, f"{name}, {draw}")


def check_writes(kernel: Kernel, draw: Draw, names: Sequence[str] = tuple(WRITE_CASES)) -> None:
    """Every write leaves exactly what NumPy says: the numbers are whole, their sums exact."""
    values = draw.rows(draw.count)
    made = {name: WRITE_CASES[name].make(draw, values) for name in names}
    out = {f"out{number}": operand for number, (operand, _) in enumerate(made.values())}
    found = kernel(values, out={name: one for name, one in out.items() if one is not None})
    for (name, (operand, expected)), result in zip(made.items(), found, strict=True):
        rows = result["values"] if isinstance(result, dict) else result
        assert_array_equal(rows, expected, f"{name}, {draw}")
        if operand is not None:
            given = operand["values"] if isinstance(operand, dict) else operand
            assert rows is given


@on_types
def test_reads_are_exact(backend: str, dim: int, dtype: str) -> None:
    kernel = read_kernel(dim)
    for draw in draws(dim, dtype):
        check_reads(kernel, draw)


@on_types
def test_writes_in_the_order_of_an_index_are_exact(backend: str, dim: int, dtype: str) -> None:
    kernel = write_kernel(dim, ANY_ORDER)
    for draw in draws(dim, dtype):
        check_writes(kernel, draw, ANY_ORDER)


@on_types
def test_writes_are_exact(backend: str, dim: int, dtype: str) -> None:
    kernel = write_kernel(dim)
    for draw in draws(dim, dtype):
        check_writes(kernel, draw)


@pytest.mark.parametrize("count", [1, 700])
def test_fresh_arrays_that_are_added_to_begin_with_zeros(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = CpuBackend.allocate

    def poisoned(backend: CpuBackend, num_bytes: int) -> Any:
        memory = allocate(backend, num_bytes)
        memory[...] = 0xFF  # NaN in either type
        return memory

    monkeypatch.setattr(CpuBackend, "allocate", poisoned)
    draw = Draw(np.random.default_rng(0), count, 5, "float32", INDEX_KINDS["heavy-tailed"])
    values = draw.rows(count)
    kernel = write_kernel(5)
    out = {}
    for number, case in enumerate(WRITE_CASES.values()):
        if "index" in case.access.options:
            index = np.arange(count, dtype=np.int32)
            out[f"out{number}"] = {"index": index, "size": count + 1}
    for _ in range(2):  # planned, then by its recipe
        for name, rows in zip(WRITE_CASES, kernel(values, out=out), strict=True):
            assert np.isfinite(rows).all(), name
            case = WRITE_CASES[name]
            if case.access.name.startswith("Add") and "Pair" not in case.access.name:
                np.testing.assert_array_equal(rows.sum(axis=0), values.sum(axis=0), name)


def test_many_items_on_the_processor() -> None:
    for draw in itertools.islice(draws(5, "float32", (100_003,)), 2):
        check_reads(read_kernel(5), draw)
        check_writes(write_kernel(5), draw)
