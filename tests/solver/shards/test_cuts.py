"""How nodes are divided: by their numbers, or in the order of tiles where these say nothing."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.bundle_adjustment import Cam, snavely
from caspar.memory.picked_rows import PickedRows
from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.input.problem import Problem
from caspar.solver.input.problem_reader import read_problem
from caspar.solver.plan.shard import size_of
from caspar.solver.result.quantities import bytes_text
from caspar.solver.shards.split import Part, split_problem
from tests.solver.bundles import arrays_of, read
from tests.solver.shards.sharing import (
    ON_SEVERAL,
    assert_same_minimum,
    scattered,
    sharing,
)

known_camera = caspar.factors.prior(Cam, noise="unit", name="known_camera")

CLOSE: dict[str, Any] = {"cost_tolerance": 1e-12, "min_linear_tolerance": 1e-9}


def _split(
    arrays: dict[str, Any], num_parts: int, free_bytes: int | None = None
) -> tuple[Problem, list[Part]]:
    """A checked problem and its parts, on devices with so much memory left; None: not known."""
    solver = sharing((snavely,), num_parts, precision="float64")
    members = solver._opener._members
    problem = read_problem(
        arrays,
        solver.traced_factors,
        solver._nodes,
        members[0],
        caspar.Precision.FLOAT64,
        members=members,
    )
    preparation = solver._opener.preparations.choose(problem).preparation
    with solver.system(arrays):
        pass
    kernels = preparation._own[0].kernels  # type: ignore[attr-defined]
    form = kernels.design(problem.counts, problem.num_instances).form
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuBackend, "free_bytes", property(lambda _: free_bytes))
        parts = split_problem(problem, solver.traced_factors, form, members)
    return problem, parts


def _num_cameras(part: Part) -> int:
    cameras = part.problem.factors["snavely"].nodes["cam"]
    assert cameras is not None
    return len(np.unique(cameras))


@pytest.mark.parametrize("num_parts", [2, 3, 5])
def test_points_that_are_seen_together_come_together(num_parts: int) -> None:
    arrays = scattered()
    problem, parts = _split(arrays, num_parts)
    observed, total = arrays["snavely"], len(arrays["snavely"]["pixel"])
    owner = np.full(len(arrays["Point"]), -1)
    seen = np.zeros(total, int)
    for number, part in enumerate(parts):
        assert part.shard.in_order == ("Point",)
        nodes = part.nodes["Point"]
        assert isinstance(nodes, np.ndarray)
        assert np.all(owner[nodes] == -1)
        owner[nodes] = number
        assert_array_equal(part.problem.values["Point"], arrays["Point"][nodes])
        given = part.problem.factors["snavely"]
        instances = part.shard.numbers("snavely", np.arange(given.count), np.asarray)
        seen[instances] += 1
        assert_array_equal(given.nodes["cam"], observed["cam"][instances])
        assert_array_equal(nodes[given.nodes["point"]], observed["point"][instances])
        rows = given.constants["pixel"].rows
        # no copy yet
        assert isinstance(rows, PickedRows)
        assert np.shares_memory(rows.rows, problem.factors["snavely"].constants["pixel"].rows)
        assert rows.shape == (given.count, 2)
        assert rows.nbytes == rows.on_host().nbytes
        assert_array_equal(rows.on_host(), observed["pixel"][instances])
        assert given.count == pytest.approx(total / num_parts, rel=0.02)
    assert np.all(owner >= 0)
    assert np.all(seen == 1)
    # a range of numbers has all of them
    num_cameras = len(arrays["Cam"])
    places = np.linspace(0, len(arrays["Point"]), num_parts + 1).astype(int)
    for first, end in pairwise(places):
        within = (observed["point"] >= first) & (observed["point"] < end)
        assert len(np.unique(observed["cam"][within])) > 0.97 * num_cameras
    mean = sum(map(_num_cameras, parts)) / num_parts
    assert mean < {2: 0.8, 3: 0.67, 5: 0.55}[num_parts] * num_cameras


@ON_SEVERAL
def test_the_same_minimum(backend: str, devices: int) -> None:
    arrays = scattered()
    random = np.random.default_rng(0)
    arrays = {**arrays, "snavely": {**arrays["snavely"]}}
    arrays["snavely"]["weight"] = random.uniform(0.5, 2.0, len(arrays["snavely"]["pixel"]))
    lower = np.full((len(arrays["Point"]), 3), -np.inf)
    lower[::3, 2] = arrays["Point"][::3, 2] - 1e-3
    options = {
        **CLOSE,
        "fixed": {"Cam": [0, 3], "Point": [7, 400, 1101]},
        "bounds": {"Point": (lower, None)},
    }
    one = caspar.Solver([snavely], backend="cpu", precision="float64", linear_solver="schur_pcg")
    solver = sharing((snavely,), devices, backend, precision="float64")
    found, wanted = solver.solve(arrays, **options), one.solve(arrays, **options)
    assert_same_minimum(found, wanted, 1e-9, 1e-3)
    assert_array_equal(found.values["Point"][[7, 400, 1101]], arrays["Point"][[7, 400, 1101]])
    assert np.all(found.values["Point"] >= lower)
    again = solver.solve(arrays, **options)
    assert again.final_cost == pytest.approx(found.final_cost, rel=1e-9)
    rows = solver.evaluate(arrays).residuals("snavely")
    assert_allclose(rows, one.evaluate(arrays).residuals("snavely"), rtol=1e-9, atol=1e-9)


def test_numbers_that_say_enough_are_kept() -> None:
    """Views, no copies: points of a street, or in an order that was made before."""
    arrays = scattered()
    _, parts = _split(arrays, 2)
    order = np.concatenate([part.nodes["Point"] for part in parts])
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order))
    observed = arrays["snavely"]
    point = rank[observed["point"]]
    items = np.argsort(point, kind="stable")
    sorted_arrays = {
        "Cam": arrays["Cam"],
        "Point": arrays["Point"][order],
        "snavely": {
            "cam": observed["cam"][items],
            "point": point[items],
            "pixel": observed["pixel"][items],
        },
    }
    problem, sorted_parts = _split(sorted_arrays, 2)
    for part in sorted_parts:
        assert part.shard.in_order == ()
        assert isinstance(part.nodes["Point"], slice)
        rows = part.problem.factors["snavely"].constants["pixel"].rows
        assert np.shares_memory(rows, problem.factors["snavely"].constants["pixel"].rows)


def test_few_cameras_are_on_all_devices_anyway() -> None:
    _, parts = _split(arrays_of(read("problem-21-11315")), 2)
    assert all(isinstance(part.nodes["Point"], slice) for part in parts)


def test_points_that_nobody_sees() -> None:
    """The only factor that touches points has no instances."""
    arrays = scattered()
    nothing = {name: rows[:0] for name, rows in arrays["snavely"].items()}
    held = {"value": np.arange(len(arrays["Cam"]), dtype=np.int32), "expected": arrays["Cam"]}
    solver = sharing((snavely, known_camera), 2, precision="float64")
    result = solver.solve({**arrays, "snavely": nothing, "known_camera": held})
    assert result.final_cost == pytest.approx(0.0, abs=1e-20)
    assert_array_equal(result.values["Point"], arrays["Point"])


def test_an_order_that_takes_too_much_memory() -> None:
    arrays = scattered()
    _, parts = _split(arrays, 2, free_bytes=100_000)
    (remark,) = parts[0].remarks
    needed = bytes_text(48 * len(arrays["snavely"]["pixel"]))
    assert remark == (
        f"Nodes of Point were divided by their numbers: to order them the first device needs "
        f"{needed}, and has {bytes_text(100_000)} left. Iterations are quicker if those that are "
        "seen together have numbers that are close."
    )
    assert sum(size_of(part.nodes["Point"]) for part in parts) == len(arrays["Point"])
