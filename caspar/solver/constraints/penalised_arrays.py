"""The factors of penalised constraints in a recipe, and their data among a user's arrays.

Input: what the user passed. Output: the same with what `frontend.factors.terms` asks for. Cost
tier: once for a solver; arrays once for a solve of the loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from caspar.errors import InputError
from caspar.frontend.factors.factor import ConstraintKind
from caspar.frontend.factors.terms import ROOT, SHIFT, penalised
from caspar.frontend.factors.trace import WEIGHT
from caspar.solver.choice.form import Recipe


def penalised_recipe(recipe: Recipe, kinds: Mapping[str, ConstraintKind]) -> Recipe:
    """A recipe with the factors of constraints in their place.

    Args:
        recipe: With constraints as their functions are.
        kinds: By constraint what must hold.

    Raises:
        FactorError: As `penalised`.
    """
    factors = tuple(
        penalised(one, kinds[one.name]) if one.name in kinds else one for one in recipe.factors
    )
    return replace(recipe, factors=factors)


def check_names(arrays: Any, names: Sequence[str]) -> None:
    """Refuse data that only factors have.

    Raises:
        InputError: Names the constraint and the entry.
    """
    for name in names:
        given = arrays.get(name) if isinstance(arrays, Mapping) else None
        if isinstance(given, Mapping) and WEIGHT in given:
            raise InputError(
                f"constraint {name}: {WEIGHT!r} is given, but a constraint holds whatever it "
                "weighs; leave out the instances that need not hold"
            )


def with_data(arrays: Mapping[str, Any], data: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Arrays with w and s of each constraint.

    Args:
        arrays: As the user passed them.
        data: By constraint w and s, (m, dim) each.
    """
    own = {
        name: {**(arrays.get(name) or {}), ROOT: root, SHIFT: shift}
        for name, (root, shift) in data.items()
    }
    return {**arrays, **own}
