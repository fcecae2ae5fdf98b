"""Stiff problems, in which MINPACK takes few steps: weights far apart, large offsets, years.

Right values come from closed forms, or from QR in NumPy on variables in which the problem is not
stiff.
"""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from caspar.errors import OptionError
from tests.solver.solving import ON_BACKENDS

Numbers = NDArray[np.float64]
Shared = caspar.TunableShared
Given = caspar.ConstSequential


class Line(sf.V2): ...


class Cubic(sf.V4): ...


class Circle(sf.V3): ...


class Place(sf.V4): ...


class Plane(sf.V2): ...


@caspar.factor
def sample(
    line: Annotated[Line, Shared], time: Annotated[sf.V1, Given], value: Annotated[sf.V1, Given]
) -> sf.V1:
    return sf.V1(line[0] + line[1] * time[0] - value[0])


@caspar.factor
def yearly(
    cubic: Annotated[Cubic, Shared], year: Annotated[sf.V1, Given], value: Annotated[sf.V1, Given]
) -> sf.V1:
    powers = sf.V4(1, year[0], year[0] ** 2, year[0] ** 3)
    return sf.V1(cubic.dot(powers) - value[0])


@caspar.factor
def on_circle(circle: Annotated[Circle, Shared], point: Annotated[sf.V2, Given]) -> sf.V1:
    x, y, radius = circle
    return sf.V1((point[0] - x) ** 2 + (point[1] - y) ** 2 - radius**2)


@caspar.factor
def pseudorange(
    place: Annotated[Place, Shared],
    satellite: Annotated[sf.V3, Given],
    measured: Annotated[sf.V1, Given],
) -> sf.V1:
    apart = sf.V3(*[place[axis] - satellite[axis] for axis in range(3)])
    return sf.V1(apart.norm() + place[3] - measured[0])


@caspar.factor
def near_one(plane: Annotated[Plane, Shared]) -> sf.V2:
    return sf.V2(plane[0] - 1, plane[1] - 1)


@caspar.factor
def tied(plane: Annotated[Plane, Shared], weight: Annotated[sf.V1, Given]) -> sf.V1:
    return sf.V1(weight[0] * (plane[0] ** 2 + plane[1] - 3))


@caspar.factor
def between(
    first: Annotated[sf.Pose3, Shared],
    second: Annotated[sf.Pose3, Shared],
    measured: Annotated[sf.Pose3, Given],
    weight: Annotated[sf.V1, Given],
) -> sf.V6:
    error = measured.inverse() * (first.inverse() * second)
    return sf.V6(*[weight[0] * entry for entry in error.to_tangent()])


@ON_BACKENDS
@pytest.mark.parametrize("start_s", [1e8, 1.7e9])
def test_a_line_over_unix_seconds(start_s: float, backend: str) -> None:
    times = start_s + np.linspace(0.0, 10.0, 101)
    values = 1.0 + 2.5 * (times - start_s) + np.random.default_rng(1).normal(0.0, 0.01, 101)
    centred = times - times.mean()
    rate = centred @ values / (centred @ centred)
    best = 0.5 * float(((values - values.mean() - rate * centred) ** 2).sum())
    result = caspar.Solver(sample, backend=backend).solve(
        {
            "Line": np.zeros((1, 2)),
            "sample": {"line": [0] * 101, "time": times[:, None], "value": values[:, None]},
        }
    )
    assert result.status.is_success
    assert len(result.iterations) <= 20
    # the offset is rounded to 1e-7 at 4e9
    assert result.final_cost == pytest.approx(best, rel=1e-5)
    assert np.asarray(result.values["Line"])[0, 1] == pytest.approx(rate, rel=1e-4)
    assert result.linear_solver == "qr"
    assert result.remarks == ()


def test_a_cubic_over_years() -> None:
    years = np.linspace(1990.0, 2020.0, 61)
    scaled = (years - 2005.0) / 15.0
    values = 3.0 + 2.0 * scaled - 1.5 * scaled**2 + 0.7 * scaled**3
    values += np.random.default_rng(0).normal(0.0, 0.05, 61)
    left = values - np.polyval(np.polyfit(scaled, values, 3), scaled)
    arrays = {"cubic": [0] * 61, "year": years[:, None], "value": values[:, None]}
    result = caspar.Solver(yearly, backend="cpu").solve(
        {"Cubic": np.zeros((1, 4)), "yearly": arrays}
    )
    assert result.status.is_success
    assert len(result.iterations) <= 20
    assert result.final_cost == pytest.approx(0.5 * float(left @ left), rel=1e-7)


@pytest.mark.parametrize("radius", [1e5, 1e6])
def test_a_circle_from_far_away(radius: float) -> None:
    angles = np.random.default_rng(3).uniform(0.0, 2.0 * np.pi, 12)
    points = np.stack([3.0 + 2.0 * np.cos(angles), -1.0 + 2.0 * np.sin(angles)], axis=1)
    points += np.random.default_rng(4).normal(0.0, 0.01, points.shape)
    # x^2 + y^2 = 2 a x + 2 b y + c is linear
    matrix, squares = np.column_stack([2.0 * points, np.ones(12)]), (points**2).sum(axis=1)
    left = squares - matrix @ np.linalg.lstsq(matrix, squares)[0]
    result = caspar.Solver(on_circle, backend="cpu").solve(
        {"Circle": [[0.0, 0.0, radius]], "on_circle": {"circle": [0] * 12, "point": points}}
    )
    assert result.status.is_success
    assert len(result.iterations) <= 50
    assert result.final_cost == pytest.approx(0.5 * float(left @ left), rel=1e-7)


@pytest.mark.parametrize("bias", [0.0, 3e5, 3e10])
def test_a_common_offset_is_explained_at_once(bias: float) -> None:
    """A thousandth of the clock's bias that damping leaves would be explained by the place."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        directions = random.normal(size=(4 + seed % 5, 3))
        directions[:, 2] = np.abs(directions[:, 2]) + 0.3
        satellites = 2.66e7 * directions / np.linalg.norm(directions, axis=1, keepdims=True)
        place = np.array([0.0, 0.0, 6.371e6]) + random.normal(0.0, 1e4, 3)
        ranges = np.linalg.norm(satellites - place, axis=1) + bias
        arrays = {
            "place": [0] * len(ranges),
            "satellite": satellites,
            "measured": ranges[:, None],
        }
        result = PSEUDORANGES.solve({"Place": np.zeros((1, 4)), "pseudorange": arrays})
        assert result.status.is_success, seed
        found = np.asarray(result.values["Place"])[0, :3]
        np.testing.assert_allclose(found, place, atol=1e-14 * max(bias, 1e9) * 10.0)


PSEUDORANGES = caspar.Solver(pseudorange, backend="cpu")


@pytest.mark.parametrize("weight", [1e6, 1e8, 1e10, 1e12])
def test_an_equation_as_a_heavy_residual(weight: float) -> None:
    """The nearest point to (1, 1) of the parabola x^2 + y = 3."""
    roots = np.roots([2.0, 0.0, -3.0, -1.0])  # of the slope of (x - 1)^2 + (2 - x^2)^2
    (x,) = [root.real for root in roots if abs(root.imag) < 1e-9 and root.real > 1.0]
    result = caspar.Solver([near_one, tied], backend="cpu").solve(
        {
            "Plane": [[5.0, -3.0]],
            "near_one": {"plane": [0]},
            "tied": {"plane": [0], "weight": [[weight]]},
        }
    )
    assert result.status.is_success
    assert len(result.iterations) <= 20
    np.testing.assert_allclose(np.asarray(result.values["Plane"])[0], [x, 3.0 - x * x], rtol=1e-7)


def trajectories(num_poses: int) -> dict[str, Numbers]:
    """Two noisy copies of a path, whose starts agree, and places where they are tied."""
    random = np.random.default_rng(0)

    def moved(pose: Numbers, step: Numbers) -> Numbers:
        first, second = (sf.Pose3.from_storage(one.tolist()) for one in (pose, step))
        return np.array((first * second).to_storage(), np.float64)

    def noise() -> Numbers:
        tangent = random.normal(0.0, 0.05, 6).tolist()
        return np.array(sf.Pose3.from_tangent(tangent).to_storage(), np.float64)

    step = np.array(sf.Pose3.from_tangent([0, 0, 0.1, 1, 0, 0]).to_storage(), np.float64)
    poses, steps, firsts = [], [], []
    for path in range(2):
        poses.append(np.array([0, 0, 0, 1.0, 0, 0, 0]))
        for place in range(num_poses - 1):
            steps.append(moved(step, noise()))
            firsts.append(path * num_poses + place)
            poses.append(moved(poses[-1], steps[-1]))
    ties = np.arange(0, num_poses, 6)
    return {
        "poses": np.array(poses),
        "steps": np.array(steps),
        "firsts": np.array(firsts),
        "ties": ties,
    }


def test_ties_of_any_weight_between_two_paths() -> None:
    """Beyond a weight of some 1e3 the minimum is that of equality constraints."""
    num_poses = 30
    given = trajectories(num_poses)
    solver = caspar.Solver(between, backend="cpu")
    count, ties = len(given["firsts"]), given["ties"]
    none = np.tile([0, 0, 0, 1.0, 0, 0, 0], (len(ties), 1))
    costs = []
    for weight in (1e4, 1e6, 1e9):
        weights = np.concatenate([np.full(count, 20.0), np.full(len(ties), weight)])
        arrays = {
            "first": np.concatenate([given["firsts"], ties]),
            "second": np.concatenate([given["firsts"] + 1, ties + num_poses]),
            "measured": np.concatenate([given["steps"], none]),
            "weight": weights[:, None],
        }
        result = solver.solve({"Pose3": given["poses"], "between": arrays}, fixed={"Pose3": [0]})
        assert result.status.is_success
        assert len(result.iterations) <= 16
        costs.append(result.final_cost)
    assert costs[0] == pytest.approx(costs[2], rel=1e-4)
    assert costs[1] == pytest.approx(costs[2], rel=1e-8)


@pytest.mark.parametrize(
    "choice", [{"precision": "mixed"}, {"precision": "float32"}, {"jacobian": "float16"}]
)
def test_qr_is_for_float64(choice: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"linear_solver='qr' with .* needs Jacobians in float64"):
        caspar.Solver(sample, backend="cpu", linear_solver="qr", **choice)  # type: ignore[arg-type]


@ON_BACKENDS
@pytest.mark.parametrize("loss", [None, caspar.loss.Huber, caspar.loss.Cauchy])
def test_qr_takes_the_steps_of_a_factorisation(loss: type | None, backend: str) -> None:
    """With weights, a loss, what is held, and a factor that touches one node twice."""
    random = np.random.default_rng(2)
    points = random.normal(size=(40, 2)) * [3.0, 2.0] + [5.0, 1.0]
    factor = on_circle if loss is None else on_circle.with_loss(loss)
    arrays: dict[str, Any] = {
        "circle": random.integers(0, 3, 40),
        "point": points,
        "weight": random.uniform(0.0, 2.0, (40, 1)),
    }
    if loss is not None:
        arrays["loss_scale"] = 1.5
    problem = {"Circle": random.normal((5.0, 1.0, 2.0), 1.0, (3, 3)), "on_circle": arrays}
    found, wanted = (
        caspar.Solver(factor, backend=backend, precision="float64", linear_solver=name).solve(
            problem, max_iterations=3, initial_damping=0.1, fixed={"Circle": [1]}
        )
        for name in ("qr", "auto")
    )
    assert found.linear_solver == "qr"
    for one, other in zip(found.iterations, wanted.iterations, strict=True):
        assert one.cost == pytest.approx(other.cost, rel=1e-10)
        assert one.gain_ratio == pytest.approx(other.gain_ratio, rel=1e-6)


def test_a_node_that_is_touched_twice() -> None:
    steps = np.tile([0, 0, 0.1, 0.99, 1.0, 0.2, 0.1], (3, 1))
    steps[:, :4] /= np.linalg.norm(steps[:, :4], axis=1, keepdims=True)
    arrays = {
        "first": [0, 1, 1],
        "second": [1, 2, 1],
        "measured": steps,
        "weight": [[1.0], [1.0], [0.1]],
    }
    start = np.tile([0, 0, 0, 1.0, 0, 0, 0], (3, 1))
    found, wanted = (
        caspar.Solver(between, backend="cpu", linear_solver=name).solve(
            {"Pose3": start, "between": arrays}, fixed={"Pose3": [0]}
        )
        for name in ("qr", "sparse")
    )
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=1e-12)


def test_a_graph_that_nothing_holds_keeps_its_factorisation() -> None:
    """Its matrix is singular, not ill-conditioned: damping is what it lacks."""
    given = trajectories(8)
    arrays = {
        "first": given["firsts"],
        "second": given["firsts"] + 1,
        "measured": given["steps"],
        "weight": np.full((len(given["firsts"]), 1), 20.0),
    }
    start = given["poses"] + 0.0
    start[:, 4:] += np.random.default_rng(1).normal(0.0, 0.1, (len(start), 3))
    result = caspar.Solver(between, backend="cpu").solve({"Pose3": start, "between": arrays})
    assert result.status.is_success
    assert result.linear_solver == "sparse"
    assert result.final_cost < 1e-12
