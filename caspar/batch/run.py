"""A kernel with the memory of one batch: bound, run, and what it found.

Input: checked arrays and a compiled kernel. Output: the arrays of a `BatchResult`. Once for each
solve; the device holds values, outputs and what was given, and nothing else.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from caspar.batch import parameters as names
from caspar.batch.input import Batch
from caspar.batch.result import STATUSES
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.runtime.arrays import HOST, Moved, as_library, give_back, location
from caspar.runtime.backend import Backend, Kernel
from caspar.solver.result.result import SolveStatus


class BatchRun:
    """A kernel with the memory of one batch.

    Args:
        backend: Where it runs.
        kernel: What runs.
        batch: Checked arrays.
        options: What the kernel reads, by `Option`.
    """

    def __init__(self, backend: Backend, kernel: Kernel, batch: Batch, options: Array) -> None:
        self._backend = backend
        self._batch = batch
        xp, count = backend.xp, batch.num_problems
        storage = batch.shape.storage.value
        self._starts = [backend.upload(batch.starts[one.node.name]) for one in batch.shape.nodes]
        self._ends = [xp.empty(start.shape, storage) for start in self._starts]
        self._outputs = {
            names.INITIAL_COST: xp.empty(count, np.float64),
            names.FINAL_COST: xp.empty(count, np.float64),
            names.ITERATIONS: xp.empty(count, np.int32),
            names.STATUS: xp.empty(count, np.int32),
        }
        arrays: dict[str, Array] = {names.OPTIONS: backend.upload(options), **self._outputs}
        strides: dict[str, int] = {}
        for number, nodes in enumerate(batch.shape.nodes):
            arrays[names.values_name(number)] = self._starts[number]
            arrays[names.result_name(number)] = self._ends[number]
            if nodes.is_masked:
                arrays[names.free_name(number)] = backend.upload(batch.free[nodes.node.name])
        for name, (array, stride) in batch.arrays.items():
            arrays[name], strides[name] = backend.upload(array), stride
        bindings = {
            name: Binding(array, 0, fields={names.STRIDE: strides.get(name, 0)})
            for name, array in arrays.items()
        }
        for number, length in batch.instances.items():
            name = names.factor_name(number)
            bindings[name] = Binding(arrays[names.STATUS], 0, fields={names.INSTANCES: length})
        self._run = None if count == 0 else backend.runner([backend.bind(kernel, bindings, count)])

    def launch(self) -> None:
        """Enqueue the kernel."""
        if self._run is not None:
            self._run()

    def found(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """What `BatchResult` holds of it, as the kind of arrays that were given."""
        backend, batch = self._backend, self._batch
        values = {}
        for start, end, nodes in zip(self._starts, self._ends, batch.shape.nodes, strict=True):
            name = nodes.node.name
            given = arrays[name]
            moved = Moved(start, end, has_held=nodes.is_masked)
            flat = given.reshape(start.shape) if hasattr(given, "reshape") else given
            made = give_back(moved, flat, batch.dtypes[name], backend.to_host, backend.upload)
            values[name] = made.reshape(given.shape) if hasattr(given, "shape") else made
        like = arrays[batch.shape.nodes[0].node.name]
        status, iterations = self._outputs[names.STATUS], self._outputs[names.ITERATIONS]
        if batch.may_be_empty:
            is_empty = backend.upload(batch.num_residuals) == 0
            status[is_empty] = STATUSES.index(SolveStatus.NO_RESIDUALS)
            iterations[is_empty] = 0
        is_host = location(like) == HOST

        def given_back(array: Array) -> Any:
            return as_library(backend.to_host(array) if is_host else array, like)

        return {
            "values": values,
            "status_codes": given_back(status),
            "initial_cost": given_back(self._outputs[names.INITIAL_COST]),
            "final_cost": given_back(self._outputs[names.FINAL_COST]),
            "iterations": given_back(iterations),
            "num_residuals": given_back(backend.upload(batch.num_residuals)),
        }
