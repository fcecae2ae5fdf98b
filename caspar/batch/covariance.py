"""Covariances of the problems of a batch.

Input: checked arrays in float64, with the values after a solve. Output: (P, n, n), on the backend's
device. One kernel, see `generate.covariance_kernel`.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from caspar.batch.generate import parameters as names
from caspar.batch.input import Batch
from caspar.batch.run import input_bindings
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.runtime.backend import Backend, Kernel


def with_active_held(batch: Batch, backend: Backend) -> Batch:
    """The same without bounds: what is at one is held."""
    free = dict(batch.free)
    for name, limits in batch.bounds.items():
        given = batch.starts[name]
        rows = given if isinstance(given, np.ndarray) else backend.to_host(given)
        free[name] = np.where(limits.at_given(rows), 0.0, free[name])
    nodes = tuple(replace(one, is_bounded=False) for one in batch.shape.nodes)
    return replace(batch, free=free, bounds={}, shape=replace(batch.shape, nodes=nodes))


def find_covariances(
    backend: Backend, kernel: Kernel, batch: Batch, *, scales_by_variance: bool
) -> Array:
    """The covariance of each problem's unknowns, NaN where they are not determined.

    Args:
        backend: Where the kernel runs.
        kernel: Of `generate.covariance_kernel`.
        batch: Without bounds.
        scales_by_variance: Multiply by the sum of squared residuals over the degrees of freedom.
    """
    xp, count, size = backend.xp, batch.num_problems, batch.shape.num_unknowns
    found, costs = xp.empty((count, size, size)), xp.empty(count)
    bindings = input_bindings(backend, batch)
    outputs = {names.COVARIANCE: found, names.FINAL_COST: costs}
    bindings |= {name: Binding(array, 0) for name, array in outputs.items()}
    if count > 0:
        backend.runner([backend.bind(kernel, bindings, count)])()
    if not scales_by_variance:
        return found
    moving = sum(
        (_moving(backend, batch, one.node.name, one.tangent_size) for one in batch.shape.nodes),
        start=xp.zeros(count),
    )
    left = backend.upload(batch.num_residuals) - moving
    # without degrees of freedom there is no variance
    variance = xp.where(left > 0, 2.0 * costs / xp.maximum(left, 1), xp.nan)
    return found * variance[:, None, None]


def _moving(backend: Backend, batch: Batch, name: str, size: int) -> Any:
    """(P,) components of a node type that move."""
    if name not in batch.free:
        return backend.xp.full(batch.num_problems, float(size))
    return backend.upload(batch.free[name]).reshape(batch.num_problems, size).sum(axis=1)
