"""The deterministic mode: equal input gives equal bits, in whatever order threads take turns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import caspar
from tests.harness.schedule import DEFAULT_SCHEDULES
from tests.harness_backend import HarnessBackend
from tests.kernels.patterns import WRITE_CASES, write_kernel
from tests.kernels.test_patterns import needs_compiler, use_backend

SUMS = (
    "shared",
    "prepared",
    "total",
    "added_total",
    "into_unique",
    "pair",
    "added_pair",
    "block_sum",
)
COUNT, DIM, NUM_OBJECTS = 1500, 3, 40


def sums_of(deterministic: bool, names: Sequence[str] = SUMS) -> list[NDArray[Any]]:
    """Every sum of the same random numbers, rounded wherever they are added."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(COUNT, DIM)).astype(np.float32)
    index = rng.integers(0, NUM_OBJECTS, COUNT).astype(np.int32)
    given: dict[str, Any] = {
        "shared": {"index": index, "size": NUM_OBJECTS},
        "prepared": {"index": caspar.SharedIndices(index, NUM_OBJECTS)},
    }
    kernel = write_kernel(DIM, names, deterministic=deterministic)
    out = {f"out{number}": given[name] for number, name in enumerate(names) if name in given}
    return [np.asarray(result) for result in kernel(values, out=out)]


@needs_compiler
def test_the_order_of_threads_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for schedule in DEFAULT_SCHEDULES:
        use_backend(monkeypatch, HarnessBackend(schedule=schedule))
        results.append(sums_of(deterministic=True))
    for other in results[1:]:
        for name, first, second in zip(SUMS, results[0], other, strict=True):
            np.testing.assert_array_equal(first, second, name)


@needs_compiler
def test_without_it_the_order_of_blocks_does(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for schedule in DEFAULT_SCHEDULES:
        use_backend(monkeypatch, HarnessBackend(schedule=schedule))
        results.append(sums_of(deterministic=False, names=("shared",))[0])
    assert any((first != results[0]).any() for first in results[1:])
    for other in results:
        np.testing.assert_allclose(other, results[0], rtol=1e-4, atol=1e-4)


def test_on_the_processor_sums_are_always_in_order() -> None:
    expected = sums_of(deterministic=True)
    for deterministic in (True, False, False):
        for name, first, second in zip(SUMS, expected, sums_of(deterministic), strict=True):
            np.testing.assert_array_equal(first, second, name)


def test_all_sums_are_here() -> None:
    adds = {name for name, case in WRITE_CASES.items() if case.is_sum}
    assert adds - {"prepared_too", "added_block_sum"} <= set(SUMS)
