"""`Solver`: factors in, solved arrays out."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeVar

from caspar.equations.solver_form import DEFAULT_INNER_ITERATIONS
from caspar.errors import FactorError
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.frontend.precision import TYPES
from caspar.options import (
    MAX_INNER_ITERATIONS,
    BackendChoice,
    JacobianChoice,
    LinearSolverChoice,
    Precision,
    PreconditionerChoice,
    SolveOptions,
    check_callback,
    checked_count,
    checked_flag,
    choice,
)
from caspar.runtime.arrays import HOST, Moved, give_back, location
from caspar.runtime.backend import Backend
from caspar.runtime.select import select_backend
from caspar.solver.active import Active, Preparations
from caspar.solver.choice.form import Recipe, usual_precision
from caspar.solver.input.array_reader import ArrayReader
from caspar.solver.input.problem import Problem, check_problem
from caspar.solver.iterate.interrupts import Callback, PassedOn, passing_on
from caspar.solver.iterate.levenberg import minimize
from caspar.solver.iterate.normal_equations import NormalEquations
from caspar.solver.result.result import IterationRecord, ProblemSize, SolveResult
from caspar.tracing import traced_factor

_Kind = TypeVar("_Kind", bound="Solver")


class Solver:
    """Nonlinear least squares over a fixed set of factor types.

    Kernels are generated for the factor types; instance counts may differ from solve to solve. A
    solve with the counts and indices of the one before takes over its plan: memory, order and
    captured launches; `release` lets go of them.

    Pickles and copies hold factors, by module and name, and the arguments below as they were given:
    what is `auto` is chosen, and everything compiled, where they arrive. No plan comes with them.

    Args:
        factors: Functions decorated with `caspar.factor`; a single one needs no list.
        backend: `cuda`, `cpu`, or `auto`: CUDA where a device answers. See `backend.name`.
        precision: `mixed` (float32 storage and Jacobians, float64 sums), `float64` or `float32`;
            `auto`: float64 where no node type can be eliminated, or a factor couples two nodes of a
            type that remains, else mixed. See `precision`, and the result's, where some factors
            have no instances.
        linear_solver: `auto`, `pcg`, `schur_pcg`, `schur_dense` or `sparse`: see
            `caspar.LinearSolverChoice`.
        preconditioner: `auto`, `block_jacobi` or `two_level`: see
            `caspar.PreconditionerChoice`.
        jacobian: `auto`, `stored`, `float16` or `recompute`: see `caspar.JacobianChoice`.
        deterministic: Equal input gives equal bits, on CUDA at a price: sums over shared nodes are
            taken in a fixed order. On the CPU they always are.
        inner_iterations: Steps that eliminated nodes take by themselves, the others held, after
            each step of all, up to 32; 0 for none. Only where one factor touches them.

    Raises:
        FactorError: A factor cannot be compiled, or the linear solver does not suit them.
        BackendError: The backend is not usable here.
        OptionError: An unknown choice.
    """

    def __init__(
        self,
        factors: Sequence[Factor] | Factor,
        *,
        backend: str | BackendChoice = "auto",
        precision: str | Precision = "auto",
        linear_solver: str | LinearSolverChoice = "auto",
        preconditioner: str | PreconditionerChoice = "auto",
        jacobian: str | JacobianChoice = "auto",
        deterministic: bool = False,
        inner_iterations: int = DEFAULT_INNER_ITERATIONS,
    ) -> None:
        self._choices = {
            "backend": backend,
            "precision": precision,
            "linear_solver": linear_solver,
            "preconditioner": preconditioner,
            "jacobian": jacobian,
            "deterministic": deterministic,
            "inner_iterations": inner_iterations,
        }
        wanted = _wanted_precision(precision)
        linear: LinearSolverChoice = choice(LinearSolverChoice, "linear_solver", linear_solver)
        stored: JacobianChoice = choice(JacobianChoice, "jacobian", jacobian)
        start = time.perf_counter()
        self._given = _checked_factors(factors)
        self._factors = tuple(traced_factor(factor) for factor in self._given)
        self._nodes = _node_types(self._factors)
        self.precision: Precision = (
            usual_precision(self._factors, self._nodes) if wanted is None else wanted
        )
        self.backend: Backend = select_backend(choice(BackendChoice, "backend", backend))
        recipe = Recipe(
            self._factors,
            self._nodes,
            self.precision,
            linear,
            choice(PreconditionerChoice, "preconditioner", preconditioner),
            stored,
            checked_flag("deterministic", deterministic),
            checked_count("inner_iterations", inner_iterations, 0, MAX_INNER_ITERATIONS),
        )
        self._preparations = Preparations(self.backend, recipe, own_precision=wanted is None)
        self._preparations.add_backlog(time.perf_counter() - start)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickled as its factors and choices; traced and compiled where it arrives.

        Raises:
            pickle.PicklingError: A factor is not found by its module and name.
        """
        return _remade, (type(self), self._given, self._choices)

    def __copy__(self: _Kind) -> _Kind:
        """A solver of the same factors and choices, with memory of its own."""
        return _remade(type(self), self._given, self._choices)

    def __deepcopy__(self: _Kind, memo: object) -> _Kind:
        """The same."""
        return self.__copy__()

    def __repr__(self) -> str:
        """Factors, node types, where it runs and in which precision."""
        factors = ", ".join(factor.name for factor in self._factors)
        nodes = ", ".join(node.name for node in self._nodes)
        return (
            f"Solver(factors: {factors}; node types: {nodes}; {self.backend.name}, "
            f"{self.precision.value} precision)"
        )

    def compile(self, arrays: Mapping[str, Any] | None = None) -> None:
        """Generate and load the kernels now rather than in the first solve.

        Without arrays, what depends on the structure follows in the first solve: sums, loops, a
        matrix that `auto` chooses. Some problems have other kernels: on CUDA those with more than
        65,536 nodes of a type that stays, or with few that many factors share; those whose counts
        have another type eliminated than the one with the smallest tangent, or none; and those in
        which a factor has no instances.

        Args:
            arrays: As for `solve`: everything is done that comes before the first iteration, and
                kept for a solve of the same structure. None: what most problems need.

        Raises:
            SizeError: The kernels would take minutes to compile.
            InputError: Arrays that do not fit the factors.
            OutOfMemoryError: The plan does not fit the device.
        """
        if arrays is None:
            whole = self._preparations.whole
            whole.kernels.compile_all()
            self._preparations.add_backlog(whole.kernels.take_compile_time())
            return
        with self.backend.scope():
            problem, active = self._checked(arrays, SolveOptions())
            part = problem.part(active.recipe.factors, active.recipe.nodes)
            with active.preparation.system(part):
                self._preparations.add_backlog(active.preparation.kernels.take_compile_time())

    def memory_table(self) -> str | None:
        """The memory kept for the next solve as a table: arrays, places, what shares bytes.

        Returns:
            Lines of text; None before the first solve.
        """
        return self._preparations.memory_table()

    def release(self) -> None:
        """Let go of the memory kept for the next solve."""
        self._preparations.release()

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
                never written. Values may also be `BlockedArray`s, indices `SharedIndices`. Where m
                is 0 the factor takes no part. Tensors are constants, also with requires_grad.
            on_iteration: Called with each `IterationRecord`; a true return value stops the solve.
                What it raises comes out of `solve` as it is; a KeyboardInterrupt is a Ctrl-C.
            **options: Fields of `caspar.SolveOptions`. `check=False` is unsafe: see there.

        Returns:
            Values of the kind and dtype given (of blocked arrays rows, NumPy or CuPy), costs, and
            the course of the solve. One that does not converge says so in `status`, not by raising.

        Raises:
            SizeError: The kernels would take minutes to compile.
            InputError: Arrays that do not fit the factors.
            OptionError: An unknown option, or a value out of range.
            OutOfMemoryError: The plan does not fit the device.
            KeyboardInterrupt: The second Ctrl-C within two seconds, or one before the iterations.
        """
        checked = SolveOptions.from_mapping(options)
        check_callback("on_iteration", on_iteration)
        try:
            return self._solve(arrays, checked, passing_on(on_iteration))
        except PassedOn as carrier:
            error = carrier.error
        raise error  # here, where it gets no other context

    def _solve(
        self, arrays: Mapping[str, Any], checked: SolveOptions, on_iteration: Callback | None
    ) -> SolveResult:
        start = time.perf_counter()
        with self.backend.scope():
            problem, active = self._checked(arrays, checked)
            part = problem.part(active.recipe.factors, active.recipe.nodes)
            with active.preparation.system(part) as system:
                compiled_s = active.preparation.kernels.take_compile_time()
                # of two solves at the same time one may have compiled for both
                setup_time_s = max(time.perf_counter() - start - compiled_s, 0.0)
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
            problem=self._size(problem, active),
            backend=self.backend.name,
            device=self.backend.device,
            precision=active.recipe.precision.value,
            linear_solver=system.linear_solver,
            compile_time_s=compiled_s + self._preparations.take_backlog(),
            setup_time_s=setup_time_s,
            solve_time_s=solve_time_s,
            peak_memory_bytes=system.num_bytes + problem.bytes_on(self.backend),
            remarks=(*active.remarks, *system.remarks, *course.remarks),
        )

    def _checked(self, arrays: Mapping[str, Any], options: SolveOptions) -> tuple[Problem, Active]:
        """The arrays, of the precision of what takes part, and that."""

        def read(precision: Precision) -> Problem:
            storage = TYPES[precision].storage.value
            reader = ArrayReader(self.backend, storage, options.check)
            return check_problem(arrays, self._factors, self._nodes, reader)

        problem = read(self.precision)
        active = self._preparations.choose(problem)
        if active.recipe.precision is not self.precision:
            problem = read(active.recipe.precision)
        return problem, active

    def _returned_values(self, system: NormalEquations, problem: Problem) -> dict[str, Any]:
        """Values of the kind, place and floating type that was given."""
        returned = {}
        moved = system.values()
        for name, given in problem.given.items():
            start = problem.values[name]
            end = moved.get(name, start)
            # what comes from the device to the host is a copy anyhow
            if end is start or location(given) != HOST:
                end = end.copy()
            returned[name] = give_back(
                Moved(start, end),
                given,
                problem.dtypes[name],
                self.backend.to_host,
                self.backend.upload,
            )
        # the caller's stream is another one
        self.backend.synchronize()
        return returned

    def _size(self, problem: Problem, active: Active) -> ProblemSize:
        counts = {factor.name: problem.factors[factor.name].count for factor in self._factors}
        rows = sum(len(factor.residual) * counts[factor.name] for factor in active.recipe.factors)
        nodes = {node.name: problem.counts[node.name] for node in active.recipe.nodes}
        unknowns = sum(node.tangent_dim * nodes[node.name] for node in active.recipe.nodes)
        return ProblemSize(nodes, counts, rows, unknowns)


def _remade(kind: type[_Kind], factors: Sequence[Factor], choices: Mapping[str, Any]) -> _Kind:
    """What a pickle of a solver, or a copy, is made of."""
    return kind(factors, **choices)


def _wanted_precision(given: str | Precision) -> Precision | None:
    """What the user chose; None for `auto`."""
    if isinstance(given, str) and given == "auto":
        return None
    chosen: Precision = choice(Precision, "precision", given, others=("auto",))
    return chosen


def _checked_factors(factors: Sequence[Factor] | Factor) -> tuple[Factor, ...]:
    if isinstance(factors, Factor):
        factors = [factors]
    if not isinstance(factors, Sequence):
        raise FactorError(f"Solver needs a factor or a sequence of factors, got {factors!r}")
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
            raise FactorError(
                f"two factors are named {name!r}; arrays are passed by name, so rename one of them"
            )
    return tuple(factors)


def _place(python_type: type) -> str:
    """Where a class is from."""
    return f"{python_type.__module__}.{python_type.__qualname__}"


def _node_types(factors: Sequence[TracedFactor]) -> tuple[NodeType, ...]:
    """The node types of all factors, in order of appearance."""
    found: dict[str, NodeType] = {}
    names = {factor.name for factor in factors}
    for factor in factors:
        for argument in factor.nodes:
            node = argument.node_type
            known = found.setdefault(node.name, node)
            if known.python_type is not node.python_type:
                raise FactorError(
                    f"factor {factor.name}, argument {argument.source}: two node types are named "
                    f"{node.name!r}, {_place(known.python_type)} and {_place(node.python_type)}; "
                    "arrays are passed by name, so give one of the classes another name, for "
                    "example by a subclass"
                )
            if node.name in names:
                raise FactorError(
                    f"{node.name!r} names a factor and a node type; arrays are passed by name, "
                    "so rename one of them"
                )
    return tuple(found.values())
