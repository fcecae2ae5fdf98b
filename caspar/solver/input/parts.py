"""Arrays that are given as lists of parts, such as one CuPy array a device.

Parts stand for their concatenation along the first axis. A solver on several devices leaves them
where they are; elsewhere they are put together before anything else looks at them. A factor in
parts is read part by part, as if each were a factor by itself. Cost tier: once for each solve.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from caspar.errors import InputError
from caspar.frontend.factors.terms import term_names
from caspar.frontend.factors.trace import ArgumentKind, NodeType, TracedFactor
from caspar.memory.array import Array
from caspar.options import Precision
from caspar.runtime.arrays import HOST, Location, checked_location, reading, to_numpy
from caspar.runtime.group.member import Member
from caspar.solver.input.array_reader import ArrayReader, is_number
from caspar.solver.input.parted_array import PartedArray
from caspar.solver.input.problem import (
    ConstantArray,
    FactorArrays,
    joined_arrays,
    sources_by_instance,
)

if sys.version_info >= (3, 11):
    from typing import assert_never
else:
    from typing_extensions import assert_never

INDEX = 0
"""Scalars of a row of indices, which are numbers."""

Path = tuple[str, ...]
"""Names by which an array stands in what the user gave for a factor."""

ReadFactor = Callable[[ArrayReader, Mapping[str, Any], str], FactorArrays]
"""Reads a factor, or a part of it, whose name in errors is the last argument."""


class PartReader(ArrayReader):
    """Reads what belongs to one part, where that is, and brings what all parts share there."""

    def __init__(
        self, member: Member, precision: Precision, check_values: bool, place: Location
    ) -> None:
        super().__init__(member, precision, check_values)
        self._member = member
        self._is_on_host = place == HOST

    def array(self, where: str, given: Any) -> tuple[Array, ModuleType]:
        """The array where the part is, and the module that works on it there."""
        array, xp = super().array(where, given)
        if self._is_on_host or not isinstance(array, np.ndarray):
            return array, xp
        return self._member.upload(array), self._member.xp

    def check_place(self, where: str, place: Location) -> None:
        """Do nothing: places of parts are checked before."""

    def on_device(self, given: Any) -> Array:
        """An array of any device of the solver, on this one."""
        return self._member.bring(self._member.upload(given))


@dataclass(frozen=True)
class PartReaders:
    """Reads parts on several devices."""

    members: Sequence[Member]
    precision: Precision
    check_values: bool

    def of(self, where: str, part: Any) -> tuple[Member, ArrayReader]:
        """The device that has a part, or works on it if it is on the host, and its reader."""
        place = checked_location(where, part)
        for member in self.members:
            if place == HOST or member.accepts_device(place.kind, place.number):
                return member, PartReader(member, self.precision, self.check_values, place)
        raise InputError(
            f"{where}: lives on {place}, which is none of the {len(self.members)} devices of this "
            "solver; move the part to one of them, or pass others as devices="
        )

    def node(self, where: str, node: NodeType, parts: Sequence[Any]) -> PartedArray:
        """Values of a node type."""
        read, members = [], []
        for label, part in _labelled(where, parts):
            member, reader = self.of(label, part)
            with member.scope():
                read.append(reader.rows(label, part, node.storage_dim, node.unit_ranges))
                member.synchronize()
            members.append(member)
        return PartedArray(tuple(read), tuple(members))

    def factor(
        self, factor: TracedFactor, given: Mapping[str, Any], read: ReadFactor
    ) -> FactorArrays | None:
        """A factor in parts; None: it is not in parts, or is of pairs, which stand in a chain."""
        where = f"factor {factor.name}"
        if any(one.kind is ArgumentKind.NODE_PAIR for one in factor.arguments):
            return None
        mappings = _aligned(where, factor, given)
        if mappings is None:
            return None
        found, members = [], []
        for number, (part, first) in enumerate(mappings):
            label = f"{where}, {_label(number, len(mappings))}"
            member, reader = self.of(label, first)
            with member.scope():
                found.append(read(reader, part, label))
                member.synchronize()
            members.append(member)
        return _joined_factor(factor, found, tuple(members))


def is_in_parts(given: Any, dim: int, matrix_shape: tuple[int, ...] = ()) -> bool:
    """Return whether an argument is a list of parts, not a list of rows or numbers.

    `dim`: Scalars of a row; `INDEX` for indices. `matrix_shape`: Shape of a row that is a matrix: a
    list of matrices is a list of rows.
    """
    if not isinstance(given, list | tuple) or len(given) == 0:
        return False
    if not all(isinstance(one, np.ndarray) or hasattr(one, "__dlpack__") for one in given):
        return False
    shapes = {tuple(one.shape) for one in given}
    if shapes == {matrix_shape} or (dim == 1 and shapes == {(1,)}):
        # rows, which NumPy puts together
        return False
    return all(len(shape) >= (1 if dim <= 1 else 2) for shape in shapes)


def checked_parts(where: str, given: Sequence[Any]) -> tuple[Any, ...]:
    """Parts that may stand for one array."""
    first = given[0]
    for number, part in enumerate(given):
        if hasattr(part, "to_rows"):
            raise InputError(
                f"{where}: part {number} is a {type(part).__name__}; parts are plain arrays, so "
                "pass its to_rows()"
            )
        if part.dtype != first.dtype:
            raise InputError(
                f"{where}: part {number} has dtype {part.dtype}, part 0 {first.dtype}; all parts "
                "must have one dtype"
            )
        if tuple(part.shape[1:]) != tuple(first.shape[1:]):
            raise InputError(
                f"{where}: part {number} has shape {tuple(part.shape)}, part 0 "
                f"{tuple(first.shape)}; parts follow one another along the first axis, so all "
                "others must be equal"
            )
    return tuple(given)


def joined_parts(where: str, given: Sequence[Any], reader: ArrayReader) -> Array:
    """Parts as one array, where the solver reads it: a copy."""
    found, xp = [], np
    for label, part in _labelled(where, checked_parts(where, given)):
        backend, is_host = reader.backend, checked_location(label, part) == HOST
        if not is_host and hasattr(backend, "bring"):
            # one of several devices reads those of the others, beside arrays of the host
            reader.mix_places()
            with reading(label, part):
                found.append(backend.bring(backend.upload(part)))
            xp = backend.xp
        else:
            array, xp = reader.array(label, part)
            found.append(array)
    rows: Array = xp.concatenate(found)
    return rows


def joined_factor(
    factor: TracedFactor, given: Mapping[str, Any], reader: ArrayReader
) -> dict[str, Any]:
    """Return the arguments of a factor, with arrays in place of lists of parts."""
    made = dict(given)
    if all(type(part) is np.ndarray for part in given.values()):
        return made
    for path, (array, dim, matrix_shape) in _by_instance(factor, given).items():
        if is_in_parts(array, dim, matrix_shape):
            where = f"factor {factor.name}, argument {', '.join(path)}"
            _put(made, path, joined_parts(where, array, reader))
    return made


def _label(number: int, size: int) -> str:
    return f"part {number} of {size}"


def _labelled(where: str, parts: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(f"{where}, {_label(k, len(parts))}", part) for k, part in enumerate(parts)]


def _by_instance(
    factor: TracedFactor, given: Mapping[str, Any]
) -> dict[Path, tuple[Any, int, tuple[int, ...]]]:
    """Arrays with one entry for each instance, with scalars and shape of a row, by their names."""
    found: dict[Path, tuple[Any, int, tuple[int, ...]]] = {}
    for argument in factor.arguments:
        name = argument.source
        array = given.get(name)
        match argument.kind:
            case ArgumentKind.NODE_SHARED:
                found[(name,)] = array, INDEX, ()
            case ArgumentKind.CONST_SEQUENTIAL:
                found[(name,)] = array, argument.storage_dim, argument.matrix_shape
            case ArgumentKind.CONST_INDEXED:
                if isinstance(array, Mapping):
                    found[(name, "index")] = array.get("index"), INDEX, ()
            case ArgumentKind.NODE_UNIQUE | ArgumentKind.NODE_PAIR | ArgumentKind.CONST_UNIQUE:
                pass
            case other:
                assert_never(other)
    for name in term_names(factor):
        if name in given and not is_number(given[name]):
            found[(name,)] = given[name], 1, ()
    return found


def _put(mapping: dict[str, Any], path: Path, array: Any) -> None:
    if len(path) == 1:
        mapping[path[0]] = array
    else:
        mapping[path[0]] = {**mapping[path[0]], path[1]: array}


def _aligned(
    where: str, factor: TracedFactor, given: Mapping[str, Any]
) -> list[tuple[dict[str, Any], Any]] | None:
    """Return what the user gave of each part, and one of its arrays; None: there are no parts.

    Arrays of the host beside parts are cut as these are.
    """
    arrays = _by_instance(factor, given)
    parts = {
        path: checked_parts(f"{where}, argument {', '.join(path)}", array)
        for path, (array, dim, matrix_shape) in arrays.items()
        if is_in_parts(array, dim, matrix_shape)
    }
    if len(parts) == 0:
        return None
    main, first = next(iter(parts.items()))
    sizes = [int(part.shape[0]) for part in first]
    for path, own in parts.items():
        name, lengths = ", ".join(path), [int(part.shape[0]) for part in own]
        if lengths != sizes:
            raise InputError(
                f"{where}: argument {', '.join(main)} is in parts of {sizes} rows, argument {name} "
                f"of {lengths}; pass as many rows of each argument in a part"
            )
        for number, (part, other) in enumerate(zip(own, first, strict=True)):
            place, wanted = checked_location(where, part), checked_location(where, other)
            if place != wanted:
                raise InputError(
                    f"{where}, argument {name}: part {number} lives on {place}, that of argument "
                    f"{', '.join(main)} on {wanted}; put a part's arrays on one device"
                )
    for path, (array, _, _) in arrays.items():
        # what is missing is told where the parts are read
        if path not in parts and array is not None:
            parts[path] = _cut(where, path, array, sizes, ", ".join(main))
    found = []
    for number, one in enumerate(first):
        mapping = dict(given)
        for path, own in parts.items():
            _put(mapping, path, own[number])
        found.append((mapping, one))
    return found


def _cut(where: str, path: Path, array: Any, sizes: Sequence[int], main: str) -> tuple[Any, ...]:
    """A whole array of the host beside parts: views."""
    name = ", ".join(path)
    place = checked_location(where, array)
    if place != HOST:
        raise InputError(
            f"{where}: argument {main} is in {len(sizes)} parts, argument {name} is one array on "
            f"{place}; pass it in parts, each on the device of the others, or on the host"
        )
    rows = to_numpy(array)
    if rows.ndim == 0 or rows.shape[0] != sum(sizes):
        raise InputError(
            f"{where}: argument {main} has {sum(sizes)} rows in all its parts, argument {name} has "
            f"shape {rows.shape}; all arguments must have as many rows"
        )
    return tuple(rows[begin:end] for begin, end in pairwise(np.cumsum([0, *sizes]).tolist()))


def _joined_factor(
    factor: TracedFactor, found: Sequence[FactorArrays], members: tuple[Member, ...]
) -> FactorArrays:
    """One factor whose arrays are in parts; what all instances share is that of the first part."""
    each = sources_by_instance(factor, found[0])

    def join(arrays: Sequence[Array]) -> Array:
        return PartedArray(tuple(arrays), members)

    def constant(source: str, own: Sequence[ConstantArray]) -> ConstantArray:
        first = own[0]
        if first.index is not None:
            return ConstantArray(first.rows, join([one.index for one in own]))
        return ConstantArray(join([one.rows for one in own]), None) if source in each else first

    return joined_arrays(found, join, constant)
