"""Items' places in node tiles take 64 bits where many nodes stay: kernels of another text."""

import re
from typing import Any

import pytest

import caspar
from caspar.solver.limits import Limits
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend
from tests.solver.linear.linear_cases import problem_of
from tests.solver.solving import Arrays, assert_same_values

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine"),
    pytest.mark.filterwarnings("ignore:node type"),
]


WIDE = Limits(max_narrow_partners=3)


def solver_of(mix: str, limits: Limits | None = None, **choices: Any) -> caspar.Solver:
    factors, _ = problem_of(mix)
    return caspar.Solver(
        factors, backend=HarnessBackend(128), deterministic=True, limits=limits, **choices
    )


def place_type(solver: caspar.Solver, arrays: Arrays) -> str:
    """Of an item in a node tile."""
    text = solver.prepare(arrays).kernels["glance__score"].text
    (found,) = re.findall(r"typedef (u\d+) Place;", text)
    return str(found)


@pytest.mark.parametrize(
    ("mix", "linear_solver", "jacobian"),
    [
        ("bundle adjustment", "schur_pcg", "recompute"),
        ("two factors on marks", "schur_dense", "stored"),
        pytest.param("bundle adjustment", "schur_pcg", "float16", marks=pytest.mark.reliability),
        pytest.param("everything", "schur_pcg", "recompute", marks=pytest.mark.reliability),
        pytest.param("everything", "schur_dense", "stored", marks=pytest.mark.reliability),
    ],
)
def test_they_change_no_bit(mix: str, linear_solver: str, jacobian: str) -> None:
    _, arrays = problem_of(mix)
    found = []
    for limits, wanted in ((None, "u32"), (WIDE, "u64")):
        solver = solver_of(mix, limits, linear_solver=linear_solver, jacobian=jacobian)
        assert place_type(solver, arrays) == wanted
        found.append(solver.solve(arrays, max_iterations=2))
    narrow, wide = found
    assert_same_values(wide.values, narrow.values)
    assert wide.final_cost == narrow.final_cost


def test_one_solver_takes_few_nodes_and_many() -> None:
    """Three views whose places are narrow, then all five."""
    solver = solver_of("bundle adjustment", WIDE, linear_solver="schur_pcg", jacobian="recompute")
    _, many = problem_of("bundle adjustment")
    seen = many["glance"]["view"] < 3
    few = {
        **many,
        "View": many["View"][:3],
        "glance": {name: rows[seen] for name, rows in many["glance"].items()},
        "hold": {name: rows[:3] for name, rows in many["hold"].items()},
    }
    first = solver.solve(few, max_iterations=2)
    assert place_type(solver, few) == "u32"
    solver.solve(many, max_iterations=2)
    assert place_type(solver, many) == "u64"
    again = solver.solve(few, max_iterations=2)
    assert place_type(solver, few) == "u32"
    assert_same_values(again.values, first.values)


def test_where_nothing_is_eliminated_kernels_are_the_same() -> None:
    _, arrays = problem_of("views alone")
    texts = [
        {name: one.text for name, one in solver.prepare(arrays).kernels.items()}
        for solver in (
            solver_of("views alone", limits, linear_solver="pcg") for limits in (None, WIDE)
        )
    ]
    assert texts[0] == texts[1]
