"""Costs, residuals and weights at some values, without a solve.

Input: the system of a problem, just scored. Output: an `Evaluation`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from caspar.equations.factor_kernels import residual_kernel
from caspar.equations.parts import FactorPart
from caspar.frontend.factors.own_unknowns import with_rows
from caspar.frontend.factors.terms import term_names
from caspar.frontend.factors.trace import WEIGHT, TracedFactor
from caspar.frontend.precision import TYPES
from caspar.memory.array import Array
from caspar.options import Precision
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Member
from caspar.solver.input.parted_array import on_host
from caspar.solver.input.problem import Problem
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.result.by_name import ByName, unknown_name

if TYPE_CHECKING:
    from caspar.solver.normal.instance_kernels import InstanceKernels

Floats = NDArray[np.float64]

CELL_ROUNDING = 1e-6
"""Widths of a cell by which a place may be outside of it without a remark."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The costs, residuals and weights of factors at some values.

    Attributes:
        costs: The cost of each factor, by name: 1/2 * the sum of w rho(|r|^2) over its instances.
        losses: The name of the loss of each factor that has one.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> measured = caspar.factors.prior(Length, noise="unit", name="measured")
        >>> solver = caspar.Solver(measured.with_loss(caspar.loss.Huber))
        >>> values = {"value": [0, 0], "expected": [[1.0], [9.0]]}
        >>> found = solver.evaluate({"Length": [[1.0]], "measured": values})
        >>> found.costs["measured"], found.weights("measured")
        (7.5, array([1.   , 0.125]))
    """

    costs: Mapping[str, float]
    losses: Mapping[str, str]
    _residuals: Mapping[str, Floats] = field(repr=False)
    _weights: Mapping[str, Floats] = field(repr=False)
    _unknowns: Mapping[str, Mapping[str, Floats]] = field(repr=False)
    _coordinates: Mapping[str, Mapping[str, Floats]] = field(repr=False)
    _refused: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "costs", ByName(self.costs, "factor"))
        object.__setattr__(self, "losses", ByName(self.losses, "factor with a loss"))

    @property
    def cost(self) -> float:
        """Cost of all factors."""
        return sum(self.costs.values())

    def residuals(self, factor: str) -> Floats:
        """The residuals of a factor, without weight and loss.

        Args:
            factor: Its name.

        Returns:
            (m, residual_dim), in the order of its arrays, on the host. They are computed in the
            type of values: in float64, also in `mixed` precision.

        Raises:
            InputError: There is no such factor.
        """
        return self._of(self._residuals, factor)

    def weights(self, factor: str) -> Floats:
        """Return the weight of each instance of a factor: w rho'(|r|^2).

        1 without a weight and a loss; near 0 for an instance that a loss takes for an outlier.

        Args:
            factor: Its name.

        Returns:
            (m,), in the order of its arrays, on the host.

        Raises:
            InputError: There is no such factor.
        """
        return self._of(self._weights, factor)

    def unknowns(self, factor: str, argument: str) -> Floats:
        """Return the unknowns that each instance owns: the best ones for the values of all others.

        Args:
            factor: Its name.
            argument: An argument that is marked `caspar.TunableSequential`.

        Returns:
            (m, storage_dim), in the order of the factor's arrays, on the host, in float64.

        Raises:
            InputError: There is no such factor or argument.

        Example:
            >>> from typing import Annotated
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Spot(sf.V2): ...
            >>> @caspar.factor
            ... def sight(spot: Annotated[Spot, caspar.TunableUnique],
            ...           ray: Annotated[sf.V2, caspar.ConstSequential],
            ...           depth: Annotated[sf.Scalar, caspar.TunableSequential]) -> sf.V2:
            ...     return spot - depth * ray
            >>> arrays = {"Spot": [[2.0, 2.0]], "sight": {"ray": [[1.0, 1.0]]}}
            >>> caspar.Solver(sight).evaluate(arrays).unknowns("sight", "depth").round(3)
            array([[2.]])
        """
        return self._by_argument(self._unknowns, factor, argument, "TunableSequential argument")

    def coordinates(self, factor: str, argument: str) -> Floats:
        """Return where each instance looks a table of unknowns up, for `caspar.grid_patch`.

        Args:
            factor: Its name.
            argument: A `caspar.Grid` that is marked `caspar.TunableShared`.

        Returns:
            (m, dims), in the order of the factor's arrays, on the host, in float64. If the factor
            looks it up at several places: (m, places, dims).

        Raises:
            InputError: There is no such factor or argument.

        Example:
            >>> from typing import Annotated
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Curve(caspar.Grid, dims=1): ...
            >>> class Shift(sf.V1): ...
            >>> @caspar.factor
            ... def sample(curve: Annotated[Curve, caspar.TunableShared],
            ...            shift: Annotated[Shift, caspar.TunableUnique],
            ...            x: Annotated[sf.Scalar, caspar.ConstSequential]) -> sf.V1:
            ...     return sf.V1(curve.at(x + shift[0]))
            >>> sampled = {"curve": caspar.grid_patch(Curve, (3,), [0.5, 1.0]), "x": [0.5, 1.0]}
            >>> arrays = {"Curve": [[0.0]] * 3, "Shift": [[0.75]], "sample": sampled}
            >>> caspar.Solver(sample).evaluate(arrays).coordinates("sample", "curve").ravel()
            array([1.25, 1.75])
        """
        return self._by_argument(self._coordinates, factor, argument, "table of unknowns")

    def refused(self, factor: str) -> NDArray[np.bool_]:
        """Return which instances are left out: they look up outside of a table that refuses that.

        Args:
            factor: Its name. Tables of a class with `border="refuse"` count.

        Returns:
            (m,), in the order of its arrays, on the host.

        Raises:
            InputError: There is no such factor.

        Example:
            >>> from typing import Annotated
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Place(sf.V1): ...
            >>> class Depth(caspar.Grid, dims=1, border="refuse"): ...
            >>> @caspar.factor
            ... def sounding(place: Annotated[Place, caspar.TunableUnique],
            ...              offset: Annotated[sf.Scalar, caspar.ConstSequential],
            ...              depth: Annotated[Depth, caspar.ConstUnique]) -> sf.V1:
            ...     return sf.V1(depth.at(place[0] + offset) - 1)
            >>> given = {"offset": [0.0, 2.0], "depth": [0.0, 2.0]}
            >>> arrays = {"Place": [[0.5]], "sounding": given}
            >>> caspar.Solver(sounding).evaluate(arrays).refused("sounding")
            array([False,  True])
        """
        if factor not in self._residuals:
            raise unknown_name(factor, "factor", self._residuals)
        none = np.zeros(len(self._residuals[factor]), np.bool_)
        return self._refused.get(factor, none).copy()

    def _by_argument(
        self, arrays: Mapping[str, Mapping[str, Floats]], factor: str, argument: str, what: str
    ) -> Floats:
        if factor not in self._residuals:
            raise unknown_name(factor, "factor", self._residuals)
        found = arrays.get(factor, {})
        if argument not in found:
            raise unknown_name(argument, f"{what} of factor {factor}", found)
        return found[argument].copy()

    def _of(self, arrays: Mapping[str, Floats], factor: str) -> Floats:
        if factor not in arrays:
            raise unknown_name(factor, "factor", arrays)
        return arrays[factor].copy()


def loss_names(factors: Sequence[TracedFactor]) -> dict[str, str]:
    """Return the name of each loss, by factors that have one."""
    return {one.name: one.loss.name for one in factors if one.loss is not None}


def final_costs(
    factors: Sequence[TracedFactor],
    active: Sequence[TracedFactor],
    final_cost: float,
    system: NormalEquations,
) -> tuple[dict[str, float], dict[str, int]]:
    """Return how a solve ended, by factor.

    `system`: Of those that take part; it is scored where that is needed. Returns the cost of each
    factor; and of each one with a loss how many residuals are longer than its scale.
    """
    costs = {factor.name: 0.0 for factor in factors}
    if len(active) == 1 and active[0].loss is None:
        return {**costs, active[0].name: final_cost}, {}
    system.score()
    return {**costs, **system.findings.factor_costs()}, system.findings.num_beyond_scale()


class Residuals:
    """The residuals of all instances in float64, whatever type a solve keeps them in."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._bare: dict[str, TracedFactor] = {}

    def _without_terms(self, factor: TracedFactor) -> TracedFactor:
        """A factor without loss and weights; kept, as its key takes milliseconds."""
        bare = self._bare.get(factor.key)
        if bare is None:
            bare = self._bare[factor.key] = replace(factor, loss=None, terms=())
        return bare

    @cached_property
    def _kernels(self) -> "InstanceKernels":
        from caspar.solver.normal.instance_kernels import InstanceKernels

        makers = {"residuals": partial(residual_kernel, types=TYPES[Precision.FLOAT64])}
        return InstanceKernels(self.backend, "residuals", makers)

    def of(self, factors: Sequence[TracedFactor], problem: Problem) -> dict[str, Floats]:
        """Return (m, residual_dim) residuals by factor, on the host."""
        from caspar.solver.normal.instance_kernels import InstanceInputs, Packed

        bare = [self._without_terms(factor) for factor in factors]
        self._kernels.load(bare, ["residuals"])
        if problem.is_parted:
            problem = problem.joined(cast(Member, self.backend))
        backend = self.backend
        values = {name: Packed.of(backend, rows) for name, rows in problem.values.items()}
        found = {}
        for factor in bare:
            dims = {FactorPart.RESIDUAL.text: len(factor.residual)}
            inputs = InstanceInputs(backend, factor, problem, values)
            launch, outputs = inputs.bind(self._kernels.of(factor, "residuals"), dims)
            backend.runner([launch])()
            found[factor.name] = np.array(backend.to_host(outputs[FactorPart.RESIDUAL.text]))
        return found


def evaluation(
    factors: Sequence[TracedFactor],
    problem: Problem,
    system: NormalEquations,
    backend: Backend,
    exact: Residuals,
) -> Evaluation:
    """Score the values of a system, and read what that leaves.

    All devices that share the problem call it; only on the first one are there residuals.
    """
    system.score()
    costs = {factor.name: 0.0 for factor in factors} | system.findings.factor_costs()
    present = [factor for factor in factors if problem.factors[factor.name].count > 0]
    found: dict[str, Floats] = {}
    if not system.is_mixed:
        found = {one.name: system.findings.residual_rows(one.name) for one in present}
    if not system.communicator.is_first:
        return Evaluation(costs, {}, {}, {}, {}, {})
    if system.is_mixed:
        found = exact.of(present, problem)
    residuals, weights = {}, {}
    for factor in factors:
        name = factor.name
        rows = found.get(name, np.empty((0, len(factor.residual))))
        residuals[name] = rows
        constants = problem.factors[name].constants
        terms = {
            term: np.asarray(on_host(backend, constants[term].rows), np.float64)[:, 0]
            for term in term_names(factor)
            if term in constants
        }
        weights[name] = _weights(factor, terms, rows)
    unknowns = _by_argument([(one, one.own) for one in present], problem, exact)
    places = _by_argument([(one, one.looked_up) for one in present], problem, exact)
    coordinates = {
        factor.name: {
            source: _of_places(rows, factor.patches[source].dims)
            for source, rows in places[factor.name].items()
        }
        for factor in present
        if factor.name in places
    }
    refused = refused_instances(present, problem, exact)
    return Evaluation(
        costs, loss_names(factors), residuals, weights, unknowns, coordinates, refused
    )


def _by_argument(
    named: Sequence[tuple[TracedFactor, Sequence[tuple[str, tuple[Any, ...]]]]],
    problem: Problem,
    exact: Residuals,
) -> dict[str, dict[str, Floats]]:
    """Expressions of each instance, by factor and argument: (m, expressions)."""
    owners = [with_rows(factor, rows) for factor, rows in named if len(rows) > 0]
    if len(owners) == 0:
        return {}
    found: dict[str, dict[str, Floats]] = {}
    values = exact.of(owners, problem)
    for factor, rows in named:
        first = 0
        for source, scalars in rows:
            part = values[factor.name][:, first : first + len(scalars)]
            found.setdefault(factor.name, {})[source] = part
            first += len(scalars)
    return found


def refused_instances(
    factors: Sequence[TracedFactor], problem: Problem, exact: Residuals
) -> dict[str, NDArray[np.bool_]]:
    """(m,) instances that are left out, by factors of which some may be."""
    found = _by_argument(
        [(one, [("", one.inside)]) for one in factors if one.inside], problem, exact
    )
    return {name: np.any(rows[""] < 0.5, axis=1).astype(bool) for name, rows in found.items()}


def remarks_on_lookups(
    factors: Sequence[TracedFactor], problem: Problem, values: Mapping[str, Array], exact: Residuals
) -> tuple[str, ...]:
    """Remarks on instances that left the cells of their patches, or are left out."""
    present = [one for one in factors if problem.factors[one.name].count > 0]
    moved = replace(problem, values={**problem.values, **values})
    return (
        *_remarks_on_patches([one for one in present if one.patches], moved, exact),
        *_remarks_on_refused([one for one in present if one.inside], moved, exact),
    )


def _remarks_on_refused(
    factors: Sequence[TracedFactor], problem: Problem, exact: Residuals
) -> tuple[str, ...]:
    refused = refused_instances(factors, problem, exact)
    counts = {name: int(one.sum()) for name, one in refused.items()}
    return tuple(
        f"factor {name}: {count:,} of {problem.factors[name].count:,} instances look up outside of "
        "their table at these values and are left out. They cost nothing, so a lower cost is no "
        "better fit if there are more of them; Solver.evaluate(...).refused has which"
        for name, count in counts.items()
        if count > 0
    )


def _of_places(rows: Floats, dims: int) -> Floats:
    return rows if rows.shape[1] == dims else rows.reshape(len(rows), -1, dims)


def _remarks_on_patches(
    factors: Sequence[TracedFactor], problem: Problem, exact: Residuals
) -> tuple[str, ...]:
    if len(factors) == 0:
        return ()
    from caspar.frontend.patches import beyond_cells

    remarks = []
    found = _by_argument([(one, beyond_cells(one)) for one in factors], problem, exact)
    for factor in factors:
        counts = np.ones(len(next(iter(found[factor.name].values()))), bool)
        weights = problem.factors[factor.name].constants.get(WEIGHT)
        if weights is not None:
            counts = np.asarray(on_host(exact.backend, weights.rows))[:, 0] > 0.0
        for source, rows in found[factor.name].items():
            beyond = rows[:, 0][counts & (rows[:, 0] > CELL_ROUNDING)]
            if len(beyond) > 0:
                remarks.append(
                    f"factor {factor.name}, argument {source}: {len(beyond):,} of {len(rows):,} "
                    "instances left the cell of the table that their patch was chosen for, by up "
                    f"to {beyond.max():.2g} of its width; there the cell's polynomial goes on. "
                    "Choose patches anew with caspar.grid_patch and the coordinates that "
                    "Solver.evaluate finds, and solve again"
                )
    return tuple(remarks)


def _weights(factor: TracedFactor, terms: Mapping[str, Floats], residuals: Floats) -> Floats:
    """w rho'(|r|^2) of each instance: (m,)."""
    weights = np.ones(len(residuals))
    if factor.loss is not None and len(residuals) > 0:
        values = {one.name: terms[one.source] for one in factor.loss.parameters}
        weights = factor.loss.on_numbers((residuals**2).sum(axis=1), values)[1]
    if WEIGHT in terms:
        # of one that does not count, whatever the residual is
        weights = np.where(terms[WEIGHT] > 0.0, terms[WEIGHT] * weights, 0.0)
    return weights
