"""Many kernels as one: a loop of launches that stays on the device until a flag is set.

Input: the sources of kernels, in phases. Output: a source whose kernel runs all of them, again
and again, with a barrier of the whole grid after each phase. All its blocks must be resident at
the same time: a cooperative launch, or a cluster, which has a barrier of its own; a grid of one
block needs no more than barriers of the block.

Each kernel's own text becomes a function (`codegen.cuda.loop.kernel`). Blocks of a phase are dealt
to the blocks of the grid in turn: those of kernels of few items, then those of the kernels of a
phase that stand last. A kernel of one block, which others do not wait for, then has a block that
has less to do else.

Kernels that make scalars of sums are *replicated*: every block runs them, on scalars of its own in
shared memory. All find the same, and none has to wait for another's.

What kernels of few items load of an item's own object may be taken out of them: it is on its way
while others are waited for, what nobody writes meanwhile before the barrier, all else right behind
it. There it comes behind what the next scalars are sums of, and before they are made.

Cost tier: once for each set of launches that is put into a loop.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from caspar.codegen.cuda.header import AWAIT_LAUNCH
from caspar.codegen.cuda.kernel import KERNEL_START, declared_as
from caspar.codegen.cuda.loop.kernel import (
    LOADS,
    LoopKernel,
    Part,
    arguments_of,
    helpers_of,
    part_of,
)
from caspar.codegen.source import COUNT, DATA, KernelSource, Param
from caspar.ir.dtype import DType

ONE_BLOCK_LOOP_OPTION = "-DONE_BLOCK_LOOP"
"""Compiles a loop for a grid of one block: a barrier of the block is one of the grid then."""

CLUSTER_OPTION = "-DCLUSTER={}"
"""Compiles a loop for a grid of so many blocks, which are one cluster: its barrier is the grid's.
From sm_90 on."""

CLUSTER_BLOCKS = 8
"""Blocks that a cluster may have on any device that is not too small for them."""


# H200, microseconds a barrier with 132, 264, 528 and 1056 blocks of 256 threads: 0.92, 1.15, 1.63,
# 3.2. Without the sleep 0.96, 1.19, 1.68, 3.3; with __threadfence() and volatile reads 1.00, 1.31,
# 2.0, 3.9; a counter and another word that the last block sets 1.38, 1.40, 1.52, 1.93; counters in
# two levels 1.9, 1.9, 2.1, 2.2; a word for each block, gathered by the first 1.6, 1.8, 2.4, 3.0.
# Reading the flag behind it takes 0.15 more.
GRID_BARRIER = """\
#ifndef CASPAR_GRID_BARRIER
#define CASPAR_GRID_BARRIER
// Every block waits for all; what any has written before, all see behind it. `state` counts
// arrivals below its highest bit, which the last one flips: nothing has to be reset.
__device__ __forceinline__ void grid_barrier(u32* state) {
#ifdef CLUSTER
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
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
#endif
}
#ifdef CLUSTER
#define IN_A_CLUSTER __cluster_dims__(CLUSTER, 1, 1)
#else
#define IN_A_CLUSTER
#endif
#endif"""


MAX_RUNS = Param(COUNT, "runs")
"""Runs of all phases, at most."""

SCALARS = Param(DATA, "scalars", DType.FLOAT64, written=True)
"""Scalars of which every block has a copy. The loop ends once the flag among them is not zero."""

BARRIER = Param(DATA, "barrier", DType.INT32, written=True)
"""State of the grid's barrier: one number, zero before the first launch. Every launch leaves it
ready for the next."""


MAX_KEPT = 32
"""Loops whose text is kept: writing one takes 4 ms, a third of the setup of a small problem."""


@dataclass(frozen=True)
class LoopScalars:
    """The number of scalars of which every block has a copy, and which one is the flag."""

    number: int
    flag: int


@lru_cache(maxsize=MAX_KEPT)
def fuse(
    name: str,
    phases: tuple[tuple[LoopKernel, ...], ...],
    block_size: int,
    scalars: LoopScalars,
    *,
    between: bool = False,
) -> KernelSource:
    """Write a loop of phases, whose kernels run at the same time in blocks of one size.

    What a kernel writes, no other kernel of its phase may touch; the flag alone may be a guard in a
    phase that sets it, and the phase is then done in full. Replicated kernels write `scalars`.
    `between`: the loop is run once at a time, between other launches, and may begin before the one
    ahead has ended. Parameters: `MAX_RUNS`, `SCALARS`, `BARRIER`; then for each kernel its number
    of blocks (in x) and its own parameters.
    """
    kernels = [kernel for phase in phases for kernel in phase]
    assert all(kernel.replicated for kernel in kernels if kernel.sets_flag)
    params = (MAX_RUNS, SCALARS, BARRIER, *_params_of(kernels))
    parts = {kernel.source.name: part_of(kernel) for kernel in kernels}
    # a kernel with and one without a guard would be two functions of one name
    assert all(parts[kernel.source.name] == part_of(kernel) for kernel in kernels)
    helpers = [unit for kernel in kernels for unit in helpers_of(kernel.source.text)]
    loop = _Loop(phases, parts, f"own[{scalars.flag}]", between=between)
    helpers += [AWAIT_LAUNCH] if between else []
    helpers.append(GRID_BARRIER)
    declared = ",\n    ".join(declared_as(param, restrict=False) for param in params)
    lines = _with_copies(loop.lines(), scalars)
    text = "\n".join(
        (
            *dict.fromkeys(helpers),
            f"#undef BLOCK_SIZE\n#define BLOCK_SIZE {block_size}",
            *(part.function for part in parts.values()),
            f"{KERNEL_START} void __launch_bounds__(BLOCK_SIZE MIN_BLOCKS) IN_A_CLUSTER",
            f"{name}(\n    {declared}) {{",
            *(f"  {line}" for line in (*_shared_memory(parts), *lines)),
            "}\n",
        )
    )
    registers = max((kernel.source.num_registers for kernel in kernels), default=0)
    return KernelSource(
        name,
        text,
        params,
        (block_size,),
        num_registers=registers,
        early=(SCALARS.arg, *loop.early) if between else None,
    )


def _params_of(kernels: Sequence[LoopKernel]) -> Iterator[Param]:
    """The parameters of all kernels, told apart by the kernel's number."""
    for number, kernel in enumerate(kernels):
        yield Param(COUNT, f"k{number}_blocks")
        for param in kernel.source.params:
            yield replace(param, arg=f"k{number}_{param.arg}" if param.arg else f"k{number}")


def _shared_memory(parts: dict[str, Part]) -> list[str]:
    using = [name for name, part in parts.items() if len(part.shared) > 0]
    if len(using) == 0:
        return []
    members = " ".join(f"{name}_shared of_{name};" for name in using)
    return [f"__shared__ union {{ {members} }} shared;"]


# -- the loop -----------------------------------------------------------------------------------

_NumberedPhase = Sequence[tuple[int, LoopKernel]]


class _Loop:
    def __init__(
        self,
        phases: Sequence[Sequence[LoopKernel]],
        parts: dict[str, Part],
        flag: str,
        *,
        between: bool,
    ) -> None:
        self._parts = parts
        self._flag = flag
        self._between = between
        numbers = iter(range(sum(map(len, phases))))
        self._phases = [[(next(numbers), kernel) for kernel in phase] for phase in phases]
        self._sets = [any(kernel.sets_flag for kernel in phase) for phase in phases]
        self._shares = [
            number
            for number, phase in enumerate(phases)
            if not all(one.replicated for one in phase)
        ]

    @property
    def early(self) -> list[str]:
        return [
            f"k{number}_{arg}"
            for phase in self._shares[:1]
            for number, kernel in self._phases[phase]
            for arg in kernel.early or ()
        ]

    def lines(self) -> Iterator[str]:
        yield from self._begin()
        runs = "1u" if self._between else "runs_count"
        yield f"for (u32 run = 0; !done && run < {runs}; ++run) {{"
        begins = True
        for number in range(len(self._phases)):
            if begins:
                yield from _nested(self._loads_behind(number))
            begins = number in self._shares
            yield "  {"
            yield from _nested(_nested(self._phase(number)))
            yield "  }"
            if begins:
                yield from _nested(self._barrier(number))
            if self._sets[number]:
                yield f"  done = {self._flag} != 0.0;"
                yield "  if (done) break;"
        yield "}"

    def _begin(self) -> Iterator[str]:
        """Ahead of the first run: what is declared, loaded and waited for."""
        for phase in self._phases:
            yield from self._declared(phase)
        for first in self._shares[:1]:
            yield from self._loads(first, early=True)
        yield f"bool done = {self._flag} != 0.0;"
        if self._between:
            yield "await_launch();"

    def _barrier(self, number: int) -> Iterator[str]:
        """Behind a phase: what the next one loads before it, and the barrier."""
        place = self._shares.index(number)
        ahead = list(self._loads(self._shares[(place + 1) % len(self._shares)], early=True))
        # Behind the last phase of the last run nobody waits for anybody. But one barrier there
        # must be: the last block stores the scalars that others load at first.
        is_last = number == len(self._phases) - 1
        if is_last and len(self._shares) > 1:
            if not self._between:
                yield "if (run + 1u < runs_count) {"
                yield from _nested([*ahead, _BARRIER])
                yield "}"
        else:
            yield from ahead
            yield _BARRIER

    def _declared(self, phase: _NumberedPhase) -> Iterator[str]:
        """A block's share of few items; where loads are taken out, what they fill and its turn."""
        for number, kernel in phase:
            if kernel.source.few_items:
                count, blocks = f"k{number}_count", f"k{number}_blocks_count"
                yield f"const u32 k{number}_share = ({count} + {blocks} - 1u) / {blocks};"
            if kernel.early is None:
                continue
            if not kernel.replicated:
                in_turn = self._in_turn(phase)
                before = in_turn[: in_turn.index((number, kernel))]
                dealt = "".join(f" - {_num_blocks(*one)}" for one in before)
                yield f"const u32 k{number}_first = blockIdx.x{dealt};"
            yield f"{kernel.source.name}_loaded k{number}_loaded = {{}};"

    def _loads_behind(self, barrier: int) -> Iterator[str]:
        """Behind a barrier: what replicated kernels sum, then what the next shared phase loads."""
        for number, phase in enumerate(self._phases[barrier:], barrier):
            for place, kernel in phase:
                if kernel.replicated and kernel.early is not None:
                    arguments = arguments_of(kernel, place, "0u, 0u", "1u")
                    yield f"{LOADS[False]}_{kernel.source.name}({arguments}, k{place}_loaded);"
            if number in self._shares:
                yield from self._loads(number, early=False)
                return

    def _loads(self, phase: int, *, early: bool) -> Iterator[str]:
        """The block's first turn of each kernel of a phase."""
        for number, kernel in self._phases[phase]:
            if not kernel.replicated and len(kernel.loads(early=early)) > 0:
                yield self._load(kernel, number, f"k{number}_first", early=early)

    def _load(self, kernel: LoopKernel, number: int, block: str, *, early: bool) -> str:
        blocks = f"k{number}_blocks_count"
        arguments = arguments_of(kernel, number, f"{block}, 0u", blocks)
        return f"{LOADS[early]}_{kernel.source.name}({arguments}, k{number}_loaded);"

    def _phase(self, phase: int) -> Iterator[str]:
        numbered = self._phases[phase]
        for number, kernel in numbered:
            if kernel.replicated:
                # other kernels of the phase need nothing of it, and may use the same shared memory
                arguments = arguments_of(kernel, number, "0u, 0u", "1u", self._shared(kernel))
                yield f"run_{kernel.source.name}({arguments}{_loaded(kernel, number)});"
                yield "__syncthreads();"
        if phase in self._shares:
            yield "u32 turn = blockIdx.x;"
        for number, kernel in self._in_turn(numbered):
            name, layers = kernel.source.name, kernel.source.num_layers
            blocks = f"k{number}_blocks_count"
            block = "turn, 0u" if layers == 1 else f"turn % {blocks}, turn / {blocks}"
            arguments = arguments_of(kernel, number, block, blocks, self._shared(kernel))
            yield "#pragma unroll 1"
            yield f"for (; turn < {_num_blocks(number, kernel)}; turn += gridDim.x) {{"
            again = [
                self._load(kernel, number, "turn", early=early)
                for early in LOADS
                if len(kernel.loads(early=early)) > 0
            ]
            if len(again) > 0:
                yield f"  if (turn != k{number}_first) {{ {' '.join(again)} }}"
            yield f"  run_{name}({arguments}{_loaded(kernel, number)});"
            yield "  __syncthreads();"
            yield "}"
            yield f"turn -= {_num_blocks(number, kernel)};"

    def _in_turn(self, phase: _NumberedPhase) -> list[tuple[int, LoopKernel]]:
        """The kernels that share a phase, in the order in which their blocks are dealt.

        Those of few items come first, so that an item has the same block in all phases.
        """
        shared = [one for one in reversed(phase) if not one[1].replicated]
        return sorted(shared, key=lambda one: not one[1].source.few_items)

    def _shared(self, kernel: LoopKernel) -> str | None:
        name = kernel.source.name
        return f"shared.of_{name}" if len(self._parts[name].shared) > 0 else None


_BARRIER = "grid_barrier(reinterpret_cast<u32*>(barrier_data));"


def _nested(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _loaded(kernel: LoopKernel, number: int) -> str:
    return "" if kernel.early is None else f", k{number}_loaded"


def _num_blocks(number: int, kernel: LoopKernel) -> str:
    return f"k{number}_blocks_count * {kernel.source.num_layers}u"


def _with_copies(loop: Iterator[str], scalars: LoopScalars) -> Iterator[str]:
    """A loop between the load of the block's scalars and the store of the last block's.

    That one has the least to do: kernels wait for the loop to end.
    """
    each = f"for (u32 number = threadIdx.x; number < {scalars.number}u; number += BLOCK_SIZE)"
    yield f"__shared__ double own[{scalars.number}];"
    yield f"{each} own[number] = scalars_data[number];"
    yield "__syncthreads();"
    yield from loop
    # All have loaded: the last block has passed a barrier. Or it has set the flag before the first
    # one, and who loads that leaves the loop as all others do.
    yield "__syncthreads();"
    yield "if (blockIdx.x == gridDim.x - 1u) {"
    yield f"  {each} scalars_data[number] = own[number];"
    yield "}"


BEGIN_KERNEL = "begin_runs"
"""Entry point that says how many runs there may be."""

CONDITION_KERNEL = "decide_runs"
"""Entry point that lets more runs begin, or ends the loop."""

# NVRTC takes no header that declares the function, and the driver puts its code in when the machine
# code is loaded: CUDA 12.4 and newer.
CONDITION_SOURCE = """\
typedef unsigned int u32;
typedef unsigned long long u64;

extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(u64 handle, u32 value);

// Both are one thread. left: runs that may still begin.
extern "C" __global__ void begin_runs(u32* left, u32 runs) { left[0] = runs; }

// runs: those that would begin.
extern "C" __global__ void decide_runs(u64 handle, const double* flag, u32* left, u32 runs) {
  const bool begin = flag[0] == 0.0 && runs <= left[0];
  if (begin) left[0] -= runs;
  cudaGraphSetConditional(handle, begin ? 1u : 0u);
}
"""
