"""Result of solving a batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.runtime.arrays import to_numpy
from caspar.solver.result.by_name import ByName
from caspar.solver.result.quantities import preformatted, time_text
from caspar.solver.result.result import NAMES_OF_RESULT, SolveStatus, values_by_field

STATUSES = tuple(SolveStatus)
"""Codes are places in it."""

MOST_NAMED = 5
"""Problems whose constraints do not hold that a report names."""


def on_host(array: Any) -> NDArray[Any]:
    """An array of any library as NumPy's."""
    for move in ("get", "cpu"):  # CuPy's, torch's
        if hasattr(array, move):
            return np.asarray(to_numpy(getattr(array, move)()))
    return np.asarray(array)


@dataclass(frozen=True, eq=False)
class BatchViolation:
    """The constraint entry of each problem that is farthest from what must hold.

    Arrays are NumPy's, on the host.

    Attributes:
        unscaled: (P,) the greatest distance of an entry, in its own unit.
        scaled: (P,) the greatest distance relative to the terms that an entry is made of, which
            `constraint_tolerance` is compared with.
        constraint: (P,) names of the constraints that have the greatest relative distance; empty
            if there are none.
        instance: (P,) their instances, counted within the problem.
    """

    unscaled: NDArray[np.float64]
    scaled: NDArray[np.float64]
    constraint: NDArray[Any]
    instance: NDArray[np.int32]


def equal_violations(num_problems: int, distance: float = 0.0) -> BatchViolation:
    """Violations of problems without constraints, or of ones that have not been looked at."""
    unscaled, scaled = np.full((2, num_problems), distance)
    names: NDArray[np.object_] = np.full(num_problems, "", object)
    return BatchViolation(unscaled, scaled, names, np.zeros(num_problems, np.int32))


@dataclass(frozen=True, eq=False)
class BatchResult:
    """Values, costs and statuses of the problems of a batch, P of them.

    Arrays are of the kind given, NumPy's or those of the device, but for `status`.

    Attributes:
        values: For each node type an array of the shape and dtype given.
        status_codes: (P,) int32, places in `tuple(SolveStatus)`: see `status`.
        initial_cost: (P,) float64 costs of the start values.
        final_cost: (P,) float64 costs of `values`.
        iterations: (P,) int32 Levenberg-Marquardt iterations, rejected ones included.
        active_bounds: For each node type that has bounds (P, storage_dim) int8 on the host, or
            (P, n, storage_dim): -1 for a number at its lower bound, 1 at its upper one, else 0.
        num_residuals: (P,) int64 rows of residuals, those of weight 0 left out.
        backend: `cuda` or `cpu`.
        device: The device in words.
        precision: `float64` or `float32`.
        compile_time_s: Seconds to trace, generate, compile and load; 0 if that was done before.
        setup_time_s: Seconds to check and bring the arrays.
        solve_time_s: Seconds of the kernel.
        given: The arrays of the solve, for `BatchSolver.gradient` and `covariance`.
        multipliers: For each constraint (P, m, dim): see `SolveResult.multipliers`. Of ragged
            constraints (n, dim), in the order in which their rows were passed.
        violation: How far the constraints of each problem are from holding.
        fields: For each node type that is a dataclass, which numbers of a row are which field.
        num_refused: For each factor with tables of `border="refuse"` (P,) instances that look up
            outside of them at `values` and are left out, on the host.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> batch = caspar.BatchSolver(caspar.factors.prior(Length, noise="unit"))
        >>> values = [[[1.0], [2.0]], [[5.0], [float("nan")]]]
        >>> fits = batch.solve({"Length": [[0.0], [0.0]], "prior": {"expected": values}})
        >>> fits.is_success, fits.status[1].name
        (array([ True, False]), 'INITIAL_COST_NOT_FINITE')
    """

    values: Mapping[str, Any] = field(repr=False)
    status_codes: Any = field(repr=False)
    initial_cost: Any = field(repr=False)
    final_cost: Any = field(repr=False)
    iterations: Any = field(repr=False)
    num_residuals: Any = field(repr=False)
    active_bounds: Mapping[str, NDArray[np.int8]] = field(repr=False)
    backend: str
    device: str
    precision: str
    compile_time_s: float
    setup_time_s: float
    solve_time_s: float
    given: Any = field(default=None, repr=False)
    multipliers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    violation: BatchViolation = field(default_factory=lambda: equal_violations(0), repr=False)
    fields: Mapping[str, Mapping[str, range]] = field(default_factory=dict, repr=False)
    num_refused: Mapping[str, NDArray[np.int64]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Let mappings suggest names."""
        for name in ("values", "active_bounds", "fields", "multipliers"):
            object.__setattr__(self, name, ByName(getattr(self, name), NAMES_OF_RESULT[name]))
        counts = ByName(self.num_refused, "factor with border='refuse'")
        object.__setattr__(self, "num_refused", counts)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the arrays of the solve."""
        return {**self.__dict__, "given": None}

    def values_of(self, name: str) -> dict[str, Any]:
        """The values of a node type by the names of its dataclass's fields.

        Args:
            name: Of the node type.

        Returns:
            By field, in order: (P,) of a scalar, (P, storage_dim) of anything else, or (P, n) and
            (P, n, storage_dim) of several nodes; parts of the arrays in `values`.

        Raises:
            InputError: There is no such node type, or it is no dataclass.
        """
        return values_by_field(self.values, self.fields, name)

    @cached_property
    def _host_codes(self) -> NDArray[np.int32]:
        codes: NDArray[np.int32] = on_host(self.status_codes)
        return codes

    @cached_property
    def status(self) -> NDArray[np.object_]:
        """(P,) NumPy array of `SolveStatus`: how each problem ended.

        It compares with members: `result.status == SolveStatus.ITERATION_LIMIT`.
        """
        members: NDArray[np.object_] = np.array(STATUSES, dtype=object)[self._host_codes]
        return members

    @cached_property
    def is_success(self) -> NDArray[np.bool_]:
        """(P,) NumPy booleans: which problems converged."""
        converged = np.array([status.is_success for status in STATUSES])
        found: NDArray[np.bool_] = converged[self._host_codes]
        return found

    @property
    def num_problems(self) -> int:
        """P."""
        return int(self._host_codes.shape[0])

    @cached_property
    def counts(self) -> dict[SolveStatus, int]:
        """Number of problems by status, the most frequent first; statuses that occur."""
        numbers = np.bincount(self._host_codes, minlength=len(STATUSES))
        order = sorted(range(len(STATUSES)), key=lambda code: (-int(numbers[code]), code))
        return {STATUSES[code]: int(numbers[code]) for code in order if numbers[code] > 0}

    def __str__(self) -> str:
        """Statuses with their numbers, and times."""
        lines = [f"{self.num_problems:,} problems on {self.device}, {self.precision} precision"]
        lines += [
            f"  {number:>9,}  {status.name}: {status.value}"
            for status, number in self.counts.items()
        ]
        lines += self._constraint_lines()
        for name, counts in self.num_refused.items():
            if counts.any():
                lines.append(
                    f"factor {name}: {counts.sum():,} instances of {np.count_nonzero(counts):,} "
                    "problems look up outside of their table and are left out"
                )
        times = (
            f"compile {time_text(self.compile_time_s)}, setup {time_text(self.setup_time_s)}, "
            f"solve {time_text(self.solve_time_s)}"
        )
        return "\n".join([*lines, times])

    def _constraint_lines(self) -> list[str]:
        """Say how well constraints hold, and which do not hold."""
        if len(self.multipliers) == 0 or self.num_problems == 0:
            return []
        violation, lines = self.violation, []
        held = np.flatnonzero(self.is_success)
        if len(held) > 0:
            lines.append(
                f"constraints of these {len(held):,} successes hold to "
                f"{violation.unscaled[held].max():.1e}, relative to their terms "
                f"{violation.scaled[held].max():.1e}"
            )
        failed = np.flatnonzero(self._host_codes == STATUSES.index(SolveStatus.INFEASIBLE))
        named = [
            f"problem {problem}: {violation.constraint[problem]}[{violation.instance[problem]}] "
            f"(by {violation.unscaled[problem]:.3g})"
            for problem in failed[:MOST_NAMED].tolist()
        ]
        more = f" and {len(failed) - len(named):,} more" if len(failed) > len(named) else ""
        return lines if len(named) == 0 else [*lines, f"do not hold: {', '.join(named)}{more}"]

    def _repr_html_(self) -> str:
        return preformatted(str(self))
