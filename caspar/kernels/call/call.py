"""Assign the values of a call to arguments and outputs by name, and read its options.

Once for each call that is planned.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from caspar.arrays.convert import checked_size, float_type
from caspar.arrays.passed import is_array
from caspar.errors import InputError, meant
from caspar.frontend.kernels.markers import Marked
from caspar.frontend.kernels.trace import KernelFunction, TracedKernel
from caspar.frontend.kernels.values import MisfitError, described, is_symbolic, type_name, value_of
from caspar.frontend.markers import Pair
from caspar.kernels.call.operands import Operand, operand
from caspar.kernels.call.plan import CallOptions
from caspar.user_arrays import STORAGE_ADVICE

Operands = dict[str, Operand]


def operands_of(
    traced: TracedKernel, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
) -> tuple[Operands, Operands]:
    """Return the operand of every argument and every output, by name."""
    given = arguments_by_name(traced, args, kwargs)
    inputs = {
        one.name: operand(
            f"kernel {traced.name}, argument {one.name}",
            one.access,
            given[one.name],
            is_output=False,
        )
        for one in traced.inputs
    }
    targets = targets_by_name(traced, out)
    outputs = {
        one.name: operand(
            f"kernel {traced.name}, output {one.name}",
            one.access,
            targets.get(one.name),
            is_output=True,
        )
        for one in traced.outputs
    }
    return inputs, outputs


def arguments_by_name(
    traced: TracedKernel, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the value passed for each argument; none may be unknown, missing or passed twice."""
    names = [one.name for one in traced.inputs]
    if len(args) > len(names):
        raise InputError(f"kernel {traced.name}: {len(args)} arguments; it takes {_listed(names)}")
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise InputError(
                f"kernel {traced.name}: unknown argument {name!r}{meant(name, names)}; it takes "
                f"{_listed(names)}"
            )
        if name in given:
            raise InputError(f"kernel {traced.name}, argument {name}: passed twice")
        given[name] = value
    missing = [name for name in names if name not in given]
    if missing:
        raise InputError(
            f"kernel {traced.name}: {_listed(missing)} missing; it takes {_listed(names)}"
        )
    return given


def targets_by_name(traced: TracedKernel, out: Any) -> dict[str, Any]:
    """Return the values passed for outputs, by name; outputs without one are left out."""
    names = [one.name for one in traced.outputs]
    if out is None:
        return {}
    if isinstance(out, Mapping) and all(name in names for name in out):
        return dict(out)
    if len(names) == 1:
        return {names[0]: out}
    if isinstance(out, Mapping):
        wrong = next(name for name in out if name not in names)
        raise InputError(
            f"kernel {traced.name}: unknown output {wrong!r}{meant(wrong, names)}; its outputs are "
            f"{_listed(names)}"
        )
    if isinstance(out, Sequence) and len(out) == len(names):
        return dict(zip(names, out, strict=True))
    held = f" of {len(out)}" if isinstance(out, Sequence) else ""
    raise InputError(
        f"kernel {traced.name}: out= takes a mapping of {_listed(names)}, or a sequence of "
        f"{len(names)}; got {type(out).__name__}{held}"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) > 0 else "none"


def call_options(
    kernel: str, count: Any, check: bool, dtype: Any, block_size: Any, deterministic: bool
) -> CallOptions:
    """Return how a kernel is called, checked: an `InputError` for what is not allowed."""
    where = f"kernel {kernel}"
    return CallOptions(
        None if count is None else checked_size(where, "count", count, 0),
        check,
        None if dtype is None else float_type(where, dtype),
        None if block_size is None else checked_size(where, "block_size", block_size, 1),
        deterministic,
    )


def any_symbolic(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call passes symbolic values: then it is the function itself."""
    return any(map(is_symbolic, (*args, *kwargs.values())))


def call_symbolic(
    function: KernelFunction, args: Sequence[Any], kwargs: Mapping[str, Any], **options: Any
) -> Any:
    """The function itself, on symbolic values: what a kernel is inside another.

    Options of calls with arrays must all be None. An `InputError` names an argument that is an
    array, or not of the declared type.
    """
    where = f"kernel {function.name}"
    signature = inspect.signature(function.function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        takes = _listed(list(signature.parameters))
        raise InputError(f"{where}: {error}; it takes {takes}") from error
    values = bound.arguments
    symbolic = [name for name, value in values.items() if is_symbolic(value)]
    for name, value in values.items():
        if is_array(value) or isinstance(value, Mapping):
            raise InputError(
                f"{where}, argument {name}: {type(value).__name__}, but {_symbolic(symbolic)}; "
                "arguments are all symbolic or all arrays. For one value for all items pass its "
                "storage to a ReadUnique argument: to_storage()"
            )
    for name, option in options.items():
        if option is not None:
            raise InputError(f"{where}: {name}= is for arrays, but {_symbolic(symbolic)}")
    for name, argument in function.declared_inputs.items():
        if name in values:
            values[name] = _as_declared(f"{where}, argument {name}", argument, values[name])
    return function.function(*bound.args, **bound.kwargs)


def _as_declared(where: str, argument: Marked, value: Any) -> Any:
    """A symbolic value, or pair of them, if it is of the type that an argument declares."""
    if not argument.access.is_pair:
        return _of_type(where, argument.declared, value)
    if isinstance(value, list | tuple) and len(value) == 2:
        return Pair(_of_type(where, argument.declared, half) for half in value)
    raise InputError(
        f"{where}: needs two values of type {type_name(argument.declared)}, got "
        f"{described(value)}; pass caspar.Pair((first, second))"
    )


def _of_type(where: str, declared: type, value: Any) -> Any:
    try:
        return value_of(declared, value)
    except MisfitError as error:
        is_list = isinstance(value, list | tuple) and is_symbolic(value)
        advice = f"; to run over arrays, {STORAGE_ADVICE}" if is_list else ""
        raise InputError(f"{where}: {error}{advice}") from error


def _symbolic(names: Sequence[str]) -> str:
    return f"{_listed(names)} {'is' if len(names) == 1 else 'are'} symbolic"
