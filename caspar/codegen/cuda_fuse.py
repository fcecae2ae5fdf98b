"""Many kernels as one: a loop of launches that stays on the device until a flag is set.

Input: the sources of kernels, in phases. Output: a source whose kernel runs all of them, again
and again, with a barrier of the whole grid after each phase. All its blocks must be resident at
the same time (a cooperative launch); a grid of one block needs no more than barriers of the block.

Each kernel's own text becomes a function; its parameters `blockIdx` and `gridDim` hide CUDA's
variables of these names. Blocks of a phase are dealt to the blocks of the grid in turn. The
kernels of a phase that stand last are dealt first: a kernel of one block, which others do not
wait for, then has a block that has less to do else.

Kernels that make scalars of sums are *replicated*: every block runs them, on scalars of its own in
shared memory. All find the same, and none has to wait for another's.

Cost tier: once for each set of launches that is put into a loop.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from caspar.codegen.cuda import KERNEL_START, declared_as
from caspar.codegen.source import COUNT, DATA, KernelSource, Param
from caspar.ir.dtype import DType

ONE_BLOCK_LOOP_OPTION = "-DONE_BLOCK_LOOP"
"""Compiles a loop for a grid of one block: a barrier of the block is one of the grid then."""

MAX_RUNS = Param(COUNT, "runs")
"""Runs of all phases, at most."""

FLAG = Param(DATA, "flag", DType.FLOAT64)
"""The loop ends where it is not zero."""

SCALARS = Param(DATA, "scalars", DType.FLOAT64, written=True)
"""What every block has a copy of; the flag is among them."""

BARRIER = Param(DATA, "barrier", DType.INT32, written=True)
"""State of the grid's barrier: one number, zero before the first launch. Every launch leaves it
ready for the next."""


MAX_KEPT = 32
"""Loops whose text is kept: writing one takes 4 ms, a third of the setup of a small problem."""


@dataclass(frozen=True)
class LoopKernel:
    """A kernel of a loop.

    Attributes:
        source: The kernel.
        sets_flag: Whether it writes the flag.
        guarded: Whether its guard is the flag. The loop looks at the flag itself, after each phase
            that may set it, so that all threads see the same: the guard is left out.
        replicated: Every block runs it; it writes nothing but scalars.
        scalars: Parameters that point to the loop's scalars, and to which.
    """

    source: KernelSource
    sets_flag: bool = False
    guarded: bool = False
    replicated: bool = False
    scalars: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class LoopScalars:
    """Scalars of which every block has a copy.

    Attributes:
        number: How many.
        flag: Which one is the flag.
    """

    number: int
    flag: int


@lru_cache(maxsize=MAX_KEPT)
def fuse(
    name: str,
    phases: tuple[tuple[LoopKernel, ...], ...],
    block_size: int,
    scalars: LoopScalars | None = None,
) -> KernelSource:
    """Write a loop.

    What a kernel writes, no other kernel of its phase may touch; the flag alone may be a guard in
    a phase that sets it, and the phase is then done in full.

    Args:
        name: Name of the entry point.
        phases: Kernels that run at the same time.
        block_size: Threads of a block, of all kernels.
        scalars: What replicated kernels write; None: no kernel is replicated.

    Returns:
        The source. Parameters: `MAX_RUNS`, `FLAG` or `SCALARS`, `BARRIER`; then for each kernel its
        number of blocks (in x) and its own parameters.
    """
    kernels = [kernel for phase in phases for kernel in phase]
    assert scalars is not None or not any(kernel.replicated for kernel in kernels)
    params = (MAX_RUNS, FLAG if scalars is None else SCALARS, BARRIER, *_params_of(kernels))
    parts = {kernel.source.name: _part(kernel) for kernel in kernels}
    # a kernel with and one without a guard would be two functions of one name
    assert all(parts[kernel.source.name] == _part(kernel) for kernel in kernels)
    helpers = dict.fromkeys(unit for kernel in kernels for unit in _helpers(kernel.source.text))
    declared = ",\n    ".join(declared_as(param, restrict=False) for param in params)
    loop = _loop(phases, parts, "flag_data[0]" if scalars is None else f"own[{scalars.flag}]")
    lines = loop if scalars is None else _with_copies(loop, scalars)
    body = "\n".join(f"  {line}" for line in lines)
    text = "\n".join(
        (
            *helpers,
            _GRID_BARRIER,
            f"#undef BLOCK_SIZE\n#define BLOCK_SIZE {block_size}",
            *(part.function for part in parts.values()),
            f"{KERNEL_START} void __launch_bounds__(BLOCK_SIZE MIN_BLOCKS)",
            f"{name}(\n    {declared}) {{",
            *(f"  {line}" for line in _shared_memory(parts)),
            f"{body}\n}}\n",
        )
    )
    registers = max((kernel.source.num_registers for kernel in kernels), default=0)
    return KernelSource(name, text, params, (block_size,), num_registers=registers)


def _params_of(kernels: Sequence[LoopKernel]) -> Iterator[Param]:
    """The parameters of all kernels, told apart by the kernel's number."""
    for number, kernel in enumerate(kernels):
        yield Param(COUNT, f"k{number}_blocks")
        for param in kernel.source.params:
            yield replace(param, arg=f"k{number}_{param.arg}" if param.arg else f"k{number}")


# -- the parts of a kernel's text ---------------------------------------------------------------

_OWN_TEXT = re.compile(re.escape(KERNEL_START) + r".*?\) \{\n(.*)", re.S)
_GUARD = re.compile(r" *if \((\w+)_data\[0\] != 0\) return;\n")
_SHARED = re.compile(r"^( *)__shared__ (.*?)(\w+)((?:\[[^\]]*\])*);$", re.M)
_BUILT_IN = re.compile(r"\b(?:blockIdx|gridDim)\b")


def _body(source: KernelSource) -> str:
    """The lines of a kernel, with the brace that closes it."""
    found = _OWN_TEXT.search(source.text)
    assert found is not None
    return found.group(1)


def guard_name(source: KernelSource) -> str | None:
    """The argument without which a kernel does nothing while it is not zero; None: it has none."""
    found = _GUARD.match(_body(source))
    return None if found is None else found.group(1)


def _helpers(text: str) -> tuple[str, ...]:
    """What stands before a kernel's own text: each `#if ... #endif` of the outermost level."""
    units: list[str] = []
    unit: list[str] = []
    depth = 0
    before, _, _ = text.partition(KERNEL_START)
    for line in before.partition("#undef BLOCK_SIZE")[0].splitlines():
        depth += line.startswith("#if")
        depth -= line.startswith("#endif")
        unit.append(line)
        if depth == 0:
            whole = "\n".join(unit)
            assert _BUILT_IN.search(whole) is None, f"takes its block from the caller: {whole}"
            if whole.strip() != "":
                units.append(whole)
            unit = []
    assert len(unit) == 0
    return tuple(units)


@dataclass(frozen=True)
class _Part:
    """A kernel as a function.

    Attributes:
        source: The kernel.
        function: Its text.
        shared: Members of its shared memory.
    """

    source: KernelSource
    function: str
    shared: tuple[str, ...]


def _part(kernel: LoopKernel) -> _Part:
    source = kernel.source
    name = source.name
    body = _body(source)
    if kernel.guarded:
        guard = _GUARD.match(body)
        assert guard is not None
        body = body[guard.end() :]
    shared = dict.fromkeys(
        f"{kind}{member}{size};" for _, kind, member, size in _SHARED.findall(body)
    )
    # a reference: kernels that run one after another use the same memory
    body = _SHARED.sub(r"\1auto& \3 = own_shared.\3;", body)
    assert "__shared__" not in body
    declared = ["const uint3 blockIdx", "const uint3 gridDim"]
    struct = ""
    if len(shared) > 0:
        members = "\n".join(f"  {member}" for member in shared)
        struct = f"struct __align__(16) {name}_shared {{\n{members}\n}};\n"
        declared.append(f"{name}_shared& own_shared")
    # not __restrict__: what another block writes must not be read past the coherent caches
    declared += [declared_as(param, restrict=False) for param in source.params]
    params = ",\n    ".join(declared)
    function = f"{struct}__device__ __forceinline__ void run_{name}(\n    {params}) {{\n{body}"
    return _Part(source, function, tuple(shared))


def _shared_memory(parts: dict[str, _Part]) -> list[str]:
    """The shared memory of all kernels in one place."""
    using = [name for name, part in parts.items() if len(part.shared) > 0]
    if len(using) == 0:
        return []
    members = " ".join(f"{name}_shared of_{name};" for name in using)
    return [f"__shared__ union {{ {members} }} shared;"]


# -- the loop -----------------------------------------------------------------------------------

# H200, microseconds a barrier with 132, 264, 528 and 1056 blocks of 256 threads: 0.92, 1.15, 1.63,
# 3.2. Without the sleep 0.96, 1.19, 1.68, 3.3; with __threadfence() and volatile reads 1.00, 1.31,
# 2.0, 3.9; a counter and another word that the last block sets 1.38, 1.40, 1.52, 1.93; counters in
# two levels 1.9, 1.9, 2.1, 2.2; a word for each block, gathered by the first 1.6, 1.8, 2.4, 3.0.
# Reading the flag behind it takes 0.15 more.
_GRID_BARRIER = """\
#ifndef CASPAR_GRID_BARRIER
#define CASPAR_GRID_BARRIER
// Every block waits for all; what any has written before, all see behind it. `state` counts
// arrivals below its highest bit, which the last one flips: nothing has to be reset.
__device__ __forceinline__ void grid_barrier(u32* state) {
  __syncthreads();
#ifndef ONE_BLOCK_LOOP
  if (threadIdx.x == 0u) {
    const u32 arrival = blockIdx.x == 0u ? 0x80000000u - (gridDim.x - 1u) : 1u;
    u32 before, now;
    // release: the barrier above has put the block's writes before it
    asm volatile("atom.add.release.gpu.u32 %0, [%1], %2;"
                 : "=r"(before) : "l"(state), "r"(arrival) : "memory");
    while (true) {
      // acquire: also drops what the multiprocessor's first-level cache holds
      asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(state) : "memory");
      if (((now ^ before) & 0x80000000u) != 0u) break;
      __nanosleep(20);
    }
  }
  __syncthreads();
#endif
}
#endif"""


def _loop(
    phases: Sequence[Sequence[LoopKernel]], parts: dict[str, _Part], flag: str
) -> Iterator[str]:
    """The lines of the entry point."""
    sets = [any(kernel.sets_flag for kernel in phase) for phase in phases]
    shares = [
        number for number, phase in enumerate(phases) if not all(one.replicated for one in phase)
    ]
    is_own = any(kernel.replicated for phase in phases for kernel in phase)
    barrier = "grid_barrier(reinterpret_cast<u32*>(barrier_data));"
    yield f"bool done = {flag} != 0.0;"
    if sets[0] and not is_own:
        # nobody sets the flag before everybody has seen it
        yield barrier
    yield "for (u32 run = 0; !done && run < runs_count; ++run) {"
    first = 0
    for number, phase in enumerate(phases):
        yield "  {"
        yield from (f"    {line}" for line in _phase(phase, first, parts))
        yield "  }"
        if number in shares:
            # Behind the last phase of the last run nobody waits for anybody. But one barrier there
            # must be where scalars have copies: the first block stores what others load at first.
            spared = number == shares[-1] and (not is_own or len(shares) > 1)
            yield f"  {'if (run + 1u < runs_count) ' if spared else ''}{barrier}"
        first += len(phase)
        if sets[number]:
            yield f"  done = {flag} != 0.0;"
            if sets[(number + 1) % len(phases)] and not is_own:
                yield f"  {barrier}"
            yield "  if (done) break;"
    yield "}"


def _with_copies(loop: Iterator[str], scalars: LoopScalars) -> Iterator[str]:
    """A loop between the load of the block's scalars and the store of the first block's."""
    each = f"for (u32 number = threadIdx.x; number < {scalars.number}u; number += BLOCK_SIZE)"
    yield f"__shared__ double own[{scalars.number}];"
    yield f"{each} own[number] = scalars_data[number];"
    yield "__syncthreads();"
    yield from loop
    # All have loaded: the first block has passed a barrier. Or it has set the flag before the first
    # one, and who loads that leaves the loop as all others do.
    yield "__syncthreads();"
    yield "if (blockIdx.x == 0u) {"
    yield f"  {each} scalars_data[number] = own[number];"
    yield "}"


def _phase(phase: Sequence[LoopKernel], first: int, parts: dict[str, _Part]) -> Iterator[str]:
    """All blocks of a phase, dealt in turn; `first` is the number of its first kernel."""
    numbered = list(enumerate(phase, first))
    for number, kernel in numbered:
        if kernel.replicated:
            # other kernels of the phase need nothing of it, and may use the same shared memory
            yield f"run_{kernel.source.name}({_arguments(kernel, number, parts, '0u, 0u', '1u')});"
            yield "__syncthreads();"
    yield "u32 turn = blockIdx.x;"
    for number, kernel in reversed(numbered):
        if kernel.replicated:
            continue
        name, layers = kernel.source.name, kernel.source.num_layers
        blocks = f"k{number}_blocks_count"
        block = "turn, 0u" if layers == 1 else f"turn % {blocks}, turn / {blocks}"
        arguments = _arguments(kernel, number, parts, block, blocks)
        yield "#pragma unroll 1"
        yield f"for (; turn < {blocks} * {layers}u; turn += gridDim.x) {{"
        yield f"  run_{name}({arguments});"
        yield "  __syncthreads();"
        yield "}"
        yield f"turn -= {blocks} * {layers}u;"


def _arguments(
    kernel: LoopKernel, number: int, parts: dict[str, _Part], block: str, blocks: str
) -> str:
    """What a kernel's function is called with; `number` is that of the kernel."""
    source, scalars = kernel.source, dict(kernel.scalars)
    own = [
        f"own + {scalars[param.name]}" if param.name in scalars else f"k{number}_{param.name}"
        for param in source.params
    ]
    shared = [f"shared.of_{source.name}"] if len(parts[source.name].shared) > 0 else []
    grid = f"uint3{{{blocks}, {source.num_layers}u, 1u}}"
    return ", ".join((f"uint3{{{block}, 0u}}", grid, *shared, *own))
