"""Items' places in node tiles take 64 bits where many nodes stay: kernels of another text."""

import pytest

import caspar
from caspar.solver.result.result import SolveResult
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend
from tests.solver.linear_cases import problem_of
from tests.solver.solving import assert_same_values

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine"),
    pytest.mark.filterwarnings("ignore:node type"),
]


def solve(mix: str, solver: str, jacobian: str) -> tuple[caspar.Solver, SolveResult]:
    factors, arrays = problem_of(mix)
    made = caspar.Solver(factors, linear_solver=solver, jacobian=jacobian, deterministic=True)
    return made, made.solve(arrays, max_iterations=2)


def text_of_score(solver: caspar.Solver, factor: str) -> str:
    kept = solver._preparations.whole._kept
    assert kept is not None
    text: str = kept[1].plan.library.kernel(f"{factor}__score").source.text
    return text


@pytest.mark.parametrize(
    ("mix", "solver", "jacobian"),
    [
        ("everything", "schur_pcg", "recompute"),
        ("everything", "schur_dense", "stored"),
        ("bundle adjustment", "schur_pcg", "float16"),
    ],
)
def test_they_change_no_bit(
    mix: str, solver: str, jacobian: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caspar.solver.solver.select_backend", lambda _: HarnessBackend(128))
    narrow, expected = solve(mix, solver, jacobian)
    assert "typedef u32 Place;" in text_of_score(narrow, "glance")
    monkeypatch.setattr("caspar.memory.tiling.node_tiles.NUM_NARROW_PARTNERS", 3)
    wide, found = solve(mix, solver, jacobian)
    assert "typedef u64 Place;" in text_of_score(wide, "glance")
    assert_same_values(found.values, expected.values)
    assert found.final_cost == expected.final_cost


def test_one_solver_takes_few_nodes_and_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caspar.solver.solver.select_backend", lambda _: HarnessBackend(128))
    solver, first = solve("bundle adjustment", "schur_pcg", "recompute")
    _, arrays = problem_of("bundle adjustment")
    monkeypatch.setattr("caspar.memory.tiling.node_tiles.NUM_NARROW_PARTNERS", 3)
    fewer = {**arrays, "glance": {name: rows[:-1] for name, rows in arrays["glance"].items()}}
    solver.solve(fewer, max_iterations=2)
    assert "typedef u64 Place;" in text_of_score(solver, "glance")
    monkeypatch.undo()
    again = solver.solve(arrays, max_iterations=2)
    assert "typedef u32 Place;" in text_of_score(solver, "glance")
    assert_same_values(again.values, first.values)


def test_where_nothing_is_eliminated_there_is_one_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caspar.solver.solver.select_backend", lambda _: HarnessBackend(512))
    factors, arrays = problem_of("views alone")
    solver = caspar.Solver(factors, linear_solver="pcg")
    solver.solve(arrays, max_iterations=1)
    assert list(solver._preparations.whole.kernels._libraries) == [((), False)]
