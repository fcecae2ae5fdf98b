"""Plan the launches of a call from its checked operands; a bound kernel keeps the plan.

Once for each call (or once for a bound kernel): choose backend, type, number of items and the
access of every output; compile or fetch the kernel; bind. Nothing is left for the launch itself.

Also here: the arguments of a call, and checks that they fit together: numbers of items, objects,
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caspar.arrays.blocked_array import BlockedArray
from caspar.arrays.convert import shared_backend
from caspar.arrays.passed import share_memory
from caspar.arrays.shared_indices import SharedIndices, check_range
from caspar.errors import InputError
from caspar.frontend.kernels.trace import KernelInput, KernelOutput, TracedKernel
from caspar.ir.dtype import DType
from caspar.kernels.call.compiled import KernelCache, sums_are_atomic
from caspar.kernels.call.operands import Operand, OperandReader, floating_dtype, place_of
from caspar.memory.access import Accessor, ArgSpec, BoundWrite, WriteAccessor
from caspar.memory.array import Array, Binding
from caspar.memory.tiling.tiles import TileIndex, TileOrder
from caspar.runtime.arrays import HOST
from caspar.runtime.backend import Backend, Kernel, Launch


@dataclass(frozen=True)
class CallArgument:
    """An argument or output with what a call gives it, its options read.

    A prepared index is also there as `prepared`; `array` is None of an output that is to be made.
    """

    argument: KernelInput | KernelOutput
    operand: Operand
    options: Mapping[str, Any]
    array: BlockedArray | None

    @property
    def name(self) -> str:
        """The argument's name."""
        return self.argument.name

    @property
    def access(self) -> Accessor:
        """The argument's access."""
        return self.argument.access

    @property
    def where(self) -> str:
        """Kernel and argument, for errors."""
        return self.operand.where

    @property
    def values(self) -> BlockedArray:
        """The values, which are there."""
        assert self.array is not None
        return self.array


def count_items(kernel: str, arguments: Sequence[CallArgument]) -> int:
    """The items that all arguments agree on; an `InputError` if they do not, or none says."""
    exact: dict[str, tuple[int, CallArgument]] = {}
    at_most: list[int] = []
    for one in arguments:
        items = _num_items(one)
        if items is not None and one.access.is_exact:
            exact[one.name] = items, one
        elif items is not None:
            at_most.append(items)
    if len({items for items, _ in exact.values()}) > 1:
        said = ", ".join(
            f"{name} for {items:,} ({_source(one, items)})" for name, (items, one) in exact.items()
        )
        raise InputError(
            f"kernel {kernel}: its arguments are for different numbers of items: {said}; pass "
            "arrays of matching lengths, or count="
        )
    if len(exact) > 0:
        return next(iter(exact.values()))[0]
    if len(at_most) > 0:
        return min(at_most)
    raise InputError(f"kernel {kernel}: no argument says how many items there are; pass count=")


def _num_items(one: CallArgument) -> int | None:
    length = None if one.array is None else len(one.array)
    try:
        return one.access.num_items(length, one.options)
    except ValueError as error:  # its options are wrong
        raise InputError(f"{one.where}: {error}") from error


def _source(one: CallArgument, items: int) -> str:
    if "index" in one.options:
        return "length of its index"
    if one.array is None:
        return one.access.name
    return "rows" if len(one.array) == items else f"{one.access.name} of {len(one.array):,} rows"


def check_objects(
    arguments: Sequence[CallArgument], count: int, backend: Backend, check_values: bool
) -> None:
    """Every array has the objects that items touch, every index an entry for each item.

    Checking values waits for the device.
    """
    for one in arguments:
        _check_length(one, count)
        index = one.options.get("index")
        if index is None:
            continue
        if index.shape[0] != count:
            raise InputError(
                f"{one.where}: {index.shape[0]:,} indices for {count:,} items; pass one for each"
            )
        is_table = isinstance(one.argument, KernelInput) and one.argument.table is not None
        if check_values and not is_table:
            _check_index(one, backend)


def _check_length(one: CallArgument, count: int) -> None:
    """An array has the objects that items touch; of what holds one object, it holds no more."""
    access, length = one.access, len(one.values)
    try:
        needed = access.num_objects(count, one.options)
    except ValueError as error:  # its options are wrong
        raise InputError(f"{one.where}: {error}") from error
    is_input = isinstance(one.argument, KernelInput)
    if length < needed and not (is_input and count == 0):
        raise InputError(
            f"{one.where}: {length:,} objects; {access.name} over {count:,} items needs {needed:,}"
        )
    is_table = isinstance(one.argument, KernelInput) and one.argument.table is not None
    if access.has_one_object and not is_table:
        _check_one_object(one, count)
    elif not is_input and one.operand.given is None and length != needed:
        _check_size(one, count, needed)


def _check_one_object(one: CallArgument, count: int) -> None:
    is_input, name = isinstance(one.argument, KernelInput), one.access.name
    if len(one.values) > 1:
        does = "reads object 0 for all items" if is_input else "writes object 0 only"
        also = "; for one object for each item use ReadSequential" if is_input else ""
        raise InputError(
            f"{one.where}: {len(one.values):,} objects, but {name} {does}; pass one, such as "
            f"array[:1]{also}"
        )
    items = _num_items(one)
    if items is not None and items < count:
        raise InputError(
            f"{one.where}: {name} is for {items:,} item{'s' if items != 1 else ''}, but there are "
            f"{count:,}"
        )


def _check_size(one: CallArgument, count: int, needed: int) -> None:
    """A new array of which every object gets a value has no others."""
    if isinstance(one.access, WriteAccessor) and one.access.writes_all:
        raise InputError(
            f"{one.where}: size={len(one.values):,}, but {one.access.name} over {count:,} items "
            f"gives {needed:,} objects; leave size out"
        )


def _check_index(one: CallArgument, backend: Backend) -> None:
    index, size = one.options["index"], len(one.values)
    prepared = one.options.get("prepared")
    if prepared is None or prepared.size > size:
        given = one.operand.options["index"]
        is_array = hasattr(given, "__getitem__")  # prepared indices are right as they are
        check_range(backend, f"{one.where}, index", index, size, given if is_array else None)
    if not one.access.needs_unique_index:
        return
    repeated = backend.first_repeated(index, size)
    if repeated is not None:
        raise InputError(
            f"{one.where}, index: object {int(index[repeated])} is named by more than one item, "
            f"for example at entry {repeated}; {one.access.name} allows each object once, use "
            "AddSharedSum for more"
        )


def check_overlaps(inputs: Sequence[CallArgument], outputs: Sequence[CallArgument]) -> None:
    """No output shares memory with another argument, unless both go item by item."""
    for number, output in enumerate(outputs):
        for other in (*inputs, *outputs[:number]):
            is_read = isinstance(other.argument, KernelInput)
            if not (output.values.overlaps(other.values) or _share(output, other, is_read)):
                continue
            own = output.access.touches_own_object and other.access.touches_own_object
            if is_read and own and output.values.is_same_as(other.values):
                continue
            raise InputError(
                f"{output.where}: overlaps {other.where} in memory; pass another array (only "
                "what is read and written item by item may be updated in place)"
            )


def _share(output: CallArgument, other: CallArgument, is_read: bool) -> bool:
    """Return whether results are copied over one another into arrays that are not blocked."""
    target, its = output.operand.target, other.operand.target
    if is_read or (target is None and its is None) or other.operand.given is None:
        return False
    if output.operand.given is None:
        return False
    mine = output.values.chunks if target is None else (target,)
    theirs = other.values.chunks if its is None else (its,)
    return any(share_memory(one, another) for one in mine for another in theirs)


@dataclass(frozen=True)
class CallOptions:
    """The checked options of a call.

    Attributes:
        count: Items; None: as many as the arguments stand for.
        check: Whether to test indices for range and repetition, which waits for the device.
        dtype: Type to compute in and to convert arrays to; None: that of the arrays.
        block_size: Threads of a block; None: chosen.
        deterministic: Whether equal input must give equal bits.
    """

    count: int | None = None
    check: bool = True
    dtype: DType | None = None
    block_size: int | None = None
    deterministic: bool = False


@dataclass(frozen=True)
class CallPlan:
    """A call with everything decided, of `count` items in `dtype`.

    The kernel is None where there are no items. `arguments` are the outputs as they were declared,
    `writes` how the kernel itself writes each of them; the launches are the kernel's, and those
    that complete its writes.
    """

    backend: Backend
    dtype: DType
    count: int
    kernel: Kernel | None
    inputs: Mapping[str, BlockedArray]
    outputs: Mapping[str, BlockedArray]
    arguments: Mapping[str, KernelOutput]
    writes: Mapping[str, WriteAccessor]
    launches: tuple[Launch, ...]

    def runner(self) -> Callable[[], None]:
        """A call that runs it on the caller's current stream."""
        return self.backend.runner(self.launches)


def plan_call(
    traced: TracedKernel,
    cache: KernelCache,
    inputs: Mapping[str, Operand],
    outputs: Mapping[str, Operand],
    chosen: str,
    options: CallOptions,
) -> CallPlan:
    """Check, convert, compile and bind.

    `chosen` is the backend for arrays on the host. An `InputError` names the argument, what is
    wrong and what is allowed.
    """
    operands = [*inputs.values(), *outputs.values()]
    backend = _backend(operands, chosen)
    halves = {one.name for one in traced.inputs if one.is_half}
    floats = [one for name, one in inputs.items() if name not in halves]
    dtype = _dtype([*floats, *outputs.values()], options.dtype)
    reader = OperandReader(backend, dtype, options.check)
    return _Planner(traced, cache, reader, options).plan(inputs, outputs)


def _backend(operands: Sequence[Operand], chosen: str) -> Backend:
    """Return the backend where the arrays live; for arrays on the host, the chosen one."""
    first: Operand | None = None
    for operand in operands:
        index = operand.options.get("index")
        for where, given in ((operand.where, operand.given), (f"{operand.where}, index", index)):
            place = place_of(where, given)
            if place is None:
                continue
            if first is None:
                first, first_place = operand, place
            elif place != first_place:
                raise InputError(
                    f"{operand.where}: lives on {place}, but {first.where} lives on "
                    f"{first_place}; put all arrays on one device"
                )
    if first is not None and first_place != HOST:
        return shared_backend("cuda")
    blocked = any(isinstance(operand.given, BlockedArray) for operand in operands)
    return shared_backend("cpu" if blocked else chosen)


def _dtype(operands: Sequence[Operand], wanted: DType | None) -> DType:
    """The floating type all arrays have; float32 where none says."""
    if wanted is not None:
        return wanted
    first: tuple[str, DType] | None = None
    for operand in operands:
        dtype = floating_dtype(operand.given)
        if dtype is None:
            continue
        if first is None:
            first = operand.where, dtype
        elif dtype is not first[1]:
            raise InputError(
                f"{operand.where}: {dtype.value}, but {first[0]} is {first[1].value}; give all "
                "arrays one type, or pass dtype='float32' or 'float64' to convert them"
            )
    return DType.FLOAT32 if first is None else first[1]


class _Planner:
    def __init__(
        self, traced: TracedKernel, cache: KernelCache, reader: OperandReader, options: CallOptions
    ) -> None:
        self._traced = traced
        self._cache = cache
        self._reader = reader
        self._backend = reader.backend
        self._options = options

    def plan(self, inputs: Mapping[str, Operand], outputs: Mapping[str, Operand]) -> CallPlan:
        arguments = [self._input(one, inputs[one.name]) for one in self._traced.inputs]
        targets = [self._target(one, outputs[one.name]) for one in self._traced.outputs]
        count = self._options.count
        if count is None:
            count = count_items(self._traced.name, [*arguments, *targets])
        results = [self._with_array(one, count) for one in targets]
        check_objects([*arguments, *results], count, self._backend, self._options.check)
        check_overlaps(arguments, results)
        if count > 0:
            return self._bind(arguments, results, count)
        for one, target in zip(results, targets, strict=True):
            if target.array is None:
                one.values.buffer[...] = 0  # where nothing is written
        made = {one.name: one.values for one in results}
        declared = {one.name: one for one in self._traced.outputs}
        return CallPlan(self._backend, self._reader.dtype, 0, None, {}, made, declared, {}, ())

    # -- arguments -----------------------------------------------------------------------------

    def _input(self, argument: KernelInput, operand: Operand) -> CallArgument:
        if argument.table is not None:
            return self._tables(argument, operand)
        array = self._reader.blocked(
            operand.where, operand.given, argument.storage_dim, argument.matrix_shape, share=True
        )
        return CallArgument(argument, operand, self._read_options(operand), array)

    def _tables(self, argument: KernelInput, operand: Operand) -> CallArgument:
        """Tables, one after the other: an index then says where the item's begins."""
        table = argument.table
        assert table is not None
        if isinstance(operand.given, BlockedArray):
            raise InputError(
                f"{operand.where}: a BlockedArray has no axes of a {table.__name__}; pass an array"
            )
        values = self._reader.as_given(operand.where, operand.given)
        try:
            memory = table.packed(values, self._reader.dtype.value)
        except InputError as error:
            raise InputError(f"{operand.where}: {error}") from error
        options = self._read_options(operand)
        index = options.get("index")
        if index is not None:
            if self._options.check:
                given = operand.options["index"]
                is_array = hasattr(given, "__getitem__")
                where = f"{operand.where}, index"
                check_range(self._backend, where, index, len(memory), given if is_array else None)
            options["index"] = index * np.int32(memory.shape[1])
        elif len(memory) != 1:
            raise InputError(
                f"{operand.where}: {len(memory)} tables, but ReadUnique reads one for all items; "
                "use ReadIndexed for several"
            )
        if table.is_half:
            words = self._backend.upload(memory.reshape(-1))
            array = BlockedArray(words, 1, len(words), 0, len(words))
        else:
            array = self._reader.blocked(operand.where, memory.reshape(-1, 1), 1, ())
        options.pop("prepared", None)
        return CallArgument(argument, operand, options, array)

    def _target(self, output: KernelOutput, operand: Operand) -> CallArgument:
        array = None
        if isinstance(operand.given, BlockedArray) and not operand.given.is_writable:
            raise InputError(f"{operand.where}: its memory is read-only; pass a copy()")
        if operand.given is not None:
            array = self._reader.blocked(
                operand.where, operand.given, output.storage_dim, output.matrix_shape
            )
        return CallArgument(output, operand, self._read_options(operand), array)

    def _read_options(self, operand: Operand) -> dict[str, Any]:
        options = dict(operand.options)
        index = options.get("index")
        if index is not None:
            if isinstance(index, SharedIndices):
                index = index.on(self._backend)
                options["prepared"] = index
            options["index"] = self._reader.index(f"{operand.where}, index", index)
        return options

    def _with_array(self, output: CallArgument, count: int) -> CallArgument:
        if output.array is not None:
            return output
        options, access = output.options, output.access
        assert isinstance(access, WriteAccessor)
        size = output.operand.size
        if size is None and "prepared" in options:
            size = options["prepared"].size
        if size is None and "index" in options:
            raise InputError(
                f"{output.where}: {access.name} needs an array to write to, or its number of "
                "objects: pass 'values' or 'size' beside 'index'"
            )
        if size is None:
            size = access.num_objects(count, options)
        make = BlockedArray.zeros if access.begins_with_zeros else BlockedArray.empty
        dim, dtype = output.argument.storage_dim, self._reader.dtype.value
        return replace(output, array=make(size, dim, dtype=dtype, backend=self._backend.name))

    # -- launches ------------------------------------------------------------------------------

    def _bind(
        self, inputs: Sequence[CallArgument], outputs: Sequence[CallArgument], count: int
    ) -> CallPlan:
        backend, dtype, options = self._backend, self._reader.dtype, self._options
        is_atomic = sums_are_atomic(backend, options.deterministic)
        writes = {
            one.name: one.access.in_kernel(given.options, is_atomic)
            for one, given in zip(self._traced.outputs, outputs, strict=True)
        }
        kernel = self._cache.kernel(self._traced, backend, dtype, writes, options.block_size)
        kit = _Kit(backend, count, kernel.block_size)
        bindings: dict[str, Binding] = {}
        for argument, given in zip(self._traced.inputs, inputs, strict=True):
            for part in argument.parts:
                fields = part.access.field_values(given.options, len(given.values))
                bindings[part.name] = given.values.binding().with_fields(fields)
        finishes: list[Launch] = []
        for output, given in zip(self._traced.outputs, outputs, strict=True):
            stored = output.access.stored_dtype(dtype)
            name, access = output.kernel_argument, writes[output.name]
            arg = ArgSpec(name, output.storage_dim, stored, write=access)
            bound = output.access.bind(arg, given.values.binding(), given.options, kit)
            bindings[name] = bound.binding
            finishes += self._finishes(bound)
        launches = (backend.bind(kernel, bindings, count), *finishes)
        made = {one.name: one.values for one in outputs}
        declared = {one.name: one for one in self._traced.outputs}
        read = {one.name: one.values for one in inputs}
        return CallPlan(backend, dtype, count, kernel, read, made, declared, writes, launches)

    def _finishes(self, bound: BoundWrite) -> list[Launch]:
        return [
            self._backend.bind(
                self._cache.finish(self._backend, finish.spec), finish.bindings, finish.count
            )
            for finish in bound.finish
        ]


@dataclass(frozen=True)
class _Kit:
    """Scratch memory and tiles for the writes of a call."""

    backend: Backend
    count: int
    tile_size: int

    def allocate(self, num_scalars: int, dtype: DType) -> Array:
        return self.backend.xp.empty(num_scalars, dtype=dtype.value)

    @property
    def num_multiprocessors(self) -> int:
        return self.backend.num_multiprocessors

    def order(self, options: Mapping[str, Any]) -> TileOrder:
        order: TileOrder = options["prepared"].order(self.tile_size)
        return order

    def tiles(self, options: Mapping[str, Any], num_objects: int) -> TileIndex:
        prepared = options.get("prepared")
        if prepared is not None and prepared.size <= num_objects:
            tiles: TileIndex = prepared.tiles(self.tile_size)
            if prepared.size == num_objects:
                return tiles
        return self.backend.tile_index(options["index"], num_objects, self.tile_size)
