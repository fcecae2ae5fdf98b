"""Take apart what users pass to a differentiable kernel or residual.

Input: a kernel or a factor with its arguments. Output: a `Passed`. Once for each call; a factor is
turned into a kernel once.

Also here: the residual of a factor as a kernel that writes a row for each instance. Once for a
factor.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caspar.autodiff.call import Call, Derivable
from caspar.errors import InputError
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.terms import term_names
from caspar.frontend.factors.trace import Argument, ArgumentKind, TracedFactor
from caspar.frontend.kernels.pulled import with_plain_rows
from caspar.frontend.kernels.trace import KernelInput, KernelOutput, KernelPart, TracedKernel
from caspar.kernels.call.call import arguments_by_name, targets_by_name
from caspar.kernels.call.calls import CallChoices
from caspar.kernels.kernel import Kernel
from caspar.memory.access import ReadAccessor
from caspar.memory.patterns import (
    ReadIndexed,
    ReadPair,
    ReadSequential,
    ReadShared,
    ReadUnique,
    WriteSequential,
)
from caspar.tracing import traced_factor

RESIDUAL = "residual"
"""The output; with an underscore or more behind it if an argument has this name."""

_ACCESSES: dict[ArgumentKind, ReadAccessor] = {
    ArgumentKind.NODE_SHARED: ReadShared(),
    ArgumentKind.NODE_UNIQUE: ReadUnique(),
    ArgumentKind.NODE_PAIR: ReadPair(),
    ArgumentKind.CONST_SEQUENTIAL: ReadSequential(),
    ArgumentKind.CONST_INDEXED: ReadIndexed(),
    ArgumentKind.CONST_UNIQUE: ReadUnique(),
}


def residual_kernel(factor: TracedFactor) -> TracedKernel:
    """Items are instances; neither weight nor loss count.

    Args:
        factor: The factor.
    """
    by_source: dict[str, list[Argument]] = {}
    for one in factor.arguments:
        by_source.setdefault(one.source, []).append(one)
    name = RESIDUAL
    while name in by_source:
        name += "_"
    rows = tuple(factor.residual)
    output = KernelOutput(name, WriteSequential(), "residual", len(rows), (), False, rows)
    inputs = tuple(_input(source, halves) for source, halves in by_source.items())
    return TracedKernel(factor.name, factor.location, inputs, (output,), None, factor.lines)


def _input(source: str, halves: Sequence[Argument]) -> KernelInput:
    """An argument; a pair has two halves."""
    first = halves[0]
    access = _ACCESSES[first.kind]
    parts = tuple(
        KernelPart(one.value_name, access.half(successor=one.successor), tuple(one.symbols))
        for one in halves
    )
    return KernelInput(
        source,
        access,
        "" if first.node is None else first.node.name,
        first.storage_dim,
        first.unit_ranges,
        first.matrix_shape,
        False,
        first.symbolic,
        parts,
    )


MAX_KEPT = 64
"""Kernels and factors whose derivatives are kept; then all are forgotten."""

_KNOWN: dict[tuple[str, bool], Derivable] = {}


@dataclass(frozen=True)
class Passed:
    """A call, and its values as they were passed.

    Attributes:
        call: The call.
        declared: The kernel as the user wrote it, for shapes.
        values: What was passed for each argument.
    """

    call: Call
    declared: TracedKernel
    values: tuple[Any, ...]


def passed_to_kernel(
    kernel: Kernel,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Any,
    *,
    count: int | None,
    check: bool,
) -> Passed:
    """A call of a kernel.

    Raises:
        InputError: Names the argument, what is wrong and what is allowed.
        KernelError: The kernel cannot be traced.
    """
    if not isinstance(kernel, Kernel):
        raise InputError(
            f"call: needs a kernel that caspar.kernel made, got {type(kernel).__name__}; "
            "residuals(factor, arrays) evaluates a factor"
        )
    traced = kernel.traced
    given = arguments_by_name(traced, args, kwargs)
    sizes = {}
    for name, options in targets_by_name(traced, out).items():
        if not isinstance(options, Mapping) or "values" in options:
            raise InputError(
                f"kernel {traced.name}, output {name}: an array to write to; what is written in "
                "place has no derivative: leave it out, or pass {'index': ..., 'size': ...} only"
            )
        sizes[name] = _options(options)
    choices = CallChoices(
        count=count,
        check=check,
        backend=kernel.backend.value,
        deterministic=kernel.deterministic,
    )
    values, options = {}, {}
    for name, one in given.items():
        values[name], options[name] = _taken_apart(f"kernel {traced.name}, argument {name}", one)
    call = Call(_derivable(traced, kernel.deterministic), options, sizes, choices)
    return Passed(call, traced, tuple(values[one.name] for one in traced.inputs))


def passed_to_factor(
    factor: Factor, arrays: Mapping[str, Any], *, backend: str, check: bool
) -> Passed:
    """The residuals of a factor.

    Raises:
        InputError: Names the factor, the argument, what is wrong and what is allowed.
        FactorError: The factor cannot be traced.
    """
    if not isinstance(factor, Factor):
        raise InputError(
            f"residuals: needs a factor that caspar.factor made, got {type(factor).__name__}; "
            "call(kernel, ...) runs a kernel"
        )
    found = traced_factor(factor)
    traced = residual_kernel(found)
    own = _own_arrays(found, arrays)
    values: dict[str, Any] = {}
    options: dict[str, dict[str, Any]] = {}
    for one in found.arguments:
        where = f"factor {found.name}, argument {one.source}"
        given = own.get(one.source)
        if one.node is not None:
            values[one.source] = arrays[one.node.name]
            is_shared = one.kind is ArgumentKind.NODE_SHARED
            options[one.source] = _options({"index": given} if is_shared else {})
        else:
            values[one.source], options[one.source] = _taken_apart(where, given)
    is_single = all(_says_nothing(one.kind) for one in found.arguments)
    choices = CallChoices(count=1 if is_single else None, check=check, backend=backend)
    call = Call(_derivable(traced, False), options, {}, choices)
    return Passed(call, traced, tuple(values[one.name] for one in traced.inputs))


def _says_nothing(kind: ArgumentKind) -> bool:
    """Return whether an argument is the same for any number of instances."""
    return kind in (ArgumentKind.NODE_UNIQUE, ArgumentKind.CONST_UNIQUE)


def _own_arrays(found: TracedFactor, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arrays of a factor's arguments, with checked names."""
    name, where = found.name, f"factor {found.name}"
    kinds = {one.source: one for one in found.arguments}
    needed = found.required
    nodes = [one.node.name for one in kinds.values() if one.node is not None]
    missing = [one for one in (*nodes, *([name] if len(needed) > 0 else [])) if one not in arrays]
    if len(missing) > 0:
        raise InputError(
            f"{where}: {', '.join(map(repr, missing))} missing; pass the arrays of a solve: "
            "node types by name, and the factor's arguments under its own name"
        )
    own: Any = arrays.get(name)
    if len(needed) == 0 and (own is None or (isinstance(own, list | tuple) and len(own) == 0)):
        own = {}
    if not isinstance(own, Mapping):
        raise InputError(
            f"{where}: expected a mapping of {', '.join(needed)}, got {type(own).__name__}"
        )
    known = (*needed, *term_names(found))
    wrong = [f"unknown name {one!r}{_hint(one, known)}" for one in own if one not in known] + [
        f"{one!r} is missing" for one in needed if one not in own
    ]
    if len(wrong) > 0:
        raise InputError(f"{where}: {'; '.join(wrong)}; expected {', '.join(needed)}")
    return dict(own)


def _hint(name: object, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(name), known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _taken_apart(where: str, given: Any) -> tuple[Any, dict[str, Any]]:
    """Values, and what is passed besides."""
    if not isinstance(given, Mapping):
        return given, {}
    if "values" not in given:
        raise InputError(f"{where}: 'values' is missing; pass {{'values': array, ...}}")
    return given["values"], _options(given)


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are no values; lists of indices as arrays."""
    options = {name: one for name, one in given.items() if name != "values"}
    if isinstance(options.get("index"), list | tuple):
        options["index"] = np.asarray(options["index"], np.int64)
    return options


def _derivable(traced: TracedKernel, deterministic: bool) -> Derivable:
    """The kernel with what was derived of it before."""
    key = (traced.key, deterministic)
    if key not in _KNOWN:
        if len(_KNOWN) >= MAX_KEPT:
            _KNOWN.clear()
        _KNOWN[key] = Derivable(with_plain_rows(replace(traced, result_type=tuple)))
    return _KNOWN[key]
