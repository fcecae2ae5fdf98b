"""Points at which a traced function is compared with the same function run on numbers.

Decisions hide in special values: zeros, ones, whole numbers, numbers that are equal, numbers that
stand in the function. Rotations and directions have unit length, the identity among them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.frontend.symbolic.unit_ranges import UnitRange

Array = NDArray[np.float64]

MAX_LITERALS = 4
"""Numbers of the function that become points."""

MAX_KEYS = 16
"""Points at which keys are numbers of the function."""


@dataclass(frozen=True)
class PointArgument:
    """An argument of the user's function.

    Attributes:
        name: As in the signature.
        templates: A value of symbols, of a pair two.
        storage_dim: Scalars of one of these.
        unit_ranges: Its parts of unit length.
    """

    name: str
    templates: tuple[Any, ...]
    storage_dim: int
    unit_ranges: tuple[UnitRange, ...]

    @property
    def num_scalars(self) -> int:
        """Scalars of all templates."""
        return self.storage_dim * len(self.templates)


def drawn_points(arguments: Sequence[PointArgument], literals: Sequence[float]) -> Array:
    """(points, scalars) of all arguments one after the other; the first point is a common one."""
    dim = sum(argument.num_scalars for argument in arguments)
    rng = np.random.default_rng(0)
    rows = [
        rng.uniform(0.2, 1.0, dim),
        np.zeros(dim),
        np.ones(dim),
        np.arange(1.0, dim + 1),
        np.full(dim, 0.75),
        rng.normal(size=dim),
        *rng.choice((0.3, 0.5, 0.8), (3, dim)),  # some are equal
        *rng.choice((0.0, 1.0, 2.0, *literals[:MAX_LITERALS]), (4, dim)),
        np.full(dim, -1.0),
        1e-3 * rng.normal(size=dim),
        10.0 * rng.normal(size=dim),
    ]
    for special in (0.0, 1.0, 1.0, *literals[:MAX_LITERALS]):
        # each scalar has the value at one of two points, and half of the others have not
        is_special = rng.permuted(np.arange(dim) % 2 == 0)
        others = rng.uniform(0.2, 1.0, dim)
        rows += [np.where(is_special, special, others), np.where(is_special, others, special)]
    points = np.array(rows)
    _make_units(points, arguments)
    return points


def values_of_keys(
    keys: Sequence[tuple[Any, ...]],
    specials: Sequence[tuple[float, ...]],
    number: Callable[[Any, Mapping[str, float]], float],
) -> list[dict[str, float]]:
    """Numbers of symbols with which keys of dictionaries are special values.

    Args:
        keys: Expressions that were hashed one after the other; several keys may be one after the
            other.
        specials: Numbers that stand in the function, alone or as a tuple.
        number: What an expression is if some of its symbols have other numbers than usual.
    """
    found: list[dict[str, float]] = []
    fitting = ((k, s) for s, k in product(specials, keys) if len(k) % len(s) == 0)
    for key, special in islice(fitting, MAX_KEYS):
        values: dict[str, float] = {}
        for expression, target in zip(key, cycle(special), strict=False):
            values |= _solution(expression, target, values, number)
        if values:
            found.append(values)
    return found


def _solution(
    expression: Any,
    target: float,
    known: Mapping[str, float],
    number: Callable[[Any, Mapping[str, float]], float],
) -> dict[str, float]:
    """A symbol and its number with which an expression is a number, if they are easily found."""
    for name in sorted(map(str, expression.free_symbols)):
        if name in known:
            continue
        zero, one = (number(expression, {**known, name: value}) for value in (0.0, 1.0))
        with np.errstate(all="ignore"):
            linear = float(np.divide(target - zero, one - zero))
        for value in (target, linear):  # such as of the symbol itself, of floor(x) and 2 x + 1
            if np.isfinite(value) and number(expression, {**known, name: value}) == target:
                return {name: value}
    return {}


def points_with(
    values: Sequence[Mapping[str, float]],
    point: Array,
    names: Sequence[str],
    arguments: Sequence[PointArgument],
) -> Array:
    """(values, scalars) a point with other numbers for some of its scalars."""
    points = np.array(
        [[one.get(name, x) for name, x in zip(names, point, strict=True)] for one in values]
    ).reshape(-1, len(names))
    _make_units(points, arguments)
    return points


def _make_units(points: Array, arguments: Sequence[PointArgument]) -> None:
    start = 0
    for argument in arguments:
        for _ in argument.templates:
            for unit in argument.unit_ranges:
                _make_unit(points[:, start + unit.start : start + unit.stop])
            start += argument.storage_dim


def _make_unit(part: Array) -> None:
    """Divide rows by their length; rows of zeros become the identity."""
    size = part.shape[1]
    identity = np.eye(size)[0 if size == 2 else size - 1]  # cosine first, quaternions' w last
    part[~np.any(part, axis=1)] = identity
    part /= np.linalg.norm(part, axis=1, keepdims=True)
