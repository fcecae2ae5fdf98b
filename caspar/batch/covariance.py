"""Covariances of the problems of a batch.

Input: checked arrays in float64, with the values after a solve. Output: (P, n, n), on the backend's
device. One kernel, see `generate.covariance_kernel`; and another one if problems are
ill-conditioned, or of many unknowns.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from caspar.batch.generate import parameters as names
from caspar.batch.generate.shape import BatchShape, Team
from caspar.batch.gradients.given import kept
from caspar.batch.input import Batch
from caspar.batch.result import BatchResult
from caspar.batch.run import given_back, input_bindings
from caspar.memory.array import Array, Binding
from caspar.runtime.backend import Backend, Kernel
from caspar.solver.covariance.inverses import FREE_SINGULAR_VALUE


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
    backend: Backend,
    kernel_of: Callable[[BatchShape], Kernel],
    batch: Batch,
    like: Any,
    *,
    scales_by_variance: bool,
) -> Any:
    """The covariance of each problem's unknowns, NaN where they are not determined.

    `kernel_of` gives the kernel for a shape; `batch` has no bounds; the result has library and
    device of `like`. `scales_by_variance`: Multiply by the sum of squared residuals over the
    degrees of freedom.
    """
    xp, count, size = backend.xp, batch.num_problems, batch.shape.num_unknowns
    costs, handed = xp.empty(count), xp.zeros(1, np.int32)
    bindings = input_bindings(backend, batch)

    def written(shape: BatchShape) -> Array:
        found = xp.empty((count, size, size))
        outputs = {names.COVARIANCE: found, names.FINAL_COST: costs, names.HANDED: handed}
        own = bindings | {name: Binding(array, 0) for name, array in outputs.items()}
        if count > 0:
            backend.runner([backend.bind(kernel_of(shape), own, count)])()
        return found

    if batch.shape.team is Team.WARP and count > 0:
        found = _inverses(xp, written(batch.shape.orthogonal), _all_moving(backend, batch))
    else:
        found = written(batch.shape)
        if backend.to_host(handed)[0] != 0:
            is_lost = xp.isnan(found).any(axis=(1, 2))
            moves = _all_moving(backend, batch)[is_lost]
            found[is_lost] = _inverses(xp, written(batch.shape.orthogonal)[is_lost], moves)
    if scales_by_variance:
        found *= _variances(backend, batch, costs)[:, None, None]
    backend.synchronize()
    return given_back(found, like, backend)


def _variances(backend: Backend, batch: Batch, costs: Array) -> Array:
    """(P,) sums of squared residuals over degrees of freedom; NaN without these."""
    xp, count = backend.xp, batch.num_problems
    moving = sum(
        (_moving(backend, batch, one.node.name, one.tangent_size) for one in batch.shape.nodes),
        start=xp.zeros(count),
    )
    left = backend.upload(batch.num_residuals) - moving
    # without degrees of freedom there is no variance
    variances: Array = xp.where(left > 0, 2.0 * costs / xp.maximum(left, 1), xp.nan)
    return variances


def _all_moving(backend: Backend, batch: Batch) -> Array:
    """(P, n) which unknowns move."""
    xp, count = backend.xp, batch.num_problems
    parts = [
        backend.upload(batch.free[one.node.name]).reshape(count, one.tangent_size) > 0.5
        if one.node.name in batch.free
        else xp.ones((count, one.tangent_size), dtype=bool)
        for one in batch.shape.nodes
    ]
    return xp.concatenate(parts, axis=1)


def _inverses(xp: Any, roots: Array, moves: Array) -> Array:
    """The inverses of R^T R, of (P, n, n) triangles R, whose columns are scaled to length 1.

    Zero where something is held; NaN if R has not full rank to rounding.
    """
    lengths = xp.sqrt((roots * roots).sum(axis=1))
    scale = 1.0 / xp.where(lengths > 0.0, lengths, 1.0)
    scaled = roots * scale[:, None, :]
    diagonal = xp.diagonal(scaled, axis1=1, axis2=2)
    is_regular = xp.isfinite(scaled).all(axis=(1, 2))
    is_regular &= (diagonal > FREE_SINGULAR_VALUE).all(axis=1)
    safe = xp.where(is_regular[:, None, None], scaled, xp.eye(roots.shape[1]))
    inverses = xp.linalg.inv(safe)
    is_regular &= FREE_SINGULAR_VALUE * xp.sqrt((inverses * inverses).sum(axis=(1, 2))) < 1.0
    inverses *= scale[:, :, None]
    both = moves[:, :, None] & moves[:, None, :]
    found = xp.where(both, inverses @ inverses.swapaxes(1, 2), 0.0)
    return xp.where(is_regular[:, None, None], found, xp.nan)


def _moving(backend: Backend, batch: Batch, name: str, size: int) -> Any:
    """(P,) components of a node type that move."""
    if name not in batch.free:
        return backend.xp.full(batch.num_problems, float(size))
    return backend.upload(batch.free[name]).reshape(batch.num_problems, size).sum(axis=1)


def arrays_after(
    solved: BatchResult | Mapping[str, Any],
    fixed: Mapping[str, Any] | None,
    bounds: Mapping[str, Any] | None,
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Arrays with the values after a solve, what is held, and bounds: by default those of a result.

    Raises:
        InputError: The result is a copy, which does not hold its arrays; or they have been written
            to since the solve.
    """
    if isinstance(solved, Mapping):
        return solved, fixed, bounds
    given = kept(solved)
    known = given.constraints
    return (
        given.with_values(solved.values),
        known.fixed if fixed is None else fixed,
        known.bounds if bounds is None else bounds,
    )
