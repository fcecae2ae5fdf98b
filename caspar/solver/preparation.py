"""What a solver makes before it iterates, and keeps for the next solves: on one device or several.

Each device here has a `KeptSystem` for its part. Several devices are those of one process, or one
of each of several processes.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from caspar.equations.solver_form import eliminable_types
from caspar.errors import GroupError, UnsuitedError
from caspar.options import LinearSolverChoice
from caspar.progress import showing
from caspar.runtime.backend import Backend
from caspar.solver.choice.form import FORMS_MATRIX, Recipe
from caspar.solver.kept_system import KeptSystem
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.shards.crew import Crew
from caspar.solver.shards.share import Reading, Share

if TYPE_CHECKING:
    from caspar.solver.shards.devices import Devices
    from caspar.solver.shards.team import Team

Entered = AbstractContextManager[NormalEquations]


class Preparation:
    """Kernels and systems of a recipe.

    Args:
        backend: The first device here.
        devices: Those that share problems, if there are several.
        recipe: What the user chose.

    Attributes:
        kernels: Of the first device here.

    Raises:
        UnsuitedError, OptionError: As `KeptSystem`; and for what devices cannot share.
    """

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
        """What is kept of the last solve on the devices here; None before it."""
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
        from caspar.solver.shards.gathering import last_values

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
        """Give back the memory of the last solves' systems."""
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
    """By conjugate gradients, which devices can share.

    Raises:
        UnsuitedError: The user chose something else.
    """
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
