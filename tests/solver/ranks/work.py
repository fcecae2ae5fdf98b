"""What processes of tests do; imported once, before they fork."""

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import caspar
from caspar.bundle_adjustment import snavely
from caspar.distributed import Ranks
from caspar.solver.lm.normal_equations import NormalEquations
from tests.problems import EXAMPLES
from tests.solver.bundles import arrays_of, part_of, read
from tests.solver.shards.sharing import ALL_SHARE, scattered

Arrays = dict[str, Any]

TEST_BACKEND = "CASPAR_TEST_BACKEND"
"""Variable that has the backend of a process."""

SETTINGS: dict[str, Any] = {"cost_tolerance": 1e-12, "min_linear_tolerance": 1e-9}


@cache
def bundle(num_points: int = 120) -> Arrays:
    """A part of a real problem."""
    return arrays_of(part_of(read("problem-21-11315"), num_points))


def some(arrays: Arrays, kept: dict[str, Any]) -> Arrays:
    """The same nodes, and some instances of factors with an argument for each."""
    made = dict(arrays)
    for name, chosen in kept.items():
        made[name] = {key: np.asarray(rows)[chosen] for key, rows in arrays[name].items()}
    return made


def parts(ranks: Ranks, how: str) -> Arrays | None:
    """What a rank passes of a bundle adjustment problem.

    Args:
        ranks: Of the process.
        how: `first`: rank 0 passes all. `points`: each has the observations of some points.
            `any`: each has some observations. `few`: rank 1 has none.
    """
    arrays = bundle()
    point = np.asarray(arrays["snavely"]["point"])
    number = np.arange(len(point))
    chosen = {
        "points": point % ranks.size,
        "ranges": point * ranks.size // (point.max() + 1),
        "any": number % ranks.size,
        "few": np.where(point % 2 == 1, 2, 0),
    }
    if how == "first":
        return arrays if ranks.rank == 0 else None
    return some(arrays, {"snavely": chosen[how] == ranks.rank})


def solver_of(ranks: Ranks, **choices: Any) -> caspar.Solver:
    """For `bundle`."""
    usual = {
        "backend": os.environ.get(TEST_BACKEND, "cpu"),
        "precision": "float64",
        "limits": ALL_SHARE,
    }
    choices = {**usual, **choices}
    return caspar.Solver([snavely], devices=ranks, **choices)


def solve(ranks: Ranks, how: str, choices: dict[str, Any], options: dict[str, Any]) -> Any:
    """A solve, twice: what came of the second."""
    solver, arrays = solver_of(ranks, **choices), parts(ranks, how)
    first = solver.solve(arrays, **options)
    second = solver.solve(arrays, **options)
    for name, rows in first.values.items():
        np.testing.assert_array_equal(rows, second.values[name])
    return second


def solve_scattered(ranks: Ranks) -> Any:
    """Rank 0 passes points whose numbers say nothing."""
    return solver_of(ranks).solve(scattered() if ranks.rank == 0 else None, **SETTINGS)


def residuals(ranks: Ranks, how: str) -> Any:
    """Those of the factors of each rank after a solve, and their place among all."""
    arrays = parts(ranks, how)
    result = solver_of(ranks).solve(arrays)
    return None if arrays is None else result.residuals("snavely")


def example(ranks: Ranks, name: str, how: str) -> Any:
    """One of the small problems: each rank passes every second instance, or rank 0 all."""
    chosen, arrays = EXAMPLES[name], EXAMPLES[name].arrays()
    backend: Any = os.environ.get(TEST_BACKEND, "cpu")
    solver = caspar.Solver(
        chosen.factors,
        backend=backend,
        precision="float64",
        limits=ALL_SHARE,
        devices=ranks,
    )
    if how == "first":
        return solver.solve(arrays if ranks.rank == 0 else None, **SETTINGS)
    return solver.solve(_every(ranks, arrays), **SETTINGS)


IN_PAIRS = ("drive", "odometry")
"""Factors that take nodes in pairs of neighbours: all ranks pass all of these."""


def _every(ranks: Ranks, arrays: Arrays) -> Arrays:
    """Every `size`th instance of the factors."""
    every = slice(ranks.rank, None, ranks.size)
    made = dict(arrays)
    for name, given in arrays.items():
        if not isinstance(given, dict) or name in IN_PAIRS:
            continue
        lengths = [np.shape(rows)[0] for rows in given.values() if np.ndim(rows) > 0]
        count = max(lengths, default=0)

        def own(rows: Any) -> Any:
            if isinstance(rows, dict):
                return {**rows, "index": np.asarray(rows["index"])[every]}
            is_each = np.ndim(rows) > 0 and np.shape(rows)[0] == count  # noqa: B023
            return np.asarray(rows)[every] if is_each else rows

        made[name] = {key: own(rows) for key, rows in given.items()}
    return made


def forever(ranks: Ranks, how: str = "points") -> Any:
    """Solve again and again, so that it is killed at any moment."""
    solver, arrays = solver_of(ranks), parts(ranks, how)
    while True:
        solver.solve(arrays)
        solver.release()


def fails(ranks: Ranks, failing: int, call: str, at: int) -> Any:
    """A rank has no memory left in a solve; the next one goes well.

    Returns:
        Kind, text and values of the error, and whether the next solve ends as the one before.
    """
    solver, arrays = solver_of(ranks), parts(ranks, "points")
    start = solver.solve(arrays)
    usual, calls = getattr(NormalEquations, call), [0]

    def fail(system: NormalEquations, *arguments: object, **more: object) -> object:
        calls[0] += 1
        if calls[0] == at:
            raise MemoryError("of this test")
        return usual(system, *arguments, **more)

    if ranks.rank == failing:
        setattr(NormalEquations, call, fail)
        # what is called by name is this one
        fail.__qualname__, fail.__module__ = usual.__qualname__, usual.__module__
    raised: tuple[Any, ...] = ()
    try:
        solver.solve(arrays)
    except Exception as error:
        values = getattr(error, "values", None)
        raised = type(error).__name__, str(error), values
    setattr(NormalEquations, call, usual)
    again = solver.solve(arrays)
    return (*raised, again.final_cost == start.final_cost)


def wrong_input(ranks: Ranks, wrong: Callable[[Ranks, Arrays], Arrays | None]) -> Any:
    """One rank passes what does not fit; what each raises, and that the next solve goes well."""
    solver, arrays = solver_of(ranks), parts(ranks, "points")
    assert arrays is not None
    raised = ""
    try:
        solver.solve(wrong(ranks, arrays))
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    return raised, solver.solve(arrays).status.name


def stops(ranks: Ranks, how: str) -> Any:
    """A solve that is stopped in its second iteration: by a callback, or Ctrl-C on a rank."""
    solver, arrays = solver_of(ranks), parts(ranks, "points")
    seen: list[int] = []

    def look(record: caspar.IterationRecord) -> bool:
        seen.append(record.iteration)
        if how == "raise":
            raise ValueError("of the callback")
        if how == "interrupt":
            # longer than a rank waits before it tells the others
            time.sleep(0.2 if record.iteration < 2 else 2.0)
        return how == "callback" and len(seen) == 2

    if how == "interrupt" and ranks.rank == 1:
        _interrupt_when(NormalEquations.accept)
    options: dict[str, Any] = (
        {}
        if how != "interrupt"
        else {"max_iterations": 100, "cost_tolerance": 0.0, "gradient_tolerance": 0.0}
    )
    result = solver.solve(arrays, on_iteration=look, **options)
    return result.status.name, len(result.iterations), seen


def _interrupt_when(called: Callable[..., Any]) -> None:
    """Ctrl-C of this process when a method of its system is called for the first time."""
    main, name = threading.main_thread().ident, called.__name__
    assert main is not None

    def interrupted(system: NormalEquations) -> None:
        setattr(NormalEquations, name, called)
        called(system)
        signal.pthread_kill(main, signal.SIGINT)

    setattr(NormalEquations, name, interrupted)


def one_ends(ranks: Ranks) -> Any:
    """Rank 1 ends as programs do, the others go on."""
    if ranks.rank == 1:
        return None
    return solver_of(ranks).solve(parts(ranks, "points"))


def sleeps(ranks: Ranks) -> Any:
    """Rank 1 stops without a word, as a machine that vanishes."""
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return solver_of(ranks).solve(parts(ranks, "points"))


def does_not_come(ranks: Ranks) -> Any:
    """Rank 1 lives, and calls nothing."""
    if ranks.rank == 1:
        time.sleep(3.0)
        return None
    return solver_of(ranks).solve(parts(ranks, "points"))


def refused(ranks: Ranks) -> Any:
    """What several ranks do not do."""
    found = []
    solver, arrays = solver_of(ranks), parts(ranks, "points")
    assert arrays is not None
    for call in (
        lambda: solver.covariance(arrays, {"Cam": [0]}),
        lambda: solver.system(arrays).__enter__(),
        lambda: solver_of(ranks, linear_solver="sparse"),
        lambda: solver_of(ranks, backend=solver.backend),
    ):
        try:
            call()
            found.append("")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def small(ranks: Ranks, how: str) -> Any:
    """With the usual limits: too small for several."""
    solver = caspar.Solver([snavely], backend="cpu", devices=ranks)
    arrays = parts(ranks, how)
    prepared = solver.prepare(arrays)
    return solver.solve(arrays), prepared.device, solver.memory_table()
