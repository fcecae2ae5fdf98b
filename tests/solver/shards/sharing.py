"""Solvers whose problems are shared by several parts of the processor, or by CUDA devices."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import caspar
from benchmarks.devices_scene import ring
from caspar.bundle_adjustment import snavely
from caspar.options import BackendName
from caspar.solver.input.problem import Problem
from caspar.solver.input.problem_reader import read_problem
from caspar.solver.limits import Limits
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.plan.plan import Plan
from caspar.solver.shards.crew import Crew
from caspar.solver.shards.split import Part, split_problem

ALL_SHARE = Limits(min_instances_of_device=0)
"""However small a problem is."""

ON_SEVERAL = pytest.mark.parametrize(
    ("backend", "devices"),
    [("cpu", 2), ("cpu", 3), ("cpu", 5), pytest.param("cuda", 2, marks=pytest.mark.gpu)],
)


@cache
def sharing(
    factors: tuple[caspar.Factor, ...], devices: int, backend: BackendName = "cpu", **choices: Any
) -> caspar.Solver:
    """A solver on several devices, made once."""
    if backend == "cuda":
        skip_without(devices)
    return caspar.Solver(factors, backend=backend, devices=devices, limits=ALL_SHARE, **choices)


@cache
def scattered(num_points: int = 1500) -> dict[str, Any]:
    """Cameras on a ring, and points whose numbers say nothing: in any range most cameras occur."""
    arrays = ring(180_000)
    kept = arrays["snavely"]["point"] < num_points
    observed = {name: rows[kept] for name, rows in arrays["snavely"].items()}
    return {"Cam": arrays["Cam"], "Point": arrays["Point"][:num_points], "snavely": observed}


@contextmanager
def crew_of(solver: caspar.Solver, arrays: dict[str, Any]) -> Iterator[Crew]:
    """The systems of the devices of a solver."""
    with solver._session.open_aside(arrays) as crew:
        yield crew


def each(crew: Crew, call: Callable[[NormalEquations], Any]) -> list[Any]:
    """What a function finds of each system, in the threads of the devices."""
    if crew.team is None:
        return [call(crew.only)]
    systems = crew.systems
    found: list[Any] = crew.team.each(lambda number: call(systems[number]))  # type: ignore[arg-type]
    return found


def plans_of(solver: caspar.Solver, arrays: dict[str, Any]) -> list[Plan]:
    """The plan of each device."""
    with crew_of(solver, arrays) as crew:
        return [system.plan for system in crew.systems if system is not None]


Split = Callable[..., list[Part]]


def opened(arrays: dict[str, Any], num_parts: int) -> tuple[Problem, Split]:
    """A checked problem, and what splits it."""
    solver = sharing((snavely,), num_parts, precision="float64")
    members = solver._session.members
    problem = read_problem(
        arrays,
        solver.traced_factors,
        solver._nodes,
        members[0],
        caspar.Precision.FLOAT64,
        members=members,
    )
    solver.prepare(arrays)
    active = solver._session.choose(problem)
    kernels = solver._session._preparation(active)._own[0].kernels
    form = kernels.design(problem.counts, problem.num_instances).form
    return problem, partial(split_problem, problem, solver.traced_factors, form, members)


def skip_without(devices: int) -> None:
    """Skip a test if this machine has fewer CUDA devices."""
    cupy = pytest.importorskip("cupy")
    present = int(cupy.cuda.runtime.getDeviceCount())
    if present < devices:
        pytest.skip(f"needs {devices} CUDA devices, of which there are {present}")


def assert_same_minimum(
    found: caspar.SolveResult, wanted: caspar.SolveResult, relative: float, close: float
) -> None:
    """The same cost, and values that differ by no more than `close`."""
    assert found.status.is_success
    assert found.initial_cost == pytest.approx(wanted.initial_cost, rel=relative)
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=relative, abs=1e-20)
    assert list(found.values) == list(wanted.values)
    for name, values in wanted.values.items():
        assert np.abs(np.asarray(found.values[name]) - np.asarray(values)).max() <= close


def on_host(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as NumPy arrays."""
    return {name: np.asarray(rows) for name, rows in values.items()}


def fail_at(monkeypatch: pytest.MonkeyPatch, call: str, failing: NormalEquations | None) -> None:
    """From here on a method fails on one device, as if it had no memory left."""
    usual = getattr(NormalEquations, call)

    def fail(system: NormalEquations, *arguments: object, **more: object) -> object:
        if system is failing:
            raise MemoryError("of this test")
        return usual(system, *arguments, **more)

    monkeypatch.setattr(NormalEquations, call, fail)
