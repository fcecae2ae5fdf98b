"""Arrays that do not fit: each is refused before anything runs, in words that help."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import InputError
from tests.problems import EXAMPLES
from tests.solver.solving import changed, solve_example, without

GRID = EXAMPLES["grid"].arrays()
VEHICLE = EXAMPLES["vehicle"].arrays()
DECAY = EXAMPLES["decay"].arrays()

PLACES = GRID["Place"]
START = GRID["between"]["start"]
OFFSETS = GRID["between"]["offset"]


def message_of(name: str, arrays: Any) -> str:
    """What `solve` says about arrays it refuses."""
    with pytest.raises(InputError) as caught:
        solve_example(name, arrays)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


def assert_refused(name: str, arrays: Any, *parts: str) -> None:
    """Refused, in a message that holds all of the parts."""
    message = message_of(name, arrays)
    for part in parts:
        assert part in message


def with_entry(array: np.ndarray, place: int | tuple[int, int], value: float) -> np.ndarray:
    copy = array.copy()
    copy[place] = value
    return copy


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, [1, 2], np.zeros(3)])
def test_not_a_mapping(given: Any) -> None:
    assert_refused("grid", given, "expected a mapping", "Place, between, anchor", "got")


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("Place", ["arrays:", "'Place' is missing", "Place, between, anchor"]),
        ("between", ["arrays:", "'between' is missing"]),
        ("between.start", ["factor between", "'start' is missing", "start, end, offset"]),
        ("anchor.known", ["factor anchor", "'known' is missing", "place, known"]),
    ],
)
def test_missing_name(path: str, parts: Sequence[str]) -> None:
    assert_refused("grid", without(GRID, path), *parts)


def test_misspelt_node_type() -> None:
    arrays = {**without(GRID, "Place"), "Plaec": PLACES}
    assert_refused("grid", arrays, "unknown name 'Plaec' (did you mean 'Place'?)")


def test_misspelt_argument() -> None:
    arrays = changed(without(GRID, "between.offset"), "between.ofset", OFFSETS)
    assert_refused("grid", arrays, "factor between", "'ofset' (did you mean 'offset'?)")


def test_name_too_many() -> None:
    assert_refused("grid", {**GRID, "loops": {}}, "unknown name 'loops'", "Place, between, anchor")


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("Place", "node type Place"),
        ("between.start", "argument start"),
        ("between.offset", "argument offset"),
    ],
)
def test_an_array_given_as_nothing(path: str, where: str) -> None:
    assert_refused("grid", changed(GRID, path, None), where, "expected an array, got NoneType")


@pytest.mark.parametrize("argument", ["start", "offset"])
def test_an_array_given_as_a_mapping(argument: str) -> None:
    arrays = changed(GRID, f"between.{argument}", {"index": START})
    assert_refused("grid", arrays, f"argument {argument}", "expected an array, got dict")


def test_nodes_given_as_a_mapping() -> None:
    assert_refused("grid", changed(GRID, "Place", {"x": 1}), "node type Place", "(n, 2)", "mapping")


@dataclass
class Drone:
    pose: sf.Pose3
    bias: sf.V3
    clock: sf.Scalar


@caspar.factor
def stay(drone: Annotated[Drone, caspar.TunableShared]) -> sf.V3:
    return drone.bias + drone.clock * drone.pose.t


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((4, 10)), "shape (4, 10); expected (n, 11), 11 scalars a row: pose ("),
        ({"pose": np.zeros((4, 7))}, "got a mapping; put its fields side by side: pose ("),
    ],
)
def test_layouts_are_named(given: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        caspar.Solver([stay], backend="cpu").solve({"Drone": given, "stay": {"drone": [0]}})
    assert str(caught.value).startswith("node type Drone: ")
    assert message in str(caught.value)
    assert str(caught.value).endswith("pose (qx qy qz qw tx ty tz), bias (3), clock (1)")


def test_factor_given_as_an_array() -> None:
    assert_refused("grid", changed(GRID, "anchor", PLACES), "factor anchor", "mapping", "ndarray")


def test_indexed_constant_given_as_an_array() -> None:
    arrays = changed(VEHICLE, "ranging.beacon", np.zeros((45, 2)))
    assert_refused("vehicle", arrays, "factor ranging, argument beacon", "values, index", "ndarray")


@pytest.mark.parametrize("name", ["values", "index"])
def test_half_an_indexed_constant(name: str) -> None:
    arrays = without(VEHICLE, f"ranging.beacon.{name}")
    assert_refused("vehicle", arrays, "factor ranging, argument beacon", f"{name!r} is missing")


# -- types and shapes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        PLACES.astype(complex),
        PLACES > 0.0,
        PLACES.astype(str),
        PLACES.astype("datetime64[s]"),
        "places",
    ],
    ids=["complex", "bool", "str", "datetime", "text"],
)
def test_values_that_are_no_numbers(values: Any) -> None:
    assert_refused("grid", changed(GRID, "Place", values), "node type Place", "dtype", "float64")


def test_ragged_list() -> None:
    arrays = changed(GRID, "between.offset", [[1.0, 2.0], [3.0]])
    assert_refused("grid", arrays, "factor between, argument offset", "cannot be read as an array")


@pytest.mark.parametrize(
    "values",
    [np.zeros((36, 3)), np.zeros((36, 1)), PLACES[None], 3.0, PLACES.ravel()],
    ids=["wide", "narrow", "three-dimensional", "scalar", "flat"],
)
def test_values_of_another_shape(values: Any) -> None:
    shape = str(np.shape(values))
    assert_refused("grid", changed(GRID, "Place", values), "node type Place", shape, "(n, 2)")


def test_measurements_of_another_width() -> None:
    arrays = changed(GRID, "between.offset", np.zeros((60, 3)))
    assert_refused("grid", arrays, "factor between, argument offset", "(60, 3)", "(n, 2)")


@pytest.mark.parametrize("dtype", [float, bool, complex])
def test_indices_that_are_no_integers(dtype: type) -> None:
    arrays = changed(GRID, "between.start", START.astype(dtype))
    expected = str(np.dtype(dtype))
    assert_refused("grid", arrays, "factor between, argument start", expected, "must be integers")


@pytest.mark.parametrize("index", [START[:, None], 3], ids=["column", "scalar"])
def test_indices_of_another_rank(index: Any) -> None:
    arrays = changed(GRID, "between.start", index)
    assert_refused("grid", arrays, "factor between, argument start", str(np.shape(index)), "(n,)")


def test_arguments_of_different_length() -> None:
    arrays = changed(GRID, "between.start", START[:-1])
    expected = ["factor between", "start has 59", "end has 60", "offset has 60", "must be equal"]
    assert_refused("grid", arrays, *expected)


def test_indexed_constant_of_another_length() -> None:
    arrays = changed(VEHICLE, "compass.device.index", np.zeros(14, dtype=int))
    assert_refused("vehicle", arrays, "factor compass", "device has 14", "state has 15")


def test_pair_of_another_length() -> None:
    arrays = changed(VEHICLE, "drive.turn", VEHICLE["drive"]["turn"][:5])
    assert_refused("vehicle", arrays, "factor drive", "turn has 5", "state (pairs) has 14")


def test_several_rows_for_a_unique_constant() -> None:
    arrays = changed(VEHICLE, "drive.tuning", np.ones((2, 3)))
    assert_refused("vehicle", arrays, "factor drive, argument tuning", "2 rows", "ConstSequential")


def test_several_unique_nodes() -> None:
    arrays = changed(DECAY, "Curve", np.ones((2, 3)))
    expected = ["factor decay, argument curve", "exactly 1", "got 2", "TunableShared"]
    assert_refused("decay", arrays, *expected)


def test_pair_of_one() -> None:
    arrays = changed(VEHICLE, "State", VEHICLE["State"][:1])
    arrays = changed(arrays, "ranging.state", np.zeros(45, dtype=int))
    arrays = changed(arrays, "compass.state", np.zeros(15, dtype=int))
    assert_refused(
        "vehicle", arrays, "factor drive: arguments differ", "turn has 14", "state (pairs) has 0"
    )


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-1, -(2**40), 36, 2**40])
@pytest.mark.parametrize("name", ["start", "end"])
def test_index_out_of_range(name: str, wrong: int) -> None:
    index = with_entry(GRID["between"][name], 7, wrong)
    where = f"factor between, argument {name}"
    arrays = changed(GRID, f"between.{name}", index)
    assert_refused("grid", arrays, where, f"index {wrong} at entry 7", "0 to 35 are allowed")


def test_index_of_a_constant_out_of_range() -> None:
    index = with_entry(VEHICLE["ranging"]["beacon"]["index"], 4, 3)
    arrays = changed(VEHICLE, "ranging.beacon.index", index)
    expected = ["factor ranging, argument beacon, index", "index 3 at entry 4", "0 to 2 are"]
    assert_refused("vehicle", arrays, *expected)


def test_unsigned_index_beyond_int64() -> None:
    index = START.astype(np.uint64)
    index[7] = 2**63 + 5
    arrays = changed(GRID, "between.start", index)
    assert_refused("grid", arrays, "argument start", f"index {2**63 + 5} at entry 7")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_value_that_is_not_finite(wrong: float) -> None:
    arrays = changed(GRID, "Place", with_entry(PLACES, (5, 1), wrong))
    expected = ["node type Place", "1 of 36 rows", "first row 5", str(wrong), "must be finite"]
    assert_refused("grid", arrays, *expected)


def test_measurements_that_are_not_finite() -> None:
    wrong = with_entry(with_entry(OFFSETS, (3, 0), np.nan), (9, 1), np.inf)
    arrays = changed(GRID, "between.offset", wrong)
    assert_refused("grid", arrays, "factor between, argument offset", "2 of 60 rows", "first row 3")


def test_values_beyond_their_type() -> None:
    arrays = changed(GRID, "Place", with_entry(PLACES, (2, 0), 1e39))
    with pytest.raises(InputError, match=r"node type Place: 1 of 36 .* beyond float32.* row 2"):
        solve_example("grid", arrays, "float32")


@pytest.mark.parametrize("empty", [[], np.zeros((0, 2)), np.zeros(0)], ids=["list", "rows", "flat"])
def test_no_nodes(empty: Any) -> None:
    arrays = changed(GRID, "Place", empty)
    assert_refused("grid", arrays, "factor between, argument start: index", "none is allowed")


@pytest.mark.parametrize("empty", [np.zeros((0, 3)), np.zeros((2, 0))], ids=["rows", "columns"])
def test_empty_rows_of_another_width(empty: Any) -> None:
    assert_refused("grid", changed(GRID, "Place", empty), "node type Place: shape", "(n, 2)")


@pytest.mark.parametrize("empty", [[], np.zeros(0, dtype=int)], ids=["list", "array"])
def test_no_factors(empty: Any) -> None:
    arrays = changed(GRID, "between", {"start": empty, "end": empty, "offset": np.zeros((0, 2))})
    arrays = changed(arrays, "anchor", {"place": empty, "known": empty})
    assert_refused("grid", arrays, "no factor has instances (between, anchor)")


def test_some_arguments_of_a_factor_are_empty() -> None:
    arrays = changed(GRID, "between.offset", [])
    assert_refused("grid", arrays, "factor between: arguments differ", "offset has 0")


# -- devices ---------------------------------------------------------------------------------------


class DeviceArray:
    """As much of an array on another device as is looked at before it is refused."""

    def __init__(self, kind: int, number: int) -> None:
        self._device = (kind, number)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("a refused array is not read")


def test_arrays_on_two_devices() -> None:
    arrays = changed(GRID, "between.start", DeviceArray(2, 1))
    expected = ["factor between, argument start", "cuda:1", "node type Place", "the host"]
    assert_refused("grid", arrays, *expected, "one device")


def test_gpu_arrays_on_the_cpu_backend() -> None:
    arrays = changed(GRID, "Place", DeviceArray(2, 0))
    expected = ["node type Place", "lives on cuda:0", "runs on", "CPU", "another backend"]
    assert_refused("grid", arrays, *expected)


def test_device_of_another_kind() -> None:
    arrays = changed(GRID, "Place", DeviceArray(8, 0))
    assert_refused("grid", arrays, "node type Place", "DLPack device type 8")


def test_dlpack_that_fails() -> None:
    class Broken(DeviceArray):
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("exported twice")

    arrays = changed(GRID, "Place", Broken(1, 0))
    assert_refused("grid", arrays, "node type Place", "Broken cannot be read", "exported twice")


def test_values_are_not_looked_at_when_unchecked() -> None:
    arrays = changed(GRID, "Place", with_entry(PLACES, (5, 1), np.nan))
    result = solve_example("grid", arrays, check=False)
    assert not result.status.is_success


class Deleted:
    """As an array of a library that has let go of its memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        raise RuntimeError("Array has been deleted.")

    def __dlpack__(self) -> None:
        raise RuntimeError("Array has been deleted.")


@pytest.mark.parametrize("name", ["Place", "between.offset"])
def test_an_array_that_is_gone(name: str) -> None:
    arrays = changed(GRID, name, Deleted())
    assert_refused("grid", arrays, "Deleted cannot be read as an array: Array has been deleted")


def test_masked_entries() -> None:
    masked = np.ma.masked_array(PLACES, mask=np.zeros_like(PLACES, dtype=bool))
    kept = caspar.Solver(EXAMPLES["grid"].factors, backend="cpu").solve({**GRID, "Place": masked})
    assert kept.status.is_success
    masked[5, 0] = np.ma.masked
    expected = f"1 of {PLACES.size} entries are masked; leave out the rows"
    assert_refused("grid", {**GRID, "Place": masked}, "node type Place", expected)


class Shape(sf.M22):
    """A node that is a matrix."""


@caspar.factor
def shaped(shape: Annotated[Shape, caspar.TunableUnique]) -> sf.V1:
    return sf.V1(shape[0, 1] - 2.0)


def test_a_node_that_is_a_matrix_names_its_order() -> None:
    made = caspar.Solver(shaped, backend="cpu")
    with pytest.raises(InputError, match=r"shape \(1, 2, 2\); .*transpose\(0, 2, 1\)"):
        made.solve({"Shape": np.zeros((1, 2, 2)), "shaped": {}})
    found = made.solve({"Shape": np.zeros((1, 4)), "shaped": {}}).values["Shape"]
    assert np.allclose(found.reshape(-1, 2, 2).transpose(0, 2, 1), [[[0.0, 2.0], [0.0, 0.0]]])
