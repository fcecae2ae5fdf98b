"""The kernels of a solver: how they are made, and which are loaded.

Input: a backend and what the user chose; counts of node types, as far as they are known. Output:
designs and libraries of kernels. Cost tier: once for a solver, and again where counts have other
types eliminated, or need wider indices.
"""

import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from functools import partial
from threading import Lock

from caspar.codegen.source import KernelSource
from caspar.codegen.targets import TARGETS
from caspar.driver import SolverDesign, SolverSources, compile_specs, ignored, solver_sources
from caspar.errors import SizeError
from caspar.memory.tiling.node_tiles import needs_wide_places
from caspar.options import LinearSolverChoice
from caspar.progress import phase
from caspar.runtime.backend import Backend
from caspar.solver.choice.form import Recipe, choose_eliminated, choose_form
from caspar.solver.input.problem import Problem
from caspar.solver.linear.method import Specs
from caspar.solver.linear.methods import METHODS
from caspar.solver.plan.factor_order import most_partners
from caspar.solver.plan.kernel_library import KernelLibrary


class SolverKernels:
    """Designs and libraries."""

    def __init__(self, backend: Backend, recipe: Recipe) -> None:
        self.compile_time_s = 0.0
        self._backend = backend
        self._recipe = recipe
        self._designs: dict[tuple[str, ...], SolverDesign] = {}
        self._libraries: dict[tuple[tuple[str, ...], bool], KernelLibrary] = {}
        self._compiling = Lock()
        # what no counts make right is refused before there are any
        self.design()

    def design(
        self, counts: Mapping[str, int] | None = None, instances: Mapping[str, int] | None = None
    ) -> SolverDesign:
        """Return how kernels are made; counts of nodes and instances decide, if they are known."""
        recipe, target = self._recipe, TARGETS[self._backend.traits.target]
        eliminated = choose_eliminated(recipe, counts, instances)
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
        """The kernels, generated and loaded when first needed; None: for unknown counts."""
        made = self.design() if design is None else design
        with self._compiling:
            key = (made.form.eliminated, wide_places)
            if key not in self._libraries:
                start = time.perf_counter()
                self._libraries[key] = self._new_library(made, wide_places)
                self.compile_time_s += time.perf_counter() - start
            return self._libraries[key]

    def compile_all(self) -> None:
        """`compile`, and the kernels of linear methods that are likely to be needed."""
        design = self.design()
        library = self.compile(design)
        is_open = self._recipe.linear_solver is LinearSolverChoice.AUTO
        for method in METHODS:
            if method.is_likely(self._recipe, design.form):
                # a method that `auto` chose and that is refused gives way to another one
                with suppress(SizeError) if is_open else nullcontext():
                    self.load(design, library, method.name, partial(method.specs, design))

    def load(self, design: SolverDesign, library: KernelLibrary, name: str, specs: Specs) -> None:
        """Compile more kernels, unless the library has those of this name."""
        if name in library.loaded:
            return
        start = time.perf_counter()
        sources = compile_specs([design.key, name], design.target, specs)
        with phase(_loading(sources)):
            library.load(name, sources)
        self.compile_time_s += time.perf_counter() - start

    def library_for(self, design: SolverDesign, problem: Problem) -> KernelLibrary:
        """The kernels for the counts and indices of a problem."""
        if design.target.with_wide_places is None:
            return self.compile(design)
        most = most_partners(design.factors, design.form.factors, problem.counts)
        most_narrow = self._recipe.limits.max_narrow_partners
        return self.compile(design, wide_places=needs_wide_places(most, most_narrow))

    def _new_library(self, design: SolverDesign, wide_places: bool) -> KernelLibrary:
        is_settled = self._recipe.deterministic

        def begin(source: KernelSource) -> None:
            self._backend.begin(source, None, is_settled=is_settled)

        sources = solver_sources(design, ignored if wide_places else begin)
        owners = [factor.name for factor in design.factors]
        owners += [node.name for node in design.nodes]
        with phase(_loading(sources)):
            return KernelLibrary(
                self._backend,
                design.target,
                sources,
                owners,
                wide_places=wide_places,
                is_settled=is_settled,
            )


def _loading(sources: SolverSources) -> str:
    return f"compiling what the cache lacks of {len(sources.kernels)} kernels"
