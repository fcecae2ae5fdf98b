"""Problems that are too large for one kernel, solved one after the other by a `Solver`.

Input: checked arrays. Output: the arrays of a `BatchResult`, as from `run`. Each solve has the
damping, acceptance and stopping of its own problem. Cost tier: what a solve costs, once for each
problem; the solver plans again if counts or indices differ from those of the problem before.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from caspar.batch.generate import parameters as names
from caspar.batch.generate.shape import Instances, ProblemFactor, ProblemNodes
from caspar.batch.gradients.flat import as_one_problem
from caspar.batch.input import Batch
from caspar.batch.result import STATUSES
from caspar.batch.run import BatchRun, found_arrays
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.trace import Argument, ArgumentKind
from caspar.frontend.symbolic.field_types import tangent_pieces
from caspar.options import Precision
from caspar.runtime.backend import Backend
from caspar.solver.input.problem import FactorArrays
from caspar.solver.result.result import SolveResult, SolveStatus
from caspar.solver.solver import Solver


class SingleSolver:
    """A solver of single problems, made when it is first needed."""

    def __init__(self, factors: Sequence[Factor], backend: Backend, precision: Precision) -> None:
        self._made: Solver | None = None
        self._factors, self._backend, self._precision = factors, backend, precision

    def runs(
        self, batch: Batch, bounds: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> "SingleRuns":
        """The problems of a batch; see there."""
        if self._made is None:
            self._made = Solver(self._factors, backend=self._backend, precision=self._precision)
        return SingleRuns(self._made, batch, bounds, options)


class SingleRuns:
    """The problems of a batch, each a solve, with bounds and options as the user passed them.

    Attributes:
        compile_time_s: Seconds of tracing and compiling in the solves.
    """

    def __init__(
        self,
        solver: Solver,
        batch: Batch,
        bounds: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        self.compile_time_s = 0.0
        self._solver, self._batch, self._options = solver, batch, options
        self._backend: Backend = solver.backend
        self._bounds = {} if bounds is None else bounds
        count = batch.num_problems
        self._num_residuals = self._host(batch.num_residuals)
        self._starts = {name: self._host(rows) for name, rows in batch.starts.items()}
        self._ends = {name: rows.copy() for name, rows in self._starts.items()}
        self._costs = np.zeros((2, count))
        self._iterations = np.zeros(count, np.int32)
        self._status = np.full(count, STATUSES.index(SolveStatus.NO_RESIDUALS), np.int32)
        flat = as_one_problem(batch, self._backend)
        self._factors = [
            _FactorRows(batch, number, one, flat.factors[one.factor.name], self._host)
            for number, one in enumerate(batch.shape.factors)
        ]

    def launch(self) -> None:
        """Solve all problems that have residuals."""
        for problem in np.flatnonzero(self._num_residuals).tolist():
            self._keep(problem, self._solved(problem))

    def found(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `BatchResult`, as the kind of arrays that were given."""
        upload = self._backend.upload
        nodes = [one.node.name for one in self._batch.shape.nodes]
        outputs = {
            names.INITIAL_COST: self._costs[0],
            names.FINAL_COST: self._costs[1],
            names.ITERATIONS: self._iterations,
            names.STATUS: self._status,
        }
        return found_arrays(
            self._backend,
            self._batch,
            arrays,
            [upload(self._starts[name]) for name in nodes],
            [upload(self._ends[name]) for name in nodes],
            {name: upload(array) for name, array in outputs.items()},
        )

    def _host(self, array: Any) -> Any:
        return array if isinstance(array, np.ndarray) else self._backend.to_host(array)

    def _rows(self, nodes: ProblemNodes, problem: int) -> slice:
        return slice(problem * nodes.count, (problem + 1) * nodes.count)

    def _solved(self, problem: int) -> SolveResult:
        """The solve of one problem."""
        arrays: dict[str, Any] = {}
        fixed, bounds = {}, {}
        for nodes in self._batch.shape.nodes:
            name, rows = nodes.node.name, self._rows(nodes, problem)
            arrays[name] = self._starts[name][rows]
            if name in self._batch.free:
                fixed[name] = self._host(self._batch.free[name])[rows] == 0.0
            if nodes.is_bounded:
                limits = self._batch.bounds[name]
                both = limits.lower_given[rows], limits.upper_given[rows]
                own = range(nodes.node.tangent_dim)
                bounds[name] = _limits(nodes.node.python_type, self._bounds[name], own, *both)
        arrays |= {one.name: one.of(problem) for one in self._factors}
        # checked with the batch, but for values that are not finite, which have a status
        options = {**self._options, "check": False}
        return self._solver.solve(arrays, fixed=fixed, bounds=bounds, verbose=False, **options)

    def _keep(self, problem: int, result: SolveResult) -> None:
        self.compile_time_s += result.compile_time_s
        self._status[problem] = STATUSES.index(result.status)
        self._costs[:, problem] = result.initial_cost, result.final_cost
        self._iterations[problem] = len(result.iterations)
        for nodes in self._batch.shape.nodes:
            name = nodes.node.name
            self._ends[name][self._rows(nodes, problem)] = result.values[name]


Runs = BatchRun | SingleRuns
"""A solve of the problems of a batch."""


class _FactorRows:
    """The arrays of one factor, by problem, as `Solver.solve` takes them."""

    def __init__(
        self,
        batch: Batch,
        number: int,
        one: ProblemFactor,
        arrays: FactorArrays,
        host: Callable[[Any], Any],
    ) -> None:
        self.name = one.factor.name
        self._factor = one.factor
        self._counts = {nodes.node.name: nodes.count for nodes in batch.shape.nodes}
        if one.instances is Instances.RAGGED:
            self._starts = host(batch.arrays[names.factor_name(number)][0])
        else:
            length = batch.instances.get(number, 1)
            self._starts = np.arange(batch.num_problems + 1) * length
        self._nodes = {name: host(index) for name, index in arrays.nodes.items()}
        self._constants = {
            source: (host(constant.rows), host(constant.index))
            for source, constant in arrays.constants.items()
        }

    def of(self, problem: int) -> dict[str, Any]:
        """The arguments of one problem."""
        own = slice(int(self._starts[problem]), int(self._starts[problem + 1]))
        found = {}
        for one in self._factor.inputs:
            if one.node is None:
                found[one.source] = self._constant(one, own)
            elif one.kind is ArgumentKind.NODE_SHARED:
                first = problem * self._counts[one.node.name]
                found[one.source] = self._nodes[one.name][own] - first
        return found

    def _constant(self, one: Argument, own: slice) -> Any:
        rows, index = self._constants[one.source]
        if one.table is not None:
            # without an instance any will do
            own_starts = index[own] if own.start < own.stop else np.zeros(1, np.int32)
            starts, number = np.unique(own_starts, return_inverse=True)
            tables = one.table.unpacked(one.table.split(rows[:, 0], starts))
            if one.kind is ArgumentKind.CONST_UNIQUE:
                return tables[0]
            return {"values": tables, "index": number[: own.stop - own.start]}
        is_term = one in self._factor.terms
        if one.kind is ArgumentKind.CONST_UNIQUE:
            # without an instance any will do
            row = int(index[own][0]) if own.start < own.stop else 0
            return float(rows[row, 0]) if is_term else rows[row]
        values = rows[index[own]]
        if one.kind is ArgumentKind.CONST_INDEXED:
            return {"values": values, "index": np.arange(len(values), dtype=np.int32)}
        return values[:, 0] if is_term else values


def _limits(declared: Any, given: Any, place: range, lower: Any, upper: Any) -> Any:
    """The (n, tangent_dim) bounds of some nodes in the form in which the user gave those of all.

    `given` is that form for a declared type, whose place is in the tangent of the node.
    """
    if isinstance(given, Mapping):
        fields = tangent_pieces(declared)
        found = {}
        for name, inner in given.items():
            kind, own = fields[name]
            within = range(place.start + own.start, place.start + own.stop)
            found[name] = _limits(kind, inner, within, lower, upper)
        return found
    columns = slice(place.start, place.stop)
    return lower[:, columns], upper[:, columns]
