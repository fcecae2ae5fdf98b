"""The text of a kernel that solves one problem a warp, in CUDA C.

The 32 lanes of a warp execute the same statements. Arrays are in shared memory: a lane that
changes one without the others meets them before and after.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from caspar.codegen.batch.cuda_text import CudaProblemText
from caspar.codegen.batch.text import PROBLEM
from caspar.codegen.source import WARP, KernelSource, Param
from caspar.ir.dtype import DType
from caspar.memory.accessors.scope import SCALAR_TYPE

BLOCK_SIZES = (128, 64, 32)
"""Threads of a block, if their arrays fit."""

SHARED_BYTES = 48 * 1024
"""Bytes of shared memory of a block in arrays of fixed sizes."""


class CudaTeamText(CudaProblemText):
    """Statements of a warp in CUDA C; a problem takes `shared_bytes` so far."""

    num_lanes = WARP

    def __init__(self) -> None:
        super().__init__()
        self.shared_bytes = 0

    def shared(self, name: str, dtype: DType, size: int) -> None:
        """A declaration for all warps of the block, and where that of this one begins."""
        scalar, every = SCALAR_TYPE[dtype], f"every_{name}"
        self.emit(f"__shared__ {scalar} {every}[BLOCK_SIZE / {WARP}][{size}];")
        self.emit(f"{scalar}* const {name} = {every}[threadIdx.x / {WARP}];")
        self.shared_bytes += size * dtype.itemsize

    def meet(self) -> None:
        """A barrier of the warp."""
        self.emit("__syncwarp();")

    def first_lane(self) -> AbstractContextManager[None]:
        """`if`."""
        return self.when("lane == 0")

    def add_up(self, name: str) -> None:
        """A sum in a fixed order; both of a pair add the same two numbers."""
        self.emit("#pragma unroll")
        self.emit(f"for (int d = {WARP // 2}; d > 0; d /= 2)")
        self.emit(f"  {name} += __shfl_xor_sync(0xffffffffu, {name}, d);")

    @contextmanager
    def shared_loop(self, name: str, first: str, end: str) -> Iterator[None]:
        """Lanes take numbers in turn."""
        loop = f"for (int {name} = (int)({first}) + lane; {name} < {end}; {name} += {WARP}) {{"
        with self._block(["#pragma unroll 1", loop]):
            yield

    @contextmanager
    def sum_loop(self, name: str, first: str, end: str) -> Iterator[None]:
        """`for`, unrolled in part: loads of several turns are on their way together."""
        loop = f"for (int {name} = {first}; {name} < {end}; ++{name}) {{"
        with self._block(["#pragma unroll 4", loop]):
            yield

    @contextmanager
    def triangle(self, row: str, column: str, size: int) -> Iterator[None]:
        """Rows are laid together two by two, the longest and the shortest, to a rectangle."""
        even = size + size % 2
        entry = self.name("entry")
        with self.shared_loop(entry, "0", str(even // 2 * (even + 1))):
            pair, place = self.name("pair"), self.name("place")
            self.emit(f"const int {pair} = {entry} / {even + 1};")
            self.emit(f"const int {place} = {entry} % {even + 1};")
            is_long = f"({place} < {even} - {pair})"
            self.emit(f"const int {row} = {is_long} ? {even - 1} - {pair} : {pair};")
            shorter = f"{place} - ({even} - {pair})"
            self.emit(f"const int {column} = {is_long} ? {place} : {shorter};")
            with self.when(f"{row} < {size}"):
                yield

    @contextmanager
    def rectangle(self, row: str, column: str, rows: int, columns: int) -> Iterator[None]:
        """One number counts both."""
        entry = self.name("entry")
        with self.shared_loop(entry, "0", str(rows * columns)):
            self.emit(f"const int {row} = {entry} / {columns};")
            self.emit(f"const int {column} = {entry} % {columns};")
            yield

    @contextmanager
    def chunks(self, first: str, length: str, count: str, size: int) -> Iterator[None]:
        """`for`."""
        assert size <= WARP
        loop = f"for (int {first} = 0; {first} < {count}; {first} += {size}) {{"
        with self._block(["#pragma unroll 1", loop]):
            self.emit(f"const int {length} = min({size}, (int)({count}) - {first});")
            yield

    def of_chunk(self, lane: str, length: str) -> AbstractContextManager[None]:
        """The first lanes."""
        self.emit(f"const int {lane} = lane;")
        return self.when(f"lane < {length}")

    def source(self, name: str, params: Sequence[Param]) -> KernelSource:
        """The kernel of one warp for each problem."""
        head = [
            f"const int lane = threadIdx.x % {WARP};",
            f"const long long {PROBLEM} = "
            f"((long long)blockIdx.x * BLOCK_SIZE + threadIdx.x) / {WARP};",
        ]
        arrays = [line for line in self.lines if "__shared__" in line]
        rest = [line for line in self.lines if "__shared__" not in line]
        leave = f"if ({PROBLEM} >= count) return;"
        fitting = tuple(
            size for size in BLOCK_SIZES if size // WARP * self.shared_bytes <= SHARED_BYTES
        )
        text = self.kernel_text(name, params, fitting[0], [*head, *arrays, leave, *rest])
        return KernelSource(name, text, tuple(params), fitting, threads_per_item=WARP)
