"""The compiler's figures of a kernel beside the scheduler's, and a table of several kernels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from caspar.ir.dtype import DType
from caspar.runtime.nvidia.nvrtc import KernelResources, nvrtc_version
from caspar.runtime.nvidia.occupancy import Occupancy, occupancy
from caspar.runtime.nvidia.sass import DOUBLE_KINDS, KINDS, Region, SassKernel
from caspar.tables import LINE_UNDER_HEAD, FactTable, Shown, plain_text

_WORD = 4

_COUNTED = {
    "FFMA": ("FFMA",),
    "FMUL": ("FMUL",),
    "FADD": ("FADD",),
    "MUFU": ("MUFU",),
    "double": DOUBLE_KINDS,
    "global": ("LDG", "STG", "atomic"),
}
"""Columns of instructions, with the kinds that each counts."""

_NOTE = (
    "peak: live values that the scheduler predicts, in registers of 32 bits. spilled, shared: "
    "bytes of a thread, of a block. FFMA ... global: instructions that a thread runs at most "
    "once; global memory is read and written by LDG and STG. loops: all instructions in loops, "
    "which are sums over tiles, the slow paths of sine and cosine, and all of a kernel that walks "
    "tiles of an eliminated node."
)


@dataclass(frozen=True)
class KernelReport:
    """One compiled kernel.

    Attributes:
        name: The kernel's name.
        arch: Architecture it was compiled for.
        dtype: Floating type it computes in.
        num_values: Peak pressure predicted by the scheduler, in values.
        block_size: Threads of a block.
        resources: The compiler's figures.
        sass: Its machine code.
    """

    name: str
    arch: str
    dtype: DType
    num_values: int
    block_size: int
    resources: KernelResources
    sass: SassKernel

    @property
    def predicted_registers(self) -> int:
        """Peak pressure in registers of 32 bits."""
        return self.num_values * self.dtype.itemsize // _WORD

    @property
    def occupancy(self) -> Occupancy | None:
        """Theoretical occupancy; None where the architecture's limits are not known."""
        return occupancy(self.resources, self.block_size, self.arch)


@dataclass(frozen=True, repr=False)
class ResourcesView(Shown):
    """The figures of some kernels.

    Attributes:
        reports: One for each kernel.
    """

    reports: tuple[KernelReport, ...]

    def __str__(self) -> str:
        return plain_text(self._renderable())

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def _renderable(self) -> RenderableType:
        """A row for each kernel; of a single kernel every kind of instruction and every region."""
        first = self.reports[0]
        head = Text(f"{first.arch}, NVRTC {nvrtc_version()}")
        if len(self.reports) == 1:
            return Group(head, _facts(first), Text(), _kinds(first.sass))
        return Group(head, Text(), _overview(self.reports), Text(), Text(_NOTE))


def _overview(reports: Sequence[KernelReport]) -> Table:
    table = _table(
        "kernel", "peak", "registers", "spilled", "shared", "occupancy", *_COUNTED, "loops"
    )
    for report in reports:
        counts = report.sass.straight_line
        cells = [
            report.predicted_registers,
            report.resources.registers,
            report.resources.spill_bytes,
            report.resources.shared_bytes,
            "?" if report.occupancy is None else f"{report.occupancy.fraction:.0%}",
            *(sum(counts[kind] for kind in kinds) for kinds in _COUNTED.values()),
            sum(report.sass.counts([Region.LOOP]).values()),
        ]
        table.add_row(report.name, *map(str, cells))
    return table


def _table(first: str, *columns: str) -> Table:
    table = Table(box=LINE_UNDER_HEAD, padding=0, show_edge=False)
    table.add_column(first, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _facts(report: KernelReport) -> RenderableType:
    facts = FactTable(
        (
            ("kernel", f"{report.name}, computes in {report.dtype.value}"),
            *resource_facts(report.resources, report.num_values, report.dtype),
            ("occupancy", occupancy_text(report.occupancy)),
        )
    )
    return facts.renderable()


def resource_facts(
    resources: KernelResources, num_values: int, dtype: DType
) -> tuple[tuple[str, str], ...]:
    """Name and text of the compiler's figures, after the scheduler's.

    Args:
        resources: The compiler's figures.
        num_values: Peak pressure predicted by the scheduler, in values.
        dtype: Type of the values.
    """
    predicted = num_values * dtype.itemsize // _WORD
    spilled = f"{resources.spill_store_bytes} bytes stored, {resources.spill_load_bytes} loaded"
    return (
        ("predicted peak", f"{num_values} values, {predicted} registers"),
        ("registers", str(resources.registers)),
        ("spilled", spilled),
        ("stack", f"{resources.stack_bytes} bytes"),
        ("shared memory", f"{resources.shared_bytes} bytes"),
    )


def occupancy_text(held: Occupancy | None) -> str:
    """An occupancy with what limits it."""
    if held is None:
        return "not known for this architecture"
    return f"{held.fraction:.0%}: {held.warps} of {held.max_warps} warps, by {held.limit}"


def block_sizes_text(occupancies: Mapping[int, Occupancy]) -> str:
    """Say why a block size is chosen; empty if a multiprocessor's limits are not known."""
    if len(occupancies) == 0:
        return ""
    if len(occupancies) == 1:
        return "the only one that the access of its arguments allows"
    held = ", ".join(f"{size}: {one.warps}" for size, one in occupancies.items())
    return f"most warps at once ({held})"


def _kinds(sass: SassKernel) -> Table:
    table = _table("instructions", *(region.value for region in Region))
    counts = [sass.counts([region]) for region in Region]
    for kind in KINDS:
        numbers = [found[kind] for found in counts]
        if sum(numbers) > 0:
            table.add_row(kind, *map(str, numbers))
    table.add_row("all", *(str(sum(found.values())) for found in counts))
    return table
