"""The CUDA backend: NVRTC through CuPy, launches captured in CUDA graphs.

Machine code is kept in caspar's store. All work goes to one stream of its own; results are read
after it is synchronised. Denormal float32 numbers are flushed to zero, as CuPy's own kernels do.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

import cupy

from caspar.codegen.cuda.header import BLOCK_SIZE
from caspar.codegen.source import KernelSource
from caspar.memory.array import Array, Binding, Late
from caspar.runtime.backend import CUDA_TRAITS, Kernel, Launch, LaunchSequence, Loop, PlainDecision
from caspar.runtime.cuda.compile.compilation import Compilation, compilation
from caspar.runtime.cuda.compile.kernel import CudaKernel, loaded_usage, resident_blocks
from caspar.runtime.cuda.launch.launch import CudaLaunch, CudaSequence
from caspar.runtime.cuda.loop.loop import (
    CudaLoop,
    fits_device,
    fused_launch,
    merged_launches,
    own_launch,
)
from caspar.runtime.cuda.loop.plain_steps import CudaPlainSteps
from caspar.runtime.cuda.loop.repeat import repeated_loop
from caspar.runtime.cuda.structure.indexing import CudaIndexing
from caspar.runtime.factorization import DenseFactorization, SparseFactorization
from caspar.runtime.nvidia.occupancy import KernelUsage
from caspar.runtime.parameters import bound_parts

WAVES_THAT_PAY = 2
"""Waves of blocks above which better options for a kernel of node tiles are looked for: its
launches are long enough for a few per cent to count (docs/design/0012-elimination.md)."""


class CudaBackend(CudaIndexing):
    """One CUDA device: the current one; `BackendError` if none answers."""

    name = "cuda"
    traits = CUDA_TRAITS
    tile_size = BLOCK_SIZE

    @cached_property
    def _compilation(self) -> Compilation:
        return compilation(self._device.id, self.device)

    def begin(
        self, source: KernelSource, block_size: int | None = None, *, is_settled: bool = False
    ) -> None:
        """Compile a kernel in another thread, while Python goes on."""
        self._compilation.begin_structure(tiled=source.tiled)
        is_allowed = block_size is not None and block_size in source.block_sizes
        size = block_size if block_size is not None and is_allowed else source.block_size
        self._compilation.begin_with_others(source, size, is_settled=is_settled)

    def load(
        self,
        sources: Sequence[KernelSource],
        block_size: int | None = None,
        *,
        is_settled: bool = False,
    ) -> Mapping[str, Kernel]:
        """Compile kernels in parallel threads."""
        self._compilation.begin_structure(tiled=any(source.tiled for source in sources))
        return self._compilation.load(sources, block_size, is_settled=is_settled)

    def bind(
        self, kernel: Kernel | Late, bindings: Mapping[str, Binding], count: int | Late
    ) -> Launch:
        """Fix grid and arguments."""
        launch = CudaLaunch(*bound_parts(kernel, bindings, count))
        bound = launch.kernel
        if not bound.is_settled and launch.num_blocks > WAVES_THAT_PAY * self.resident_blocks(
            bound
        ):
            self._compilation.search.add(bound.source, bound.block_size)
        return launch

    def sequence(self, launches: Sequence[Launch]) -> LaunchSequence:
        """Put launches in a row."""
        return CudaSequence(self.stream, [own_launch(launch) for launch in launches])

    def loop(
        self,
        phases: Sequence[Sequence[Launch]],
        flag: Array,
        scalars: Array,
        *,
        fused: bool | None = None,
    ) -> Loop:
        """One cooperative kernel where the device holds all blocks of each phase.

        Else, or where not `fused`, a graph that repeats itself, or graphs that the host launches
        until it reads the flag.
        """
        with self._device:
            if fused is None:
                fused = fits_device(phases)
            if fused:
                return CudaLoop(fused_launch(phases, flag, scalars, self.device))
            launches = merged_launches(phases, flag, scalars, self.device)
            polled = partial(CudaSequence, self.stream, launches)
            return repeated_loop(self.stream, launches, flag, polled)

    def plain_steps(
        self,
        decision: PlainDecision,
        step: Sequence[LaunchSequence],
        accept: LaunchSequence,
        scalars: Sequence[Array],
        diagonals: Sequence[Array],
    ) -> CudaPlainSteps:
        """A graph that the device repeats; its kernel is compiled meanwhile."""
        source = KernelSource("decide", decision.text, (), (BLOCK_SIZE,))
        kernel = self._compilation.begin(source, BLOCK_SIZE, is_settled=True)
        launches: list[CudaLaunch] = []
        for part in step:
            assert isinstance(part, CudaSequence)
            for one in part.launches:
                assert isinstance(one, CudaLaunch)
                launches.append(one)
        made = CudaPlainSteps(self.stream, kernel.result, decision, launches, accept)
        made.bind_again(scalars, diagonals)
        return made

    def dense_factorization(self, size: int, outcome: Array | None = None) -> DenseFactorization:
        """Cholesky factorisation by cuSOLVER."""
        from caspar.runtime.cuda.direct.dense import CusolverCholesky

        return CusolverCholesky(size, outcome)

    def sparse_factorization(
        self, indptr: Array, indices: Array, size: int, outcome: Array | None = None
    ) -> SparseFactorization:
        """L D L^T by cuDSS."""
        from caspar.runtime.cuda.direct.cudss import CudssFactorization

        return CudssFactorization(indptr, indices, size, outcome)

    def runner(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """A call that enqueues launches in order on the caller's current stream."""
        own = [own_launch(launch) for launch in launches]

        def run() -> None:
            for launch in own:
                launch.run()

        return own[0].run if len(own) == 1 else run

    def repeated_runner(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """The same for many runs, as one CUDA graph: 3 us a run, where one launch takes 5."""
        own = [own_launch(launch) for launch in launches]
        if len(own) == 0:
            return self.runner(own)
        sequence = CudaSequence(self.stream, own)
        direct = self.runner(own)

        def run() -> None:
            stream = cupy.cuda.get_current_stream()
            if stream.is_capturing():
                direct()  # a graph cannot be launched into another that is being captured
            else:
                sequence.graph.launch(stream=stream)

        return run

    def usage(self, kernel: Kernel) -> KernelUsage | None:
        """Return the resources of the loaded kernel, as the driver reports them."""
        assert isinstance(kernel, CudaKernel)
        with self._device:
            return loaded_usage(kernel)

    def resident_blocks(self, kernel: Kernel) -> int:
        """Return how many of its blocks the multiprocessors hold, if they hold nothing else."""
        assert isinstance(kernel, CudaKernel)
        with self._device:
            return resident_blocks(kernel) * self.num_multiprocessors
