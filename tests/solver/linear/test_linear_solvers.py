"""Every linear solver takes the same steps: those of the dense normal equations in NumPy."""

from functools import cache
from typing import Any

import numpy as np
import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.errors import BackendError, FactorError, OutOfMemoryError
from caspar.options import JacobianName, LinearSolverName, PrecisionName
from caspar.runtime.cpu import supernodal
from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.limits import Limits
from caspar.solver.lm.usual_options import CHAIN_DAMPING, USUAL_OPTIONS
from examples import pose_graph, pose_graph_3d
from tests.covering import alternating
from tests.harness_backend import HarnessBackend
from tests.solver.bundles import arrays_of, read
from tests.solver.linear.linear_cases import (
    MIXES,
    assert_first_step,
    glance,
    problem_of,
    solver_names,
)
from tests.solver.pose_graphs import DATA, KNOWN_OPTIMA, RotationError


@cache
def _solver(
    mix: str,
    linear_solver: LinearSolverName,
    precision: PrecisionName = "float64",
    jacobian: JacobianName = "stored",
) -> caspar.Solver:
    return caspar.Solver(
        MIXES[mix],
        backend="cpu",
        precision=precision,
        linear_solver=linear_solver,
        jacobian=jacobian,
        inner_iterations=0,
    )


CASES = [(mix, name) for mix in MIXES for name in solver_names(mix)]


@pytest.mark.parametrize(("mix", "linear_solver"), CASES)
def test_a_step_is_that_of_the_normal_equations(mix: str, linear_solver: str) -> None:
    assert_first_step(_solver(mix, linear_solver), mix, 1e-8, 1e-6)


@pytest.mark.parametrize("jacobian", ["stored", "recompute"])
@pytest.mark.parametrize("linear_solver", solver_names("shared lens"))
def test_damping_is_relative_to_the_diagonal(linear_solver: str, jacobian: str) -> None:
    """Where no factor touches a node twice: its two Jacobians are squared one by one for it.

    Views have a factor with an eliminated node and one without.
    """
    solver = _solver("shared lens", linear_solver, jacobian=jacobian)
    assert_first_step(solver, "shared lens", 1.0, 1e-7)


@pytest.mark.parametrize("linear_solver", ["schur_dense", "dense", "sparse"])
def test_a_step_in_mixed_precision(linear_solver: str) -> None:
    made = _solver("everything", linear_solver, "mixed")
    assert_first_step(made, "everything", 1e-8, 1e-3)


@pytest.mark.parametrize(
    ("mix", "backend"),
    alternating(
        ["everything", "views alone", "two factors on marks"], [CpuBackend(), HarnessBackend(128)]
    ),
    ids=lambda one: one if isinstance(one, str) else one.name,
)
def test_a_step_with_recomputed_jacobians(mix: str, backend: CpuBackend) -> None:
    """In mixed precision the matrix is that of Jacobians in float64."""
    solver = caspar.Solver(
        MIXES[mix],
        precision="mixed",
        linear_solver="sparse",
        jacobian="recompute",
        inner_iterations=0,
        backend=backend,
    )
    assert_first_step(solver, mix, 1e-8, 1e-3)


@pytest.mark.parametrize(
    ("jacobian", "linear_solver"),
    alternating(["stored", "recompute"], ["schur_dense", "sparse"]),
)
def test_no_factorisation_fails_in_mixed_precision(
    jacobian: JacobianName, linear_solver: LinearSolverName
) -> None:
    """Ladybug-49 has points that are nearly undetermined."""
    solver = caspar.Solver(
        snavely, backend="cpu", precision="mixed", linear_solver=linear_solver, jacobian=jacobian
    )
    result = solver.solve(arrays_of(read("problem-49-7776")), max_iterations=20)
    assert {record.reason for record in result.iterations} == {""}
    assert result.final_cost == pytest.approx(13344.241, rel=2e-5)


@pytest.mark.parametrize("mix", MIXES)
def test_all_linear_solvers_reach_one_optimum(mix: str) -> None:
    _, arrays = problem_of(mix)
    results = {
        name: _solver(mix, name).solve(arrays, cost_tolerance=1e-12) for name in solver_names(mix)
    }
    best = min(result.final_cost for result in results.values())
    for name, result in results.items():
        assert result.status.is_success, name
        assert result.final_cost == pytest.approx(best, rel=1e-7), name


@pytest.mark.parametrize("linear_solver", ["schur_dense", "dense", "sparse"])
def test_a_factorisation_counts_as_one_iteration(linear_solver: str) -> None:
    result = _solver("shared lens", linear_solver).solve(problem_of("shared lens")[1])
    assert result.linear_solver == linear_solver
    assert {record.linear_iterations for record in result.iterations} == {1}


@pytest.mark.parametrize(
    ("mix", "deterministic"),
    [
        *[("two factors on marks", False), ("views alone", True)],
        pytest.param("everything", False, marks=pytest.mark.reliability),
        pytest.param("two factors on marks", True, marks=pytest.mark.reliability),
    ],
)
def test_cuda_texts_take_the_same_step(mix: str, deterministic: bool) -> None:
    solver = caspar.Solver(
        MIXES[mix],
        precision="float64",
        linear_solver="sparse",
        inner_iterations=0,
        deterministic=deterministic,
        backend=HarnessBackend(128),
    )
    assert_first_step(solver, mix, 1e-8, 1e-6)


@pytest.mark.parametrize(
    ("name", "precision"), alternating(["smallGrid3D", "M3500"], ["float64", "mixed"])
)
def test_pose_graphs_reach_the_known_optimum(name: str, precision: PrecisionName) -> None:
    """As they are read, with the defaults."""
    path = DATA / f"{name}.g2o.bz2"
    example = pose_graph if name == "M3500" else pose_graph_3d
    solver = caspar.Solver(example.FACTORS, backend="cpu", precision=precision)
    result = solver.solve(example.read(path))
    known = KNOWN_OPTIMA[name, RotationError.ROTATION_VECTOR]
    assert result.status.is_success
    assert result.linear_solver == "sparse"
    assert result.final_cost == pytest.approx(known.cost, rel=1e-6)


# -- what is chosen ------------------------------------------------------------------------------


@pytest.mark.parametrize("mix", ["everything", "views alone"])
def test_small_systems_are_factorised(mix: str) -> None:
    result = _solver(mix, "auto").solve(problem_of(mix)[1])
    assert result.linear_solver == "sparse"
    assert result.remarks == ()


def chosen(mix: str, limits: Limits) -> tuple[str, tuple[str, ...]]:
    """The linear solver that `auto` takes with other limits, and its remarks."""
    made = caspar.Solver(
        MIXES[mix],
        backend="cpu",
        precision="float64",
        inner_iterations=0,
        limits=limits,
    )
    prepared = made.prepare(problem_of(mix)[1])
    return prepared.linear_solver, prepared.remarks


def test_larger_full_systems_are_dense() -> None:
    limits = Limits(min_dense_on_one_core=1, full_share=0.95)
    assert chosen("everything", limits)[0] == "schur_dense"
    assert chosen("views alone", limits)[0] == "sparse"


def test_small_systems_are_dense_on_cuda() -> None:
    solver = caspar.Solver(MIXES["views alone"], precision="float64", backend=HarnessBackend(128))
    assert_first_step(solver, "views alone", 1e-8, 1e-6)
    assert solver.solve(problem_of("views alone")[1], max_iterations=1).linear_solver == "dense"


def test_chains_of_views_are_sparse_though_marks_are_eliminated() -> None:
    limits = Limits(
        min_dense_on_one_core=1,
        full_share=3.0,
        max_dense=1,
        max_matrix_quick_pcg=1,
        max_matrix_by_cost=1,
    )
    assert chosen("everything", limits)[0] == "sparse"
    assert chosen("shared lens", limits)[0] == "schur_pcg"


def test_a_missing_library_is_remarked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise BackendError("cuDSS is not installed")

    monkeypatch.setattr(CpuBackend, "sparse_factorization", refuse)
    arrays = problem_of("views alone")[1]
    made = caspar.Solver(MIXES["views alone"], backend="cpu", precision="float64")
    result = made.solve(arrays)
    assert result.linear_solver == "pcg"
    assert any("cuDSS is not installed" in remark for remark in result.remarks)
    named = caspar.Solver(
        MIXES["views alone"], backend="cpu", precision="float64", linear_solver="sparse"
    )
    with pytest.raises(BackendError, match="cuDSS"):
        named.solve(arrays)


def test_a_slower_library_in_place_of_a_missing_one_is_remarked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrays = problem_of("views alone")[1]
    usual = caspar.Solver(MIXES["views alone"], backend="cpu", linear_solver="sparse").solve(arrays)
    monkeypatch.setattr(supernodal, "rslab", None)
    made = caspar.Solver(MIXES["views alone"], backend="cpu", linear_solver="sparse")
    result = made.solve(arrays)
    assert result.final_cost == pytest.approx(usual.final_cost)
    assert not any("rslab" in remark for remark in usual.remarks)
    assert any("pip install rslab" in remark for remark in result.remarks)


def test_huge_graphs_are_left_to_pcg_with_a_remark() -> None:
    name, remarks = chosen("views alone", Limits(max_sparse=1))
    assert name == "pcg"
    assert any("linear_solver='sparse'" in remark for remark in remarks)


def test_too_many_pairs_of_a_chain() -> None:
    name, remarks = chosen("everything", Limits(max_auto_pairs=10))
    assert name == "schur_pcg"
    assert any(" pairs of factors that share" in remark for remark in remarks)


def test_too_many_pairs() -> None:
    """`auto` does without the matrix; who asks for it is told."""
    limits = Limits(max_pairs_quick_pcg=10, max_fill_pairs=10)
    assert chosen("shared lens", limits)[0] == "schur_pcg"
    named = caspar.Solver(
        MIXES["shared lens"],
        backend="cpu",
        precision="float64",
        linear_solver="schur_dense",
        inner_iterations=0,
        limits=limits,
    )
    with pytest.raises(OutOfMemoryError, match=r"pairs of factors.*schur_pcg"):
        named.solve(problem_of("shared lens")[1])


@pytest.mark.parametrize(
    ("mix", "linear_solver", "precision", "first"),
    [
        ("views alone", "sparse", "float64", 0.0),
        ("views alone", "sparse", "mixed", USUAL_OPTIONS["initial_damping"]),
        ("views alone", "pcg", "float64", USUAL_OPTIONS["initial_damping"]),
        ("everything", "schur_dense", "float64", CHAIN_DAMPING),
        ("everything", "schur_pcg", "float64", USUAL_OPTIONS["initial_damping"]),
        ("bundle adjustment", "sparse", "float64", USUAL_OPTIONS["initial_damping"]),
    ],
)
def test_first_damping(mix: str, linear_solver: str, precision: str, first: float) -> None:
    """Little where the soft modes of a chain are solved for exactly, none before anything else."""
    made, arrays = _solver(mix, linear_solver, precision), problem_of(mix)[1]
    assert made.solve(arrays, max_iterations=1).iterations[0].damping == first
    assert made.solve(arrays, max_iterations=1, initial_damping=0.1).iterations[0].damping == 0.1


def test_a_matrix_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` does without it; who asks for it is told."""

    def refuse(*_: object) -> None:
        raise MemoryError("Unable to allocate 8 TiB")

    monkeypatch.setattr(CpuBackend, "sparse_factorization", refuse)
    factors, arrays = problem_of("views alone")
    expected = _solver("views alone", "pcg").solve(arrays)
    made = caspar.Solver(factors, backend="cpu", precision="float64")
    result = made.solve(arrays)
    assert (expected.linear_solver, result.linear_solver) == ("pcg", "pcg")
    assert result.final_cost == pytest.approx(expected.final_cost)
    assert "faster and exact. The reason: Unable to allocate 8 TiB." in result.remarks[0]
    named = caspar.Solver(factors, backend="cpu", linear_solver="sparse")
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match="host memory than is left: Unable to allocate"):
            named.solve(arrays)


def test_schur_dense_needs_something_to_eliminate() -> None:
    with pytest.raises(FactorError, match="no node type can be eliminated"):
        caspar.Solver(MIXES["views alone"], backend="cpu", linear_solver="schur_dense")


# -- what is singular ----------------------------------------------------------------------------


@pytest.mark.parametrize("linear_solver", ["schur_dense", "sparse"])
def test_a_derivative_that_is_not_finite_is_said(linear_solver: str) -> None:
    _, arrays = problem_of("bundle adjustment")
    arrays["View"] = np.array(arrays["View"])
    arrays["View"][0, 2] = 1e155
    result = _solver("bundle adjustment", linear_solver).solve(arrays, max_iterations=3)
    assert result.status.name in ("INITIAL_COST_NOT_FINITE", "DERIVATIVES_NOT_FINITE")


@pytest.mark.parametrize("linear_solver", ["schur_dense", "sparse"])
def test_marks_alone_leave_views_free(linear_solver: LinearSolverName) -> None:
    """No factor holds the views: the matrix is singular but for the damping."""
    _, arrays = problem_of("bundle adjustment")
    kept = np.unique(arrays["glance"]["view"])
    views = np.searchsorted(kept, arrays["glance"]["view"])
    marks = np.unique(arrays["glance"]["mark"], return_inverse=True)
    free = {
        "View": arrays["View"][kept],
        "Mark": arrays["Mark"][marks[0]],
        "glance": {"view": views, "mark": marks[1], "seen": arrays["glance"]["seen"]},
    }
    made = caspar.Solver((glance,), backend="cpu", precision="float64", linear_solver=linear_solver)
    result = made.solve(free)
    assert result.status.is_success
    assert result.final_cost < 0.15 * result.initial_cost
    assert all(np.isfinite(rows).all() for rows in result.values.values())
