"""How nodes are divided: by their numbers, or in the order of tiles where these say nothing."""

from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.bundle_adjustment import Point, snavely
from caspar.memory.array import PickedRows
from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.input.problem import Problem
from caspar.solver.plan.shard import size_of
from caspar.solver.shards.split import Part
from tests.solver.bundles import arrays_of, read
from tests.solver.shards.sharing import (
    ALL_SHARE,
    ON_SEVERAL,
    assert_same_minimum,
    opened,
    scattered,
    sharing,
)


@caspar.factor
def known_point(
    point: Annotated[Point, caspar.TunableShared],
    place: Annotated[sf.V3, caspar.ConstIndexed],
    scale: Annotated[sf.V3, caspar.ConstSequential],
) -> sf.V3:
    """A point that is near one of some places."""
    return sf.V3(*(size * apart for size, apart in zip(scale, point - place)))  # noqa: B905


CLOSE: dict[str, Any] = {"cost_tolerance": 1e-12, "min_linear_tolerance": 1e-9}


def _split(arrays: dict[str, Any], num_parts: int) -> tuple[Problem, list[Part]]:
    problem, split = opened(arrays, num_parts)
    return problem, split()


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
        nodes = part.shard.nodes["Point"]
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
    # another factor of the same type, with constants by an index
    places = random.integers(0, 40, 90)
    arrays["known_point"] = {
        "point": random.permutation(len(arrays["Point"]))[:90],
        "place": {"values": random.normal(size=(40, 3)), "index": places},
        "scale": random.uniform(0.5, 2.0, (90, 3)),
    }
    lower = np.full((len(arrays["Point"]), 3), -np.inf)
    lower[::3, 2] = arrays["Point"][::3, 2] - 1e-3
    options = {
        **CLOSE,
        "fixed": {"Cam": [0, 3], "Point": [7, 400, 1101]},
        "bounds": {"Point": (lower, None)},
    }
    factors = (snavely, known_point)
    one = caspar.Solver(factors, backend="cpu", precision="float64", linear_solver="schur_pcg")
    solver = sharing(factors, devices, backend, precision="float64")
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
    order = np.concatenate([part.shard.nodes["Point"] for part in parts])
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
        assert isinstance(part.shard.nodes["Point"], slice)
        rows = part.problem.factors["snavely"].constants["pixel"].rows
        assert np.shares_memory(rows, problem.factors["snavely"].constants["pixel"].rows)


def test_few_cameras_are_on_all_devices_anyway() -> None:
    _, parts = _split(arrays_of(read("problem-21-11315")), 2)
    assert all(isinstance(part.shard.nodes["Point"], slice) for part in parts)


def test_points_that_nobody_sees_are_dealt_out() -> None:
    arrays = scattered()
    arrays = {**arrays, "Point": np.concatenate([arrays["Point"], np.zeros((900, 3))])}
    with pytest.warns(UserWarning, match="900 of 2400 instances are touched by no factor"):
        _, parts = _split(arrays, 3)
    nodes: list[Any] = [part.shard.nodes["Point"] for part in parts]
    assert [int((own >= 1500).sum()) for own in nodes] == [300, 300, 300]
    assert_array_equal(np.sort(np.concatenate(nodes)), np.arange(2400))


@pytest.mark.parametrize("lacking", ["before", "meanwhile"])
def test_an_order_that_takes_too_much_memory(lacking: str) -> None:
    arrays = scattered()
    freed: list[int] = []

    def fail(*_: object) -> None:
        raise MemoryError("of this test")

    _, split = opened(arrays, 2)
    with pytest.MonkeyPatch.context() as patch:
        if lacking == "before":
            patch.setattr(CpuBackend, "free_bytes", property(lambda _: 100_000))
        else:
            patch.setattr(CpuBackend, "node_order", fail)
        parts = split(make_room=lambda: freed.append(1))
    (remark,) = parts[0].remarks
    needed = 48 * len(arrays["snavely"]["pixel"])
    assert remark == (
        "Nodes of Point were divided by their numbers: the first device lacks memory to order "
        f"them ({needed:,} bytes). Iterations are quicker if those that are seen together have "
        "numbers that are close."
    )
    assert sum(size_of(part.shard.nodes["Point"]) for part in parts) == len(arrays["Point"])
    assert len(freed) == (lacking == "before")


def test_memory_of_the_last_solve_does_not_decide() -> None:
    arrays, kept = scattered(), [True]

    def make_room() -> None:
        kept.clear()

    _, split = opened(arrays, 2)
    with pytest.MonkeyPatch.context() as patch:
        free = property(lambda _: 100_000 if kept else 1 << 30)
        patch.setattr(CpuBackend, "free_bytes", free)
        parts = split(make_room=make_room)
    assert parts[0].shard.in_order == ("Point",)
    assert parts[0].remarks == ()


def test_a_solver_gives_back_what_it_keeps() -> None:
    solver = caspar.Solver(
        [snavely], backend="cpu", devices=2, limits=ALL_SHARE, precision="float64"
    )
    first = solver.solve(scattered(), **CLOSE)
    asked: list[int] = []

    def free(_: object) -> int:
        asked.append(1)
        return 100_000 if len(asked) == 1 else 1 << 40

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuBackend, "free_bytes", property(free))
        second = solver.solve(scattered(), **CLOSE)
    assert len(asked) > 1
    assert not any("lacks memory" in one for one in second.remarks)
    assert second.final_cost == pytest.approx(first.final_cost, rel=1e-9)
