"""The block tridiagonal preconditioner on a device: the steps of NumPy, few iterations."""

import pytest

import caspar
from examples import pose_graph_3d
from tests.solver.linear_cases import assert_first_step, problem_of
from tests.solver.pose_graphs import KNOWN_OPTIMA, RotationError

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("jacobian", ["stored", "recompute"])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("mix", ["views alone", "everything"])
def test_a_step_is_that_of_the_normal_equations(
    mix: str, deterministic: bool, jacobian: str
) -> None:
    solver = caspar.Solver(
        problem_of(mix)[0],
        backend="cuda",
        precision="float64",
        preconditioner="block_tridiagonal",
        jacobian=jacobian,
        inner_iterations=0,
        deterministic=deterministic,
    )
    assert_first_step(solver, mix, 1e-8, 1e-6)
    # with the plan of the first
    assert_first_step(solver, mix, 1e-8, 1e-6)


def test_a_pose_graph_takes_as_many_iterations_as_on_the_processor() -> None:
    results = [
        caspar.Solver(
            pose_graph_3d.FACTORS,
            backend=backend,
            linear_solver="pcg",
            preconditioner="block_tridiagonal",
        ).solve(pose_graph_3d.read())
        for backend in ("cpu", "cuda")
    ]
    wanted = KNOWN_OPTIMA["smallGrid3D", RotationError.ROTATION_VECTOR].cost
    counts = [sum(one.linear_iterations for one in result.iterations) for result in results]
    assert results[1].final_cost == pytest.approx(wanted, rel=1e-6)
    assert counts[1] == pytest.approx(counts[0], rel=0.2)
