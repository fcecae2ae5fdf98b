"""The arguments of a call, and whether they fit together: numbers of items, objects, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caspar.errors import InputError
from caspar.frontend.kernel_trace import KernelInput, KernelOutput
from caspar.kernels.blocked_array import BlockedArray
from caspar.kernels.operands import Operand
from caspar.kernels.shared_indices import check_range
from caspar.memory.access import Accessor
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
    exact: dict[str, int] = {}
    at_most: list[int] = []
    for one in arguments:
        length = None if one.array is None else len(one.array)
        items = one.access.num_items(length, one.options)
        if items is not None and one.access.is_exact:
            exact[one.name] = items
        elif items is not None:
            at_most.append(items)
    if len(set(exact.values())) > 1:
        said = ", ".join(f"{name} for {items:,}" for name, items in exact.items())
        raise InputError(
            f"kernel {kernel}: its arguments stand for different numbers of items: {said}; pass "
            "arrays that agree, or count="
        )
    if len(exact) > 0:
        return next(iter(exact.values()))
    if len(at_most) > 0:
        return min(at_most)
    raise InputError(f"kernel {kernel}: no argument says how many items there are; pass count=")


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
        needed = one.access.num_objects(count, one.options)
        if len(one.values) < needed:
            raise InputError(
                f"{one.where}: {len(one.values):,} objects; {one.access.name} over {count:,} "
                f"items needs {needed:,}"
            )
        index = one.options.get("index")
        if index is None:
            continue
        if index.shape[0] != count:
            raise InputError(
                f"{one.where}: {index.shape[0]:,} indices for {count:,} items; pass one for each"
            )
        if check_values:
            _check_index(one, backend)


def _check_index(one: CallArgument, backend: Backend) -> None:
    index, size = one.options["index"], len(one.values)
    prepared = one.options.get("prepared")
    if prepared is None or prepared.size > size:
        check_range(backend, f"{one.where}, index", index, size)
    if not one.access.needs_unique_index:
        return
    repeated = backend.first_repeated(index, size)
    if repeated is not None:
        raise InputError(
            f"{one.where}, index: object {int(index[repeated])} is named by more than one item, "
            f"at entry {repeated} for example; {one.access.name} needs indices without "
            "repetition, AddSharedSum does not"
        )


def check_overlaps(inputs: Sequence[CallArgument], outputs: Sequence[CallArgument]) -> None:
    """No output shares memory with another argument, unless both go item by item.

    Raises:
        InputError: Names both.
    """
    for number, output in enumerate(outputs):
        for other in (*inputs, *outputs[:number]):
            if not output.values.overlaps(other.values):
                continue
            is_read = isinstance(other.argument, KernelInput)
            own = output.access.touches_own_object and other.access.touches_own_object
            if is_read and own and output.values.is_same_as(other.values):
                continue
            raise InputError(
                f"{output.where}: overlaps {other.where} in memory; pass another array (only "
                "what is read and written item by item may be updated in place)"
            )
