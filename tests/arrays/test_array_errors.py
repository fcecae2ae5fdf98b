"""Bad arrays: the error says which argument, what is wrong, what is allowed; `out` stays as it was.

On the CPU backend and on generated CUDA in the harness.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import caspar
from tests.arrays.test_convert import Exported
from tests.kernels.bad_input import (
    SHIFT,
    _fresh_kernels,
    backend,
    constant,
    fails,
    gathered,
    moved,
    points,
    split,
    steps,
    total,
)
from tests.kernels.test_patterns import backends

__all__ = ["_fresh_kernels", "backend"]

BlockedArray = caspar.BlockedArray


@backends
@pytest.mark.usefixtures("backend")
class TestArrays:
    @pytest.mark.parametrize(
        ("x", "says"),
        [
            (points()[:, :2], "shape (5, 2); expected (n, 3): 3 scalars an object"),
            (points().reshape(-1), "shape (15,); expected (n, 3)"),
            (points()[:, :, None], "shape (5, 3, 1); expected (n, 3)"),
            (np.float64(1.0), "shape (); expected (n, 3)"),
            ([[1.0, 2.0], [3.0]], "list cannot be read as an array"),
            (points(dtype=np.float16), "dtype float16; allowed are float32, float64 and integers"),
            (points(dtype=np.longdouble), "allowed are float32, float64 and integers: convert it"),
            (points(dtype=complex), "dtype complex128; allowed"),
            (points() > 0, "dtype bool; allowed"),
            (points(dtype=str), "dtype <U"),
            (points(dtype=object), "dtype object; allowed"),
            (points(dtype="M8[s]"), "dtype datetime64[s]; allowed"),
            ("points", "dtype <U6; allowed"),
            (None, "None; pass an array"),
            (object(), "dtype object"),
        ],
    )
    def test_shapes_and_types(self, x: Any, says: str) -> None:
        out = points()
        fails(lambda: moved(x, SHIFT, out=out), "kernel moved, argument x: ", says)
        assert_array_equal(out, points())

    def test_types_that_differ(self) -> None:
        out = points()
        fails(
            lambda: moved(points(dtype=np.float32), SHIFT, out=out),
            "argument shift: float64, but kernel moved, argument x is float32",
            "pass dtype='float32' or 'float64'",
        )
        swapped = points(dtype=">f4")
        fails(lambda: moved(swapped, SHIFT), "argument x is float32")
        assert_array_equal(out, points())
        fails(lambda: moved(points(), SHIFT, dtype="int32"), "moved: dtype int32; allowed are")
        found = moved(swapped, SHIFT, dtype="float32")
        assert found.dtype == np.float32
        assert_array_equal(found, points() + SHIFT)

    def test_blocked_arrays_of_other_sizes_and_types(self) -> None:
        x = BlockedArray.zeros(5, 4, "float64", "cpu")
        shift = BlockedArray.zeros(1, 3, "float64", "cpu")
        fails(
            lambda: moved(x, shift),
            "argument x: a BlockedArray of shape (5, 4) and float64; expected (n, 3) and float64",
        )
        fails(lambda: moved(x, shift, dtype="float32"), "float64; expected (n, 3) and float32")

    def test_other_devices(self) -> None:
        elsewhere = Exported(points(), (10, 0))
        fails(
            lambda: moved(elsewhere, SHIFT),
            "kernel moved, argument x: lives on DLPack device type 10",
            "copy it to one of them",
        )
        fails(lambda: moved(points(), SHIFT, out=elsewhere), "kernel moved, output out: lives on")
        fails(
            lambda: moved(points(), Exported(SHIFT, (2, 0))),
            "argument shift: lives on cuda:0, but kernel moved, argument x lives on the host",
            "put all arrays on one device",
        )
        index = Exported(np.arange(5), (2, 0))
        fails(lambda: gathered({"values": points(), "index": index}), "argument x: lives on cuda:0")

    def test_prepared_indices_are_no_values(self) -> None:
        index = caspar.SharedIndices([0, 1], 2, "cpu")
        fails(lambda: moved(points(), index), "argument shift: SharedIndices are not values")

    def test_more_than_one_object_for_all(self) -> None:
        fails(
            lambda: moved(points(), points()),
            "argument shift: 5 objects, but ReadUnique reads object 0 for all items",
            "array[:1]",
        )
        out = np.zeros((2, 3))
        fails(lambda: total(points(), out=out), "output out: 2 objects, but AddSum writes object 0")
        fails(lambda: total(points(), out={"size": 2}), "2 objects, but AddSum writes object 0")
        fails(
            lambda: constant(SHIFT, out=out, count=3),
            "2 objects, but WriteSum writes object 0 only; pass one",
        )
        assert_array_equal(out, 0.0)


class Tensor(Exported):
    """What a library has that knows gradients."""

    requires_grad = True
    dtype = np.dtype(np.float64)

    def detach(self) -> "Tensor":
        detached = Tensor(self._array)
        detached.requires_grad = False
        return detached


class Tracer:
    """What jax passes to a function that it traces."""

    shape = (5, 3)
    dtype = np.dtype(np.float32)


Tracer.__module__ = "jax._src.core"


class TestGradients:
    def test_are_not_dropped_in_silence(self) -> None:
        x = Tensor(points())
        fails(
            lambda: moved(x, SHIFT),
            "argument x: tests.Tensor with requires_grad; the result of a kernel carries no grad",
            "use caspar.torch.call(kernel, ...), or pass .detach()",
        )
        out = Tensor(points())
        fails(lambda: moved(points(), SHIFT, out=out), "output out: tests.Tensor with requires_gr")
        assert_array_equal(moved(x.detach(), SHIFT), points() + SHIFT)

    def test_of_torch(self) -> None:
        torch = pytest.importorskip("torch")
        x = torch.tensor(points(), requires_grad=True)
        fails(lambda: moved(x, SHIFT), "argument x: torch.Tensor with requires_grad")
        fails(lambda: moved(2 * x, SHIFT), "argument x: torch.Tensor with requires_grad")
        with torch.no_grad():
            assert_array_equal(moved(x, SHIFT).numpy(), points() + SHIFT)

    def test_of_jax(self) -> None:
        fails(
            lambda: moved(Tracer(), SHIFT),
            "argument x: jax.Tracer, a value that jax traces",
            "use caspar.jax.call(kernel, ...), or call it outside",
        )
        jax = pytest.importorskip("jax")
        for transform in (jax.jit, jax.grad, jax.vmap):
            traced = transform(lambda x: moved(x, SHIFT)[0, 0])
            fails(partial(traced, points(dtype=np.float32)), "argument x: jax.")


@backends
@pytest.mark.usefixtures("backend")
class TestOut:
    @pytest.mark.parametrize(
        ("out", "says"),
        [
            (points(dtype=int), "results cannot be written to dtype int64; allowed are"),
            (points(dtype=np.float16), "results cannot be written to dtype float16"),
            (points(dtype=np.longdouble), "results cannot be written to dtype"),
            (points() > 0, "dtype bool"),
            (points(dtype=complex), "dtype complex128"),
            (points(dtype=np.float32), "float32, but kernel moved, argument x is float64"),
            (points().tolist(), "list cannot be written to; pass an array of NumPy, CuPy or torch"),
            (np.float64(1.0), "numpy.float64 cannot be written to"),
            (points()[:, :2], "shape (5, 2); expected (n, 3)"),
            (
                np.lib.stride_tricks.as_strided(np.zeros(3), (5, 3), (0, 8)),
                "objects share memory",
            ),
        ],
        ids=["int", "half", "long", "bool", "complex", "single", "list", "scalar", "dim", "stride"],
    )
    def test_what_cannot_be_written_to(self, out: Any, says: str) -> None:
        before = np.array(out)
        fails(lambda: moved(points(), SHIFT, out=out), "kernel moved, output out: ", says)
        fails(lambda: moved(points(), SHIFT, out={"values": out}), "moved, output out: ", says)
        assert_array_equal(out, before)

    def test_other_lengths(self) -> None:
        out = np.zeros((4, 3))
        fails(
            lambda: moved(points(), SHIFT, out=out),
            "kernel moved: its arguments are for different numbers of items: "
            "x for 5 (rows), out for 4 (rows); pass arrays of matching lengths, or count=",
        )
        assert_array_equal(out, 0.0)
        fails(lambda: moved(points(), SHIFT, out={"size": 4}), "4 objects; WriteSequential over 5")
        fails(
            lambda: moved(points(), SHIFT, out={"size": 6}),
            "output out: size=6, but WriteSequential over 5 items gives 5 objects; leave size out",
        )
        for size in (-1, 2.0, "5", True):
            fails(
                partial(moved, points(), SHIFT, out={"size": size}),
                f"moved, output out: size={size!r}; it must be an integer from 0 to 2,147,483,647",
            )

    def test_memory_that_is_read_only(self) -> None:
        rows = points()
        rows.flags.writeable = False
        blocked = BlockedArray.wrap(np.frombuffer(bytes(32)), 1)
        jax_like = type("Array", (Exported,), {"__module__": "jaxlib"})(points())
        says = "kernel moved, output out: its memory is read-only; pass a copy"
        fails(lambda: moved(points(), SHIFT, out=rows), says)
        fails(lambda: moved(points(), SHIFT, out=Exported(rows)), says)
        fails(
            lambda: moved(points(), SHIFT, out=jax_like),
            "output out: arrays of jax cannot be written; leave it out",
        )
        x = BlockedArray.zeros(4, 3, "float64", "cpu")
        fails(lambda: split(x, out=(None, blocked)), "output out1: its memory is read-only")
        # what is only read may be so
        assert_array_equal(moved(rows, SHIFT), rows + SHIFT)
        assert_array_equal(moved(Exported(rows), SHIFT), rows + SHIFT)

    def test_two_outputs_in_one_place(self) -> None:
        x, memory = points(), np.full((8, 6), 7.0)
        overlapping = (
            (memory[:5, :3], memory[:5, :3]),
            (memory[:5, :3], memory[3:, :3]),
            (memory[:5, :3], memory[:5, 2:5]),
            (memory[:5, :3], memory[4::-1, :3]),
        )
        for first, second in overlapping:
            fails(
                partial(split, x, out=(first, second)),
                "kernel split, output out1: overlaps kernel split, output out0 in memory",
            )
        assert_array_equal(memory, 7.0)
        first, second = memory[:5, :3], memory[:5, 3:]  # side by side
        split(x, out=(first, second))
        assert_array_equal(first, x)
        assert_array_equal(second, -x)
        first, second = memory[:5, ::2], memory[:5, 1::2]  # between each other
        split(x, out=(first, second))
        assert_array_equal(first, x)
        assert_array_equal(second, -x)

    def test_rows_may_be_written_over_rows_that_are_read(self) -> None:
        memory = points(8)
        moved(memory[:5], SHIFT, out=memory[2:7])
        assert_array_equal(memory[2:7], points() + SHIFT)
        memory = points()
        moved(memory, SHIFT, out=memory)
        assert_array_equal(memory, points() + SHIFT)


class TestBlockedOut:
    """Blocked memory is written while it is read."""

    def test_over_what_is_read(self) -> None:
        whole = BlockedArray.from_rows(points(8))
        shift = BlockedArray.from_rows(SHIFT)
        says = "moved, output out: overlaps kernel moved, argument x in memory; pass another array"
        fails(lambda: moved(whole[:5], shift, out=whole[2:7]), says, "may be updated in place")
        fails(
            lambda: moved(whole[:1], whole[3:4], out=whole[3:4]),
            "output out: overlaps kernel moved, argument shift",
        )
        assert_array_equal(whole.to_rows(), points(8))
        moved(whole[:5], shift, out=whole[:5])  # item by item
        assert_array_equal(whole[:5].to_rows(), points() + SHIFT)
        moved(whole[:5], shift, out=whole[:5])  # as before
        assert_array_equal(whole[:5].to_rows(), points() + 2 * SHIFT)
        moved(whole[:2], shift, out=whole[6:])
        assert_array_equal(whole[6:].to_rows(), points(2) + 3 * SHIFT)

    def test_an_object_that_others_read(self) -> None:
        whole = BlockedArray.from_rows(points())
        index = np.arange(5, dtype=np.int32)[::-1].copy()
        fails(
            lambda: gathered({"values": whole, "index": index}, out=whole),
            "output out: overlaps kernel gathered, argument x",
        )
        fails(lambda: steps(whole, out=whole[:4]), "output out: overlaps kernel steps, argument x")
        assert_array_equal(whole.to_rows(), points())

    def test_two_outputs(self) -> None:
        x, whole = BlockedArray.from_rows(points(4)), BlockedArray.from_rows(points(8))
        fails(
            lambda: split(x, out=(whole[:4], whole[3:7])),
            "output out1: overlaps kernel split, output out0",
        )
        fails(lambda: split(x, out=(whole[:4], whole[:4])), "output out1: overlaps")
        assert_array_equal(whole.to_rows(), points(8))
        split(x, out=(whole[:4], whole[4:]))
        assert_array_equal(whole.to_rows(), np.concatenate([points(4), -points(4)]))

    def test_rows_of_its_own_memory(self) -> None:
        flat = np.zeros(4 * 3)
        blocked, rows = BlockedArray.wrap(flat, 3), flat.reshape(4, 3)
        fails(lambda: split(points(4), out=(blocked, rows)), "out1: overlaps kernel split, output")
        fails(lambda: split(points(4), out=(rows, blocked)), "out1: overlaps kernel split, output")
        assert_array_equal(flat, 0.0)
