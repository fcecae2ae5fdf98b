"""What a solver on several devices makes before it iterates, and keeps for the next solve.

As `solver.preparation`, whose `Preparation` each device has for its part.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from threading import Lock

from caspar.equations.solver_form import eliminable_types
from caspar.errors import UnsuitedError
from caspar.options import LinearSolverChoice, PreconditionerChoice
from caspar.solver.choice.form import FORMS_MATRIX, Recipe
from caspar.solver.input.problem import Problem
from caspar.solver.iterate.normal_equations import NormalEquations
from caspar.solver.iterated import System
from caspar.solver.plan.shard import Shard
from caspar.solver.plan.untouched import warn_untouched_of
from caspar.solver.preparation import Preparation
from caspar.solver.shards.devices import Devices
from caspar.solver.shards.findings import SharedFindings, rows_of_threads
from caspar.solver.shards.split import Part, split_problem
from caspar.solver.shards.system import ShardedSystem
from caspar.solver.shards.team import Team, ThreadSystems

UNEVEN = 1.5
"""Times its even share from which on users are told that a device has more."""


class ShardedPreparation:
    """Kernels and systems of a solver on several devices.

    Args:
        devices: Where they are.
        recipe: What the user chose.

    Attributes:
        kernels: Of the first device.

    Raises:
        UnsuitedError, OptionError: As `Preparation`; and for what devices cannot share.
    """

    def __init__(self, devices: Devices, recipe: Recipe) -> None:
        self._devices = devices
        self._whole = Preparation(devices.first, recipe)
        self._recipe = without_matrices(recipe)
        self._own: list[Preparation] = []
        self.kernels = self._whole.kernels
        self._table: str | None = None
        self._told: tuple[dict[str, int], dict[str, int]] | None = None
        self._lock = Lock()

    def release(self) -> None:
        """Forget the systems of the last solve, also where that has not ended."""
        for preparation in (self._whole, *self._own):
            preparation.release()
        self._table = None

    def make_room(self) -> None:
        """Forget all systems: what several devices share is large."""
        self.release()

    def memory_table(self) -> str | None:
        """What is kept of the last solve; None before it."""
        return self._whole.memory_table() if self._table is None else self._table

    @contextmanager
    def system(self, problem: Problem) -> Iterator[System]:
        """The linearised problem, with the values of `problem` loaded; one at a time."""
        num_instances = sum(factor.count for factor in problem.factors.values())
        wanted = self._devices.size
        if wanted == 1:
            with self._whole.system(problem.joined(self._devices.first)) as single:
                yield single
            return
        least = self._recipe.limits.min_instances_of_device
        if num_instances < wanted * least:
            remark = (
                f"One device solved this problem, not {wanted}: with {num_instances:,} instances "
                f"of factors it is quicker (several pay from {wanted * least:,} on)."
            )
            with self._on_one(problem, remark) as single:
                yield single
            return
        with self._lock:
            parts = self._split(problem)
            if len(parts) == 1:
                remark = "One device solved this problem: all factors touch the same node."
                with self._on_one(problem, remark) as single:
                    yield single
                return
            shards, nodes = [part.shard for part in parts], [part.nodes for part in parts]
            remarks = _remarks(wanted, parts)
            # what was picked is let go of as soon as each device has it
            problems = {rank: part.problem for rank, part in enumerate(parts)}
            del parts
            with self._systems(problems, shards) as (systems, team):
                # those of the last solve are not in the way
                self._whole.release()
                for system in systems:
                    system.more_remarks = remarks
                shared = ThreadSystems(systems, team)
                rows = partial(rows_of_threads, systems, shards, team)
                findings = partial(SharedFindings, rows=rows)
                sharded = ShardedSystem(shared, nodes, findings, problem.values)
                yield sharded
                self._table = sharded.memory_table()

    @contextmanager
    def _on_one(self, problem: Problem, remark: str) -> Iterator[System]:
        for preparation in self._own:
            preparation.release()
        self._table = None
        with self._whole.system(problem.joined(self._devices.first)) as system:
            system.more_remarks = (remark,)
            yield system

    def _split(self, problem: Problem) -> list[Part]:
        first, recipe = self._devices.first, self._recipe
        if len(self._own) == 0:
            self._own = [Preparation(member, recipe) for member in self._devices.members]
        design = self._own[0].kernels.design(problem.counts, problem.num_instances)
        sizes = problem.counts, problem.num_instances
        if sizes != self._told:
            # once for each structure, as on one device
            warn_untouched_of(first, problem, design.factors)
            self._told = sizes
        devices = self._devices.members
        return split_problem(
            problem, design.factors, design.form, devices, make_room=self._make_room
        )

    def _make_room(self) -> None:
        """Give back the memory of the last solve's systems."""
        for preparation in (self._whole, *self._own):
            preparation.release()
        for member in self._devices.members:
            with member.scope():
                member.trim()

    @contextmanager
    def _systems(
        self, problems: dict[int, Problem], shards: Sequence[Shard]
    ) -> Iterator[tuple[list[NormalEquations], Team]]:
        """The system of each part, which is taken away; they are given back, each in its thread."""
        team, group = self._devices.team(len(shards))
        contexts: list[AbstractContextManager[NormalEquations] | None] = [None] * len(shards)

        def enter(rank: int) -> NormalEquations:
            own = problems.pop(rank).joined(team.members[rank])
            context = self._own[rank].system(own, replace(shards[rank], group=group))
            system = context.__enter__()
            contexts[rank] = context
            return system

        error: BaseException | None = None
        try:
            yield team.each(enter), team
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._give_back(contexts, error)

    def _give_back(
        self,
        contexts: list[AbstractContextManager[NormalEquations] | None],
        error: BaseException | None,
    ) -> None:
        """All of them, or none: after an error of a device its plans are not kept."""
        for member, context in zip(self._devices.members, contexts, strict=False):
            if context is None:
                continue
            with member.scope():
                try:
                    context.__exit__(None if error is None else type(error), error, None)
                except BaseException as raised:
                    if raised is not error:
                        raise


def _remarks(wanted: int, parts: list[Part]) -> tuple[str, ...]:
    remarks = parts[0].remarks
    if len(parts) < wanted:
        remarks = (*remarks, f"{len(parts)} of {wanted} devices had a part of this problem.")
    sizes = [sum(arrays.count for arrays in part.problem.factors.values()) for part in parts]
    most = max(sizes)
    if most * len(parts) > UNEVEN * sum(sizes):
        remark = (
            f"Device {sizes.index(most)} had {100 * most // sum(sizes)} % of the instances of "
            f"factors, and {len(parts)} devices take as long as the one that has most. Pass arrays "
            "as a whole, or in parts that have about as many."
        )
        remarks = (*remarks, remark)
    return remarks


def without_matrices(recipe: Recipe) -> Recipe:
    """By conjugate gradients, which devices can share.

    Raises:
        UnsuitedError: The user chose something else.
    """
    chosen, preconditioner = recipe.linear_solver, recipe.preconditioner
    if chosen in FORMS_MATRIX:
        raise UnsuitedError(
            f"linear_solver={chosen.value!r} forms a matrix, which several devices do not share",
            "Use 'auto', 'pcg' or 'schur_pcg', or devices=1.",
        )
    if preconditioner is PreconditionerChoice.TWO_LEVEL:
        raise UnsuitedError(
            "preconditioner='two_level' forms a matrix, which several devices do not share",
            "Use 'auto' or 'block_jacobi', or devices=1.",
        )
    if chosen is not LinearSolverChoice.AUTO:
        return recipe
    names = recipe.eliminate
    if names is None:
        names = tuple(node.name for node in eliminable_types(recipe.factors, recipe.nodes))
    eliminates = 0 < len(names) < len(recipe.nodes)
    gradients = LinearSolverChoice.SCHUR_PCG if eliminates else LinearSolverChoice.PCG
    return replace(recipe, linear_solver=gradients)
