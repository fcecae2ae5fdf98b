"""The kernels of a `BatchSolver`, and one of them with the memory of a batch: bound, run, read.

Kernels are generated and compiled when they are first needed. Input of a run: checked arrays.
Output: the arrays of a `BatchResult`. Once for each solve; the device holds values, outputs and
what was given, and nothing else.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.batch.generate import parameters as names
from caspar.batch.generate.covariance_kernel import COVARIANCE_KERNEL, cached_covariance_kernel
from caspar.batch.generate.kernel import KERNEL, cached_batch_kernel
from caspar.batch.generate.shape import BatchShape
from caspar.batch.input import Batch
from caspar.batch.options import options_of_singular
from caspar.batch.result import STATUSES, equal_violations
from caspar.codegen.source import KernelSource
from caspar.ir.dtype import DType
from caspar.memory.array import Array, Binding
from caspar.progress import phase
from caspar.runtime.arrays import HOST, Moved, as_library, give_back, location
from caspar.runtime.backend import Backend, Kernel
from caspar.solver.result.result import SolveStatus

_SOURCES = {KERNEL: cached_batch_kernel, COVARIANCE_KERNEL: cached_covariance_kernel}


class CompiledKernels:
    """Kernels by name and by the structure of what they are for.

    Attributes:
        backlog_s: Seconds of tracing and compiling that no result has reported.
    """

    def __init__(self, backend: Backend) -> None:
        self.backlog_s = 0.0
        self._backend = backend
        self._kernels: dict[tuple[object, ...], Kernel] = {}

    def solving(self, shape: BatchShape) -> Kernel:
        """The kernel that solves problems."""
        return self._kernel(KERNEL, shape)

    def run(self, kernel: Kernel, batch: Batch, options: Array) -> "BatchRun":
        """The kernel with the memory of a batch; see there."""
        return BatchRun(self._backend, kernel, batch, options, self._orthogonal)

    def covariance(self, shape: BatchShape) -> Kernel:
        """The kernel that finds their covariances."""
        return self._kernel(COVARIANCE_KERNEL, shape)

    def source(self, shape: BatchShape) -> KernelSource:
        """Return the source that `solving` is compiled from."""
        return cached_batch_kernel(shape, self._backend.traits.target)

    def _orthogonal(self, shape: BatchShape) -> tuple[Kernel, float]:
        """The kernel that solves what `solving` has left, and seconds of compiling it."""
        before_s = self.backlog_s
        kernel = self.solving(shape.orthogonal)
        spent_s, self.backlog_s = self.backlog_s - before_s, before_s
        return kernel, spent_s

    def take_backlog(self) -> float:
        """Return the seconds that no result has reported, and forget them."""
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


def input_bindings(backend: Backend, batch: Batch) -> dict[str, Binding]:
    """Return the bindings that a kernel reads of problems, by its arguments."""
    arrays: dict[str, Array] = {}
    strides: dict[str, int] = {}
    for number, nodes in enumerate(batch.shape.nodes):
        name = nodes.node.name
        arrays[names.values_name(number)] = backend.upload(batch.starts[name])
        if nodes.is_masked:
            arrays[names.free_name(number)] = backend.upload(batch.free[name])
        if nodes.is_bounded:
            limits = map(backend.upload, batch.bounds[name].limits)
            arrays |= zip(names.bounds_names(number), limits, strict=True)
    for name, (array, stride) in batch.arrays.items():
        arrays[name], strides[name] = backend.upload(array), stride
    bindings = {
        name: Binding(array, 0, fields={names.STRIDE: strides.get(name, 0)})
        for name, array in arrays.items()
    }
    no_array = arrays[names.values_name(0)]
    for number, length in batch.instances.items():
        fields = {names.INSTANCES: length}
        bindings[names.factor_name(number)] = Binding(no_array, 0, fields=fields)
    return bindings


class BatchRun:
    """A kernel with the memory of one batch.

    `options` are by `Option`; `orthogonal` gives the kernel that solves what this one leaves, and
    seconds of compiling it.

    Attributes:
        compile_time_s: Seconds of compiling in the run.
        ends: By node type (P * count, storage_dim) the values that the kernel writes.
        outputs: By name (P,) costs, iterations and statuses that it writes.
    """

    def __init__(
        self,
        backend: Backend,
        kernel: Kernel,
        batch: Batch,
        options: NDArray[np.float64],
        orthogonal: Callable[[BatchShape], tuple[Kernel, float]],
    ) -> None:
        self.compile_time_s = 0.0
        self._kernel, self._orthogonal = kernel, orthogonal
        self._backend = backend
        self._batch = batch
        xp, count, nodes = backend.xp, batch.num_problems, batch.shape.nodes
        storage = batch.shape.storage.value
        bindings = input_bindings(backend, batch)
        self._starts = [bindings[names.values_name(place)].data for place in range(len(nodes))]
        self.ends = [xp.empty(start.shape, storage) for start in self._starts]
        self.outputs = {
            names.INITIAL_COST: xp.empty(count, np.float64),
            names.FINAL_COST: xp.empty(count, np.float64),
            names.ITERATIONS: xp.empty(count, np.int32),
            names.STATUS: xp.empty(count, np.int32),
        }
        self._options = options
        others = {names.result_name(place): end for place, end in enumerate(self.ends)}
        others |= self.outputs
        self._bindings = bindings | {name: Binding(array, 0) for name, array in others.items()}
        self._first = None if count == 0 else self._bound(kernel, options)

    def launch(self) -> None:
        """Run the kernel, and then those to which problems are left; see `generate.kernel`."""
        if self._first is None or not self._leaves_problems(self._first):
            return
        orthogonal, self.compile_time_s = self._orthogonal(self._batch.shape)
        if self._leaves_problems(self._bound(orthogonal, self._options)):
            again = self._bound(self._kernel, options_of_singular(self._options))
            self._leaves_problems(again)

    def _bound(
        self, kernel: Kernel, options: NDArray[np.float64]
    ) -> tuple[Callable[[], None], Array]:
        """Return a runner of a kernel, and a flag that it left problems to another kernel."""
        backend = self._backend
        handed = backend.xp.zeros(1, np.int32)
        own = {names.OPTIONS: backend.upload(options)}
        if self._batch.shape.storage is DType.FLOAT64:
            own[names.HANDED] = handed
        bindings = self._bindings | {name: Binding(array, 0) for name, array in own.items()}
        bound = backend.bind(kernel, bindings, self._batch.num_problems)
        return backend.runner([bound]), handed

    def _leaves_problems(self, bound: tuple[Callable[[], None], Array]) -> bool:
        run, handed = bound
        run()
        is_exact = self._batch.shape.storage is DType.FLOAT64
        return is_exact and bool(self._backend.to_host(handed)[0] != 0)

    def found(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `BatchResult`, as the kind of arrays that were given."""
        return found_arrays(
            self._backend, self._batch, arrays, self._starts, self.ends, self.outputs
        )


def found_arrays(
    backend: Backend,
    batch: Batch,
    arrays: Mapping[str, Any],
    starts: Sequence[Array],
    ends: Sequence[Array],
    outputs: Mapping[str, Array],
) -> dict[str, Any]:
    """Return the fields of `BatchResult`, as the kind of arrays that were given.

    `starts` and `ends`: By node type (P * count, storage_dim) values before and after the run, on
    the device. `outputs`: (P,) costs, iterations and statuses, by name.
    """
    values, active = {}, {}
    for start, end, nodes in zip(starts, ends, batch.shape.nodes, strict=True):
        name = nodes.node.name
        given = arrays[name]
        moved = Moved(start, end, has_held=nodes.is_masked)
        flat = given.reshape(start.shape) if hasattr(given, "reshape") else given
        made = give_back(moved, flat, batch.dtypes[name], backend.to_host, backend.upload)
        values[name] = made.reshape(given.shape) if hasattr(given, "shape") else made
        if nodes.is_bounded:
            at_bounds = batch.bounds[name].active(backend.to_host(end))
            shape = (batch.num_problems, nodes.count, -1)[:: 1 if nodes.count > 1 else 2]
            active[name] = at_bounds.reshape(shape)
    like = arrays[batch.shape.nodes[0].node.name]
    status, iterations = outputs[names.STATUS], outputs[names.ITERATIONS]
    if batch.may_be_empty:
        is_empty = backend.upload(batch.num_residuals) == 0
        status[is_empty] = STATUSES.index(SolveStatus.NO_RESIDUALS)
        iterations[is_empty] = 0
    found = {
        "status_codes": status,
        "initial_cost": outputs[names.INITIAL_COST],
        "final_cost": outputs[names.FINAL_COST],
        "iterations": iterations,
        "num_residuals": backend.upload(batch.num_residuals),
    }
    given_kind = {name: given_back(array, like, backend) for name, array in found.items()}
    violation = equal_violations(batch.num_problems)
    return {"values": values, "active_bounds": active, "violation": violation, **given_kind}


def given_back(array: Array, like: Any, backend: Backend) -> Any:
    """An array of the device as the kind of array that the user gave, where that is."""
    return as_library(backend.to_host(array) if location(like) == HOST else array, like)
