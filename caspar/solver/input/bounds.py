"""Bounds of numbers: the user's `bounds` to a lower and an upper limit for each component.

Input: the user's mapping, checked values. Output: limits over the tangents of node types. Once for
each solve, on the host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.errors import InputError
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.symbolic.field_types import tangent_pieces
from caspar.memory.array import Array
from caspar.runtime.arrays import to_numpy
from caspar.solver.input.fixed import unknown_name

Floats = NDArray[np.float64]

_HAVE = "scalars, vectors such as sf.V3, and the translation of a pose can have bounds"


@dataclass(frozen=True)
class NodeBounds:
    """The bounds of a node type.

    Attributes:
        lower: (n, tangent_dim) on the host, of the storage type, rounded up; infinite if open, and
            above `upper` where the component is held.
        upper: The same, rounded down.
        places: By each component that can have bounds the place of its number in the storage.
        lower_given: (n, tangent_dim) in float64, as the user gave them.
        upper_given: The same.
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
        """Values with numbers that rounding has moved beyond a bound put back; a copy if need be.

        Args:
            rows: (n, storage_dim) on the host, of the storage type.
        """
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
        """(n, storage_dim): -1 for a number at its lower bound, 1 at its upper one, else 0.

        Args:
            rows: (n, storage_dim) values on the host, of the storage type.
        """
        found = np.zeros(rows.shape, np.int8)
        for component, place in self.places.items():
            lower, upper = self.lower[:, component], self.upper[:, component]
            has_limits = lower <= upper
            found[has_limits & (rows[:, place] <= lower), place] = -1
            found[has_limits & (upper <= rows[:, place]), place] = 1
        return found

    def at_given(self, rows: Array) -> NDArray[np.bool_]:
        """(n, tangent_dim) booleans: numbers at a bound, but for what float32 rounds.

        Args:
            rows: (n, storage_dim) values on the host.
        """
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

    Args:
        bounds: As the user gave it; None: there are none.
        nodes: The solver's node types.
        values: By name (n, storage_dim) start values on the host, of the storage type.
        free: By name, of types of which something is held: see `Problem.free`.
        rounding: By name how far, relatively, rounding may have moved a start value.

    Raises:
        InputError: Names the node type and field, what is wrong and what is allowed.
    """
    if bounds is None:
        return {}
    if not isinstance(bounds, Mapping):
        raise InputError(
            "bounds: expected a mapping from node types to bounds of their fields, got "
            f"{type(bounds).__name__}"
        )
    by_name = {node.name: node for node in nodes}
    read = {}
    for name, given in bounds.items():
        if name not in by_name:
            raise InputError(f"bounds: {unknown_name('node type', name, list(by_name))}")
        node, rows = by_name[name], values[name]
        limits = _Limits(node, len(rows))
        limits.read(f"bounds, node type {name}", node.python_type, given, range(node.tangent_dim))
        limits.check_start(f"bounds, node type {name}", rows, rounding[name])
        read[name] = limits.rounded(rows.dtype, free.get(name))
    return read


class _Limits:
    """The limits of a node type while they are read.

    Attributes:
        lower, upper: (n, tangent_dim) float64.
    """

    def __init__(self, node: NodeType, count: int) -> None:
        self._places = node.shifted_places
        self._fields: dict[int, tuple[str, int]] = {}
        shape = (count, node.tangent_dim)
        self.lower, self.upper = np.full(shape, -np.inf), np.full(shape, np.inf)

    def read(self, where: str, declared: Any, given: Any, place: range) -> None:
        """Set the limits of a part of the tangent by what the user gave for it."""
        if isinstance(given, Mapping):
            fields = tangent_pieces(declared)
            if len(fields) == 0:
                raise InputError(f"{where}: has no fields; expected a pair (lower, upper)")
            for name, inner in given.items():
                if name not in fields:
                    raise InputError(f"{where}: {unknown_name('field', name, list(fields))}")
                kind, own = fields[name]
                within = range(place.start + own.start, place.start + own.stop)
                self.read(f"{where}, field {name}", kind, inner, within)
            return
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
        """Refuse values that start outside.

        Args:
            where: Names the node type.
            rows: (n, storage_dim) start values.
            rounding: How far, relatively, rounding may have moved one.
        """
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
