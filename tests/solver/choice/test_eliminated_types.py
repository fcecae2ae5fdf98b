"""Which of several types is eliminated is told by how many nodes they have."""

import copy
import logging
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose

import caspar
from caspar.errors import OptionError
from caspar.options import JacobianName, LinearSolverName
from caspar.solver.choice.form import choose_eliminated
from caspar.solver.choice.recipe import make_recipe
from tests.solver.linear.linear_cases import (
    Arrays,
    Lens,
    Mark,
    Seen,
    View,
    drift,
    glance,
    hold,
    make_arrays,
    pin,
)

Shared = caspar.TunableShared

pytestmark = pytest.mark.filterwarnings("ignore:node type")


@caspar.factor
def zoom(
    view: Annotated[View, Shared],
    lens: Annotated[Lens, Shared],
    mark: Annotated[Mark, Shared],
    seen: Annotated[Seen, caspar.ConstSequential],
) -> sf.V2:
    ahead = 5.0 + view[2] + 0.1 * mark[0] * view[1]
    return lens[0] * sf.V2(mark[0] - view[0], mark[1] - view[1]) / ahead - seen


def arrays_of(num_lenses: int) -> Arrays:
    """60 marks, seen through as many lenses."""
    arrays = make_arrays(num_views=6, num_marks=60)
    sight = arrays["sight"]
    return {
        **{name: arrays[name] for name in ("View", "Mark", "hold", "pin")},
        "Lens": np.repeat(arrays["Lens"], num_lenses, axis=0),
        "zoom": {**sight, "lens": np.arange(len(sight["view"])) % num_lenses},
    }


@pytest.mark.parametrize("jacobian", ["stored", "recompute"])
def test_the_type_with_the_most_unknowns(jacobian: JacobianName) -> None:
    """A lens has one unknown, a mark two: kernels that were made without counts are others."""
    factors = (zoom, hold, pin)
    solver = caspar.Solver(factors, backend="cpu", precision="float64", jacobian=jacobian)
    solver.compile()
    full = caspar.Solver(factors, backend="cpu", precision="float64", linear_solver="pcg")
    for num_lenses, wanted in ((2, "Mark"), (150, "Lens"), (2, "Mark")):
        arrays = arrays_of(num_lenses)
        result = solver.solve(arrays, linear_tolerance=1e-9, min_linear_tolerance=1e-9)
        assert solver.prepare(arrays).eliminated == (wanted,)
        expected = full.solve(arrays, linear_tolerance=1e-9, min_linear_tolerance=1e-9)
        assert_allclose(result.final_cost, expected.final_cost, rtol=1e-8)


def test_kernels_of_a_choice_are_made_once() -> None:
    solver = caspar.Solver((zoom, hold, pin), backend="cpu", precision="float64")
    for num_lenses in (2, 150):
        assert solver.solve(arrays_of(num_lenses), max_iterations=1).compile_time_s > 0.0
    for num_lenses in (2, 150):
        assert solver.solve(arrays_of(num_lenses), max_iterations=1).compile_time_s == 0.0


# -- before a factorisation ----------------------------------------------------------------------

CHAIN = (glance, drift, hold, pin)


@pytest.mark.parametrize(
    ("num_marks", "choices", "wanted"),
    [
        (29, {}, ()),
        (30, {}, ("Mark",)),
        (29, {"linear_solver": "sparse"}, ()),
        (30, {"linear_solver": "sparse"}, ("Mark",)),
        (29, {"linear_solver": "schur_pcg"}, ("Mark",)),
        (29, {"linear_solver": "schur_dense"}, ("Mark",)),
    ],
)
def test_a_factorisation_eliminates_what_has_the_most_unknowns(
    num_marks: int, choices: Arrays, wanted: tuple[str, ...]
) -> None:
    """A view has three unknowns, a mark two."""
    recipe = make_recipe(CHAIN, **choices)
    found = choose_eliminated(recipe, {"View": 20, "Mark": num_marks})
    assert tuple(node.name for node in found) == wanted


def test_gradients_eliminate_whatever_there_is() -> None:
    recipe = make_recipe((glance, hold, pin))
    found = choose_eliminated(recipe, {"View": 20, "Mark": 29})
    assert [node.name for node in found] == ["Mark"]


@pytest.mark.parametrize("linear_solver", ["auto", "sparse"])
def test_more_and_more_marks_along_a_chain(linear_solver: LinearSolverName) -> None:
    solver = caspar.Solver(CHAIN, backend="cpu", linear_solver=linear_solver)
    assert solver.precision is caspar.Precision.FLOAT64
    full = caspar.Solver(CHAIN, backend="cpu", linear_solver="pcg")
    exact: Arrays = {"linear_tolerance": 1e-9, "min_linear_tolerance": 1e-9}
    for num_marks, wanted in ((14, ()), (80, ("Mark",)), (14, ())):
        arrays = make_arrays(num_views=12, num_marks=num_marks)
        given = {name: arrays[name] for name in ("View", "Mark", *(one.name for one in CHAIN))}
        result = solver.solve(given)
        assert solver.prepare(given).eliminated == wanted
        assert result.linear_solver == "sparse"
        assert result.final_cost == pytest.approx(full.solve(given, **exact).final_cost, rel=1e-8)


# -- as the user wishes ----------------------------------------------------------------------------


@pytest.mark.parametrize("eliminate", [("Mark",), ["Lens"], {"View"}, ()])
def test_what_is_named_is_eliminated_whatever_the_counts(
    eliminate: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Kernels are compiled once: none of the eliminated type is made again for other counts."""
    caplog.set_level(logging.INFO, logger="caspar")
    factors = (zoom, hold, pin)
    solver = caspar.Solver(factors, backend="cpu", precision="float64", eliminate=eliminate)
    solver.compile()
    full = caspar.Solver(factors, backend="cpu", precision="float64", linear_solver="pcg")
    for num_lenses in (2, 150, 40):
        arrays = arrays_of(num_lenses)
        caplog.clear()
        result = solver.solve(arrays, linear_tolerance=1e-9, min_linear_tolerance=1e-9)
        if num_lenses != 2:
            assert not any("compiling" in text for text in caplog.messages)
        assert solver.prepare(arrays).eliminated == tuple(eliminate)
        expected = full.solve(arrays, linear_tolerance=1e-9, min_linear_tolerance=1e-9)
        assert_allclose(result.final_cost, expected.final_cost, rtol=1e-8)


def test_a_pinned_type_may_be_all_that_is_left() -> None:
    """Without sightings only marks have factors."""
    solver = caspar.Solver((glance, pin), backend="cpu", eliminate=("Mark",))
    arrays = make_arrays()
    given = {name: arrays[name] for name in ("View", "Mark", "glance", "pin")}
    empty = {name: np.asarray(rows)[:0] for name, rows in given["glance"].items()}
    result = solver.solve({**given, "glance": empty})
    assert result.status.is_success


@pytest.mark.parametrize(
    ("factors", "choices", "message"),
    [
        ((zoom, hold), {"eliminate": "Mark"}, r"eliminate='Mark': must be a sequence of names"),
        ((zoom, hold), {"eliminate": 3}, r"eliminate=3: must be a sequence of names"),
        ((zoom, hold), {"eliminate": ("Point",)}, r"'Point' is no node type; these are View, Lens"),
        ((zoom, hold), {"eliminate": (3,)}, r"3 is no node type"),
        (
            (zoom, hold),
            {"eliminate": ("Mark", "Lens")},
            r"factor zoom touches two of their nodes, by lens and mark",
        ),
        (CHAIN, {"eliminate": ("View",)}, r"factor drift touches two of their nodes"),
        ((hold,), {"eliminate": ("View",)}, r"another node type has to remain"),
        (
            (zoom, hold),
            {"eliminate": ("Mark",), "linear_solver": "pcg"},
            r"linear_solver='pcg' eliminates nothing",
        ),
        (
            (zoom, hold),
            {"eliminate": (), "linear_solver": "schur_pcg"},
            r"linear_solver='schur_pcg' needs a node type that is eliminated",
        ),
    ],
)
def test_what_cannot_be_eliminated_is_refused(factors: Any, choices: Arrays, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        caspar.Solver(factors, backend="cpu", **choices)


def test_a_pickled_solver_keeps_its_choice() -> None:
    solver = caspar.Solver((zoom, hold, pin), backend="cpu", eliminate=("Lens",))
    arrays = arrays_of(3)
    assert copy.copy(solver).prepare(arrays).eliminated == ("Lens",)
