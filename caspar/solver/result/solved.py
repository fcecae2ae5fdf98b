"""Results of a solver, so that a covariance can be asked for by one.

Input: the result of each solve, arrays of a covariance. Output: arrays and constraints of the
solve. Results are kept weakly.
"""

from collections.abc import Mapping
from threading import Lock
from typing import Any
from weakref import WeakSet

from caspar.errors import InputError
from caspar.solver.input.constraints import Constraints
from caspar.solver.result.result import SolveResult

Solved = SolveResult | Mapping[str, Any]
"""A result or arrays, of which a covariance is computed."""


class SolvedResults:
    """The results of a solver that are still in use."""

    def __init__(self) -> None:
        self._results: WeakSet[SolveResult] = WeakSet()
        self._lock = Lock()

    def kept(self, result: SolveResult) -> SolveResult:
        """The result, which is known from then on."""
        with self._lock:
            self._results.add(result)
        return result

    def origin(
        self, given: Any, constraints: Constraints
    ) -> tuple[Mapping[str, Any], Constraints, SolveResult | None]:
        """Arrays with solved values, what restricts them, and the result that has these values.

        Args:
            given: A result of this solver, or arrays.
            constraints: As passed beside it; what is None there is taken from a result's solve.

        Raises:
            InputError: A result of another solver, or a copy of one; or arrays of its solve have
                been written to since.
        """
        if not isinstance(given, SolveResult):
            return given, constraints, self._with_values(given)
        with self._lock:
            is_own = given in self._results
        if not is_own or given.given is None:
            raise InputError(
                "covariance: this result is of another solver, or a copy, which does not hold the "
                "arrays that were solved: pass {**arrays, **result.values}, and the fixed and "
                "bounds of the solve"
            )
        arrays, solved = given.given.arrays, given.given.arrays.constraints
        fixed = solved.fixed if constraints.fixed is None else constraints.fixed
        bounds = solved.bounds if constraints.bounds is None else constraints.bounds
        return arrays.with_values(given.values), Constraints(fixed, bounds), given

    def _with_values(self, arrays: Any) -> SolveResult | None:
        """The result whose values stand in the arrays themselves, no copies of them."""
        if not isinstance(arrays, Mapping):
            return None
        with self._lock:
            results = list(self._results)
        for result in results:
            values = result.values
            if values and all(arrays.get(name) is rows for name, rows in values.items()):
                return result
        return None
