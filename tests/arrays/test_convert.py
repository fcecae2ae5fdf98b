"""Conversions between rows and the blocked layout, and how users' arrays are read."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from caspar.arrays.convert import (
    backend_of,
    chunk_views,
    float_type,
    pack,
    rows_of,
    shared_array,
    shared_backend,
    unpack,
)
from caspar.errors import InputError, OptionError
from caspar.ir.dtype import DType
from caspar.memory.array import Binding
from caspar.options import BackendChoice
from tests.arrays.blocked_cases import placement, rows_of_size
from tests.support_memory import canaries_live, with_canaries

FLOATS = (DType.FLOAT32, DType.FLOAT64)


class Exported:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, array: Any, device: tuple[int, int] = (1, 0)) -> None:
        self._array = array
        self._device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


class ExportedBefore(Exported):
    """The same by DLPack before 1.0, which says nothing of read-only memory."""

    def __dlpack__(self, **options: Any) -> Any:
        if "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self._array.__dlpack__(**options)


class TestBackends:
    def test_one_of_each_name(self) -> None:
        assert shared_backend("cpu") is shared_backend(BackendChoice.CPU)
        assert shared_backend("cpu").name == "cpu"
        chosen = shared_backend()
        assert chosen is shared_backend(chosen.name)

    def test_unknown_name(self) -> None:
        with pytest.raises(OptionError, match=r"backend='gpu'.*'auto', 'cuda', 'cpu'"):
            shared_backend("gpu")

    def test_where_an_array_lives(self) -> None:
        for given in (np.zeros(3), [1.0, 2.0], Exported(np.zeros(3))):
            assert backend_of(given) is shared_backend("cpu")

    def test_other_devices(self) -> None:
        array = Exported(np.zeros(3), (10, 0))
        with pytest.raises(InputError, match=r"points: lives on DLPack device type 10.*copy"):
            backend_of(array, where="points")

    def test_cuda_array_for_the_processor(self) -> None:
        array = Exported(np.zeros(3), (2, 0))
        with pytest.raises(
            InputError, match=r"points: lives on cuda:0, but must be on .* CPU.*copy"
        ):
            backend_of(array, "cpu", where="points")


class TestFloatType:
    @pytest.mark.parametrize(
        "given", ["float32", np.float32, np.dtype("f4"), np.dtype("=f4"), DType.FLOAT32]
    )
    def test_float32(self, given: Any) -> None:
        assert float_type("x", given) is DType.FLOAT32

    def test_float64(self) -> None:
        assert float_type("x", float) is DType.FLOAT64

    @pytest.mark.parametrize(
        "given",
        ["float16", "int32", np.int64, bool, None, "nonsense", 3.5, ">f4", DType.INT32, [1]],
    )
    def test_refused(self, given: Any) -> None:
        with pytest.raises(InputError, match=r"^x: dtype .*; allowed are float32 and float64"):
            float_type("x", given)


class TestSharedArray:
    def test_dlpack_shares_memory(self) -> None:
        array = np.arange(6.0)
        shared_array("x", Exported(array))[2] = 10.0
        assert array[2] == 10.0

    def test_torch_before_dlpack_1(self) -> None:
        class Tensor(ExportedBefore):
            requires_grad = True

            def detach(self) -> "Tensor":
                detached = Tensor(self._array)
                detached.requires_grad = False
                return detached

            def numpy(self) -> Any:
                assert not self.requires_grad
                return self._array

        Tensor.__module__ = "torch"
        array = np.arange(6.0)
        with pytest.warns(UserWarning, match="x: torch.Tensor with requires_grad"):
            shared_array("x", Tensor(array))[2] = 10.0
        assert array[2] == 10.0

    def test_others_before_dlpack_1_are_read_only(self) -> None:
        assert not shared_array("x", ExportedBefore(np.arange(6.0))).flags.writeable

    @pytest.mark.parametrize("given", [[[1.0], [1.0, 2.0]], Exported(np.array([None]))])
    def test_no_array(self, given: Any) -> None:
        with pytest.raises(InputError, match=r"x: .* cannot be read as an array"):
            shared_array("x", given)


class TestRows:
    def test_one_column_without_its_dimension(self) -> None:
        assert rows_of("x", np.arange(5)).shape == (5, 1)
        assert rows_of("x", np.arange(5), 1).shape == (5, 1)

    @pytest.mark.parametrize(
        ("given", "dim", "says"),
        [
            (np.zeros((4, 3)), 2, r"shape \(4, 3\); expected \(n, 2\)"),
            (np.zeros(4), 4, r"shape \(4,\); expected \(n, 4\)"),
            (np.zeros((2, 2, 2)), None, r"shape \(2, 2, 2\); expected \(n, dim\)"),
            (np.zeros((4, 0)), None, r"shape \(4, 0\)"),
            (3.0, None, r"shape \(\)"),
            (np.zeros((2, 2), bool), 2, "dtype bool; allowed are floating types and integers"),
            (np.zeros((2, 2), complex), 2, "dtype complex128"),
            ([["a"]], 1, "dtype <U1"),
            (None, 1, "dtype object"),
        ],
    )
    def test_refused(self, given: Any, dim: int | None, says: str) -> None:
        with pytest.raises(InputError, match=f"^x: {says}"):
            rows_of("x", given, dim)


def window_memory(length: int, dim: int, dtype: DType) -> Binding:
    """Objects 5 to length + 4 of length + 8, all NaN between canaries."""
    data = np.full(placement(length + 8, dim, dtype).size, np.nan, dtype.value)
    return Binding(with_canaries(data), length + 8, 5, length)


def assert_holds(blocked: Binding, rows: Any, dtype: DType) -> None:
    """Rows in the window, NaN around it."""
    where = placement(blocked.length, rows.shape[1], dtype)
    expected = np.full(where.size, np.nan, dtype.value)
    expected[where.where[5 : 5 + len(rows)]] = rows
    assert_array_equal(blocked.data, expected)
    assert canaries_live(blocked.data)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 6, 7, 19])
class TestWindows:
    def test_cpu(self, dim: int, dtype: DType) -> None:
        for length in (0, 1, 1025):
            rows = rows_of_size(length, dim, dtype)
            blocked = window_memory(length, dim, dtype)
            pack("x", rows, blocked)
            assert_holds(blocked, rows, dtype)
            assert_array_equal(unpack(blocked, dim), rows)
            views = chunk_views(blocked, dim)
            assert_array_equal(np.concatenate(views, axis=1), rows)
            assert all(np.shares_memory(view, blocked.data) for view in views if view.size > 0)


class TestPack:
    def packed(self, rows: Any, dtype: DType = DType.FLOAT32) -> Any:
        dim = rows.shape[1]
        data = np.zeros(placement(len(rows), dim, dtype).size, dtype.value)
        blocked = Binding(data, len(rows))
        pack("x", rows, blocked)
        return unpack(blocked, dim)

    @pytest.mark.parametrize("dtype", ["f2", "f8", ">f4", ">f8", "i1", "u2", "i8", "g"])
    def test_other_types(self, dtype: str) -> None:
        rows = np.arange(-3, 18).reshape(3, 7).astype(dtype)
        for target in FLOATS:
            assert_array_equal(self.packed(rows, target), rows.astype(target.value))

    def test_other_strides(self) -> None:
        rows = rows_of_size(40, 14, DType.FLOAT32)
        for chosen in (rows[::2, ::2], rows[::-1, 3:10], np.asfortranarray(rows[:, :5])):
            assert_array_equal(self.packed(chosen), chosen)

    def test_unaligned(self) -> None:
        rows = rows_of_size(10, 3, DType.FLOAT64)
        memory = np.zeros(rows.nbytes + 1, np.uint8)
        unaligned = memory[1:].view(np.float64).reshape(rows.shape)
        unaligned[...] = rows
        assert not unaligned.flags.aligned
        assert_array_equal(self.packed(unaligned, DType.FLOAT64), rows)

    def test_rows_of_the_memory_that_is_written(self) -> None:
        data = np.arange(400, dtype=np.float32)
        rows = data.reshape(100, 4)[:-1]
        expected = rows.copy()
        blocked = Binding(data, 100, 1, 99)
        pack("x", rows, blocked)
        assert_array_equal(unpack(blocked, 4), expected)
