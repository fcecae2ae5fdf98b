"""Open the problems of a solver, and keep what later problems can use.

Input: the user's arrays. Output: a `Crew`, the devices with the values loaded. For each set of
factors that occurs there is a `Preparation`; the last one used keeps its memory, a few earlier ones
that of small problems. Cost tier: once for each solve; kernels once for each set of factors.
"""

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from caspar.options import Precision, SolveOptions
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Member
from caspar.solver.active import Active, Chooser, suited
from caspar.solver.choice.form import Recipe
from caspar.solver.evaluation import Residuals
from caspar.solver.input.constraints import NOTHING, Constraints
from caspar.solver.input.problem import Problem
from caspar.solver.input.problem_reader import read_problem
from caspar.solver.input.separate_parts import RemarksOnParts
from caspar.solver.preparation import Preparation
from caspar.solver.shards.crew import Crew, Reading

if TYPE_CHECKING:
    from caspar.solver.shards.devices import Devices
    from caspar.solver.shards.ranks import RankDevices

MAX_BESIDE = 3
"""Sets of factors, beside the last one used, whose systems of small problems are kept."""


class Session:
    """Opens the problems of a solver.

    Attributes:
        ranks: The processes that share problems; None: there is only this one.
        exact: Evaluates residuals that a system keeps in a narrower type than values.
    """

    def __init__(
        self,
        backend: Backend,
        recipe: Recipe,
        fields: Mapping[str, Mapping[str, range]],
        *,
        own_precision: bool,
        devices: "Devices | None" = None,
    ) -> None:
        self.backend, self.recipe, self.fields = backend, recipe, fields
        self._own_precision = own_precision
        self._devices = devices
        self.ranks: RankDevices | None = None
        self.members: tuple[Member, ...] = ()
        if devices is not None:
            from caspar.solver.shards import ranks as of_ranks

            self.ranks = devices if isinstance(devices, of_ranks.RankDevices) else None
            self.members = devices.members if self.ranks is None else ()
        self._chooser = Chooser(backend, recipe, own_precision=own_precision)
        self.whole = Preparation(backend, devices, recipe)
        self._last, usual = self.whole, Active(recipe)
        self._made = {usual.key: (usual, self.whole)}
        self._backlog_s = 0.0
        self._lock = Lock()
        self.exact = Residuals(backend)
        self.remarks_on_parts = RemarksOnParts()

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The devices on which arrays may live."""
        return self.members or (self.backend,)

    # -- problems ------------------------------------------------------------------------------

    @contextmanager
    def open(
        self,
        arrays: Mapping[str, Any] | None,
        constraints: Constraints,
        options: SolveOptions,
        precision: Precision | None = None,
    ) -> Iterator[Crew]:
        """The problem of some arrays, and the systems of those factors that have instances.

        It belongs to the caller until the context ends. `precision` takes the place of the usual
        one. Several processes open it at the same time.
        """
        ranks, is_set_up = self.ranks, False
        try:
            with self.backend.scope():
                reading = self._read(arrays, constraints, options, precision)
                with self._preparation(reading.active).open(reading) as crew:
                    is_set_up = True
                    yield crew
        except KeyboardInterrupt:
            if ranks is not None and not is_set_up:
                ranks.peers.leave("Ctrl-C ended it")
            raise

    @contextmanager
    def open_alone(self, arrays: Mapping[str, Any]) -> Iterator[Crew]:
        """The same, of several ranks by this one for itself; outside a solve."""
        if self.ranks is None:
            with self.open_aside(arrays) as crew:
                yield crew
            return
        alone = Session(self.backend, self.recipe, self.fields, own_precision=self._own_precision)
        with warnings.catch_warnings():
            # other ranks touch the other nodes
            warnings.simplefilter("ignore", UserWarning)
            with alone.open_aside(arrays) as crew:
                yield crew

    @contextmanager
    def open_aside(
        self, arrays: Mapping[str, Any] | None, constraints: Constraints = NOTHING
    ) -> Iterator[Crew]:
        """The same outside a solve: the next solve reports the time of compiling."""
        with self.open(arrays, constraints, SolveOptions()) as crew:
            self.add_backlog(crew.kernels.take_compile_time())
            yield crew

    def _read(
        self,
        arrays: Mapping[str, Any] | None,
        constraints: Constraints,
        options: SolveOptions,
        wanted: Precision | None,
    ) -> Reading:
        """The arrays, of the precision of what takes part, and that."""
        recipe = self.recipe

        def read(precision: Precision) -> Problem:
            return read_problem(
                cast(Mapping[str, Any], arrays),  # None is refused there
                recipe.factors,
                recipe.nodes,
                self.backend,
                precision,
                check_values=options.check,
                constraints=constraints,
                members=self.members,
            )

        choose = partial(self.choose, precision=wanted)
        if self.ranks is not None:
            from caspar.solver.shards.ranks import read_together

            return read_together(self.ranks, choose, recipe, None if arrays is None else read)
        problem = read(recipe.precision)
        active = choose(problem)
        if active.recipe.precision is not recipe.precision:
            problem = read(active.recipe.precision)
        part = active.part(problem)
        return Reading(part, problem, active, (part.num_instances,))

    # -- preparations --------------------------------------------------------------------------

    def choose(self, problem: Problem, precision: Precision | None = None) -> Active:
        """Choose what takes part in a problem; see `Chooser`."""
        active = self._chooser.choose(problem, precision)
        with self._lock:
            if active.key not in self._made:
                start = time.perf_counter()
                make = partial(Preparation, self.backend, self._devices)
                made, remarks = suited(active.recipe, make)
                made.kernels.compile_time_s += time.perf_counter() - start
                active = replace(active, remarks=(*active.remarks, *remarks))
                self._made[active.key] = active, made
            return self._made[active.key][0]

    def _preparation(self, active: Active) -> Preparation:
        """Return the preparation of what takes part; memory of a large problem is freed before."""
        with self._lock:
            # the most recently used one is last
            chosen = self._made.pop(active.key)
            earlier = [other for _, other in self._made.values()]
            self._made[active.key] = chosen
            self._last = chosen[1]
            for other in earlier:
                other.make_room()
            for other in earlier[:-MAX_BESIDE]:
                other.release()
        return chosen[1]

    def add_backlog(self, time_s: float) -> None:
        """Seconds of tracing and compiling outside a solve."""
        with self._lock:
            self._backlog_s += time_s

    def take_backlog(self) -> float:
        """Return the seconds that no result has reported, and forget them."""
        with self._lock:
            time_s, self._backlog_s = self._backlog_s, 0.0
        return time_s

    def release(self) -> None:
        """Let go of the memory kept for the next solve."""
        with self._lock:
            for _, made in self._made.values():
                made.release()

    def memory_table(self) -> str | None:
        """Describe what is kept of the last solve; None before it."""
        return self._last.memory_table()
