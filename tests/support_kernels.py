"""Running a kernel three ways: CPU backend, CUDA source in the harness, NumPy.

A `KernelCase` says what a kernel is bound to. Each way gets fresh memory from it: outputs are
poisoned with NaN, arrays are longer than needed and lie between canaries, so that comparing whole
arrays shows what was written where nothing should be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.codegen.cuda_header import HEADER
from caspar.codegen.source import KernelSource
from caspar.driver import TARGETS, Target, compile_kernel
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph
from caspar.memory.access import ArgSpec
from caspar.memory.accessors.partials import tile_fields
from caspar.memory.binding import Binding
from caspar.memory.kernel import KernelSpec
from caspar.memory.patterns import (
    AddSharedPartials,
    AddSumPartials,
    ReadIndexed,
    ReadPartials,
    ReadUnique,
    WriteUnique,
)
from caspar.memory.tiles import build_tile_index
from caspar.runtime.backend import parameter_values
from caspar.runtime.cpu import CpuBackend
from tests.harness import CudaModule, compile_cuda
from tests.support_memory import canaries_live, place, tile_partials, with_canaries

Array = NDArray[Any]

SPARE = 3
"""Objects, rows or partials an array has beyond those the kernel needs."""

OFFSET = 1
"""Partial of tile 0 of a `AddSumPartials()`."""


@dataclass(frozen=True)
class KernelCase:
    """What a kernel is run on.

    Attributes:
        spec: The kernel.
        count: Items.
        rows: (length, dim) values of each argument that is read.
        index: (count,) object of each item, of each INDEXED or ADD_SHARED argument.
        num_objects: Objects that the indices of ADD_SHARED arguments may name.
    """

    spec: KernelSpec
    count: int
    rows: Mapping[str, Array]
    index: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)
    num_objects: int = 1

    @property
    def coarsest_eps(self) -> float:
        """Machine epsilon of the coarsest type the kernel uses."""
        dtypes = [self.spec.graph.dtype, *(arg.dtype for arg in self.spec.args)]
        return max(float(np.finfo(dtype.value).eps) for dtype in dtypes)

    def perturbed(self, relative: float, seed: int) -> KernelCase:
        """The same with every input off by a relative error, up or down."""
        rng = np.random.default_rng(seed)
        rows = {
            name: values * (1.0 + relative * rng.choice([-1.0, 1.0], values.shape))
            for name, values in self.rows.items()
        }
        return replace(self, rows=rows)

    def bindings(self, tile_size: int) -> dict[str, Binding]:
        """Fresh memory for a target whose tiles have this size."""
        return {arg.name: self._binding(arg, tile_size) for arg in self.spec.args}

    def _binding(self, arg: ArgSpec, tile_size: int) -> Binding:
        index = self.index.get(arg.name)
        fields: dict[str, Array | int] = {} if index is None else {"index": index}
        if arg.write == AddSharedPartials():
            assert index is not None
            tiles = build_tile_index(index, self.num_objects, tile_size)
            fields = tile_fields(tiles)
            length = tiles.num_partials + SPARE
        elif arg.write == AddSumPartials():
            fields = {"offset": OFFSET}
            length = OFFSET + -(-self.count // tile_size) + SPARE
        elif arg.read is None:
            length = (1 if arg.write == WriteUnique() else self.count) + SPARE
        else:
            length = len(self.rows[arg.name])
        placement = place(arg, length)
        data = np.full(placement.size, np.nan, arg.dtype.value)
        if arg.read is not None:
            data[placement.where] = self.rows[arg.name]
        return Binding(with_canaries(data), length, fields=fields)


@dataclass(frozen=True)
class Run:
    """What a kernel left behind.

    Attributes:
        case: What it ran on.
        bindings: The memory afterwards.
        tile_size: Items of a tile.
        writes_pads: Whether a store fills the pad of a chunk with zeros.
    """

    case: KernelCase
    bindings: Mapping[str, Binding]
    tile_size: int
    writes_pads: bool

    def on(self, case: KernelCase) -> Run:
        """The same way of running on another case."""
        return replace(self, case=case)

    def expected(self, dtype: DType) -> dict[str, Array]:
        """What NumPy makes of the same case, computing in a type: flat arrays."""
        before = self.case.bindings(self.tile_size)
        stored = _evaluate(self.case, before, dtype)
        return {
            arg.name: self._written(arg, before[arg.name], stored.get(arg.name))
            for arg in self.case.spec.args
        }

    def _written(self, arg: ArgSpec, binding: Binding, stored: Array | None) -> Array:
        data: Array = binding.data
        if stored is None:
            return data
        values = stored.astype(arg.dtype.value)
        placement = place(arg, binding.length)
        count = self.case.count
        if arg.write == AddSharedPartials():
            partials = tile_partials(self.case.index[arg.name], self.tile_size)
            for number, (_, items) in enumerate(partials):
                data[placement.where[number]] = values[items].sum(axis=0)
        elif arg.write == AddSumPartials():
            for tile, first in enumerate(range(0, count, self.tile_size)):
                total = values[first : first + self.tile_size].sum(axis=0)
                data[placement.where[OFFSET + tile]] = total
        else:
            num_written = 1 if arg.write == WriteUnique() else count
            data[placement.where[:num_written]] = values[:num_written]
            if self.writes_pads and len(placement.pads) > 0:
                data[placement.pads.reshape(binding.length, -1)[:num_written]] = 0.0
        return data


def _evaluate(case: KernelCase, bindings: Mapping[str, Binding], dtype: DType) -> dict[str, Array]:
    """(count, dim) values that each argument's store gets."""
    inputs = {}
    for arg in case.spec.args:
        if arg.read is None:
            continue
        binding = bindings[arg.name]
        rows = binding.data[place(arg, binding.length).where]
        if arg.read == ReadPartials():
            rows = rows.astype(np.float64).sum(axis=0, keepdims=True)
        elif arg.read == ReadUnique():
            rows = rows[:1]
        elif arg.read == ReadIndexed():
            rows = rows[case.index[arg.name]]
        inputs[arg.name] = np.broadcast_to(rows[: case.count], (case.count, arg.dim))
    lengths = {arg.name: arg.chunk_length for arg in case.spec.args}
    return evaluate_graph(replace(case.spec.graph, dtype=dtype), inputs, lengths)


class CompiledKernels:
    """Kernels compiled for the CPU backend and, in one translation unit, for the harness."""

    def __init__(self, specs: Sequence[KernelSpec]) -> None:
        self.cuda_sources = generate(specs, TARGETS["cuda"])
        cuda_text = one_text(list(self.cuda_sources.values()))
        with ThreadPoolExecutor(1) as pool:  # the host compiler works beside Numba
            module = pool.submit(compile_cuda, cuda_text)
            cpu_sources = generate(specs, TARGETS["cpu"])
            self._backend = CpuBackend()
            self.cpu_kernels = self._backend.load(list(cpu_sources.values()))
            self.cuda_module = module.result()

    def run_cpu(self, case: KernelCase) -> Run:
        """Run on the CPU backend."""
        kernel = self.cpu_kernels[case.spec.name]
        bindings = case.bindings(kernel.source.block_size)
        launch = self._backend.bind(kernel, bindings, case.count)
        self._backend.sequence([launch]).run()
        return Run(case, bindings, kernel.source.block_size, writes_pads=False)

    def run_cuda(self, case: KernelCase, *, check_races: bool = True) -> Run:
        """Run the CUDA source in the harness."""
        source = self.cuda_sources[case.spec.name]
        bindings = case.bindings(source.block_size)
        launch_cuda(self.cuda_module, source, bindings, case.count, check_races=check_races)
        return Run(case, bindings, source.block_size, writes_pads=True)

    def run(self, case: KernelCase) -> tuple[Run, Run]:
        """Run both ways."""
        return self.run_cpu(case), self.run_cuda(case)


def generate(specs: Sequence[KernelSpec], target: Target) -> dict[str, KernelSource]:
    """Sources by name."""
    return {spec.name: compile_kernel(spec, target) for spec in specs}


def one_text(sources: Sequence[KernelSource]) -> str:
    """CUDA sources as one translation unit: the header once, then every kernel."""
    assert all(source.text.startswith(HEADER) for source in sources)
    return HEADER + "".join(source.text.removeprefix(HEADER) for source in sources)


def launch_cuda(
    module: CudaModule,
    source: KernelSource,
    bindings: Mapping[str, Binding],
    count: int,
    *,
    check_races: bool = True,
) -> None:
    """Launch a kernel with the grid and arguments that the CUDA backend gives it."""
    values = parameter_values(source.params, bindings, count)
    args = [
        value
        if not isinstance(value, int)
        else (np.uint32 if param.is_unsigned else np.int32)(value)
        for param, value in zip(source.params, values, strict=True)
    ]
    num_blocks = source.num_blocks(count, source.block_size)
    grid = (num_blocks, source.num_layers)
    module.launch(source.name, grid, source.block_size, args, check_races=check_races)


def assert_exact(run: Run, dtype: DType) -> None:
    """Everything the kernel could reach holds what NumPy says, to the bit (but for zeros' sign)."""
    expected = run.expected(dtype)
    for arg in run.case.spec.args:
        assert_array_equal(run.bindings[arg.name].data, expected[arg.name], _message(run, arg))
        assert canaries_live(run.bindings[arg.name].data), _message(run, arg)


def assert_close(run: Run, roundings: float) -> None:
    """The same to rounding.

    NumPy computes in float64, also on inputs that are off by a rounding error each. A column may
    differ by so many times what that changes, plus the rounding of its largest entry.
    """
    eps = run.case.coarsest_eps
    expected = run.expected(DType.FLOAT64)
    nearby = [run.on(run.case.perturbed(eps, seed)).expected(DType.FLOAT64) for seed in range(3)]
    for arg in run.case.spec.args:
        binding = run.bindings[arg.name]
        found, wanted = binding.data.astype(np.float64), expected[arg.name].astype(np.float64)
        message = _message(run, arg)
        assert canaries_live(binding.data), message
        assert_array_equal(np.isnan(found), np.isnan(wanted), message)
        if arg.write is None:
            continue
        change = np.max([np.abs(other[arg.name] - wanted) for other in nearby], axis=0)
        column = place(arg, binding.length).column
        largest = np.nanmax(np.abs(wanted))
        for number in range(-1, arg.dim):
            chosen = (column == number) & ~np.isnan(wanted)
            size = np.max(np.abs(wanted[chosen]), initial=1e-300)
            size = largest if size < 1e-12 * largest else size  # cancels in exact arithmetic
            unit = np.max(change[chosen], initial=0.0) + eps * size
            error = np.max(np.abs(found[chosen] - wanted[chosen]), initial=0.0) / unit
            assert error <= roundings, f"{message}, column {number}: off by {error:.3g} roundings"


def _message(run: Run, arg: ArgSpec) -> str:
    return (
        f"{run.case.spec.name} on {run.case.count} items, tiles of {run.tile_size}: "
        f"argument {arg.name} ({arg.read}, {arg.write}, {arg.dim} x {arg.dtype.value})"
    )
