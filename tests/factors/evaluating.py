"""Factors of the library on numbers: residuals and Jacobians without a compiler."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.trace import TracedFactor, trace
from caspar.ir.dtype import DType
from tests.frontend.symbolic.test_tangent_jacobians import residual_and_jacobians, retracted

Array = NDArray[np.float64]

STEP = 1e-5


def storage(values: Any, count: int) -> Array:
    """(count, dim) rows: matrices column by column, a value for all repeated."""
    array = np.asarray(values, np.float64)
    if array.ndim == 3:
        array = array.transpose(0, 2, 1).reshape(len(array), -1)
    return np.broadcast_to(array, (count, array.shape[-1])).copy()


def inputs_of(traced: TracedFactor, values: Mapping[str, Any], count: int) -> dict[str, Array]:
    """Storage by the arguments of kernels."""
    return {one.name: storage(values[one.source], count) for one in traced.arguments}


def residuals(
    factor: Factor, values: Mapping[str, Any], count: int, dtype: DType = DType.FLOAT64
) -> tuple[Array, dict[str, Array]]:
    """(count, rows) residuals, and by node arguments (count, rows, tangent_dim) Jacobians.

    Args:
        factor: Of the library.
        values: (count, dim), or (dim,) for all, by argument.
        count: Instances.
        dtype: What it is computed in.
    """
    traced = trace(factor)
    return residual_and_jacobians(traced, inputs_of(traced, values, count), dtype)


def difference_jacobians(factor: Factor, values: Mapping[str, Any], count: int) -> dict[str, Array]:
    """The same Jacobians from central differences through SymForce's retraction."""
    traced = trace(factor)
    at = inputs_of(traced, values, count)
    found = {}
    for argument in traced.nodes:
        steps = STEP * np.concatenate([sign * np.eye(argument.tangent_dim) for sign in (1.0, -1.0)])
        repeated = {name: np.concatenate([rows] * len(steps)) for name, rows in at.items()}
        repeated[argument.name] = np.stack(
            [retracted(argument, row, step) for step in steps for row in at[argument.name]]
        )
        ends = residual_and_jacobians(traced, repeated, nodes=())[0]
        forward, backward = ends.reshape(2, argument.tangent_dim, count, -1)
        found[argument.name] = ((forward - backward) / (2.0 * STEP)).transpose(1, 2, 0)
    return found
