"""A least-squares problem in symbols, and the same as functions of NumPy with exact derivatives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import symforce.symbolic as sf
import sympy
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

NONE: Array = np.zeros((1, 0))
"""One instance without data."""

Residuals = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
"""Residuals of one instance, as symbols: from the parameters and the data of the instance."""

SAME_MINIMUM = 1e-6
ZERO = 1e-12
"""Distances of sums of squares that belong to the same minimum, as in `Problem`."""


@dataclass(frozen=True)
class Kind:
    """Instances of the same residuals.

    Attributes:
        residuals: Residuals of one instance.
        data: Data, (number of instances, numbers of each); no columns if there are no data.
        unknowns: Numbers of the parameters that an instance takes, (number of instances, number of
            parameters of each); None if every instance takes all.
    """

    residuals: Residuals
    data: Array
    unknowns: Indices | None = None

    def __post_init__(self) -> None:
        """Instances that nothing tells apart would be one for caspar."""
        if self.unknowns is None and self.data.shape[1] == 0 and len(self.data) != 1:
            raise ValueError("a kind without data and numbers of unknowns has one instance")


@dataclass(frozen=True)
class Problem:
    """Minimise the sum of the squares of the residuals of all instances.

    Attributes:
        name: Name in the tables.
        kinds: Residuals and their instances.
        starts: Published starts, the standard one first.
        minimum: Least known sum of squares; infinite if nothing is known.
        local_minima: Sums of squares of other known minima; some are limits at infinity.
        certified: Parameters of the minimum; None if they are not certified.
        standard_errors: Their standard deviations; None if they are not certified.
        bounds: Lower and upper bounds, each (number of parameters,), infinite if open; or None.
        same_minimum: Relative distance at which two sums of squares belong to the same minimum.
        zero: A sum of squares this far from a minimum, absolutely, belongs to it as well.
        has_one_minimum: Whether nothing else is a minimum.
    """

    name: str
    kinds: tuple[Kind, ...]
    starts: tuple[tuple[float, ...], ...]
    minimum: float
    local_minima: tuple[float, ...] = ()
    certified: tuple[float, ...] | None = None
    standard_errors: tuple[float, ...] | None = None
    bounds: tuple[Array, Array] | None = None
    same_minimum: float = SAME_MINIMUM
    zero: float = ZERO
    has_one_minimum: bool = False

    @property
    def num_parameters(self) -> int:
        """Unknowns."""
        return len(self.starts[0])

    @property
    def is_sparse(self) -> bool:
        """Whether instances take parameters by number."""
        return any(kind.unknowns is not None for kind in self.kinds)

    def is_solved(self, sum_of_squares: float) -> bool:
        """Whether this is the least known sum of squares, or less."""
        return sum_of_squares <= self.minimum * (1.0 + self.same_minimum) + self.zero

    def is_local(self, sum_of_squares: float) -> bool:
        """Whether this is the sum of squares of another known minimum, to four digits."""
        return any(abs(sum_of_squares - other) <= 1e-4 * other for other in self.local_minima)


def one_kind(
    name: str,
    residuals: Residuals,
    data: Array,
    starts: tuple[tuple[float, ...], ...],
    minimum: float,
    local_minima: tuple[float, ...] = (),
) -> Problem:
    """A problem whose residuals are all of one kind and take all parameters."""
    return Problem(name, (Kind(residuals, data),), starts, minimum, local_minima)


class NumericProblem:
    """Residuals and Jacobian of a problem in float64.

    Attributes:
        bounds: Those of the problem.
    """

    def __init__(self, problem: Problem) -> None:
        self.bounds = problem.bounds
        self._kinds = [_NumericKind(kind, problem.num_parameters) for kind in problem.kinds]

    def residuals(self, parameters: Array) -> Array:
        """All residuals, (number of residuals,); infinite or NaN where they are undefined."""
        return np.concatenate([kind.residuals(parameters).ravel() for kind in self._kinds])

    def jacobian(self, parameters: Array) -> Array:
        """Their derivatives, (number of residuals, number of parameters)."""
        return np.concatenate([kind.jacobian(parameters) for kind in self._kinds])

    def sum_of_squares(self, parameters: Array) -> float:
        """The sum of squared residuals; infinite where it is undefined."""
        with np.errstate(all="ignore"):
            total = float(np.sum(self.residuals(parameters) ** 2))
        return total if np.isfinite(total) else float("inf")


class _NumericKind:
    """One kind of residuals."""

    def __init__(self, kind: Kind, num_parameters: int) -> None:
        self._num_instances = len(kind.data)
        everything = np.tile(np.arange(num_parameters), (self._num_instances, 1))
        self._unknowns = everything if kind.unknowns is None else kind.unknowns
        self._num_parameters = num_parameters
        unknowns = sf.symbols(f"x0:{self._unknowns.shape[1]}")
        data = sf.symbols(f"d0:{kind.data.shape[1]}") if kind.data.shape[1] > 0 else ()
        rows = [sf.S(row) for row in kind.residuals(unknowns, data)]
        entries = [row.diff(unknown) for row in rows for unknown in unknowns]
        symbols = [sympy.sympify(symbol) for symbol in (*unknowns, *data)]
        self._data = tuple(kind.data.T)
        self._rows = _compiled(symbols, rows)
        self._entries = _compiled(symbols, entries)

    def residuals(self, parameters: Array) -> Array:
        """(residuals of each, number of instances)."""
        return self._evaluate(self._rows, parameters)

    def jacobian(self, parameters: Array) -> Array:
        """(residuals of each * number of instances, number of parameters)."""
        count = self._unknowns.shape[1]
        entries = self._evaluate(self._entries, parameters).reshape(-1, count, self._num_instances)
        dense = np.zeros((len(entries), self._num_instances, self._num_parameters))
        for at in range(count):  # an instance may take a parameter twice
            dense[:, np.arange(self._num_instances), self._unknowns[:, at]] += entries[:, at]
        return dense.reshape(-1, self._num_parameters)

    def _evaluate(self, function: Callable[..., Any], parameters: Array) -> Array:
        """Values of all expressions, (number of expressions, number of instances)."""
        columns = np.asarray(parameters, dtype=np.float64)[self._unknowns].T
        with np.errstate(all="ignore"):
            values = function(*columns, *self._data)
        shape = (self._num_instances,)
        return np.array([np.broadcast_to(np.asarray(value), shape) for value in values], np.float64)


def _compiled(symbols: Sequence[Any], expressions: Sequence[Any]) -> Callable[..., Any]:
    sign_no_zero = {"SignNoZero": lambda x: np.where(x < 0.0, -1.0, 1.0)}
    modules = [sign_no_zero, "scipy", "numpy"]
    function: Callable[..., Any] = sympy.lambdify(
        symbols, sympy.sympify(expressions), modules, cse=True
    )
    return function
