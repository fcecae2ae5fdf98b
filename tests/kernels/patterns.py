"""Every access pattern with what NumPy makes of it: written down a second time, by brute force.

A `ReadCase` says what is passed for an argument and which rows each item then sees; a `WriteCase`
what is passed for an output and what stands in it afterwards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from caspar.frontend.kernels.trace import KernelFunction
from caspar.kernels.kernel import Kernel
from caspar.memory.access import ReadAccessor, WriteAccessor

Array = NDArray[Any]
Index = NDArray[np.int32]

SPARE = 3
"""Objects of an array beyond those that are needed."""


@dataclass(frozen=True)
class ReadCase:
    """What a read is given, and what the items see.

    Attributes:
        access: The pattern.
        make: From (rng, count, dim, index kind) the operand, and (count, dim) rows, of a pair
            (count, 2 dim).
    """

    access: ReadAccessor
    make: Callable[["Draw"], tuple[Any, Array]]


@dataclass(frozen=True)
class WriteCase:
    """What a write is given, and what it leaves.

    Attributes:
        access: The pattern.
        make: From a draw and the items' values the operand and the array afterwards.
        is_sum: Whether values are added up: the order of rounding is open.
    """

    access: WriteAccessor
    make: Callable[["Draw", Array], tuple[Any, Array]]
    is_sum: bool = False


@dataclass(frozen=True)
class Draw:
    """Random numbers of one case.

    Attributes:
        rng: The generator.
        count: Items.
        dim: Scalars of an object.
        dtype: NumPy name of the floating type.
        indices: Draws (count,) indices below a number of objects.
    """

    rng: np.random.Generator
    count: int
    dim: int
    dtype: str
    indices: Callable[[np.random.Generator, int, int], Index]

    def rows(self, length: int) -> Array:
        """(length, dim) whole numbers, whose sums are exact in either type."""
        return self.rng.integers(-50, 50, (length, self.dim)).astype(self.dtype)

    def index(self, num_objects: int) -> Index:
        """(count,) indices."""
        return self.indices(self.rng, self.count, num_objects)

    @property
    def num_objects(self) -> int:
        """Objects that indices may name."""
        return max(40, self.count)


INDEX_KINDS: dict[str, Callable[[np.random.Generator, int, int], Index]] = {
    "all equal": lambda _, count, size: np.full(count, size - 1, np.int32),
    "sorted": lambda rng, count, size: np.sort(rng.integers(0, size, count)).astype(np.int32),
    "reversed": lambda rng, count, size: np.sort(rng.integers(0, size, count))[::-1].astype(
        np.int32
    ),
    "unique": lambda rng, count, size: rng.permutation(size)[:count].astype(np.int32),
    "heavy-tailed": lambda rng, count, size: np.minimum(rng.zipf(1.3, count) - 1, size - 1).astype(
        np.int32
    ),
}


def _sequential(draw: Draw) -> tuple[Any, Array]:
    rows = draw.rows(draw.count)
    return rows, rows


def _indexed(draw: Draw) -> tuple[Any, Array]:
    rows, index = draw.rows(draw.num_objects), draw.index(draw.num_objects)
    return {"values": rows, "index": index}, rows[index]


def _unique(draw: Draw) -> tuple[Any, Array]:
    rows = draw.rows(1)
    return rows, np.broadcast_to(rows, (draw.count, draw.dim))


def _strided(draw: Draw) -> tuple[Any, Array]:
    rows = draw.rows(2 + 3 * draw.count + SPARE)
    return {"values": rows, "offset": 2, "stride": 3}, rows[2 : 2 + 3 * draw.count : 3]


def _backwards(draw: Draw) -> tuple[Any, Array]:
    rows = draw.rows(max(1, draw.count) + SPARE)
    last = draw.count - 1
    operand = {"values": rows, "offset": max(0, last), "stride": -1}
    return operand, rows[: draw.count][::-1]


def _default(draw: Draw) -> tuple[Any, Array]:
    rows = draw.rows(draw.count // 2 + 1)
    expected = np.empty((draw.count, draw.dim), draw.dtype)
    for item in range(draw.count):
        place = 2 * item - 3
        expected[item] = rows[place] if 0 <= place < len(rows) else _DEFAULTS[: draw.dim]
    return {"values": rows, "offset": -3, "stride": 2}, expected


_DEFAULTS = np.arange(20) - 7.5


def _pair(draw: Draw) -> tuple[Any, Array]:
    rows = draw.rows(draw.count + 1)
    return rows, np.concatenate([rows[:-1], rows[1:]], axis=1)


def _pair_default(draw: Draw) -> tuple[Any, Array]:
    rows = draw.rows(draw.count + 1)
    expected = np.empty((draw.count, 2, draw.dim), draw.dtype)
    for item in range(draw.count):
        for half in (0, 1):
            place = 2 * (item + half) - 1
            inside = 0 <= place < len(rows)
            expected[item, half] = rows[place] if inside else _DEFAULTS[: draw.dim]
    operand = {"values": rows, "offset": -1, "stride": 2}
    return operand, expected.reshape(draw.count, 2 * draw.dim)


def read_cases(dim: int) -> dict[str, ReadCase]:
    """All reads, by argument name."""
    default = tuple(float(number) for number in _DEFAULTS[:dim])
    return {
        "sequential": ReadCase(caspar.ReadSequential(), _sequential),
        "indexed": ReadCase(caspar.ReadIndexed(), _indexed),
        "shared": ReadCase(caspar.ReadShared(), _indexed),
        "unique": ReadCase(caspar.ReadUnique(), _unique),
        "strided": ReadCase(caspar.ReadStrided(), _strided),
        "backwards": ReadCase(caspar.ReadStrided(), _backwards),
        "defaulted": ReadCase(caspar.ReadStridedWithDefault(default), _default),
        "pair": ReadCase(caspar.ReadPair(), _pair),
        "pair_defaulted": ReadCase(caspar.ReadPairStridedWithDefault(default), _pair_default),
    }


def _written(draw: Draw, values: Array) -> tuple[Any, Array]:
    return None, values


def _added(draw: Draw, values: Array) -> tuple[Any, Array]:
    old = draw.rows(draw.count)
    return old.copy(), old + values


def _scattered(draw: Draw, values: Array) -> tuple[Any, Array]:
    old, index = draw.rows(draw.num_objects), draw.rng.permutation(draw.num_objects)[: draw.count]
    after = old.copy()
    after[index] = values
    return {"values": old, "index": index}, after


def _added_indexed(draw: Draw, values: Array) -> tuple[Any, Array]:
    old, index = draw.rows(draw.num_objects), draw.rng.permutation(draw.num_objects)[: draw.count]
    after = old.copy()
    after[index] += values
    return {"values": old, "index": index}, after


def _added_shared(draw: Draw, values: Array) -> tuple[Any, Array]:
    old, index = draw.rows(draw.num_objects), draw.index(draw.num_objects)
    after = old.copy()
    np.add.at(after, index, values)
    return {"values": old, "index": index}, after


def _added_prepared(draw: Draw, values: Array) -> tuple[Any, Array]:
    operand, after = _added_shared(draw, values)
    index = caspar.SharedIndices(operand["index"], draw.num_objects)
    return {"values": operand["values"], "index": index}, after


def _sum(draw: Draw, values: Array) -> tuple[Any, Array]:
    return None, values.sum(axis=0, keepdims=True)


def _added_sum(draw: Draw, values: Array) -> tuple[Any, Array]:
    old = draw.rows(1)
    return old.copy(), old + values.sum(axis=0, keepdims=True)


def _write_strided(draw: Draw, values: Array) -> tuple[Any, Array]:
    old = draw.rows(1 + 2 * draw.count + SPARE)
    after = old.copy()
    after[1 : 1 + 2 * draw.count : 2] = values
    return {"values": old, "offset": 1, "stride": 2}, after


def _add_strided(draw: Draw, values: Array) -> tuple[Any, Array]:
    operand, after = _write_strided(draw, values)
    after[1 : 1 + 2 * draw.count : 2] += operand["values"][1 : 1 + 2 * draw.count : 2]
    return operand, after


def _pair_of(values: Array) -> Array:
    after = np.zeros((len(values) + 1, values.shape[1]), values.dtype)
    after[:-1] += values
    after[1:] += 10 * values
    return after


def _write_pair(draw: Draw, values: Array) -> tuple[Any, Array]:
    return None, _pair_of(values) if draw.count > 0 else values


def _add_pair(draw: Draw, values: Array) -> tuple[Any, Array]:
    old = draw.rows(draw.count + 1)
    return old.copy(), old + _pair_of(values)


def _runs(values: Array, size: int) -> Array:
    return np.array(
        [values[first : first + size].sum(axis=0) for first in range(0, len(values), size)]
    ).reshape(-1, values.shape[1])


def _block_sum(draw: Draw, values: Array) -> tuple[Any, Array]:
    return None, _runs(values, 64)


def _add_block_sum(draw: Draw, values: Array) -> tuple[Any, Array]:
    sums = _runs(values, 256)
    old = draw.rows(len(sums))
    return old.copy(), old + sums


ANY_ORDER = ("shared", "prepared", "prepared_too", "total", "added")
"""Writes of a kernel whose threads may follow the order of an index."""

WRITE_CASES: dict[str, WriteCase] = {
    "written": WriteCase(caspar.WriteSequential(), _written),
    "added": WriteCase(caspar.AddSequential(), _added),
    "scattered": WriteCase(caspar.WriteIndexed(), _scattered),
    "added_indexed": WriteCase(caspar.AddIndexed(), _added_indexed),
    "shared": WriteCase(caspar.AddSharedSum(), _added_shared, is_sum=True),
    "prepared": WriteCase(caspar.AddSharedSum(), _added_prepared, is_sum=True),
    "prepared_too": WriteCase(caspar.AddSharedSum(), _added_prepared, is_sum=True),
    "total": WriteCase(caspar.WriteSum(), _sum, is_sum=True),
    "added_total": WriteCase(caspar.AddSum(), _added_sum, is_sum=True),
    "into_unique": WriteCase(caspar.AddUnique(), _added_sum, is_sum=True),
    "strided": WriteCase(caspar.WriteStrided(), _write_strided),
    "added_strided": WriteCase(caspar.AddStrided(), _add_strided),
    "pair": WriteCase(caspar.WritePair(), _write_pair),
    "added_pair": WriteCase(caspar.AddPair(), _add_pair),
    "block_sum": WriteCase(caspar.WriteBlockSum(64), _block_sum, is_sum=True),
    "added_block_sum": WriteCase(caspar.AddBlockSum(256), _add_block_sum, is_sum=True),
}
"""All writes, by output name."""


def pair_type(element: type) -> Any:
    """Pairs of a type that is made in a loop."""
    return caspar.Pair.__class_getitem__(element)


def tuple_type(elements: Sequence[Any]) -> Any:
    """A tuple of annotations that are made in a loop."""
    return tuple.__class_getitem__(tuple(elements))


def vector_type(dim: int) -> type:
    """A column vector of SymForce."""
    made: type = sf.matrix_type_from_shape((dim, 1))
    return made


def read_kernel(dim: int) -> Kernel:
    """Each read pattern to an output of its own; of pairs both halves."""
    vector, wide = vector_type(dim), vector_type(2 * dim)
    cases = read_cases(dim)

    def function(**arguments: Any) -> tuple[Any, ...]:
        return tuple(
            wide([*value[0], *value[1]]) if isinstance(value, caspar.Pair) else value
            for value in arguments.values()
        )

    annotations: dict[str, Any] = {}
    outputs = []
    for name, case in cases.items():
        declared = pair_type(vector) if case.access.is_pair else vector
        annotations[name] = Annotated[declared, case.access]
        outputs.append(Annotated[wide if case.access.is_pair else vector, caspar.WriteSequential])
    return kernel_of(f"read_{dim}", function, annotations, tuple_type(outputs))


def write_kernel(
    dim: int, names: Sequence[str] = tuple(WRITE_CASES), *, deterministic: bool = False
) -> Kernel:
    """One sequential read to an output of each write pattern; of pairs it and 10 times it."""
    vector = vector_type(dim)
    cases = [WRITE_CASES[name] for name in names]

    def function(x: Any) -> tuple[Any, ...]:
        return tuple(caspar.Pair((x, 10 * x)) if case.access.is_pair else x for case in cases)

    outputs = tuple(
        Annotated[pair_type(vector) if case.access.is_pair else vector, case.access]
        for case in cases
    )
    annotations = {"x": Annotated[vector, caspar.ReadSequential]}
    return kernel_of(
        f"write_{dim}", function, annotations, tuple_type(outputs), deterministic=deterministic
    )


def kernel_of(
    name: str,
    function: Callable[..., Any],
    annotations: Mapping[str, Any],
    result: Any,
    *,
    deterministic: bool = False,
) -> Kernel:
    """A kernel of a function that is made in a loop: its signature is put together as text."""
    names = ", ".join(annotations)
    keywords = ", ".join(f"{one}={one}" for one in annotations)
    scope: dict[str, Any] = {"function": function}
    exec(f"def {name}({names}): return function({keywords})", scope)
    made = scope[name]
    made.__annotations__ = {**annotations, "return": result}
    return Kernel(KernelFunction(made, name, {}), deterministic=deterministic)
