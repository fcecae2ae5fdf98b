"""Outputs as the user wants them: of the kind of array that was passed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from caspar.frontend.kernel_trace import KernelOutput
from caspar.kernels.blocked_array import BlockedArray
from caspar.kernels.convert import shared_array
from caspar.kernels.plan import CallPlan
from caspar.runtime.arrays import HOST, as_library, location


def give_back(plan: CallPlan, output: KernelOutput, target: Any, inputs: Sequence[Any]) -> Any:
    """An output as the kind of array the user works with.

    Args:
        plan: The call, already run.
        output: Which output.
        target: What was passed for it in `out`; None: a new array is wanted.
        inputs: What was passed for the arguments: the first array among them decides.
    """
    made = plan.outputs[output.name]
    if isinstance(target, BlockedArray):
        return target
    like = (
        next((given for given in inputs if given is not None), None) if target is None else target
    )
    if isinstance(like, BlockedArray):
        return made
    rows = made.to_rows()
    if target is not None:
        _write_back(output, target, plan, rows)
        return target
    if len(output.matrix_shape) > 0:
        rows = _matrices(output, rows)
    elif output.is_scalar:
        rows = rows.reshape(-1)
    on_host = like is None or location(like) == HOST
    return as_library(plan.backend.to_host(rows) if on_host else rows, like)


def _matrices(output: KernelOutput, rows: Any) -> Any:
    """(n, rows, columns): SymForce stores matrices column by column."""
    num_rows, num_columns = output.matrix_shape
    return rows.reshape(-1, num_columns, num_rows).transpose(0, 2, 1)


def _write_back(output: KernelOutput, target: Any, plan: CallPlan, rows: Any) -> None:
    """Copy an output into the array the user passed for it."""
    into = shared_array(f"output {output.name}", target)
    if isinstance(into, np.ndarray):
        rows = plan.backend.to_host(rows)
    into[...] = _matrices(output, rows) if into.ndim == 3 else rows.reshape(into.shape)
