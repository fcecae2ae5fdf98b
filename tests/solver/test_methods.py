"""The list of linear methods."""

from dataclasses import replace

import pytest

import caspar
from caspar.solver.linear import methods
from caspar.solver.linear.method import LinearSystem
from caspar.solver.linear.methods import GRADIENTS, ConjugateGradients
from tests.solver.linear.linear_cases import MIXES, problem_of
from tests.solver.solving import assert_same_values

MIX = "bundle adjustment"


def test_another_method_is_an_entry_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is conjugate gradients under another name: no other module names it."""

    class Other(ConjugateGradients):
        def __init__(self, system: LinearSystem) -> None:
            super().__init__(system)
            self.name = "other"

    wanted = caspar.Solver(MIXES[MIX], backend="cpu", linear_solver="schur_pcg").solve(
        problem_of(MIX)[1]
    )
    other = replace(GRADIENTS, name="other", make=lambda system, remarks: Other(system))
    monkeypatch.setattr(methods, "METHODS", (other, *methods.METHODS))
    found = caspar.Solver(MIXES[MIX], backend="cpu").solve(problem_of(MIX)[1])
    assert found.linear_solver == "other"
    assert_same_values(found.values, wanted.values)
