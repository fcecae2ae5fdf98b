"""Remarks on values that the cost does not hold."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.options import BackendName, LinearSolverName
from tests.solver.solving import ON_BACKENDS
from tests.support_cudss import require_library


@dataclass
class Growth:
    """y = limit (1 - exp(-rate t))."""

    limit: sf.Scalar
    rate: sf.Scalar


class Sample(sf.V1):
    """A time, or what is seen."""


@caspar.factor
def growth(
    curve: Annotated[Growth, caspar.TunableUnique],
    time: Annotated[Sample, caspar.ConstSequential],
    seen: Annotated[Sample, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(curve.limit * (1 - sf.exp(-curve.rate * time[0])) - seen[0])


TIMES = np.array([1.0, 2.0, 3.0, 5.0, 7.0, 10.0])
SEEN = np.array([109.0, 149.0, 149.0, 191.0, 213.0, 224.0])  # NIST's BoxBOD


def fit(start: tuple[float, float], backend: BackendName) -> caspar.SolveResult:
    solver = caspar.Solver([growth], backend=backend, precision="float64")
    data = {"time": TIMES[:, None], "seen": SEEN[:, None]}
    return solver.solve({"Growth": np.array([start]), "growth": data})


@ON_BACKENDS
def test_a_rate_that_ran_away(backend: BackendName) -> None:
    result = fit((30.0, 30.0), backend)
    (remark,) = [one for one in result.remarks if "went from" in one]
    assert remark.startswith("Growth 0, rate, went from 30 to ")
    assert "bounds=" in remark


@ON_BACKENDS
def test_a_rate_that_was_found(backend: BackendName) -> None:
    result = fit((100.0, 0.75), backend)
    assert result.final_cost == pytest.approx(0.5 * 1168.008877, rel=1e-6)
    assert not any("went from" in one for one in result.remarks)


@ON_BACKENDS
def test_values_that_are_large_and_count(backend: BackendName) -> None:
    """A change of scale by 1e9 is no escape."""

    @caspar.factor
    def line(
        curve: Annotated[Growth, caspar.TunableUnique],
        time: Annotated[Sample, caspar.ConstSequential],
        seen: Annotated[Sample, caspar.ConstSequential],
    ) -> sf.V1:
        return sf.V1(sf.sqrt(curve.limit**2 + time[0] ** 2) + curve.rate - seen[0])

    solver = caspar.Solver([line], backend=backend, precision="float64")
    seen = np.sqrt(4e18 + TIMES**2) + 3.0
    data = {"time": TIMES[:, None], "seen": seen[:, None]}
    result = solver.solve({"Growth": np.array([[1.0, 1.0]]), "line": data})
    assert not any("went from" in one for one in result.remarks)


# -- poses that move together ----------------------------------------------------------------------


@caspar.factor
def between(
    start: Annotated[sf.Pose2, caspar.TunableShared],
    end: Annotated[sf.Pose2, caspar.TunableShared],
    motion: Annotated[sf.Pose2, caspar.ConstSequential],
) -> sf.V3:
    return sf.V3(*(motion.inverse() * (start.inverse() * end)).to_tangent())


@caspar.factor
def sighting(
    pose: Annotated[sf.Pose2, caspar.TunableShared],
    mark: Annotated[sf.V2, caspar.TunableShared],
    seen: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    return pose.inverse() * mark - seen


@caspar.factor
def prior(
    pose: Annotated[sf.Pose2, caspar.TunableShared],
    known: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    return (pose.t - known) / 100


def square(noise: float = 0.05, error: float = 0.3) -> dict[str, Any]:
    """Eight poses along a square, measured with noise, started with an error."""
    generator = np.random.default_rng(3)
    angles = np.array([0, 0, 0.5, 0.5, 1.0, 1.0, 1.5, 1.5]) * np.pi
    places = [np.zeros(2)]
    for angle in angles[:-1]:
        places.append(places[-1] + [np.cos(angle), np.sin(angle)])
    start, end = np.arange(8), np.roll(np.arange(8), -1)
    turn = angles[end] - angles[start]
    ahead = np.column_stack([np.ones(8), np.zeros(8)]) + noise * generator.normal(size=(8, 2))
    motion = np.column_stack([np.cos(turn), np.sin(turn), ahead])
    moved = np.array(places) + error * generator.normal(size=(8, 2))
    turned = angles + 0.6 * error
    poses = np.column_stack([np.cos(turned), np.sin(turned), moved])
    return {"Pose2": poses, "between": {"start": start, "end": end, "motion": motion}}


@ON_BACKENDS
@pytest.mark.parametrize("linear_solver", ["pcg", "sparse"])
def test_a_graph_that_nothing_holds(backend: BackendName, linear_solver: LinearSolverName) -> None:
    require_library(linear_solver, backend)
    solver = caspar.Solver(
        [between], backend=backend, precision="float64", linear_solver=linear_solver
    )
    for _ in range(2):  # a second solve by the same plan says it too
        result = solver.solve(square(), cost_tolerance=1e-12)
        assert result.status.is_success
        assert any("All Pose2 can be moved together" in one for one in result.remarks)


@ON_BACKENDS
def test_landmarks_move_too(backend: BackendName) -> None:
    arrays = square()
    marks = np.array([[0.5, 2.0], [3.0, 1.0]])
    sight = {"pose": [0, 3, 5, 7], "mark": [0, 0, 1, 1], "seen": np.full((4, 2), 0.7)}
    solver = caspar.Solver([between, sighting], backend=backend, precision="float64")
    result = solver.solve({**arrays, "Matrix21": marks, "sighting": sight})
    assert any("All Pose2 and Matrix21 can be moved" in one for one in result.remarks)


@ON_BACKENDS
def test_a_weak_prior_holds(backend: BackendName) -> None:
    arrays = {**square(), "prior": {"pose": [0], "known": [[0.0, 0.0]]}}
    solver = caspar.Solver([between, prior], backend=backend, precision="float64")
    result = solver.solve(arrays, cost_tolerance=1e-12)
    assert result.status.is_success
    assert not any("moved together" in one for one in result.remarks)


@ON_BACKENDS
def test_a_held_pose_holds(backend: BackendName) -> None:
    solver = caspar.Solver([between], backend=backend, precision="float64")
    result = solver.solve(square(), fixed={"Pose2": [0]})
    assert not any("moved together" in one for one in result.remarks)


@ON_BACKENDS
@pytest.mark.parametrize("error", [0.0, 1e-6, 0.1], ids=["at the truth", "very near", "near"])
@pytest.mark.parametrize("is_held", [True, False])
def test_exact_measurements_have_the_remark_too(
    backend: BackendName, error: float, is_held: bool
) -> None:
    arrays = square(0.0, error)
    factors = [between]
    if is_held:
        factors.append(prior)
        arrays["prior"] = {"pose": [0], "known": [arrays["Pose2"][0, 2:]]}
    result = caspar.Solver(factors, backend=backend).solve(arrays)
    assert result.status.is_success
    assert result.final_cost < 1e-20
    assert result.remaining_decrease == 0.0
    assert any("can be moved together" in one for one in result.remarks) == (not is_held)


class Height(sf.V2):
    """Of a mark, and something beside it."""


@caspar.factor
def difference(
    start: Annotated[Height, caspar.TunableShared],
    end: Annotated[Height, caspar.TunableShared],
    seen: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    return end - start - seen


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("is_held", [True, False])
def test_a_problem_that_one_step_solves(noise: float, is_held: bool) -> None:
    """Levelling without a known height is linear."""
    generator = np.random.default_rng(2)
    heights = generator.normal(size=(20, 2))
    start, end = np.arange(20), np.roll(np.arange(20), 1)
    seen = heights[end] - heights[start] + noise * generator.normal(size=(20, 2))
    arrays = {
        "Height": np.zeros((20, 2)),
        "difference": {"start": start, "end": end, "seen": seen},
    }
    fixed = {"Height": [0]} if is_held else {}
    result = caspar.Solver(difference, backend="cpu", precision="float64").solve(
        arrays, fixed=fixed
    )
    assert result.status.is_success
    assert any("can be moved together" in one for one in result.remarks) == (not is_held)


class Body(sf.Pose3):
    """Where a body is."""


class Place(sf.V3):
    """A point, in the body or in the world."""


@caspar.factor
def matched(
    body: Annotated[Body, caspar.TunableUnique],
    inside: Annotated[Place, caspar.ConstSequential],
    outside: Annotated[Place, caspar.ConstSequential],
) -> sf.V3:
    return sf.V3(body * inside - outside)


@ON_BACKENDS
@pytest.mark.parametrize("noise", [0.0, 1e-3])
@pytest.mark.parametrize("count", [1, 4])
def test_a_pose_from_points(count: int, noise: float, backend: BackendName) -> None:
    """One point does not determine a pose, with exact measurements as with noisy ones."""
    generator = np.random.default_rng(5)
    inside = generator.normal(size=(count, 3))
    outside = np.repeat(inside + np.array([0.5, -0.2, 0.1]), 3, axis=0)
    outside += noise * generator.normal(size=outside.shape)
    arrays = {
        "Body": [[0.1, 0.0, 0.0, np.sqrt(0.99), 0.0, 0.0, 0.0]],
        "matched": {"inside": np.repeat(inside, 3, axis=0), "outside": outside},
    }
    result = caspar.Solver(matched, backend=backend).solve(arrays)
    assert result.status.is_success
    says_so = any("do not determine Body 0" in one for one in result.remarks)
    assert says_so == (count == 1)
