"""Sources to machine code with nvcc, and what is in it.

Instructions are sorted twice. By the control flow (`caspar.runtime.nvidia.sass`): straight-line,
loops, out of line. And by the line of the source that they come from, which nvcc keeps on request
without changing the code: a kernel's *sums* are what adds the items of a block up, everything else
is its *body*: reads, arithmetic, stores.

* Ours: `add_segments`, `block_sum`, and the staging in shared memory before them.
* The reference's: `WriteSum*`, `FlushSum*`, `SumStore` and `SumFlushFinal` of its `memops.cuh`.

Counts are of the straight-line body unless said otherwise.
"""

import hashlib
import re
import subprocess
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

from benchmarks.kernels.source import Side, Source
from caspar.codegen.cuda.header import ONE_BLOCK_OPTION
from caspar.io.replace import write_file
from caspar.runtime.nvidia.sass import Region, SassKernel, parse_sass
from caspar.runtime.nvidia.toolkit import find_nvdisasm

SUMS = re.compile(r"add_segments|block_sum|sum_partials|WriteSum\d|FlushSum\w*|Sum(Store|Flush\w*)")
"""Functions that sum, on both sides."""

STAGING = re.compile(r"\bstage\[|__syncthreads\(\)")
"""Lines of our kernels' bodies that belong to the sums."""


class Flags(Enum):
    """How nvcc is told to treat floating point. Both flush denormal numbers to zero.

    EXACT: what caspar runs: division and square root are rounded as IEEE 754 says.
    FAST: what the reference's build says: those are approximate, and so are sine and cosine.
    """

    EXACT = ("-ftz=true",)
    FAST = ("--use_fast_math",)


@dataclass(frozen=True)
class Resources:
    """What the assembler says of a kernel.

    Attributes:
        registers: 32-bit registers of a thread.
        spill_stores: Bytes of the stores that were added because registers did not suffice.
        spill_loads: The same for loads.
    """

    registers: int
    spill_stores: int
    spill_loads: int


@dataclass(frozen=True)
class Counts:
    """Number of instructions by kind (`caspar.runtime.nvidia.sass.KINDS`), those that occur.

    Attributes:
        body: Of the straight-line body.
        body_elsewhere: Of the body's loops and subroutines, such as the slow paths of division.
        sums: Of the sums, wherever they stand.
    """

    body: dict[str, int]
    body_elsewhere: dict[str, int]
    sums: dict[str, int]


@dataclass(frozen=True)
class MachineCode:
    """A compiled kernel.

    Attributes:
        cubin: The ELF file.
        resources: What the assembler says of it.
    """

    cubin: Path
    resources: Resources


class RefusedError(Exception):
    """The compiler refused a source; the message is its first error."""


@cache
def nvcc_version() -> str:
    """Release and build, `13.0.88` for example."""
    text = subprocess.run(["nvcc", "--version"], check=True, capture_output=True, text=True).stdout
    return str(re.findall(r"V([\d.]+)", text)[0])


def compile_source(source: Source, arch: str, flags: Flags, cache: Path) -> MachineCode:
    """Compile a kernel with the line numbers of its source; some seconds, or none when cached.

    Ours is compiled again where it spills, as caspar does it, for one resident block; what spills
    less is taken.

    Args:
        source: The kernel.
        arch: `sm_90` for example.
        flags: How floating point is treated.
        cache: Folder for what was compiled before. Entries are found by what goes in.

    Raises:
        RefusedError: nvcc refused it.
    """
    code = _compile(source, arch, flags.value, cache)
    if source.side is Side.OURS and code.resources.spill_stores > 0:
        option = ONE_BLOCK_OPTION.replace(",", "\\,")  # nvcc splits arguments at commas
        again = _compile(source, arch, (*flags.value, option), cache)
        return min(code, again, key=lambda one: one.resources.spill_stores)
    return code


def _compile(source: Source, arch: str, options: Sequence[str], cache: Path) -> MachineCode:
    command = ["nvcc", "-O3", "-DNDEBUG", "-std=c++17", *options, f"-arch={arch}"]
    command += ["-lineinfo", "-Xptxas=-v", "-cubin", str(source.path)]
    cubin = cache / f"{_key(source, command)}.cubin"
    log = cubin.with_suffix(".log")
    # a refusal may be mended by another header or compiler
    if not (log.exists() and cubin.exists()):
        cache.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([*command, "-o", str(cubin)], capture_output=True, text=True)
        write_file(log, (done.stdout + done.stderr).encode())
    said = log.read_text(encoding="utf-8")
    if not cubin.exists():
        errors = re.findall(r"error\s*:\s*(.*)", said)
        raise RefusedError(errors[0] if errors else said)
    return MachineCode(cubin, _resources(said))


def _key(source: Source, command: list[str]) -> str:
    """Of the compiler, its options, the kernel and the headers beside it."""
    digest = hashlib.sha256("\n".join([nvcc_version(), *command]).encode())
    for path in [source.path, *sorted(source.path.parent.glob("*.*h"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:40]


def _resources(log: str) -> Resources:
    (registers,) = re.findall(r"Used (\d+) registers", log)
    stores, loads = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)[0]
    return Resources(int(registers), int(stores), int(loads))


def count(source: Source, code: MachineCode) -> Counts:
    """Disassemble and count; the source must still be where it was compiled."""
    command = [str(find_nvdisasm()), "-c", "-gi", str(code.cubin)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (kernel,) = parse_sass(text).values()
    return _counts(kernel, offsets_of_sums(text, source.path.parent))


def _counts(kernel: SassKernel, sums: frozenset[int]) -> Counts:
    counters: list[Counter[str]] = [Counter(), Counter(), Counter()]
    for entry in kernel.instructions:
        if entry.offset in sums:
            counters[2][entry.kind] += 1
        else:
            counters[int(entry.region is not Region.STRAIGHT_LINE)][entry.kind] += 1
    return Counts(*(dict(sorted(counter.items())) for counter in counters))


# -- lines -----------------------------------------------------------------------------------------

_PLACE = re.compile(r'\s*//## File "(?P<file>[^"]+)", line (?P<line>\d+)')
_OFFSET = re.compile(r"\s*/\*(?P<offset>[0-9a-f]{4,})\*/\s")


def offsets_of_sums(text: str, folder: Path) -> frozenset[int]:
    """Offsets of the instructions that come from the sums.

    Args:
        text: What `nvdisasm -gi` prints: a block of lines `//## File ..., line ... inlined at ...`,
            innermost first, stands before the instructions it holds for.
        folder: Only files in it are looked into: what the toolkit's headers do for the sums is
            inlined there.
    """
    found = set()
    in_sums = False
    after_place = False
    for line in text.splitlines():
        place, instruction = _PLACE.match(line), _OFFSET.match(line)
        if place is not None:
            file = Path(place["file"])
            is_sum = file.parent == folder and _is_sum(file, int(place["line"]))
            in_sums = is_sum or (after_place and in_sums)
        elif line.startswith("$"):  # a subroutine of the compiler, which has no lines
            in_sums = False
        elif instruction is not None and in_sums:
            found.add(int(instruction["offset"], 16))
        after_place = place is not None
    return frozenset(found)


def _is_sum(file: Path, line: int) -> bool:
    starts, names, staging = _functions(file)
    place = bisect_right(starts, line) - 1
    return line in staging or (place >= 0 and SUMS.fullmatch(names[place]) is not None)


_FUNCTION = re.compile(
    r"\b(?:__device__|__global__)\b(?:[^;{(]*__launch_bounds__\([^)]*\))?[^;{(]*?\b(\w+)\s*\("
)


@cache
def _functions(file: Path) -> tuple[tuple[int, ...], tuple[str, ...], frozenset[int]]:
    """First line and name of each function, and the lines of kernels that stage for sums."""
    text = file.read_text(encoding="utf-8")
    found = list(_FUNCTION.finditer(text))
    starts = tuple(text.count("\n", 0, match.start()) + 1 for match in found)
    kernel = text.count("\n", 0, text.find("__global__")) + 1
    lines = enumerate(text.splitlines(), 1)
    staging = {number for number, line in lines if number > kernel and STAGING.search(line)}
    return starts, tuple(match.group(1) for match in found), frozenset(staging)
