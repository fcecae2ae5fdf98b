"""From checked operands to launches: what a call of a kernel does, and what a bound kernel keeps.

Once for each call (or once for a bound kernel): where it runs, in which type, over how many items;
which access every output uses; compile or fetch; bind. Nothing is left for the launch itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caspar.errors import InputError
from caspar.frontend.kernel_trace import KernelInput, KernelOutput, TracedKernel
from caspar.ir.dtype import DType
from caspar.kernels.blocked_array import BlockedArray
from caspar.kernels.compiled import KernelCache
from caspar.kernels.convert import shared_backend
from caspar.kernels.operands import Operand, OperandReader, floating_dtype, place_of
from caspar.kernels.shared_indices import SharedIndices, check_range
from caspar.memory.access import ArgSpec, BoundWrite
from caspar.memory.binding import Binding
from caspar.memory.tiles import Array, TileIndex, TileOrder
from caspar.runtime.arrays import HOST
from caspar.runtime.backend import Backend, Kernel, Launch


@dataclass(frozen=True)
class CallOptions:
    """How a kernel is called.

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
    """A call with everything decided.

    Attributes:
        backend: Where it runs.
        dtype: Type it computes in.
        count: Items.
        kernel: The compiled kernel; None where there are no items.
        outputs: By name, in order.
        launches: The kernel's, and those that complete its writes.
    """

    backend: Backend
    dtype: DType
    count: int
    kernel: Kernel | None
    outputs: Mapping[str, BlockedArray]
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

    Args:
        traced: The kernel.
        cache: Its compiled forms.
        inputs: By argument name.
        outputs: By output name.
        chosen: Backend for arrays on the host: `auto`, `cuda` or `cpu`.
        options: How it is called.

    Raises:
        InputError: Names the argument, what is wrong and what is allowed.
    """
    operands = [*inputs.values(), *outputs.values()]
    backend = _backend(operands, chosen)
    dtype = _dtype(operands, options.dtype)
    reader = OperandReader(backend, dtype, options.check)
    return _Planner(traced, cache, reader, options).plan(inputs, outputs)


def _backend(operands: Sequence[Operand], chosen: str) -> Backend:
    """Where the arrays live, or for arrays on the host what was chosen."""
    first: Operand | None = None
    for operand in operands:
        for given in (operand.given, operand.options.get("index")):
            place = place_of(given)
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
                "arrays one type, or say dtype='float32' or 'float64' to convert them"
            )
    return DType.FLOAT32 if first is None else first[1]


class _Planner:
    """Plans one call."""

    def __init__(
        self,
        traced: TracedKernel,
        cache: KernelCache,
        reader: OperandReader,
        options: CallOptions,
    ) -> None:
        self._traced = traced
        self._cache = cache
        self._reader = reader
        self._backend = reader.backend
        self._options = options
        self._arguments: tuple[KernelInput | KernelOutput, ...] = (*traced.inputs, *traced.outputs)

    def plan(self, inputs: Mapping[str, Operand], outputs: Mapping[str, Operand]) -> CallPlan:
        """Everything in order."""
        reader, options = self._reader, self._options
        given = {name: self._read_options(one) for name, one in {**inputs, **outputs}.items()}
        values = {
            argument.name: reader.blocked(
                inputs[argument.name].where,
                inputs[argument.name].given,
                argument.storage_dim,
                argument.matrix_shape,
                share=True,
            )
            for argument in self._traced.inputs
        }
        lengths: dict[str, int | None] = {name: len(array) for name, array in values.items()}
        made = {
            one.name: self._given_output(one, outputs[one.name]) for one in self._traced.outputs
        }
        lengths |= {name: None if one is None else len(one) for name, one in made.items()}
        count = self._count(given, lengths, {**inputs, **outputs})
        results = {
            one.name: self._output(one, outputs[one.name], given[one.name], made[one.name], count)
            for one in self._traced.outputs
        }
        everything = {**values, **results}
        self._check_objects(everything, given, {**inputs, **outputs}, count)
        self._check_overlaps(values, results, {**inputs, **outputs})
        if count == 0:
            for one in self._traced.outputs:
                if not one.access.adds and made[one.name] is None:
                    results[one.name].buffer[...] = 0
            return CallPlan(self._backend, reader.dtype, 0, None, results, ())
        writes = {
            one.name: one.access.in_kernel(
                given[one.name], self._backend.name, options.deterministic
            )
            for one in self._traced.outputs
        }
        kernel = self._cache.kernel(
            self._traced, self._backend, reader.dtype, writes, options.block_size
        )
        kit = _Kit(self._backend, count, kernel.block_size)
        bindings: dict[str, Binding] = {}
        for argument in self._traced.inputs:
            self._bind_input(argument, values[argument.name], given[argument.name], bindings)
        finishes: list[Launch] = []
        for one in self._traced.outputs:
            output = results[one.name].binding()
            stored = one.access.stored_dtype(reader.dtype)
            arg = ArgSpec(one.name, one.storage_dim, stored, write=writes[one.name])
            bound = one.access.bind(arg, output, given[one.name], kit)
            bindings[one.name] = bound.binding
            finishes += self._finishes(bound)
        launch = self._backend.bind(kernel, bindings, count)
        return CallPlan(self._backend, reader.dtype, count, kernel, results, (launch, *finishes))

    def _read_options(self, operand: Operand) -> dict[str, Any]:
        """Options with the index on the device; one that is prepared stays beside it."""
        options = dict(operand.options)
        index = options.get("index")
        if index is not None:
            if isinstance(index, SharedIndices):
                options["prepared"] = index
            options["index"] = self._reader.index(f"{operand.where}, index", index)
        return options

    def _given_output(self, output: KernelOutput, operand: Operand) -> BlockedArray | None:
        """The array that is written to, if one was passed."""
        if operand.given is None:
            return None
        if isinstance(operand.given, BlockedArray) and not operand.given.is_writable:
            raise InputError(f"{operand.where}: its memory is read-only; pass a copy()")
        return self._reader.blocked(
            operand.where, operand.given, output.storage_dim, output.matrix_shape
        )

    def _count(
        self,
        given: Mapping[str, Mapping[str, Any]],
        lengths: Mapping[str, int | None],
        operands: Mapping[str, Operand],
    ) -> int:
        """Items: what all arguments agree on."""
        if self._options.count is not None:
            return self._options.count
        exact: dict[str, int] = {}
        at_most: list[int] = []
        for one in self._arguments:
            items = one.access.num_items(lengths[one.name], given[one.name])
            if items is None:
                continue
            if one.access.is_exact:
                exact[one.name] = items
            else:
                at_most.append(items)
        if len(set(exact.values())) > 1:
            said = ", ".join(f"{name} for {items:,}" for name, items in exact.items())
            raise InputError(
                f"kernel {self._traced.name}: its arguments stand for different numbers of items: "
                f"{said}; pass arrays that agree, or count="
            )
        if len(exact) > 0:
            return next(iter(exact.values()))
        if len(at_most) > 0:
            return min(at_most)
        raise InputError(
            f"kernel {self._traced.name}: no argument says how many items there are; pass count="
        )

    def _output(
        self,
        output: KernelOutput,
        operand: Operand,
        given: Mapping[str, Any],
        made: BlockedArray | None,
        count: int,
    ) -> BlockedArray:
        """The array that was passed, or a new one."""
        if made is not None:
            return made
        size = operand.size
        if size is None and "prepared" in given:
            size = given["prepared"].size
        if size is None and "index" in given:
            raise InputError(
                f"{operand.where}: {output.access.name} needs an array to write to, or its number "
                "of objects: pass 'values' or 'size' beside 'index'"
            )
        if size is None:
            size = output.access.num_objects(count, given)
        make = BlockedArray.empty if output.access.writes_all else BlockedArray.zeros
        return make(
            size, output.storage_dim, dtype=self._reader.dtype.value, backend=self._backend.name
        )

    def _check_objects(
        self,
        arrays: Mapping[str, BlockedArray],
        given: Mapping[str, Mapping[str, Any]],
        operands: Mapping[str, Operand],
        count: int,
    ) -> None:
        """Every array has the objects that items touch."""
        for one in self._arguments:
            array, options, where = arrays[one.name], given[one.name], operands[one.name].where
            needed = one.access.num_objects(count, options)
            if len(array) < needed:
                raise InputError(
                    f"{where}: {len(array):,} objects; {one.access.name} over {count:,} items "
                    f"needs {needed:,}"
                )
            index = options.get("index")
            if index is None:
                continue
            if index.shape[0] != count:
                raise InputError(
                    f"{where}: {index.shape[0]:,} indices for {count:,} items; pass one for each"
                )
            self._check_index(one, array, options, where)

    def _check_index(
        self,
        one: KernelInput | KernelOutput,
        array: BlockedArray,
        options: Mapping[str, Any],
        where: str,
    ) -> None:
        if not self._options.check:
            return
        prepared = options.get("prepared")
        if prepared is None or prepared.size > len(array):
            check_range(self._backend, f"{where}, index", options["index"], len(array))
        if one.access.needs_unique_index:
            repeated = self._backend.first_repeated(options["index"], len(array))
            if repeated is not None:
                raise InputError(
                    f"{where}, index: object {int(options['index'][repeated])} is named by more "
                    f"than one item, at entry {repeated} for example; {one.access.name} needs "
                    "indices without repetition, AddSharedSum does not"
                )

    def _check_overlaps(
        self,
        values: Mapping[str, BlockedArray],
        results: Mapping[str, BlockedArray],
        operands: Mapping[str, Operand],
    ) -> None:
        """No output shares memory with another argument, unless item by item."""
        accesses = {one.name: one.access for one in self._arguments}
        for name, array in results.items():
            for other, another in {**values, **results}.items():
                if other == name or not array.overlaps(another):
                    continue
                own = accesses[name].touches_own_object and accesses[other].touches_own_object
                if own and other in values and array.is_same_as(another):
                    continue
                raise InputError(
                    f"{operands[name].where}: overlaps {operands[other].where} in memory; pass "
                    "another array (only what is read and written item by item may be updated in "
                    "place)"
                )

    def _bind_input(
        self,
        argument: KernelInput,
        array: BlockedArray,
        options: Mapping[str, Any],
        bindings: dict[str, Binding],
    ) -> None:
        for part in argument.parts:
            fields = part.access.field_values(options, len(array))
            bindings[part.name] = array.binding().with_fields(fields)

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
        """A flat array."""
        return self.backend.xp.empty(num_scalars, dtype=dtype.value)

    @property
    def num_multiprocessors(self) -> int:
        """Multiprocessors of the device."""
        return self.backend.num_multiprocessors

    def order(self, options: Mapping[str, Any]) -> TileOrder:
        """Of the prepared index."""
        order: TileOrder = options["prepared"].order(self.tile_size)
        return order

    def tiles(self, options: Mapping[str, Any], num_objects: int) -> TileIndex:
        """Those that were prepared, or new ones."""
        prepared = options.get("prepared")
        if prepared is not None and prepared.size <= num_objects:
            tiles: TileIndex = prepared.tiles(self.tile_size)
            if prepared.size == num_objects:
                return tiles
        return self.backend.tile_index(options["index"], num_objects, self.tile_size)
