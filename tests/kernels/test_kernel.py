"""Kernels as they are called: by name and in order, on arrays of any library, on symbols."""

import sys
import types
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.arrays.passed import share_memory
from caspar.errors import FactorError, InputError, KernelError
from caspar.frontend.factors.trace import trace
from tests.arrays.test_convert import Exported
from tests.kernels.bad_input import SHIFT, fails, points

BlockedArray = caspar.BlockedArray
V3In = Annotated[sf.V3, caspar.ReadSequential]
V3Out = Annotated[sf.V3, caspar.WriteSequential]


class Split(NamedTuple):
    """Outputs by name."""

    near: V3Out
    length: Annotated[sf.Symbol, caspar.WriteSequential]
    outer: Annotated[sf.M32, caspar.WriteSequential]


@caspar.kernel(backend="cpu")
def moved(x: V3In, shift: Annotated[sf.V3, caspar.ReadUnique]) -> V3Out:
    """Points moved by one shift."""
    return x + shift


@caspar.kernel(backend="cpu")
def split(x: V3In) -> Split:
    """Half a point, its squared length, twice it and itself."""
    return Split(x / 2, x.squared_norm(), sf.M32([[2 * one, one] for one in x]))


@caspar.kernel(backend="cpu")
def transformed(
    pose: Annotated[sf.Pose3, caspar.ReadIndexed], point: Annotated[sf.V3, caspar.ReadSequential]
) -> V3Out:
    """Points by poses."""
    return pose * point


def outer_of(x: Any) -> Any:
    return np.stack([2 * x, x], axis=2)


class TestResults:
    def test_have_names_and_shapes(self) -> None:
        x = points()
        near, length, outer = found = split(x)
        assert type(found) is Split
        assert (near.shape, length.shape, outer.shape) == ((5, 3), (5,), (5, 3, 2))
        assert_array_equal(found.near, x / 2)
        assert_array_equal(found.length, (x**2).sum(axis=1))
        assert_array_equal(found.outer, outer_of(x))

    def test_are_written_to_arrays_of_any_form(self) -> None:
        x = points()
        large = np.zeros((10, 6), np.float64)
        near = large[::2, ::2]
        length = np.zeros((5, 1), ">f8")
        outer = np.zeros((5, 3, 2), order="F")
        found = split(x, out={"near": near, "outer": outer, "length": length})
        assert found.near is near
        assert found.outer is outer
        assert_array_equal(near, x / 2)
        assert_array_equal(large[1::2], 0.0)
        assert_array_equal(large[:, 1::2], 0.0)
        assert_array_equal(length[:, 0], (x**2).sum(axis=1))
        assert_array_equal(outer, outer_of(x))
        flat = np.zeros((5, 6))  # column by column, as SymForce stores it
        split(x, out=(None, None, flat))
        assert_array_equal(flat, np.concatenate([2 * x, x], axis=1))

    def test_are_converted_where_that_was_said(self) -> None:
        out = np.zeros((5, 3), np.float32)
        found = moved(points(), SHIFT, out=out, dtype="float64")
        assert found is out
        assert_array_equal(out, points() + SHIFT)


class Tensor(Exported):
    """An array of a library that has DLPack and nothing else."""


Tensor.__module__ = "tensors"


@pytest.fixture
def _tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is loaded: whoever has a tensor has imported it."""
    module = types.ModuleType("tensors")
    module.from_dlpack = lambda array: Tensor(np.from_dlpack(array))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensors", module)


@pytest.mark.usefixtures("_tensors")
class TestLibraries:
    def test_the_first_array_decides(self) -> None:
        x, expected = points(), points() + SHIFT
        blocked = BlockedArray.from_rows(x)
        for first, second, kind in (
            (x, Tensor(SHIFT), np.ndarray),
            (Tensor(x), SHIFT, Tensor),
            (Tensor(x), BlockedArray.from_rows(SHIFT), Tensor),
            (blocked, SHIFT, BlockedArray),
            (blocked, Tensor(SHIFT), BlockedArray),
            (x, BlockedArray.from_rows(SHIFT), np.ndarray),
            (x.tolist(), SHIFT, np.ndarray),
            (x.tolist(), Tensor(SHIFT), Tensor),
            (x.tolist(), SHIFT.tolist(), np.ndarray),
        ):
            found = moved(first, second, dtype="float64")
            assert type(found) is kind
            assert_array_equal(np.from_dlpack(found) if kind is Tensor else found, expected)
            by_name = moved(shift=second, x=first, dtype="float64")
            assert type(by_name) is kind, "of the signature, not of the call"

    def test_out_is_returned_as_it_is(self) -> None:
        out = Tensor(np.zeros((5, 3)))
        assert moved(points(), SHIFT, out=out) is out
        assert_array_equal(np.from_dlpack(out), points() + SHIFT)

    @pytest.mark.parametrize("dim", [3, 7])
    def test_rows_like_those_of_another(self, dim: int) -> None:
        x = np.arange(5.0 * dim).reshape(5, dim)
        blocked = BlockedArray.from_rows(x)
        rows = blocked.to_rows(like=Tensor(np.zeros(1, np.float32)))
        assert type(rows) is Tensor
        assert_array_equal(np.from_dlpack(rows), x)
        for like in (np.zeros(3), [1.0], blocked, None):
            found = blocked.to_rows(like=like)
            assert type(found) is np.ndarray
            assert not np.shares_memory(found, blocked.buffer)
            assert_array_equal(found, x)
        fails(partial(blocked.to_rows, like=Exported(x, (10, 0))), "like: lives on DLPack device")

    def test_where_dlpack_cannot_help_the_error_names_it(self) -> None:
        with pytest.raises(BufferError, match=r"\.to_rows\(like=array\)"):
            np.from_dlpack(BlockedArray.zeros(2, 7, backend="cpu"))

    def test_of_torch(self) -> None:
        torch = pytest.importorskip("torch")
        blocked = BlockedArray.from_rows(points())
        rows = blocked.to_rows(like=torch.zeros(1))
        assert isinstance(rows, torch.Tensor)
        assert_array_equal(rows.numpy(), points())
        assert isinstance(moved(torch.tensor(points()), SHIFT), torch.Tensor)


class TestItems:
    def test_each_argument_says_where_its_number_comes_from(self) -> None:
        poses = np.tile([0, 0, 0, 1, 0, 0, 0.0], (3, 1))
        fails(
            lambda: transformed({"values": poses, "index": np.zeros(50, int)}, points(100)),
            "kernel transformed: its arguments are for different numbers of items: "
            "pose for 50 (length of its index), point for 100 (rows); pass arrays of matching",
        )

        fails(
            lambda: stepped(points(5), points(5)),
            "x for 4 (ReadPair of 5 rows), weight for 5 (rows); pass",
        )


@caspar.kernel(backend="cpu")
def stepped(x: Annotated[caspar.Pair[sf.V3], caspar.ReadPair], weight: V3In) -> V3Out:
    """Weighted differences."""
    return sf.V3([a * b for a, b in zip(x[1] - x[0], weight, strict=True)])


X = sf.V3.symbolic("x")
ONE = sf.V3(1, 2, 3)


class TestSymbols:
    def test_a_kernel_is_its_function(self) -> None:
        assert moved(X, ONE) == X + ONE
        assert moved(shift=ONE, x=X) == X + ONE
        assert moved(ONE, ONE) == 2 * ONE

    def test_inside_another(self) -> None:
        @caspar.kernel(backend="cpu")
        def twice(x: V3In, shift: Annotated[sf.V3, caspar.ReadUnique]) -> V3Out:
            return moved(moved(x, shift), shift)

        assert_allclose(twice(points(), SHIFT), points() + 2 * SHIFT)

    @pytest.mark.parametrize(
        "given", [points(), BlockedArray.from_rows(points()), Tensor(points())]
    )
    def test_are_not_mixed_with_arrays(self, given: Any) -> None:
        name = type(given).__name__
        fails(
            lambda: transformed(sf.Pose3.identity(), given),
            f"kernel transformed, argument point: {name}, but pose is symbolic; arguments are all "
            "symbolic or all arrays",
        )
        fails(lambda: moved(given, shift=ONE), f"argument x: {name}, but shift is symbolic")
        fails(lambda: moved({"values": given}, ONE), "argument x: dict, but shift is symbolic")

    def test_numbers_are_no_arrays(self) -> None:
        @caspar.kernel(backend="cpu")
        def scaled(x: V3In, by: Annotated[sf.Symbol, caspar.ReadUnique]) -> V3Out:
            return x * by

        for two in (2, 2.0, np.float64(2), np.float32(2), np.int64(2), sf.S(2)):
            assert scaled(ONE, two).to_numpy().tolist() == [[2.0], [4.0], [6.0]]

    def test_are_of_the_declared_types(self) -> None:
        where = "kernel moved, argument shift: "
        needs = f"{where}needs a V3 (3 scalars), or a list of 3 scalars, got "
        fails(lambda: moved(X, sf.V2(1, 2)), f"{needs}a V2 (2 scalars)")
        fails(lambda: moved(X, sf.Symbol("s")), f"{needs}Symbol s")
        fails(lambda: moved(X, 2), f"{needs}int 2")
        fails(lambda: moved(X, None), f"{needs}None")
        fails(lambda: moved(X, sf.M13(1, 2, 3)), f"{needs}an M13 of shape (1, 3)")
        turn = sf.Rot3.identity()
        fails(lambda: transformed(turn, X), "argument pose: needs a Pose3 (7 scalars), got a Rot3")
        assert moved(X, [1, 2, 3]) == moved(X, (1, 2, 3)) == X + ONE
        assert moved([*X], ONE) == X + ONE

    def test_lists_of_them_are_no_arrays(self) -> None:
        where = "kernel moved, argument x: "
        advice = "; to run over arrays, for SymForce values pass their numbers: np.array([value.to"
        fails(lambda: moved(x=[ONE] * 2, shift=ONE), f"{where}needs a V3 (3", "a list of 2", advice)
        fails(
            lambda: moved([ONE] * 3, ONE),
            f"{where}got a list of 3 elements, whose scalar 0 is a V3 (3 scalars)",
            advice,
        )

    def test_pairs(self) -> None:
        weight = sf.V3(1, 1, 1)
        for pair in (caspar.Pair((X, ONE)), [X, ONE], (X, [1, 2, 3])):
            assert stepped(pair, weight) == ONE - X
        where = "kernel stepped, argument x: needs "
        fails(
            lambda: stepped(X, weight),
            f"{where}two values of type V3, got a V3 (3 scalars)",
            "; pass caspar.Pair((first, second))",
        )
        fails(lambda: stepped([X] * 3, weight), f"{where}two values", "a list of 3 elements")
        fails(lambda: stepped([X, 1], weight), f"{where}a V3 (3 scalars)", "got int 1")

    def test_take_no_options_of_arrays(self) -> None:
        out = points()
        fails(
            partial(moved, X, ONE, out=out), "moved: out= is for arrays, but x, shift are symbolic"
        )
        fails(partial(moved, X, ONE, count=5), "count= is for arrays")
        fails(partial(moved, X, ONE, dtype="float32"), "dtype= is for arrays")
        assert_array_equal(out, points())

    def test_wrong_numbers_of_arguments(self) -> None:
        takes = "it takes x, shift"
        fails(lambda: moved(X), "kernel moved: missing a required argument: 'shift'", takes)
        fails(lambda: moved(X, ONE, ONE), "kernel moved: too many positional arguments", takes)
        fails(lambda: moved(X, shfit=ONE), "kernel moved: ", "'shift'", takes)

    def test_wrong_numbers_of_arguments_inside_another(self) -> None:
        @caspar.kernel(backend="cpu")
        def outer(x: V3In) -> V3Out:
            return moved(x)

        with pytest.raises(KernelError) as caught:
            outer(points())
        message = str(caught.value)
        assert "kernel outer (" in message
        assert "return moved(x)" in message
        assert "kernel moved: missing a required argument: 'shift'; it takes x, shift" in message
        assert "sf.sqrt" not in message

    def test_wrong_numbers_of_arguments_inside_a_residual(self) -> None:
        class Point(sf.V3): ...

        @caspar.factor
        def residual(a: Annotated[Point, caspar.TunableShared]) -> sf.V3:
            return moved(a)

        with pytest.raises(FactorError) as caught:
            trace(residual)
        assert "kernel moved: missing a required argument: 'shift'" in str(caught.value)
        assert "sf.sqrt" not in str(caught.value)


class OnDevice:
    """An array of which only the place is known."""

    def __init__(self, array: Any) -> None:
        self.data = types.SimpleNamespace(ptr=array.ctypes.data)
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype


@pytest.mark.parametrize("of", [lambda array: array, OnDevice], ids=["host", "device"])
def test_what_shares_memory(of: Any) -> None:
    memory = np.zeros((8, 6), np.float32)
    for one, other, do in (
        (memory, memory, True),
        (memory[:4], memory[4:], False),
        (memory[:5], memory[4:], True),
        (memory[:, :3], memory[:, 3:], False),
        (memory[:, :4], memory[:, 3:], True),
        (memory[::2], memory[1::2], False),
        (memory[::2], memory[::3], True),
        (memory[::-1], memory[:1], True),
        (memory[:0], memory, False),
        (memory, memory.copy(), False),
    ):
        assert share_memory(of(one), of(other)) == do


def test_errors_are_of_the_kind_that_python_has() -> None:
    with pytest.raises(ValueError, match="kernel moved"):
        moved(points(), points())
    assert issubclass(InputError, caspar.errors.CasparError)
