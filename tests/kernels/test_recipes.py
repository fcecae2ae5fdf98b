"""Calls like an earlier one: the same result as a planned call, on whatever arrays."""

import gc
import weakref
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.kernels.call.plan import CallPlan, plan_call
from caspar.kernels.kernel import Kernel

RNG = np.random.default_rng(0)


def scaled_kernel() -> Kernel:
    """Reads by index; writes by items, adds to some objects and to one."""

    @caspar.kernel
    def scaled(
        x: Annotated[sf.V5, caspar.ReadIndexed],
        factor: Annotated[sf.Symbol, caspar.ReadUnique],
    ) -> tuple[
        Annotated[sf.V5, caspar.WriteSequential],
        Annotated[sf.Symbol, caspar.AddStrided],
        Annotated[sf.V5, caspar.WriteSum],
    ]:
        return factor * x, x[0], x

    return scaled


class Planned:
    """Counts the calls that are planned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0

        def counted(*args: Any) -> CallPlan:
            self.count += 1
            return plan_call(*args)

        monkeypatch.setattr("caspar.kernels.call.calls.plan_call", counted)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Planned:
    return Planned(monkeypatch)


def check(kernel: Kernel, count: int, *, blocked: bool) -> None:
    """One call on new arrays, compared with NumPy."""
    x = RNG.integers(-9, 9, (40, 5)).astype(float)
    index = RNG.integers(0, 40, count).astype(np.int32)
    factor = np.array([[3.0]])
    values = caspar.BlockedArray.from_rows(x) if blocked else x
    one = caspar.BlockedArray.from_rows(factor) if blocked else factor
    rows, sums, total = kernel(
        x={"values": values, "index": index},
        factor=one,
        out={"out1": {"stride": 2, "size": 2 * count}},
    )
    expected = np.zeros(2 * count)
    expected[::2] = x[index, 0]
    kind = caspar.BlockedArray if blocked else np.ndarray
    assert isinstance(rows, kind)
    np.testing.assert_array_equal(np.asarray(rows), 3 * x[index])
    np.testing.assert_array_equal(np.asarray(sums).reshape(-1), expected)
    np.testing.assert_array_equal(np.asarray(total), x[index].sum(axis=0, keepdims=True))


@pytest.mark.parametrize("blocked", [False, True])
def test_the_second_call_is_not_planned(planned: Planned, blocked: bool) -> None:
    kernel = scaled_kernel()
    for _ in range(4):
        check(kernel, 300, blocked=blocked)
    assert planned.count == 1
    check(kernel, 301, blocked=blocked)
    assert planned.count == 2
    check(kernel, 300, blocked=blocked)
    assert planned.count == 2


def test_indices_are_checked_each_time() -> None:
    kernel = scaled_kernel()
    x, factor, index = np.ones((4, 5)), np.ones((1, 1)), np.zeros(9, np.int32)
    for _ in range(2):
        kernel(x={"values": x, "index": index}, factor=factor)
    for number in (4, -1):
        wrong = index.copy()
        wrong[5] = number
        match = f"kernel scaled, argument x, index: index {number} at entry 5 is out of range"
        with pytest.raises(caspar.errors.InputError, match=match):
            kernel(x={"values": x, "index": wrong}, factor=factor)


def test_what_is_made_of_an_index_is_made_each_time() -> None:
    @caspar.kernel
    def spread(
        x: Annotated[sf.V2, caspar.ReadIndexed],
    ) -> Annotated[sf.V2, caspar.AddSharedSum]:
        return x

    x = RNG.integers(-9, 9, (5, 2)).astype(float)
    for seed in range(4):
        index = np.random.default_rng(seed).integers(0, 5, 60).astype(np.int32)
        found = spread({"values": x, "index": index}, out={"index": index, "size": 5})
        expected = np.zeros((5, 2))
        np.add.at(expected, index, x[index])
        np.testing.assert_array_equal(found, expected)


def test_repeated_indices_are_found_each_time() -> None:
    @caspar.kernel
    def scatter(
        x: Annotated[sf.V2, caspar.ReadSequential],
    ) -> Annotated[sf.V2, caspar.WriteIndexed]:
        return x

    x, index = np.ones((3, 2)), np.arange(3, dtype=np.int32)
    for _ in range(2):
        scatter(x, out={"index": index, "size": 3})
    with pytest.raises(caspar.errors.InputError, match="named by more than one item"):
        scatter(x, out={"index": np.zeros(3, np.int32), "size": 3})


def test_outputs_that_are_passed_are_written_to(planned: Planned) -> None:
    kernel = scaled_kernel()
    for _ in range(3):
        x = caspar.BlockedArray.from_rows(RNG.normal(size=(20, 5)))
        one = caspar.BlockedArray.from_rows(np.full((1, 1), 2.0))
        index = np.arange(20, dtype=np.int32)
        sums = caspar.BlockedArray.zeros(20, 1, "float64", "cpu")
        for number in (1, 2):
            found = kernel(
                {"values": x, "index": index},
                one,
                out={"out1": {"values": sums}},
            )
            assert found[1] is sums
            np.testing.assert_allclose(sums.to_numpy()[:, 0], number * x.to_numpy()[:, 0])
    assert planned.count == 1


def test_what_overlaps_is_refused_later_too() -> None:
    @caspar.kernel
    def shifted(
        x: Annotated[sf.V2, caspar.ReadStrided],
    ) -> Annotated[sf.V2, caspar.WriteSequential]:
        return x

    x = caspar.BlockedArray.from_rows(np.ones((10, 2)))
    out = caspar.BlockedArray.zeros(10, 2, "float64", "cpu")
    for _ in range(2):
        shifted(x, out=out)
    with pytest.raises(caspar.errors.InputError, match="overlaps"):
        shifted(x, out=x)


def test_arrays_of_a_call_are_not_kept_alive() -> None:
    kernel = scaled_kernel()
    x = np.ones((30, 5))
    reference = weakref.ref(x)
    index = np.zeros(3, np.int32)
    kernel({"values": x, "index": index}, np.ones((1, 1)))
    del x
    gc.collect()
    assert reference() is None


def test_results_are_arrays_of_their_own() -> None:
    kernel = scaled_kernel()
    index = np.zeros(5, np.int32)

    def call(value: float) -> np.ndarray:
        values = {"values": np.full((2, 5), value), "index": index}
        rows = kernel(values, np.ones((1, 1)))[0]
        assert isinstance(rows, np.ndarray)
        return rows

    first, second, third = call(1.0), call(2.0), call(3.0)
    assert (first == 1.0).all()
    assert (second == 2.0).all()
    assert (third == 3.0).all()


def test_other_types_and_layouts_are_other_calls() -> None:
    @caspar.kernel
    def doubled(
        x: Annotated[sf.V3, caspar.ReadSequential],
    ) -> Annotated[sf.V3, caspar.WriteSequential]:
        return 2 * x

    x = RNG.normal(size=(8, 3))
    for given in (x, x.astype(np.float32), x[::-1], np.asfortranarray(x), x[:4], x):
        for _ in range(2):
            np.testing.assert_array_equal(doubled(given), 2 * np.asarray(given))
    for _ in range(2):
        assert doubled(x, dtype="float32").dtype == np.float32
