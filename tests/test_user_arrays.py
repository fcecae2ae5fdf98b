"""Objects passed as arrays, wherever caspar reads arrays: the right numbers, or an error in words.

Readers are `Solver.solve`, kernels, `BlockedArray`, `SharedIndices` and the writers of files.
"""

import array
import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import scipy.sparse
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.errors import InputError
from caspar.runtime.arrays import library_of
from tests.arrays.test_convert import Exported


class Spot(sf.V2):
    """What moves."""


@caspar.factor
def pulled(
    spot: Annotated[Spot, caspar.TunableShared], to: Annotated[sf.V2, caspar.ConstSequential]
) -> sf.V2:
    """Residual: the way to a target."""
    return spot - to


@caspar.kernel(backend="cpu")
def doubled(
    x: Annotated[sf.V2, caspar.ReadSequential],
) -> Annotated[sf.V2, caspar.WriteSequential]:
    """Twice the value."""
    return 2 * x


@caspar.kernel(backend="cpu")
def picked(x: Annotated[sf.V2, caspar.ReadIndexed]) -> Annotated[sf.V2, caspar.WriteSequential]:
    """The value of a number."""
    return x


ROWS = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
INDEX = np.array([2, 0, 1])


def solved(spots: Any, to: Any = ROWS, index: Any = (0, 1, 2)) -> Any:
    """Where the spots end: at the targets."""
    solver = caspar.Solver(pulled, backend="cpu", precision="float64")
    result = solver.solve({"Spot": spots, "pulled": {"spot": index, "to": to}})
    return result.values["Spot"]


def assigned(rows: Any) -> Any:
    blocked = caspar.BlockedArray.zeros(3, 2, "float64", "cpu")
    blocked[:] = rows
    return blocked.to_numpy()


READERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "start values": (solved, "node type Spot: "),
    "constants": (lambda rows: solved(np.zeros((3, 2)), rows), "factor pulled, argument to: "),
    "kernel": (lambda rows: doubled(rows) / 2, "kernel doubled, argument x: "),
    "values": (
        lambda rows: picked({"values": rows, "index": [0, 1, 2]}),
        "kernel picked, argument x: ",
    ),
    "from_rows": (
        lambda rows: caspar.BlockedArray.from_rows(rows).to_numpy(),
        "BlockedArray.from_rows: ",
    ),
    "assignment": (assigned, "BlockedArray(3, 2)[:]: "),
}
readers = pytest.mark.parametrize(("read", "where"), READERS.values(), ids=READERS.keys())

INDEX_READERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "solve": (
        lambda index: solved(np.zeros((3, 2)), ROWS[INDEX], index),
        "factor pulled, argument spot",
    ),
    "kernel": (
        lambda index: picked({"values": ROWS, "index": index})[np.argsort(INDEX)],
        "kernel picked, argument x, index: ",
    ),
    "SharedIndices": (
        lambda index: ROWS[caspar.SharedIndices(index, 3).index][np.argsort(INDEX)],
        "SharedIndices, index: ",
    ),
}
index_readers = pytest.mark.parametrize(
    ("read", "where"), INDEX_READERS.values(), ids=INDEX_READERS.keys()
)


def refused(read: Callable[[Any], Any], given: Any, where: str, *says: str) -> None:
    """The reader refuses it; the message says where and why."""
    with pytest.raises(InputError) as caught:
        read(given)
    message = str(caught.value)
    assert message.startswith(where)
    assert all(part in message for part in says), message


def assert_same(found: Any, expected: Any) -> None:
    """But for what a solve leaves."""
    assert_allclose(found, expected, rtol=0, atol=1e-12)


# -- masked ----------------------------------------------------------------------------------------


def masked(rows: Any = ROWS) -> Any:
    """One entry is masked."""
    mask = np.zeros(rows.shape, bool)
    mask.flat[0] = True
    return np.ma.array(rows, mask=mask)


class OtherMasked(np.ndarray):
    """An array of another library that hides entries, such as astropy's."""

    @property
    def mask(self) -> Any:
        hidden = np.zeros(self.shape, bool)
        hidden.flat[:2] = True
        return hidden


MASKED: dict[str, tuple[Any, str]] = {
    "array": (masked(), "1 of 6"),
    "all": (np.ma.array(ROWS, mask=True), "6 of 6"),
    "in a list": ([masked()[0], ROWS[1], ROWS[2]], "1 of 2"),
    "in a tuple of lists": (([np.ma.masked, 0.2], [0.3, 0.4], [0.5, 0.6]), "1 of 1"),
    "constant": (np.ma.masked, "1 of 1"),
    "hard mask": (np.ma.array(ROWS, mask=ROWS > 0.55, hard_mask=True), "1 of 6"),
    "integers": (masked(np.arange(6).reshape(3, 2)), "1 of 6"),
    "another library": (ROWS.view(OtherMasked), "2 of 6"),
}


@readers
@pytest.mark.parametrize(("given", "says"), MASKED.values(), ids=MASKED.keys())
def test_masked_entries_are_refused(
    read: Callable[[Any], Any], where: str, given: Any, says: str
) -> None:
    refused(read, given, where, f"{says} entries are masked; leave out the rows")


@index_readers
def test_masked_indices_are_refused(read: Callable[[Any], Any], where: str) -> None:
    refused(read, masked(INDEX), where, "1 of 3 entries are masked")
    refused(read, [np.ma.masked, 0, 1], where, "1 of 1 entries are masked")


def test_masked_memory_is_refused() -> None:
    out = np.ma.array(np.zeros((3, 2)), mask=True)
    refused(lambda rows: doubled(rows, out=out), ROWS, "kernel doubled, output out: ", "6 of 6")
    flat = masked(np.zeros(4))
    refused(lambda rows: caspar.BlockedArray.wrap(rows, 1), flat, "BlockedArray.wrap: ", "1 of 4")
    rows = masked(np.zeros((2, 2)))
    refused(caspar.BlockedArray.from_dlpack, rows, "BlockedArray.from_dlpack: ", "1 of 4")


@readers
@pytest.mark.parametrize("mask", [np.ma.nomask, np.zeros((3, 2), bool)], ids=["none", "empty"])
def test_masks_that_hide_nothing(read: Callable[[Any], Any], where: str, mask: Any) -> None:
    assert_same(read(np.ma.array(ROWS, mask=mask)), ROWS)


def test_writers_refuse_masked_arrays(tmp_path: Path) -> None:
    path = tmp_path / "scene.ply"
    points, cameras = np.zeros((3, 3)), np.ones((2, 7))
    with pytest.raises(ValueError, match=r"^points: 1 of 9 entries are masked"):
        caspar.io.write_ply(path, masked(points), cameras)
    with pytest.raises(ValueError, match=r"^cameras: 1 of 14 entries are masked"):
        caspar.io.write_ply(path, points, masked(cameras))
    assert not path.exists()
    parts: dict[str, Any] = {
        "cameras": np.ones((1, 10)),
        "points": np.ones((1, 3)),
        "camera_index": np.zeros(1, np.int32),
        "point_index": np.zeros(1, np.int32),
        "pixels": np.ones((1, 2)),
    }
    for name, part in parts.items():
        with pytest.raises(ValueError, match=rf"^BalProblem.{name}: 1 of .* entries are masked"):
            caspar.io.BalProblem(**{**parts, name: masked(part)})


# -- what is no array of numbers -------------------------------------------------------------------


@dataclass
class Pair:
    """Two places, as a user may have them."""

    first: sf.V2
    second: sf.V2


class Structure(ctypes.Structure):
    """A structure of C."""

    _fields_ = (("x", ctypes.c_double),)


STRUCTURES = Structure * 3

NO_NUMBERS: dict[str, tuple[Any, str]] = {
    "records": (np.zeros(3, [("x", float), ("y", float)]), "dtype [('x'"),
    "text": ("some text", "dtype <U9"),
    "texts": ([["a", "b"]] * 3, "dtype <U1"),
    "dates": (np.zeros((3, 2), "M8[s]"), "dtype datetime64[s]"),
    "complex": (ROWS.astype(complex), "dtype complex128"),
    "truth values": (ROWS > 0.3, "dtype bool"),
    "sparse": (scipy.sparse.csr_matrix(ROWS), "for a sparse matrix pass .toarray()"),
    "set": ({0.1, 0.2}, "instead of a set pass a list"),
    "generator": (iter(ROWS), "pass a list in the order"),
    "characters": ((ctypes.c_char * 6)(), "dtype |S1"),
    "structures": (STRUCTURES(), "dtype [('x'"),
    "no dimension": (np.array(0.1), "shape ()"),
    "numbers of SymForce": (np.array([[sf.Rational(1, 10), 1]] * 3), "np.array(values, dtype=fl"),
    "dataclasses": (np.array([Pair(sf.V2(), sf.V2())] * 3, object), "StorageOps.to_storage(value)"),
    "vectors": (np.array([sf.Rot2.identity()] * 3, object), "[value.to_storage() for value"),
}


@pytest.mark.parametrize("reader", ["start values", "constants", "kernel", "values", "from_rows"])
@pytest.mark.parametrize(("given", "says"), NO_NUMBERS.values(), ids=NO_NUMBERS.keys())
def test_what_is_no_array_of_numbers(reader: str, given: Any, says: str) -> None:
    read, where = READERS[reader]
    refused(read, given, where, says)


@pytest.mark.parametrize("reader", ["start values", "constants", "from_rows", "assignment"])
def test_values_of_symforce_say_how_to_pass_them(reader: str) -> None:
    read, where = READERS[reader]
    values = [sf.V2(0.1, 0.2), sf.V2(0.3, 0.4), sf.V2(0.5, 0.6)]
    says = "np.array([value.to_storage() for value in values], dtype=float)"
    refused(read, values, where, "dtype object", says)
    assert_same(read(eval(says, {"np": np, "values": values})), ROWS)


@index_readers
@pytest.mark.parametrize(
    "given",
    [
        np.array([2.0, 0.0, 1.0]),
        [True, False, True],
        {0, 1, 2},
        "201",
        np.matrix(INDEX),
        np.array([2, 0, 1], object),
        (ctypes.c_double * 3)(2, 0, 1),
    ],
    ids=["floats", "truth values", "set", "text", "matrix", "objects", "ctypes"],
)
def test_what_is_no_index(read: Callable[[Any], Any], where: str, given: Any) -> None:
    refused(read, given, where)


class Gone(Exported):
    """As an array of a library that has let go of its memory; its errors are the library's own."""

    class Error(Exception): ...

    def __dlpack_device__(self) -> tuple[int, int]:
        raise Gone.Error("it has been deleted")


class GoneLater(Exported):
    """Its place is known, its memory is gone."""

    def __dlpack__(self, **options: Any) -> Any:
        raise Gone.Error("it has been deleted")


EVERYWHERE = {**READERS, **{f"index of {name}": read for name, read in INDEX_READERS.items()}}


@pytest.mark.parametrize(("read", "where"), EVERYWHERE.values(), ids=EVERYWHERE.keys())
@pytest.mark.parametrize("kind", [Gone, GoneLater])
def test_an_array_that_is_gone(read: Callable[[Any], Any], where: str, kind: type[Any]) -> None:
    says = f"{kind.__name__} cannot be read as an array: it has been deleted"
    refused(read, kind(ROWS), where.split(",")[0], says)


# -- what is one -----------------------------------------------------------------------------------


class Length(np.ndarray):
    """Numbers with a unit, which are taken as they are."""


CT = ctypes.c_double * 2 * 3
BIG_ENDIAN: Any = ctypes.c_double.__ctype_be__ * 2 * 3

ARRAYS: dict[str, Any] = {
    "matrix": np.matrix(ROWS),
    "subclass": ROWS.view(Length),
    "big-endian": ROWS.astype(">f8"),
    "backwards": ROWS[::-1].copy()[::-1],
    "ctypes": CT.from_buffer_copy(ROWS.tobytes()),
    "ctypes, big-endian": BIG_ENDIAN.from_buffer_copy(ROWS.astype(">f8").tobytes()),
    "memoryview": memoryview(ROWS.data),
    "list of ctypes": [(ctypes.c_double * 2)(*row) for row in ROWS],
    "list of arrays": list(ROWS),
    "list of array.array": [array.array("d", row) for row in ROWS],
    "without writing": np.frombuffer(ROWS.tobytes()).reshape(3, 2),
}


@pytest.mark.parametrize("reader", ["start values", "constants", "from_rows", "assignment"])
@pytest.mark.parametrize("given", ARRAYS.values(), ids=ARRAYS.keys())
def test_the_numbers_are_read(reader: str, given: Any) -> None:
    read, _ = READERS[reader]
    assert_same(read(given), ROWS)


@pytest.mark.parametrize("name", [name for name in ARRAYS if not name.startswith("list")])
def test_kernels_compute_in_the_type_of_the_memory(name: str) -> None:
    """A ctypes array has no dtype; its numbers are not rounded to float32 for that."""
    found = doubled(ARRAYS[name])
    assert found.dtype == np.float64
    assert_array_equal(found, 2 * ROWS)


@index_readers
@pytest.mark.parametrize(
    "given",
    [
        (ctypes.c_int * 3)(*INDEX),
        (ctypes.c_ulong * 3)(*INDEX),
        array.array("h", INDEX.tolist()),
        memoryview(INDEX.data),
        INDEX.astype(">i4"),
        np.ma.array(INDEX),
    ],
    ids=["c_int", "c_ulong", "array.array", "memoryview", "big-endian", "nothing masked"],
)
def test_indices_are_read(read: Callable[[Any], Any], where: str, given: Any) -> None:
    assert_same(read(given), ROWS)


def test_results_of_ctypes_are_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The type of a ctypes array belongs to the module that made it, whatever that imported."""
    module = sys.modules[type(ARRAYS["ctypes"]).__module__]
    monkeypatch.setattr(module, "from_dlpack", lambda _: "another library's", raising=False)
    assert library_of(ARRAYS["ctypes"]) == "numpy"
    assert type(solved(ARRAYS["ctypes"])) is np.ndarray
    assert type(doubled(ARRAYS["ctypes"])) is np.ndarray
    assert type(doubled(ROWS.view(Length))) is np.ndarray


# -- gradients -------------------------------------------------------------------------------------


class Tensor(Exported):
    """What a library has that knows gradients."""

    requires_grad = True
    dtype = np.dtype(np.float64)

    def detach(self) -> "Tensor":
        detached = Tensor(self._array)
        detached.requires_grad = False
        return detached


@pytest.mark.parametrize("reader", ["start values", "constants", "from_rows", "assignment"])
def test_tensors_with_gradients_are_constants_with_a_warning(reader: str) -> None:
    read, where = READERS[reader]
    with pytest.warns(UserWarning, match="taken as constants") as caught:
        assert_same(np.asarray(read(Tensor(ROWS))), ROWS)
    (warning,) = caught
    assert warning.filename == __file__
    message = str(warning.message)
    assert message.startswith(f"{where}tests.Tensor with requires_grad")
    assert "caspar.torch.solve has gradients" in message
    assert "pass tensor.detach()" in message
    assert_same(np.asarray(read(Tensor(ROWS).detach())), ROWS)  # warnings are errors


class Undetachable(Exported):
    """It says that it has gradients, and cannot be read without them."""

    requires_grad = True


@pytest.mark.parametrize("reader", ["start values", "constants", "from_rows", "assignment"])
@pytest.mark.filterwarnings("ignore:.*taken as constants:UserWarning")
def test_gradients_that_cannot_be_left_away(reader: str) -> None:
    read, where = READERS[reader]
    refused(read, Undetachable(ROWS), where, "Undetachable cannot be read as an array", "'detach'")


def test_one_warning_a_solve() -> None:
    with pytest.warns(UserWarning, match="node type Spot: .* with requires_grad") as caught:
        solved(Tensor(ROWS), Tensor(ROWS))
    assert len(caught) == 1


def test_kernels_refuse_tensors_with_gradients() -> None:
    refused(doubled, Tensor(ROWS), "kernel doubled, argument x: ", "requires_grad", ".detach()")


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(ROWS, requires_grad=True)
    with pytest.warns(UserWarning, match="node type Spot: torch.Tensor with requires_grad"):
        returned = solved(tensor)
    assert isinstance(returned, torch.Tensor)
    assert not returned.requires_grad
    with torch.no_grad():
        solved(tensor)
