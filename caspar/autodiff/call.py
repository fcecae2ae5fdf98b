"""A call of a kernel or a residual as users pass it, and the call that derives it.

Values are rows, (n, storage_dim), in the order of the kernel's arguments; what else a call takes,
such as indices, is in the `Call`. A factor becomes a kernel that writes a row for each instance.
Cost tier: kernels are derived and compiled once for each set of arguments to derive by.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from caspar.arrays.shared_indices import SharedIndices
from caspar.errors import InputError, meant
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.terms import term_names
from caspar.frontend.factors.trace import Argument, ArgumentKind, TracedFactor
from caspar.frontend.kernels.pulled import cotangent_name, pull_name, pulled_kernel, with_plain_rows
from caspar.frontend.kernels.spec import TableLoads, table_loads
from caspar.frontend.kernels.trace import KernelInput, KernelOutput, KernelPart, TracedKernel
from caspar.frontend.markers import Table
from caspar.kernels.call.call import arguments_by_name, targets_by_name
from caspar.kernels.call.calls import CallChoices, KernelCalls
from caspar.kernels.kernel import Kernel
from caspar.memory.access import ReadAccessor, WriteAccessor
from caspar.memory.patterns import (
    AddSharedSum,
    AddStrided,
    ReadIndexed,
    ReadPair,
    ReadSequential,
    ReadShared,
    ReadUnique,
    WriteSequential,
)
from caspar.tracing import traced_factor

Added = Callable[[int, Any, Any], Any]
"""(length, places, numbers) -> (length,) zeros to which the numbers are added, at their places."""

Options = Mapping[str, Mapping[str, Any]]
"""Options that a call passes beside the values, by argument or output."""

_SIZED = (AddSharedSum, AddStrided)
"""Writes whose array may have more objects than items name."""


class Derivable:
    """A kernel whose derivatives are kernels too."""

    def __init__(self, traced: TracedKernel) -> None:
        self.traced = traced
        self.calls = KernelCalls(traced.name)
        self._pulled: dict[tuple[str, ...], Derivable] = {}

    def pulled(self, wanted: tuple[str, ...]) -> "Derivable":
        """The kernel of the derivatives by some arguments."""
        if wanted not in self._pulled:
            num_loads = {name: len(one.channels) for name, one in self.loads.items()}
            self._pulled[wanted] = Derivable(pulled_kernel(self.traced, wanted, num_loads))
        return self._pulled[wanted]

    @cached_property
    def loads(self) -> dict[str, TableLoads]:
        """The numbers that an item loads from tables, by argument."""
        return table_loads(self.traced)


@dataclass(frozen=True)
class Call:
    """A call apart from its values."""

    kernel: Derivable
    options: Options
    out: Options
    choices: CallChoices

    @property
    def inputs(self) -> tuple[KernelInput, ...]:
        """The arguments."""
        return self.kernel.traced.inputs

    @property
    def outputs(self) -> tuple[KernelOutput, ...]:
        """The outputs."""
        return self.kernel.traced.outputs

    def run(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """(n, storage_dim) rows of each output, of the library of the first value."""
        given = {}
        for one, rows in zip(self.inputs, values, strict=True):
            options = self.options.get(one.name, {})
            given[one.name] = {"values": rows, **options} if len(options) > 0 else rows
        out = dict(self.out) if len(self.out) > 0 else None
        found: tuple[Any, ...] = self.kernel.calls.run(
            self.kernel.traced, (), given, out, self.choices
        )
        return found

    def with_options(self, converted: Callable[[Any], Any]) -> "Call":
        """The same with each index, offset, stride and size converted."""

        def all_of(options: Options) -> Options:
            return {
                name: {key: converted(one) for key, one in own.items()}
                for name, own in options.items()
            }

        return replace(self, options=all_of(self.options), out=all_of(self.out))

    @property
    def arrays(self) -> list[Any]:
        """The arrays among the options, in order."""
        found = []
        for own in (*self.options.values(), *self.out.values()):
            found += [one for one in own.values() if _is_array(one)]
        return found

    def with_arrays(self, arrays: Sequence[Any]) -> "Call":
        """The same with other ones in their places."""
        left = iter(arrays)
        return self.with_options(lambda one: next(left) if _is_array(one) else one)

    def pulled(self, wanted: Sequence[str], lengths: Sequence[int]) -> "Call":
        """The call that derives a loss function by some arguments.

        Its values are those of this one and the derivatives by the outputs; from its outputs
        `derivatives` makes those by the wanted arguments, in their order.
        """
        kernel = self.kernel.pulled(tuple(wanted))
        own = {one.name: length for one, length in zip(self.inputs, lengths, strict=True)}
        cotangents = {
            cotangent_name(name): {key: value for key, value in options.items() if key != "size"}
            for name, options in self.out.items()
        }
        out: dict[str, Mapping[str, Any]] = {}
        pulls = {one.name: one for one in kernel.traced.outputs}
        for one in self._wanted(wanted):
            if pull_name(one) in pulls and isinstance(pulls[pull_name(one)].access, _SIZED):
                out[pull_name(one)] = {**self.options.get(one, {}), "size": own[one]}
        choices = replace(self.choices, count=self.count(lengths))
        return Call(kernel, {**self.options, **cotangents}, out, choices)

    def derivatives(
        self,
        wanted: Sequence[str],
        outputs: Sequence[Any],
        values: Sequence[Any],
        xp: Any,
        added: Added,
    ) -> list[Any]:
        """The derivatives by the wanted arguments, from the outputs of `pulled`.

        `xp` is the library of the arrays: NumPy, `jax.numpy` or PyTorch.
        """
        left, found = iter(outputs), []
        for one, value in zip(self.inputs, values, strict=True):
            if one.name not in wanted:
                continue
            if one.table is None:
                found.append(next(left))
                continue
            loads = self.kernel.loads[one.name]
            if len(loads.channels) == 0:
                found.append(xp.zeros_like(value))
                continue
            index = self.options.get(one.name, {}).get("index")
            index = index.index if isinstance(index, SharedIndices) else index
            pull, places = next(left), next(left)
            at, kept = _loaded(one.table, loads, pull, places, index, value.shape, xp)
            total = added(math.prod(value.shape), at.reshape(-1), kept.reshape(-1))
            found.append(total.reshape(value.shape))
        return found

    def _wanted(self, wanted: Sequence[str]) -> list[str]:
        return [one.name for one in self.inputs if one.name in wanted]

    def count(self, lengths: Sequence[int]) -> int:
        """Items."""
        exact: list[int] = []
        at_most: list[int] = []
        for one, length in zip(self.inputs, lengths, strict=True):
            options = {**one.access.defaults, **self.options.get(one.name, {})}
            try:
                items = one.access.num_items(length, options)
            except ValueError as error:
                raise InputError(
                    f"kernel {self.kernel.traced.name}, argument {one.name}: {error}"
                ) from error
            if items is not None:
                (exact if one.access.is_exact else at_most).append(items)
        indices = [own["index"] for own in self.out.values() if "index" in own]
        exact += [int(index.shape[0]) for index in indices]
        given = self.choices.count
        if given is None and len(exact) + len(at_most) == 0:
            raise InputError(
                f"kernel {self.kernel.traced.name}: no argument says how many items there are; "
                "pass count="
            )
        found = int(given) if given is not None else exact[0] if len(exact) > 0 else min(at_most)
        if any(items != found for items in exact) or any(items < found for items in at_most):
            raise InputError(
                f"kernel {self.kernel.traced.name}: {found:,} items, but its arguments are for "
                f"{', '.join(f'{items:,}' for items in (*exact, *at_most))}; pass arrays of "
                "matching lengths"
            )
        return found

    def output_lengths(self, lengths: Sequence[int]) -> list[int]:
        """Objects of each output."""
        count, found = self.count(lengths), []
        for one in self.outputs:
            given = self.out.get(one.name, {})
            options = {**one.access.defaults, **given}
            size = given.get("size")
            if size is None and isinstance(given.get("index"), SharedIndices):
                size = given["index"].size
            assert isinstance(one.access, WriteAccessor)
            found.append(int(one.access.num_objects(count, options) if size is None else size))
        return found


def _loaded(
    table: type[Table],
    loads: TableLoads,
    pull: Any,
    places: Any,
    index: Any,
    shape: Sequence[int],
    xp: Any,
) -> tuple[Any, Any]:
    """The numbers of tables of a class that items load, and the derivatives by them.

    Both (items, loads). `places`: (items, loads * axes) where they are, beyond borders too;
    `index`: (items,) the table of each item, None: there is one.
    """
    last = len(shape) - (1 if table.channels > 1 else 0)
    sizes = shape[last - table.dims : last]
    places = places.reshape(*pull.shape, table.dims)
    at: Any = 0
    is_inside = places[:, :, 0] == places[:, :, 0]
    for axis, size in enumerate(sizes):
        place = places[:, :, axis]
        is_inside = is_inside & (place >= 0) & (place <= size - 1)
        # as kernels do it: a NaN compares as false
        nearest = xp.where(place > 0, place, xp.zeros_like(place))
        nearest = xp.where(nearest < size - 1, nearest, xp.full_like(nearest, size - 1))
        at = at * size + xp.asarray(nearest, dtype=xp.int32)
    columns = [at[:, k] * table.channels + channel for k, channel in enumerate(loads.channels)]
    at = xp.stack(columns, 1)
    if index is not None:
        begins = xp.asarray(index) * (math.prod(sizes) * table.channels)
        at = at + begins[:, None]
    if loads.is_zero_outside:
        pull = xp.where(is_inside, pull, xp.zeros_like(pull))
    return at, pull


def _is_array(option: Any) -> bool:
    """Return whether it is an index, rather than a number or an index that is prepared."""
    return hasattr(option, "dtype") and not isinstance(option, SharedIndices)


def lengths_of(values: Sequence[Any]) -> list[int]:
    """Objects of each value."""
    return [int(rows.shape[0]) for rows in values]


def rows_of(one: KernelInput, array: Any) -> Any:
    """(n, storage_dim) of an array as it may be passed to a kernel, of any library.

    Of matrices that is also (n, rows, columns), of numbers (n,), and one object may lack its
    leading 1. What does not fit comes back as it is: the kernel says what is wrong.
    """
    shape, dim = tuple(array.shape), one.storage_dim
    if one.table is not None:
        return array
    if len(one.matrix_shape) > 0 and len(shape) == 3 and shape[1:] == tuple(one.matrix_shape):
        return array.swapaxes(1, 2).reshape(-1, dim)
    if len(shape) <= 1 and (dim == 1 or shape == (dim,)):
        return array.reshape(-1, dim)
    return array


def as_declared(one: KernelOutput, rows: Any) -> Any:
    """Rows of an output as a call of the kernel returns them: matrices, numbers or rows."""
    if len(one.matrix_shape) > 0:
        num_rows, num_columns = one.matrix_shape
        return rows.reshape(-1, num_columns, num_rows).swapaxes(1, 2)
    return rows.reshape(-1) if one.is_scalar else rows


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
    """Items are instances; neither weight nor loss count."""
    by_source: dict[str, list[Argument]] = {}
    for one in factor.arguments:
        by_source.setdefault(one.source, []).append(one)
    name = RESIDUAL
    while name in by_source:
        name += "_"
    rows = tuple(factor.residual)
    output = KernelOutput(name, WriteSequential(), "residual", len(rows), (), False, rows)
    inputs = tuple(_input(source, halves) for source, halves in by_source.items())
    return TracedKernel(
        factor.name, factor.location, inputs, (output,), None, factor.lines, is_factor=True
    )


def _input(source: str, halves: Sequence[Argument]) -> KernelInput:
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
    """A call, and its values as they were passed."""

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
    """A call of a kernel."""
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
        count=count, check=check, backend=kernel.backend.value, deterministic=kernel.deterministic
    )
    values, options = {}, {}
    for name, one in given.items():
        values[name], options[name] = _taken_apart(f"kernel {traced.name}, argument {name}", one)
    call = Call(_derivable(traced, kernel.deterministic), options, sizes, choices)
    return Passed(call, traced, tuple(values[one.name] for one in traced.inputs))


def passed_to_factor(
    factor: Factor, arrays: Mapping[str, Any], *, backend: str, check: bool
) -> Passed:
    """The residuals of a factor."""
    if not isinstance(factor, Factor):
        raise InputError(
            f"residuals: needs a factor that caspar.factor made, got {type(factor).__name__}; "
            "call(kernel, ...) runs a kernel"
        )
    found = traced_factor(factor)
    traced = residual_kernel(found)
    if len(found.patches) > 0:
        from caspar.frontend.patches import with_patches

        arrays = with_patches(arrays, [found])
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
    shared = (ArgumentKind.NODE_UNIQUE, ArgumentKind.CONST_UNIQUE)
    is_single = all(one.kind in shared for one in found.arguments)
    choices = CallChoices(count=1 if is_single else None, check=check, backend=backend)
    call = Call(_derivable(traced, False), options, {}, choices)
    return Passed(call, traced, tuple(values[one.name] for one in traced.inputs))


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
    wrong = [f"unknown name {one!r}{meant(one, known)}" for one in own if one not in known] + [
        f"{one!r} is missing" for one in needed if one not in own
    ]
    if len(wrong) > 0:
        raise InputError(f"{where}: {'; '.join(wrong)}; expected {', '.join(needed)}")
    return dict(own)


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
