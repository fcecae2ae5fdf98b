"""What a solver of several ranks makes before it iterates, and keeps for the next solve.

As `solver.preparation`, whose `Preparation` each rank has for its part. Whatever fails on one rank
ends the solve on all.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, NoReturn, TypeVar

from caspar.errors import GroupError
from caspar.progress import showing
from caspar.runtime.group.member import Group
from caspar.solver.choice.form import Recipe
from caspar.solver.input.problem import Problem
from caspar.solver.iterate.normal_equations import NormalEquations
from caspar.solver.iterated import System
from caspar.solver.preparation import Preparation
from caspar.solver.ranks.devices import RankDevices
from caspar.solver.ranks.reading import Reading
from caspar.solver.ranks.sharing import Share, share_out
from caspar.solver.ranks.team import (
    Done,
    Failed,
    RankSystems,
    failure_of,
    follow,
    last_values,
    tell_all,
)
from caspar.solver.shards.findings import SharedFindings
from caspar.solver.shards.preparation import without_matrices
from caspar.solver.shards.system import ShardedSystem

Result = TypeVar("Result")


@dataclass(frozen=True)
class Together:
    """Work of all ranks on one problem.

    Attributes:
        devices: Of the ranks.
        system: At rank 0 that of all; None at the others.
        follow: At the others: does what rank 0 asks for.
        eliminated: Names of the node types that are eliminated.
        is_spread: Whether each rank has passed a part of the factors.
    """

    devices: RankDevices
    system: System | None
    follow: Callable[[], Any]
    eliminated: tuple[str, ...]
    is_spread: bool

    def led(self, work: Callable[[], Result], tell: Callable[[Result], Any]) -> Any:
        """Do something at rank 0, and get what came of it on all ranks.

        Args:
            work: What rank 0 does with the system.
            tell: Makes of that what the other ranks get.
        """
        if not self.devices.is_leader:
            return self.follow()
        made = work()
        tell_all(self.devices, Done(tell(made)))
        return made

    @property
    def gives_all(self) -> bool:
        """Whether all ranks get all values."""
        return self.devices.ranks.results == "all"

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C on another rank asks for an end; asked for once."""
        peers = self.devices.peers
        found, peers.was_interrupted = peers.was_interrupted, False
        return found


class RankedPreparation:
    """Kernels and systems of a solver on several ranks.

    Args:
        devices: Of the ranks.
        recipe: What the user chose.

    Attributes:
        kernels: Of this rank.

    Raises:
        UnsuitedError, OptionError: As `Preparation`; and for what devices cannot share.
    """

    def __init__(self, devices: RankDevices, recipe: Recipe) -> None:
        self._devices = devices
        self._whole = Preparation(devices.member, recipe)
        self._recipe = without_matrices(recipe)
        self._own = Preparation(devices.member, self._recipe)
        self.kernels = self._own.kernels
        self._lock = Lock()

    def release(self) -> None:
        """Forget the systems of the last solve."""
        self._whole.release()
        self._own.release()

    def make_room(self) -> None:
        """Forget the systems: what several ranks share is large."""
        self.release()

    def memory_table(self) -> str | None:
        """What this rank keeps of the last solve; None before it."""
        found = self._own.memory_table()
        return self._whole.memory_table() if found is None else found

    def system(self, problem: Problem) -> NoReturn:
        """Refused: a system of several ranks begins with all of them.

        Raises:
            AssertionError: Always.
        """
        raise AssertionError("systems of several ranks are opened by `open`")

    @contextmanager
    def open(self, reading: Reading) -> Iterator[Together]:
        """The system of what was read, for all ranks, which call this at the same time."""
        peers = self._devices.peers
        with self._lock, ExitStack() as stack:
            shown = showing(None if self._devices.is_leader else False)
            stack.enter_context(shown)
            whole = reading.whole
            design = self._own.kernels.design(whole.counts, _instances(reading))
            least = self._recipe.limits.min_instances_of_device
            share = share_out(self._devices, reading, design, least)
            group, number = self._group(share)
            system = peers.exchange_own(lambda: self._entered(stack, share, number))
            names = tuple(design.form.eliminated)
            try:
                follows = partial(follow, self._devices, group, system)
                found = self._system_of_all(stack, share, group, system, whole)
                yield Together(self._devices, found, follows, names, reading.is_spread)
            except BaseException as error:
                self._end(error, group, share, system, whole)
                raise

    def _group(self, share: Share) -> tuple[Group | None, int]:
        return (None, 0) if share.shard is None else self._devices.group(share.active)

    def _entered(self, stack: ExitStack, share: Share, number: int) -> NormalEquations | None:
        """The system of this rank; those of the last solve are not in the way."""
        alone = share.shard is None
        (self._own if alone else self._whole).release()
        if share.problem is None:
            return None
        if share.shard is None:
            system = stack.enter_context(self._whole.system(share.problem))
        else:
            problem = share.problem
            shard = replace(share.shard, group=number)
            system = stack.enter_context(self._own.system(problem, shard))
        system.more_remarks = share.remarks
        return system

    def _system_of_all(
        self,
        stack: ExitStack,
        share: Share,
        group: Group | None,
        system: NormalEquations | None,
        whole: Problem,
    ) -> System | None:
        """What rank 0 iterates on; None at the others."""
        devices = self._devices
        if not devices.is_leader or group is None:
            return system if devices.is_leader else None
        assert system is not None
        systems = RankSystems(devices, group, system, share.active)
        stack.callback(systems.close)
        findings = partial(SharedFindings, rows=_no_rows)
        return ShardedSystem(systems, share.nodes, findings, whole.values)

    def _end(
        self,
        error: BaseException,
        group: Group | None,
        share: Share,
        system: NormalEquations | None,
        whole: Problem,
    ) -> None:
        """Tell the others, wake them, and keep what was reached."""
        devices = self._devices
        if group is not None and isinstance(error, GroupError | MemoryError):
            group.abort()
        if devices.is_leader:
            with suppress(GroupError):
                tell_all(devices, Failed(failure_of(error, devices.peers.name(0))))
        elif isinstance(error, KeyboardInterrupt):
            devices.peers.leave("Ctrl-C ended it")
        if isinstance(error, GroupError) and system is not None:
            error.values = last_values(devices, system, share.own_nodes, whole.values)


def _instances(reading: Reading) -> dict[str, int]:
    names = reading.sizes[0]
    return {name: sum(sizes[name] for sizes in reading.sizes) for name in names}


def _no_rows(factor: str) -> NoReturn:
    raise AssertionError(f"residuals of {factor} are evaluated by each rank for itself")
