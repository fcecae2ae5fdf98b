"""Stiff problems, in which MINPACK takes few steps: weights far apart, large offsets, years.

Right values come from closed forms, or from QR in NumPy on variables in which the problem is not
stiff.
"""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from benchmarks.regression import stiff
from benchmarks.regression.caspar_fit import CasparFit, Form
from benchmarks.regression.problem import Problem
from benchmarks.regression.stiff import between, tied_paths
from caspar.errors import OptionError
from caspar.options import BackendName
from tests.solver.solving import ON_BACKENDS


class Circle(sf.V3): ...


@caspar.factor
def on_circle(
    circle: Annotated[Circle, caspar.TunableShared], point: Annotated[sf.V2, caspar.ConstSequential]
) -> sf.V1:
    return sf.V1(*stiff.on_circle(circle, point))


def solved(problem: Problem, *, backend: BackendName = "cpu") -> caspar.SolveResult:
    fit = CasparFit(problem, Form.VECTOR, backend=backend)
    return fit.result(np.array(problem.starts[0]), {})


@ON_BACKENDS
@pytest.mark.parametrize("start_s", [1e8, 1.7e9])
def test_a_line_over_unix_seconds(start_s: float, backend: BackendName) -> None:
    problem = stiff.line(start_s)
    result = solved(problem, backend=backend)
    assert result.status.is_success
    assert len(result.iterations) <= 20
    # the offset is rounded to 1e-7 at 4e9
    assert result.final_cost == pytest.approx(0.5 * problem.minimum, rel=1e-5)
    times, values = problem.kinds[0].data.T
    rate = np.polyfit(times - times.mean(), values, 1)[0]
    assert np.asarray(result.values["Parameters"])[0, 1] == pytest.approx(rate, rel=1e-4)
    assert result.linear_solver == "qr"
    assert result.remarks == ()


@pytest.mark.parametrize("degree", [3, 4])
def test_a_polynomial_over_years(degree: int) -> None:
    problem = stiff.polynomial(degree)
    result = solved(problem)
    assert result.status.is_success
    assert len(result.iterations) <= 20
    assert result.final_cost == pytest.approx(0.5 * problem.minimum, rel=1e-6)


@pytest.mark.parametrize("radius", [1e5, 1e6])
def test_a_circle_from_far_away(radius: float) -> None:
    problem = stiff.circle(radius)
    result = solved(problem)
    assert result.status.is_success
    assert len(result.iterations) <= 50
    assert result.final_cost == pytest.approx(0.5 * problem.minimum, rel=1e-7)


@pytest.mark.parametrize("bias", [0.0, 3e5, 3e10])
def test_a_common_offset_is_explained_at_once(bias: float) -> None:
    """A thousandth of the clock's bias that damping leaves would be explained by the place."""
    for seed in range(20):
        problem, place = stiff.pseudoranges(seed, bias)
        result = solved(problem)
        assert result.status.is_success, seed
        found = np.asarray(result.values["Parameters"])[0, :3]
        np.testing.assert_allclose(found, place, atol=1e-14 * max(bias, 1e9) * 10.0)


@pytest.mark.parametrize("weight", [1e6, 1e8, 1e10, 1e12])
def test_an_equation_as_a_heavy_residual(weight: float) -> None:
    problem, nearest = stiff.heavy_equation(weight)
    result = solved(problem)
    assert result.status.is_success
    assert len(result.iterations) <= 20
    np.testing.assert_allclose(np.asarray(result.values["Parameters"])[0], nearest, rtol=1e-7)


def test_ties_of_any_weight_between_two_paths() -> None:
    """Beyond a weight of some 1e3 the minimum is that of equality constraints."""
    solver = caspar.Solver(between, backend="cpu")
    costs = []
    for weight in (1e4, 1e6, 1e9):
        result = solver.solve(tied_paths(30, weight).arrays, fixed={"Pose3": [0]})
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
        caspar.Solver(between, backend="cpu", linear_solver="qr", **choice)  # type: ignore[arg-type]


@ON_BACKENDS
@pytest.mark.parametrize("loss", [None, caspar.loss.Huber, caspar.loss.Cauchy])
def test_qr_takes_the_steps_of_a_factorisation(loss: type | None, backend: BackendName) -> None:
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
    paths = tied_paths(8, 1.0)
    steps = slice(0, 2 * 7)  # without the ties
    arrays = {name: values[steps] for name, values in paths.arrays["between"].items()}
    start = paths.poses.copy()
    start[:, 4:] += np.random.default_rng(1).normal(0.0, 0.1, (len(start), 3))
    result = caspar.Solver(between, backend="cpu").solve({"Pose3": start, "between": arrays})
    assert result.status.is_success
    assert result.linear_solver == "sparse"
    assert result.final_cost < 1e-12
