"""Launches that are repeated until the device says that it is enough, as one kernel of them all.

`codegen.cuda.loop.fuse` makes its text, `plan_loop` prepares it.

Cost tier: once for a plan; a run is in the inner loop.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from caspar.codegen.cuda.loop.fuse import LoopScalars, fuse
from caspar.codegen.cuda.loop.kernel import LoopKernel, guard_name
from caspar.codegen.source import DATA, KernelSource
from caspar.memory.array import Array
from caspar.runtime.cuda.launch.bound_kernel import BoundKernel, overlap

LOOP_NAME = "loop"
"""Entry point of fused kernels."""


@dataclass(frozen=True)
class LoopPlan:
    """A loop as one kernel; `is_cluster`: all blocks have to be one cluster.

    `max_blocks` are those of the largest phase; `largest` is the launch with the most blocks,
    counted over all phases. `values` are passed behind the barrier's state; the number of runs and
    the scalars are passed before it.
    """

    source: KernelSource
    block_size: int
    max_blocks: int
    largest: int
    values: tuple[int | Array, ...]
    is_cluster: bool


def plan_loop(
    phases: Sequence[Sequence[BoundKernel]],
    flag: Array,
    scalars: Array,
    address: Callable[[Array], int],
    *,
    ahead: Sequence[BoundKernel] | None = None,
    roomy_blocks: int = 0,
    cluster_blocks: int = 0,
) -> LoopPlan:
    """Make one kernel of phases of bound ones; a phase may be empty.

    `ahead` is launched ahead of the loop each time, which is then run once; None: the loop stands
    alone. Up to `roomy_blocks` blocks of a phase threads may have the registers to load ahead;
    `cluster_blocks` may be a cluster, between launches. Raises a `ValueError` if there is nothing
    to run, the kernels have no block size in common, or one that writes scalars writes something
    else too.
    """
    phases = [phase for phase in phases if len(phase) > 0]
    launches = [launch for phase in phases for launch in phase]
    if len(launches) == 0:
        raise ValueError("a loop needs one launch at least")
    block_size = _common_block_size(launches)
    copies = _Copies(scalars, address, launches)
    max_blocks = max(sum(launch.all_blocks for launch in phase) for phase in phases)
    early = _early(phases, copies.hold, ahead, address) if max_blocks <= roomy_blocks else {}
    place = copies.place(flag)
    assert place is not None
    kernels = tuple(
        tuple(
            replace(_as_kernel(launch, copies, place), early=early.get(launch.source.name))
            for launch in phase
        )
        for phase in phases
    )
    own = LoopScalars(int(scalars.shape[0]), place)
    source = fuse(LOOP_NAME, kernels, block_size, own, between=ahead is not None)
    return LoopPlan(
        source,
        block_size,
        max_blocks,
        max(range(len(launches)), key=lambda number: launches[number].all_blocks),
        tuple(value for launch in launches for value in (launch.num_blocks, *launch.values)),
        ahead is not None and 1 < max_blocks <= cluster_blocks,
    )


def _as_kernel(launch: BoundKernel, copies: "_Copies", flag: int) -> LoopKernel:
    """A kernel of a loop; `flag` is the flag's place among the scalars."""
    bound = list(zip(launch.source.params, launch.values, strict=True))
    guard = guard_name(launch.source)
    places = {param.name: copies.place(value) for param, value in bound}
    flags = [param for param, _ in bound if places[param.name] == flag]
    return LoopKernel(
        launch.source,
        sets_flag=any(param.written for param in flags),
        guarded=any(param.arg == guard and param.field == DATA for param in flags),
        replicated=copies.hold(launch),
        scalars=copies.shared(places),
    )


def _early(
    phases: Sequence[Sequence[BoundKernel]],
    is_replicated: Callable[[BoundKernel], bool],
    ahead: Sequence[BoundKernel] | None,
    address: Callable[[Array], int],
) -> dict[str, tuple[str, ...]]:
    """Return for each kernel the arguments that it may load before the barrier ahead.

    Kernels that run before that barrier do not write them: those of `ahead` before the first phase;
    None: those of the last phase. A replicated kernel has no barrier, and loads what was written
    before the last one.
    """
    own = [launch for phase in phases for launch in phase if is_replicated(launch)]
    found: dict[str, tuple[str, ...]] = {
        launch.source.name: () for launch in own if len(launch.source.loads) > 0
    }
    shared = [[launch for launch in phase if not is_replicated(launch)] for phase in phases]
    shared = [phase for phase in shared if len(phase) > 0]
    for number, phase in enumerate(shared):
        is_first = number == 0 and ahead is not None
        before = (ahead or ()) if is_first else shared[number - 1]
        written = [area for launch in before for area in launch.areas(address, written=True)]
        for launch in phase:
            source = launch.source
            if len(source.loads) == 0:
                continue
            touched = {
                param.arg
                for param, area in zip(source.params, launch.all_areas(address), strict=True)
                if area is not None and overlap([area], written)
            }
            names = dict.fromkeys(load.arg for load in source.loads if load.arg not in touched)
            # a kernel that stands there twice has one text
            usual = found.get(source.name, tuple(names))
            found[source.name] = tuple(name for name in usual if name in names)
    return found


class _Copies:
    """Scalars of which every block has a copy; `ValueError` if a launch writes others, too."""

    def __init__(
        self, scalars: Array, address: Callable[[Array], int], launches: Sequence[BoundKernel]
    ) -> None:
        self._address = address
        self._begin = address(scalars)
        self._end = self._begin + int(scalars.nbytes)
        self._size = int(scalars.nbytes) // int(scalars.shape[0])
        for launch in launches:
            writes = any(self.place(value) is not None for value in self._written(launch))
            if writes and not self.hold(launch):
                name = launch.source.name
                raise ValueError(
                    f"{name}: in a loop, what writes scalars has one block and writes nothing else"
                )

    def place(self, value: int | Array) -> int | None:
        """Return the scalar that an array begins with; None: it is none of them."""
        if isinstance(value, int) or not self._begin <= self._address(value) < self._end:
            return None
        return (self._address(value) - self._begin) // self._size

    def hold(self, launch: BoundKernel) -> bool:
        """Return whether every block runs the kernel on its own copies: it writes scalars only."""
        return launch.all_blocks == 1 and all(
            self.place(value) is not None for value in self._written(launch)
        )

    def shared(self, places: Mapping[str, int | None]) -> tuple[tuple[str, int], ...]:
        """Return parameters that stand for copies, with the scalars that they begin with."""
        return tuple((name, place) for name, place in places.items() if place is not None)

    def _written(self, launch: BoundKernel) -> list[int | Array]:
        bound = zip(launch.source.params, launch.values, strict=True)
        return [value for param, value in bound if param.written]


def _common_block_size(launches: Sequence[BoundKernel]) -> int:
    sizes = sorted({launch.block_size for launch in launches})
    for size in sizes:
        if all(launch.runs_with(size) for launch in launches):
            return size
    bound = ", ".join(
        f"{launch.source.name} {launch.block_size} ({launch.num_blocks} blocks)"
        for launch in launches
    )
    raise ValueError(
        "the kernels of a loop need blocks of one size, and kernels of several blocks keep the "
        f"size they were bound for: {bound}. Load them with one block_size"
    )
