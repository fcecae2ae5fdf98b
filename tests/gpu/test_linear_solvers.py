"""Linear solvers on a device take the steps that NumPy takes; direct ones reach real optima."""

from pathlib import Path

import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.options import JacobianName, LinearSolverName, PrecisionName
from examples import pose_graph, pose_graph_3d
from tests.solver.bundles import arrays_of, read
from tests.solver.linear.linear_cases import MIXES, assert_first_step, problem_of, solver_names
from tests.solver.pose_graphs import DATA, KNOWN_OPTIMA, RotationError
from tests.support_cudss import require_library

pytestmark = pytest.mark.gpu

CASES = [(mix, name) for mix in MIXES for name in solver_names(mix)]


def test_kernels_load_again_in_new_threads() -> None:
    """CuPy has the modules then, and loading one is all that gives a thread a context."""
    solver = caspar.Solver(snavely, backend="cuda", linear_solver="schur_pcg")
    source = solver.prepare(arrays_of(read("problem-49-7776"))).kernels["snavely__product"]
    for _ in range(2):
        assert list(solver.backend.load([source])) == ["snavely__product"]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("mix", "linear_solver"), CASES)
def test_a_step_is_that_of_the_normal_equations(
    mix: str, linear_solver: LinearSolverName, deterministic: bool
) -> None:
    require_library(linear_solver)
    solver = caspar.Solver(
        MIXES[mix],
        backend="cuda",
        precision="float64",
        linear_solver=linear_solver,
        inner_iterations=0,
        deterministic=deterministic,
    )
    assert_first_step(solver, mix, 1e-8, 1e-6)
    # with the plan of the first
    assert_first_step(solver, mix, 1e-8, 1e-6)


def test_deterministic_solves_have_the_same_bits() -> None:
    solver = caspar.Solver(
        MIXES["everything"], backend="cuda", linear_solver="schur_dense", deterministic=True
    )
    arrays = problem_of("everything")[1]
    assert solver.solve(arrays).final_cost == solver.solve(arrays).final_cost


@pytest.mark.parametrize("jacobian", ["stored", "recompute"])
@pytest.mark.parametrize("linear_solver", ["schur_dense", "sparse"])
@pytest.mark.parametrize("precision", ["float64", "mixed"])
@pytest.mark.parametrize(
    ("name", "cost"), [("problem-21-11315", 30378.636), ("problem-49-7776", 13344.241)]
)
def test_bundle_adjustment(
    name: str,
    cost: float,
    precision: PrecisionName,
    linear_solver: LinearSolverName,
    jacobian: JacobianName,
) -> None:
    require_library(linear_solver)
    solver = caspar.Solver(
        [snavely],
        backend="cuda",
        precision=precision,
        linear_solver=linear_solver,
        jacobian=jacobian,
    )
    result = solver.solve(arrays_of(read(name)))
    assert result.linear_solver == linear_solver
    assert result.final_cost == pytest.approx(cost, rel=2e-5)


@pytest.mark.parametrize("name", ["M3500", "smallGrid3D"])
def test_pose_graphs(name: str) -> None:
    require_library("sparse")
    path: Path = DATA / f"{name}.g2o.bz2"
    example = pose_graph if name == "M3500" else pose_graph_3d
    solver = caspar.Solver(example.FACTORS, backend="cuda", precision="float64")
    result = solver.solve(example.read(path))
    known = KNOWN_OPTIMA[name, RotationError.ROTATION_VECTOR]
    assert result.status.is_success
    assert result.linear_solver in ("sparse", "dense")
    assert result.final_cost == pytest.approx(known.cost, rel=1e-6)
