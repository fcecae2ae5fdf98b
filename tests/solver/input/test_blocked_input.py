"""Arrays of kernels are arrays of a solve: blocked values, prepared indices."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import caspar
from caspar.errors import InputError
from tests.problems import EXAMPLES
from tests.solver.solving import assert_same_values, changed, solve_example

GRID = EXAMPLES["grid"].arrays()
VEHICLE = EXAMPLES["vehicle"].arrays()


def blocked(arrays: Any) -> Any:
    """Nested arrays with blocked values and prepared indices."""
    if isinstance(arrays, dict):
        return {name: blocked(value) for name, value in arrays.items()}
    array = np.asarray(arrays)
    if array.dtype.kind == "i":
        return caspar.SharedIndices(array, 10_000, "cpu")
    return caspar.BlockedArray.from_rows(array, backend="cpu") if array.ndim == 2 else array


@pytest.mark.parametrize(("name", "arrays"), [("grid", GRID), ("vehicle", VEHICLE)])
def test_blocked_arrays_and_prepared_indices(name: str, arrays: Any) -> None:
    given = blocked(arrays)
    found = solve_example(name, given)
    expected = solve_example(name, arrays)
    assert found.final_cost == expected.final_cost
    assert_same_values(found.values, expected.values)
    assert all(type(rows) is np.ndarray for rows in found.values.values())


def test_they_are_not_changed() -> None:
    places = caspar.BlockedArray.from_rows(GRID["Place"], backend="cpu")
    found = solve_example("grid", changed(GRID, "Place", places))
    assert_array_equal(places.to_rows(), GRID["Place"])
    assert (found.values["Place"] != GRID["Place"]).any()


def test_a_window_of_a_blocked_array() -> None:
    spare = np.full_like(GRID["Place"][:3], np.nan)
    whole = caspar.BlockedArray.from_rows(np.concatenate([spare, GRID["Place"]]), backend="cpu")
    found = solve_example("grid", changed(GRID, "Place", whole[3:]))
    assert_same_values(found.values, solve_example("grid", GRID).values)


def test_what_is_wrong_with_them_is_said() -> None:
    flat = caspar.BlockedArray.zeros(len(GRID["Place"]), 7, backend="cpu")
    with pytest.raises(InputError, match=r"^node type Place: shape \(\d+, 7\); expected \(n, "):
        solve_example("grid", changed(GRID, "Place", flat))
    index = caspar.SharedIndices([0, 1], 2, "cpu")
    with pytest.raises(InputError, match=r"^node type Place: dtype object; allowed"):
        solve_example("grid", changed(GRID, "Place", index))
