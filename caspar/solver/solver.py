"""`Solver`: factors in, solved arrays out."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from caspar.errors import UnsuitedError
from caspar.frontend.factors.factor import Factor
from caspar.options import (
    DEFAULT_INNER_ITERATIONS,
    BackendChoice,
    BackendName,
    GaugeName,
    HessianName,
    JacobianChoice,
    JacobianName,
    LinearSolverChoice,
    LinearSolverName,
    Precision,
    PrecisionName,
    SolveOptions,
    SolveOptionsDict,
    Unpack,
    check_callback,
    check_gauge,
    check_verbose,
    checked_flag,
    refuse_constraint_tolerance,
)
from caspar.progress import phase, showing
from caspar.runtime.backend import Backend
from caspar.runtime.select import chosen_backend
from caspar.solver.choice.recipe import Remade, checked_factors, is_auto, make_recipe, value_fields
from caspar.solver.evaluation import Evaluation
from caspar.solver.input.constraints import Constraints
from caspar.solver.limits import Limits
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.result.result import IterationRecord, SolveResult
from caspar.solver.result.solved_arrays import SolvedResults
from caspar.solver.session import Session
from caspar.solver.solving import evaluate, solve

if TYPE_CHECKING:
    from caspar.runtime.group.ranks import Ranks
    from caspar.solver.constraints.problems import ConstrainedProblems
    from caspar.solver.covariance.covariance import Covariance
    from caspar.solver.covariance.estimate import Covariances
    from caspar.solver.gradients.gradient import Gradient
    from caspar.solver.gradients.gradients import Gradients
    from caspar.solver.prepared import Prepared
    from caspar.solver.shards.devices import DevicesChoice


class Solver(Remade):
    """Nonlinear least squares over a fixed set of factor types.

    Kernels are generated for the factor types; instance counts may differ from solve to solve. A
    solve with the counts and indices of the one before takes over its plan: memory, order and
    captured launches; `release` lets go of them.

    Pickles and copies hold factors, by module and name, and the arguments below as they were given:
    what is `auto` is chosen, and everything compiled, where they arrive. No plan comes with them.
    A copy of a solver with a backend object uses the same object; a pickle of it is an error.

    Args:
        factors: Functions decorated with `caspar.factor`, and constraints, decorated with
            `caspar.constraint`; a single one needs no list.
        backend: `cuda`, `cpu`, or `auto`: CUDA where a device answers; or an object that fulfils
            `caspar.runtime.backend.Backend`, which is used as it is. See `backend.name`.
        precision: `mixed` (values, residuals and sums in float64, Jacobians and vectors in
            float32), `float64` or `float32`. `auto`: float64 where no node type can be eliminated,
            where a factor couples two nodes of a type that remains, and for fits in which all that
            remains are single nodes; else mixed, and on in float64 if numbers do not fit that. See
            the result's `precision`.
        linear_solver: `auto`, or a name that results have, such as `sparse`: see
            `caspar.LinearSolverChoice`.
        jacobian: `auto`, `stored`, `float16` or `recompute`: see `caspar.JacobianChoice`.
        deterministic: Equal input gives equal bits, on CUDA at a price: sums over shared nodes are
            taken in a fixed order. On the CPU they always are.
        inner_iterations: Steps that eliminated nodes take by themselves, the others held, after
            each step of all, up to 32; 0 for none. Only where one factor touches them.
        eliminate: Names of the node types that are eliminated, such as `("Point",)`; `()`: none.
            None: chosen by the counts; other counts may ask for other kernels then.
        limits: A `caspar.solver.limits.Limits`, for tests and experts; None: the usual ones.
        devices: Devices that share a problem: how many, `all`, or their numbers, such as `[0, 3]`.
            A small problem uses the first one, and says so. Or processes, by
            `caspar.distributed.init()`. Docs: `docs/guide/devices.md`.

    Raises:
        FactorError: A factor cannot be compiled, or the linear solver does not suit them.
        BackendError: The backend is not usable here.
        OptionError: An unknown choice.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Place(sf.V1): ...
        >>> start = caspar.factors.prior(Place, noise="unit", name="start")
        >>> step = caspar.factors.between(Place, noise="unit", name="step")
        >>> caspar.Solver([start, step], backend="cpu", precision="float64")
        Solver(factors: start, step; node types: Place; cpu, float64 precision)
    """

    def __init__(
        self,
        factors: Sequence[Factor] | Factor,
        *,
        backend: BackendName | BackendChoice | Backend = "auto",
        precision: PrecisionName | Precision = "auto",
        linear_solver: LinearSolverName | LinearSolverChoice = "auto",
        jacobian: JacobianName | JacobianChoice = "auto",
        deterministic: bool = False,
        inner_iterations: int = DEFAULT_INNER_ITERATIONS,
        eliminate: Sequence[str] | None = None,
        limits: Limits | None = None,
        devices: "DevicesChoice | Ranks" = 1,
    ) -> None:
        chosen: dict[str, Any] = {
            "precision": precision,
            "linear_solver": linear_solver,
            "jacobian": jacobian,
            "deterministic": deterministic,
            "inner_iterations": inner_iterations,
            "eliminate": eliminate,
            "limits": limits,
        }
        self._choices = {"backend": backend, **chosen, "devices": devices}
        start = time.perf_counter()
        is_alone = type(devices) is int and devices == 1
        refused = "a Solver of several ranks" if self._has_ranks else ""
        self._given = checked_factors(factors, without_constraints=refused)
        with showing(None):
            recipe = make_recipe(self._given, **chosen)
        self._factors, self._nodes = recipe.factors, recipe.nodes
        self.precision: Precision = recipe.precision
        self.backend: Backend
        shared = None
        if is_alone:
            self.backend = chosen_backend(backend)
        else:
            from caspar.solver.shards.ranks import devices_of

            self.backend, shared = devices_of(devices, backend)
        own_precision, kinds = is_auto(precision), self.constraint_kinds
        solved = recipe
        if len(kinds) > 0:
            from caspar.solver.constraints.problems import penalised_recipe

            solved = penalised_recipe(recipe, kinds)
        self._session = Session(
            self.backend,
            solved,
            value_fields(recipe.nodes),
            own_precision=own_precision,
            devices=shared,
        )
        self._session.add_backlog(time.perf_counter() - start)
        self._recipe, self._results = recipe, SolvedResults()

    @cached_property
    def _constrained(self) -> "ConstrainedProblems | None":
        kinds = self.constraint_kinds
        if len(kinds) == 0:
            return None
        from caspar.solver.constraints.problems import ConstrainedProblems

        return ConstrainedProblems(self._session, self._recipe, kinds)

    def _penalised(self, arrays: Any) -> Any:
        """Arrays for what does not solve: constraints cost nothing there."""
        constrained = self._constrained
        return arrays if constrained is None else constrained.without_penalties(arrays)

    @cached_property
    def _covariances(self) -> "Covariances":
        from caspar.solver.covariance.estimate import Covariances

        constrained = self._constrained
        held = None if constrained is None else constrained.tangent_rows
        return Covariances(self.backend, self._recipe, self._results, held)

    @cached_property
    def _gradients(self) -> "Gradients":
        from caspar.solver.gradients.gradients import Gradients

        return Gradients(self.backend, self._session.recipe)

    @property
    def _has_ranks(self) -> bool:
        if self._choices["devices"] == 1:
            return False
        from caspar.runtime.group.ranks import Ranks

        return isinstance(self._choices["devices"], Ranks)

    def _refuse_ranks(self, method: str) -> None:
        if self._has_ranks:
            raise UnsuitedError(
                f"Solver.{method} needs all factors in one process, of which ranks have parts",
                "Make a solver with devices=1 on one rank, and pass it everything.",
            )

    def __repr__(self) -> str:
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
            arrays: As for `prepare`. None: what most problems need.

        Raises:
            SizeError: The kernels would take minutes to compile.
            InputError, OutOfMemoryError: As `prepare`.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Length(sf.V1): ...
            >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
            >>> values = {"value": [0, 0], "expected": [[1.0], [1.5]]}
            >>> solver.compile({"Length": [[0.0]], "measured": values})
        """
        if arrays is not None:
            self.prepare(arrays)
            return
        kernels = self._session.whole.kernels
        with showing(None):
            kernels.compile_all()
        self._session.add_backlog(kernels.take_compile_time())

    def prepare(
        self,
        arrays: Mapping[str, Any] | None,
        *,
        fixed: Mapping[str, Any] | None = None,
        bounds: Mapping[str, Any] | None = None,
    ) -> "Prepared":
        """Do everything now that comes before the first iteration: check, compile, plan memory.

        The plan is kept: a solve of arrays with the same counts and indices begins at once.

        Args:
            arrays: As for `solve`; values may be others later.
            fixed: As for `solve`; masks of the same node types may be others later.
            bounds: As for `solve`; bounds of the same node types may be others later.

        Returns:
            What was chosen and made. It holds no memory of the device.

        Raises:
            SizeError: The kernels would take minutes to compile.
            InputError: Arrays that do not fit the factors.
            OutOfMemoryError: The plan does not fit the device.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Length(sf.V1): ...
            >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
            >>> values = {"value": [0, 0], "expected": [[1.0], [1.5]]}
            >>> prepared = solver.prepare({"Length": [[0.0]], "measured": values})
            >>> prepared.problem.num_unknowns, prepared.problem.num_residuals
            (1, 2)
        """
        from caspar.solver.prepared import describe

        arrays, given = self._penalised(arrays), Constraints(fixed, bounds)
        with showing(None), self._session.open_aside(arrays, given) as crew:
            size, active = crew.reading.size(self._factors), crew.reading.active
            return crew.run(lambda system: describe(self.backend, size, active, system))

    @contextmanager
    def system(
        self,
        arrays: Mapping[str, Any],
        *,
        fixed: Mapping[str, Any] | None = None,
        bounds: Mapping[str, Any] | None = None,
    ) -> Iterator[NormalEquations]:
        """The system that a solve iterates on, with arrays loaded: for tests and experts.

        It belongs to the caller until the context ends, and is kept for the next solve then. Its
        methods enqueue work; see `NormalEquations` for their order.

        Args:
            arrays: As for `solve`.
            fixed: Likewise.
            bounds: Likewise.

        Raises:
            UnsuitedError: Several devices share the problem: each has the system of its part.
            SizeError, InputError, OutOfMemoryError: As `prepare`.
        """
        self._refuse_ranks("system")
        arrays = self._penalised(arrays)
        with self._session.open_aside(arrays, Constraints(fixed, bounds)) as crew:
            yield crew.only

    def evaluate(self, arrays: Mapping[str, Any]) -> Evaluation:
        """Costs, residuals and weights at some values, without moving them.

        Of several ranks each evaluates the factors that it passes.

        Args:
            arrays: As for `solve`.

        Raises:
            SizeError, InputError, OutOfMemoryError: As `prepare`.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Length(sf.V1): ...
            >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
            >>> values = {"value": [0, 0], "expected": [[1.0], [1.5]]}
            >>> found = solver.evaluate({"Length": [[2.0]], "measured": values})
            >>> found.cost, found.residuals("measured").ravel()
            (0.625, array([1. , 0.5]))
        """
        if self._constrained is not None:
            return self._constrained.evaluate(arrays)
        return evaluate(self._session, arrays)

    def memory_table(self) -> str | None:
        """The memory kept for the next solve as a table: arrays, places, what shares bytes.

        Returns:
            Lines of text; None before the first solve.
        """
        return self._session.memory_table()

    def release(self) -> None:
        """Let go of the memory kept for the next solve.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Length(sf.V1): ...
            >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
            >>> values = {"value": [0, 0], "expected": [[1.0], [1.5]]}
            >>> result = solver.solve({"Length": [[0.0]], "measured": values})
            >>> solver.release()  # `result` stays as it is
        """
        self._session.release()

    def solve(
        self,
        arrays: Mapping[str, Any] | None,
        *,
        fixed: Mapping[str, Any] | None = None,
        bounds: Mapping[str, Any] | None = None,
        verbose: bool | None = None,
        on_iteration: Callable[[IterationRecord], object] | None = None,
        **options: Unpack[SolveOptionsDict],
    ) -> SolveResult:
        """Minimise 1/2 * the sum of squared residuals, or of w rho(|r|^2) by weights and losses.

        Constraints among the factors hold at the end: see `docs/guide/constraints.md`.

        Args:
            arrays: One nested mapping. A node type's class name -> its (n, storage_dim) start
                values in SymForce's storage order. A factor's name -> its arguments: (m,) integer
                indices for shared nodes, (m, dim) values for sequential constants, (dim,) for
                unique ones, {"values": (k, dim), "index": (m,)} for indexed ones; nothing for
                unique nodes and pairs. Beside a factor's arguments `weight`, (m,) and at least 0,
                multiplies squared residuals, 0 leaving an instance out; `loss_scale`, a number or
                (m,), in units of the residual, is the scale of its loss. NumPy, CuPy or DLPack
                arrays, all on one device; they are never written. Values may also be
                `BlockedArray`s, indices `SharedIndices`, both lists of parts, one a device (see
                `docs/guide/devices.md`). Where m is 0 the factor takes no part. Tensors are
                constants; `caspar.torch.solve` has their gradients. Of several ranks each passes
                its part of the factors, with the same nodes; or rank 0 all, the others None.
            fixed: What is held, by node type; it comes back with the same bits. Indices or (n,)
                booleans hold whole nodes, (n, tangent_dim) booleans components of their tangents,
                in the order of the manual's table of steps; a mapping holds fields of a dataclass,
                or `rotation` and `translation` of a pose, by name, in the same ways; True holds
                all. Another mask of the same types compiles and plans nothing.
            bounds: Limits of fields, by node type: `{"Lens": {"focal": (lower, upper)}}`; a pair
                for a node type that is a vector itself. Each is a number, one for each component or
                each node, (n, dim), or None if open. Values must start within. Other bounds of the
                same types compile and plan nothing. Docs: `docs/guide/bounds.md`.
            verbose: True: each iteration is printed as a line. False: nothing is shown. None: on a
                terminal and in a notebook a line says what goes on when it takes over a second, and
                is gone afterwards. The logger `caspar` gets all of it in any case.
            on_iteration: Called with each `IterationRecord`; a true return value stops the solve.
                What it raises comes out of `solve` as it is; a KeyboardInterrupt is a Ctrl-C.
            **options: Fields of `caspar.SolveOptions`. `check=False` is unsafe: see there.

        Returns:
            Values of the kind and dtype given (of blocked arrays rows, of parts as many), costs,
            and the course of the solve. If it does not converge, `status` says so.

        Raises:
            SizeError: The kernels would take minutes to compile.
            InputError: Arrays, `fixed` or `bounds` do not fit the factors.
            OptionError: An unknown option, or a value out of range.
            OutOfMemoryError: The plan does not fit; says on how many devices it would.
            GroupError: Another device or rank failed, or is gone; it has values reached so far.
            KeyboardInterrupt: The second Ctrl-C within two seconds, or one before the iterations.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Length(sf.V1): ...
            >>> measured = caspar.factors.prior(Length, noise="unit", name="measured")
            >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [1.5]]}
            >>> arrays = {"Length": [[0.0]], "measured": values}
            >>> result = caspar.Solver(measured).solve(arrays, max_iterations=20)
            >>> result.values["Length"].round(3)
            array([[1.2]])
        """
        checked = SolveOptions.from_mapping(options)
        check_callback("on_iteration", on_iteration)
        check_verbose(verbose)
        given = Constraints(fixed, bounds)
        if self._constrained is not None:
            from caspar.solver.constraints.course import Course

            course = Course(self._constrained, arrays or {}, given, checked, verbose, on_iteration)
            return self._results.kept(course.run())
        refuse_constraint_tolerance(checked)
        solved = solve(self._session, arrays, given, checked, verbose, on_iteration)
        # None: those of rank 0, for which there is no covariance either
        return solved if arrays is None else self._results.kept(solved)

    def covariance(
        self,
        arrays: SolveResult | Mapping[str, Any],
        blocks: Mapping[str, Any],
        *,
        fixed: Mapping[str, Any] | None = None,
        bounds: Mapping[str, Any] | None = None,
        scale_by_residual_variance: bool = False,
        gauge: GaugeName | None = None,
    ) -> "Covariance":
        """The covariance of values, (J^T J)^-1, marginal over all other unknowns; in float64.

        Residuals are taken as whitened: as if each row had a variance of 1, and were linear within
        a few standard deviations. Equations, and inequalities that are met with equality, hold what
        they say: it does not vary. Docs: `docs/guide/covariance.md`.

        Args:
            arrays: What `solve` returned, or arrays with its values, `{**arrays, **result.values}`.
                The report of a small problem's result has standard errors from then on.
            blocks: What is asked for: node type -> "all", (k,) instance numbers, or an (n,) mask.
            fixed: What is held: known exactly, with a covariance of zero. None: of a result what
                its solve held, else nothing. So for bounds.
            bounds: As for `solve`: values at a bound are taken to be held there.
            scale_by_residual_variance: Multiply by the sum of squared residuals over the degrees of
                freedom, if the size of residuals is known up to a common factor only.
            gauge: None: directions that the residuals leave free, such as where a map as a whole
                is, are an error if they touch what is asked for. `minimum_norm`: the pseudo-inverse
                (Moore-Penrose, in tangent coordinates), in which these do not vary.

        Returns:
            The covariances by node type, in tangent coordinates, angles in radians.

        Raises:
            RankDeficiencyError: Names free directions by node type, instance and field.
            InputError: Arrays or instances that do not fit, or derivatives that are not finite.
            OptionError: An unknown `gauge`.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Length(sf.V1): ...
            >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
            >>> values = {"value": [0, 0, 0, 0], "expected": [[1.0], [1.1], [1.5], [1.2]]}
            >>> result = solver.solve({"Length": [[0.0]], "measured": values})
            >>> covariance = solver.covariance(result, {"Length": "all"})
            >>> covariance.standard_errors("Length").round(3)
            array([[0.5]])
        """
        self._refuse_ranks("covariance")
        check_gauge(gauge)
        checked_flag("scale_by_residual_variance", scale_by_residual_variance)
        with showing(None), self.backend.scope(), phase("computing covariances"):
            return self._covariances.estimate(
                arrays,
                blocks,
                constraints=Constraints(fixed, bounds),
                scales_by_variance=scale_by_residual_variance,
                allows_free=gauge is not None,
            )

    def gradient(
        self,
        result: SolveResult | Mapping[str, Any],
        cotangents: Mapping[str, Any],
        *,
        fixed: Mapping[str, Any] | None = None,
        bounds: Mapping[str, Any] | None = None,
        hessian: HessianName = "auto",
    ) -> "Gradient":
        """Derivatives of a loss function of the values by what `solve` was given, in float64.

        Args:
            result: What `solve` returned, its arrays not written to since; or arrays with values,
                unless there are constraints, whose multipliers only a result has.
            cotangents: By node type the derivative of the loss function by its values, (n,
                storage_dim); zero for types that are left out.
            fixed: As for `solve`; with arrays only, as a result knows its own.
            bounds: Likewise. Docs: `docs/guide/gradients.md`.
            hessian: `exact`; `gauss_newton`, without second derivatives of residuals and losses;
                `auto`: exact, unless an instance has more than 48 unknowns.

        Raises:
            InputError, OptionError: Something does not fit, or a derivative is not finite.

        Example:
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Length(sf.V1): ...
            >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
            >>> values = {"value": [0, 0], "expected": [[1.0], [1.5]]}
            >>> result = solver.solve({"Length": [[0.0]], "measured": values})
            >>> gradient = solver.gradient(result, {"Length": [[1.0]]})
            >>> gradient["measured"]["expected"].round(3)
            array([[0.5],
                   [0.5]])
        """
        constraints = Constraints(fixed, bounds)
        with showing(None), self.backend.scope():
            if self._constrained is not None:
                from caspar.solver.constraints.derivative import constrained_gradient

                args = self._constrained, self._gradients, result, cotangents, hessian
                return constrained_gradient(*args)
            return self._gradients.differentiate(result, cotangents, constraints, hessian)
