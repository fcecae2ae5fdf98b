"""Item `i` touches object `i` and its successor `i + 1`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import (
    ArgSpec,
    BoundWrite,
    Field,
    Finish,
    Kit,
    Options,
    ReadAccessor,
    WriteAccessor,
)
from caspar.memory.accessors.blocked import (
    ReadObject,
    cpu_index,
    cpu_load_or_default,
    cpu_store,
    cuda_add,
    cuda_address,
    cuda_load_or_default,
    cuda_packed,
    cuda_store,
    cuda_vector,
)
from caspar.memory.accessors.scope import SCALAR_TYPE, CpuScope, CudaScope, converted_all
from caspar.memory.accessors.sequential import ReadSequential
from caspar.memory.accessors.strided import AddStrided, ReadStridedWithDefault, strided_object
from caspar.memory.array import Binding
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.layout import array_scalars


@dataclass(frozen=True)
class ReadPair(ReadObject):
    """Item `i` reads object `i` (the first half) or `i + 1` (its successor).

    Each half is a load of its own: the second finds its line in the first-level cache. (Passing
    the successor from the next thread needs two barriers for each chunk.)
    """

    is_pair: ClassVar[bool] = True
    successor: bool = False

    def half(self, *, successor: bool) -> ReadAccessor:
        """Return how that half is read."""
        return replace(self, successor=successor)

    def num_items(self, length: int | None, options: Options) -> int | None:
        """One for each pair of neighbours."""
        return None if length is None else max(0, length - 1)

    def num_objects(self, count: int, options: Options) -> int:
        """One more than items."""
        return count + 1

    def touched(self, arg: ArgSpec) -> str:
        """The half that it reads."""
        return "(item + 1)" if self.successor else "item"


@dataclass(frozen=True)
class ReadPairStridedWithDefault(ReadStridedWithDefault):
    """Item `i` reads object `offset + stride * i` or its successor `offset + stride * (i + 1)`.

    Attributes:
        default: Scalars of an object, read where there is none.
        successor: Which of the two.
    """

    is_pair: ClassVar[bool] = True
    successor: bool = False

    def half(self, *, successor: bool) -> ReadAccessor:
        """Return how that half is read."""
        return replace(self, successor=successor)

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """One guarded vector load."""
        item = "int(item + 1)" if self.successor else "int(item)"
        return cuda_load_or_default(scope, arg, chunk, strided_object(arg, item), self.default)

    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Guarded scalar loads."""
        item = "(item + 1)" if self.successor else "item"
        return cpu_load_or_default(scope, arg, chunk, strided_object(arg, item), self.default)


@dataclass(frozen=True)
class WritePair(WriteAccessor):
    """Object `i` gets the first half of item `i` plus the second half of item `i - 1`.

    Within a tile the second halves go through shared memory. The last one of each tile but the
    last goes to `carry`, and a second kernel adds it to the first object of the next tile: no
    atomics, no clearing, the same bits in every run.
    """

    is_pair: ClassVar[bool] = True
    writes_all: ClassVar[bool] = True
    cooperates: ClassVar[bool] = True
    needs_item_order: ClassVar[bool] = True

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """The last second half of each tile, as a blocked array."""
        return (Field("carry", arg.dtype, written=True), Field("tiles"))

    def num_items(self, length: int | None, options: Options) -> int | None:
        """One for each pair of neighbours."""
        return None if length is None else max(0, length - 1)

    def num_objects(self, count: int, options: Options) -> int:
        """One more than items."""
        return 0 if count == 0 else count + 1

    def bind(self, arg: ArgSpec, output: Binding, options: Options, kit: Kit) -> BoundWrite:
        """Room for the carries; a kernel that adds them."""
        num_tiles = -(-kit.count // kit.tile_size)
        carry = kit.allocate(array_scalars(arg.dim, arg.dtype, num_tiles), arg.dtype)
        binding = output.with_fields({"carry": carry, "tiles": num_tiles})
        if num_tiles <= 1:
            return BoundWrite(binding)
        target = output.with_fields({"offset": kit.tile_size, "stride": kit.tile_size})
        bindings = {"carry": Binding(carry, num_tiles), "output": target}
        spec = _add_carries(arg.dim, arg.dtype)
        return BoundWrite(binding, (Finish(spec, bindings, num_tiles - 1),))

    def store_width(self, width: int) -> int:
        """Both halves."""
        return 2 * width

    def store_order(self, widths: Sequence[int], values: Sequence[Any]) -> list[Sequence[Any]]:
        """Chunk by chunk: of the first half, then of the second."""
        middle = len(values) // 2
        first = super().store_order(widths, values[:middle])
        second = super().store_order(widths, values[middle:])
        return [[*a, *b] for a, b in zip(first, second, strict=True)]

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Two staging arrays."""
        scope.shared("pair_stage", f"{SCALAR_TYPE[scope.dtype]} pair_stage[2][4][BLOCK_SIZE]")

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Pass the second half to the next thread; add, store."""
        middle = len(values) // 2
        first, second = values[:middle], values[middle:]
        stage, combined = scope.alternate("pair_stage"), scope.temporary()
        scalar = SCALAR_TYPE[scope.dtype]
        staged = [f"{stage}[{row}][threadIdx.x] = {value};" for row, value in enumerate(second)]
        before = [
            f"threadIdx.x > 0 ? {value} + {stage}[{row}][threadIdx.x - 1] : {value}"
            for row, value in enumerate(first)
        ]
        scope.emit(
            *staged,
            "__syncthreads();",
            f"const {scalar} {combined}[{middle}] = {{{', '.join(before)}}};",
        )
        store = cuda_add if self.adds else cuda_store
        store(scope, arg, chunk, "item", [f"{combined}[{row}]" for row in range(middle)])
        self._cuda_last(scope, arg, chunk, second)

    def _cuda_last(self, scope: CudaScope, arg: ArgSpec, chunk: int, second: list[str]) -> None:
        """The second half that the tile's last thread has."""
        vector = cuda_vector(arg, chunk)
        scalars = converted_all(second, scope.dtype, arg.dtype)
        packed = cuda_packed(scope, arg, chunk, scalars)
        carry = cuda_address(arg, chunk, "tile", "carry", "tiles")
        scope.emit("if (own_item + 1 == count) {", "  const bool active = true;")
        store = cuda_add if self.adds else cuda_store
        store(scope, arg, chunk, "(item + 1)", second)
        scope.emit(
            "} else if (active && threadIdx.x == BLOCK_SIZE - 1) {",
            f"  *reinterpret_cast<{vector}*>({carry}) = {packed};",
            "}",
        )

    def cpu_before(self, scope: CpuScope, arg: ArgSpec) -> None:
        """No second half before the first item."""
        zero = scope.number(0.0, scope.dtype)
        scope.before(*(f"{arg.name}_second{column} = {zero}" for column in range(arg.dim)))

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Add what the item before has left; leave the second half for the next."""
        middle = len(values) // 2
        seconds = [f"{arg.name}_second{chunk * arg.chunk_length + k}" for k in range(middle)]
        sums = [f"({a} + {b})" for a, b in zip(values[:middle], seconds, strict=True)]
        cpu_store(scope, arg, chunk, "item", sums, "+=" if self.adds else "=")
        scope.emit(*(f"{a} = {b}" for a, b in zip(seconds, values[middle:], strict=True)))

    def cpu_after(self, scope: CpuScope, arg: ArgSpec) -> None:
        """The last second half: to the last object, or to the next tile."""
        step = "+=" if self.adds else "="
        for column in range(arg.dim):
            chunk, lane = divmod(column, arg.chunk_length)
            value = scope.cast(f"{arg.name}_second{column}", scope.dtype, arg.dtype)
            place = cpu_index(arg, chunk, arg.object("last"))
            carry = cpu_index(arg, chunk, "tile", "tiles")
            scope.after(
                "if last == count:",
                f"    {arg.name}_data[{place} + {lane}] {step} {value}",
                "else:",
                f"    {arg.name}_carry[{carry} + {lane}] = {value}",
            )


@dataclass(frozen=True)
class AddPair(WritePair):
    """Add to object `i` the first half of item `i` and the second half of item `i - 1`."""

    adds: ClassVar[bool] = True


def _add_carries(dim: int, dtype: DType) -> KernelSpec:
    """Adds each carry to the first object of the tile after its own."""
    kernel = KernelBuilder(f"add_carries_{dtype.value}_{dim}", dtype)
    carry = kernel.read("carry", dim, dtype, ReadSequential())
    kernel.write("output", carry, dtype, AddStrided(), windowed=True)
    return kernel.build()
