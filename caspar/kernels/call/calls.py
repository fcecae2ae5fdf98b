"""Calls of one traced kernel: as an earlier one, or planned.

Once for each call. `KernelCalls` keeps what calls of one kernel have in common: its compiled forms
and the recipes of earlier calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caspar.arrays.blocked_array import BlockedArray
from caspar.arrays.passed import is_array
from caspar.frontend.kernels.trace import KernelOutput, TracedKernel
from caspar.kernels.call.call import call_options, operands_of
from caspar.kernels.call.compiled import KernelCache
from caspar.kernels.call.operands import Operand
from caspar.kernels.call.plan import CallPlan, plan_call
from caspar.kernels.call.recipes import RecipeBook
from caspar.kernels.call.signature import CallSignature, call_signature
from caspar.memory.array import Array
from caspar.runtime.arrays import HOST, as_library, location

_OPTION_TYPES = (int, bool, str, type(None))
"""Of the options of calls that may be like an earlier one."""


@dataclass(frozen=True)
class CallChoices:
    """How a kernel is called, as the user says it.

    Attributes:
        count: Items; None: as many as the arguments stand for.
        check: Whether to test indices.
        dtype: Type to compute in; None: that of the arrays.
        backend: Where arrays of the host are worked on: `auto`, `cuda` or `cpu`.
        deterministic: Whether equal input must give equal bits.
    """

    count: Any = None
    check: bool = True
    dtype: Any = None
    backend: str = "auto"
    deterministic: bool = False


class KernelCalls:
    """Calls of one kernel.

    Args:
        name: Its name, for errors.

    Attributes:
        cache: Its compiled forms.
    """

    def __init__(self, name: str) -> None:
        self.cache = KernelCache()
        self._name = name
        self._recipes = RecipeBook(name)

    def run(
        self,
        traced: TracedKernel,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        out: Any,
        choices: CallChoices,
    ) -> Any:
        """Run over arrays: see `caspar.Kernel.__call__`.

        Raises:
            InputError: Names the argument, what is wrong and what is allowed.
        """
        signature = _signature(traced, args, kwargs, out, choices)
        check = choices.check
        recipe = None if signature is None else self._recipes.find(signature, check=check)
        if signature is not None and recipe is not None:
            return traced.make_result(recipe.run(signature))
        inputs, outputs = operands_of(traced, args, kwargs, out)
        options = call_options(
            self._name, choices.count, check, choices.dtype, None, choices.deterministic
        )
        plan = plan_call(traced, self.cache, inputs, outputs, choices.backend, options)
        plan.runner()()
        results = [
            give_back(plan, one, outputs[one.name], inputs.values()) for one in traced.outputs
        ]
        if signature is not None:
            self._recipes.keep(signature, plan, results, check=check)
        return traced.make_result(results)

    def forget(self, key: str, size: int) -> None:
        """Take another block size from now on.

        Args:
            key: What it was measured for.
            size: Threads of a block.
        """
        self.cache.sizes.keep(key, size)
        self.cache.kernels.clear()
        self._recipes = RecipeBook(self._name)


def _signature(
    traced: TracedKernel,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Any,
    choices: CallChoices,
) -> CallSignature | None:
    """The signature of a call; None if the call has to be planned."""
    options = (choices.count, choices.check, choices.dtype)
    names = [one.name for one in traced.inputs]
    if len(args) > len(names) or any(type(one) not in _OPTION_TYPES for one in options):
        return None
    inputs = {**dict(zip(names, args, strict=False)), **kwargs}
    if len(inputs) != len(args) + len(kwargs):
        return None
    outputs = [one.name for one in traced.outputs]
    return call_signature(inputs, out, outputs, options)


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
