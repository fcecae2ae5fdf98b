"""Solvers that tests share: kernels are compiled once for each set of factors and precision."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import caspar
from caspar.codegen.source import KernelSource
from caspar.options import BackendName, PrecisionName
from caspar.runtime.backend import Kernel
from caspar.runtime.cpu.backend import CpuBackend
from tests.harness import CudaModule, compile_cuda
from tests.harness_backend import HarnessBackend, HarnessKernel
from tests.problems import EXAMPLES

Arrays = dict[str, Any]

ON_BACKENDS = pytest.mark.parametrize(
    "backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)


@cache
def solver(
    factors: tuple[caspar.Factor, ...],
    precision: PrecisionName = "float64",
    backend: BackendName = "cpu",
) -> caspar.Solver:
    """A solver of these factors, made once."""
    return caspar.Solver(factors, backend=backend, precision=precision)


def solve_example(
    name: str,
    arrays: Mapping[str, Any],
    precision: str = "float64",
    backend: BackendName = "cpu",
    **options: Any,
) -> caspar.SolveResult:
    """Solve arrays of one of `tests.problems.EXAMPLES`."""
    return solver(EXAMPLES[name].factors, precision, backend).solve(arrays, **options)


def changed(arrays: Mapping[str, Any], path: str, value: Any) -> Arrays:
    """A copy of nested arrays with one entry replaced; `path` is like "between.start"."""
    first, _, rest = path.partition(".")
    return {**arrays, first: changed(arrays.get(first, {}), rest, value) if rest else value}


def without(arrays: Mapping[str, Any], path: str) -> Arrays:
    """A copy of nested arrays without one entry."""
    first, _, rest = path.partition(".")
    kept = {name: value for name, value in arrays.items() if name != first}
    return {**kept, first: without(arrays[first], rest)} if rest else kept


def assert_same_values(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """The same node types with the same bits."""
    assert list(first) == list(second)
    for name in first:
        assert np.asarray(first[name]).dtype == np.asarray(second[name]).dtype
        assert_array_equal(first[name], second[name])


class Unhurried(HarnessBackend):
    """Compiles a kernel when it is launched for the first time: few, where nothing is solved."""

    def load(self, sources: Sequence[KernelSource], *_: Any, **__: Any) -> dict[str, Kernel]:
        """Compile nothing yet."""
        return {one.name: HarnessKernel(one, _Late(one), one.block_size) for one in sources}


class _Late(CudaModule):
    def __init__(self, source: KernelSource) -> None:
        self._source = source

    def launch(self, *arguments: Any, **options: Any) -> None:
        defines = {"CHOSEN_BLOCK_SIZE": str(self._source.block_size)}
        compile_cuda(self._source.text, defines=defines).launch(*arguments, **options)


class Poisoned(CpuBackend):
    """The processor, with new memory full of one byte.

    Args:
        byte: In all of it; 0xFF is NaN of every floating type.
    """

    def __init__(self, byte: int) -> None:
        self._byte = byte

    def allocate(self, num_bytes: int) -> Any:
        """Memory whose content must not matter."""
        memory = super().allocate(num_bytes)
        memory[:] = self._byte
        return memory


def moved(arrays: Arrays, seed: int = 1) -> Arrays:
    """Other start values and measurements of the same structure."""
    random = np.random.default_rng(seed)

    def shaken(rows: Any) -> Any:
        if isinstance(rows, dict):
            return {name: shaken(value) for name, value in rows.items()}
        if np.issubdtype(np.asarray(rows).dtype, np.integer):
            return rows
        return rows + 0.02 * random.standard_normal(np.shape(rows))

    return {name: shaken(rows) for name, rows in arrays.items()}


def assert_same_result(found: caspar.SolveResult, wanted: caspar.SolveResult) -> None:
    assert found.status is wanted.status
    assert (found.initial_cost, found.final_cost) == (wanted.initial_cost, wanted.final_cost)
    assert [record.cost for record in found.iterations] == [
        record.cost for record in wanted.iterations
    ]
    assert_same_values(found.values, wanted.values)
