"""What a device makes before it iterates, and keeps for the next solve of the same structure.

Cost tiers: order, memory and captured launches once for a structure (counts and indices); values
once for a solve.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Lock

from caspar.driver import SolverDesign
from caspar.errors import BackendError
from caspar.progress import phase
from caspar.runtime.backend import Backend
from caspar.solver.choice.form import Recipe
from caspar.solver.input.problem import Problem
from caspar.solver.linear.method import LinearSystem
from caspar.solver.linear.methods import make_solvers
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.plan.kernel_library import KernelLibrary
from caspar.solver.plan.plan import Plan
from caspar.solver.plan.planning import make_plan, plan_factors, plan_nodes
from caspar.solver.plan.shard import Shard
from caspar.solver.solver_kernels import SolverKernels
from caspar.solver.system.phases import bound_phases

Signature = tuple[object, ...]
"""What two problems of the same structure have in common."""


class KeptSystem:
    """Kernels of a recipe on one device, and the system of the last solve.

    Args:
        backend: Where they run.
        recipe: What the user chose.

    Attributes:
        recipe: The same.
        kernels: How they are made, and which are loaded.

    Raises:
        UnsuitedError: The linear solver is not for such factors.
    """

    def __init__(self, backend: Backend, recipe: Recipe) -> None:
        self.recipe = recipe
        self.kernels = SolverKernels(backend, recipe)
        self._backend = backend
        self._bound: list[tuple[KernelLibrary, tuple[bool, ...]]] = []
        self._lock = Lock()
        self._kept: tuple[Signature, NormalEquations] | None = None
        self._num_releases = 0

    def release(self) -> None:
        """Forget the system of the last solve, also where that has not ended."""
        with self._lock:
            self._kept = None
            self._num_releases += 1

    def memory_table(self) -> str | None:
        """What is kept of the last solve; None before it."""
        with self._lock:
            return None if self._kept is None else self._kept[1].memory_table()

    @property
    def device(self) -> str:
        """The device, in words."""
        return self._backend.device

    def trim(self) -> None:
        """Give memory of the device back that nobody uses."""
        with self._backend.scope():
            self._backend.trim()

    @contextmanager
    def system(self, problem: Problem, shard: Shard | None = None) -> Iterator[NormalEquations]:
        """The linearised problem, with the values of `problem` loaded.

        It belongs to the caller until the context ends; another thread gets one of its own. It is
        kept also where a callback raises, but not where the device or its memory fails.

        Args:
            problem: The problem, or a part of it.
            shard: Which part, and what it knows of the whole; None: it is all of it.
        """
        with self._lock:
            kept, self._kept = self._kept, None
            num_releases = self._num_releases
        if kept is None or kept[0] != self._signature(
            problem.with_indices(kept[1].uploader()), shard
        ):
            # the old arena is let go of before the new one is allocated
            kept = None
            self._backend.trim()
            with phase("setting up"):
                kept = self._make(problem, shard)
        elif shard is not None and kept[1].plan.shard is not None:
            kept[1].plan.shard.take_over(shard)
        kept[1].load(problem)
        # a part's arrays may have been made for this
        del problem
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

    def _make(self, problem: Problem, shard: Shard | None) -> tuple[Signature, NormalEquations]:
        counts: Mapping[str, int] = problem.counts
        instances: Mapping[str, int] = problem.num_instances
        if shard is not None:
            counts, instances = shard.counts, shard.instances
        limits, design = self.recipe.limits, self.kernels.design(counts, instances)
        library, form = self.kernels.library_for(design, problem), design.form
        indexed = problem.with_indices(self._backend.upload)
        signature = self._signature(indexed, shard)
        present = [one for one in design.factors if problem.factors[one.name].count > 0]
        in_order = () if shard is None else shard.in_order
        factors = plan_factors(library, form, present, indexed, limits, in_order)
        # the plan has indices of its own
        del indexed
        nodes = plan_nodes(library, form, design.nodes, problem.counts, factors, limits, shard)
        plan = make_plan(library, design.types, factors, nodes, limits, shard)
        start, known_s = time.perf_counter(), self.kernels.compile_time_s
        reductions_s = library.reductions_time_s
        made = self._bind(design, plan)
        if made.is_direct:
            # the analysis of the matrix is not compiling
            self.kernels.compile_time_s += library.reductions_time_s - reductions_s
        elif (bound := (library, tuple(node.has_many_slots for node in nodes))) not in self._bound:
            # loops and reductions are compiled for the first structure
            self.kernels.compile_time_s = known_s + time.perf_counter() - start
            self._bound.append(bound)
        return signature, made

    def _bind(self, design: SolverDesign, plan: Plan) -> NormalEquations:
        load = partial(self.kernels.load, design, plan.library)
        binder, phases = bound_phases(plan)
        system = LinearSystem(self.recipe, design, plan, binder, phases, load)
        return NormalEquations(plan, binder, phases, make_solvers(system))

    def _signature(self, problem: Problem, shard: Shard | None) -> Signature:
        indices = []
        sizes: list[object] = [(name, rows.shape) for name, rows in problem.values.items()]
        sizes.append(None if shard is None else shard.key)
        for name, factor in problem.factors.items():
            sizes.append((name, factor.count))
            indices += [index for index in factor.nodes.values() if index is not None]
            for source, constant in factor.constants.items():
                sizes.append((name, source, constant.rows.shape))
                if constant.index is not None:
                    indices.append(constant.index)
        return (*sizes, self._backend.checksum(indices))
