"""Prepare kernels and systems before the iterations, and keep them for the next solves.

Each device here has a `KeptSystem` for its part. Several devices are those of one process, or one
of each of several processes.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from caspar.driver import SolverDesign
from caspar.equations.solver_form import eliminable_types
from caspar.errors import BackendError, GroupError, UnsuitedError
from caspar.options import LinearSolverChoice
from caspar.progress import phase, showing
from caspar.runtime.backend import Backend
from caspar.solver.choice.form import FORMS_MATRIX, Recipe
from caspar.solver.input.problem import Problem
from caspar.solver.linear.method import LinearSystem
from caspar.solver.linear.methods import make_solvers
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.plan.kernel_library import KernelLibrary
from caspar.solver.plan.plan import Plan
from caspar.solver.plan.planning import make_plan, plan_factors, plan_nodes, warn_untouched
from caspar.solver.plan.shard import Shard
from caspar.solver.shards.crew import Crew, Reading, Share
from caspar.solver.solver_kernels import SolverKernels
from caspar.solver.system.phases import bound_phases

if TYPE_CHECKING:
    from caspar.solver.shards.devices import Devices, Team


Signature = tuple[object, ...]
"""A key that is equal for problems of the same structure."""

MAX_KEPT = 4
"""Systems of small problems that are kept: a loop often alternates between a few structures."""


@dataclass(frozen=True)
class _Kept:
    signature: Signature
    system: NormalEquations
    is_small: bool


class KeptSystem:
    """Kernels of a recipe on one device, and the systems of the last solves."""

    def __init__(self, backend: Backend, recipe: Recipe) -> None:
        self.recipe = recipe
        self.kernels = SolverKernels(backend, recipe)
        self._backend = backend
        self._bound: list[tuple[KernelLibrary, tuple[bool, ...]]] = []
        self._lock = Lock()
        # the most recently used one is last
        self._kept: list[_Kept] = []
        self._num_releases = 0

    def release(self) -> None:
        """Forget all systems, also where a solve has not ended."""
        with self._lock:
            self._kept.clear()
            self._num_releases += 1

    def make_room(self) -> None:
        """Forget the system of a large problem."""
        with self._lock:
            self._kept = [one for one in self._kept if one.is_small]

    def memory_table(self) -> str | None:
        """Describe what is kept of the last solve, and that there is more; None before it."""
        with self._lock:
            if len(self._kept) == 0:
                return None
            *others, last = (one.system for one in self._kept)
            return last.memory_table(others)

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
        """
        with self._lock:
            last = self._kept.pop() if len(self._kept) > 0 else None
            num_releases = self._num_releases
        kept = None if last is None else self._found(last, problem, shard)
        if kept is None:
            # the old arena of a large problem is let go of before the new one is allocated
            last = None
            with phase("setting up"):
                kept = self._make(problem, shard)
        elif shard is not None and kept.system.plan.shard is not None:
            kept.system.plan.shard.take_over(shard)
        kept.system.load(problem)
        # a part's arrays may have been made for this
        del problem
        is_usable = True
        try:
            yield kept.system
        except (BackendError, MemoryError):
            is_usable = False
            raise
        finally:
            with self._lock:
                if is_usable and self._num_releases == num_releases:
                    beside = [one for one in self._kept if one.is_small and kept.is_small]
                    self._kept = [*beside[-MAX_KEPT + 1 :], kept]

    def _found(self, last: _Kept, problem: Problem, shard: Shard | None) -> _Kept | None:
        """The system of a problem of the same structure; `last` is kept if it is another one."""
        indexed = problem.with_indices(last.system.uploader())
        signature = self._signature(indexed, shard)
        if last.signature == signature:
            return last
        with self._lock:
            if last.is_small:
                self._kept.append(last)
            found = next((one for one in self._kept if one.signature == signature), None)
            if found is not None:
                self._kept.remove(found)
        return found

    def _make(self, problem: Problem, shard: Shard | None) -> _Kept:
        counts: Mapping[str, int] = problem.counts
        instances: Mapping[str, int] = problem.num_instances
        num_items = sum(counts.values()) + sum(instances.values())
        is_small = shard is None and num_items <= self.recipe.limits.max_items_beside
        if not is_small:
            with self._lock:
                self._kept.clear()
            self._backend.trim()
        if shard is not None:
            counts, instances = shard.counts, shard.instances
        limits, design = self.recipe.limits, self.kernels.design(counts, instances)
        library, form = self.kernels.library_for(design, problem), design.form
        if shard is None:
            warn_untouched(self._backend, problem, design.factors)
        indexed = problem.with_indices(self._backend.upload)
        signature = self._signature(indexed, shard)
        present = [one for one in design.factors if problem.factors[one.name].count > 0]
        in_order = () if shard is None else shard.in_order
        factors = plan_factors(library, form, present, indexed, limits, in_order)
        # the plan has indices of its own
        del indexed
        nodes = plan_nodes(library, form, design.nodes, problem.counts, factors, limits, shard)
        plan = make_plan(library, design.types, factors, nodes, limits, shard)
        system = self._renewed(design, plan) if is_small else None
        if system is None:
            system = self._timed(design, plan)
        return _Kept(signature, system, is_small)

    def _renewed(self, design: SolverDesign, plan: Plan) -> NormalEquations | None:
        """A system that is kept and that has taken a plan; None: one has to be made."""
        with self._lock:
            if len(self._kept) < MAX_KEPT:
                return None
            kind = plan.kind
            of_kind = (one for one in self._kept if one.system.plan.kind == kind)
            oldest = next(of_kind, self._kept[0])
            self._kept.remove(oldest)
        load = partial(self.kernels.load, design, plan.library)
        is_renewed = oldest.system.renewed(
            plan,
            lambda binder, phases, usual: make_solvers(
                LinearSystem(self.recipe, design, plan, binder, phases, load, usual)
            ),
        )
        return oldest.system if is_renewed else None

    def _timed(self, design: SolverDesign, plan: Plan) -> NormalEquations:
        """A new system; what it has compiled counts as compiling."""
        library, nodes = plan.library, plan.nodes
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
        return made

    def _bind(self, design: SolverDesign, plan: Plan) -> NormalEquations:
        load = partial(self.kernels.load, design, plan.library)
        binder, phases = bound_phases(plan)
        system = LinearSystem(self.recipe, design, plan, binder, phases, load)
        return NormalEquations(plan, binder, phases, make_solvers(system))

    def _signature(self, problem: Problem, shard: Shard | None) -> Signature:
        sizes, indices = problem.structure()
        return (None if shard is None else shard.key, *sizes, self._backend.checksum(indices))


Entered = AbstractContextManager[NormalEquations]


class Preparation:
    """Kernels and systems of a recipe."""

    def __init__(self, backend: Backend, devices: "Devices | None", recipe: Recipe) -> None:
        self._devices = devices
        self._whole = KeptSystem(backend, recipe)
        self._own: list[KeptSystem] = []
        self.kernels = self._whole.kernels
        self._lock = Lock()
        if devices is not None:
            self._recipe = without_matrices(recipe)
            self._own = [KeptSystem(member, self._recipe) for member in devices.members]
            if devices.peers is not None:
                self.kernels = self._own[0].kernels

    def release(self) -> None:
        """Forget all systems, also where a solve has not ended."""
        for one in (self._whole, *self._own):
            one.release()

    def make_room(self) -> None:
        """Forget the systems of large problems, such as those that several devices share."""
        self._whole.make_room()
        for one in self._own:
            one.release()

    def memory_table(self) -> str | None:
        """Describe what is kept of the last solve on the devices here; None before it."""
        from caspar.solver.plan.memory_table import joined_tables

        held = [
            (one.device, table) for one in self._own if (table := one.memory_table()) is not None
        ]
        return joined_tables(held) if len(held) > 0 else self._whole.memory_table()

    @contextmanager
    def open(self, reading: Reading) -> Iterator[Crew]:
        """The systems of a problem, with its values loaded; one problem at a time.

        Of several processes all call this at the same time.
        """
        devices = self._devices
        if devices is None:
            assert reading.own is not None
            with self._whole.system(reading.own) as system:
                yield Crew(reading, self.kernels, (system,))
            return
        peers, limits = devices.peers, self._recipe.limits
        with ExitStack() as stack:
            if peers is not None:
                stack.enter_context(showing(None if peers.rank == 0 else False))
                # messages of two solves would mix
                stack.enter_context(self._lock)
            design = partial(self._own[0].kernels.design, reading.whole.counts, reading.instances)
            least = limits.min_instances_of_device
            share = devices.share(reading, design, least, self._give_room)
            if peers is None and len(share.shards) == 0:
                for one in self._own:
                    one.release()
                system = stack.enter_context(self._whole.system(share.problems.pop(0)))
                system.more_remarks = share.remarks
                yield Crew(reading, self.kernels, (system,))
                return
            if peers is None:
                stack.enter_context(self._lock)
            yield stack.enter_context(self._entered(devices, reading, share))

    @contextmanager
    def _entered(self, devices: "Devices", reading: Reading, share: Share) -> Iterator[Crew]:
        """The system of each part, made in the thread of its device."""
        from caspar.solver.shards.split import last_values

        is_shared = len(share.shards) > 0
        # those of the last solve are not in the way
        for one in [self._whole] if is_shared else self._own:
            one.release()
        team, number = devices.team(share.active if is_shared else ())
        contexts: list[Entered | None] = [None] * len(team.members)

        def enter(place: int) -> NormalEquations | None:
            own = share.problems.pop(place, None)
            if own is None:
                return None
            if own.is_parted:
                own = own.joined(team.members[place])
            if is_shared:
                shard = replace(share.shards[place], group=number)
                context = self._own[place].system(own, shard)
            else:
                context = self._whole.system(own)
            system = context.__enter__()
            contexts[place] = context
            if is_shared:
                system.share_with(share.shards[place].rank, team.group)
            system.more_remarks = share.remarks
            return system

        error: BaseException | None = None
        systems: list[NormalEquations | None] = []
        try:
            systems = team.each(enter)
            yield Crew(reading, self.kernels, systems, team)
        except BaseException as raised:
            error = raised
            if isinstance(raised, GroupError) and len(systems) > 0 and systems[0] is not None:
                raised.values = last_values(systems[0], reading.whole.values, team.members[0])
            raise
        finally:
            _give_back(team, contexts, error)

    def _give_room(self) -> None:
        self.release()
        for one in self._own:
            one.trim()


def _give_back(
    team: "Team", contexts: Sequence[Entered | None], error: BaseException | None
) -> None:
    """All systems, or none: after an error of a device its plans are not kept."""
    for member, context in zip(team.members, contexts, strict=True):
        if context is None:
            continue
        with member.scope():
            try:
                context.__exit__(None if error is None else type(error), error, None)
            except BaseException as raised:
                if raised is not error:
                    raise


def without_matrices(recipe: Recipe) -> Recipe:
    """Return the recipe with conjugate gradients, which devices can share."""
    chosen = recipe.linear_solver
    if chosen in FORMS_MATRIX:
        raise UnsuitedError(
            f"linear_solver={chosen.value!r} forms a matrix, which several devices do not share",
            "Use 'auto', 'pcg' or 'schur_pcg', or devices=1.",
        )
    if chosen is not LinearSolverChoice.AUTO:
        return recipe
    names = recipe.eliminate
    if names is None:
        names = tuple(node.name for node in eliminable_types(recipe.factors, recipe.nodes))
    eliminates = 0 < len(names) < len(recipe.nodes)
    gradients = LinearSolverChoice.SCHUR_PCG if eliminates else LinearSolverChoice.PCG
    return replace(recipe, linear_solver=gradients)
