"""What a solver makes before it iterates, and keeps for the next solve of the same structure.

Cost tiers: kernels once for a solver; order, memory and captured launches once for a structure
(counts and indices); values once for a solve.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock

from caspar.driver import (
    TARGETS,
    SolverDesign,
    SolverSources,
    chain_sources,
    coarse_sources,
    explicit_sources,
    solver_sources,
)
from caspar.errors import FactorError, OptionError
from caspar.frontend.chain_form import chain_refusal
from caspar.frontend.coarse_form import coarse_form, coarse_refusal
from caspar.frontend.jacobian import JacobianStorage
from caspar.frontend.precision import TYPES, Types
from caspar.frontend.solver_form import (
    SolverForm,
    eliminable_types,
    solver_form,
    usual_storage,
    usual_sums,
)
from caspar.frontend.trace import NodeType, TracedFactor
from caspar.memory.node_tiles import needs_wide_places
from caspar.options import (
    JacobianChoice,
    LinearSolverChoice,
    Precision,
    PreconditionerChoice,
)
from caspar.runtime.backend import Backend
from caspar.solver.chain_structure import build_chains
from caspar.solver.coarse_structure import build_coarse_structure
from caspar.solver.factor_order import most_partners
from caspar.solver.jacobian_choice import recomputing_pays
from caspar.solver.kernel_library import KernelLibrary
from caspar.solver.launches import Binder
from caspar.solver.linear_solvers import LinearSolver, make_linear_solver
from caspar.solver.normal_equations import NormalEquations
from caspar.solver.phases import Phases
from caspar.solver.plan import Plan
from caspar.solver.planning import make_plan, plan_factors, plan_nodes
from caspar.solver.problem import Problem
from caspar.solver.tridiagonal import TridiagonalGradients
from caspar.solver.two_level import TwoLevelGradients

Signature = tuple[object, ...]
"""What two problems of the same structure have in common."""


@dataclass(frozen=True)
class Recipe:
    """What the user chose.

    Attributes:
        factors: Traced factors.
        nodes: Their node types.
        precision: Which floating types are used for what.
        linear_solver: How linear systems are solved.
        preconditioner: Of conjugate gradients.
        jacobian: Where Jacobians are.
        deterministic: Whether equal input must give equal bits.
        inner_iterations: Steps that eliminated nodes take by themselves after each common one.
    """

    factors: tuple[TracedFactor, ...]
    nodes: tuple[NodeType, ...]
    precision: Precision
    linear_solver: LinearSolverChoice
    preconditioner: PreconditionerChoice
    jacobian: JacobianChoice
    deterministic: bool
    inner_iterations: int


class Preparation:
    """Kernels and systems of a solver.

    Args:
        backend: Where they run.
        recipe: What the user chose.

    Attributes:
        types: Floating types.
        compile_time_s: Seconds of tracing and compiling not yet reported.

    Raises:
        FactorError: The linear solver needs an eliminable node type, and there is none.
    """

    def __init__(self, backend: Backend, recipe: Recipe) -> None:
        self.types: Types = TYPES[recipe.precision]
        self.compile_time_s = 0.0
        self._backend = backend
        self._recipe = recipe
        self._form = _choose_form(backend, recipe)
        self._design = SolverDesign(
            recipe.factors, recipe.nodes, recipe.precision, TARGETS[backend.name], self._form
        )
        self._libraries: dict[bool, KernelLibrary] = {}
        self._bound: list[KernelLibrary] = []
        self._lock, self._compiling = Lock(), Lock()
        self._kept: tuple[Signature, NormalEquations] | None = None

    def take_compile_time(self) -> float:
        """The seconds not yet reported."""
        time_s, self.compile_time_s = self.compile_time_s, 0.0
        return time_s

    def compile(self, *, wide_places: bool = False) -> KernelLibrary:
        """The kernels, generated and loaded when first needed.

        Args:
            wide_places: Of items in node tiles, see `memory.node_tiles.needs_wide_places`.
        """
        with self._compiling:
            if wide_places not in self._libraries:
                start = time.perf_counter()
                self._libraries[wide_places] = self._new_library(wide_places)
                self.compile_time_s += time.perf_counter() - start
            return self._libraries[wide_places]

    def _new_library(self, wide_places: bool) -> KernelLibrary:
        design, sources = self._design, solver_sources(self._design)
        owners = [factor.name for factor in design.factors]
        owners += [node.name for node in design.nodes]
        return KernelLibrary(self._backend, design.target, sources, owners, wide_places=wide_places)

    def _library_for(self, problem: Problem) -> KernelLibrary:
        if self._design.target.with_wide_places is None:
            return self.compile()
        most = most_partners(self._recipe.factors, self._form.factors, problem.counts)
        return self.compile(wide_places=needs_wide_places(most))

    def release(self) -> None:
        """Forget the system of the last solve."""
        with self._lock:
            self._kept = None

    def memory_table(self) -> str | None:
        """What is kept of the last solve; None before it."""
        with self._lock:
            return None if self._kept is None else self._kept[1].memory_table()

    @contextmanager
    def system(self, problem: Problem) -> Iterator[NormalEquations]:
        """The linearised problem, with the values of `problem` loaded.

        It belongs to the caller until the context ends; another thread gets one of its own.
        """
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is None or kept[0] != self._signature(problem.with_indices(kept[1].uploader())):
            # the old arena is let go of before the new one is allocated
            kept = None
            self._backend.trim()
            kept = self._make(problem)
        kept[1].load(problem)
        yield kept[1]
        with self._lock:
            self._kept = kept

    def _make(self, problem: Problem) -> tuple[Signature, NormalEquations]:
        recipe, library = self._recipe, self._library_for(problem)
        indexed = problem.with_indices(self._backend.upload)
        signature = self._signature(indexed)
        factors = plan_factors(library, self._form, recipe.factors, indexed)
        # the plan has indices of its own
        del indexed
        nodes = plan_nodes(library, self._form, recipe.nodes, problem.counts, factors)
        plan = make_plan(library, self.types, factors, nodes)
        start, known_s = time.perf_counter(), self.compile_time_s
        made = self._bind(library, plan)
        if library not in self._bound:
            # loops and reductions are compiled for the first structure
            self.compile_time_s = known_s + time.perf_counter() - start
            self._bound.append(library)
        return signature, made

    def _bind(self, library: KernelLibrary, plan: Plan) -> NormalEquations:
        recipe = self._recipe
        binder = Binder(plan)
        phases = Phases(plan, binder)
        own = {
            PreconditionerChoice.TWO_LEVEL: self._two_level,
            PreconditionerChoice.BLOCK_TRIDIAGONAL: self._tridiagonal,
        }.get(recipe.preconditioner)
        linear = make_linear_solver(
            # one of them means conjugate gradients
            recipe.linear_solver if own is None else LinearSolverChoice.PCG,
            plan,
            binder,
            phases,
            lambda: self._load_explicit(library),
            None if own is None else lambda remarks: own(plan, binder, phases, remarks),
        )
        return NormalEquations(plan, binder, linear)

    def _load_explicit(self, library: KernelLibrary) -> None:
        """The kernels that form the system as a matrix, when first needed."""
        if library.has_kernel("direct_end"):
            return
        self._load(library, explicit_sources)

    def _two_level(
        self, plan: Plan, binder: Binder, phases: Phases, remarks: tuple[str, ...]
    ) -> LinearSolver:
        structure = build_coarse_structure(plan, coarse_form(self._recipe.factors, self._form))
        self._load(plan.library, partial(coarse_sources, width=structure.width))
        return TwoLevelGradients(plan, binder, phases, structure, remarks)

    def _tridiagonal(
        self, plan: Plan, binder: Binder, phases: Phases, remarks: tuple[str, ...]
    ) -> LinearSolver:
        chains = build_chains(plan)
        self._load(plan.library, chain_sources)
        return TridiagonalGradients(plan, binder, phases, chains, remarks)

    def _load(
        self, library: KernelLibrary, sources: Callable[[SolverDesign], SolverSources]
    ) -> None:
        """More kernels of the solver."""
        start = time.perf_counter()
        library.load(sources(self._design))
        self.compile_time_s += time.perf_counter() - start

    def _signature(self, problem: Problem) -> Signature:
        indices = []
        sizes: list[object] = [(name, rows.shape) for name, rows in problem.values.items()]
        for name, factor in problem.factors.items():
            sizes.append((name, factor.count))
            indices += [index for index in factor.nodes.values() if index is not None]
            for source, constant in factor.constants.items():
                sizes.append((name, source, constant.rows.shape))
                if constant.index is not None:
                    indices.append(constant.index)
        return (*sizes, self._backend.checksum(indices))


_JACOBIANS = {
    JacobianChoice.STORED: JacobianStorage.STORED,
    JacobianChoice.FLOAT16: JacobianStorage.FLOAT16,
    JacobianChoice.RECOMPUTE: JacobianStorage.RECOMPUTED,
}


def _choose_form(backend: Backend, recipe: Recipe) -> SolverForm:
    eliminated: tuple[NodeType, ...] = ()
    if recipe.linear_solver is not LinearSolverChoice.PCG:
        eliminated = eliminable_types(recipe.factors, recipe.nodes)
    names = (LinearSolverChoice.SCHUR_PCG, LinearSolverChoice.SCHUR_DENSE)
    if recipe.linear_solver in names and len(eliminated) == 0:
        raise FactorError(
            f"linear_solver={recipe.linear_solver.value!r}: no node type can be eliminated; a type "
            "can where no factor touches two of its instances and another type remains. "
            "Use 'auto', 'pcg' or 'sparse'."
        )
    form = solver_form(
        recipe.factors,
        eliminated,
        usual_sums(backend.name, deterministic=recipe.deterministic),
        _choose_storage(backend, recipe, eliminated),
        recipe.inner_iterations,
    )
    if recipe.preconditioner is PreconditionerChoice.TWO_LEVEL:
        _check_two_level(recipe, form)
    if recipe.preconditioner is PreconditionerChoice.BLOCK_TRIDIAGONAL:
        _check_tridiagonal(recipe, form)
    return form


def _choose_storage(
    backend: Backend, recipe: Recipe, eliminated: Sequence[NodeType]
) -> JacobianStorage:
    if recipe.jacobian is not JacobianChoice.AUTO:
        return _JACOBIANS[recipe.jacobian]
    if recipe.linear_solver in (LinearSolverChoice.SCHUR_DENSE, LinearSolverChoice.SPARSE):
        return JacobianStorage.STORED
    on_cuda = backend.name == "cuda"
    usual = JacobianStorage.RECOMPUTED if on_cuda else JacobianStorage.STORED
    if recipe.linear_solver is LinearSolverChoice.AUTO:
        usual = usual_storage(recipe.factors, eliminated, backend.name)
    types = TYPES[recipe.precision]
    if not usual.is_stored and not recomputing_pays(recipe.factors, types, backend):
        return JacobianStorage.STORED
    return usual


def _check_two_level(recipe: Recipe, form: SolverForm) -> None:
    allowed = (LinearSolverChoice.AUTO, LinearSolverChoice.SCHUR_PCG)
    if recipe.linear_solver not in allowed:
        raise OptionError(
            f"preconditioner='two_level' with linear_solver={recipe.linear_solver.value!r}: it is "
            "for conjugate gradients on the Schur complement; use linear_solver='schur_pcg' or "
            "'auto'"
        )
    refusal = coarse_refusal(recipe.factors, form)
    if refusal != "":
        raise FactorError(
            f"preconditioner='two_level': {refusal}. Use preconditioner='block_jacobi' or 'auto'"
        )


def _check_tridiagonal(recipe: Recipe, form: SolverForm) -> None:
    direct = (LinearSolverChoice.SCHUR_DENSE, LinearSolverChoice.SPARSE)
    if recipe.linear_solver in direct:
        raise OptionError(
            "preconditioner='block_tridiagonal' with linear_solver="
            f"{recipe.linear_solver.value!r}: it is one of conjugate gradients; use "
            "linear_solver='pcg', 'schur_pcg' or 'auto'"
        )
    refusal = chain_refusal(recipe.factors, form)
    if refusal != "":
        raise FactorError(
            f"preconditioner='block_tridiagonal': {refusal}. Use preconditioner='block_jacobi' "
            "or 'auto'"
        )
