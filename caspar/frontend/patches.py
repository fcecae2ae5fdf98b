"""Tables whose numbers are unknowns: each instance depends on the knots around a place.

Input: a `caspar.Grid` that is marked `TunableShared`. Output: for the tracer a value of symbols
whose `at` is a polynomial of knots and coordinates; for the reader of arrays one index for each
knot, and the place of the patch. So behind this module a patch is made of ordinary arguments: nodes
named by indices, and a constant. Cost tier: symbols once for each tracing, arrays once for each
choice of patches, `with_patches` once for each solve.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar, cast

import numpy as np
import symforce.symbolic as sf

from caspar.errors import InputError
from caspar.frontend.grids import Grid
from caspar.frontend.symbolic.lookups import POLYNOMIALS, Method
from caspar.memory.array import Array
from caspar.user_arrays import as_numpy

BASE = "base"
"""The part of a patch that is a constant."""


def part_source(source: str, part: int | str) -> str:
    """The name under which a part of a patch is read; no argument of a user has a dot."""
    return f"{source}.{part}"


# -- arrays ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GridPatch:
    """The knots of a table on which each instance depends. `caspar.grid_patch` makes it.

    Attributes:
        grid: The class of the table.
        sizes: Knots along each axis of the table.
        base: (m, dims) the last knot at or before each place, in the order of coordinates. `at`
            uses the polynomial of the cell that begins there.
        index: (m,) int32 row of each knot of the patch, as many arrays as a patch has knots.
    """

    grid: type[Grid]
    sizes: tuple[int, ...]
    base: Array
    index: tuple[Array, ...] = field(repr=False)


def grid_patch(grid: type[Grid], sizes: Sequence[int], coordinates: Any) -> GridPatch:
    """Choose the knots that instances depend on, where the numbers of a table are unknowns.

    A factor with an argument `Annotated[MyGrid, caspar.TunableShared]` gets the result for it.

    Args:
        grid: The class of the table.
        sizes: Knots along each axis of the table, as in its array: (rows, columns) for 2 axes.
        coordinates: (m, dims) a place for each instance, x first; for one axis (m,) too. For
            `BatchSolver` (problems, m, dims). NumPy, CuPy, or a sequence.

    Returns:
        The patches. They stay as they are until the function is called again.

    Raises:
        InputError: A coordinate is not finite, or lies where a knot is missing: allowed are 0 to
            size - 1 with `"linear"`, and 1 to size - 2 with `"cubic"` and `"bspline3"`.

    Example:
        >>> from typing import Annotated
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Curve(caspar.Grid, dims=1): ...
        >>> @caspar.factor
        ... def sample(curve: Annotated[Curve, caspar.TunableShared],
        ...            x: Annotated[sf.Scalar, caspar.ConstSequential],
        ...            y: Annotated[sf.Scalar, caspar.ConstSequential]) -> sf.V1:
        ...     return sf.V1(curve.at(x) - y)
        >>> x = [0.0, 0.5, 1.5, 2.0]
        >>> patch = caspar.grid_patch(Curve, (3,), x)
        >>> arrays = {"Curve": [[0.0]] * 3,
        ...           "sample": {"curve": patch, "x": x, "y": [1.0, 2.0, 5.0, 7.0]}}
        >>> caspar.Solver(sample).solve(arrays).values["Curve"].ravel().round(3)
        array([1., 3., 7.])
    """
    where = f"grid_patch({grid.__name__})"
    counts = tuple(map(int, sizes))
    if len(counts) != grid.dims:
        raise InputError(f"{where}: sizes {counts}; expected one for each of {grid.dims} axes")
    places = _places(where, grid, coordinates)
    offsets = sorted(POLYNOMIALS[grid.method])
    before, after = -offsets[0], offsets[-1]
    base, bases = np.empty_like(places), []
    # coordinates are in the opposite order of the axes
    for number, size in enumerate(reversed(counts)):
        if size < len(offsets):
            raise InputError(
                f"{where}: sizes {counts}; {grid.method.value!r} needs {len(offsets)} knots or "
                "more along each axis"
            )
        along = places[..., number]
        _check_inside(where, along, number, before, size - after)
        base[..., number] = np.clip(np.floor(along), before, size - 1 - after)
        bases.append(base[..., number].astype(np.int32))
    strides = [math.prod(counts[axis + 1 :]) for axis in range(grid.dims)]
    index = tuple(
        sum(
            (first + offset) * stride
            for first, offset, stride in zip(reversed(bases), knot, strides, strict=True)
        )
        for knot in product(offsets, repeat=grid.dims)
    )
    return GridPatch(grid, counts, base, index)


def _places(where: str, grid: type[Grid], coordinates: Any) -> Array:
    """(..., dims) coordinates in float64, of NumPy or CuPy."""
    given = coordinates
    # by this NumPy's functions call those of CuPy
    if isinstance(given, np.ndarray) or not hasattr(given, "__array_function__"):
        try:
            given = as_numpy(where, given)
        except ValueError as error:
            raise InputError(str(error)) from error
    if given.dtype.kind not in "fiu":
        raise InputError(f"{where}: coordinates of dtype {given.dtype}; they must be numbers")
    if given.ndim == 1 and (grid.dims == 1 or given.shape == (0,)):
        given = given.reshape(-1, grid.dims)
    if given.ndim < 2 or given.shape[-1] != grid.dims:
        raise InputError(
            f"{where}: coordinates of shape {tuple(given.shape)}; expected (m, {grid.dims}), "
            f"{grid.dims} for each instance"
        )
    return given.astype(np.float64)


def _check_inside(where: str, along: Array, number: int, least: int, end: int) -> None:
    """Raise unless all coordinates of one kind have the knots that they need."""
    wrong = ~((along >= least) & (along <= end))  # a NaN is neither
    if bool(wrong.any()):
        flat = wrong.reshape(-1)
        entry = int(flat.argmax())
        value = float(along.reshape(-1)[entry])
        raise InputError(
            f"{where}: coordinate {number} of instance {entry} is {value:g}, and those of "
            f"{int(flat.sum())} instances are outside {least} to {end}, where all knots that are "
            "needed exist; leave these instances out, or give the table more knots"
        )


def with_patches(arrays: Mapping[str, Any], factors: Sequence[Any]) -> dict[str, Any]:
    """Arrays with an index and a place instead of each patch, and tables of knots as rows.

    Args:
        arrays: As the user passed them, or as this function returned them.
        factors: All traced factors of a solver.

    Raises:
        InputError: An argument is no patch, or one of another table than there is.
    """
    found = dict(arrays)
    for factor in factors:
        for source, grid in factor.patches.items():
            given, where = found.get(factor.name), f"factor {factor.name}, argument {source}"
            if isinstance(given, Mapping):
                found[factor.name], ones = _taken_apart(where, source, grid, given)
                for one in ones:
                    _add_table(found, where, one)
    return found


def _taken_apart(
    where: str, source: str, grid: type[Grid], given: Mapping[str, Any]
) -> tuple[Mapping[str, Any], list[GridPatch]]:
    """The arguments of a factor with the parts of a patch, and the patches themselves."""
    if source not in given:
        if part_source(source, BASE) in given:
            return given, []
        raise InputError(
            f"{where}: missing; pass caspar.grid_patch({grid.__name__}, sizes, coordinates)"
        )
    passed = given[source]
    # several of a factor in parts, or of a batch
    ones = list(passed) if isinstance(passed, list | tuple) else [passed]
    for one in ones:
        if not isinstance(one, GridPatch) or one.grid is not grid:
            got = f"a patch of {one.grid.__name__}" if isinstance(one, GridPatch) else type(one)
            raise InputError(
                f"{where}: expected caspar.grid_patch({grid.__name__}, sizes, coordinates), "
                f"got {got if isinstance(got, str) else got.__name__}"
            )
    rest = {name: array for name, array in given.items() if name != source}
    columns = {
        part_source(source, k): [one.index[k] for one in ones] for k in range(num_knots(grid))
    }
    columns[part_source(source, BASE)] = [one.base for one in ones]
    is_one = not isinstance(passed, list | tuple)
    return rest | {name: parts[0] if is_one else parts for name, parts in columns.items()}, ones


def _add_table(arrays: dict[str, Any], where: str, patch: GridPatch) -> None:
    """Turn a table of knots into rows, and compare its size with that of a patch."""
    grid = patch.grid
    table = arrays.get(grid.__name__)
    shape = tuple(getattr(table, "shape", ()))
    channels = (grid.channels,) if grid.channels > 1 else ()
    if shape in ((*patch.sizes, *channels), (*patch.sizes, grid.channels)):
        arrays[grid.__name__] = cast(Any, table).reshape(-1, grid.channels)
        return
    # a batch has several tables
    num_numbers = math.prod(patch.sizes) * grid.channels
    is_other = math.prod(shape) != num_numbers and len(shape) <= 2
    if len(shape) > 0 and (is_other or math.prod(shape) % num_numbers != 0):
        raise InputError(
            f"{where}: a patch of a table of {' x '.join(map(str, patch.sizes))} knots, but node "
            f"type {grid.__name__} has shape {shape}"
        )


def beyond_cells(factor: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """Return how far an instance is outside the cell of its patch, by argument.

    Args:
        factor: A traced factor.

    Returns:
        For each argument an expression: the most of all coordinates, negative inside.
    """
    bases = {one.source: one.symbols for one in factor.arguments if one.node is None}
    found = []
    for source, places in factor.looked_up:
        base = bases[part_source(source, BASE)]
        ends = [sf.sympify(-1)]
        for number, place in enumerate(places):
            distance = place - base[number % len(base)]
            ends += [-distance, distance - 1]
        found.append((source, (sf.Max(*ends),)))
    return found


# -- symbols ---------------------------------------------------------------------------------------


class Patch:
    """The value that a factor's function gets for a table whose numbers are unknowns.

    Its storage is that of all knots, in the order of the table, then the base.

    Attributes:
        grid: The class of the table that the user declared.
        places: The coordinates that `at` was called with.
    """

    grid: ClassVar[type[Grid]]

    def __init__(self, elements: Sequence[Any]) -> None:
        """Take the numbers of the storage."""
        self._elements = list(elements)
        self.places: list[tuple[Any, ...]] = []

    def _values_at(self, *places: Any) -> list[Any]:
        """The value of each channel: the polynomial of the base's cell, also outside of it."""
        self.places.append(places)
        grid = self.grid
        first = num_knots(grid) * grid.channels
        weights = [
            _weights(grid.method, place - base)
            for place, base in zip(places, self._elements[first:], strict=True)
        ]
        return [
            # coordinates are in the opposite order of the axes
            _interpolated(weights[::-1], iter(self._elements[channel : first : grid.channels]))
            for channel in range(grid.channels)
        ]

    def to_storage(self) -> list[Any]:
        """The knots, then the base."""
        return list(self._elements)

    def knots(self) -> list[Any]:
        """A value of the type of knots for each knot."""
        channels = self.grid.channels
        return [
            self.grid.Knot.from_storage(self._elements[k * channels : (k + 1) * channels])
            for k in range(num_knots(self.grid))
        ]

    def base(self) -> Any:
        """The base as a vector."""
        return sf.Matrix(self._elements[num_knots(self.grid) * self.grid.channels :])


def num_knots(grid: type[Grid]) -> int:
    """Knots of a patch."""
    return math.prod([len(POLYNOMIALS[grid.method])] * grid.dims)


def patch_type(grid: type[Grid]) -> type[Grid]:
    """The type of patches of a table, with the methods that the user's class has beside `at`."""

    def storage_dim(cls: type[Patch]) -> int:
        return num_knots(grid) * grid.channels + grid.dims

    def from_storage(cls: Any, elements: Sequence[Any]) -> Any:
        return cls(elements)

    members = {
        "__module__": grid.__module__,
        "grid": grid,
        "storage_dim": classmethod(storage_dim),
        "from_storage": classmethod(from_storage),
    }
    return type(grid.__name__, (Patch, grid), members)


def _interpolated(axes: Sequence[Sequence[Any]], knots: Iterator[Any]) -> Any:
    """Interpolate one axis inside the other; the last axis of a table is the inmost."""
    if len(axes) == 0:
        return next(knots)
    return sum((weight * _interpolated(axes[1:], knots) for weight in axes[0]), start=sf.S.Zero)


def _weights(method: Method, x: Any) -> list[Any]:
    """The weights of the knots along one axis, by Horner's rule."""
    found = []
    for _, coefficients in sorted(POLYNOMIALS[method].items()):
        value: Any = sf.S.Zero
        for coefficient in reversed(coefficients):
            value = sf.Rational(coefficient.numerator, coefficient.denominator) + value * x
        found.append(value)
    return found
