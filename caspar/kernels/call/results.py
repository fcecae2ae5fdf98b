"""Outputs as the user wants them: of the kind of array that was passed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from caspar.arrays.blocked_array import BlockedArray
from caspar.arrays.passed import is_array
from caspar.frontend.kernels.trace import KernelOutput
from caspar.kernels.call.operands import Operand
from caspar.kernels.call.plan import CallPlan
from caspar.memory.array import Array
from caspar.runtime.arrays import HOST, as_library, location


def give_back(
    plan: CallPlan, output: KernelOutput, operand: Operand, inputs: Iterable[Operand]
) -> Any:
    """An output as the kind of array the user works with.

    Args:
        plan: The call, already run.
        output: Which output.
        operand: What was passed for it.
        inputs: What was passed for the arguments: the first array among them decides the kind of a
            new array. sequences and numbers are none.
    """
    made = plan.outputs[output.name]
    if operand.given is not None:
        if operand.target is not None:
            _write_back(output, operand.target, plan, made.to_rows())
        return operand.given
    like = next((one.given for one in inputs if is_array(one.given)), None)
    if isinstance(like, BlockedArray):
        return made
    rows = made.to_rows()
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


def _write_back(output: KernelOutput, into: Array, plan: CallPlan, rows: Array) -> None:
    """Copy an output into the memory of the array that the user passed for it."""
    if isinstance(into, np.ndarray):
        rows = plan.backend.to_host(rows)
    into[...] = _matrices(output, rows) if into.ndim == 3 else rows.reshape(into.shape)
