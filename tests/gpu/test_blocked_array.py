"""`BlockedArray` on a device: the same checks as on the processor, streams, CuPy and torch."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from caspar.arrays.blocked_array import BlockedArray
from caspar.arrays.convert import shared_backend
from caspar.errors import InputError
from caspar.ir.dtype import DType
from tests.arrays.blocked_cases import (
    DIMS,
    SIZES,
    check_round_trip,
    check_window,
    memory,
    placement,
    rows_of_size,
)

pytestmark = pytest.mark.gpu

both = pytest.mark.parametrize(
    "dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value
)


@pytest.fixture(scope="module")
def cupy() -> Any:
    pytest.importorskip("caspar.runtime.cuda.backend")
    return shared_backend("cuda").xp


@both
@pytest.mark.parametrize("dim", DIMS)
def test_round_trip(cupy: Any, dim: int, dtype: DType) -> None:
    for length in SIZES:
        check_round_trip("cuda", length, dim, dtype)


@both
@pytest.mark.parametrize("dim", DIMS)
def test_window(cupy: Any, dim: int, dtype: DType) -> None:
    for length in SIZES:
        check_window("cuda", length, dim, dtype)


class TestMaking:
    def test_where(self, cupy: Any) -> None:
        assert shared_backend("auto") is shared_backend("cuda")
        array = BlockedArray.empty(3, 5)
        assert isinstance(array.buffer, cupy.ndarray)
        assert (array.device, array.xp, array.is_writable) == ("cuda:0", cupy, True)
        rows = rows_of_size(3, 5, DType.FLOAT32)
        assert BlockedArray.from_rows(rows).device == "cpu"
        assert BlockedArray.from_rows(rows, backend="auto").device == "cuda:0"
        assert BlockedArray.from_rows(cupy.asarray(rows)).device == "cuda:0"
        with pytest.raises(
            InputError, match=r"from_rows: lives on cuda:0, but must be on .* CPU.*copy"
        ):
            BlockedArray.from_rows(cupy.asarray(rows), backend="cpu")

    @both
    def test_nothing(self, cupy: Any, dtype: DType) -> None:
        array = BlockedArray.zeros(0, 7, dtype, "cuda")
        assert (array.device, array.shape, array.nbytes) == ("cuda:0", (0, 7), 0)
        array[:] = cupy.zeros((0, 7))
        array[:] = 1.0
        assert array.to_rows().shape == (0, 7)
        assert array.copy()[:0].shape == (0, 7)
        assert [chunk.shape[0] for chunk in array.chunks] == [0] * len(array.chunks)
        assert BlockedArray.wrap(cupy.zeros(0, dtype.value), 3).shape == (0, 3)
        assert not array.overlaps(array)

    @pytest.mark.parametrize("dtype", ["f2", "f8", "i1", "u2", "i8"])
    def test_other_types(self, cupy: Any, dtype: str) -> None:
        rows = np.arange(21).reshape(3, 7).astype(dtype)
        for target in ("float32", "float64"):
            array = BlockedArray.from_rows(cupy.asarray(rows), target)
            assert array.dtype == np.dtype(target)
            assert_array_equal(array.to_numpy(), rows)

    def test_other_strides(self, cupy: Any) -> None:
        rows = cupy.asarray(rows_of_size(40, 14, DType.FLOAT32))
        for chosen in (rows[::2, ::2], rows[::-1, 3:10], cupy.asfortranarray(rows[:, :5])):
            assert_array_equal(BlockedArray.from_rows(chosen).to_numpy(), chosen.get())

    @both
    def test_rows_that_begin_anywhere(self, cupy: Any, dtype: DType) -> None:
        """Contiguous rows are aligned to their scalars only."""
        for dim in (2, 3, 4, 7, 8):
            flat = cupy.arange(dim * 300 + 1, dtype=dtype.value)
            rows = flat[1:].reshape(300, dim)
            assert_array_equal(BlockedArray.from_rows(rows).to_numpy(), rows.get())


class TestWrap:
    @both
    @pytest.mark.parametrize("dim", [1, 3, 7, 10])
    def test_shares_memory(self, cupy: Any, dim: int, dtype: DType) -> None:
        where = placement(33, dim, dtype)
        rows = rows_of_size(33, dim, dtype)
        flat = np.zeros(where.size, dtype.value)
        flat[where.where] = rows
        on_device = cupy.asarray(flat)
        array = BlockedArray.wrap(on_device, dim)
        assert array.buffer.data.ptr == on_device.data.ptr
        assert_array_equal(array.to_numpy(), rows)
        array[3:30] = rows[:27]
        rows[3:30] = rows[:27].copy()
        assert_array_equal(on_device.get()[where.where], rows)
        assert_array_equal(memory(array)[where.pads], np.zeros(len(where.pads)))

    def test_alignment(self, cupy: Any) -> None:
        flat = cupy.zeros(41, "float32")
        assert BlockedArray.wrap(flat[1:], 1).shape == (40, 1)
        with pytest.raises(InputError, match="begins 4 bytes after a multiple of 16"):
            BlockedArray.wrap(flat[1:], 10)
        with pytest.raises(InputError, match="begins 4 bytes after a multiple of 8"):
            BlockedArray.from_dlpack(flat[1:].reshape(20, 2))


class TestDlpack:
    @pytest.mark.parametrize(
        ("dtype", "dim", "row"),
        [("float32", 2, 2), ("float32", 3, 4), ("float32", 4, 4), ("float64", 2, 2)],
    )
    def test_both_ways(self, cupy: Any, dtype: str, dim: int, row: int) -> None:
        rows = cupy.arange(33 * row, dtype=dtype).reshape(33, row)[:, :dim]
        array = BlockedArray.from_dlpack(rows)
        assert array.buffer.data.ptr == rows.data.ptr
        assert_array_equal(array.to_numpy(), rows.get())
        array[1:3] = -1.0
        array[4:6] = np.full((2, dim), -2.0)
        assert_array_equal(rows[:7, 0].get(), [0, -1, -1, 3 * row, -2, -2, 6 * row])
        back = cupy.from_dlpack(array)
        assert back.data.ptr == rows.data.ptr
        assert back.shape == (33, dim)
        assert array.__dlpack_device__() == (2, 0)

    def test_refused(self, cupy: Any) -> None:
        with pytest.raises(InputError, match=r"strides \(3, 1\) in scalars; they must be \(4, 1\)"):
            BlockedArray.from_dlpack(cupy.zeros((5, 3), "float32"))
        array = BlockedArray.zeros(3, 6, backend="cuda")
        with pytest.raises(BufferError, match=r"\.chunks, or \.to_rows\(\)"):
            cupy.from_dlpack(array)
        with pytest.raises(TypeError, match=r"to_numpy\(\)"):
            np.asarray(array)

    def test_torch(self, cupy: Any) -> None:
        torch = pytest.importorskip("torch")
        rows = torch.arange(40, dtype=torch.float32, device="cuda").reshape(10, 4)
        array = BlockedArray.from_dlpack(rows)
        array[2:4] = -1.0
        assert rows[2:4].cpu().tolist() == [[-1.0] * 4] * 2
        assert torch.from_dlpack(array).data_ptr() == rows.data_ptr()
        gradients = torch.ones((5, 6), device="cuda", dtype=torch.float64, requires_grad=True)
        with pytest.warns(UserWarning, match="requires_grad"):
            made = BlockedArray.from_rows(gradients)
        assert (made.device, made.dtype) == ("cuda:0", np.dtype("float64"))
        assert torch.from_dlpack(made.to_rows()).cpu().tolist() == [[1.0] * 6] * 5
        made[1:3] = torch.full((2, 6), 2.0)
        assert_array_equal(made.to_numpy()[:, 0], [1, 2, 2, 1, 1])


class TestAssigning:
    def test_between_devices(self, cupy: Any) -> None:
        host = BlockedArray.from_rows(rows_of_size(10, 5, DType.FLOAT32))
        device = BlockedArray.zeros(10, 5, backend="cuda")
        device[2:6] = host[4:8]
        assert_array_equal(device[2:6].to_numpy(), host[4:8].to_numpy())
        for value in (device[:4], device.to_rows()[:4], cupy.asarray(1.0)):
            with pytest.raises(InputError, match=r"\[4:8\]: lives on cuda:0"):
                host[4:8] = value

    def test_numbers(self, cupy: Any) -> None:
        array = BlockedArray.zeros(4, 7, "float64", "cuda")
        for row, value in enumerate((1, np.float32(2.0), np.array(3.0), cupy.asarray(4.0))):
            array[row] = value
        assert_array_equal(array.to_numpy(), np.outer([1, 2, 3, 4], np.ones(7)))
        assert_array_equal(array[-1].get(), np.full(7, 4.0))

    def test_rows_of_the_memory_that_is_written(self, cupy: Any) -> None:
        rows = cupy.arange(4000, dtype="float32").reshape(1000, 4)
        expected = rows.get()
        array = BlockedArray.from_dlpack(rows)
        array[1:] = rows[:-1]
        assert_array_equal(array.to_numpy()[1:], expected[:-1])

    @both
    @pytest.mark.parametrize("dim", [3, 10])
    def test_enqueued_in_the_current_stream(self, cupy: Any, dim: int, dtype: DType) -> None:
        """Captured in a graph, which anything in another stream or a wait would break."""
        old, new = (cupy.asarray(rows_of_size(100, dim, dtype, seed)) for seed in (1, 2))
        array = BlockedArray.from_rows(old)

        def change() -> None:
            array[10:20] = new[10:20]
            array[30:40] = 4.0
            array[60:70] = array[50:60]

        change()  # compiles
        array[:] = old
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.get_current_stream().synchronize()
        with stream:
            stream.begin_capture()
            change()
            graph = stream.end_capture()
        expected = old.get()
        assert_array_equal(array.to_numpy(), expected)
        graph.launch(stream)
        stream.synchronize()
        expected[10:20] = new.get()[10:20]
        expected[30:40] = 4.0
        expected[60:70] = expected[50:60]
        assert_array_equal(array.to_numpy(), expected)


def test_text(cupy: Any) -> None:
    array = BlockedArray.from_rows(cupy.arange(14, dtype="float32").reshape(7, 2))
    lines = repr(array).splitlines()
    assert lines[0] == "BlockedArray(shape=(7, 2), dtype=float32, device=cuda:0, chunks=2)"
    assert lines[-1] == " [12. 13.]]"
    assert "<td>13</td></tr></table>" in array._repr_html_()
