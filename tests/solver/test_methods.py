"""The list of linear methods: which choice asks for which."""

from dataclasses import replace

import pytest

import caspar
from caspar.options import PreconditionerChoice
from caspar.solver.choice.recipe import make_recipe
from caspar.solver.linear import methods
from caspar.solver.linear.explicit.explicit import EXPLICIT
from caspar.solver.linear.gradients import BLOCK_JACOBI
from caspar.solver.linear.methods import METHODS, methods_for
from caspar.solver.linear.two_level.two_level import TWO_LEVEL
from tests.solver.linear.linear_cases import MIXES, problem_of
from tests.solver.solving import assert_same_values

MIX = "bundle adjustment"


@pytest.mark.parametrize("choice", PreconditionerChoice, ids=lambda choice: choice.value)
def test_each_preconditioner_is_that_of_one_method(choice: PreconditionerChoice) -> None:
    recipe = make_recipe(MIXES[MIX], preconditioner=choice.value)
    found = methods_for(recipe)
    if choice is PreconditionerChoice.TWO_LEVEL:
        assert found == (TWO_LEVEL,)
    if recipe.is_block_jacobi:
        assert found == (EXPLICIT, BLOCK_JACOBI)
    assert len(found) == (2 if recipe.is_block_jacobi else 1)
    assert set(found) <= set(METHODS)


def test_another_preconditioner_is_an_entry_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is block Jacobi under another name: no other module names it."""
    other = replace(BLOCK_JACOBI, name="other", preconditioner=PreconditionerChoice.TWO_LEVEL)
    other = replace(other, linear_solvers=TWO_LEVEL.linear_solvers)
    usual = caspar.Solver(MIXES[MIX], backend="cpu", linear_solver="schur_pcg")
    wanted = usual.solve(problem_of(MIX)[1])
    monkeypatch.setattr(methods, "METHODS", (other, EXPLICIT, BLOCK_JACOBI))
    made = caspar.Solver(MIXES[MIX], backend="cpu", preconditioner="two_level")
    found = made.solve(problem_of(MIX)[1])
    assert found.linear_solver == "schur_pcg"
    assert_same_values(found.values, wanted.values)
