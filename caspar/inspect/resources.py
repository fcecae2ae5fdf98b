"""The compiler's figures of a kernel beside the scheduler's, and a table of several kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from caspar.runtime.occupancy import Occupancy, occupancy
from caspar.inspect.tables import LINE_UNDER_HEAD, FactTable, plain_text
from caspar.ir.dtype import DType
from caspar.runtime.nvrtc import KernelResources, nvrtc_version
from caspar.runtime.sass import DOUBLE_KINDS, KINDS, Region, SassKernel

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
    "which are sums over tiles and the slow paths of sine and cosine."
)


@dataclass(frozen=True)
class KernelReport:
    """What became of one kernel.

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
class ResourcesView:
    """The figures of some kernels.

    Attributes:
        reports: One for each kernel.
    """

    reports: tuple[KernelReport, ...]

    def __str__(self) -> str:
        return plain_text(self._renderable())

    def __repr__(self) -> str:
        return str(self)

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
            _occupancy_text(report.occupancy),
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


def _occupancy_text(found: Occupancy | None) -> str:
    return "?" if found is None else f"{found.fraction:.0%}"


def _facts(report: KernelReport) -> Table:
    resources = report.resources
    held = "not known for this architecture"
    if report.occupancy is not None:
        limit = report.occupancy
        held = f"{limit.fraction:.0%}: {limit.warps} of {limit.max_warps} warps, by {limit.limit}"
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column()
    for name, text in (
        ("kernel", f"{report.name}, computes in {report.dtype.value}"),
        ("predicted peak", f"{report.num_values} values, {report.predicted_registers} registers"),
        ("registers", str(resources.registers)),
        (
            "spilled",
            f"{resources.spill_store_bytes} bytes stored, {resources.spill_load_bytes} loaded",
        ),
        ("stack", f"{resources.stack_bytes} bytes"),
        ("shared memory", f"{resources.shared_bytes} bytes"),
        ("occupancy", held),
    ):
        facts.add_row(name, Text(text))
    return facts


def _kinds(sass: SassKernel) -> Table:
    """Instructions by kind and region; kinds that do not occur are left out."""
    table = _table("instructions", *(region.value for region in Region))
    counts = [sass.counts([region]) for region in Region]
    for kind in KINDS:
        numbers = [found[kind] for found in counts]
        if sum(numbers) > 0:
            table.add_row(kind, *map(str, numbers))
    table.add_row("all", *(str(sum(found.values())) for found in counts))
    return table
