"""The arguments of a call, and whether they fit together: numbers of items, objects, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caspar.arrays.blocked_array import BlockedArray
from caspar.arrays.passed import share_memory
from caspar.arrays.shared_indices import check_range
from caspar.errors import InputError
from caspar.frontend.kernels.trace import KernelInput, KernelOutput
from caspar.kernels.call.operands import Operand
from caspar.memory.access import Accessor, WriteAccessor
from caspar.runtime.backend import Backend


@dataclass(frozen=True)
class CallArgument:
    """An argument or output with what a call gives it.

    Attributes:
        argument: What it is.
        operand: What was passed.
        options: What was passed besides values, read; a prepared index as `prepared` too.
        array: The values on the device; None of an output that is to be made.
    """

    argument: KernelInput | KernelOutput
    operand: Operand
    options: Mapping[str, Any]
    array: BlockedArray | None

    @property
    def name(self) -> str:
        """Its name."""
        return self.argument.name

    @property
    def access(self) -> Accessor:
        """How it is read or written."""
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
    """The items that all arguments agree on.

    Args:
        kernel: The kernel's name.
        arguments: All arguments and outputs.

    Raises:
        InputError: They do not agree, or none says.
    """
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
    """Items that an argument stands for; None where any number will do."""
    length = None if one.array is None else len(one.array)
    try:
        return one.access.num_items(length, one.options)
    except ValueError as error:  # its options are wrong
        raise InputError(f"{one.where}: {error}") from error


def _source(one: CallArgument, items: int) -> str:
    """Where the number of items of an argument comes from."""
    if "index" in one.options:
        return "length of its index"
    if one.array is None:
        return one.access.name
    return "rows" if len(one.array) == items else f"{one.access.name} of {len(one.array):,} rows"


def check_objects(
    arguments: Sequence[CallArgument], count: int, backend: Backend, check_values: bool
) -> None:
    """Every array has the objects that items touch, every index an entry for each item.

    Args:
        arguments: All arguments and outputs, with arrays.
        count: Items.
        backend: Where they are.
        check_values: Whether to look at the indices, which waits for the device.

    Raises:
        InputError: Names the argument, what is wrong and what is needed.
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
    """No output shares memory with another argument, unless both go item by item.

    Raises:
        InputError: Names both.
    """
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
    """Whether results are copied over one another: arrays that are not blocked come afterwards."""
    target, its = output.operand.target, other.operand.target
    if is_read or (target is None and its is None) or other.operand.given is None:
        return False
    if output.operand.given is None:
        return False
    mine = output.values.chunks if target is None else (target,)
    theirs = other.values.chunks if its is None else (its,)
    return any(share_memory(one, another) for one in mine for another in theirs)
