"""Instances of factors and eliminated nodes are kept in the order of the tiles."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import caspar
from caspar.memory.tiling.node_tiles import NARROW_BITS
from caspar.options import Precision
from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.choice.form import choose_eliminated, choose_form
from caspar.solver.choice.recipe import make_recipe
from caspar.solver.input.problem import Problem
from caspar.solver.input.problem_reader import read_problem
from caspar.solver.plan.factor_order import order_factors
from tests.solver.linear.linear_cases import Arrays, glance, hold, make_arrays, pin, problem_of
from tests.solver.solving import assert_same_values


def ordered(mix: str, linear_solver: str = "schur_pcg") -> tuple[Problem, Any]:
    factors, arrays = problem_of(mix)
    recipe, backend = make_recipe(factors, linear_solver=linear_solver), CpuBackend()
    problem = read_problem(arrays, recipe.factors, recipe.nodes, backend, Precision.FLOAT32)
    forms = choose_form(backend, recipe, choose_eliminated(recipe)).factors
    return problem, order_factors(backend, recipe.factors, forms, problem, 8)


@pytest.mark.parametrize("mix", ["bundle adjustment", "two factors on marks", "everything"])
def test_factors_on_a_type_share_its_order(mix: str) -> None:
    problem, orders = ordered(mix)
    on_marks = [name for name, arrays in problem.factors.items() if "mark" in arrays.nodes]
    node_order = orders[on_marks[0]].node_tiles.node_order
    numbers = np.arange(len(problem.values["Mark"]))
    assert_array_equal(np.sort(node_order.node), numbers)
    assert not np.array_equal(node_order.node, numbers)
    for name in on_marks:
        order = orders[name]
        assert order.node_tiles.node_order is node_order
        given = problem.factors[name].nodes["mark"]
        assert given is not None
        assert_array_equal(node_order.node[order.nodes["mark"]], given[order.order])
        for argument, index in problem.factors[name].nodes.items():
            if argument != "mark" and index is not None:
                assert_array_equal(order.index(argument), index[order.order])
        assert_nodes_of_tiles_are_found(order, alone=len(on_marks) == 1)


def assert_nodes_of_tiles_are_found(order: Any, *, alone: bool) -> None:
    """A tile's nodes follow each other by their rank, or `node_at` names them."""
    tiles = order.node_tiles
    assert tiles.num_long == 0
    found = np.arange(len(tiles.node_items)) if alone else order.node_at
    assert (order.node_at is None) == alone
    assert tiles.place.dtype == np.uint32
    begins = (tiles.place & ((1 << NARROW_BITS) - 1)).reshape(tiles.num_tiles, -1)
    ranks = order.nodes["mark"].reshape(tiles.num_tiles, -1)
    for tile, first in enumerate(tiles.group_node[:-1]):
        size = tiles.tile_items[tile]
        _, number = np.unique(begins[tile, :size], return_inverse=True)
        assert_array_equal(found[first + number], ranks[tile, :size])


def test_the_factor_with_the_most_instances_decides() -> None:
    problem, orders = ordered("everything")
    most = max(("sight", "glance", "parallax", "pin"), key=lambda one: problem.factors[one].count)
    of_slots = orders[most].nodes["mark"].reshape(-1, 8)
    highest = of_slots.max(axis=1)
    assert np.all(of_slots.min(axis=1)[1:] >= highest[:-1])


def test_nothing_is_renumbered_where_nothing_is_eliminated() -> None:
    problem, orders = ordered("bundle adjustment", "pcg")
    for name, order in orders.items():
        assert order.node_tiles is None
        for argument, index in problem.factors[name].nodes.items():
            assert index is not None
            given = index if order.order is None else index[order.order]
            assert_array_equal(order.index(argument), given)


def with_spare_mark(arrays: Arrays, number: int) -> Arrays:
    """One more mark, which nothing sees, before another one."""
    more = {**arrays, "Mark": np.insert(arrays["Mark"], number, [7.0, -7.0], axis=0)}
    for name in ("glance", "pin"):
        mark = arrays[name]["mark"]
        more[name] = {**arrays[name], "mark": mark + (mark >= number)}
    return more


@pytest.mark.parametrize("number", [0, 5, 14])
def test_an_eliminated_node_without_factors_stays_and_is_warned_of(number: int) -> None:
    arrays = {
        name: rows
        for name, rows in make_arrays().items()
        if name in ("View", "Mark", "glance", "hold", "pin")
    }
    solver = caspar.Solver(
        (glance, hold, pin), backend="cpu", precision="float64", linear_solver="schur_pcg"
    )
    expected = solver.solve(arrays).values
    with pytest.warns(UserWarning, match=f"Mark: 1 of 15 .* no factor, first {number};"):
        found = solver.solve(with_spare_mark(arrays, number)).values
    assert_array_equal(found["Mark"][number], [7.0, -7.0])
    left = {**found, "Mark": np.delete(found["Mark"], number, axis=0)}
    assert_same_values(expected, left)
