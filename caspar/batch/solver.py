"""`BatchSolver`: factors in, many small problems solved at once."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from caspar.batch.covariance import arrays_after, find_covariances, with_active_held
from caspar.batch.generate.shape import BatchShape, Team
from caspar.batch.gradients.flat import FlatFactor, as_one_factor, as_one_problem
from caspar.batch.gradients.gradient import (
    BatchGradients,
    BatchResult,
    Gradient,
    batch_given,
)
from caspar.batch.input import Batch, Terms, read_batch
from caspar.batch.options import (
    checked_options,
    checked_precision,
    is_large,
    option_numbers,
    refuse_large,
    with_team,
)
from caspar.batch.result import STATUSES, on_host
from caspar.batch.run import CompiledKernels, given_back
from caspar.batch.singly import Runs, SingleSolver
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.trace import WEIGHT, TracedFactor
from caspar.options import (
    BackendChoice,
    BatchPrecisionName,
    HessianName,
    Precision,
    checked_flag,
    refuse_constraint_tolerance,
)
from caspar.progress import showing
from caspar.runtime.backend import Backend
from caspar.runtime.select import chosen_backend
from caspar.solver.choice.recipe import (
    Remade,
    as_traced,
    checked_factors,
    make_recipe,
    value_fields,
)
from caspar.solver.evaluation import Residuals, refused_instances
from caspar.solver.input.array_reader import ArrayReader
from caspar.solver.result.result import SolveStatus

if TYPE_CHECKING:
    from caspar.batch.constraints.problems import BatchConstraints
    from caspar.batch.constraints.run import ConstrainedRun
    from caspar.batch.inspection import BatchInspection


class BatchSolver(Remade):
    """Many small independent nonlinear least squares problems at once, each by a thread or a warp.

    Each problem has its own damping, acceptance, stopping rule, status and number of iterations.
    All of its Levenberg-Marquardt loop is one generated kernel, which is compiled for the factors
    and for how arrays are passed, not for the number of problems or of instances. Problems of more
    than 48 unknowns, on the processor 96, are solved one after the other by a `Solver` instead.
    With constraints the kernel runs several times: see `docs/guide/constraints.md`.

    Pickles and copies hold factors, by module and name, and the arguments below.

    Attributes:
        precision: Of values, residuals and normal equations.
        backend: Where problems are solved.
        team: Who solves one: a thread or a warp; None: as sizes suggest.

    Args:
        factors: Functions decorated with `caspar.factor`, and constraints, decorated with
            `caspar.constraint`; a single one needs no list.
        backend: `cuda`, `cpu`, `auto`, or a backend object, as for `Solver`.
        precision: `float64`, which `auto` is, or `float32`: values, residuals and normal equations
            in float32, costs summed in float64.

    Raises:
        FactorError: A factor cannot be compiled.
        BackendError: The backend is not usable here.
        OptionError: An unknown choice.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> batch = caspar.BatchSolver(caspar.factors.prior(Length, noise="unit"))
        >>> values = [[[1.0], [2.0]], [[5.0], [7.0]], [[3.0], [3.5]]]  # problem, instance, dim
        >>> fits = batch.solve({"Length": [[0.0], [0.0], [0.0]], "prior": {"expected": values}})
        >>> fits.values["Length"].ravel().round(3)
        array([1.5 , 6. , 3.25])
    """

    def __init__(
        self,
        factors: Sequence[Factor] | Factor,
        *,
        backend: str | BackendChoice | Backend = "auto",
        precision: BatchPrecisionName | Precision = "auto",
    ) -> None:
        start = time.perf_counter()
        self._given = checked_factors(factors)
        self._choices = {"backend": backend, "precision": precision}
        self.precision: Precision = checked_precision(precision)
        with showing(None):
            recipe = make_recipe(self._given, precision=self.precision)
        self._factors, self._nodes = recipe.factors, recipe.nodes
        self.backend: Backend = chosen_backend(backend)
        self.team: Team | None = None
        # it is made later, when what factors read may have changed
        traced = as_traced(self._given, self._factors)
        self._singly = SingleSolver(traced, self.backend, self.precision)
        self._terms = Terms(self._factors)
        self._constraints = self._made_constraints()
        self._refused = RefusedCounts(self.backend, self._factors)
        self._kernels = CompiledKernels(self.backend)
        self._gradients = BatchGradients(self.backend, self._nodes)
        self._kernels.backlog_s = time.perf_counter() - start

    def __repr__(self) -> str:
        """Factors, node types, where it runs and in which precision."""
        factors = ", ".join(factor.name for factor in self._factors)
        nodes = ", ".join(node.name for node in self._nodes)
        return (
            f"BatchSolver(factors: {factors}; node types: {nodes}; {self.backend.name}, "
            f"{self.precision.value} precision)"
        )

    def solve(
        self,
        arrays: Mapping[str, Any],
        *,
        fixed: Mapping[str, Any] | None = None,
        bounds: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> BatchResult:
        """Minimise each problem's 1/2 * sum of w rho(|r|^2) over its own values.

        Args:
            arrays: One nested mapping. A node type's class name -> (P, storage_dim) start values,
                one node in each of P problems, or (P, n, storage_dim), n nodes in each. A factor's
                name -> its arguments: (P, m, dim) for sequential constants, (P, dim) for unique
                ones, (P, m) integers, counted within the problem, for shared nodes if a problem has
                several. A first axis of 1 stands for the same in all problems. Where problems have
                different numbers of instances: {"values": (n, dim), "problem": (n,)}, rows of all
                problems and the problem of each, in any order. `weight` and the parameters of
                losses likewise. NumPy, CuPy or DLPack arrays, all on one device; they are never
                written. A value that is NaN or infinite spoils its own problem only.
            fixed: What is held, by node type, as for `Solver.solve`: problems are the instances;
                with n nodes in each, node i of problem p is instance n p + i.
            bounds: Limits of fields, as for `Solver.solve`, with problems as instances likewise.
            **options: `max_iterations`, `initial_damping`, `min_damping`, `max_damping`,
                `cost_tolerance`, `gradient_tolerance`, `step_tolerance`, `constraint_tolerance`,
                `check`: see `caspar.SolveOptions`. None stands for what `Solver` would take for one
                problem.

        Raises:
            InputError: Arrays, `fixed` or `bounds` do not fit the factors; or problems with
                constraints are too large for a kernel.
            OptionError: An unknown option, or a value out of range.
            OutOfMemoryError: The arrays do not fit the device.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Length(sf.V1): ...
            >>> batch = caspar.BatchSolver(caspar.factors.prior(Length, noise="unit"))
            >>> rows = {"values": [[1.0], [2.0], [6.0]], "problem": [0, 0, 1]}  # two rows and one
            >>> fits = batch.solve({"Length": [[0.0], [0.0]], "prior": {"expected": rows}})
            >>> fits.values["Length"].ravel().round(3)
            array([1.5, 6. ])
        """
        with showing(None), self.backend.scope():
            start, before_s = time.perf_counter(), self._kernels.backlog_s
            run = self._runs(arrays, fixed, bounds, options)
            given = batch_given(arrays, fixed, bounds, self.backend)
            self.backend.synchronize()
            compiling_s = self._kernels.backlog_s - before_s
            setup_s = time.perf_counter() - start - compiling_s
            compile_s = self._kernels.take_backlog()
            start = time.perf_counter()
            run.launch()
            self.backend.synchronize()
            solve_s = time.perf_counter() - start
            result = BatchResult(
                **run.found(arrays),
                backend=self.backend.name,
                device=self.backend.device,
                precision=self.precision.value,
                compile_time_s=compile_s + run.compile_time_s,
                setup_time_s=setup_s,
                solve_time_s=solve_s - run.compile_time_s,
                given=given,
                fields=value_fields(self._nodes),
            )
            given.note_values(result.values)
            return self._with_refused(result, {**arrays, **result.values})

    def covariance(
        self,
        arrays: BatchResult | Mapping[str, Any],
        *,
        fixed: Mapping[str, Any] | None = None,
        bounds: Mapping[str, Any] | None = None,
        scale_by_residual_variance: bool = False,
    ) -> Any:
        """The covariance of each problem's values, (J^T W J)^-1, in float64.

        Residuals are taken as whitened, as by `Solver.covariance`.

        Args:
            arrays: What `solve` returned, its arrays not written to since; or arrays with the
                values after it, `{**arrays, **result.values}`.
            fixed: As for `solve`: what is held has a covariance of zero. None: of a result what its
                solve held, else nothing.
            bounds: Likewise: values at a bound are taken to be held there.
            scale_by_residual_variance: Multiply by a problem's sum of squared residuals over its
                degrees of freedom; NaN if there are none.

        Returns:
            (P, n, n) of the kind given: of all components of tangents of a problem, node types in
            order of appearance, nodes within them. What constraints hold does not vary. NaN of
            problems whose residuals do not determine all of them, or are not finite.

        Raises:
            InputError: As `solve`; or problems are too large for a kernel.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Length(sf.V1): ...
            >>> batch = caspar.BatchSolver(caspar.factors.prior(Length, noise="unit"))
            >>> values = [[[1.0], [2.0]], [[5.0], [7.0]]]
            >>> fits = batch.solve({"Length": [[0.0], [0.0]], "prior": {"expected": values}})
            >>> batch.covariance(fits).ravel().round(3)
            array([0.5, 0.5])
        """
        scales = checked_flag("scale_by_residual_variance", scale_by_residual_variance)
        arrays, fixed, bounds = arrays_after(arrays, fixed, bounds)
        with showing(None), self.backend.scope():
            batch = self._read(arrays, fixed, bounds, check=True, precision=Precision.FLOAT64)
            refuse_large(batch.shape, self._target, "covariance")
            if self._constraints is not None:
                from caspar.batch.constraints.tangent import with_tangent_rows

                batch = with_tangent_rows(self._constraints, batch)
            batch = with_active_held(batch, self.backend)
            like, kernel_of = arrays[self._nodes[0].name], self._kernels.covariance
            return find_covariances(self.backend, kernel_of, batch, like, scales_by_variance=scales)

    def gradient(
        self,
        result: BatchResult | Mapping[str, Any],
        cotangents: Mapping[str, Any],
        *,
        fixed: Mapping[str, Any] | None = None,
        bounds: Mapping[str, Any] | None = None,
        hessian: HessianName = "auto",
    ) -> Gradient:
        """Derivatives of a loss function of the values by what `solve` was given, in float64.

        Args:
            result: What `solve` returned, its arrays not written to since; or arrays with values,
                unless there are constraints, whose multipliers only a result has.
            cotangents: By node type the derivative of the loss function by its values, of their
                shape; zero for types that are left out.
            fixed: As for `solve`; with arrays only, as a result knows its own.
            bounds: Likewise.
            hessian: As for `Solver.gradient`.

        Returns:
            Arrays of the shapes that were passed. NaN and singular Hessians of one problem leave
            the others as they are, and give no NaN: see the remarks, and `docs/guide/gradients.md`.

        Raises:
            InputError, OptionError: Something does not fit.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Length(sf.V1): ...
            >>> batch = caspar.BatchSolver(caspar.factors.prior(Length, noise="unit"))
            >>> values = [[[1.0], [2.0]], [[5.0], [7.0]]]
            >>> fits = batch.solve({"Length": [[0.0], [0.0]], "prior": {"expected": values}})
            >>> gradient = batch.gradient(fits, {"Length": [[1.0], [10.0]]})
            >>> gradient["prior"]["expected"][:, :, 0].round(3)
            array([[0.5, 0.5],
                   [5. , 5. ]])
        """

        def read(*given: Any) -> Batch:
            return self._read(*given, check=True, precision=Precision.FLOAT64)

        def with_terms(batch: Batch, arrays: Mapping[str, Any]) -> tuple[Batch, tuple[str, ...]]:
            if self._constraints is None:
                return batch, ()
            from caspar.batch.constraints.tangent import with_multipliers

            return with_multipliers(self._constraints, batch, result, arrays)

        with showing(None), self.backend.scope():
            asked = (result, fixed, bounds)
            return self._gradients.differentiate(asked, cotangents, hessian, read, with_terms)

    def source(
        self,
        arrays: Mapping[str, Any],
        *,
        fixed: Mapping[str, Any] | None = None,
        bounds: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of the kernel that would solve such problems: CUDA C, or that of the processor.

        Args:
            arrays: As for `solve`.
            fixed: Likewise.
            bounds: Likewise.

        Raises:
            InputError: As `solve`.
        """
        with self.backend.scope():
            batch = self._read(arrays, fixed, bounds, check=True)
            refuse_large(batch.shape, self._target, "source")
            return self._kernels.source(self._solved_shape(batch.shape)).text

    def inspect(
        self,
        arrays: Mapping[str, Any],
        *,
        fixed: Mapping[str, Any] | None = None,
        bounds: Mapping[str, Any] | None = None,
        target: str | None = None,
        arch: str = "sm_90",
    ) -> "BatchInspection":
        """The programs of the kernel that would solve such problems, at every stage; no GPU needed.

        Args:
            arrays: As for `solve`.
            fixed: Likewise.
            bounds: Likewise.
            target: `cuda` or `cpu`; None: that of the backend.
            arch: Architecture of the resources.

        Raises:
            InputError: As `solve`.
            OptionError: There is no such target.
        """
        from caspar.batch.inspection import inspect_batch

        def shape_for(target: str) -> BatchShape:
            with self.backend.scope():
                shape = self._read(arrays, fixed, bounds, check=True, target=target).shape
            refuse_large(shape, target, "inspect")
            return self._solved_shape(shape)

        return inspect_batch(shape_for, self._target if target is None else target, arch)

    def _made_constraints(self) -> "BatchConstraints | None":
        """Return the constraints; None: there are none."""
        kinds = self.constraint_kinds
        if len(kinds) == 0:
            return None
        from caspar.batch.constraints.problems import BatchConstraints

        return BatchConstraints(self.backend, self._nodes, self._factors, kinds)

    def _runs(
        self,
        arrays: Mapping[str, Any],
        fixed: Mapping[str, Any] | None,
        bounds: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> "Runs | ConstrainedRun":
        """Return the runs that solve the problems, ready to be launched."""
        chosen, constraints = checked_options(options), self._constraints
        if constraints is None:
            refuse_constraint_tolerance(chosen)
        batch = self._read(arrays, fixed, bounds, check=chosen.check)
        if constraints is not None:
            from caspar.batch.constraints.run import ConstrainedRun

            constraints.check_names(arrays)
            refuse_large(batch.shape, self._target, "constraints")
            return ConstrainedRun(constraints, self._kernels, batch, chosen)
        if is_large(batch.shape, self._target):
            return self._singly.runs(batch, bounds, options)
        kernel = self._kernels.solving(batch.shape)
        return self._kernels.run(kernel, batch, option_numbers(chosen, batch.shape))

    def _with_refused(self, result: BatchResult, arrays: Mapping[str, Any]) -> BatchResult:
        """Count the instances that are left out at the values of a result."""
        if len(self._refused.names) == 0:
            return result
        batch = self._read(arrays, None, None, check=False, precision=Precision.FLOAT64)
        num_refused, has_none = self._refused.of(batch)
        if has_none.any():
            codes, xp = self.backend.upload(on_host(result.status_codes)), self.backend.xp
            is_empty = self.backend.upload(has_none)
            codes = xp.where(is_empty, STATUSES.index(SolveStatus.NO_RESIDUALS), codes)
            codes = given_back(codes.astype(np.int32), result.status_codes, self.backend)
            result = replace(result, status_codes=codes)
        return replace(result, num_refused=num_refused)

    def _solved_shape(self, shape: BatchShape) -> BatchShape:
        """The shape that a kernel is generated for."""
        return shape if self._constraints is None else self._constraints.shape(shape)

    @property
    def _target(self) -> str:
        """The target that kernels are generated for."""
        return self.backend.traits.target

    def _read(
        self,
        arrays: Mapping[str, Any],
        fixed: Mapping[str, Any] | None,
        bounds: Mapping[str, Any] | None,
        *,
        check: bool,
        precision: Precision | None = None,
        target: str | None = None,
    ) -> Batch:
        """The checked arrays of problems."""
        batch = read_batch(
            arrays,
            self._factors,
            self._nodes,
            ArrayReader(
                self.backend, self.precision if precision is None else precision, check_values=False
            ),
            fixed,
            bounds,
            self._terms,
            check=check,
        )
        own = self._target if target is None else target
        count, instances = batch.num_problems, batch.mean_instances
        return replace(batch, shape=with_team(batch.shape, self.team, own, count, instances))


class RefusedCounts:
    """Counts the instances that look up outside of a table that refuses that: they are left out.

    Cost tier: a kernel over the instances of factors with such tables, once for each solve.

    Attributes:
        names: Factors of which instances may be left out.
    """

    def __init__(self, backend: Backend, factors: Sequence[TracedFactor]) -> None:
        self.names = tuple(one.name for one in factors if one.inside)
        self._backend, self._exact = backend, Residuals(backend)

    def of(self, batch: Batch) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.bool_]]:
        """Count the instances that are left out.

        Returns:
            By factor (P,) instances that are left out; and (P,) whether a problem has residuals,
            all of them of such instances.
        """
        backend = self._backend
        whole = as_one_problem(batch, backend, self.names)
        parts = {
            one.factor.name: FlatFactor(batch, backend, number, one)
            for number, one in enumerate(batch.shape.factors)
            if one.factor.name in self.names
        }
        factors = [as_one_factor(one.factor) for one in batch.shape.factors]
        present = [
            one for one in factors if one.name in parts and whole.factors[one.name].count > 0
        ]
        refused = refused_instances(present, whole, self._exact)
        count = batch.num_problems
        counts = {name: np.zeros(count, np.int64) for name in self.names}
        total = np.broadcast_to(backend.to_host(backend.upload(batch.num_residuals)), count)
        rows = total.astype(np.int64)
        for factor in present:
            flags, name = refused[factor.name], factor.name
            problem = backend.to_host(parts[name].problem)
            counts[name] = np.bincount(problem[flags], minlength=count)
            if factor.is_weighted:
                weight = whole.factors[name].constants[WEIGHT]
                weights = backend.to_host(weight.rows[:, 0][weight.index])
                flags = flags & (weights > 0.0)
            rows -= len(factor.residual) * np.bincount(problem[flags], minlength=count)
        return counts, (total > 0) & (rows == 0)
