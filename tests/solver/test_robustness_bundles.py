"""Bundle adjustment of real photographs from bad starts and in odd units."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import caspar
from caspar.bundle_adjustment import snavely
from caspar.io import BalProblem
from caspar.io.rotations import rotate
from caspar.options import BackendName, LinearSolverName, PrecisionName
from tests.solver import reference
from tests.solver.bundles import arrays_of, cost_of, observed, part_of, read
from tests.solver.robust_cases import assert_sound
from tests.solver.solving import ON_BACKENDS, changed, solver

PRECISIONS = pytest.mark.parametrize("precision", ["float64", "mixed"])
SCALES = pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])


def num_behind(problem: BalProblem) -> int:
    """Observations of points that are behind their camera, which looks along -z."""
    cameras = problem.cameras[problem.camera_index]
    turns = cameras[:, :4] / np.linalg.norm(cameras[:, :4], axis=1, keepdims=True)
    seen = rotate(turns, problem.points[problem.point_index]) + cameras[:, 4:7]
    return int(np.count_nonzero(seen[:, 2] > 0.0))


@cache
def usual(precision: str, backend: BackendName) -> caspar.SolveResult:
    return solver((snavely,), precision, backend).solve(arrays_of(_small()))


@cache
def _small() -> BalProblem:
    return part_of(read("problem-21-11315"), 120)


@ON_BACKENDS
@PRECISIONS
def test_points_behind_cameras(precision: str, backend: BackendName) -> None:
    """Of Ladybug-49: its own optimum, and no point that is behind holds up the others."""
    problem = read("problem-49-7776")
    assert num_behind(problem) == 31
    result = solver((snavely,), precision, backend).solve(arrays_of(problem))
    assert result.status.is_success
    assert result.final_cost == pytest.approx(13_344.24, rel=1e-4)
    cost = cost_of(problem, result.values["Cam"], result.values["Point"])
    assert result.final_cost == pytest.approx(cost, rel=1e-5)


@ON_BACKENDS
@PRECISIONS
@pytest.mark.parametrize("share", [0.01, 0.2])
def test_points_that_are_mirrored(share: float, precision: str, backend: BackendName) -> None:
    """Some points start behind all cameras: a local minimum, or the usual one."""
    small = _small()
    random = np.random.default_rng(1)
    points = small.points.copy()
    chosen = random.random(len(points)) < share
    center = -small.cameras[:, 4:7].mean(axis=0)
    points[chosen] = 2.0 * center - points[chosen]
    given = changed(arrays_of(small), "Point", points)
    result = solver((snavely,), precision, backend).solve(given, max_time_s=60.0)
    assert_sound(result, [snavely], given)
    assert result.final_cost < 1e-2 * result.initial_cost


@ON_BACKENDS
@PRECISIONS
@SCALES
def test_units_of_length_do_not_matter(scale: float, precision: str, backend: BackendName) -> None:
    """Nothing else is measured in them: the same photographs."""
    small = _small()
    cameras = small.cameras.copy()
    cameras[:, 4:7] *= scale
    given = changed(arrays_of(small), "Cam", cameras)
    given = changed(given, "Point", scale * small.points)
    result = solver((snavely,), precision, backend).solve(given)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(usual(precision, backend).final_cost, rel=1e-4)
    assert all(np.isfinite(rows).all() for rows in result.values.values())


@ON_BACKENDS
@PRECISIONS
@SCALES
def test_units_of_pictures_do_not_matter(
    scale: float, precision: str, backend: BackendName
) -> None:
    """Pixels, or millionths of them: costs are in their squares."""
    small = _small()
    cameras = small.cameras.copy()
    cameras[:, 7] *= scale
    given = changed(arrays_of(small), "Cam", cameras)
    given = changed(given, "snavely.pixel", scale * small.pixels)
    result = solver((snavely,), precision, backend).solve(given)
    assert result.status.is_success
    wanted = scale**2 * usual(precision, backend).final_cost
    assert result.final_cost == pytest.approx(wanted, rel=1e-4)
    assert all(np.isfinite(rows).all() for rows in result.values.values())


@ON_BACKENDS
@PRECISIONS
@pytest.mark.parametrize("linear_solver", ["auto", "pcg", "schur_pcg"])
def test_all_cameras_start_as_one(
    linear_solver: LinearSolverName, precision: PrecisionName, backend: BackendName
) -> None:
    """No baseline, so no depth: it ends where it ends, and says so."""
    small = _small()
    cameras = np.repeat(small.cameras[:1], len(small.cameras), axis=0)
    given = changed(arrays_of(small), "Cam", cameras)
    used = caspar.Solver(snavely, backend=backend, precision=precision, linear_solver=linear_solver)
    result = used.solve(given, max_time_s=60.0)
    assert_sound(result, [snavely], given, is_at_a_pole=True)
    assert result.final_cost < 1e-2 * result.initial_cost


@ON_BACKENDS
@PRECISIONS
def test_points_seen_once_among_others(precision: str, backend: BackendName) -> None:
    small = _small()
    once = np.ones(len(small.point_index), bool)
    _, first = np.unique(small.point_index, return_index=True)
    # every other point keeps its first observation only
    once[small.point_index % 2 == 0] = False
    once[first] = True
    part = observed(small, once)
    result = solver((snavely,), precision, backend).solve(arrays_of(part))
    assert_sound(result, [snavely], arrays_of(part))
    assert result.status.is_success


@ON_BACKENDS
@PRECISIONS
def test_points_at_infinity(precision: str, backend: BackendName) -> None:
    """Where they stay: observations of a far point say next to nothing of its distance."""
    small = _small()
    points = small.points.copy()
    random = np.random.default_rng(2)
    center = -small.cameras[:, 4:7].mean(axis=0)
    far: Any = random.random(len(points)) < 0.1
    points[far] = center + 1e4 * (points[far] - center)
    given = changed(arrays_of(small), "Point", points)
    result = solver((snavely,), precision, backend).solve(given, max_time_s=60.0)
    assert_sound(result, [snavely], given)


@pytest.mark.parametrize("scale", [1e6, 1e10, 1e13])
def test_derivatives_of_far_points(scale: float) -> None:
    """What successes are judged by: in another unit of length they are divided by it."""
    small = _small()
    cameras = small.cameras.copy()
    cameras[:, 4:7] *= scale
    given = changed(arrays_of(small), "Cam", cameras)
    given = changed(given, "Point", scale * small.points)
    (usual_camera, usual_point), (camera, point) = (
        reference.argument_jacobians([snavely], arrays)[0] for arrays in (arrays_of(small), given)
    )
    largest = np.abs(usual_point.slope).max()
    assert_allclose(scale * point.slope, usual_point.slope, rtol=0.0, atol=1e-4 * largest)
    assert_allclose(
        camera.slope[:, :, :3], usual_camera.slope[:, :, :3], rtol=1e-4, atol=1e-4 * largest
    )
