"""Problems at the edge: tiny, singular, with free directions, at far ends of the scale."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csc_array
from scipy.sparse.linalg import spsolve

import caspar
from caspar.bundle_adjustment import snavely
from caspar.options import BackendName, PrecisionName
from caspar.runtime.cpu.backend import CpuBackend
from tests.problems import EXAMPLES, Arrays, anchor, between, height, relative_turn
from tests.solver import reference
from tests.solver.bundles import arrays_of, cost_of, observed, part_of, read
from tests.solver.solving import ON_BACKENDS, changed, solve_example, solver

GRID = EXAMPLES["grid"].arrays()
FACTORS = EXAMPLES["grid"].factors
PRECISIONS = pytest.mark.parametrize("precision", ["float64", "mixed"])
MAX_DENSE = 100


def linear_optimum(arrays: Arrays) -> tuple[float, Any]:
    """Least cost and values of least change of a grid's linear problem.

    By dense algebra, which finds the least change of singular problems too; by the sparse normal
    equations if there are so many anchors that nothing is singular and dense algebra is slow.
    """
    places = np.asarray(arrays["Place"], dtype=float)
    rows, right = [], []
    for name, ends in (("between", ("end", "start")), ("anchor", ("place",))):
        given = arrays.get(name)
        if given is None:
            continue
        matrix = np.zeros((len(given[ends[0]]), len(places)))
        for sign, end in zip((1.0, -1.0), ends, strict=False):
            np.add.at(matrix, (np.arange(len(matrix)), np.asarray(given[end])), sign)
        rows.append(matrix)
        right.append(given["offset" if name == "between" else "known"])
    matrix, wanted = np.concatenate(rows), np.concatenate(right)
    right_side = wanted - matrix @ places
    if len(places) > MAX_DENSE:
        assert len(np.unique(arrays["anchor"]["place"])) == len(places)
        sparse = csc_array(matrix)
        change = spsolve(csc_array(sparse.T @ sparse), sparse.T @ right_side)
    else:
        change = np.linalg.lstsq(matrix, right_side, rcond=None)[0]
    error = matrix @ (places + change) - wanted
    return 0.5 * float(np.sum(error**2)), places + change


def assert_solved(result: caspar.SolveResult, arrays: Arrays, tolerance: float = 1e-6) -> None:
    """A success at the optimum, with finite values."""
    cost, _ = linear_optimum(arrays)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(cost, rel=tolerance)
    assert np.isfinite(result.values["Place"]).all()


# -- small -----------------------------------------------------------------------------------------


@ON_BACKENDS
@PRECISIONS
def test_one_node_and_one_factor(precision: str, backend: BackendName) -> None:
    arrays = {"Place": [[3.0, 4.0]], "anchor": {"place": [0], "known": [[1.0, 2.0]]}}
    result = solver((anchor,), precision, backend).solve(arrays)
    assert result.status.is_success
    assert result.initial_cost == 4.0
    assert result.final_cost < 1e-12
    assert_allclose(result.values["Place"], [[1.0, 2.0]], atol=1e-6)


@ON_BACKENDS
@PRECISIONS
@pytest.mark.parametrize("count", [31, 32, 33, 255, 256, 257, 1000])
def test_counts_around_the_size_of_tiles(count: int, precision: str, backend: BackendName) -> None:
    """A chain: tiles that are full, one short, one over."""
    random = np.random.default_rng(count)
    arrays: Arrays = {
        "Place": random.normal(size=(count, 2)),
        "between": {
            "start": np.arange(count - 1),
            "end": np.arange(1, count),
            "offset": random.normal(size=(count - 1, 2)),
        },
        "anchor": {"place": np.arange(count), "known": random.normal(size=(count, 2))},
    }
    result = solve_example("grid", arrays, precision, backend)
    assert_solved(result, arrays)
    assert_allclose(result.values["Place"], linear_optimum(arrays)[1], atol=1e-2)


@ON_BACKENDS
@PRECISIONS
def test_one_node_that_all_factors_share(precision: str, backend: BackendName) -> None:
    known = np.random.default_rng(0).normal(size=(3000, 2))
    arrays = {"Place": [[30.0, -40.0]], "anchor": {"place": np.zeros(3000, int), "known": known}}
    result = solver((anchor,), precision, backend).solve(arrays)
    assert_allclose(result.values["Place"][0], known.mean(axis=0), atol=1e-5)
    spread = 0.5 * float(np.sum((known - known.mean(axis=0)) ** 2))
    assert result.final_cost == pytest.approx(spread, rel=1e-6)


@PRECISIONS
def test_zeros_of_a_jacobian_are_not_stored(precision: str) -> None:
    """Of a linear factor each row has one entry by each node; what scales them differs."""
    made = solver(FACTORS, precision)
    assert_solved(made.solve(GRID), GRID)
    assert made.prepare(GRID).jacobian_dims == {"between": 4, "anchor": 2}


# -- singular --------------------------------------------------------------------------------------


@ON_BACKENDS
@PRECISIONS
def test_free_translation(precision: str, backend: BackendName) -> None:
    """No anchor: the cost does not change when all places move together."""
    arrays = {"Place": GRID["Place"], "between": GRID["between"]}
    result = solver((between,), precision, backend).solve(arrays)
    assert_solved(result, arrays)
    moved = result.values["Place"] - GRID["Place"]
    assert np.abs(moved.mean(axis=0)).max() < 1e-2  # no drift along the free direction


@ON_BACKENDS
@PRECISIONS
def test_free_rotation(precision: str, backend: BackendName) -> None:
    attitudes = EXAMPLES["attitudes"].arrays()
    arrays = {name: attitudes[name] for name in ("Attitude", "relative_turn")}
    result = solver((relative_turn,), precision, backend).solve(arrays)
    optimum = reference.minimize_with_scipy((relative_turn,), arrays)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(optimum.cost, rel=1e-5)
    assert_allclose(np.linalg.norm(result.values["Attitude"], axis=1), 1.0, atol=1e-6)


@ON_BACKENDS
@PRECISIONS
def test_two_parts_that_do_not_touch(precision: str, backend: BackendName) -> None:
    between_twice = {
        "start": np.concatenate([GRID["between"]["start"], GRID["between"]["start"] + 36]),
        "end": np.concatenate([GRID["between"]["end"], GRID["between"]["end"] + 36]),
        "offset": np.concatenate([GRID["between"]["offset"]] * 2),
    }
    arrays = {
        "Place": np.concatenate([GRID["Place"], GRID["Place"] + 100.0]),
        "between": between_twice,
        "anchor": GRID["anchor"],
    }
    assert_solved(solve_example("grid", arrays, precision, backend), arrays)


@ON_BACKENDS
@PRECISIONS
def test_factors_given_several_times_weigh_more(precision: str, backend: BackendName) -> None:
    thrice = {name: np.concatenate([array] * 3) for name, array in GRID["anchor"].items()}
    arrays = changed(GRID, "anchor", thrice)
    assert_solved(solve_example("grid", arrays, precision, backend), arrays)


@ON_BACKENDS
@PRECISIONS
def test_factor_from_a_node_to_itself(precision: str, backend: BackendName) -> None:
    """Its residual is constant: both Jacobians cancel."""
    loops = {
        "start": np.append(GRID["between"]["start"], [3, 3]),
        "end": np.append(GRID["between"]["end"], [3, 3]),
        "offset": np.concatenate([GRID["between"]["offset"], [[1.0, 2.0], [0.0, 0.0]]]),
    }
    arrays = changed(GRID, "between", loops)
    assert_solved(solve_example("grid", arrays, precision, backend), arrays)


@ON_BACKENDS
@PRECISIONS
def test_points_seen_once(precision: str, backend: BackendName) -> None:
    """Two residuals for three unknowns each: every block of a point is singular."""
    problem = read("problem-21-11315")
    _, first = np.unique(problem.point_index, return_index=True)
    result = solver((snavely,), precision, backend).solve(arrays_of(observed(problem, first)))
    assert result.status.is_success
    assert result.final_cost < 1e-10 * result.initial_cost  # each point can be on its ray
    assert all(np.isfinite(value).all() for value in result.values.values())


def test_padding_may_hold_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signalling NaN where nothing is kept warns of nothing when values are rounded."""
    allocate = CpuBackend.allocate

    def signalling(backend: CpuBackend, num_bytes: int) -> Any:
        memory = allocate(backend, num_bytes)
        memory[: num_bytes // 4 * 4].view(np.uint32)[:] = 0x7F800001
        return memory

    problem = part_of(read("problem-21-11315"), 300)
    _, first = np.unique(problem.point_index, return_index=True)
    made = solver((snavely,), "mixed", "cpu")
    made.release()
    monkeypatch.setattr(CpuBackend, "allocate", signalling)
    result = made.solve(arrays_of(observed(problem, first)))
    made.release()
    assert result.status.is_success
    assert result.final_cost < 1e-10 * result.initial_cost  # rounding was asked for


@ON_BACKENDS
@PRECISIONS
def test_observations_given_twice(precision: str, backend: BackendName) -> None:
    problem = part_of(read("problem-21-11315"), 300)
    once = arrays_of(problem)
    twice = changed(
        once, "snavely", {name: np.concatenate([x, x]) for name, x in once["snavely"].items()}
    )
    first = solver((snavely,), precision, backend).solve(once)
    second = solver((snavely,), precision, backend).solve(twice)
    assert second.initial_cost == pytest.approx(2.0 * first.initial_cost, rel=1e-9)
    assert second.final_cost == pytest.approx(2.0 * first.final_cost, rel=1e-5)


@ON_BACKENDS
@PRECISIONS
def test_all_cameras_start_as_one(precision: PrecisionName, backend: BackendName) -> None:
    """No baseline, so no depth, at the start: points that moved alone would go anywhere.

    Several minima are near such a start, and rounding decides which of them is reached. A solve
    that goes on from there, by exact steps, stays.
    """
    problem = part_of(read("problem-21-11315"), 300)
    usual = solver((snavely,), precision, backend).solve(arrays_of(problem))
    patient = caspar.Solver(snavely, backend=backend, precision=precision, inner_iterations=0)
    cameras = np.repeat(problem.cameras[:1], len(problem.cameras), axis=0)
    result = patient.solve(changed(arrays_of(problem), "Cam", cameras), max_iterations=500)
    assert result.status.is_success
    assert usual.final_cost * (1.0 - 1e-5) <= result.final_cost < 2.0 * usual.final_cost
    cost = cost_of(problem, result.values["Cam"], result.values["Point"])
    assert result.final_cost == pytest.approx(cost, rel=3e-6)
    exact = caspar.Solver(snavely, backend="cpu", precision="float64", linear_solver="schur_dense")
    ended = exact.solve({**arrays_of(problem), **result.values}, cost_tolerance=1e-12)
    assert ended.final_cost > result.final_cost * (1.0 - 1e-5)


@ON_BACKENDS
@PRECISIONS
def test_unused_scalar_of_a_node(precision: str, backend: BackendName) -> None:
    """Nothing depends on x: its place stays, the other coordinate is solved."""
    made = solver((height,), precision, backend)
    places = np.array([[0.25, 5.0], [-0.5, -7.0]])
    arrays = {"Place": places, "height": {"place": [0, 1, 1], "known": [[9.0], [1.0], [2.0]]}}
    result = made.solve(arrays)
    assert result.status.is_success
    assert_array_equal(result.values["Place"][:, 0], places[:, 0])
    assert_allclose(result.values["Place"][:, 1], [9.0, 1.5], atol=1e-5)


# -- scale -----------------------------------------------------------------------------------------


@ON_BACKENDS
@PRECISIONS
@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e-3, 1e3, 1e6, 1e12])
def test_units_do_not_matter(scale: float, precision: str, backend: BackendName) -> None:
    """Metres, light years, nanometres: the same iterations, the same values in other units."""
    arrays = {
        "Place": scale * GRID["Place"],
        "between": {**GRID["between"], "offset": scale * GRID["between"]["offset"]},
        "anchor": {**GRID["anchor"], "known": scale * GRID["anchor"]["known"]},
    }
    usual, scaled = (solve_example("grid", given, precision, backend) for given in (GRID, arrays))
    assert_solved(scaled, arrays)
    assert scaled.final_cost == pytest.approx(scale**2 * usual.final_cost, rel=1e-6)
    assert_allclose(scaled.values["Place"] / scale, usual.values["Place"], atol=1e-3)


@ON_BACKENDS
@PRECISIONS
@pytest.mark.parametrize("weight", [1e-6, 1e6])
def test_weights_of_all_residuals_do_not_matter(
    weight: float, precision: str, backend: BackendName
) -> None:
    """Standard deviations a million times smaller or larger: the same values."""
    vehicle = EXAMPLES["vehicle"].arrays()
    arrays = changed(vehicle, "drive.tuning", vehicle["drive"]["tuning"] / weight)
    compass = vehicle["compass"]["device"]["values"] / [1.0, 1.0, weight]
    arrays = changed(arrays, "compass.device.values", compass)
    result = solve_example("vehicle", arrays, precision, backend)
    optimum = reference.minimize_with_scipy(EXAMPLES["vehicle"].factors, arrays)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(optimum.cost, rel=1e-4)


@ON_BACKENDS
@PRECISIONS
def test_one_factor_that_outweighs_all_others(precision: str, backend: BackendName) -> None:
    """Condition number 1e8 in the normal equations of one place."""
    count = 100
    many = {"place": np.zeros(count, int), "known": np.tile([[1.0, 1.0]], (count, 1))}
    far = {
        "place": np.append(many["place"], 1),
        "known": np.append(many["known"], [[1e4, -1e4]], 0),
    }
    arrays = {
        "Place": np.zeros((2, 2)),
        "between": {"start": [0], "end": [1], "offset": [[0.0, 0.0]]},
        "anchor": far,
    }
    assert_solved(solve_example("grid", arrays, precision, backend), arrays)
