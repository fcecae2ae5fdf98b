"""What a solver makes before it iterates, and keeps for the next solve of the same structure.

Cost tiers: kernels once for a solver; order, memory and captured launches once for a structure
(counts and indices); values once for a solve.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock

from caspar.driver import (
    TARGETS,
    SolverDesign,
    SolverSources,
    chain_sources,
    coarse_sources,
    explicit_sources,
    slot_sources,
    solver_sources,
)
from caspar.equations.linear.coarse_form import coarse_form, coarse_refusal
from caspar.equations.linear.coarse_kernels import apply_name
from caspar.equations.node_kernels import STEP_OF_MANY_SLOTS
from caspar.errors import BackendError, SizeError
from caspar.frontend.names import kernel_name
from caspar.frontend.precision import TYPES, Types
from caspar.memory.accessors.sums.slots import MAX_OBJECT_SLOTS, USUAL_SLOTS
from caspar.memory.tiling.node_tiles import needs_wide_places
from caspar.options import (
    LinearSolverChoice,
    PreconditionerChoice,
)
from caspar.runtime.backend import Backend
from caspar.solver.choice.elimination import OWN_GRADIENTS, choose_eliminated
from caspar.solver.choice.form import Recipe, choose_form
from caspar.solver.input.problem import Problem
from caspar.solver.iterate.normal_equations import NormalEquations
from caspar.solver.linear.linear_solvers import LinearSolver, make_linear_solver
from caspar.solver.linear.tridiagonal.chain_structure import build_chains
from caspar.solver.linear.tridiagonal.tridiagonal import TridiagonalGradients
from caspar.solver.linear.two_level.coarse_structure import build_coarse_structure
from caspar.solver.linear.two_level.two_level import TwoLevelGradients
from caspar.solver.plan.factor_order import most_partners
from caspar.solver.plan.kernel_library import KernelLibrary
from caspar.solver.plan.plan import Plan
from caspar.solver.plan.planning import make_plan, plan_factors, plan_nodes
from caspar.solver.system.launches import Binder
from caspar.solver.system.phases import Phases

Signature = tuple[object, ...]
"""What two problems of the same structure have in common."""


class Preparation:
    """Kernels and systems of a solver.

    Args:
        backend: Where they run.
        recipe: What the user chose.

    Attributes:
        types: Floating types.
        compile_time_s: Seconds of tracing and compiling not yet reported.

    Raises:
        UnsuitedError: The linear solver or the preconditioner is not for such factors.
    """

    def __init__(self, backend: Backend, recipe: Recipe) -> None:
        self.types: Types = TYPES[recipe.precision]
        self.compile_time_s = 0.0
        self._backend = backend
        self._recipe = recipe
        self._designs: dict[tuple[str, ...], SolverDesign] = {}
        self._libraries: dict[tuple[tuple[str, ...], bool], KernelLibrary] = {}
        self._bound: list[tuple[KernelLibrary, tuple[bool, ...]]] = []
        self._lock, self._compiling = Lock(), Lock()
        self._kept: tuple[Signature, NormalEquations] | None = None
        self._num_releases = 0
        # what no counts make right is refused before there are any
        self.design()

    def design(self, counts: Mapping[str, int] | None = None) -> SolverDesign:
        """How kernels are made.

        Args:
            counts: Instances of each node type, by name: what they have eliminated. None: unknown.
        """
        recipe, target = self._recipe, TARGETS[self._backend.traits.target]
        eliminated = choose_eliminated(recipe, counts)
        names = tuple(node.name for node in eliminated)
        if names not in self._designs:
            form = choose_form(self._backend, recipe, eliminated)
            self._designs[names] = SolverDesign(
                recipe.factors, recipe.nodes, recipe.precision, target, form
            )
        return self._designs[names]

    def take_compile_time(self) -> float:
        """The seconds not yet reported."""
        time_s, self.compile_time_s = self.compile_time_s, 0.0
        return time_s

    def compile(
        self, design: SolverDesign | None = None, *, wide_places: bool = False
    ) -> KernelLibrary:
        """The kernels, generated and loaded when first needed.

        Args:
            design: How they are made. None: as for counts that are not known.
            wide_places: Of items in node tiles, see `memory.tiling.node_tiles.needs_wide_places`.
        """
        made = self.design() if design is None else design
        with self._compiling:
            key = (made.form.eliminated, wide_places)
            if key not in self._libraries:
                start = time.perf_counter()
                self._libraries[key] = self._new_library(made, wide_places)
                self.compile_time_s += time.perf_counter() - start
            return self._libraries[key]

    def compile_all(self) -> None:
        """`compile`, and what forms a matrix where one is likely to be factorised."""
        design = self.design()
        library = self.compile(design)
        if self._recipe.preconditioner in OWN_GRADIENTS:
            return
        chosen = self._recipe.linear_solver
        is_auto = chosen is LinearSolverChoice.AUTO and len(design.form.eliminated) == 0
        if is_auto:
            # a matrix that is refused gives way to conjugate gradients
            with suppress(SizeError):
                self._load_explicit(design, library)
        elif chosen in (LinearSolverChoice.SCHUR_DENSE, LinearSolverChoice.SPARSE):
            self._load_explicit(design, library)

    def _new_library(self, design: SolverDesign, wide_places: bool) -> KernelLibrary:
        sources = solver_sources(design)
        owners = [factor.name for factor in design.factors]
        owners += [node.name for node in design.nodes]
        is_coarse = self._recipe.preconditioner is PreconditionerChoice.TWO_LEVEL
        return KernelLibrary(
            self._backend,
            design.target,
            sources,
            owners,
            wide_places=wide_places,
            max_tile_size=self._backend.traits.max_cluster_tile if is_coarse else None,
        )

    def _library_for(self, design: SolverDesign, problem: Problem) -> KernelLibrary:
        if design.target.with_wide_places is None:
            return self.compile(design)
        most = most_partners(design.factors, design.form.factors, problem.counts)
        most_narrow = self._recipe.limits.max_narrow_partners
        return self.compile(design, wide_places=needs_wide_places(most, most_narrow))

    def release(self) -> None:
        """Forget the system of the last solve, also where that has not ended."""
        with self._lock:
            self._kept = None
            self._num_releases += 1

    def memory_table(self) -> str | None:
        """What is kept of the last solve; None before it."""
        with self._lock:
            return None if self._kept is None else self._kept[1].memory_table()

    @contextmanager
    def system(self, problem: Problem) -> Iterator[NormalEquations]:
        """The linearised problem, with the values of `problem` loaded.

        It belongs to the caller until the context ends; another thread gets one of its own. It is
        kept also where a callback raises, but not where the device or its memory fails.
        """
        with self._lock:
            kept, self._kept = self._kept, None
            num_releases = self._num_releases
        if kept is None or kept[0] != self._signature(problem.with_indices(kept[1].uploader())):
            # the old arena is let go of before the new one is allocated
            kept = None
            self._backend.trim()
            kept = self._make(problem)
        kept[1].load(problem)
        is_usable = True
        try:
            yield kept[1]
        except (BackendError, MemoryError):
            is_usable = False
            raise
        finally:
            with self._lock:
                if is_usable and self._num_releases == num_releases:
                    self._kept = kept

    def _make(self, problem: Problem) -> tuple[Signature, NormalEquations]:
        limits, design = self._recipe.limits, self.design(problem.counts)
        library, form = self._library_for(design, problem), design.form
        indexed = problem.with_indices(self._backend.upload)
        signature = self._signature(indexed)
        factors = plan_factors(library, form, design.factors, indexed, limits)
        # the plan has indices of its own
        del indexed
        has_own = self._recipe.preconditioner in OWN_GRADIENTS
        # the kernels of those read no more
        most_slots = USUAL_SLOTS if has_own else MAX_OBJECT_SLOTS
        nodes = plan_nodes(library, form, design.nodes, problem.counts, factors, most_slots, limits)
        plan = make_plan(library, self.types, factors, nodes, limits)
        start, known_s = time.perf_counter(), self.compile_time_s
        reductions_s = library.reductions_time_s
        made = self._bind(design, plan)
        if made.is_direct:
            # the analysis of the matrix is not compiling
            self.compile_time_s += library.reductions_time_s - reductions_s
        elif (bound := (library, tuple(node.has_many_slots for node in nodes))) not in self._bound:
            # loops and reductions are compiled for the first structure
            self.compile_time_s = known_s + time.perf_counter() - start
            self._bound.append(bound)
        return signature, made

    def _bind(self, design: SolverDesign, plan: Plan) -> NormalEquations:
        recipe = self._recipe
        binder = Binder(plan)
        phases = Phases(plan, binder)
        own = None
        if recipe.preconditioner in OWN_GRADIENTS:
            own = partial(self._preconditioned, design, plan, binder, phases)
        linear = make_linear_solver(
            # one of them means conjugate gradients
            recipe.linear_solver if own is None else LinearSolverChoice.PCG,
            plan,
            binder,
            phases,
            lambda: self._load_explicit(design, plan.library),
            lambda: self._load_steps(design, plan),
            own,
        )
        return NormalEquations(plan, binder, phases, linear, self._stronger(design, linear))

    def _stronger(self, design: SolverDesign, linear: LinearSolver) -> str:
        """The preconditioner that is not the user's choice, and would suit."""
        usual = (PreconditionerChoice.AUTO, PreconditionerChoice.BLOCK_JACOBI)
        if linear.name != "schur_pcg" or self._recipe.preconditioner not in usual:
            return ""
        suits = coarse_refusal(design.factors, design.form) == ""
        return "preconditioner='two_level'" if suits else ""

    def _load_explicit(self, design: SolverDesign, library: KernelLibrary) -> None:
        """The kernels that form the system as a matrix, when first needed."""
        self._load(library, "direct_end", partial(explicit_sources, design))

    def _load_steps(self, design: SolverDesign, plan: Plan) -> None:
        """The steps of nodes whose products have many slots, when first needed."""
        for node in plan.reduced:
            if node.has_many_slots:
                name = kernel_name(node.node.name, STEP_OF_MANY_SLOTS)
                self._load(plan.library, name, partial(slot_sources, design, node.node))

    def _preconditioned(
        self,
        design: SolverDesign,
        plan: Plan,
        binder: Binder,
        phases: Phases,
        remarks: tuple[str, ...],
    ) -> LinearSolver:
        """Conjugate gradients of `OWN_GRADIENTS`."""
        if self._recipe.preconditioner is PreconditionerChoice.TWO_LEVEL:
            structure = build_coarse_structure(plan, coarse_form(design.factors, design.form))
            sources = partial(coarse_sources, design, structure.width)
            self._load(plan.library, apply_name(structure.width), sources)
            return TwoLevelGradients(plan, binder, phases, structure, remarks)
        chains = build_chains(plan)
        self._load(plan.library, "chain_begin", partial(chain_sources, design))
        return TridiagonalGradients(plan, binder, phases, chains, remarks)

    def _load(
        self, library: KernelLibrary, name: str, sources: Callable[[], SolverSources]
    ) -> None:
        """More kernels, unless the library has the one of that name, and with it all of them."""
        if library.has_kernel(name):
            return
        start = time.perf_counter()
        library.load(sources())
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
