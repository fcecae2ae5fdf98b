"""The kernels of a `BatchSolver`, generated and compiled when they are first needed."""

import time

from caspar.batch.generate.covariance_kernel import COVARIANCE_KERNEL, cached_covariance_kernel
from caspar.batch.generate.kernel import KERNEL, cached_batch_kernel
from caspar.batch.generate.shape import BatchShape
from caspar.batch.input import Batch
from caspar.batch.run import BatchRun
from caspar.codegen.source import KernelSource
from caspar.memory.array import Array
from caspar.progress import phase
from caspar.runtime.backend import Backend, Kernel

_SOURCES = {KERNEL: cached_batch_kernel, COVARIANCE_KERNEL: cached_covariance_kernel}


class CompiledKernels:
    """Kernels by name and by the structure of what they are for.

    Attributes:
        backlog_s: Seconds of tracing and compiling that no result has reported.

    Args:
        backend: Compiles them.
    """

    def __init__(self, backend: Backend) -> None:
        self.backlog_s = 0.0
        self._backend = backend
        self._kernels: dict[tuple[object, ...], Kernel] = {}

    def solving(self, shape: BatchShape) -> Kernel:
        """The kernel that solves problems."""
        return self._kernel(KERNEL, shape)

    def run(self, kernel: Kernel, batch: Batch, options: Array) -> BatchRun:
        """The kernel with the memory of a batch; see there."""
        return BatchRun(self._backend, kernel, batch, options, self._orthogonal)

    def covariance(self, shape: BatchShape) -> Kernel:
        """The kernel that finds their covariances."""
        return self._kernel(COVARIANCE_KERNEL, shape)

    def source(self, shape: BatchShape) -> KernelSource:
        """What `solving` is compiled from."""
        return cached_batch_kernel(shape, self._backend.traits.target)

    def _orthogonal(self, shape: BatchShape) -> tuple[Kernel, float]:
        """The kernel that solves what `solving` has left, and seconds of compiling it."""
        before_s = self.backlog_s
        kernel = self.solving(shape.orthogonal)
        spent_s, self.backlog_s = self.backlog_s - before_s, before_s
        return kernel, spent_s

    def take_backlog(self) -> float:
        """Those seconds."""
        spent_s, self.backlog_s = self.backlog_s, 0.0
        return spent_s

    def _kernel(self, name: str, shape: BatchShape) -> Kernel:
        key = (name, shape.structure)
        if key not in self._kernels:
            start = time.perf_counter()
            with phase("generating the kernel of a batch"):
                source = _SOURCES[name](shape, self._backend.traits.target)
            with phase("compiling the kernel of a batch"):
                self._kernels[key] = self._backend.load([source])[name]
            self.backlog_s += time.perf_counter() - start
        return self._kernels[key]
