"""Tables and JSON of what was measured: every side's milliseconds, and how they compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.index_kinds import KINDS
from benchmarks.reference_kernels.tasks import COPY_DIMS, SHARED_DIM, Operation, Timing

NAME = "reference_kernels"

SHARED = (Operation.INDICES, Operation.READ_ADD, Operation.ADD, Operation.READ)
SEQUENTIAL = (Operation.COPY, Operation.TO_BLOCKED, Operation.TO_ROWS)


@dataclass(frozen=True)
class Report:
    """All of one run.

    Attributes:
        environment: Machine, versions and date.
        copy_gb_per_s: Bytes read and written in a second by a copy within the device, in GB.
        timings: By any order.
    """

    environment: dict[str, str]
    copy_gb_per_s: float
    timings: tuple[Timing, ...]


def write(report: Report, folder: Path) -> None:
    """Write `reference_kernels.json` and `reference_kernels.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = asdict(report)
    for timing in plain["timings"]:
        timing["operation"] = timing["operation"].value
    text = json.dumps(plain, indent=1)
    (folder / f"{NAME}.json").write_text(text + "\n", encoding="utf-8")
    (folder / f"{NAME}.md").write_text(markdown(report), encoding="utf-8")


def markdown(report: Report) -> str:
    """The page."""
    lines = ["# Memory access by generated kernels", ""]
    lines += [f"* {name}: {value}" for name, value in report.environment.items()]
    lines += [f"* copy within the device: {report.copy_gb_per_s:.0f} GB/s read and written", ""]
    lines += [_EXPLANATION]
    measured = {one.operation for one in report.timings}
    for operation in (one for one in SHARED if one in measured):
        lines += ["", f"## Through an index: {operation.value}", ""]
        lines += _shared_table(report, operation)
    lines += ["", *(f"* *{kind.name}*: {kind.description}." for kind in KINDS)]
    for operation in (one for one in SEQUENTIAL if one in measured):
        lines += ["", f"## In order: {operation.value}", "", *_sequential_table(report, operation)]
    return "\n".join(lines) + "\n"


_EXPLANATION = f"""\
Milliseconds, float32. With an index, objects have {SHARED_DIM} scalars. A *ratio* is the time of
the side named first over that of the other: above 1, the other is faster. *Of copy*: the bytes that
must be read and written, padding included, in a second, over those of a copy within the device next
to it. What the operations are: `benchmarks/reference_kernels/tasks.py`."""


def _shared_table(report: Report, operation: Operation) -> list[str]:
    """A row for each kind of index."""
    found, sides = _by_key(report), _sides(report, operation)
    head = ["index", "objects", sides[0]]
    head += [text for side in sides[1:] for text in (side, "ratio")]
    rows = []
    for kind in KINDS:
        timings = [one for one in report.timings if one.on == kind.name]
        if len(timings) > 0:
            cells = [kind.name, f"{kind.num_objects(timings[0].num_items):,}"]
            cells += _compared([found.get((side, operation, kind.name)) for side in sides])
            rows.append(cells)
    return _table(head, rows)


def _compared(timings: Sequence[Timing | None]) -> list[str]:
    """Milliseconds of the first side; of each other, and how many times faster it is."""
    first, *others = timings
    cells = ["-" if first is None else f"{first.time_ms:.3f}"]
    for other in others:
        cells.append("-" if other is None else f"{other.time_ms:.3f}")
        if first is None or other is None:
            cells.append("-")
        else:
            cells.append(f"{first.time_ms / other.time_ms:.2f}")
    return cells


def _sequential_table(report: Report, operation: Operation) -> list[str]:
    """A row for each number of scalars."""
    found, sides = _by_key(report), _sides(report, operation)
    head = ["scalars", "items", *(text for side in sides for text in (side, "of copy"))]
    rows = []
    for dim in COPY_DIMS:
        timings = [one for one in report.timings if one.on == str(dim)]
        if len(timings) > 0:
            cells = [str(dim), f"{timings[0].num_items:,}"]
            for side in sides:
                one = found.get((side, operation, str(dim)))
                of_copy = None if one is None else one.of_copy
                cells.append("-" if one is None else f"{one.time_ms:.3f}")
                cells.append("-" if of_copy is None else f"{of_copy:.2f}")
            rows.append(cells)
    return _table(head, rows)


def _by_key(report: Report) -> dict[tuple[str, Operation, str], Timing]:
    return {(one.side, one.operation, one.on): one for one in report.timings}


def _sides(report: Report, operation: Operation) -> list[str]:
    """Names of the sides that were measured in it, in that order."""
    timings = (one for one in report.timings if one.operation is operation)
    return list(dict.fromkeys(one.side for one in timings))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    align = ["---"] + (len(head) - 1) * ["---:"]
    return [f"| {' | '.join(row)} |" for row in (head, align, *rows)]
