"""Bad input says which kernel and argument, what is wrong, what is allowed; `out` stays as it was.

On the CPU backend and on generated CUDA in the harness.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_array_equal

import caspar
from caspar.codegen.source import KernelSource
from caspar.errors import InputError, KernelError, ResourceError, UnsupportedFunctionError
from caspar.kernels.compiled import KernelCache
from caspar.kernels.kernel import Kernel
from caspar.kernels.recipes import RecipeBook
from caspar.memory.patterns import WriteUnique
from caspar.runtime.backend import Kernel as BackendKernel
from caspar.runtime.cpu import CpuBackend
from tests.harness import HarnessError
from tests.harness_backend import HarnessBackend
from tests.kernels.test_convert import Exported
from tests.kernels.test_patterns import backends, needs_compiler, use_backend

BlockedArray = caspar.BlockedArray
V3In = Annotated[sf.V3, caspar.ReadSequential]
V3Out = Annotated[sf.V3, caspar.WriteSequential]


@caspar.kernel
def moved(x: V3In, shift: Annotated[sf.V3, caspar.ReadUnique]) -> V3Out:
    """Points moved by one shift."""
    return x + shift


@caspar.kernel
def picked(x: Annotated[sf.V3, caspar.ReadIndexed]) -> Annotated[sf.V3, caspar.WriteIndexed]:
    """Points picked by number and put by number."""
    return x


@caspar.kernel
def gathered(x: Annotated[sf.V3, caspar.ReadIndexed]) -> V3Out:
    """Points picked by number."""
    return x


@caspar.kernel
def added(x: V3In) -> Annotated[sf.V3, caspar.AddIndexed]:
    """Points added by number."""
    return x


@caspar.kernel
def split(x: V3In) -> tuple[V3Out, V3Out]:
    """Points, and their negatives."""
    return x, -x


@caspar.kernel
def total(x: V3In) -> Annotated[sf.V3, caspar.AddSum]:
    """The sum of points."""
    return x


@caspar.kernel
def steps(x: Annotated[caspar.Pair[sf.V3], caspar.ReadPair]) -> V3Out:
    """From each point to the next."""
    return x[1] - x[0]


@caspar.kernel
def strided(x: Annotated[sf.V3, caspar.ReadStrided]) -> V3Out:
    """Some of the points."""
    return x


@caspar.kernel
def padded(x: Annotated[sf.V3, caspar.ReadStridedWithDefault((1, 2, 3))]) -> V3Out:
    """Some of the points, and others where there are none."""
    return x


@caspar.kernel
def copied(x: Annotated[sf.V3, caspar.ReadUnique]) -> Annotated[sf.V3, WriteUnique]:
    """One point."""
    return x


@caspar.kernel
def constant(x: Annotated[sf.V3, caspar.ReadUnique]) -> Annotated[sf.V3, caspar.WriteSum]:
    """As many times the point as there are items."""
    return x


KERNELS = (moved, picked, gathered, added, split, total, steps, strided, padded, copied, constant)


@pytest.fixture(autouse=True)
def _fresh_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel keeps holds for one backend."""
    for kernel in KERNELS:
        monkeypatch.setattr(kernel, "cache", KernelCache())
        monkeypatch.setattr(kernel, "_recipes", RecipeBook(kernel.name))


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run kernels of arrays on the host there."""
    name: str = request.param
    use_backend(monkeypatch, HarnessBackend() if name == "harness" else CpuBackend())
    return name


def points(length: int = 5, dtype: Any = np.float64) -> Any:
    return np.arange(1, 1 + 3 * length).reshape(length, 3).astype(dtype)


SHIFT = np.array([[10.0, 20.0, 30.0]])


def fails(call: Callable[[], Any], *says: str, kind: type[Exception] = InputError) -> None:
    """The call raises an error that says all this."""
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    missing = [part for part in says if part not in message]
    assert not missing, f"{missing} not in: {message}"


@backends
@pytest.mark.usefixtures("backend")
class TestNames:
    def test_of_arguments(self) -> None:
        takes = "it takes x, shift"
        fails(lambda: moved(points()), "kernel moved: shift missing", takes)
        fails(lambda: moved(), "x, shift missing", takes)
        fails(lambda: moved(points(), SHIFT, SHIFT), "3 arguments", takes)
        fails(
            lambda: moved(points(), shfit=SHIFT),
            "unknown argument 'shfit' (did you mean 'shift'?)",
            takes,
        )
        fails(lambda: moved(points(), SHIFT, y=1), "unknown argument 'y'; it takes")
        fails(lambda: moved(points(), SHIFT, x=points()), "moved, argument x: passed twice")

    def test_of_what_an_access_takes(self) -> None:
        x, out = points(), points()
        index = np.arange(5)

        def call(operand: Any, target: Any) -> Callable[[], Any]:
            return lambda: picked(operand, out=target)

        good = {"values": x, "index": index}
        where = "kernel picked, argument x: "
        takes = "ReadIndexed takes values, index"
        fails(call(x, good), where, "ReadIndexed needs index; pass {'values': array, 'index'")
        fails(call({"values": x}, good), where, "'index' is missing", takes)
        fails(call({"values": x, "index": None}, good), where, "'index' is missing", takes)
        fails(call({"index": index}, good), where, "'values' is missing")
        fails(call({**good, "indx": 1}, good), where, "'indx' (did you mean 'index'?)", takes)
        fails(call({**good, "size": 5}, good), where, "unknown name 'size'", takes)
        where = "kernel picked, output out: "
        takes = "WriteIndexed takes values, size, index"
        fails(call(good, out), where, "WriteIndexed needs index")
        fails(call(good, None), where, "WriteIndexed needs index; pass {'index': ...}")
        fails(call(good, {"values": out}), where, "'index' is missing", takes)
        fails(call(good, {"index": index}), where, "pass 'values' or 'size' beside 'index'")
        fails(call(good, {"vales": out}), where, "'vales' (did you mean 'values'?)", takes)
        fails(
            call(good, {**good, "size": 5}),
            where,
            "both 'values' and 'size'; 'size' is for a new array",
        )
        assert_array_equal(out, points())

    def test_of_outputs(self) -> None:
        x, out = points(), points()
        where = "kernel split: "
        takes = "out= takes a mapping of out0, out1, or a sequence of 2; got "
        fails(
            lambda: split(x, out={"out0": out, "otu1": out}),
            where,
            "unknown output 'otu1' (did you mean 'out1'?); its outputs are out0, out1",
        )
        fails(lambda: split(x, out=out), where, takes, "ndarray")
        fails(lambda: split(x, out=[out]), where, takes, "list of 1")
        assert_array_equal(out, points())


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
            "say dtype='float32' or 'float64'",
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
        fails(lambda: moved(points(), index), "argument shift: SharedIndices are no values")

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
            "argument x: tests.Tensor with requires_grad; a kernel is not differentiable",
            "pass .detach()",
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
            "not differentiable: call it outside",
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
            (points(dtype=int), "dtype int64, which results would be rounded to; allowed are"),
            (points(dtype=np.float16), "dtype float16, which results would be rounded to"),
            (points(dtype=np.longdouble), "which results would be rounded to"),
            (points() > 0, "dtype bool"),
            (points(dtype=complex), "dtype complex128"),
            (points(dtype=np.float32), "float32, but kernel moved, argument x is float64"),
            (points().tolist(), "list cannot be written to; pass an array of NumPy, CuPy or torch"),
            (np.float64(1.0), "numpy.float64 cannot be written to"),
            (points()[:, :2], "shape (5, 2); expected (n, 3)"),
            (np.lib.stride_tricks.as_strided(np.zeros(3), (5, 3), (0, 8)), "one place in memory"),
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
            "kernel moved: its arguments stand for different numbers of items: "
            "x for 5 (rows), out for 4 (rows); pass arrays that agree, or count=",
        )
        assert_array_equal(out, 0.0)
        fails(lambda: moved(points(), SHIFT, out={"size": 4}), "4 objects; WriteSequential over 5")
        fails(
            lambda: moved(points(), SHIFT, out={"size": 6}),
            "output out: size=6, but WriteSequential over 5 items gives 5 objects; leave size away",
        )
        for size in (-1, 2.0, "5", True):
            fails(
                partial(moved, points(), SHIFT, out={"size": size}),
                f"moved, output out: size={size!r}; allowed are integers of 0 to 2,147,483,647",
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
            "output out: arrays of jax never change; leave it away",
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


@backends
class TestIndices:
    @pytest.mark.parametrize(
        ("index", "says"),
        [
            ([0, 1, 5, 9], "index 5 at entry 2 is out of range; there are 5 objects, so 0 to 4"),
            ([0, -1, 2], "index -1 at entry 1 is out of range"),
            ([0, 2**31], f"index {2**31} at entry 1 is out of range"),
            ([2**32 + 1], f"index {2**32 + 1} at entry 0 is out of range"),
            ([1, 1 - 2**32], f"index {1 - 2**32} at entry 1 is out of range"),
            (np.array([0, 2**32 - 1], np.uint32), f"index {2**32 - 1} at entry 1"),
            (np.array([2**63], np.uint64), f"index {2**63} at entry 0"),
            (np.array([0, -1], np.int8), "index -1 at entry 1"),
            (np.array([0.0, 1.0]), "dtype float64; indices must be integers"),
            (np.array([True, False]), "dtype bool; indices must be integers"),
            (np.zeros((3, 1), int), "shape (3, 1); indices are one-dimensional, (n,)"),
            (3, "shape (); indices are one-dimensional, (n,)"),
            ("first", "dtype <U5; indices must be integers"),
        ],
        ids=str,
    )
    def test_out_of_range(self, backend: str, index: Any, says: str) -> None:
        fails(
            lambda: gathered({"values": points(), "index": index}),
            "kernel gathered, argument x, index: ",
            says,
        )
        count = np.size(index)
        out = np.zeros((5, 3))
        target = {"values": out, "index": index}
        for kernel in (picked, added):
            operand = {"values": points(), "index": np.zeros(count, int)}
            given = operand if kernel is picked else points(count)
            fails(
                partial(kernel, given, out=target),
                f"kernel {kernel.name}, output out, index: ",
                says,
            )
        assert_array_equal(out, 0.0)

    def test_of_no_objects(self, backend: str) -> None:
        fails(
            lambda: gathered({"values": points(0), "index": [0]}),
            "index 0 at entry 0 is out of range; there are 0 objects, so no index is allowed",
        )

    def test_named_twice(self, backend: str) -> None:
        out = np.zeros((5, 3))
        target = {"values": out, "index": [4, 0, 3, 0]}
        for kernel, operand, name in (
            (picked, {"values": points(), "index": np.arange(4)}, "WriteIndexed"),
            (added, points(4), "AddIndexed"),
        ):
            fails(
                partial(kernel, operand, out=target),
                f"kernel {kernel.name}, output out, index: object 0 is named by more than one item",
                "at entry 3 for example",
                f"{name} needs indices without repetition, AddSharedSum does not",
            )
        assert_array_equal(out, 0.0)

    def test_not_one_for_each_item(self, backend: str) -> None:
        operand = {"values": points(), "index": np.arange(3)}
        fails(
            lambda: gathered(operand, out=np.zeros((4, 3))),
            "x for 3 (length of its index), out for 4 (rows)",
        )
        fails(lambda: gathered(operand, count=2), "argument x: 3 indices for 2 items")
        fails(lambda: gathered(operand, count=4), "argument x: 3 indices for 4 items")

    def test_prepared_for_more_objects(self, backend: str) -> None:
        index = caspar.SharedIndices([0, 7], 8, "cpu")
        fails(
            lambda: gathered({"values": points(), "index": index}),
            "argument x, index: index 7 at entry 1 is out of range; there are 5 objects",
        )

    def test_are_not_looked_at_without_check(
        self, backend: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        index = np.array([4, 0, 3])

        def never(*arguments: Any) -> None:
            raise AssertionError

        for kind in (CpuBackend, HarnessBackend):
            monkeypatch.setattr(kind, "first_outside", never)
            monkeypatch.setattr(kind, "first_repeated", never)
        operand = {"values": points(), "index": index}
        assert_array_equal(gathered(operand, check=False), points()[index])
        found = picked(operand, out={"size": 5, "index": index}, check=False)
        assert_array_equal(found[index], points()[index])
        with pytest.raises(AssertionError):
            gathered(operand)

    def test_without_check_nothing_stops_what_is_out_of_range(self, backend: str) -> None:
        if backend != "harness":
            pytest.skip("other memory would be read")
        operand = {"values": points(), "index": [0, 5]}
        fails(lambda: gathered(operand, check=False), "out of bounds", kind=HarnessError)


@backends
@pytest.mark.usefixtures("backend")
class TestCounts:
    def test_that_arrays_do_not_have(self) -> None:
        out = np.zeros((5, 3))
        fails(
            lambda: moved(points(), SHIFT, out=out, count=6),
            "argument x: 5 objects; ReadSequential over 6 items needs 6",
        )
        fails(lambda: steps(points(), count=5), "5 objects; ReadPair over 5 items needs 6")
        fails(lambda: steps(points(1), count=1), "1 objects; ReadPair over 1 items needs 2")
        fails(
            lambda: strided({"values": points(), "stride": 2}, count=4),
            "argument x: 5 objects; ReadStrided over 4 items needs 7",
        )
        assert_array_equal(out, 0.0)
        moved(points(), SHIFT, out=out, count=2)
        assert_array_equal(out, np.concatenate([(points() + SHIFT)[:2], np.zeros((3, 3))]))

    @pytest.mark.parametrize("count", [-1, 2.0, "2", True, [2], 2**31], ids=str)
    def test_that_are_none(self, count: Any) -> None:
        fails(
            lambda: moved(points(), SHIFT, count=count),
            f"kernel moved: count={count!r}; allowed are integers of 0 to 2,147,483,647",
        )

    def test_that_are_more_than_one(self) -> None:
        assert_array_equal(copied(SHIFT), SHIFT)
        says = "output out: WriteUnique is for 1 item, but there are 4"
        fails(lambda: copied(SHIFT, count=4), says)

    def test_that_nobody_says(self) -> None:
        fails(
            lambda: constant(SHIFT),
            "kernel constant: no argument says how many items there are; pass count=",
        )
        assert_array_equal(constant(SHIFT, count=3), 3 * SHIFT)
        four: Any = np.int64(4)
        assert_array_equal(constant(SHIFT, count=four), 4 * SHIFT)

    def test_of_none(self) -> None:
        empty = points(0)
        assert moved(empty, SHIFT).shape == (0, 3)
        assert moved(points(), SHIFT, count=0).shape == (0, 3)
        assert moved(empty, empty).shape == (0, 3)  # nobody reads the shift
        assert steps(empty).shape == steps(points(1)).shape == (0, 3)
        assert gathered({"values": empty, "index": []}).shape == (0, 3)
        assert_array_equal(total(empty), np.zeros((1, 3)))
        assert_array_equal(constant(SHIFT, count=0), np.zeros((1, 3)))
        out = points(1)
        assert_array_equal(total(empty, out=out), points(1))
        fails(lambda: moved(points(), empty), "argument shift: 0 objects; ReadUnique over 5 items")
        fails(lambda: total(empty, out=points(0)), "0 objects; AddSum over 0 items needs 1")


@backends
@pytest.mark.usefixtures("backend")
class TestStrides:
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"stride": 0}, "stride=0; it may be negative, not 0"),
            ({"stride": 2.0}, "stride=2.0; it must be an integer"),
            ({"stride": "2"}, "stride='2'; it must be an integer"),
            ({"stride": None}, "stride=None; it must be an integer"),
            ({"offset": 0.5}, "offset=0.5; it must be an integer"),
            ({"offset": np.arange(2)}, "offset=array([0, 1]); it must be an integer"),
            ({"stride": 2**31}, "stride=2147483648; it must fit in int32"),
            ({"offset": -(2**40)}, "offset=-1099511627776; it must fit in int32"),
        ],
        ids=str,
    )
    def test_that_are_none(self, options: Any, says: str) -> None:
        operand = {"values": points(), **options}
        for kernel in (strided, padded):
            fails(
                partial(kernel, operand, count=1),
                f"kernel {kernel.name}, argument x: ",
                says,
            )
        fails(lambda: strided(operand), "argument x: ", says)

    def test_that_leave_the_array(self) -> None:
        def call(offset: int, stride: int, count: int | None = None) -> Any:
            return strided({"values": points(), "offset": offset, "stride": stride}, count=count)

        first = "the first object is 0 (ReadStridedWithDefault reads a default"
        fails(lambda: call(-1, 1), "argument x: offset=-1; ", first)
        fails(lambda: call(-1, 1, 3), "offset=-1 and stride=1 over 3 items reach object -1", first)
        fails(lambda: call(4, -2, 4), "offset=4 and stride=-2 over 4 items reach object -2", first)
        fails(lambda: call(5, -1, 3), "5 objects; ReadStrided over 3 items needs 6")
        fails(lambda: call(1, 2, 3), "5 objects; ReadStrided over 3 items needs 6")
        assert_array_equal(call(4, -2), points()[4::-2])
        assert_array_equal(call(4, -2, 3), points()[4::-2])
        assert_array_equal(call(1, 2), points()[1::2])
        assert call(5, 1).shape == (0, 3)
        assert call(5, -1).shape == (0, 3)

    def test_that_reach_beyond_int32(self) -> None:
        operand = {"values": points(), "stride": 2**30}
        fails(lambda: padded(operand, count=3), "numbers of objects must fit in int32")
        assert_array_equal(padded(operand, count=1), points(1))


@backends
@pytest.mark.usefixtures("backend")
class TestBinding:
    def test_block_sizes(self) -> None:
        x, shift = BlockedArray.from_rows(points()), BlockedArray.from_rows(SHIFT)
        fails(lambda: moved.bind(x, shift, block_size=7), "moved: block_size=7; its accesses allow")
        size: Any
        for size in (0, -32, 64.0, "64"):
            fails(
                partial(moved.bind, x, shift, block_size=size),
                f"kernel moved: block_size={size!r}; allowed are integers of 1 to",
            )

    def test_what_would_be_converted(self) -> None:
        x = BlockedArray.from_rows(points())
        fails(
            lambda: moved.bind(x, SHIFT),
            "argument shift: a bound kernel needs a BlockedArray, got ndarray; convert it once",
        )
        shift = BlockedArray.from_rows(SHIFT)
        fails(lambda: moved.bind(x, shift, out=points()), "output out: a bound kernel needs")


class SmallDevice(HarnessBackend):
    """One that cannot hold large blocks."""

    def load(
        self, sources: Sequence[KernelSource], block_size: int | None = None
    ) -> Mapping[str, BackendKernel]:
        if block_size is not None and block_size > 512:
            raise ResourceError(f"kernel {sources[0].name}: a block of {block_size} threads")
        return super().load(sources, block_size)


@needs_compiler
def test_block_sizes_that_do_not_fit_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path))
    use_backend(monkeypatch, SmallDevice())
    assert sorted(moved.tune(points(), SHIFT, runs=1).times_s) == [32, 64, 128, 256, 512]


def error_of(kernel: Kernel, kind: type[Exception]) -> str:
    """Of a kernel that is called with points; its output stays as it is."""
    out = points()
    with pytest.raises(kind) as caught:
        kernel(points(), out=out)
    assert_array_equal(out, points())
    return str(caught.value)


@backends
@pytest.mark.usefixtures("backend")
class TestFunctions:
    def test_that_have_no_rule(self) -> None:
        @caspar.kernel
        def weighted(x: V3In) -> V3Out:
            return x * sf.sympy.gamma(x[0])

        message = error_of(weighted, UnsupportedFunctionError)
        assert "kernel weighted (" in message
        assert "'gamma'" in message
        assert "return x * sf.sympy.gamma(x[0])" in message

    def test_that_are_wrong(self) -> None:
        @caspar.kernel
        def clipped(x: V3In) -> V3Out:
            return x if x[0] > 0 else -x

        message = error_of(clipped, KernelError)
        assert "kernel clipped" in message
        assert "return x if x[0] > 0 else -x" in message


def test_an_error_comes_again_after_a_call_that_was_right() -> None:
    """Calls that look like an earlier one are not planned again; these look different."""
    x, shift = BlockedArray.from_rows(points()), BlockedArray.from_rows(SHIFT)
    for _ in range(3):
        assert_array_equal(moved(x, shift).to_rows(), points() + SHIFT)
        fails(lambda: moved(x, x), "argument shift: 5 objects, but ReadUnique")
        fails(lambda: moved(x, shift, out=x[:4]), "x for 5 (rows), out for 4 (rows)")
        fails(lambda: moved(x, shift, count=-1), "count=-1")
        fails(lambda: moved(x, shift, count=6), "ReadSequential over 6 items needs 6")
        operand = {"values": x, "index": np.array([0, 4], np.int32)}
        assert_array_equal(gathered(operand).to_rows(), points()[[0, 4]])
        operand["index"] = np.array([0, 5], np.int32)
        fails(partial(gathered, operand), "index 5 at entry 1 is out of range")
