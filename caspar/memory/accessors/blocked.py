"""Reading and writing chunks of blocked arrays, and of rows: lines that many patterns share.

Item `i` touches row `i` of a C-contiguous (n, dim) array where blocked arrays are converted.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec, Options, ReadAccessor, WriteAccessor
from caspar.memory.accessors.scope import (
    LANES,
    VECTOR_TYPE,
    CpuScope,
    CudaScope,
    converted,
    converted_all,
)
from caspar.memory.layout import padded_width, row_scalars


def cuda_address(
    arg: ArgSpec, chunk: int, number: str, array: str = "data", length: str = "length"
) -> str:
    """Address of a chunk of object `number` in CUDA C."""
    offset = chunk * arg.chunk_length
    if arg.in_rows:
        row = f"{row_scalars(arg.dim, arg.dtype)}ull * {number}"
        return f"{arg.name}_{array} + {row}" + (f" + {offset}" if offset > 0 else "")
    width = padded_width(arg.chunk_widths[chunk])
    start = f"{offset}ull * {arg.name}_{length} + " if offset > 0 else ""
    return f"{arg.name}_{array} + {start}{width}ull * {number}"


def cuda_base(arg: ArgSpec, chunk: int) -> str:
    """Address of a chunk of object 0, in a blocked array."""
    offset = chunk * arg.chunk_length
    return f"{arg.name}_data" + (f" + {offset}ull * {arg.name}_length" if offset > 0 else "")


def cuda_vector(arg: ArgSpec, chunk: int) -> str:
    """C type of a chunk."""
    return VECTOR_TYPE[arg.dtype, padded_width(arg.chunk_widths[chunk])]


def cuda_lanes(arg: ArgSpec, chunk: int, loaded: str) -> list[str]:
    """The scalars of a loaded chunk; of float16 their bits."""
    width = arg.chunk_widths[chunk]
    if arg.dtype is not DType.FLOAT16:
        return _members(loaded, width)
    words = _members(loaded, padded_width(width) // 2)
    halves = [half for word in words for half in (f"u16({word})", f"u16({word} >> 16)")]
    return [loaded] if width == 1 else halves[:width]


def _members(vector: str, width: int) -> list[str]:
    return [vector] if width == 1 else [f"{vector}.{lane}" for lane in LANES[:width]]


def cuda_load(scope: CudaScope, arg: ArgSpec, chunk: int, number: str) -> list[str]:
    """Load a chunk of object `number` of an argument; its scalars."""
    loaded = scope.temporary()
    vector = cuda_vector(arg, chunk)
    address = cuda_address(arg, chunk, arg.object(number))
    load = f"*reinterpret_cast<const {vector}*>({address});"
    if arg.write is None:
        scope.emit(f"const {vector} {loaded} = {load}")
    else:
        # updated in place: an idle thread must not read what the last item's own thread writes
        scope.emit(f"{vector} {loaded} = {{}};", f"if (active) {loaded} = {load}")
    return cuda_lanes(arg, chunk, loaded)


def cuda_stream(scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
    """Load a chunk of the item's own object, past the caches; its scalars."""
    assert arg.write is None, f"{arg.name}: what is written is not read ahead"
    vector = cuda_vector(arg, chunk)

    def load(item: str) -> str:
        address = cuda_address(arg, chunk, arg.object(item))
        return f"load_once(reinterpret_cast<const {vector}*>({address}))"

    loaded = scope.stream(vector, load, packed=arg.dtype is DType.FLOAT16)
    return cuda_lanes(arg, chunk, loaded)


def cuda_load_or_default(
    scope: CudaScope, arg: ArgSpec, chunk: int, number: str, default: Sequence[float]
) -> list[str]:
    """Load as `cuda_load` does, or take a default if `number` is outside 0 .. `<name>_size` - 1."""
    loaded, place = scope.temporary(), scope.temporary()
    vector = cuda_vector(arg, chunk)
    first = chunk * arg.chunk_length
    scalars = default[first : first + arg.chunk_widths[chunk]]
    literals = [scope.literal(scalar, arg.dtype) for scalar in scalars]
    address = cuda_address(arg, chunk, arg.object(f"u32({place})"))
    scope.emit(
        f"const int {place} = {number};",
        f"{vector} {loaded} = {cuda_packed(scope, arg, chunk, literals)};",
        f"if ({place} >= 0 && {place} < {arg.name}_size) {{",
        f"  {loaded} = *reinterpret_cast<const {vector}*>({address});",
        "}",
    )
    return cuda_lanes(arg, chunk, loaded)


def cuda_packed(scope: CudaScope, arg: ArgSpec, chunk: int, scalars: Sequence[str]) -> str:
    """A chunk of scalars of the argument's type, zeros in its pad."""
    width = arg.chunk_widths[chunk]
    if width == 1:
        return scalars[0]
    num_pads = padded_width(width) - width
    if arg.dtype is not DType.FLOAT16:
        members = [*scalars, *([scope.literal(0.0, arg.dtype)] * num_pads)]
        return f"make_{cuda_vector(arg, chunk)}({', '.join(members)})"
    halves = [*scalars, *(["0u"] * num_pads)]
    pairs = zip(halves[::2], halves[1::2], strict=True)
    words = [f"u32({low}) | u32({high}) << 16" for low, high in pairs]
    return words[0] if len(words) == 1 else f"make_uint{len(words)}({', '.join(words)})"


def cuda_store(
    scope: CudaScope, arg: ArgSpec, chunk: int, number: str, values: Sequence[str]
) -> None:
    """Store a chunk of object `number` where the thread is active."""
    vector = cuda_vector(arg, chunk)
    scalars = converted_all(values, scope.dtype, arg.dtype)
    address = cuda_address(arg, chunk, arg.object(number))
    packed = cuda_packed(scope, arg, chunk, scalars)
    scope.emit(f"if (active) *reinterpret_cast<{vector}*>({address}) = {packed};")


def cuda_add(
    scope: CudaScope, arg: ArgSpec, chunk: int, number: str, values: Sequence[str]
) -> None:
    """Add to a chunk of object `number`, which no other thread touches."""
    old = scope.temporary()
    vector = cuda_vector(arg, chunk)
    address = cuda_address(arg, chunk, arg.object(number))
    lanes = cuda_lanes(arg, chunk, old)
    scalars = [
        f"{lane} + {converted(value, scope.dtype, arg.dtype)}"
        for lane, value in zip(lanes, values, strict=True)
    ]
    scope.emit(
        "if (active) {",
        f"  {vector}* const place = reinterpret_cast<{vector}*>({address});",
        f"  const {vector} {old} = *place;",
        f"  *place = {cuda_packed(scope, arg, chunk, scalars)};",
        "}",
    )


def cpu_index(arg: ArgSpec, chunk: int, number: str, length: str = "length") -> str:
    """Index of the first scalar of a chunk of object `number`."""
    if arg.in_rows:
        return f"{row_scalars(arg.dim, arg.dtype)} * {number} + {chunk * arg.chunk_length}"
    width = arg.chunk_widths[chunk]
    padded = width if arg.holds_partials else padded_width(width)
    return f"{chunk * arg.chunk_length} * {arg.name}_{length} + {padded} * {number}"


def cpu_place(scope: CpuScope, arg: ArgSpec, chunk: int, number: str) -> str:
    """Write the index of a chunk of object `number` to a name; return it."""
    place = scope.temporary()
    scope.emit(f"{place} = {cpu_index(arg, chunk, arg.object(number))}")
    return place


def cpu_load(scope: CpuScope, arg: ArgSpec, chunk: int, number: str) -> list[str]:
    """The scalars of a chunk of object `number`."""
    place = cpu_place(scope, arg, chunk, number)
    return [f"{arg.name}_data[{place} + {lane}]" for lane in range(arg.chunk_widths[chunk])]


def cpu_load_or_default(
    scope: CpuScope, arg: ArgSpec, chunk: int, number: str, default: Sequence[float]
) -> list[str]:
    """Load as `cpu_load` does, or take a default if `number` is outside 0 .. `<name>_size` - 1."""
    object_number = scope.temporary()
    scope.emit(f"{object_number} = {number}")
    inside = f"0 <= {object_number} and {object_number} < {arg.name}_size"
    first = chunk * arg.chunk_length
    literals = [
        scope.number(scalar, arg.dtype)
        for scalar in default[first : first + arg.chunk_widths[chunk]]
    ]
    loads = cpu_load(scope, arg, chunk, object_number)
    return [
        f"({load} if {inside} else {literal})"
        for load, literal in zip(loads, literals, strict=True)
    ]


def cpu_store(
    scope: CpuScope, arg: ArgSpec, chunk: int, number: str, values: Sequence[str], step: str = "="
) -> None:
    """Store (`step` "=") a chunk of object `number`, or add to it ("+=")."""
    place = cpu_place(scope, arg, chunk, number)
    for lane, value in enumerate(values):
        scalar = scope.cast(value, scope.dtype, arg.dtype)
        scope.emit(f"{arg.name}_data[{place} + {lane}] {step} {scalar}")


def cuda_keep(scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> int:
    """Put a chunk behind those in `<argument>_kept`, which `scope.noted` names; scalars there now.

    The pad of a last chunk is kept with it.
    """
    chunks, length = scope.noted(arg.name), arg.chunk_length
    padded = [*values, *(["0"] * (length - len(values)))]
    first = length * len(chunks)
    scope.emit(" ".join(f"{arg.name}_kept[{first + n}] = {one};" for n, one in enumerate(padded)))
    chunks.append(chunk)
    return first + length


def cuda_kept(scope: CudaScope, arg: ArgSpec) -> tuple[list[int], list[str]]:
    """The chunks that were kept, and their scalars; none are from now on."""
    noted = scope.noted(arg.name)
    chunks = list(noted)
    noted.clear()
    return chunks, [f"{arg.name}_kept[{n}]" for n in range(arg.chunk_length * len(chunks))]


class ReadObject(ReadAccessor):
    """A pattern by which an item reads one object: a vector load, on the processor scalar loads."""

    @abstractmethod
    def touched(self, arg: ArgSpec) -> str:
        """The item's object, in text for both languages."""

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """One vector load."""
        return cuda_load(scope, arg, chunk, self.touched(arg))

    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Scalar loads."""
        return cpu_load(scope, arg, chunk, self.touched(arg))


class WriteObject(WriteAccessor):
    """A pattern by which an item writes one object, or adds to it, that no other item touches."""

    @abstractmethod
    def touched(self, arg: ArgSpec) -> str:
        """The item's object, in text for both languages."""

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """One vector store, after a vector load if it adds."""
        write = cuda_add if self.adds else cuda_store
        write(scope, arg, chunk, self.touched(arg), values)

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Scalar stores or additions."""
        cpu_store(scope, arg, chunk, self.touched(arg), values, "+=" if self.adds else "=")


class OneForEach:
    """The common part of patterns by which item `i` touches object or row `i`."""

    def num_items(self, length: int | None, options: Options) -> int | None:
        """One for each object."""
        return length

    def num_objects(self, count: int, options: Options) -> int:
        """One for each item."""
        return count


def _columns(arg: ArgSpec, chunk: int) -> range:
    first = chunk * arg.chunk_length
    return range(first, first + arg.chunk_widths[chunk])


@dataclass(frozen=True)
class ReadRows(OneForEach, ReadAccessor):
    """Item `i` reads row `i`."""

    needs_rows: ClassVar[bool] = True

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Scalar loads."""
        return [
            f"{arg.name}_data[{arg.dim}ull * item + {column}u]" for column in _columns(arg, chunk)
        ]

    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Scalar loads."""
        place = scope.temporary()
        columns = _columns(arg, chunk)
        scope.emit(f"{place} = {arg.dim} * item + {columns.start}")
        return [f"{arg.name}_data[{place} + {lane}]" for lane in range(len(columns))]


@dataclass(frozen=True)
class WriteRows(OneForEach, WriteAccessor):
    """Item `i` writes row `i`."""

    needs_rows: ClassVar[bool] = True
    writes_all: ClassVar[bool] = True

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Scalar stores."""
        for column, value in zip(_columns(arg, chunk), values, strict=True):
            scalar = converted(value, scope.dtype, arg.dtype)
            scope.emit(f"if (active) {arg.name}_data[{arg.dim}ull * item + {column}u] = {scalar};")

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Scalar stores."""
        place = scope.temporary()
        scope.emit(f"{place} = {arg.dim} * item + {_columns(arg, chunk).start}")
        for lane, value in enumerate(values):
            scalar = scope.cast(value, scope.dtype, arg.dtype)
            scope.emit(f"{arg.name}_data[{place} + {lane}] = {scalar}")
