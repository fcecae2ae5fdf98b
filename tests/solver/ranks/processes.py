"""Processes that share problems, started as a launcher does, and what comes of them.

They fork from a server that has imported caspar already, so that each starts in moments.
"""

import contextlib
import io
import multiprocessing
import os
import signal
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import caspar

PRELOADED = "tests.solver.ranks.preloaded"

LIMIT_S = 500
"""Seconds after which the system ends a process, also if whoever has started it is gone."""

Work = Callable[..., Any]
"""Called with the ranks, and arguments that can be pickled."""


@dataclass(frozen=True)
class Ended:
    """How a process ended: what its work returned, or raised, as a class's name and text."""

    value: Any = None
    error: str = ""
    text: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


def environment(size: int, rank: int, job: str) -> dict[str, str]:
    """Variables of a launcher."""
    return {
        "CASPAR_RANK": str(rank),
        "CASPAR_SIZE": str(size),
        "CASPAR_LOCAL_RANK": str(rank),
        "CASPAR_LOCAL_SIZE": str(size),
        "CASPAR_JOB": job,
    }


def _main(
    pipe: Connection,
    variables: Mapping[str, str],
    options: Mapping[str, Any],
    work: Work,
    *given: Any,
) -> None:
    if hasattr(signal, "alarm"):  # Windows has none
        signal.alarm(LIMIT_S)
    for name in [name for name in os.environ if name.startswith(("CASPAR_R", "CASPAR_TOKEN"))]:
        del os.environ[name]
    os.environ.update(variables)
    start = time.monotonic()
    try:
        ranks = caspar.distributed.init(**{"join_s": 100.0, **options})
        pipe.send("joined")
        start = time.monotonic()
        found = Ended(work(ranks, *given), seconds=time.monotonic() - start)
        ranks.close()
    except BaseException as error:
        notes = tuple(getattr(error, "__notes__", ()))
        shown = io.StringIO()
        traceback.print_exc(file=shown)
        found = Ended(
            getattr(error, "values", None),
            type(error).__name__,
            f"{error}",
            (*notes, shown.getvalue()),
            time.monotonic() - start,
        )
    with contextlib.suppress(OSError):
        pipe.send(found)


class Started:
    """Processes that have been started."""

    def __init__(
        self,
        size: int,
        work: Work,
        *given: Any,
        options: Mapping[str, Any] | None = None,
        variables: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([PRELOADED])
        job = uuid.uuid4().hex
        self.processes: list[BaseProcess] = []
        self.pipes: list[Any] = []
        for rank in range(size):
            own = environment(size, rank, job)
            own |= {} if variables is None else variables[rank]
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_main, args=(theirs, own, options or {}, work, *given), daemon=True
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(mine)

    def joined(self, timeout_s: float = 120.0) -> None:
        """Wait until all have joined."""
        for pipe in self.pipes:
            assert pipe.poll(timeout_s), "a process has not joined"
            told = pipe.recv()
            assert told == "joined", told

    def ended(self, timeout_s: float = 240.0) -> list[Ended | None]:
        """How they ended; None: killed. Processes that have not ended fail the test."""
        found: list[Ended | None] = [None] * len(self.pipes)
        left = dict(enumerate(self.pipes))
        end_s = time.monotonic() + timeout_s
        while len(left) > 0:
            ready = wait([*left.values()], max(end_s - time.monotonic(), 0.0))
            if len(ready) == 0:
                self.kill()
                raise AssertionError(f"ranks {[*left]} have not ended within {timeout_s:g} s")
            for rank in [rank for rank, pipe in left.items() if pipe in ready]:
                try:
                    told = left[rank].recv()
                except EOFError:
                    del left[rank]
                    continue
                if isinstance(told, Ended):
                    found[rank] = told
                    del left[rank]
        self.kill()
        return found

    def kill(self) -> None:
        """End those that still run."""
        for process in self.processes:
            process.kill()
            process.join(5.0)


def values_of(size: int, work: Work, *given: Any, **more: Any) -> list[Any]:
    """What work returns on each rank; it must not raise."""
    found = []
    for rank, one in enumerate(Started(size, work, *given, **more).ended()):
        assert one is not None, f"rank {rank} was killed"
        assert one.error == "", f"rank {rank}: {one.error}: {one.text}\n{one.notes}"
        found.append(one.value)
    return found
