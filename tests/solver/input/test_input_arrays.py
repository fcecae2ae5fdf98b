"""Arrays of any layout, kind and type are read, never written; values come back as they came."""

import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.errors import InputError
from caspar.frontend.symbolic.field_types import unit_ranges
from caspar.options import Precision
from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.input.array_reader import ArrayReader
from tests.problems import EXAMPLES, Arrays
from tests.solver.solving import assert_same_values, changed, solve_example

GRID = EXAMPLES["grid"].arrays()
PLACES = GRID["Place"]


def mapped(arrays: Any, convert: Callable[[Any], Any]) -> Any:
    """Nested arrays with every array converted."""
    if isinstance(arrays, dict):
        return {name: mapped(value, convert) for name, value in arrays.items()}
    return convert(arrays)


def spread(array: Any) -> Any:
    """The same array as every second row and column of a larger one."""
    larger = np.full([2 * size for size in array.shape], 7, dtype=array.dtype)
    view = larger[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def backwards(array: Any) -> Any:
    return array[::-1].copy()[::-1]


def swapped(array: Any) -> Any:
    return array.astype(array.dtype.newbyteorder(">"))


def unaligned(array: Any) -> Any:
    memory = np.zeros(array.nbytes + 1, dtype=np.uint8)
    view = memory[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def read_only(array: Any) -> Any:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


@pytest.mark.parametrize("name", ["grid", "vehicle"])
@pytest.mark.parametrize(
    "convert", [np.asfortranarray, spread, backwards, swapped, unaligned, read_only]
)
def test_any_layout_gives_the_same_bits(name: str, convert: Callable[[Any], Any]) -> None:
    arrays = EXAMPLES[name].arrays()
    expected = solve_example(name, arrays)
    found = solve_example(name, mapped(arrays, convert))
    assert found.final_cost == expected.final_cost
    assert_same_values(found.values, expected.values)
    for value in found.values.values():
        assert value.flags.c_contiguous
        assert value.flags.writeable


@pytest.mark.parametrize("kind", [list, tuple])
def test_python_sequences(kind: type) -> None:
    found = solve_example("grid", mapped(GRID, lambda array: kind(array.tolist())))
    expected = solve_example("grid", GRID)
    assert_same_values(found.values, expected.values)
    assert isinstance(found.values["Place"], np.ndarray)


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.uint64]
)
def test_any_integer_is_an_index(dtype: type) -> None:
    def convert(array: Any) -> Any:
        return array.astype(dtype) if array.dtype.kind == "i" else array

    found = solve_example("grid", mapped(GRID, convert))
    assert found.final_cost == solve_example("grid", GRID).final_cost


@pytest.mark.parametrize("precision", ["float64", "mixed"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
def test_values_come_back_in_the_type_given(dtype: type, precision: str) -> None:
    result = solve_example("grid", changed(GRID, "Place", PLACES.astype(dtype)), precision)
    assert result.values["Place"].dtype == dtype
    expected = solve_example("grid", GRID)
    assert result.final_cost == pytest.approx(expected.final_cost, rel=1e-6)
    rounding = 4.0 * max(np.finfo(dtype).eps, np.finfo(np.float32).eps) * 6.0
    assert np.abs(result.values["Place"] - expected.values["Place"]).max() < rounding


OWN_TYPES = [("mixed", np.float64), ("float64", np.float64), ("float32", np.float32)]


@pytest.mark.parametrize(("precision", "dtype"), OWN_TYPES)
def test_half_precision_comes_back_in_the_type_of_values(precision: str, dtype: type) -> None:
    result = solve_example("grid", changed(GRID, "Place", PLACES.astype(np.float16)), precision)
    assert result.values["Place"].dtype == dtype


@pytest.mark.parametrize(("precision", "dtype"), OWN_TYPES)
def test_integers_come_back_in_the_type_of_values(precision: str, dtype: type) -> None:
    rounded = np.rint(PLACES).astype(int)
    result = solve_example("grid", changed(GRID, "Place", rounded), precision)
    assert result.values["Place"].dtype == dtype
    as_floats = solve_example("grid", changed(GRID, "Place", rounded.astype(float)), precision)
    assert result.final_cost == as_floats.final_cost


def test_each_node_type_keeps_its_own_type() -> None:
    arrays = EXAMPLES["robot"].arrays()
    arrays["Landmark"] = arrays["Landmark"].astype(np.float32)
    values = solve_example("robot", arrays, max_iterations=2).values
    assert values["Landmark"].dtype == np.float32
    assert values["Pose"].dtype == values["Mount"].dtype == np.float64


def test_one_row_may_be_flat() -> None:
    """One node, one value for all: the bracket around it may be left out."""
    decay = EXAMPLES["decay"].arrays()
    flat = solve_example("decay", changed(decay, "Curve", np.ones(3)))
    assert_same_values(flat.values, solve_example("decay", decay).values)
    assert flat.values["Curve"].shape == (1, 3)
    vehicle = EXAMPLES["vehicle"].arrays()
    column = vehicle["drive"]["duration"][:, None]
    found = solve_example("vehicle", changed(vehicle, "drive.duration", column))
    assert_same_values(found.values, solve_example("vehicle", vehicle).values)


@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_inputs_are_never_written(precision: str) -> None:
    """Not even where caspar's memory has the same type and layout."""
    dtype = np.float64 if precision == "float64" else np.float32

    def convert(array: Any) -> Any:
        array = array.astype(dtype if array.dtype.kind == "f" else np.int32)
        array.flags.writeable = False
        return array

    given = mapped(EXAMPLES["vehicle"].arrays(), convert)
    before = mapped(given, np.copy)
    result = solve_example("vehicle", given, precision)
    assert result.status.is_success
    _assert_equal(given, before)
    assert not np.shares_memory(result.values["State"], given["State"])


def _assert_equal(first: Arrays, second: Arrays) -> None:
    assert list(first) == list(second)
    for name, value in first.items():
        if isinstance(value, dict):
            _assert_equal(value, second[name])
        else:
            assert_array_equal(value, second[name], strict=True)


def test_arrays_may_be_changed_after_a_solve() -> None:
    """A result is no view of what was given, nor of the memory of the next solve."""
    arrays = mapped(GRID, np.copy)
    first = solve_example("grid", arrays)
    kept = first.values["Place"].copy()
    arrays["Place"][...] = 0.0
    solve_example("grid", changed(GRID, "Place", PLACES + 1.0), max_iterations=1)
    assert_array_equal(first.values["Place"], kept)


# -- arrays of other libraries ---------------------------------------------------------------------


class Tensor:
    """An array of a library of its own, which NumPy reads by DLPack only."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


Tensor.__module__ = "tensors.core"


@pytest.fixture
def tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is loaded: whoever has a tensor has imported it."""
    module = types.ModuleType("tensors")
    module.from_dlpack = lambda array: Tensor(np.from_dlpack(array))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensors", module)


@pytest.mark.usefixtures("tensors")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dlpack_arrays_come_back_as_such(dtype: type) -> None:
    places = PLACES.astype(dtype)
    found = solve_example("grid", mapped(changed(GRID, "Place", places), Tensor))
    returned = found.values["Place"]
    assert isinstance(returned, Tensor)
    assert returned.array.dtype == dtype
    expected = solve_example("grid", changed(GRID, "Place", places))
    assert_array_equal(returned.array, expected.values["Place"])


def test_dlpack_arrays_of_a_library_without_from_dlpack() -> None:
    found = solve_example("grid", mapped(GRID, Tensor))
    assert isinstance(found.values["Place"], np.ndarray)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")

    def convert(array: Any) -> Any:
        tensor = torch.from_numpy(array.copy())
        return tensor.requires_grad_() if tensor.is_floating_point() else tensor

    with pytest.warns(UserWarning, match="torch.Tensor with requires_grad"):
        returned = solve_example("grid", mapped(GRID, convert)).values["Place"]
    assert isinstance(returned, torch.Tensor)
    assert returned.dtype == torch.float64
    assert_array_equal(returned.numpy(), solve_example("grid", GRID).values["Place"])


# -- large arrays ----------------------------------------------------------------------------------


def reader_of(storage: str) -> ArrayReader:
    backend = caspar.Solver(EXAMPLES["grid"].factors, backend="cpu").backend
    return ArrayReader(backend, Precision(storage), check_values=True)


@pytest.mark.parametrize("storage", ["float32", "float64"])
@pytest.mark.parametrize(
    "layout", [np.ascontiguousarray, np.asfortranarray, lambda rows: rows.astype(">f8"), spread]
)
def test_large_arrays_are_read_as_small_ones(storage: str, layout: Callable[[Any], Any]) -> None:
    rows = np.random.default_rng(3).normal(size=(700_001, 2))
    read = reader_of(storage).rows("rows", layout(rows), 2)
    assert read.flags.c_contiguous
    assert read.dtype == storage
    assert_array_equal(read, rows.astype(storage))


@pytest.mark.parametrize(("value", "row"), [(np.nan, 700_000), (np.inf, 3), (1e300, 400_000)])
def test_what_is_not_finite_is_found_in_large_arrays(value: float, row: int) -> None:
    rows = np.zeros((700_001, 2))
    rows[row, 1] = value
    with pytest.raises(InputError, match=f"1 of 700001 rows hold NaN.*first row {row}:"):
        reader_of("float32").rows("rows", rows, 2)


# -- nodes without factors -------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "dtype"), [("float64", np.float64), ("mixed", np.float32)])
def test_untouched_nodes_stay_and_are_warned_of(precision: str, dtype: type) -> None:
    arrays = EXAMPLES["attitudes"].arrays()
    spare = np.array([[0.1, -0.7, 0.7, 0.1], [0.5, 0.5, -0.5, 0.5], [0.0, 0.0, 0.0, -1.0]])
    spare = (spare / np.linalg.norm(spare, axis=1, keepdims=True)).astype(dtype)
    attitudes = arrays["Attitude"].astype(dtype)
    more = changed(arrays, "Attitude", np.concatenate([attitudes, spare]))
    with pytest.warns(UserWarning, match="Attitude: 3 of 15 .* no factor, first 12") as caught:
        found = solve_example("attitudes", more, precision)
    assert len(caught) == 1
    expected = solve_example("attitudes", changed(arrays, "Attitude", attitudes), precision)
    assert found.status.is_success
    assert found.final_cost == pytest.approx(expected.final_cost, rel=1e-9)
    assert_array_equal(found.values["Attitude"][12:], spare)


def test_warning_points_to_the_line_of_the_user() -> None:
    arrays = changed(GRID, "Place", np.concatenate([PLACES, PLACES[:1]]))
    solver = caspar.Solver(EXAMPLES["grid"].factors, backend="cpu", precision="float64")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solver.solve(arrays)
    assert [warning.filename for warning in caught] == [__file__]


# -- rotations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_rotations_that_are_rounded_are_made_unit_again(precision: str) -> None:
    """A length kept through the solve would be that of the result, at another optimum."""
    arrays = EXAMPLES["attitudes"].arrays()
    expected = solve_example("attitudes", arrays, precision)
    scaled = changed(arrays, "Attitude", 1.01 * arrays["Attitude"])
    scaled = changed(scaled, "relative_turn.turn", 0.99 * arrays["relative_turn"]["turn"])
    given = scaled["Attitude"].copy()
    found = solve_example("attitudes", scaled, precision)
    assert_array_equal(scaled["Attitude"], given)
    assert_allclose(np.linalg.norm(found.values["Attitude"], axis=1), 1.0, atol=1e-6)
    assert found.final_cost == pytest.approx(expected.final_cost, rel=1e-5)
    assert_allclose(found.values["Attitude"], expected.values["Attitude"], atol=1e-5)


@pytest.mark.parametrize("precision", ["float64", "mixed"])
@pytest.mark.filterwarnings("ignore:node type")
def test_rotations_that_stay_are_unit_too(precision: str) -> None:
    """They are what the cost is of; what is unit already comes back bit by bit."""
    arrays = EXAMPLES["attitudes"].arrays()
    rows = np.concatenate([arrays["Attitude"], [[0.0, 1.01, 0.0, 0.0], [0.6, 0.8, 0.0, 0.0]]])
    found = solve_example("attitudes", {**arrays, "Attitude": rows}, precision).values["Attitude"]
    assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)
    assert_array_equal(found[-1], rows[-1])


@pytest.mark.parametrize("storage", ["float64", "float32"])
def test_rotations_of_unit_length_are_taken_bit_by_bit(storage: str) -> None:
    rows: Any = EXAMPLES["attitudes"].arrays()["Attitude"].astype(storage)
    rows = np.nextafter(rows, np.zeros_like(rows))
    (unit,) = unit_ranges(sf.Rot3)
    reader = ArrayReader(CpuBackend(), Precision(storage), check_values=True)
    assert reader.rows("here", rows, 4, (unit,)) is rows
    off = rows * np.asarray(1.001, storage)
    taken = reader.rows("here", off, 4, (unit,))
    assert not np.shares_memory(taken, off)
    assert np.abs((taken**2).sum(axis=1) - 1.0).max() < 8.0 * np.finfo(storage).eps
