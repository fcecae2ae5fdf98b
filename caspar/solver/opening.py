"""From the user's arrays to a system with values loaded, and what of them takes part.

Cost tier: once for each solve; see `preparation` for what is kept between them.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from caspar.frontend.factors.trace import TracedFactor
from caspar.options import Precision, SolveOptions
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Member
from caspar.solver.active import Active, Preparations, Prepares
from caspar.solver.choice.form import Recipe
from caspar.solver.input.constraints import NOTHING, Constraints
from caspar.solver.input.problem_reader import Problem, read_problem
from caspar.solver.iterated import System
from caspar.solver.preparation import Preparation
from caspar.solver.result.result import ProblemSize

if TYPE_CHECKING:
    from caspar.solver.ranks.devices import RankDevices
    from caspar.solver.ranks.preparation import RankedPreparation, Together
    from caspar.solver.ranks.reading import Given
    from caspar.solver.shards.devices import Devices

Result = TypeVar("Result")


@dataclass(frozen=True)
class Opened:
    """Checked arrays, what of them takes part, and the system that the iterations work on.

    Of several ranks, `problem` has the nodes and outlines of the factors, and `together` is what
    they do; only rank 0 has a system.
    """

    problem: Problem
    active: Active
    system: System
    together: "Together | None" = None

    def led(self, work: Callable[[], Result], tell: Callable[[Result], Any]) -> Any:
        """Do something with the system; of several ranks rank 0 does, and all get what came of it.

        Args:
            work: What is done.
            tell: Makes of what came of it what other ranks get.
        """
        return work() if self.together is None else self.together.led(work, tell)

    @property
    def is_followed(self) -> bool:
        """Whether another rank has the system, and this one gets what came of it."""
        return self.together is not None and self.together.system is None

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C on another rank asks for an end."""
        return self.together is not None and self.together.was_interrupted

    def size(self, factors: tuple[TracedFactor, ...]) -> ProblemSize:
        """Counts of what takes part, beside those of all factors."""
        problem, recipe = self.problem, self.active.recipe
        counts = {one.name: problem.factors[one.name].num_counted for one in factors}
        rows = sum(len(factor.residual) * counts[factor.name] for factor in recipe.factors)
        nodes = {node.name: problem.counts[node.name] for node in recipe.nodes}
        unknowns = sum(node.tangent_dim * nodes[node.name] for node in recipe.nodes)
        unknowns -= sum(problem.num_held(nodes).values())
        held = problem.num_held([*nodes, *self.active.held])
        left_out = {name: problem.factors[name].count - count for name, count in counts.items()}
        left_out = {name: count for name, count in left_out.items() if count > 0}
        bounded = {name: limits.num_bounded for name, limits in problem.bounds.items()}
        return ProblemSize(nodes, counts, rows, unknowns, held, left_out, bounded)


class Opener:
    """Opens problems of a solver.

    Args:
        backend: Where it runs.
        recipe: All factors and node types, and the precision for these.
        own_precision: Whether each set of factors has the precision that is usual for it.
        devices: Several that share a problem, of which the backend is the first, or ranks, of which
            it is this one's; None: one.

    Attributes:
        preparations: What is made for the parts of it that occur.
        own_precision: As given.
        backends: The devices on which arrays may live.
    """

    def __init__(
        self,
        backend: Backend,
        recipe: Recipe,
        *,
        own_precision: bool,
        devices: "Devices | RankDevices | None" = None,
    ) -> None:
        self._backend = backend
        self._recipe = recipe
        self.own_precision = own_precision
        self._ranks: RankDevices | None = None
        self._members: tuple[Member, ...] = ()
        prepare: Callable[[Recipe], Prepares] = partial(Preparation, backend)
        if devices is not None:
            prepare = self._shared(devices)
        self.backends: tuple[Backend, ...] = self._members or (backend,)
        self.preparations = Preparations(backend, prepare, recipe, own_precision=own_precision)

    def _shared(self, devices: "Devices | RankDevices") -> Callable[[Recipe], Prepares]:
        """How several devices or ranks prepare a problem."""
        from caspar.solver.ranks.devices import RankDevices
        from caspar.solver.ranks.preparation import RankedPreparation
        from caspar.solver.shards.preparation import ShardedPreparation

        if isinstance(devices, RankDevices):
            self._ranks = devices
            return partial(RankedPreparation, devices)
        self._members = devices.members
        return partial(ShardedPreparation, devices)

    @contextmanager
    def open(
        self,
        arrays: Mapping[str, Any] | None,
        constraints: Constraints,
        options: SolveOptions,
        precision: Precision | None = None,
    ) -> Iterator[Opened]:
        """The problem of some arrays, and the system of those factors that have instances.

        It belongs to the caller until the context ends. `precision` takes the place of the usual
        one.
        """
        if self._ranks is not None:
            from caspar.solver.ranks.reading import Given

            given = Given(arrays, constraints, options)
            with self._backend.scope(), self._opened_together(given, precision) as together:
                yield together
            return
        with self._backend.scope():
            problem, active = self._checked(arrays, constraints, options, precision)
            with active.preparation.system(active.part(problem)) as system:
                yield Opened(problem, active, system)

    @contextmanager
    def open_alone(self, arrays: Mapping[str, Any]) -> Iterator[Opened]:
        """The same, of several ranks by this one for itself."""
        if self._ranks is None:
            with self.open_aside(arrays) as opened:
                yield opened
            return
        alone = Opener(self._backend, self._recipe, own_precision=self.own_precision)
        with warnings.catch_warnings():
            # other ranks touch the other nodes
            warnings.simplefilter("ignore", UserWarning)
            with alone.open_aside(arrays) as opened:
                yield opened

    @contextmanager
    def open_aside(
        self, arrays: Mapping[str, Any] | None, constraints: Constraints = NOTHING
    ) -> Iterator[Opened]:
        """The same outside a solve: the next solve reports the time of compiling."""
        with self.open(arrays, constraints, SolveOptions()) as opened:
            self.preparations.add_backlog(opened.active.preparation.kernels.take_compile_time())
            yield opened

    @contextmanager
    def _opened_together(self, given: "Given", precision: Precision | None) -> Iterator[Opened]:
        """The same for all ranks, which call it at the same time."""
        from caspar.solver.ranks.reading import read_together

        devices, is_set_up = self._ranks, False
        assert devices is not None
        try:
            reading = read_together(devices, self.preparations, self._recipe, given, precision)
            preparation = cast("RankedPreparation", reading.active.preparation)
            with preparation.open(reading) as together:
                is_set_up = True
                system = cast(System, together.system)
                yield Opened(reading.whole, reading.active, system, together)
        except KeyboardInterrupt:
            if not is_set_up:
                devices.peers.leave("Ctrl-C ended it")
            raise

    def _checked(
        self,
        arrays: Mapping[str, Any] | None,
        constraints: Constraints,
        options: SolveOptions,
        wanted: Precision | None,
    ) -> tuple[Problem, Active]:
        """The arrays, of the precision of what takes part, and that."""
        recipe = self._recipe

        def read(precision: Precision) -> Problem:
            return read_problem(
                cast(Mapping[str, Any], arrays),  # None is refused there
                recipe.factors,
                recipe.nodes,
                self._backend,
                precision,
                check_values=options.check,
                constraints=constraints,
                members=self._members,
            )

        problem = read(recipe.precision)
        active = self.preparations.choose(problem, wanted)
        if active.recipe.precision is not recipe.precision:
            problem = read(active.recipe.precision)
        return problem, active
