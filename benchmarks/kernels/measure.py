"""Compile every source for every architecture, and count; minutes the first time.

The table's own counts are for `COUNTED`, with the flags each side ships and with the other's.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.kernels.cases import Role
from benchmarks.kernels.machine_code import (
    Counts,
    Flags,
    RefusedError,
    Resources,
    compile_source,
    count,
)
from benchmarks.kernels.source import Side, Source
from caspar.runtime.nvidia.nvrtc import compile_kernel_text

ARCHITECTURES = ("sm_75", "sm_86", "sm_90")
COUNTED = "sm_90"

SHIPPED = {Side.OURS: Flags.EXACT, Side.REFERENCE: Flags.FAST}


@dataclass(frozen=True)
class Measured:
    """One kernel.

    Attributes:
        case: Name of the residual.
        role: Task of the kernel.
        side: Who generated it.
        predicted: 32-bit registers the generator counts on.
        resources: By architecture, with the flags the side ships; the compiler's error where it
            refused, which it may for theirs only.
        counts: Instructions with these flags, for `COUNTED`.
        other_flags: Resources with the other side's flags, for `COUNTED`.
        other_counts: Instructions likewise.
        by_nvrtc: By the run-time compiler, as caspar runs it, for `COUNTED`; None for theirs.
    """

    case: str
    role: Role
    side: Side
    predicted: int
    resources: dict[str, Resources | str]
    counts: Counts
    other_flags: Resources
    other_counts: Counts
    by_nvrtc: Resources | None


def measure_all(sources: Sequence[Source], cache: Path) -> list[Measured]:
    """Measure in parallel; results in the order of the sources."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(partial(_measure, cache=cache), sources))


def _measure(source: Source, cache: Path) -> Measured:
    shipped = SHIPPED[source.side]
    (other,) = set(Flags) - {shipped}
    counted = compile_source(source, COUNTED, shipped, cache)
    changed = compile_source(source, COUNTED, other, cache)
    resources = {arch: _resources(source, arch, cache) for arch in ARCHITECTURES if arch != COUNTED}
    return Measured(
        case=source.case.name,
        role=source.role,
        side=source.side,
        predicted=source.predicted,
        resources={**resources, COUNTED: counted.resources},
        counts=count(source, counted),
        other_flags=changed.resources,
        other_counts=count(source, changed),
        by_nvrtc=_by_nvrtc(source) if source.side is Side.OURS else None,
    )


def _resources(source: Source, arch: str, cache: Path) -> Resources | str:
    try:
        return compile_source(source, arch, SHIPPED[source.side], cache).resources
    except RefusedError as error:
        if source.side is Side.OURS:
            raise
        return str(error)


def _by_nvrtc(source: Source) -> Resources:
    text = source.path.read_text(encoding="utf-8")
    (found,) = compile_kernel_text(text, COUNTED).resources.values()
    return Resources(found.registers, found.spill_store_bytes, found.spill_load_bytes)
