"""Running a kernel three ways: CPU backend, CUDA source in the harness, NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.codegen.cuda.header import HEADER
from caspar.codegen.cuda.places import with_wide_places
from caspar.codegen.source import KernelSource
from caspar.codegen.targets import TARGETS, Target
from caspar.driver import compile_kernel
from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec
from caspar.memory.array import Binding, at_present
from caspar.memory.kernel import KernelSpec
from caspar.memory.tiling.node_tiles import NodeTiles
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.parameters import bound_blocks, parameter_sources
from tests.harness import CudaModule, compile_cuda
from tests.support_cases import KernelCase, Run
from tests.support_memory import (
    canaries_live,
    place,
)

Array = NDArray[Any]


class CompiledKernels:
    """Kernels compiled for the CPU backend and, in one translation unit, for the harness.

    Args:
        specs: The kernels.
        cpu: Whether they exist for the CPU backend.
    """

    def __init__(self, specs: Sequence[KernelSpec], *, cpu: bool = True) -> None:
        self.cuda_sources = generate(specs, TARGETS["cuda"])
        self._wide_module: CudaModule | None = None
        cuda_text = one_text(list(self.cuda_sources.values()))
        with ThreadPoolExecutor(1) as pool:  # the host compiler works beside LLVM
            module = pool.submit(compile_cuda, cuda_text)
            cpu_sources = generate(specs, TARGETS["cpu"]) if cpu else {}
            self._backend = CpuBackend()
            self.cpu_kernels = self._backend.load(list(cpu_sources.values()))
            self.cuda_module = module.result(300.0)

    def run_cpu(self, case: KernelCase) -> Run:
        """Run on the CPU backend."""
        kernel = self.cpu_kernels[case.spec.name]
        bindings = case.bindings(kernel.source.block_size)
        launch = self._backend.bind(kernel, bindings, case.num_slots(kernel.source.block_size))
        self._backend.sequence([launch]).run()
        return Run(case, bindings, kernel.source.block_size, writes_pads=False)

    def run_cuda(self, case: KernelCase, *, check_races: bool = True) -> Run:
        """Run the CUDA source in the harness."""
        source = self.cuda_sources[case.spec.name]
        tile_size = source.block_size
        if source.few_items:
            tile_size = -(-case.count // source.num_blocks(case.count, tile_size))
        bindings = case.bindings(tile_size, stretches=source.stretches)
        count = case.num_slots(tile_size)
        module = self._module_for(case.node_tiles(tile_size))
        launch_cuda(module, source, bindings, count, check_races=check_races)
        return Run(case, bindings, tile_size, writes_pads=True)

    def _module_for(self, tiles: NodeTiles | None) -> CudaModule:
        if tiles is None or tiles.place.dtype == np.uint32:
            return self.cuda_module
        if self._wide_module is None:
            sources = [with_wide_places(source) for source in self.cuda_sources.values()]
            self._wide_module = compile_cuda(one_text(sources))
        return self._wide_module

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
    values = [*map(at_present, parameter_sources(source.params, bindings, count))]
    args = [
        value
        if not isinstance(value, int)
        else (np.uint32 if param.is_unsigned else np.int32)(value)
        for param, value in zip(source.params, values, strict=True)
    ]
    num_blocks = bound_blocks(source, bindings, count, source.block_size)
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
