"""Read the user's restrictions on values: held components and bounds.

Input: `fixed`, `bounds` and start values. Output: masks and limits over the tangents of node types,
and start values within these. Once for each solve, on the host.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.errors import InputError, meant
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.symbolic.field_types import tangent_pieces
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.runtime.arrays import to_numpy
from caspar.solver.input.array_reader import ArrayReader

_ALLOWED = (
    "allowed are indices of nodes such as [0, 7], (n,) booleans for whole nodes, (n, {dim}) "
    "booleans for components of their tangents, or True for all of it"
)


def read_fixed(
    fixed: Mapping[str, Any] | None,
    nodes: Sequence[NodeType],
    counts: Mapping[str, int],
    storage: DType,
) -> dict[str, Array]:
    """Masks of the types that are named, (n, tangent_dim) on the host: 1 for what moves, else 0."""
    masks = {}
    for node, given in _by_type("fixed", fixed, nodes, "what is held"):
        held = np.zeros((counts[node.name], node.tangent_dim), dtype=np.bool_)
        where, everything = f"fixed, node type {node.name}", range(node.tangent_dim)
        for label, _, own, place in _by_field(where, node.python_type, given, everything, _ALLOWED):
            _hold(label, own, held[:, place.start : place.stop])
        masks[node.name] = np.where(held, 0.0, 1.0).astype(storage.value)
    return masks


def _by_type(
    what: str, given: Any, nodes: Sequence[NodeType], expected: str
) -> Iterator[tuple[NodeType, Any]]:
    """Return what the user gave for each node type."""
    if given is not None and not isinstance(given, Mapping):
        got = type(given).__name__
        raise InputError(f"{what}: expected a mapping from node types to {expected}, got {got}")
    by_name = {node.name: node for node in nodes}
    for name, own in ({} if given is None else given).items():
        if name not in by_name:
            raise InputError(f"{what}: {unknown_name('node type', name, list(by_name))}")
        yield by_name[name], own


def _by_field(
    where: str, declared: Any, given: Any, place: range, allowed: str
) -> Iterator[tuple[str, Any, Any, range]]:
    """Return what the user gave for each part of a tangent, with its label, type and place."""
    if not isinstance(given, Mapping):
        yield where, declared, given, place
        return
    fields = tangent_pieces(declared)
    if len(fields) == 0:
        raise InputError(f"{where}: has no fields; {allowed.format(dim=len(place))}")
    for name, inner in given.items():
        if name not in fields:
            outer = [one for one, (kind, _) in fields.items() if name in tangent_pieces(kind)]
            hint = f"; write {{{outer[0]!r}: {{{name!r}: ...}}}}" if outer else ""
            raise InputError(f"{where}: {unknown_name('field', name, list(fields))}{hint}")
        kind, own = fields[name]
        within = range(place.start + own.start, place.start + own.stop)
        yield from _by_field(f"{where}, field {name}", kind, inner, within, allowed)


def num_held(free: Array) -> int:
    """Components that a mask holds."""
    return int(free.size - np.count_nonzero(free))


def _hold(where: str, given: Any, held: Array) -> None:
    """Set `held`, (n, dimension of a part of the tangent), by what the user gave for it."""
    if isinstance(given, bool | np.bool_):
        held[...] |= bool(given)
        return
    rows = _array(where, given, held)
    if rows.dtype.kind == "b":
        held[...] |= rows if rows.ndim == 2 else rows[:, None]
    else:
        held[rows] = True


def _array(where: str, given: Any, held: Array) -> Array:
    """Booleans of one or two axes that fit, or indices in range."""
    count, dim = held.shape
    allowed = _ALLOWED.format(dim=dim)
    if isinstance(given, np.ma.MaskedArray):
        raise InputError(f"{where}: a masked array; {allowed}")
    try:
        array = to_numpy(given) if hasattr(given, "shape") else np.asarray(given)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: got {type(given).__name__}; {allowed}") from error
    if array.ndim == 0:
        raise InputError(f"{where}: got {given!r}; {allowed}")
    if array.size == 0 and array.ndim == 1 and array.dtype.kind == "f":
        # NumPy has no integers for an empty list
        array = array.astype(np.int64)
    if array.dtype.kind == "b":
        if array.shape not in ((count,), (count, dim)):
            raise InputError(
                f"{where}: booleans of shape {array.shape} for {count} nodes; {allowed}"
            )
        return array
    if array.dtype.kind not in "iu" or array.ndim != 1:
        names = "; fields are named by a mapping: {name: True}" if array.dtype.kind == "U" else ""
        raise InputError(f"{where}: {array.dtype} of shape {array.shape}; {allowed}{names}")
    outside = (array < 0) | (array >= count)
    if outside.any():
        first = int(array[outside][0])
        raise InputError(
            f"{where}: index {first} is out of range; there are {count} nodes. Indices are those "
            f"of nodes; components are held by (n, {dim}) booleans"
        )
    return array


def unknown_name(what: str, name: object, known: list[str]) -> str:
    """A sentence on a name that does not exist, and what may have been meant."""
    return f"unknown {what} {str(name)!r}{meant(name, known)}; there are {', '.join(known)}"


Floats = NDArray[np.float64]

_PAIR = "expected a pair (lower, upper)"
_HAVE = "scalars, vectors such as sf.V3, and the translation of a pose can have bounds"


@dataclass(frozen=True)
class NodeBounds:
    """The bounds of a node type.

    Attributes:
        lower: (n, tangent_dim) on the host, of the storage type, rounded up; infinite if open, and
            above `upper` where the component is held.
        places: By each component that can have bounds the place of its number in the storage.
        lower_given: (n, tangent_dim) in float64, as the user gave them.
    """

    lower: Array
    upper: Array
    places: Mapping[int, int]
    lower_given: Floats
    upper_given: Floats

    @property
    def limits(self) -> tuple[Array, Array]:
        """Both."""
        return self.lower, self.upper

    @property
    def num_bounded(self) -> int:
        """Numbers that have a bound and are not held."""
        has_one = np.isfinite(self.lower) | np.isfinite(self.upper)
        return int(np.count_nonzero(has_one & (self.lower <= self.upper)))

    def within(self, rows: Array) -> Array:
        """Values whose numbers rounding has moved beyond a bound, put back; a copy if need be."""
        components, places = list(self.places), list(self.places.values())
        lower, upper = self.lower[:, components], self.upper[:, components]
        numbers = rows[:, places]
        has_limits = lower <= upper
        moved = np.where(has_limits, np.clip(numbers, lower, upper), numbers)
        if np.array_equal(moved, numbers):
            return rows
        clipped = rows.copy()
        clipped[:, places] = moved
        return clipped

    def active(self, rows: Array) -> NDArray[np.int8]:
        """(n, storage_dim): -1 for a number at its lower bound, 1 at its upper one, else 0."""
        found = np.zeros(rows.shape, np.int8)
        for component, place in self.places.items():
            lower, upper = self.lower[:, component], self.upper[:, component]
            has_limits = lower <= upper
            found[has_limits & (rows[:, place] <= lower), place] = -1
            found[has_limits & (upper <= rows[:, place]), place] = 1
        return found

    def at_given(self, rows: Array) -> NDArray[np.bool_]:
        """(n, tangent_dim) booleans: numbers at a bound, but for what float32 rounds."""
        found = np.zeros(self.lower.shape, np.bool_)
        for component, place in self.places.items():
            for bound in (self.lower_given[:, component], self.upper_given[:, component]):
                rounding = np.finfo(np.float32).eps * np.abs(bound)
                is_near = np.abs(rows[:, place] - bound) <= rounding
                found[:, component] |= np.isfinite(bound) & is_near
        return found


def read_bounds(
    bounds: Mapping[str, Any] | None,
    nodes: Sequence[NodeType],
    values: Mapping[str, Array],
    free: Mapping[str, Array],
    rounding: Mapping[str, float],
) -> dict[str, NodeBounds]:
    """The bounds of the node types that are named.

    `values`: Start values on the host, of the storage type. `free`: See `Problem.free`. `rounding`:
    By name how far, relatively, rounding may have moved a start value.
    """
    read = {}
    for node, given in _by_type("bounds", bounds, nodes, "bounds of their fields"):
        rows, where = values[node.name], f"bounds, node type {node.name}"
        limits, everything = _Limits(node, len(rows)), range(node.tangent_dim)
        for part in _by_field(where, node.python_type, given, everything, _PAIR):
            limits.read(*part)
        limits.check_start(where, rows, rounding[node.name])
        read[node.name] = limits.rounded(rows.dtype, free.get(node.name))
    return read


class _Limits:
    """The limits of a node type while they are read. `lower, upper`: (n, tangent_dim) float64."""

    def __init__(self, node: NodeType, count: int) -> None:
        self._places = node.shifted_places
        self._fields: dict[int, tuple[str, int]] = {}
        shape = (count, node.tangent_dim)
        self.lower, self.upper = np.full(shape, -np.inf), np.full(shape, np.inf)

    def read(self, where: str, declared: Any, given: Any, place: range) -> None:
        """Set the limits of a part of the tangent by what the user gave for it."""
        if not all(component in self._places for component in place):
            fields = tangent_pieces(declared)
            advice = f"; name its fields, such as {{{next(iter(fields))!r}: ...}}" if fields else ""
            kind = getattr(declared, "__name__", "value of this type")
            raise InputError(f"{where}: a {kind} has no bounds; {_HAVE}{advice}")
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise InputError(
                f"{where}: expected a pair (lower, upper), in which None is open, got "
                f"{type(given).__name__}"
            )
        columns = slice(place.start, place.stop)
        shape = self.lower[:, columns].shape
        lower = _limit(f"{where}, lower bound", given[0], shape, -np.inf)
        upper = _limit(f"{where}, upper bound", given[1], shape, np.inf)
        crossing = np.argwhere(lower > upper)
        if len(crossing) > 0:
            node, component = (int(number) for number in crossing[0])
            raise InputError(
                f"{where}: the lower bound {lower[node, component]:g} is above the upper bound "
                f"{upper[node, component]:g} at node {node}{_component(component, shape[1])}"
            )
        self.lower[:, columns], self.upper[:, columns] = lower, upper
        self._fields |= {one: (where, number) for number, one in enumerate(place)}

    def check_start(self, where: str, rows: Array, rounding: float) -> None:
        """Refuse values that start outside."""
        for component, place in self._places.items():
            numbers = rows[:, place].astype(np.float64)
            lower, upper = self.lower[:, component], self.upper[:, component]
            slack = rounding * np.abs(numbers)
            outside = np.flatnonzero((numbers < lower - slack) | (upper + slack < numbers))
            if len(outside) == 0:
                continue
            node = int(outside[0])
            field, number = self._fields.get(component, (where, component))
            dim = sum(one == field for one, _ in self._fields.values())
            raise InputError(
                f"{field}: node {node} starts at {numbers[node]:g}{_component(number, dim)}, "
                f"outside its bounds {lower[node]:g} and {upper[node]:g}; {len(outside)} of "
                f"{len(rows)} nodes do. Start within them, for example by numpy.clip"
            )

    def rounded(self, storage: Any, free: Array | None) -> NodeBounds:
        """Return the bounds in the storage type; held components get an empty interval."""
        lower, upper = _inward(self.lower, storage, np.inf), _inward(self.upper, storage, -np.inf)
        held = lower >= upper
        if free is not None:
            held |= free == 0.0
        lower[held], upper[held] = np.inf, -np.inf
        return NodeBounds(lower, upper, self._places, self.lower, self.upper)


def held_by_bounds(bounds: NodeBounds) -> Array:
    """(n, tangent_dim) booleans: what has no room."""
    return bounds.lower > bounds.upper


def _limit(where: str, given: Any, shape: tuple[int, int], open_end: float) -> Floats:
    """(n, dim) numbers of a bound."""
    count, dim = shape
    if given is None:
        return np.full(shape, open_end)
    each = f"({count},) for its nodes" if dim == 1 else f"({dim},) for its components"
    allowed = f"allowed are a number, {each}, ({count}, {dim}), or None if it is open"
    try:
        array = np.asarray(to_numpy(given) if hasattr(given, "shape") else given)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: got {type(given).__name__}; {allowed}") from error
    if array.dtype.kind not in "fiu":
        raise InputError(f"{where}: dtype {array.dtype}; {allowed}")
    array = array.astype(np.float64)
    if dim == 1 and array.shape == (count,):
        array = array[:, None]
    if array.shape not in ((), (dim,), (count, 1), (count, dim)):
        raise InputError(f"{where}: shape {array.shape}; {allowed}")
    limit = np.array(np.broadcast_to(array, shape))
    if np.isnan(limit).any():
        node = int(np.argwhere(np.isnan(limit))[0][0])
        raise InputError(f"{where}: NaN at node {node}; {allowed}")
    return limit


def _component(number: int, dim: int) -> str:
    return f", component {number}" if dim > 1 else ""


def _inward(limit: Floats, storage: Any, inward: float) -> Array:
    """Convert limits to the storage type, rounding into the interval."""
    with np.errstate(over="ignore"):
        rounded = limit.astype(storage)
    back = rounded.astype(np.float64)
    is_beyond = back < limit if inward > 0.0 else limit < back
    return np.where(is_beyond, np.nextafter(rounded, np.asarray(inward, storage)), rounded)


@dataclass(frozen=True)
class Constraints:
    """The user's constraints; see `Solver.solve`."""

    fixed: Mapping[str, Any] | None = None
    bounds: Mapping[str, Any] | None = None


NOTHING = Constraints()


@dataclass(frozen=True)
class Constrained:
    """Constraints as arrays.

    Attributes:
        values: For each node type its start values, within the bounds.
        free: As in `Problem`; of types that have bounds too.
    """

    values: Mapping[str, Array]
    free: Mapping[str, Array]
    bounds: Mapping[str, NodeBounds]


def read_constraints(
    constraints: Constraints,
    nodes: Sequence[NodeType],
    values: Mapping[str, Array],
    dtypes: Mapping[str, Any],
    reader: ArrayReader,
) -> Constrained:
    """Check what the user gave."""
    values_type, storage = reader.types.values, reader.types.storage
    counts = {name: int(rows.shape[0]) for name, rows in values.items()}
    free = read_fixed(constraints.fixed, nodes, counts, storage)
    if constraints.bounds is None:
        return Constrained(values, free, {})
    known = {node.name for node in nodes} & {str(name) for name in constraints.bounds}
    on_host = {name: reader.on_host(values[name]) for name in known}
    least = float(np.finfo(values_type.value).eps)
    rounding = {name: 2.0 * max(least, float(np.finfo(dtypes[name]).eps)) for name in known}
    bounds = read_bounds(constraints.bounds, nodes, on_host, free, rounding)
    for name, limits in bounds.items():
        free[name] = np.where(held_by_bounds(limits), 0.0, 1.0).astype(storage.value)
    inside = {
        name: reader.like(limits.within(on_host[name]), values[name])
        for name, limits in bounds.items()
    }
    return Constrained({**values, **inside}, free, bounds)
