"""Block sizes by measurement: the quickest is taken, and remembered."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.codegen.source import KernelSource
from caspar.kernels.call.compiled import MeasuredSizes, best_size
from caspar.kernels.kernel import Kernel
from caspar.runtime.backend import Kernel as LoadedKernel
from tests.harness_backend import HarnessBackend, HarnessKernel
from tests.kernels.test_patterns import needs_compiler, use_backend

X = np.arange(8.0).reshape(2, 4)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path))


def doubling() -> Kernel:
    """A kernel that no other test has tuned."""

    @caspar.kernel
    def doubled(
        x: Annotated[sf.V4, caspar.ReadSequential],
    ) -> Annotated[sf.V4, caspar.WriteSequential]:
        return 2 * x

    return doubled


class TimedBackend(HarnessBackend):
    """Pretends that blocks of 64 are the quickest."""

    loaded = 0

    def time(self, run: Callable[[], None], num_samples: int) -> list[float]:
        """Seconds by the block size of the last kernel that was loaded."""
        return [1e-6 if self.loaded == 64 else 1e-5] * num_samples

    def load(
        self,
        sources: Sequence[KernelSource],
        block_size: int | None = None,
        *,
        is_settled: bool = False,
    ) -> Mapping[str, LoadedKernel]:
        """Remember the size."""
        made = super().load(sources, block_size)
        for kernel in made.values():
            assert isinstance(kernel, HarnessKernel)
            self.loaded = kernel.block_size
        return made


@needs_compiler
def test_the_quickest_size_is_taken_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = TimedBackend()
    use_backend(monkeypatch, timed)
    kernel = doubling()
    np.testing.assert_array_equal(kernel(X), 2 * X)
    tuning = kernel.tune(X, runs=2)
    assert (tuning.chosen, tuning.best) == (256, 64)
    assert set(tuning.times_s) == {32, 64, 128, 256, 512, 1024}
    assert "blocks of 64 from now on" in str(tuning)
    np.testing.assert_array_equal(kernel(X), 2 * X)
    (used,) = {made.block_size for made in kernel.calls.cache.kernels.values()}
    assert used == 64
    again = doubling()
    np.testing.assert_array_equal(again(X), 2 * X)
    assert {made.block_size for made in again.calls.cache.kernels.values()} == {64}


def test_on_the_processor_there_is_one_size() -> None:
    tuning = doubling().tune(X, runs=2)
    assert tuning.best == tuning.chosen
    assert len(tuning.times_s) == 1


def test_small_gains_do_not_count() -> None:
    assert best_size({128: 0.99, 256: 1.0}, 256) == 256
    assert best_size({128: 0.9, 256: 1.0}, 256) == 128


def test_what_is_on_disk_may_be_broken(tmp_path: Path) -> None:
    MeasuredSizes().keep("key", 128)
    assert MeasuredSizes().find("key") == 128
    (path,) = (tmp_path / "tuned").iterdir()
    for damaged in (b"", path.read_bytes()[:-1], path.read_bytes() + b"9"):
        path.write_bytes(damaged)
        assert MeasuredSizes().find("key") is None


def test_no_items_cannot_be_measured() -> None:
    with pytest.raises(caspar.errors.InputError, match="there are no items"):
        doubling().tune(np.zeros((0, 4)))
