"""Measure how long a kernel takes, and how close it comes to the bandwidth of a plain copy.

Cost of each request: some hundred runs on the device, and as many of a copy in the same call,
since clock rates and other users' work change from one minute to the next. If the arrays fit into
a cache, runs after the first find them there, and the fraction may exceed 1.

Bytes are those that items ask for: padding is counted as it lies in memory, and of an object that
several items read by index each reads its own, whether or not it comes out of a cache. Kernels that
complete a write, and their scratch memory, are not counted.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np

import caspar
from caspar.arrays.blocked_array import BlockedArray
from caspar.errors import InputError
from caspar.frontend.kernels.trace import TracedKernel
from caspar.ir.dtype import DType
from caspar.kernels.call.operands import Operand
from caspar.kernels.call.plan import CallPlan
from caspar.memory.access import Accessor
from caspar.memory.array import address
from caspar.memory.layout import object_scalars
from caspar.runtime.backend import Backend
from caspar.runtime.nvidia.occupancy import KernelUsage

RUNS = 20
"""Samples by default; each is the mean over runs that take a millisecond together."""

MIN_COPY_BYTES = 256 * 2**20
"""Bytes of the array that is copied for comparison, at least: several times what caches hold."""

MAX_COPY_BYTES = 2**30
"""Bytes of this array at most: more do not change the bandwidth."""


@dataclass(frozen=True, repr=False)
class KernelProfile:
    """A kernel measured; made by `Kernel.profile` and `BoundKernel.profile`.

    Attributes:
        name: The kernel function's name.
        backend: `cuda` or `cpu`.
        device: The device in words.
        clock: What was measured with.
        dtype: Type it computes in.
        count: Items of a call.
        samples_s: Seconds of a call, sample by sample.
        launches_s: Median seconds of each launch of a call by itself: the kernel, then those that
            complete its writes.
        traffic: Bytes that an item moves, by argument.
        copy_bytes_per_s: Bandwidth of a plain copy on the same device, bytes read and written; on
            the processor by one thread.
        block_size: Threads of a block; on the processor items of a tile.
        usage: What the kernel takes of a multiprocessor; None on the processor.
    """

    name: str
    backend: str
    device: str
    clock: str
    dtype: DType
    count: int
    samples_s: tuple[float, ...]
    launches_s: tuple[float, ...]
    traffic: tuple[Traffic, ...]
    copy_bytes_per_s: float
    block_size: int
    usage: KernelUsage | None

    @property
    def time_s(self) -> float:
        """Seconds of a call: the median."""
        return float(np.median(self.samples_s))

    @property
    def spread_s(self) -> tuple[float, float]:
        """Seconds between which half of the samples lie."""
        low, high = np.percentile(self.samples_s, [25, 75])
        return float(low), float(high)

    @property
    def items_per_s(self) -> float:
        """Items that are worked on in a second."""
        return self.count / self.time_s

    @property
    def bytes_moved(self) -> float:
        """Bytes that the items of a call read and write; see `item_traffic`."""
        return self.count * item_bytes(self.traffic)

    @property
    def bytes_per_s(self) -> float:
        """Achieved bandwidth."""
        return self.bytes_moved / self.time_s

    @property
    def copy_fraction(self) -> float:
        """Achieved bandwidth over that of a copy."""
        return self.bytes_per_s / self.copy_bytes_per_s

    @property
    def occupancy(self) -> float | None:
        """Warps a multiprocessor holds over those it could; None where that is not known."""
        held = None if self.usage is None else self.usage.occupancy
        return None if held is None else held.fraction

    def __str__(self) -> str:
        return f"{self._head}\n\n{self._facts}\n{self._moved}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        tables = f"{self._facts._repr_html_()}{self._moved._repr_html_()}"
        return f"<div><code>{escape(self._head)}</code>{tables}</div>"

    @property
    def _head(self) -> str:
        where = f"{self.count:,} items, {self.dtype.value}, {self.device}"
        return f"kernel {self.name}: {where}; measured by {self.clock}"

    @property
    def _facts(self) -> caspar.inspect.FactTable:
        low, high = self.spread_s
        thread = ", which is one thread's" if self.backend == "cpu" else ""
        item = item_bytes(self.traffic)
        facts = [
            (
                "time",
                f"{_time_text(self.time_s)} a call, half of {len(self.samples_s)} samples "
                f"between {_time_text(low)} and {_time_text(high)}",
            ),
            ("launches", self._launches_text),
            ("items", f"{_scaled(self.items_per_s)}/s"),
            ("moved", f"{item:g} bytes an item, {_scaled(self.bytes_moved)}B a call"),
            ("bandwidth", f"{_scaled(self.bytes_per_s)}B/s"),
            (
                "of a copy",
                f"{self.copy_fraction:.0%} of {_scaled(self.copy_bytes_per_s)}B/s{thread}",
            ),
        ]
        return caspar.inspect.FactTable((*facts, *self._usage_facts()))

    @property
    def _launches_text(self) -> str:
        first, *others = map(_time_text, self.launches_s)
        if len(others) == 0:
            return "1"
        completing = ", ".join(others)
        return f"{1 + len(others)}: the kernel {first}, those that complete its writes {completing}"

    def _usage_facts(self) -> Iterator[tuple[str, str]]:
        usage = self.usage
        if usage is None:
            unit = "items of a tile" if self.backend == "cpu" else "threads"
            yield "block size", f"{self.block_size} {unit}"
            return
        yield "registers", str(usage.registers)
        yield "local memory", f"{usage.local_bytes} bytes a thread: spilled registers, arrays"
        yield "shared memory", f"{usage.shared_bytes} bytes a block"
        held = caspar.inspect.block_sizes_text(usage.occupancies)
        if self.block_size != usage.roomiest:
            held = f"as asked for; {usage.roomiest} has {held}"
        yield "block size", f"{self.block_size}" + (f": {held}" if held else "")
        yield "occupancy", caspar.inspect.occupancy_text(usage.occupancy)

    @property
    def _moved(self) -> caspar.inspect.DataTable:
        rows = tuple((one.name, *one.cells) for one in self.traffic)
        columns = ("bytes an item", "read", "written", "index")
        return caspar.inspect.DataTable(columns, rows, columns[1:])


def profile_plan(traced: TracedKernel, plan: CallPlan, runs: int) -> KernelProfile:
    """Measure a call. What it adds is added by every run.

    Raises an `InputError` if there are no items, or no runs, an `OutOfMemoryError` if the arrays
    that are copied for comparison do not fit.
    """
    num_samples = _checked_runs(traced.name, runs)
    if plan.kernel is None:
        raise InputError(
            f"kernel {traced.name}: there are no items, so there is no time to measure"
        )
    backend = plan.backend
    traffic = item_traffic(traced, plan.dtype)
    samples = backend.time(plan.runner(), num_samples)
    alone = [samples]
    if len(plan.launches) > 1:
        alone = [backend.time(backend.runner([one]), num_samples) for one in plan.launches]
    return KernelProfile(
        name=traced.name,
        backend=backend.name,
        device=backend.device,
        clock=backend.clock,
        dtype=plan.dtype,
        count=plan.count,
        samples_s=tuple(samples),
        launches_s=tuple(float(np.median(seconds)) for seconds in alone),
        traffic=traffic,
        copy_bytes_per_s=_copy_bandwidth(backend, plan.count * item_bytes(traffic), num_samples),
        block_size=plan.kernel.block_size,
        usage=backend.usage(plan.kernel),
    )


def _checked_runs(name: str, runs: Any) -> int:
    try:
        number = operator.index(runs)
    except TypeError:
        number = 0
    if number < 1:
        raise InputError(f"kernel {name}: runs={runs!r}; it must be an integer of at least 1")
    return number


def _copy_bandwidth(backend: Backend, bytes_moved: float, num_samples: int) -> float:
    """Bytes a second, read and written, of a copy that moves about as much."""
    num_bytes = int(min(max(bytes_moved / 2.0, MIN_COPY_BYTES), MAX_COPY_BYTES))
    source, target = backend.allocate(num_bytes), backend.allocate(num_bytes)
    backend.clear(source)
    samples = backend.time(lambda: backend.copy(target, source), num_samples)
    return 2.0 * num_bytes / float(np.median(samples))


# -- arrays that stay as they are ------------------------------------------------------------------


def on_copies(
    inputs: Mapping[str, Operand], outputs: Mapping[str, Operand]
) -> tuple[dict[str, Operand], dict[str, Operand]]:
    """The same operands with blocked arrays that are written to replaced by copies.

    Whole buffers are copied, so that windows and overlaps are what they were. Arrays that are not
    blocked are converted, which copies them.
    """
    buffers = [one.given.buffer for one in outputs.values() if one.is_blocked]
    copies = {_identity(buffer): buffer.copy() for buffer in buffers}

    def copied(one: Operand) -> Operand:
        copy = copies.get(_identity(one.given.buffer)) if one.is_blocked else None
        return one if copy is None else replace(one, given=replace(one.given, buffer=copy))

    return (
        {name: copied(one) for name, one in inputs.items()},
        {name: copied(one) for name, one in outputs.items()},
    )


def _identity(buffer: Any) -> tuple[int, int, str]:
    return address(buffer), int(buffer.size), str(buffer.dtype)


@contextmanager
def kept(arrays: Iterable[BlockedArray]) -> Iterator[None]:
    """Give arrays back the values they had before."""
    saved = [(array, array.copy()) for array in arrays]
    try:
        yield
    finally:
        for array, values in saved:
            array[:] = values


# -- text ------------------------------------------------------------------------------------------

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def _scaled(number: float) -> str:
    for size, prefix in _PREFIXES:
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.3g} "


def _time_text(seconds: float) -> str:
    if seconds < 9.995e-3:
        return f"{_digits(seconds * 1e6)} us"
    return f"{_digits(seconds * 1e3)} ms"


def _digits(number: float) -> str:
    return f"{number:.{max(0, 3 - len(str(int(number))))}f}"


_ITEMS = 2**16
"""Items for which objects are counted: a multiple of every run that is summed up."""


@dataclass(frozen=True)
class Traffic:
    """Bytes of one argument, for each item.

    Attributes:
        name: The argument.
        read: Of its objects, before they are changed too.
        written: Of its objects.
        index: Of its index.
    """

    name: str
    read: float
    written: float
    index: float

    @property
    def total(self) -> float:
        """All bytes."""
        return self.read + self.written + self.index

    @property
    def cells(self) -> tuple[str, str, str]:
        """Bytes read, written and of the index, for a table."""
        return f"{self.read:g}", f"{self.written:g}", f"{self.index:g}"


@dataclass(frozen=True)
class ObjectCount:
    """The objects that an array has for n items: `per_item` (None: any number) and `spare` ones."""

    per_item: float | None
    spare: int = 0

    def __str__(self) -> str:
        """Return it as the length of an array: `n`, `n + 1`, `n / 256`, `1`; `m` for any length."""
        if self.per_item is None:
            return "m"
        if self.per_item == 0.0:
            return str(self.spare)
        items = "n" if self.per_item >= 1.0 else f"n / {1.0 / self.per_item:g}"
        return items if self.spare == 0 else f"{items} + {self.spare}"


def object_count(access: Accessor) -> ObjectCount:
    """Return how many objects an access needs."""
    try:
        few, many = (access.num_objects(n, access.defaults) for n in (_ITEMS, 2 * _ITEMS))
    except KeyError:  # only a call has the option that tells
        return ObjectCount(None)
    if many == 0:
        return ObjectCount(None)
    return ObjectCount((many - few) / _ITEMS, 2 * few - many)


def item_traffic(traced: TracedKernel, dtype: DType) -> tuple[Traffic, ...]:
    """Return the bytes that an item moves for each argument, then for each output.

    An item touches one object of an argument (of a pair only its own: the other one counts for its
    neighbour), a part of one if several items share an object, and none if all items share one.
    """
    reads = [
        Traffic(one.name, _bytes(one.access, one.storage_dim, dtype), 0.0, _index(one.access))
        for one in traced.inputs
    ]
    writes = []
    for one in traced.outputs:
        written = _bytes(one.access, one.storage_dim, dtype)
        read = written if one.access.adds else 0.0
        writes.append(Traffic(one.name, read, written, _index(one.access)))
    return (*reads, *writes)


def item_bytes(traffic: Sequence[Traffic]) -> float:
    """All bytes that an item moves."""
    return sum(one.total for one in traffic)


def _bytes(access: Accessor, dim: int, dtype: DType) -> float:
    per_item = object_count(access).per_item
    objects = 1.0 if per_item is None else min(1.0, abs(per_item))
    return objects * object_scalars(dim, dtype) * dtype.itemsize


def _index(access: Accessor) -> float:
    return float(DType.INT32.itemsize if "index" in access.options else 0)
