"""A least-squares problem in symbols, and the same as functions of NumPy with exact derivatives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import symforce.symbolic as sf
import sympy
from numpy.typing import NDArray

Array = NDArray[np.float64]

Residuals = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
"""Residuals of one instance, as symbols: from the parameters and the data of the instance."""

SAME_MINIMUM = 1e-6
"""Relative distance at which two sums of squares belong to the same minimum."""

ZERO = 1e-12
"""A sum of squares this far from a minimum, absolutely, belongs to it as well."""


@dataclass(frozen=True)
class Problem:
    """Minimise the sum of the squares of the residuals of all instances.

    Attributes:
        name: Name in the tables.
        residuals: Residuals of one instance.
        data: Data, (number of instances, numbers of each); no columns if there are no data.
        starts: Published starts, the standard one first.
        minimum: Least known sum of squares.
        local_minima: Sums of squares of other known minima; some are limits at infinity.
        certified: Parameters of the minimum; None if they are not certified.
        standard_errors: Their standard deviations; None if they are not certified.
    """

    name: str
    residuals: Residuals
    data: Array
    starts: tuple[tuple[float, ...], ...]
    minimum: float
    local_minima: tuple[float, ...] = ()
    certified: tuple[float, ...] | None = None
    standard_errors: tuple[float, ...] | None = None

    @property
    def num_parameters(self) -> int:
        """Unknowns."""
        return len(self.starts[0])

    def is_solved(self, sum_of_squares: float) -> bool:
        """Whether this is the least known sum of squares, or less."""
        return sum_of_squares <= self.minimum * (1.0 + SAME_MINIMUM) + ZERO

    def is_local(self, sum_of_squares: float) -> bool:
        """Whether this is the sum of squares of another known minimum, to four digits."""
        return any(abs(sum_of_squares - other) <= 1e-4 * other for other in self.local_minima)


class NumericProblem:
    """Residuals and Jacobian of a problem in float64."""

    def __init__(self, problem: Problem) -> None:
        unknowns = sf.symbols(f"x0:{problem.num_parameters}")
        data = sf.symbols(f"d0:{problem.data.shape[1]}") if problem.data.shape[1] > 0 else ()
        rows = [sf.S(row) for row in problem.residuals(unknowns, data)]
        entries = [row.diff(unknown) for row in rows for unknown in unknowns]
        symbols = [sympy.sympify(symbol) for symbol in (*unknowns, *data)]
        self._data = tuple(problem.data.T)
        self._num_instances = len(problem.data)
        self._num_unknowns = len(unknowns)
        self._rows = sympy.lambdify(symbols, sympy.sympify(rows), "numpy", cse=True)
        self._entries = sympy.lambdify(symbols, sympy.sympify(entries), "numpy", cse=True)

    def residuals(self, parameters: Array) -> Array:
        """All residuals, (number of residuals,); infinite or NaN where they are undefined."""
        return self._evaluate(self._rows, parameters).ravel()

    def jacobian(self, parameters: Array) -> Array:
        """Their derivatives, (number of residuals, number of parameters)."""
        entries = self._evaluate(self._entries, parameters)
        return (
            entries.reshape(-1, self._num_unknowns, self._num_instances)
            .swapaxes(1, 2)
            .reshape(-1, self._num_unknowns)
        )

    def sum_of_squares(self, parameters: Array) -> float:
        """The sum of squared residuals; infinite where it is undefined."""
        with np.errstate(all="ignore"):
            total = float(np.sum(self.residuals(parameters) ** 2))
        return total if np.isfinite(total) else float("inf")

    def _evaluate(self, function: Callable[..., Any], parameters: Array) -> Array:
        """Values of all expressions, (number of expressions, number of instances)."""
        with np.errstate(all="ignore"):
            values = function(*np.asarray(parameters, dtype=np.float64), *self._data)
        shape = (self._num_instances,)
        return np.array([np.broadcast_to(np.asarray(value), shape) for value in values], np.float64)
