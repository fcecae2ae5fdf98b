"""Steps in compiled code: whoever decides, bits of records, values and costs are the same."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar import loss
from caspar.options import LinearSolverName, Precision
from caspar.runtime.backend import MOST_STEPS
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.lm.plain.steps import PlainSteps
from caspar.solver.result.result import SolveResult
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")


class Decay(sf.V3):
    """Height, rate and offset."""


@caspar.factor
def decay(
    model: Annotated[Decay, caspar.TunableUnique],
    time: Annotated[sf.V1, caspar.ConstSequential],
    value: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    """A sample of an exponential decay."""
    return sf.V1(model[0] * sf.exp(-model[1] * time[0]) + model[2] - value[0])


@caspar.factor
def see(
    pose: Annotated[sf.Pose3, caspar.TunableUnique],
    point: Annotated[sf.V3, caspar.ConstSequential],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A known point, seen by a camera."""
    x, y, z = pose * point
    return 500 * sf.V2(x / z, y / z) - pixel


class Spot(sf.V2):
    """A point of a valley."""


@caspar.factor
def rosenbrock(at: Annotated[Spot, caspar.TunableUnique]) -> sf.V2:
    """A curved valley."""
    return sf.V2(1000.0 * (at[1] - at[0] ** 2), 1.0 - at[0])


def decays(seed: int, noise: float, spread: float) -> dict[str, Any]:
    """Samples, and a start that may be far."""
    rng = np.random.default_rng(seed)
    time = np.sort(rng.uniform(0.0, 4.0, (60, 1)), axis=0)
    value = rng.uniform(0.5, 5.0) * np.exp(-rng.uniform(0.2, 4.0) * time) + rng.normal()
    value = value + noise * rng.normal(size=time.shape)
    start = np.ones((1, 3)) + spread * rng.normal(size=(1, 3))
    return {"Decay": start, "decay": {"time": time, "value": value}}


def views(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    points = rng.uniform(-1.0, 1.0, (40, 3))
    pixel = 500.0 * points[:, :2] / (points[:, 2:] + 4.0) + rng.normal(size=(40, 2))
    pose = np.array([[*(0.05 * rng.normal(size=3)), 1.0, *(0.2 * rng.normal(size=3))]])
    pose[:, :4] /= np.linalg.norm(pose[:, :4])
    pose[0, 6] += 4.0
    return {"Pose3": pose, "see": {"point": points, "pixel": pixel}}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps were taken, by each run in compiled code."""
    found: list[int] = []
    take = NormalEquations.take_plain_steps

    def counted(self: NormalEquations, *given: Any) -> PlainSteps | None:
        steps = take(self, *given)
        if steps is not None:
            found.append(len(steps.rows))
        return steps

    monkeypatch.setattr(NormalEquations, "take_plain_steps", counted)
    return found


def told(result: SolveResult) -> list[str]:
    return [repr(replace(one, time_s=0.0)) for one in result.iterations]


def check_same(solver: caspar.Solver, arrays: Mapping[str, Any], **options: Any) -> SolveResult:
    """With a callback every step is decided by the host."""
    quick = solver.solve(arrays, **options)
    slow = solver.solve(arrays, on_iteration=lambda record: None, **options)
    assert told(quick) == told(slow)
    assert (quick.status, quick.remarks) == (slow.status, slow.remarks)
    assert (quick.initial_cost, quick.final_cost) == (slow.initial_cost, slow.final_cost)
    np.testing.assert_equal(quick.remaining_decrease, slow.remaining_decrease)
    for name, values in quick.values.items():
        np.testing.assert_array_equal(values, slow.values[name])
    return quick


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0])
def test_curves(spread: float, counts: list[int]) -> None:
    solver = caspar.Solver(decay, backend="cpu")
    for seed in range(12):
        check_same(solver, decays(seed, 10.0 ** -(seed % 6), spread), max_iterations=60)
    assert sum(counts) > 12


@pytest.mark.parametrize("kind", [loss.Huber, loss.Cauchy])
def test_losses(kind: Any, counts: list[int]) -> None:
    solver = caspar.Solver(decay.with_loss(kind), backend="cpu")
    for seed in range(6):
        arrays = decays(seed, 0.1, 0.3)
        arrays["decay"]["loss_scale"] = 0.05
        check_same(solver, arrays)
    assert sum(counts) > 6


def test_poses(counts: list[int]) -> None:
    solver = caspar.Solver(see, backend="cpu")
    for seed in range(4):
        result = check_same(solver, views(seed))
        assert result.status.is_success
    assert sum(counts) >= 8


@pytest.mark.parametrize(
    "options",
    [
        {"max_iterations": 1},
        {"max_iterations": 2},
        {"max_iterations": 4},
        {"initial_damping": 10.0},
        {"min_damping": 1e-6},
        {"cost_tolerance": 0.0},
        {"gradient_tolerance": 1e-6},
        {"step_tolerance": 1e-3},
    ],
    ids=str,
)
def test_options(options: dict[str, Any]) -> None:
    solver = caspar.Solver(decay, backend="cpu")
    for seed in range(3):
        check_same(solver, decays(seed, 0.01, 0.1), **options)


@caspar.factor
def look(
    pose: Annotated[sf.Pose3, caspar.TunableShared],
    point: Annotated[sf.V3, caspar.TunableShared],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A point, seen by a camera."""
    x, y, z = pose * point
    return 500 * sf.V2(x / z, y / z) - pixel


def bundle(seed: int, noise: float) -> dict[str, Any]:
    """Four cameras that see all points; their scale is free, so that the solve creeps."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(-1.0, 1.0, (30, 3))
    poses = np.tile([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 4.0], (4, 1))
    poses[:, 4] = np.linspace(-1.0, 1.0, 4)
    pose, point = np.repeat(np.arange(4), 30), np.tile(np.arange(30), 4)
    x, y, z = (points[point] + poses[pose, 4:]).T
    pixel = 500.0 * np.stack([x / z, y / z], axis=1) + noise * rng.normal(size=(120, 2))
    start = points + rng.normal(scale=0.05, size=points.shape)
    return {
        "Pose3": poses,
        "Matrix31": start,
        "look": {"pose": pose, "point": point, "pixel": pixel},
    }


@pytest.mark.parametrize("linear_solver", ["sparse", "schur_pcg"])
def test_mixed_precision(linear_solver: LinearSolverName, counts: list[int]) -> None:
    solver = caspar.Solver(look, backend="cpu", linear_solver=linear_solver)
    for seed in range(3):
        arrays = bundle(seed, 10.0 ** (seed - 1))
        result = check_same(solver, arrays, fixed={"Pose3": [0]}, max_iterations=40)
        assert result.precision == "mixed"
    assert (sum(counts) > 6) == (linear_solver == "sparse")


def test_what_is_held_stays_held(counts: list[int]) -> None:
    solver = caspar.Solver(decay, backend="cpu")
    held = np.array([[False, True, False]])
    check_same(solver, decays(0, 0.01, 0.1), fixed={"Decay": held})


def test_more_steps_than_a_run_takes(counts: list[int]) -> None:
    solver = caspar.Solver(rosenbrock, backend="cpu")
    start = {"Spot": np.array([[-3.0, 9.0]]), "rosenbrock": {}}
    result = check_same(solver, start, initial_damping=1.0, min_damping=1.0, max_iterations=200)
    assert len(result.iterations) > MOST_STEPS
    assert max(counts) == MOST_STEPS


def test_what_the_host_has_to_see_is_left_to_it(counts: list[int]) -> None:
    solver = caspar.Solver(decay, backend="cpu")
    arrays = decays(0, 0.01, 0.0)
    solver.solve(arrays, on_iteration=lambda record: None)
    solver.solve(arrays, max_time_s=100.0)
    solver.solve(arrays, bounds={"Decay": (0.0, None)})
    assert counts == []
    solver.solve(arrays)
    assert sum(counts) > 0


def test_steps_are_printed_and_have_times(capsys: pytest.CaptureFixture[str]) -> None:
    solver = caspar.Solver(decay, backend="cpu")
    result = solver.solve(decays(0, 0.01, 0.0), verbose=True)
    shown = capsys.readouterr()
    lines = (shown.out + shown.err).splitlines()
    for record in result.iterations:
        assert any(str(record) in line for line in lines)
    times = [record.time_s for record in result.iterations]
    assert times == sorted(times)
    assert 0.0 < times[0] <= times[-1] <= result.solve_time_s


@needs_compiler
@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_the_text_of_a_device_decides_as_the_host(precision: Precision, counts: list[int]) -> None:
    """From the second solve of a structure on, going ahead."""
    solver = caspar.Solver(
        look, backend=HarnessBackend(), linear_solver="schur_dense", precision=precision
    )
    fixed = {"Pose3": [0]}
    for seed in range(3):
        check_same(solver, bundle(seed, 0.1), fixed=fixed)
        assert (sum(counts) > 0) == (seed > 0)
    result = check_same(solver, bundle(3, 1.0), fixed=fixed, max_iterations=4)
    assert not result.status.is_success


@needs_compiler
def test_the_text_of_a_device_looks_at_derivatives(counts: list[int]) -> None:
    """Steps without damping, where an entry of D may be absent."""
    solver = caspar.Solver(decay, backend=HarnessBackend(), precision="float64")
    for seed in range(4):
        check_same(solver, decays(seed, 10.0**-seed, 0.1))
    assert sum(counts) > 4
    counts.clear()
    nowhere = decays(0, 0.1, 0.1)
    nowhere["Decay"][:, 0] = 0.0  # the rate has no derivative
    check_same(solver, nowhere)
    assert counts[0] == 0
