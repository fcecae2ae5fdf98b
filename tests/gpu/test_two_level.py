"""The two-level preconditioner on a device."""

import pytest

import caspar
from caspar.bundle_adjustment import snavely
from tests.solver.bundles import arrays_of, read
from tests.solver.linear.linear_cases import MIXES, assert_first_step

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:node type")]
pytest.importorskip("cupy")


@pytest.mark.parametrize("jacobian", ["stored", "float16", "recompute"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_step_is_that_of_the_normal_equations(deterministic: bool, jacobian: str) -> None:
    solver = caspar.Solver(
        MIXES["bundle adjustment"],
        backend="cuda",
        precision="float64",
        preconditioner="two_level",
        jacobian=jacobian,
        deterministic=deterministic,
        inner_iterations=0,
    )
    tolerance = 1e-2 if jacobian == "float16" else 1e-6
    for _ in range(2):  # with the plan of the first
        assert_first_step(solver, "bundle adjustment", 1e-4, tolerance)


@pytest.mark.parametrize("precision", ["mixed", "float64"])
def test_fewer_iterations_lead_to_the_optimum(precision: str) -> None:
    """With linear systems that are solved well: it counts there."""
    results = {}
    for preconditioner in ("block_jacobi", "two_level"):
        solver = caspar.Solver(
            snavely,
            backend="cuda",
            precision=precision,
            linear_solver="schur_pcg",
            preconditioner=preconditioner,
        )
        results[preconditioner] = solver.solve(
            arrays_of(read("problem-49-7776")),
            linear_tolerance=1e-3,
            min_linear_tolerance=1e-3,
            max_linear_iterations=1000,
        )
    taken = {
        name: sum(record.linear_iterations for record in result.iterations)
        for name, result in results.items()
    }
    assert results["two_level"].final_cost == pytest.approx(13344.241, rel=1e-4)
    per_step = {name: taken[name] / len(result.iterations) for name, result in results.items()}
    assert per_step["two_level"] < per_step["block_jacobi"]
