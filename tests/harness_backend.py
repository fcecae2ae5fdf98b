"""A backend that runs the CUDA sources in the harness: the CUDA product path without a GPU."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.codegen.cuda.cholesky import CHOLESKY, MOST_UNKNOWNS
from caspar.codegen.cuda.header import BLOCK_SIZE
from caspar.codegen.cuda.loop.fuse import ONE_BLOCK_LOOP_OPTION
from caspar.codegen.source import KernelSource, Param
from caspar.ir.dtype import DType
from caspar.memory.array import Binding, Late, at_present
from caspar.runtime.backend import (
    COUNT,
    CUDA_TRAITS,
    MOST_STEPS,
    ROW,
    STOP,
    Kernel,
    Launch,
    LaunchSequence,
    Loop,
    PlainDecision,
)
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.cpu.direct import LapackCholesky, QdldlFactorization
from caspar.runtime.cpu.small_matrix import FullFactorization, SmallFactorization
from caspar.runtime.cuda.launch.bound_kernel import BoundKernel
from caspar.runtime.cuda.loop.loops import LoopPlan, plan_loop
from caspar.runtime.factorization import DenseFactorization, SparseFactorization
from caspar.runtime.nvidia.machine_balance import H200_BALANCE
from caspar.runtime.parameters import bound_blocks, entry_addresses, parameter_sources
from tests.harness import CudaModule, compile_cuda, compile_together
from tests.harness.schedule import FORWARD, Schedule

Array = NDArray[Any]


@dataclass(frozen=True)
class HarnessKernel:
    """A compiled kernel."""

    source: KernelSource
    module: CudaModule
    block_size: int


@dataclass(frozen=True)
class HarnessLaunch:
    """A kernel with grid and arguments."""

    kernel: HarnessKernel
    grid: tuple[int, int]
    arguments: tuple[Any, ...]
    check_races: bool
    schedule: Schedule
    bound: tuple[int | Array, ...]

    @property
    def values(self) -> tuple[Any, ...]:
        """None that could be told apart: every call is planned."""
        return ()

    def without(self, arrays: Sequence[Array]) -> "HarnessLaunch":
        """Itself."""
        return self

    def set_address(self, number: int, address: int) -> None:
        """Arrays are passed to the harness as they are."""
        raise NotImplementedError

    def run(self) -> None:
        """Run to the end; the harness finds races and accesses out of bounds."""
        self.kernel.module.launch(
            self.kernel.source.name,
            self.grid,
            self.kernel.block_size,
            self.arguments,
            check_races=self.check_races,
            schedule=self.schedule,
        )


@dataclass(frozen=True)
class HarnessSequence:
    """Launches that run in order."""

    launches: tuple[HarnessLaunch, ...]

    def run(self) -> None:
        """Run once."""
        for launch in self.launches:
            launch.run()

    def run_until(self, flag: Array, max_runs: int) -> None:
        """Run until the flag is set."""
        for _ in range(max_runs):
            if flag[0] != 0.0:
                return
            self.run()


@dataclass(frozen=True)
class HarnessLoop:
    """A loop as one kernel, in a grid of one block: blocks run one after another here."""

    plan: LoopPlan
    scalars: Array
    module: CudaModule
    check_races: bool
    schedule: Schedule
    remarks: tuple[str, ...] = ()

    def run(self, max_runs: int) -> None:
        """Run to the end."""
        source, state = self.plan.source, np.zeros(1, np.int32)
        values = (max_runs, self.scalars, state, *self.plan.values)
        self.module.launch(
            source.name,
            1,
            self.plan.block_size,
            tuple(map(_argument, source.params, values)),
            check_races=self.check_races,
            schedule=self.schedule,
        )


class HarnessPlainSteps:
    """What a graph on the device does."""

    def __init__(
        self,
        decision: PlainDecision,
        step: Sequence[LaunchSequence],
        accept: LaunchSequence,
        scalars: Sequence[Array],
        diagonals: Sequence[Array],
    ) -> None:
        self._module = compile_cuda(decision.text)
        self._step, self._accept = step, accept
        self._numbers, self._rows = np.zeros(decision.num_numbers), np.zeros((MOST_STEPS, ROW))
        memory = scalars[0]
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        memory = memory.view(np.float64)
        places = (entry_addresses(diagonals) - memory.ctypes.data) // 8
        self._arguments: tuple[Any, ...] = (
            *(self._numbers, self._rows, memory, places, np.uint32(len(places))),
            *scalars,
        )

    def bind_again(self, scalars: Sequence[Array], diagonals: Sequence[Array]) -> bool:
        """Launches are not bound again here."""
        raise NotImplementedError

    def __call__(
        self, numbers: Sequence[float], max_steps: int
    ) -> tuple[list[float], list[list[float]]]:
        """Take steps."""
        self._numbers[:] = numbers
        for _ in range(min(max_steps, MOST_STEPS)):
            for part in self._step:
                part.run()
            self._module.launch("decide", 1, BLOCK_SIZE, self._arguments)
            if self._numbers[STOP] != 0.0:
                break
        else:
            self._accept.run()
        return self._numbers.tolist(), self._rows[: int(self._numbers[COUNT])].tolist()


def _argument(param: Param, value: Any) -> Any:
    """A parameter's value as the harness takes it."""
    if not isinstance(value, int):
        return value
    if param.dtype is not None:
        assert value == 0, "the only address that is a number is none"
        return None
    return (np.uint32 if param.is_unsigned else np.int32)(value)


def _own(launches: Sequence[Launch]) -> list[HarnessLaunch]:
    assert all(isinstance(launch, HarnessLaunch) for launch in launches)
    return [launch for launch in launches if isinstance(launch, HarnessLaunch)]


def bound(launch: Launch) -> BoundKernel:
    """What a launch of this backend is made of."""
    assert isinstance(launch, HarnessLaunch)
    kernel = launch.kernel
    return BoundKernel(kernel.source, kernel.block_size, launch.grid[0], launch.bound)


class HarnessBackend(CpuBackend):
    """Runs generated CUDA on the host; all else is as on the processor.

    Args:
        block_size: Of kernels that allow it, instead of the preferred one.
        schedule: In which order blocks and threads take turns.
    """

    name = "cuda"
    traits = CUDA_TRAITS
    clock = "the host's clock"
    tile_size = BLOCK_SIZE
    _roomy_blocks = 1 << 30

    def __init__(self, block_size: int | None = None, schedule: Schedule = FORWARD) -> None:
        self._block_size = block_size
        self._schedule = schedule

    @property
    def device(self) -> str:
        """What it is."""
        return "harness"

    def load(
        self,
        sources: Sequence[KernelSource],
        block_size: int | None = None,
        *,
        is_settled: bool = False,
    ) -> Mapping[str, Kernel]:
        """Compile with the host's compiler."""
        by_size: dict[int, list[str]] = {}
        for source in sources:
            by_size.setdefault(self._size_of(source, block_size), []).append(source.text)
        for size, texts in by_size.items():
            compile_together(texts, defines={"CHOSEN_BLOCK_SIZE": str(size)})
        return {source.name: self._compile(source, block_size) for source in sources}

    def _size_of(self, source: KernelSource, block_size: int | None) -> int:
        """Threads of a block: what is wanted, where the kernel allows it."""
        wanted = self._block_size if block_size is None else block_size
        if wanted is not None and wanted in source.block_sizes:
            return wanted
        return source.block_size

    def _compile(self, source: KernelSource, block_size: int | None) -> HarnessKernel:
        size = self._size_of(source, block_size)
        module = compile_cuda(source.text, defines={"CHOSEN_BLOCK_SIZE": str(size)})
        return HarnessKernel(source, module, size)

    def bind(
        self, kernel: Kernel | Late, bindings: Mapping[str, Binding], count: int | Late
    ) -> Launch:
        """Fix the arguments."""
        kernel = at_present(kernel)
        num_items: int = at_present(count)
        assert isinstance(kernel, HarnessKernel)
        source = kernel.source
        values = [*map(at_present, parameter_sources(source.params, bindings, count))]
        arguments = tuple(map(_argument, source.params, values))
        num_blocks = bound_blocks(source, bindings, count, kernel.block_size)
        # idle threads of the last block repeat the last item; where its own thread updates it in
        # place they read what it writes, and use nothing of it
        addresses = [one.ctypes.data for one in arguments if isinstance(one, np.ndarray)]
        in_place = len(set(addresses)) < len(addresses)
        is_full = num_items % (kernel.block_size * source.items_per_thread) == 0
        return HarnessLaunch(
            kernel,
            (num_blocks, source.num_layers),
            arguments,
            is_full or not in_place,
            self._schedule,
            tuple(values),
        )

    def runner(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """Runs launches in order."""
        return HarnessSequence(tuple(_own(launches))).run

    def repeated_runner(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """The same."""
        return self.runner(launches)

    def sequence(self, launches: Sequence[Launch]) -> LaunchSequence:
        """Put launches in a row."""
        return HarnessSequence(tuple(_own(launches)))

    def dense_factorization(self, size: int, outcome: Array | None = None) -> DenseFactorization:
        """By the kernel that runs on a device where the matrix is small, else by LAPACK."""

        class Cholesky(LapackCholesky):
            def launch(own, rhs: Array, solution: Array) -> Any:  # noqa: N805
                if size > MOST_UNKNOWNS:
                    return None
                kernel = self._compile(CHOLESKY, None)
                values = (own.matrix, rhs, size, solution, own.outcome)
                arguments = tuple(map(_argument, CHOLESKY.params, values))
                return HarnessLaunch(kernel, (1, 1), arguments, True, self._schedule, values)

        return Cholesky(size, outcome)

    def plain_steps(self, *given: Any) -> "HarnessPlainSteps":
        """Take them by the kernel that decides on a device."""
        return HarnessPlainSteps(*given)

    def sparse_factorization(
        self, indptr: Array, indices: Array, size: int, outcome: Array | None = None
    ) -> SparseFactorization:
        """By a library: compiled code of the processor is no launch of this backend."""
        made = super().sparse_factorization(indptr, indices, size, outcome)
        is_compiled = isinstance(made, FullFactorization | SmallFactorization)
        return QdldlFactorization(indptr, indices, size, outcome) if is_compiled else made

    def loop(self, phases: Sequence[Sequence[Launch]], flag: Array, scalars: Array) -> Loop:
        """One kernel, of the text that runs on a device."""
        own = [_own(phase) for phase in phases]
        plan = plan_loop(
            [[bound(launch) for launch in phase] for phase in own],
            flag,
            scalars,
            lambda array: int(array.ctypes.data),
            roomy_blocks=self._roomy_blocks,
        )
        option = ONE_BLOCK_LOOP_OPTION.removeprefix("-D")
        module = compile_cuda(plan.source.text, defines={option: "1"})
        check_races = all(launch.check_races for phase in own for launch in phase)
        return HarnessLoop(plan, scalars, module, check_races, self._schedule)

    @property
    def num_multiprocessors(self) -> int:
        """Few, so that small grids are spread."""
        return 2

    def machine_balance(self, dtype: DType) -> float:
        """Of the device that most figures are from."""
        return H200_BALANCE if dtype is DType.FLOAT32 else 0.5 * H200_BALANCE
