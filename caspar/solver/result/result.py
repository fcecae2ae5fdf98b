"""The result of a solve."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import caspar
from caspar.errors import InputError
from caspar.solver.result.by_name import ByName, unknown_name
from caspar.solver.result.quantities import StandardErrors, cost_text, time_text


def parts_of(values: Any) -> list[Any]:
    """The parts of values of a node type; of a whole array that alone."""
    return values if isinstance(values, list) else [values]


def num_numbers(values: Any) -> int:
    """Return how many numbers there are in all parts."""
    return sum(math.prod(map(int, part.shape)) for part in parts_of(values))


def array_on_host(array: Any) -> NDArray[Any]:
    """An array or tensor of any device, or what NumPy reads, as a NumPy array."""
    if hasattr(array, "detach"):  # a tensor
        array = array.detach().cpu()
    elif hasattr(array, "to_rows"):
        array = array.to_rows()
    return array.get() if hasattr(array, "get") else np.asarray(array)


def on_host(values: Any) -> NDArray[Any]:
    """Values of a node type of a result, also in parts, as one NumPy array."""
    found = [array_on_host(part) for part in parts_of(values)]
    return found[0] if len(found) == 1 else np.concatenate(found)


class ValuesReader:
    """Reads the values of a solve that goes on, until it is closed."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read: Callable[[], Mapping[str, Any]] | None = read

    def __call__(self) -> Mapping[str, Any]:
        """The values."""
        if self._read is None:
            raise InputError(
                "the values of an iteration can be read only while on_iteration is called with "
                "its record: read them there, and keep what it returns"
            )
        return self._read()

    def close(self) -> None:
        """The solve goes on."""
        self._read = None


class SolveStatus(Enum):
    """The outcome of a solve; its value says why, and what to do.

    Example:
        >>> import caspar
        >>> status = caspar.SolveStatus.TIME_LIMIT
        >>> status.is_success
        False
        >>> print(status.value)
        The solve reached max_time_s before it converged. Raise max_time_s, or solve again from
        these values.
    """

    CONVERGED_COST = "The cost no longer decreases by more than the tolerance."
    CONVERGED_GRADIENT = "The gradient vanishes, as far as rounding tells."
    CONVERGED_STEP = "Steps no longer change the residuals. To go on, lower step_tolerance."
    ITERATION_LIMIT = (
        "The solve reached max_iterations before it converged. Raise max_iterations, or solve "
        "again from these values."
    )
    TIME_LIMIT = (
        "The solve reached max_time_s before it converged. Raise max_time_s, or solve again from "
        "these values."
    )
    STOPPED = "on_iteration stopped the solve. The values are those of the last accepted step."
    INTERRUPTED = (
        "Ctrl-C stopped the solve. The values are those of the last accepted step. A second Ctrl-C "
        "within two seconds, also in the next solve, raises KeyboardInterrupt."
    )
    DAMPING_LIMIT = (
        "No step lowered the cost at any damping. Look for discontinuous residuals, or residuals "
        "whose derivative vanishes at their minimum. If values are in float32, try "
        "precision='float64'."
    )
    DERIVATIVES_NOT_FINITE = (
        "The derivatives at these values are not finite. Look for a root or a norm of zero and "
        "guard it with sf.epsilon(). Or a number overflows, in float32 at 3e38: try "
        "precision='float64'."
    )
    INITIAL_COST_NOT_FINITE = (
        "The cost of the start values is not finite. Look for an overflow, a division by zero, or "
        "the root or logarithm of a negative number, and guard it with sf.epsilon()."
    )
    OUT_OF_RANGE = (
        "Squares of residuals or derivatives are too small or too large for the floating type, so "
        "these values may not be a minimum. Use precision='float64', or other units."
    )
    NO_RESIDUALS = (
        "No residual pulls on the values. A loss gives all of them weight 0 at the start, or all "
        "look up values outside of tables with border='refuse', or a problem of a batch has none, "
        "or solve_gnc took all for outliers. Start nearer, or raise the scale of the loss."
    )

    INFEASIBLE = (
        "The solve found no values that meet all constraints. Look at the constraints that the "
        "remark names: they contradict each other or what is held, or start elsewhere."
    )
    FEASIBLE_NOT_OPTIMAL = (
        "All constraints are met, but the cost may not be at its minimum. Solve again from these "
        "values, or scale residuals and constraints so that their derivatives are alike."
    )

    @property
    def is_success(self) -> bool:
        """Return whether the solve converged: no step gains more than the tolerances."""
        return self.name.startswith("CONVERGED")


@dataclass(frozen=True)
class IterationRecord:
    """One Levenberg-Marquardt iteration.

    Attributes:
        iteration: Counted from 1; rejected steps count.
        cost: Cost after the iteration: of the candidate if accepted, else as before.
        candidate_cost: Cost at the end of the step that was tried.
        damping: Damping of the linear system, relative to D: see `SolveOptions`.
        gain_ratio: Actual over predicted decrease; NaN where there is none.
        linear_iterations: PCG iterations.
        step_accepted: Whether the values moved.
        reason: Why a step was rejected; empty where it was accepted.
        time_s: Seconds since the start of the iterations.
        reader: Reads the values, for `values`; None in the records of a result.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
        >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [1.5]]}
        >>> arrays = {"Length": [[0.0]], "measured": values}
        >>> solver.solve(arrays, on_iteration=lambda record: record.cost < 1.0).status.name
        'STOPPED'
    """

    iteration: int
    cost: float
    candidate_cost: float
    damping: float
    gain_ratio: float
    linear_iterations: int
    step_accepted: bool
    reason: str
    time_s: float
    reader: ValuesReader | None = field(default=None, repr=False, compare=False)

    def values(self) -> Mapping[str, Any]:
        """The values after this iteration, while `on_iteration` is called with this record.

        Returns:
            By node type copies of the kind and dtype given to `solve`; of blocked arrays rows.

        Raises:
            InputError: The callback has returned; records of a result have no values.
        """
        if self.reader is None:
            raise InputError(
                "a record has the values only in on_iteration: pass caspar.Recording() there to "
                "keep them"
            )
        return self.reader()

    def __str__(self) -> str:
        gain = "" if math.isnan(self.gain_ratio) else f", gain {self.gain_ratio:.2f}"
        verdict = "accepted" if self.step_accepted else f"rejected: {self.reason}"
        return (
            f"iteration {self.iteration:3d}: cost {cost_text(self.cost)}, damping "
            f"{self.damping:.1e}{gain}, linear iterations {self.linear_iterations}, "
            f"{time_text(self.time_s)}, {verdict}"
        )


@dataclass(frozen=True)
class ProblemSize:
    """Instance counts.

    Attributes:
        nodes: Instances of each node type that a factor with instances touches, by name.
        factors: Instances of each factor, by name, those of weight 0 left out.
        num_residuals: Rows of their residuals, without those of constraints.
        num_unknowns: Tangent dimensions of those nodes, without what is held.
        held: Components of tangents that are held, by node type; only of types of which something
            may be.
        left_out: Instances of weight 0, by the name of the factor, where there are any.
        bounded: Numbers that have a bound and are not held, by node type with bounds.
    """

    nodes: Mapping[str, int]
    factors: Mapping[str, int]
    num_residuals: int
    num_unknowns: int
    held: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    bounded: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, what in _NAMES_OF_SIZE.items():
            object.__setattr__(self, name, ByName(getattr(self, name), what))


_NAMES_OF_SIZE = {
    "nodes": "node type",
    "factors": "factor",
    "held": "node type with something held",
    "left_out": "factor with instances of weight 0",
    "bounded": "node type with bounds",
}
"""The meaning of the names in each mapping of a `ProblemSize`."""


def values_by_field(
    values: Mapping[str, Any], fields: Mapping[str, Mapping[str, range]], name: str
) -> dict[str, Any]:
    """Parts of the values of a node type, on the last axis, by the names of its fields."""
    if name not in values:
        raise unknown_name(name, "node type", values)
    places = fields.get(name, {})
    if len(places) == 0:
        raise InputError(
            f"node type {name} is no dataclass, so its fields have no names: use values[{name!r}]"
        )
    given = values[name]
    parts = [rows.to_rows() if hasattr(rows, "to_rows") else rows for rows in parts_of(given)]
    found: dict[str, Any] = {}
    for one, place in places.items():
        columns = place.start if len(place) == 1 else slice(place.start, place.stop)
        cut = [rows[..., columns] for rows in parts]
        found[one] = cut if isinstance(given, list) else cut[0]
    return found


NAMES_OF_RESULT = {
    "values": "node type",
    "fields": "dataclass",
    "costs": "factor",
    "losses": "factor with a loss",
    "num_beyond_scale": "factor with a loss",
    "active_bounds": "node type with bounds",
    "multipliers": "constraint",
}
"""The meaning of the names in each mapping of a `SolveResult`."""


@dataclass(frozen=True)
class Violation:
    """The constraint entry that is farthest from what must hold.

    Attributes:
        unscaled: The greatest distance of an entry, in its own unit.
        scaled: The greatest distance relative to the terms that an entry is made of, which
            `constraint_tolerance` is compared with.
        constraint: The constraint that has the greatest relative distance; empty if there are none.
        instance: Its instance.
    """

    unscaled: float
    scaled: float
    constraint: str
    instance: int


@dataclass(frozen=True, eq=False)
class SolveResult:
    """Values, costs and the course of a solve.

    Costs are 1/2 * the sum of squared residuals, or of w rho(|r|^2) where there are weights w and
    losses rho.

    Attributes:
        status: How it ended, with advice.
        initial_cost: Cost of the start values.
        final_cost: Cost of `values`.
        remaining_decrease: Decrease of the cost that a step with next to no damping still promises
            by the linear model, relative to `final_cost`. Small: a minimum to that many digits, as
            far as the linear model is right. NaN: not known, as after Ctrl-C.
        iterations: One record for each Levenberg-Marquardt iteration.
        values: For each node type an (n, storage_dim) array of the kind and dtype given; of one
            that was given in parts a list of these, each where it was.
        problem: Instance counts.
        backend: `cuda` or `cpu`.
        device: The device in words.
        precision: `mixed`, `float32` or `float64`.
        linear_solver: What solved the linear systems: `pcg`, `schur_pcg`, `schur_dense`, `dense`,
            `sparse` or `qr`: see `caspar.LinearSolverChoice`.
        compile_time_s: Seconds to trace, compile and load the kernels, those of `Solver` and
            `Solver.compile` in the first result; 0 where they were loaded.
        setup_time_s: Seconds to check, upload and sort the arrays and bind the kernels.
        solve_time_s: Seconds of the iterations.
        peak_memory_bytes: Bytes held on the device during the iterations: arena, tiles, matrix, and
            input that was given there. What a library that factorises keeps for itself, the factor,
            is not counted.
        remarks: What else the course of the solve shows, with advice.
        fields: Of node types that are dataclasses, where each field is in a row of `values`; see
            `values_of`.
        costs: The part of each factor in `final_cost`, by name, in float64.
        losses: The name of the loss of each factor that has one.
        num_beyond_scale: By factors with a loss: instances whose residual is longer than its scale.
        active_bounds: By node type with bounds an (n, storage_dim) array, as `values`: -1 for a
            number that ended at its lower bound, 1 for one at its upper bound, else 0.
        multipliers: By constraint (m, dim) on the host: the derivative of the least cost by the
            right-hand side of each entry of c = 0 or c >= 0. Of inequalities they are at least 0,
            and 0 if they do not hold anything back.
        violation: How well constraints are met at `values`; zeros if there are none.
        given: What `solve` was given, a `Given`, for all that is asked of a result later.
        too_narrow: Why a solve in mixed precision goes on in float64; empty in what is returned.
        standard_errors: Of a small problem, once `Solver.covariance` was asked for these values;
            the report shows them.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
        >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [1.5]]}
        >>> result = solver.solve({"Length": [[0.0]], "measured": values})
        >>> result.status.is_success, round(result.final_cost, 3)
        (True, 0.07)
        >>> print(result)
        status        CONVERGED_...
        cost          2.2300000 -> 0.070000000 (31.9 times lower)
        ...
    """

    status: SolveStatus
    initial_cost: float
    final_cost: float
    remaining_decrease: float
    iterations: tuple[IterationRecord, ...] = field(repr=False)
    values: Mapping[str, Any] = field(repr=False)
    problem: ProblemSize
    backend: str
    device: str
    precision: str
    linear_solver: str
    compile_time_s: float
    setup_time_s: float
    solve_time_s: float
    peak_memory_bytes: int
    remarks: tuple[str, ...] = ()
    fields: Mapping[str, Mapping[str, range]] = field(default_factory=dict, repr=False)
    costs: Mapping[str, float] = field(default_factory=dict)
    losses: Mapping[str, str] = field(default_factory=dict)
    num_beyond_scale: Mapping[str, int] = field(default_factory=dict)
    active_bounds: Mapping[str, NDArray[np.int8]] = field(default_factory=dict, repr=False)
    multipliers: Mapping[str, NDArray[np.float64]] = field(default_factory=dict, repr=False)
    violation: Violation = Violation(0.0, 0.0, "", 0)
    given: Any = field(default=None, repr=False)
    too_narrow: str = field(default="", repr=False)
    standard_errors: StandardErrors | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, what in NAMES_OF_RESULT.items():
            object.__setattr__(self, name, ByName(getattr(self, name), what))

    def residuals(self, factor: str) -> NDArray[np.float64]:
        """The residuals of a factor at `values`, without weight and loss.

        They are evaluated when they are first asked for, by the solver, from the arrays that
        `solve` was given, which must not have been written to since.

        Args:
            factor: Its name.

        Returns:
            (m, residual_dim), in the order of the factor's arrays, on the host.

        Raises:
            InputError: There is no such factor; the arrays have changed; or this result is a copy,
                which does not hold them.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Length(sf.V1): ...
            >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
            >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [1.5]]}
            >>> result = solver.solve({"Length": [[0.0]], "measured": values})
            >>> result.residuals("measured").round(3)
            array([[ 0.2],
                   [ 0.1],
                   [-0.3]])
        """
        return self._evaluation.residuals(factor)

    def weights(self, factor: str) -> NDArray[np.float64]:
        """The weight of each instance of a factor at `values`: w rho'(|r|^2).

        Args:
            factor: Its name.

        Returns:
            (m,), in the order of the factor's arrays, on the host.

        Raises:
            InputError: As `residuals`.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Length(sf.V1): ...
            >>> measured = caspar.factors.prior(Length, noise="unit", name="measured")
            >>> solver = caspar.Solver(measured.with_loss(caspar.loss.Huber))
            >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [9.0]]}
            >>> result = solver.solve({"Length": [[0.0]], "measured": values})
            >>> result.weights("measured").round(2)
            array([1.  , 1.  , 0.13])
        """
        return self._evaluation.weights(factor)

    @cached_property
    def _evaluation(self) -> "caspar.Evaluation":
        if self.given is None:
            raise InputError(
                "this result is a copy or comes from a pickle, which does not hold the arrays: use "
                "Solver.evaluate({**arrays, **result.values})"
            )
        arrays = self.given.arrays.with_values(self.values)
        found: caspar.Evaluation = self.given.evaluate(arrays)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the solver and the arrays."""
        kept = {name: value for name, value in self.__dict__.items() if name != "_evaluation"}
        return {**kept, "given": None}

    def values_of(self, name: str) -> dict[str, Any]:
        """The values of a node type by the names of its dataclass's fields.

        Args:
            name: Of the node type.

        Returns:
            By field, in order: (n,) of a scalar, (n, storage_dim) of anything else; parts of the
            arrays in `values`, of the same kind. A `BlockedArray` is read as rows. Where `values`
            has a list of parts, lists.

        Raises:
            InputError: There is no such node type, or it is no dataclass.

        Example:
            >>> from dataclasses import dataclass
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> @dataclass
            ... class Clock:
            ...     offset: sf.Scalar
            ...     drift: sf.Scalar
            >>> solver = caspar.Solver(caspar.factors.prior(Clock, noise="unit"))
            >>> arrays = {"Clock": [[0.0, 0.0]], "prior": {"value": [0], "expected": [[3.0, 0.5]]}}
            >>> solver.solve(arrays).values_of("Clock")["drift"].round(3)
            array([0.5])
        """
        return values_by_field(self.values, self.fields, name)

    def note_standard_errors(self, found: StandardErrors) -> None:
        """Keep standard errors for the report; those of the last covariance count."""
        object.__setattr__(self, "standard_errors", found)

    def __str__(self) -> str:
        """The report as plain text: status, costs, sizes, times, iterations."""
        return caspar.report.text_report(self)

    def _repr_html_(self) -> str:
        return caspar.report.html_report(self)

    def to_html(
        self, path: str | os.PathLike[str], recording: "caspar.Recording | None" = None
    ) -> None:
        """Write an interactive view of the solved scene or pose graph as one file for a browser.

        It shows node types that have a place: poses, dataclasses with a pose, and the points that
        share a factor with them, in the plane or in space; before and after, coloured by residual.
        `caspar.scene` and `caspar.view` have more choices. Docs: `docs/guide/views.md`.

        Args:
            path: The file to write. It needs no network.
            recording: The `on_iteration` of the solve: a slider shows its iterations.

        Raises:
            InputError: No node type has a place; or this result is a copy.
            MissingPackageError: plotly is not installed.
            OSError: The file cannot be written; the old one is unchanged.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Spot(sf.V2): ...
            >>> solver = caspar.Solver(caspar.factors.prior(Spot, noise="unit", name="seen"))
            >>> seen = {"value": [0, 1], "expected": [[1.0, 2.0], [3.0, 4.0]]}
            >>> result = solver.solve({"Spot": [[0.0, 0.0], [5.0, 5.0]], "seen": seen})
            >>> result.to_html("spots.html")
        """
        caspar.view.write_html(caspar.scene.scene_of_result(self, recording), path)

    def plot(self) -> "caspar.plot.Figure":
        """The cost over iterations and over time; a notebook shows it as an image.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Length(sf.V1): ...
            >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
            >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [1.5]]}
            >>> result = solver.solve({"Length": [[0.0]], "measured": values})
            >>> result.plot().savefig("convergence.png")
        """
        return caspar.plot.plot_convergence(self)
