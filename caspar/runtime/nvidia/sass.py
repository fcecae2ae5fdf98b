"""Machine code (SASS) as text and as counts of instructions.

nvdisasm turns a cubin into text; here the text is parsed into instructions, each with the kind it
is counted as and the region it stands in:

* straight-line: run at most once by a thread. Branches are in it on both sides: the stores that
  only active threads make, and the few instructions around the call of a slow path;
* loop: in a cycle of the control flow, such as the sums over a tile's segments, and the slow path
  of sine and cosine for large arguments;
* out of line: subroutines (the slow paths of division, reciprocal and square root: denormal or
  huge operands) and copies of shuffles that run only where a warp has diverged.

The arithmetic of a caspar kernel, which has no loops, is in the straight-line part; loops come
from the sums. Counts are of instructions in the text, not of how often they run.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from caspar.errors import BackendError
from caspar.runtime.nvidia.toolkit import find_nvdisasm

TIME_LIMIT_S = 120.0


class Region(Enum):
    """The region that an instruction stands in, see the module."""

    STRAIGHT_LINE = "straight-line"
    LOOP = "loop"
    OUT_OF_LINE = "out of line"


_NAMES_BY_KIND = {
    "FFMA": "FFMA FFMA2 FFMA32I UFFMA",
    "FMUL": "FMUL FMUL2 FMUL32I UFMUL",
    "FADD": "FADD FADD2 FADD32I UFADD",
    "MUFU": "MUFU",
    "float other": "FSETP FSET FSEL FMNMX FMNMX3 FCHK FSWZADD FCMP RRO UFSETP UFSET UFSEL UFMNMX",
    "DFMA": "DFMA",
    "DMUL": "DMUL",
    "DADD": "DADD",
    "double other": "DSETP DSET DMNMX",
    "convert": "F2F F2I F2IP F2FP I2F I2FP I2I I2IP FRND UF2F UF2I UF2FP UI2F UI2FP UFRND",
    "LDG": "LDG LD",
    "STG": "STG ST",
    "LDS": "LDS LDSM",
    "STS": "STS STSM",
    "LDL": "LDL",
    "STL": "STL",
    "LDC": "LDC ULDC LDCU",
    "atomic": "ATOM ATOMG ATOMS RED REDG REDUX CREDUX",
    "BAR": "BAR B2R ACQBULK PREEXIT",
    "SHFL": "SHFL",
    "vote": "VOTE VOTEU MATCH",
    "branch": "BRA BRX BRXU JMP JMX JMXU CALL RET EXIT KILL NANOSLEEP BREAK BMOV BPT BSSY BSYNC "
    "SSY SYNC PBK BRK WARPSYNC ENDCOLLECTIVE YIELD",
    "integer": "IADD IADD3 IADD32I IADDX VIADD VIADDMNMX VIMNMX VIMNMX3 IMAD IMUL IMNMX IABS ISETP "
    "ISET ISCADD ISCADD32I IDP LEA LOP LOP3 LOP32I PLOP3 PSETP PSET SHF SHL SHR SGXT BMSK BREV "
    "FLO POPC XMAD BFE BFI SEL ICMP CSET CSETP UIADD3 UVIADD UIMAD UIMNMX UVIMNMX UISETP ULEA "
    "ULOP ULOP3 UPLOP3 UPSETP USHF USHL USHR USGXT UBMSK UBREV UFLO UPOPC USEL UIABS",
    "move": "MOV MOV32I UMOV MOVM PRMT UPRMT P2R R2P UP2UR UR2UP S2R S2UR CS2R CS2UR R2UR HFMA2",
    "NOP": "NOP",
}
"""Names of instructions, without modifiers, by the kind they are counted as. HFMA2 is a move: no
kernel computes in half precision, but the compiler loads literals with it."""

OTHER = "other"
_KIND_BY_NAME = {name: kind for kind, names in _NAMES_BY_KIND.items() for name in names.split()}

KINDS = (*_NAMES_BY_KIND, OTHER)
"""Every kind, in the order of reports. Memory accesses are also counted by width: LDG.128."""

DOUBLE_KINDS = ("DFMA", "DMUL", "DADD", "double other")

_WIDE_KINDS = ("LDG", "STG", "LDS", "STS", "LDL", "STL")
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
_ENDS = ("EXIT", "RET", "KILL", "BRX", "BRXU", "JMX", "JMXU")
_JUMPS = ("BRA", "JMP")


@dataclass(frozen=True)
class SassInstruction:
    """One instruction; its name has modifiers, `LDG.E.128` for example.

    The offset is in bytes from the start of the kernel; the predicate is `@P0`, `@!UP1`, or ""
    where it always runs.
    """

    offset: int
    predicate: str
    opcode: str
    operands: str
    region: Region = Region.STRAIGHT_LINE

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        return _KIND_BY_NAME.get(self.name, OTHER)

    @property
    def detail(self) -> str:
        """The kind with the width of a memory access in bits or MUFU's function."""
        kind, modifiers = self.kind, self.opcode.split(".")[1:]
        if kind in _WIDE_KINDS:
            width = next((_WIDTHS[word] for word in modifiers if word in _WIDTHS), 32)
            return f"{kind}.{width}"
        if kind == "MUFU" and modifiers:
            return f"{kind}.{modifiers[0]}"
        return kind


@dataclass(frozen=True)
class SassKernel:
    """The machine code of one kernel: as nvdisasm prints it, and without padding at its end."""

    name: str
    text: str
    instructions: tuple[SassInstruction, ...]

    def counts(self, regions: Iterable[Region] = tuple(Region)) -> dict[str, int]:
        """Number of instructions of each kind in some regions, every kind of `KINDS` in order."""
        wanted = tuple(regions)
        found = Counter(entry.kind for entry in self.instructions if entry.region in wanted)
        return {kind: found[kind] for kind in KINDS}

    def details(self, regions: Iterable[Region] = tuple(Region)) -> dict[str, int]:
        """Number of instructions by `SassInstruction.detail`, sorted; only those that occur."""
        wanted = tuple(regions)
        found = Counter(entry.detail for entry in self.instructions if entry.region in wanted)
        return dict(sorted(found.items()))

    @property
    def straight_line(self) -> dict[str, int]:
        """Number of instructions of each kind that a thread runs at most once."""
        return self.counts([Region.STRAIGHT_LINE])


def disassemble(cubin: bytes) -> dict[str, SassKernel]:
    """Disassemble an ELF file, as `nvrtc.compile_text` gives it: kernels by name, sorted by it.

    Raises a `BackendError` if nvdisasm is missing or does not know the architecture.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.cubin"
        path.write_bytes(cubin)
        done = subprocess.run(
            [find_nvdisasm(), "-c", "-ndf", path.name],  # code only, without dataflow analysis
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
        )
    if done.returncode != 0:
        raise BackendError(f"nvdisasm ({find_nvdisasm()}) failed: {done.stderr.strip()}")
    kernels = parse_sass(done.stdout)
    if len(kernels) == 0:
        raise BackendError(f"nvdisasm ({find_nvdisasm()}) printed no kernel: {done.stdout[:200]!r}")
    return kernels


# -- text ------------------------------------------------------------------------------------------

_SECTION = re.compile(r"^\s*\.section\s+\.text\.(?P<name>[^,\s]+),.*$", re.M)
_LABEL = re.compile(r"^(?P<name>[.$\w]+):$")
_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<offset>[0-9a-f]+)\*/\s+(?:\{\s*)?(?P<predicate>@!?U?P[0-9T]+\s+)?"
    r"(?P<opcode>[A-Z][\w.]*)\s*(?P<operands>.*?)\s*;"
)
_TARGET = re.compile(r"`\((?P<label>[^)]+)\)")


def parse_sass(text: str) -> dict[str, SassKernel]:
    """Parse what `nvdisasm -c` prints: kernels by name, sorted by it."""
    starts = list(_SECTION.finditer(text))
    ends = [match.start() for match in starts[1:]] + [len(text)]
    sections = {
        match["name"]: text[match.end() : end] for match, end in zip(starts, ends, strict=False)
    }
    return {name: _parse_kernel(name, sections[name]) for name in sorted(sections)}


def _parse_kernel(name: str, section: str) -> SassKernel:
    lines: list[str] = []
    instructions: list[SassInstruction] = []
    labels: dict[str, int] = {}
    for line in section.splitlines():
        label, found = _LABEL.match(line.strip()), _INSTRUCTION.match(line)
        if label is not None:
            labels[label["name"]] = len(instructions)
        elif found is not None:
            predicate = (found["predicate"] or "").strip()
            instructions.append(
                SassInstruction(
                    int(found["offset"], 16), predicate, found["opcode"], found["operands"]
                )
            )
        if label is not None or found is not None:
            lines.append(line.rstrip())
    regions = _regions(instructions, labels)
    placed = tuple(
        replace(entry, region=region)
        for entry, region in zip(instructions, regions, strict=True)
        if region is not None
    )
    return SassKernel(name, "\n".join(lines) + "\n", placed)


# -- regions ---------------------------------------------------------------------------------------


def _regions(
    instructions: Sequence[SassInstruction], labels: dict[str, int]
) -> list[Region | None]:
    """The region of each instruction; None for padding, which nothing reaches.

    The control flow is that of single instructions: kernels have some thousands, and blocks
    would only be a detour.
    """
    if len(instructions) == 0:
        return []
    edges: list[tuple[int, int]] = []
    entries: list[int] = []
    for number, entry in enumerate(instructions):
        target = _target(entry, labels)
        if target is not None and _leads_out_of_line(entry):
            entries.append(target)
        elif target is not None and entry.name in _JUMPS:
            edges.append((number, target))
        if _falls_through(entry) and number + 1 < len(instructions):
            edges.append((number, number + 1))
    count = len(instructions)
    rows, columns = np.array(edges, np.int64).reshape(-1, 2).T
    flow = csr_array((np.ones(len(edges), np.int8), (rows, columns)), (count, count))
    _, component = connected_components(flow, connection="strong")
    in_loop = np.bincount(component)[component] > 1
    in_loop[rows[rows == columns]] = True
    regions: list[Region | None] = [None] * count
    for start in entries:
        for number in breadth_first_order(flow, start, return_predecessors=False):
            regions[number] = Region.OUT_OF_LINE
    for number in breadth_first_order(flow, 0, return_predecessors=False):
        regions[number] = Region.LOOP if in_loop[number] else Region.STRAIGHT_LINE
    return regions


def _target(entry: SassInstruction, labels: dict[str, int]) -> int | None:
    match = _TARGET.search(entry.operands)
    return None if match is None else labels.get(match["label"])


def _leads_out_of_line(entry: SassInstruction) -> bool:
    """Calls, and branches that are taken only where the threads of a warp have diverged."""
    return entry.name == "CALL" or entry.opcode.startswith("BRA.DIV")


def _falls_through(entry: SassInstruction) -> bool:
    """Return whether the next instruction may follow; after a barrier it does."""
    if entry.predicate or entry.name == "CALL":
        return True
    if entry.name in _JUMPS:  # conditional where a predicate or register stands before the target
        return not entry.operands.startswith("`")
    return entry.name not in _ENDS
