"""`Solver`: factors in, solved arrays out."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from caspar.driver import TARGETS, solver_sources
from caspar.errors import FactorError
from caspar.frontend.factor import Factor
from caspar.frontend.precision import TYPES
from caspar.frontend.trace import NodeType, TracedFactor, trace
from caspar.options import BackendChoice, Precision, SolveOptions, choice
from caspar.runtime.arrays import Moved, give_back
from caspar.runtime.backend import Backend
from caspar.runtime.select import select_backend
from caspar.solver.array_reader import ArrayReader
from caspar.solver.kernel_library import KernelLibrary
from caspar.solver.levenberg import minimize
from caspar.solver.normal_equations import NormalEquations
from caspar.solver.plan import make_plan
from caspar.solver.problem import Problem, check_problem
from caspar.solver.result import IterationRecord, ProblemSize, SolveResult

LINEAR_SOLVER = "pcg"
"""Conjugate gradients on the full normal equations, block-Jacobi preconditioned."""


class Solver:
    """Nonlinear least squares over a fixed set of factor types.

    Kernels are generated for the factor types; instance counts may differ from solve to solve.

    Args:
        factors: Functions decorated with `caspar.factor`; a single one needs no list.
        backend: `cuda`, `cpu`, or `auto`: CUDA where a device answers. See `backend.name`.
        precision: `mixed` (float32 storage and Jacobians, float64 sums), `float64` or `float32`.

    Raises:
        FactorError: A factor cannot be compiled.
        BackendError: The backend is not usable here.
        OptionError: An unknown backend or precision.
    """

    def __init__(
        self,
        factors: Sequence[Factor] | Factor,
        *,
        backend: str | BackendChoice = "auto",
        precision: str | Precision = "mixed",
    ) -> None:
        self.precision: Precision = choice(Precision, "precision", precision)
        start = time.perf_counter()
        self._types = TYPES[self.precision]
        self._factors = _trace_all(factors)
        self._nodes = _node_types(self._factors)
        self.backend: Backend = select_backend(choice(BackendChoice, "backend", backend))
        self._library: KernelLibrary | None = None
        self._compile_time_s = time.perf_counter() - start

    def compile(self) -> None:
        """Generate and load the kernels now rather than in the first solve."""
        self._kernels()

    def _timed_kernels(self) -> tuple[KernelLibrary, float]:
        """The kernels, and the seconds of tracing and compiling not yet reported."""
        library = self._kernels()
        time_s, self._compile_time_s = self._compile_time_s, 0.0
        return library, time_s

    def _kernels(self) -> KernelLibrary:
        if self._library is None:
            start = time.perf_counter()
            target = TARGETS[self.backend.name]
            sources = solver_sources(self._factors, self._nodes, self.precision, target)
            owners = [factor.name for factor in self._factors]
            owners += [node.name for node in self._nodes]
            self._library = KernelLibrary(self.backend, target, sources, owners)
            self._compile_time_s += time.perf_counter() - start
        return self._library

    def solve(
        self,
        arrays: Mapping[str, Any],
        *,
        on_iteration: Callable[[IterationRecord], object] | None = None,
        **options: Any,
    ) -> SolveResult:
        """Minimise 1/2 * the sum of squared residuals.

        Args:
            arrays: One nested mapping. A node type's class name -> its (n, storage_dim) start
                values in SymForce's storage order. A factor's name -> its arguments: (m,) integer
                indices for shared nodes, (m, dim) values for sequential constants, (dim,) for
                unique ones, {"values": (k, dim), "index": (m,)} for indexed ones; nothing for
                unique nodes and pairs. NumPy, CuPy or DLPack arrays, all on one device; they are
                never written. Values may also be `BlockedArray`s, indices `SharedIndices`.
            on_iteration: Called with each `IterationRecord`; a true return value stops the solve.
            **options: Fields of `caspar.SolveOptions`.

        Returns:
            Values of the kind and dtype given (of blocked arrays rows, NumPy or CuPy), costs, and
            the course of the solve. One that does not converge says so in `status`, not by raising.

        Raises:
            InputError: Arrays that do not fit the factors.
            OptionError: An unknown option, or a value out of range.
            OutOfMemoryError: The plan does not fit the device.
        """
        checked = SolveOptions.from_mapping(options)
        start = time.perf_counter()
        with self.backend.scope():
            reader = ArrayReader(self.backend, self._types.storage.value, checked.check)
            problem = check_problem(arrays, self._factors, self._nodes, self.backend, reader)
            check_time_s = time.perf_counter() - start
            library, compile_time_s = self._timed_kernels()
            start = time.perf_counter()
            plan = make_plan(library, self._types, self._factors, self._nodes, problem)
            system = NormalEquations(plan, problem)
            setup_time_s = check_time_s + time.perf_counter() - start
            start = time.perf_counter()
            course = minimize(system, checked, on_iteration)
            solve_time_s = time.perf_counter() - start
            values = self._returned_values(system, problem)
        return SolveResult(
            status=course.status,
            initial_cost=course.initial_cost,
            final_cost=course.final_cost,
            iterations=course.records,
            values=values,
            problem=self._size(problem),
            backend=self.backend.name,
            device=self.backend.device,
            precision=self.precision.value,
            linear_solver=LINEAR_SOLVER,
            compile_time_s=compile_time_s,
            setup_time_s=setup_time_s,
            solve_time_s=solve_time_s,
            peak_memory_bytes=plan.num_bytes + problem.num_bytes,
            remarks=course.remarks,
        )

    def _returned_values(self, system: NormalEquations, problem: Problem) -> dict[str, Any]:
        """Values of the kind, place and floating type that was given."""
        returned = {}
        for name, rows in system.values().items():
            returned[name] = give_back(
                Moved(problem.values[name], rows),
                problem.given[name],
                problem.dtypes[name],
                self.backend.to_host,
                self.backend.upload,
            )
        return returned

    def _size(self, problem: Problem) -> ProblemSize:
        nodes = {node.name: int(problem.values[node.name].shape[0]) for node in self._nodes}
        counts = {factor.name: problem.factors[factor.name].count for factor in self._factors}
        rows = sum(len(factor.residual) * counts[factor.name] for factor in self._factors)
        unknowns = sum(node.tangent_dim * nodes[node.name] for node in self._nodes)
        return ProblemSize(nodes, counts, rows, unknowns)


def _trace_all(factors: Sequence[Factor] | Factor) -> tuple[TracedFactor, ...]:
    if isinstance(factors, Factor):
        factors = [factors]
    if len(factors) == 0:
        raise FactorError("Solver needs at least one factor")
    for factor in factors:
        if not isinstance(factor, Factor):
            raise FactorError(
                f"Solver needs factors, got {factor!r}: decorate the function with caspar.factor"
            )
    names = [factor.name for factor in factors]
    for name in names:
        if names.count(name) > 1:
            raise FactorError(f"two factors are named {name!r}; arrays are passed by name")
    return tuple(trace(factor) for factor in factors)


def _node_types(factors: Sequence[TracedFactor]) -> tuple[NodeType, ...]:
    """The node types of all factors, in order of appearance."""
    found: dict[str, NodeType] = {}
    names = {factor.name for factor in factors}
    for factor in factors:
        for argument in factor.nodes:
            node = argument.node
            assert node is not None
            known = found.setdefault(node.name, node)
            if known.python_type is not node.python_type:
                raise FactorError(
                    f"factor {factor.name}, argument {argument.source}: two node types are named "
                    f"{node.name!r}; arrays are passed by name"
                )
            if node.name in names:
                raise FactorError(
                    f"{node.name!r} names a factor and a node type; arrays are passed by name"
                )
    return tuple(found.values())
