"""Robust solves against SciPy, and against each other by every linear method and precision."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import least_squares

import caspar
from caspar.equations.parts import NodePart
from caspar.options import BackendName, JacobianName, LinearSolverName, PrecisionName, SolveOptions
from caspar.solver.result.result import SolveStatus
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend
from tests.solver.losses.loss_cases import (
    FORMULAS,
    ROBUST,
    Floats,
    line_arrays,
    loss_named,
    place,
    point,
    view_arrays,
)
from tests.solver.losses.test_loss_formulas import Fair
from tests.solver.solving import ON_BACKENDS, changed
from tests.support_cudss import require_library

SCALE = 0.1


def line_residuals(line: Floats, arrays: Any) -> Floats:
    at, height = arrays["point"]["at"].ravel(), arrays["point"]["height"].ravel()
    found: Floats = line[0] + line[1] * at - height
    return found


@ON_BACKENDS
@pytest.mark.parametrize(
    ("name", "scipys"),
    [("SoftL1", "soft_l1"), ("Huber", "huber"), ("Cauchy", "cauchy"), ("Arctan", "arctan")],
)
def test_agrees_with_scipy(name: str, scipys: str, backend: BackendName) -> None:
    arrays = line_arrays()
    exact = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    expected = least_squares(
        line_residuals, [1.2, 0.45], loss=scipys, f_scale=SCALE, args=(arrays,), **exact
    )
    solver = caspar.Solver(point.with_loss(loss_named(name)), precision="float64", backend=backend)
    result = solver.solve(changed(arrays, "point.loss_scale", SCALE), cost_tolerance=1e-14)
    assert result.status.is_success
    assert_allclose(result.final_cost, expected.cost, rtol=1e-12)
    assert_allclose(result.values["Line"][0], expected.x, atol=1e-7)


@pytest.mark.parametrize("name", [*FORMULAS, "Fair"])
def test_cost_is_the_formula(name: str) -> None:
    """Of the start, of the end, and of every iteration between them."""
    loss = Fair if name == "Fair" else loss_named(name)
    arrays = changed(line_arrays(), "point.loss_scale", SCALE)

    def cost(line: Floats) -> float:
        u = line_residuals(line, arrays) ** 2 / SCALE**2
        rho = 2 * (np.sqrt(u) - np.log1p(np.sqrt(u))) if name == "Fair" else FORMULAS[name](u)
        return float(0.5 * SCALE**2 * rho.sum())

    result = caspar.Solver(point.with_loss(loss), precision="float64", backend="cpu").solve(arrays)
    assert_allclose(result.initial_cost, cost(arrays["Line"][0]), rtol=1e-12)
    assert_allclose(result.final_cost, cost(result.values["Line"][0]), rtol=1e-12)
    assert result.final_cost <= result.initial_cost


@pytest.mark.parametrize("alpha", [-2.0, 0.0, 1.0, 2.0, 1.5])
def test_alpha_is_data(alpha: float) -> None:
    solver = barron_solver()
    arrays = changed(line_arrays(), "point.loss_scale", 1.0)
    result = solver.solve(changed(arrays, "point.loss_alpha", alpha), cost_tolerance=1e-13)
    names = {2.0: "L2", 0.0: "Cauchy", 1.0: "SoftL1", -2.0: "GemanMcClure"}
    if alpha not in names:
        many = np.full(90, alpha)
        again = solver.solve(changed(arrays, "point.loss_alpha", many), cost_tolerance=1e-13)
        assert_allclose(again.final_cost, result.final_cost, rtol=1e-12)
        return
    scale = {0.0: np.sqrt(2.0), -2.0: 2.0}.get(alpha, 1.0)
    other = caspar.Solver(point.with_loss(loss_named(names[alpha])), backend="cpu")
    expected = other.solve(changed(arrays, "point.loss_scale", scale), cost_tolerance=1e-13)
    assert_allclose(result.final_cost, expected.final_cost, rtol=1e-9)


SOLVERS: list[caspar.Solver] = []


def barron_solver() -> caspar.Solver:
    """One for all: alpha needs no compilation."""
    if len(SOLVERS) == 0:
        factor = point.with_loss(caspar.loss.Barron)
        SOLVERS.append(caspar.Solver(factor, precision="float64", backend="cpu"))
    return SOLVERS[0]


@pytest.mark.parametrize("name", ["Huber", "Cauchy", "Tolerant", "Welsch"])
def test_gradient_is_exact(name: str) -> None:
    """Whatever the matrix makes of the second derivative."""
    random = np.random.default_rng(3)
    at, seen = random.normal(size=(2, 30, 2))
    weight = random.uniform(0.0, 2.0, 30)
    start = np.array([[0.3, 0.8]])
    given = {"at": at, "seen": seen, "weight": weight, "loss_scale": 0.5}
    arrays = {"Line": start, "place": given}
    solver = caspar.Solver(
        place.with_loss(loss_named(name)), precision="float64", backend="cpu", jacobian="recompute"
    )

    def cost(shift: Floats) -> float:
        return solver.evaluate({**arrays, "Line": start + shift}).cost

    step = 1e-6
    expected = [(cost(step * unit) - cost(-step * unit)) / (2 * step) for unit in np.eye(2)]
    with solver.system(arrays) as system:
        system.score()
        system.linearize(1e-8)
        found = system.plan.memory[system.plan.node_plans["Line"].key(NodePart.GRADIENT)]
        assert_allclose(found[:2], expected, rtol=1e-6, atol=1e-8)


CHOICES = [
    ("float64", "auto", "stored"),
    ("float64", "pcg", "stored"),
    ("float64", "schur_pcg", "recompute"),
    ("float64", "schur_pcg", "float16"),
    ("float64", "schur_dense", "recompute"),
    ("float64", "sparse", "recompute"),
    ("mixed", "schur_pcg", "float16"),
    ("mixed", "schur_pcg", "recompute"),
    ("mixed", "schur_dense", "recompute"),
    ("float32", "schur_pcg", "stored"),
    ("float32", "pcg", "recompute"),
]


def robust_cost(arrays: Any) -> float:
    """Of `ROBUST`, by NumPy and SciPy: the least sum of what each instance costs."""
    views, marks = arrays["View"], arrays["Mark"]

    def robust(name: str, loss: str, rows: Floats) -> Floats:
        """Roots of twice what the instances of a factor cost."""
        scale = arrays[name]["loss_scale"]
        square = (rows**2).sum(axis=1) / scale**2
        return np.asarray(scale * np.sqrt(FORMULAS[loss](square)))

    def residuals(x: Floats) -> Floats:
        view, mark = x[: views.size].reshape(views.shape), x[views.size :].reshape(marks.shape)
        glance, hold, pin = (arrays[name] for name in ("glance", "hold", "pin"))
        left, right = view[glance["view"]], mark[glance["mark"]]
        ahead = 5.0 + left[:, 2] + 0.1 * right[:, 0] * left[:, 1]
        seen = (right - left[:, :2]) / ahead[:, None] - glance["seen"]
        pinned = 0.3 * np.sqrt(pin["weight"])[:, None] * (mark[pin["mark"]] - pin["known"])
        held = view[hold["view"]] - hold["known"]
        return np.concatenate(
            [robust("glance", "Huber", seen), robust("hold", "SoftL1", held), pinned.ravel()]
        )

    start = np.concatenate([views.ravel(), marks.ravel()])
    tight: dict[str, Any] = {"xtol": 1e-10, "ftol": 1e-10, "gtol": 1e-10}
    return float(least_squares(residuals, start, method="trf", **tight).cost)


@pytest.fixture(scope="module", name="optimum")
def _optimum() -> float:
    return robust_cost(view_arrays())


@ON_BACKENDS
@pytest.mark.parametrize(("precision", "linear_solver", "jacobian"), CHOICES)
def test_every_method_and_precision(
    precision: PrecisionName,
    linear_solver: LinearSolverName,
    jacobian: JacobianName,
    backend: BackendName,
    optimum: float,
) -> None:
    require_library(linear_solver, backend)
    solver = caspar.Solver(
        ROBUST,
        precision=precision,
        linear_solver=linear_solver,
        jacobian=jacobian,
        backend=backend,
    )
    exact = precision == "float64"
    options: dict[str, Any] = {"cost_tolerance": 1e-12} if exact else {}
    result = solver.solve(view_arrays(), max_iterations=200, **options)
    assert result.status.is_success
    assert_allclose(result.final_cost, optimum, rtol=1e-7 if exact else 1e-4)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize(
    "jacobian", ["recompute", pytest.param("float16", marks=pytest.mark.reliability)]
)
def test_cuda_sources(jacobian: JacobianName, optimum: float) -> None:
    """In the harness: the kernels of CUDA without a device."""
    solver = caspar.Solver(
        ROBUST, precision="mixed", jacobian=jacobian, backend=HarnessBackend(128)
    )
    result = solver.solve(view_arrays())
    assert result.status.is_success
    assert_allclose(result.final_cost, optimum, rtol=1e-4)
    assert result.costs.keys() == {"glance", "hold", "pin"}


@pytest.mark.parametrize(("name", "damping"), [("Huber", 1e-3), ("Cauchy", 1.0), ("Tukey", 1.0)])
def test_first_steps_are_short_where_a_loss_levels_off(name: str, damping: float) -> None:
    arrays = changed(line_arrays(), "point.loss_scale", SCALE)
    solver = caspar.Solver(point.with_loss(loss_named(name)), backend="cpu")
    assert solver.solve(arrays, max_iterations=1).iterations[0].damping == damping
    given = solver.solve(arrays, max_iterations=1, initial_damping=1e-2)
    assert given.iterations[0].damping == 1e-2
    assert SolveOptions().initial_damping is None


@pytest.mark.parametrize("precision", ["float64", "mixed", "float32"])
@pytest.mark.parametrize("name", ["Huber", "Cauchy", "Welsch"])
def test_residuals_that_are_zero(name: str, precision: PrecisionName) -> None:
    arrays = line_arrays()
    at = np.round(arrays["point"]["at"])  # few bits: exact in float32
    arrays["point"] = {"at": at, "height": 1.0 + 0.5 * at, "loss_scale": SCALE}
    factor = point.with_loss(loss_named(name))
    solver = caspar.Solver(factor, precision=precision, backend="cpu")
    result = solver.solve(arrays)
    assert result.status.is_success
    assert_allclose(result.values["Line"], [[1.0, 0.5]], atol=1e-6)
    at_solution = solver.solve({**arrays, "Line": np.array([[1.0, 0.5]])})
    assert at_solution.final_cost == 0.0
    assert at_solution.status.is_success


@ON_BACKENDS
@pytest.mark.parametrize("precision", ["float64", "mixed", "float32"])
@pytest.mark.parametrize("name", ["Tukey", "Welsch"])
def test_a_start_where_nothing_pulls_is_no_success(
    name: str, precision: PrecisionName, backend: BackendName
) -> None:
    """Both weigh nothing so far away; the cost is that of outliers."""
    arrays = changed(line_arrays(), "point.loss_scale", SCALE) | {"Line": np.array([[1e3, 0.0]])}
    factor = point.with_loss(loss_named(name))
    solver = caspar.Solver(factor, precision=precision, backend=backend)
    result = solver.solve(arrays)
    assert result.status is SolveStatus.NO_RESIDUALS
    assert not result.status.is_success
    assert np.asarray(result.values["Line"]).tolist() == [[1e3, 0.0]]


def test_one_residual_that_pulls_is_enough() -> None:
    """The line goes through the nearest point, and all others are outliers."""
    arrays = changed(line_arrays(), "point.loss_scale", SCALE)
    at, height = arrays["point"]["at"].ravel(), arrays["point"]["height"].ravel()
    first = int(np.argmin(at))
    arrays |= {"Line": np.array([[height[first] - 1e3 * at[first], 1e3]])}
    result = caspar.Solver(point.with_loss(caspar.loss.Tukey), backend="cpu").solve(arrays)
    assert result.weights("point")[first] == 1.0
    assert result.status.is_success
