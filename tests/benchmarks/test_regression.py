"""The regression suites: certified values, published minima, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.regression.__main__ import main
from benchmarks.regression.problem import NumericProblem, Problem
from benchmarks.regression.runs import Suite, all_problems, random_starts, scaled_start

PROBLEMS = all_problems()
REGRESSIONS = PROBLEMS[Suite.NIST]
FUNCTIONS = {problem.name: problem for problem in PROBLEMS[Suite.MGH]}

# Sums of squares as More, Garbow and Hillstrom (1981) print them; all others have 0.
PUBLISHED = {
    "Jennrich-Sampson": 124.362,
    "Bard": 8.21487e-3,
    "Gaussian": 1.12793e-8,
    "Meyer": 87.9458,
    "Kowalik-Osborne": 3.07505e-4,
    "Brown-Dennis": 85822.2,
    "Osborne 1": 5.46489e-5,
    "Osborne 2": 4.01377e-2,
    "Watson 6": 2.28767e-3,
    "Watson 9": 1.39976e-6,
    "Watson 12": 4.72238e-10,
    "Penalty I 4": 2.24997e-5,
    "Penalty I 10": 7.08765e-5,
    "Penalty II 4": 9.37629e-6,
    "Penalty II 10": 2.93660e-4,
    "Chebyquad 8": 3.51687e-3,
}
OTHERS = {"Freudenstein-Roth": 48.9842, "Bard": 17.4286, "Biggs EXP6": 5.65565e-3}
# found later, or of sizes that they leave open
UNPUBLISHED = {"Chebyquad 10", *(name for name in FUNCTIONS if name.startswith("Linear"))}


@pytest.mark.parametrize("problem", REGRESSIONS, ids=lambda problem: problem.name)
def test_certified_parameters_have_the_certified_sum(problem: Problem) -> None:
    assert problem.certified is not None
    numeric = NumericProblem(problem)
    found = numeric.sum_of_squares(np.array(problem.certified))
    # the sums of Lanczos 1 and 2 are what rounding leaves of eleven digits
    assert found == pytest.approx(problem.minimum, rel=1e-4 if found < 1e-10 else 1e-9)
    if found > 1e-10:
        gradient = numeric.jacobian(np.array(problem.certified)).T @ numeric.residuals(
            np.array(problem.certified)
        )
        scale = np.linalg.norm(numeric.jacobian(np.array(problem.certified)), axis=0)
        assert (np.abs(gradient) <= 1e-5 * scale * np.sqrt(found)).all()


def test_there_are_27_regressions_and_42_functions() -> None:
    assert len(REGRESSIONS) == 27
    assert all(len(problem.starts) == 2 for problem in REGRESSIONS)
    assert len(FUNCTIONS) == 42


@pytest.mark.parametrize("name", sorted({*FUNCTIONS} - UNPUBLISHED))
def test_minima_are_the_published_ones(name: str) -> None:
    assert FUNCTIONS[name].minimum == pytest.approx(PUBLISHED.get(name, 0.0), rel=5e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_local_minima_are_the_published_ones(name: str) -> None:
    assert FUNCTIONS[name].is_local(OTHERS[name])
    assert not FUNCTIONS[name].is_solved(OTHERS[name])


@pytest.mark.parametrize(
    "problem", [*REGRESSIONS, *FUNCTIONS.values()], ids=lambda problem: problem.name
)
def test_derivatives_are_those_of_the_residuals(problem: Problem) -> None:
    """Central differences, near the standard start."""
    numeric = NumericProblem(problem)
    start = np.array(problem.starts[0]) * 1.01 + 1e-3
    jacobian = numeric.jacobian(start)
    assert jacobian.shape == (len(numeric.residuals(start)), problem.num_parameters)
    for number in range(problem.num_parameters):
        step = np.zeros_like(start)
        step[number] = 1e-6 * max(abs(start[number]), 1e-3)
        ahead, behind = numeric.residuals(start + step), numeric.residuals(start - step)
        difference = (ahead - behind) / (2.0 * step[number])
        size = max(np.abs(jacobian[:, number]).max(), np.abs(ahead).max())
        assert np.abs(difference - jacobian[:, number]).max() <= 1e-4 * size


def test_starts() -> None:
    problem = FUNCTIONS["Rosenbrock"]
    first, second = random_starts(problem, 4), random_starts(problem, 4)
    assert all((one == other).all() for one, other in zip(first, second, strict=True))
    ratios = np.array(first) / np.array(problem.starts[0])
    assert ((0.1 <= ratios) & (ratios <= 10.0)).all()
    assert scaled_start(np.array([1.0, 0.0]), 10.0).tolist() == [10.0, 0.0]
    assert scaled_start(np.zeros(2), 10.0).tolist() == [10.0, 10.0]


def test_the_command_writes_a_page(tmp_path: Path) -> None:
    main(["--problems", "Misra1a", "Rosenbrock", "--starts", "2", "--folder", str(tmp_path)])
    page = (tmp_path / "regression_cpu.md").read_text(encoding="utf-8")
    assert "| SciPy lm | 2 | 2 |" in page
    assert "2 random starts for each data set of NIST" in page
    kept = json.loads((tmp_path / "regression_cpu.json").read_text(encoding="utf-8"))
    assert {one["problem"] for one in kept["outcomes"]} == {"Misra1a", "Rosenbrock"}
