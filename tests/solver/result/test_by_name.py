"""Names that a result does not have: the error suggests the nearest one."""

import copy
import json
import pickle
from typing import Annotated

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import InputError, UnknownNameError


class Place(sf.V2):
    """A point."""


@caspar.factor
def at_origin(place: Annotated[Place, caspar.TunableUnique]) -> sf.V2:
    return 2 * place


def solved() -> tuple[caspar.Solver, caspar.SolveResult]:
    solver = caspar.Solver(at_origin, backend="cpu")
    return solver, solver.solve({"Place": np.ones((1, 2))}, bounds={"Place": (-2.0, 2.0)})


def test_the_nearest_name_is_suggested() -> None:
    solver, result = solved()
    gradient = solver.gradient(result, {"Place": np.ones((1, 2))})
    batch = caspar.BatchSolver(at_origin, backend="cpu").solve({"Place": np.ones((3, 2))})
    asked = [
        (result.values, "Places", "'Places' is no node type .did you mean 'Place'"),
        (result.active_bounds, "place", "no node type with bounds .*'Place'"),
        (result.costs, "at_orign", "no factor .did you mean 'at_origin'"),
        (result.problem.nodes, "Plaice", "did you mean 'Place'"),
        (result.num_beyond_scale, "at_origin", "no factor with a loss; there is"),
        (gradient, "Pace", "no node type or factor .*'Place'.*these are Place, at_origin"),
        (gradient["at_origin"], "weight", "no array of at_origin"),
        (batch.values, "Places", "did you mean 'Place'"),
        (solver.evaluate({"Place": np.ones((1, 2))}).costs, "origin", "did you mean 'at_origin'"),
    ]
    for mapping, name, message in asked:
        with pytest.raises(UnknownNameError, match=message) as caught:
            mapping[name]
        assert isinstance(caught.value, KeyError)
        assert isinstance(caught.value, InputError)
    with pytest.raises(UnknownNameError, match="did you mean 'at_origin'"):
        result.residuals("at_origins")


def test_they_are_dictionaries() -> None:
    _, result = solved()
    assert result.costs == dict(result.costs)
    assert isinstance(result.values, dict)
    assert result.values.get("Places") is None
    assert "Places" not in result.values
    assert json.loads(json.dumps(result.costs)) == result.costs
    for again in (pickle.loads(pickle.dumps(result)), copy.copy(result)):
        assert again.costs == result.costs
        with pytest.raises(UnknownNameError, match="did you mean 'Place'"):
            again.values["Places"]
