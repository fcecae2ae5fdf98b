"""Bad indices, counts and strides: the error says which and what is allowed; `out` stays as it was.

On the CPU backend and on generated CUDA in the harness.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import caspar
from caspar.runtime.cpu.backend import CpuBackend
from tests.harness import HarnessError
from tests.harness_backend import HarnessBackend
from tests.kernels.bad_input import (
    SHIFT,
    _fresh_kernels,
    added,
    backend,
    constant,
    copied,
    fails,
    gathered,
    moved,
    padded,
    picked,
    points,
    steps,
    strided,
    total,
)
from tests.kernels.test_patterns import backends

__all__ = ["_fresh_kernels", "backend"]


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
                "for example at entry 3",
                f"{name} allows each object once, use AddSharedSum for more",
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
            f"kernel moved: count={count!r}; it must be an integer from 0 to 2,147,483,647",
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
            ({"stride": 0}, "stride=0; it must not be 0"),
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
