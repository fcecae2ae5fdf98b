"""Factors without instances take no part: the result is that of a solver without them."""

import gc
import time
import weakref
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_array_equal

import caspar
from caspar.errors import InputError
from caspar.options import LinearSolverName
from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.limits import Limits
from tests.problems import EXAMPLES, Place, anchor, between, compass, drive
from tests.solver.linear.linear_cases import (
    drift,
    glance,
    glimpse,
    hold,
    make_arrays,
    pin,
    problem_of,
)
from tests.solver.solving import ON_BACKENDS, Arrays, assert_same_values, changed, solver, without

GRID, VEHICLE = EXAMPLES["grid"].arrays(), EXAMPLES["vehicle"].arrays()


class Mark(sf.V2):
    """Known to nobody at first."""


class Sight(sf.V2):
    """A measured difference."""


@caspar.factor
def sighting(
    place: Annotated[Place, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    sight: Annotated[Sight, caspar.ConstSequential],
) -> sf.V2:
    """Where a mark is seen from a place."""
    return mark - place - sight


NO_BETWEEN: Arrays = {
    **changed(GRID, "between", {"start": [], "end": [], "offset": []}),
    "anchor": {"place": np.arange(36), "known": GRID["Place"] + 0.1},
}
WITH_MARKS = (between, anchor, sighting)
NO_MARKS: Arrays = {
    **GRID,
    "Mark": np.array([[1.0, 2.0], [3.0, 4.0]]),
    "sighting": {"place": [], "mark": [], "sight": []},
}


@ON_BACKENDS
def test_the_same_as_a_solver_without_the_factor(backend: str) -> None:
    empty = {
        "state": np.zeros(0, int),
        "beacon": {"values": VEHICLE["ranging"]["beacon"]["values"], "index": []},
        "distance": np.zeros((0, 1), np.float32),
    }
    made = solver(EXAMPLES["vehicle"].factors, backend=backend)
    result = made.solve({**VEHICLE, "ranging": empty})
    other = solver((drive, compass), backend=backend).solve(without(VEHICLE, "ranging"))
    assert result.status.is_success
    assert result.final_cost == pytest.approx(other.final_cost, rel=1e-10)
    np.testing.assert_allclose(result.values["State"], other.values["State"], atol=1e-6)
    assert "No instances of ranging: not part of this solve." in result.remarks
    assert result.problem.factors == {"drive": 14, "ranging": 0, "compass": 15}
    assert result.problem.num_residuals == other.problem.num_residuals


@ON_BACKENDS
@pytest.mark.parametrize("given", [np.float32, np.float64])
def test_node_types_of_such_factors_stay(backend: str, given: type) -> None:
    marks = NO_MARKS["Mark"].astype(given)
    result = solver(WITH_MARKS, "mixed", backend).solve({**NO_MARKS, "Mark": marks})
    assert "No instances of sighting: not part of this solve. Mark did not move." in result.remarks
    assert result.values["Mark"].dtype == given
    assert_array_equal(result.values["Mark"], marks)
    assert not np.shares_memory(result.values["Mark"], marks)
    assert list(result.values) == ["Place", "Mark"]
    assert list(result.problem.nodes) == ["Place"]


@pytest.mark.parametrize("empty", [[], np.zeros((0, 2)), np.zeros(0)], ids=["list", "rows", "flat"])
def test_node_types_may_be_empty(empty: Any) -> None:
    result = solver(WITH_MARKS).solve({**NO_MARKS, "Mark": empty})
    assert result.values["Mark"].shape == (0, 2)
    assert result.status.is_success


def test_one_state_has_no_pairs() -> None:
    known = VEHICLE["compass"]
    device = {**known["device"], "index": [0]}
    arrays: Arrays = {
        "State": VEHICLE["State"][:1],
        "drive": {"turn": [], "duration": [], "tuning": VEHICLE["drive"]["tuning"]},
        "compass": {"state": [0], "heading": known["heading"][:1], "device": device},
    }
    result = solver((drive, compass)).solve(arrays)
    assert result.problem.factors == {"drive": 0, "compass": 1}
    assert result.final_cost == pytest.approx(0.0, abs=1e-12)


class Counted(CpuBackend):
    """The processor, and the arenas that it has allocated."""

    def __init__(self) -> None:
        self._arenas: list[weakref.ref[Any]] = []

    def allocate(self, num_bytes: int) -> Any:
        arena = super().allocate(num_bytes)
        self._arenas.append(weakref.ref(arena))
        return arena

    @property
    def num_held(self) -> int:
        """Arenas that are still in memory, after the garbage collector."""
        gc.collect()
        return self.num_reachable

    @property
    def num_reachable(self) -> int:
        """Arenas that are still in memory."""
        return sum(arena() is not None for arena in self._arenas)


ONE_AT_A_TIME = Limits(max_items_beside=0)
"""Of large problems."""


def test_a_problem_that_grows_and_shrinks() -> None:
    backend = Counted()
    made = caspar.Solver(
        (between, anchor), backend=backend, linear_solver="pcg", limits=ONE_AT_A_TIME
    )
    whole = made.solve(GRID)
    assert backend.num_held == 1
    table = made.memory_table()
    part = made.solve(NO_BETWEEN)
    again = made.solve(NO_BETWEEN)
    assert made.memory_table() != table
    assert backend.num_held == 1, "memory of two plans at once"
    assert_same_values(part.values, again.values)
    assert again.compile_time_s == 0.0
    last = made.solve(GRID)
    assert_same_values(whole.values, last.values)
    assert last.compile_time_s == 0.0
    made.release()
    assert made.memory_table() is None


def test_what_is_left_does_not_suit_the_linear_solver() -> None:
    made = caspar.Solver(WITH_MARKS, backend="cpu", linear_solver="schur_pcg")
    for _ in range(2):
        result = made.solve(NO_MARKS)
        assert result.status.is_success
        assert result.linear_solver not in ("schur_pcg", "schur_dense")
        idle, unsuited = result.remarks[:2]
        assert idle == "No instances of sighting: not part of this solve. Mark did not move."
        assert unsuited.startswith("linear_solver='schur_pcg': no node type can be eliminated")
        assert unsuited.endswith("So 'auto' was used for the other factors.")
        assert "Use 'auto'" not in unsuited


def test_the_precision_is_that_of_what_takes_part() -> None:
    """Places that nothing joins to each other are no chain."""
    made = caspar.Solver(WITH_MARKS, backend="cpu")
    assert made.precision is caspar.Precision.FLOAT64
    sighted = {
        **NO_BETWEEN,
        "Mark": NO_MARKS["Mark"],
        "sighting": {"place": [0, 1, 7], "mark": [0, 0, 1], "sight": np.eye(3)[:, :2]},
    }
    alone = caspar.Solver((anchor, sighting), backend="cpu").solve(without(sighted, "between"))
    result = made.solve(sighted)
    assert result.precision == alone.precision == "mixed"
    assert_same_values(result.values, alone.values)
    chosen = caspar.Solver(WITH_MARKS, backend="cpu", precision="float64").solve(sighted)
    assert chosen.precision == "float64"


@pytest.mark.parametrize("linear_solver", ["schur_pcg", "schur_dense"])
def test_a_factor_that_names_what_is_eliminated_first(linear_solver: str) -> None:
    """Each factor has its own notion of a node type: that of one without instances is no other."""
    _, arrays = problem_of("bundle adjustment")
    idle: Arrays = {"view": [], "mark": [], "glass": [], "seen": []}
    choices: dict[str, Any] = {
        "backend": "cpu",
        "precision": "float64",
        "linear_solver": linear_solver,
    }
    found = caspar.Solver((glimpse, glance, hold, pin), **choices).solve(
        {**arrays, "Glass": np.ones((2, 1)), "glimpse": idle}
    )
    expected = caspar.Solver((glance, hold, pin), **choices).solve(arrays)
    assert found.final_cost == expected.final_cost
    assert_same_values({name: found.values[name] for name in expected.values}, expected.values)
    assert found.problem.num_unknowns == expected.problem.num_unknowns


def test_solves_inside_each_other_leave_one_plan() -> None:
    backend = Counted()
    made = caspar.Solver(
        (between, anchor), backend=backend, linear_solver="pcg", limits=ONE_AT_A_TIME
    )
    made.solve(GRID, on_iteration=lambda _: not made.solve(NO_BETWEEN).status.is_success)
    made.solve(GRID)
    assert backend.num_held == 1
    made.release()
    assert backend.num_held == 0


@pytest.mark.parametrize("linear_solver", ["pcg", "sparse", "dense"])
@pytest.mark.parametrize("limits", [ONE_AT_A_TIME, Limits()], ids=["large", "small"])
def test_memory_does_not_wait_for_the_garbage_collector(
    linear_solver: LinearSolverName, limits: Limits
) -> None:
    backend = Counted()
    made = caspar.Solver(
        (between, anchor), backend=backend, linear_solver=linear_solver, limits=limits
    )
    gc.disable()
    try:
        first = made.solve(GRID)
        num_one = backend.num_reachable
        for _ in range(3):
            made.solve(NO_BETWEEN)
            made.solve(GRID)
        assert_same_values(made.solve(GRID).values, first.values)
        assert backend.num_reachable == (num_one if limits is ONE_AT_A_TIME else 2 * num_one)
        made.release()
        assert backend.num_reachable == 0
    finally:
        gc.enable()


def test_small_problems_of_other_factors_are_kept() -> None:
    backend = Counted()
    made = caspar.Solver((between, anchor), backend=backend, linear_solver="pcg")
    whole, part = made.solve(GRID), made.solve(NO_BETWEEN)
    assert backend.num_held == 2
    assert_same_values(made.solve(GRID).values, whole.values)
    assert_same_values(made.solve(NO_BETWEEN).values, part.values)
    assert backend.num_held == 2
    made.release()
    assert backend.num_held == 0


def test_time_of_compiling_is_in_the_next_solve() -> None:
    made = caspar.Solver((between, anchor), backend="cpu", precision="float64")
    made.compile()
    assert made.solve(NO_BETWEEN).compile_time_s > 0.0
    start = time.perf_counter()
    assert made.solve(GRID).compile_time_s < time.perf_counter() - start


def test_what_is_kept_comes_back_as_it_was() -> None:
    marks = np.array([[np.nan, 0.1], [1e39, 0.2]])
    arrays = {**NO_MARKS, "Mark": marks}
    result = solver(WITH_MARKS, "mixed").solve(arrays, check=False)
    assert_array_equal(result.values["Mark"], marks)


def test_nothing_names_a_row_of_nothing() -> None:
    """Looked at also where values are not."""
    arrays = changed(GRID, "Place", [])
    with pytest.raises(InputError, match="none is allowed"):
        solver((between, anchor)).solve(arrays, check=False)


@pytest.mark.gpu
def test_empty_lists_beside_arrays_of_the_device() -> None:
    cupy = pytest.importorskip("cupy")
    on_device: Arrays = {
        "Place": cupy.asarray(GRID["Place"]),
        "between": {"start": [], "end": [], "offset": []},
        "anchor": {name: cupy.asarray(rows) for name, rows in NO_BETWEEN["anchor"].items()},
    }
    result = solver((between, anchor), backend="cuda").solve(on_device)
    assert result.values["Place"].device == on_device["Place"].device


def test_an_empty_list_stands_for_indexed_constants() -> None:
    arrays = changed(VEHICLE, "ranging", {"state": [], "beacon": [], "distance": []})
    result = solver(EXAMPLES["vehicle"].factors).solve(arrays)
    assert result.problem.factors["ranging"] == 0


def test_a_linear_solver_gives_way() -> None:
    arrays = {name: make_arrays()[name] for name in ("View", "drift", "hold")}
    idle = {"Mark": np.ones((1, 2)), "glance": {"view": [], "mark": [], "seen": []}}
    made = caspar.Solver((glance, drift, hold), backend="cpu", linear_solver="schur_pcg")
    result = made.solve({**arrays, **idle})
    alone = caspar.Solver((drift, hold), backend="cpu").solve(arrays)
    assert result.linear_solver == alone.linear_solver == "sparse"
    assert [one.linear_iterations for one in result.iterations] == [
        one.linear_iterations for one in alone.iterations
    ]
    (_, unsuited, *others) = result.remarks
    assert "linear_solver='schur_pcg': no node type" in unsuited
    assert others == list(alone.remarks)
