"""The table and JSON of what was measured."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from benchmarks.kernels.cases import CASES, Role
from benchmarks.kernels.machine_code import Counts, Resources
from benchmarks.kernels.measure import ARCHITECTURES, COUNTED, SHIPPED, Measured
from benchmarks.kernels.source import Side
from caspar.runtime.nvidia.sass import DOUBLE_KINDS

NAME = "kernels"
ARITHMETIC = ("FFMA", "FMUL", "FADD", "MUFU")
SUM_KINDS = ("FADD", "DADD", "SHFL", "atomic", "BAR", "LDS", "STS", "LDG", "STG")


@dataclass(frozen=True)
class Report:
    """All of one run.

    Attributes:
        environment: Versions and date.
        kernels: Ours first, then the reference's.
    """

    environment: Mapping[str, str]
    kernels: tuple[Measured, ...]


def write(report: Report, folder: Path) -> None:
    """Write `kernels.json` and `kernels.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_plain(asdict(report)), indent=1)
    (folder / f"{NAME}.json").write_text(text + "\n", encoding="utf-8")
    (folder / f"{NAME}.md").write_text(markdown(report), encoding="utf-8")


def _plain(value: Any) -> Any:
    """The same for JSON: names of enums instead of them."""
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def markdown(report: Report) -> str:
    """Tables for people."""
    lines = ["# Generated kernels, ours beside the reference's", ""]
    lines += [f"* {name}: {value}" for name, value in report.environment.items()]
    lines += ["", _EXPLANATION]
    for case in CASES:
        kernels = [one for one in report.kernels if one.case == case.name]
        lines += ["", f"## {case.title}", "", *_main_table(kernels)]
    lines += ["", "## Other flags, and NVRTC", "", _FLAGS, "", *_flags_table(report.kernels)]
    lines += ["", "## What the sums cost", "", _SUMS, "", *_sums_table(report)]
    return "\n".join(lines) + "\n"


_EXPLANATION = f"""\
Float32 unless a role says otherwise; each side with the flags it ships: {{}}.
*Predicted*: 32-bit registers the generator counts on. *Registers* and *spilled* bytes (stores +
loads, in the text) for {", ".join(ARCHITECTURES)}; all other figures are instructions for
{COUNTED}, in the straight-line part without the sums over a block. *All four*: FFMA + FMUL + FADD +
MUFU.
*FP64*: double-precision arithmetic. *Local*: accesses to local memory. Roles and counting are
described in `benchmarks/kernels/cases.py` and `machine_code.py`.""".format(
    "; ".join(f"{side.value} {' '.join(flags.value)}" for side, flags in SHIPPED.items())
)

_FLAGS = f"""\
{COUNTED}: with the flags each side ships, with those of the other, and ours by the compiler of
caspar's CUDA backend, whose version may differ from nvcc's."""

_SUMS = """\
Instructions in the text of what adds the items of a block, loops and unrolled copies included:
how often each runs depends on the problem. Ours are ordered sums of segments, the reference's
shuffles and atomics."""


def _table(head: Sequence[str], rows: Iterator[Sequence[str]], num_names: int) -> list[str]:
    align = num_names * ["---"] + (len(head) - num_names) * ["---:"]
    return [f"| {' | '.join(row)} |" for row in (head, align, *rows)]


def _paired(kernels: Sequence[Measured]) -> list[Measured]:
    """By role, ours before the reference's."""
    return sorted(kernels, key=lambda one: (list(Role).index(one.role), one.side is not Side.OURS))


def _main_table(kernels: Sequence[Measured]) -> list[str]:
    head = ["kernel", "by", "predicted", "registers", "spilled", *ARITHMETIC]
    head += ["all four", "FP64", "LDG", "STG", "LDS", "STS", "local"]
    return _table(head, (_main_row(one) for one in _paired(kernels)), 2)


def _main_row(one: Measured) -> list[str]:
    resources = [one.resources[arch] for arch in ARCHITECTURES]
    body = one.counts.body
    numbers = [*(body.get(kind, 0) for kind in ARITHMETIC), _all_four(one.counts)]
    numbers.append(sum(body.get(kind, 0) for kind in DOUBLE_KINDS))
    numbers += [body.get(kind, 0) for kind in ("LDG", "STG", "LDS", "STS")]
    numbers.append(body.get("LDL", 0) + body.get("STL", 0))
    return [
        one.role.value,
        one.side.value,
        str(one.predicted),
        " / ".join(_registers(entry) for entry in resources),
        " / ".join(_spilled(entry) for entry in resources),
        *map(str, numbers),
    ]


def _all_four(counts: Counts) -> int:
    return sum(counts.body.get(kind, 0) for kind in ARITHMETIC)


def _registers(resources: Resources | str) -> str:
    return "refused" if isinstance(resources, str) else str(resources.registers)


def _spilled(resources: Resources | str) -> str:
    if isinstance(resources, str):
        return "-"
    stores, loads = resources.spill_stores, resources.spill_loads
    return f"{stores}+{loads}" if stores + loads > 0 else "0"


def _flags_table(kernels: Sequence[Measured]) -> list[str]:
    head = ["residual", "kernel", "by", "registers", "spilled", "all four"]
    head += ["other flags: registers", "spilled", "all four", "NVRTC: registers", "spilled"]
    rows = (
        [
            case.name,
            one.role.value,
            one.side.value,
            *_both(one.resources[COUNTED]),
            str(_all_four(one.counts)),
            *_both(one.other_flags),
            str(_all_four(one.other_counts)),
            *(("", "") if one.by_nvrtc is None else _both(one.by_nvrtc)),
        ]
        for case in CASES
        for one in _paired([one for one in kernels if one.case == case.name])
    )
    return _table(head, rows, 3)


def _both(resources: Resources | str) -> tuple[str, str]:
    return _registers(resources), _spilled(resources)


def _sums_table(report: Report) -> list[str]:
    head = ["residual", "kernel", "by", "instructions", *SUM_KINDS]
    rows = (
        [
            case.name,
            one.role.value,
            one.side.value,
            str(sum(one.counts.sums.values())),
            *(str(one.counts.sums.get(kind, 0)) for kind in SUM_KINDS),
        ]
        for case in CASES
        for one in _paired([one for one in report.kernels if one.case == case.name])
        if one.role in (Role.FIRST, Role.PRODUCT)
    )
    return _table(head, rows, 3)
