"""Real problems of *Bundle Adjustment in the Large*: the optimum, the same bits, the same cost."""

from functools import cache
from typing import Any

import numpy as np
import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.runtime.cpu.backend import CpuBackend
from tests.solver.bundles import arrays_of, cost_of, part_of, read
from tests.solver.solving import assert_same_values, solver

OPTIMA = {"problem-21-11315": 30378.636, "problem-49-7776": 13344.241}
"""Found by exact Levenberg-Marquardt in float64."""

BOUNDS = {"problem-21-11315": 30378.64 * (1.0 + 1e-6), "problem-49-7776": 13358.0}


@cache
def solve(name: str, precision: str) -> caspar.SolveResult:
    return solver((snavely,), precision).solve(arrays_of(read(name)))


@pytest.mark.parametrize("precision", ["mixed", "float64"])
@pytest.mark.parametrize("name", OPTIMA)
class TestOptimum:
    def test_is_reached(self, name: str, precision: str) -> None:
        result = solve(name, precision)
        assert result.status.is_success
        assert result.final_cost <= BOUNDS[name]
        assert result.final_cost >= OPTIMA[name] * (1.0 - 1e-6)

    def test_cost_is_that_of_the_values(self, name: str, precision: str) -> None:
        problem, result = read(name), solve(name, precision)
        cost = cost_of(problem, result.values["Cam"], result.values["Point"])
        assert result.final_cost == pytest.approx(cost, rel=1e-6)
        before = cost_of(problem, problem.cameras, problem.points)
        assert result.initial_cost == pytest.approx(before, rel=1e-5)


@pytest.mark.parametrize("name", OPTIMA)
def test_precisions_agree(name: str) -> None:
    mixed, exact = solve(name, "mixed"), solve(name, "float64")
    assert mixed.final_cost == pytest.approx(exact.final_cost, rel=1e-4)


@pytest.mark.parametrize("precision", ["mixed", "float64"])
def test_two_runs_give_the_same_bits(precision: str) -> None:
    first = solve("problem-21-11315", precision)
    second = solver((snavely,), precision).solve(arrays_of(read("problem-21-11315")))
    assert [record.cost for record in first.iterations] == [
        record.cost for record in second.iterations
    ]
    assert_same_values(first.values, second.values)


def test_factors_may_come_in_any_order() -> None:
    """Other sums, the same optimum."""
    problem = read("problem-21-11315")
    order = np.random.default_rng(0).permutation(len(problem.pixels))
    arrays = arrays_of(problem)
    arrays["snavely"] = {name: array[order] for name, array in arrays["snavely"].items()}
    shuffled = solver((snavely,), "mixed").solve(arrays)
    ordered = solve("problem-21-11315", "mixed")
    assert shuffled.initial_cost == pytest.approx(ordered.initial_cost, rel=1e-12)
    assert shuffled.final_cost == pytest.approx(ordered.final_cost, rel=1e-6)
    cost = cost_of(problem, shuffled.values["Cam"], shuffled.values["Point"])
    assert shuffled.final_cost == pytest.approx(cost, rel=1e-6)


def test_instance_counts_may_change_from_solve_to_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are for factor types, not for sizes: nothing is loaded after the first solves."""
    loaded: list[str] = []
    load = CpuBackend.load

    def counted(backend: CpuBackend, sources: Any, *options: Any, **more: Any) -> Any:
        loaded.extend(source.name for source in sources)
        return load(backend, sources, *options, **more)

    monkeypatch.setattr(CpuBackend, "load", counted)
    fresh = caspar.Solver([snavely], backend="cpu", precision="mixed", linear_solver="schur_pcg")
    problem = read("problem-21-11315")
    counts: list[int] = []
    for num_points in (500, 1000, 257, 1, 2000, 500):
        part = part_of(problem, num_points)
        result = fresh.solve(arrays_of(part), max_iterations=4)
        assert result.problem.nodes == {"Cam": len(part.cameras), "Point": num_points}
        cost = cost_of(part, result.values["Cam"], result.values["Point"])
        assert result.final_cost == pytest.approx(cost, rel=1e-5, abs=1e-6)
        assert (result.compile_time_s > 0.0) == (len(counts) == 0)
        counts.append(len(loaded))
    assert len(loaded) == len(set(loaded))
    assert counts[-1] == counts[1]
