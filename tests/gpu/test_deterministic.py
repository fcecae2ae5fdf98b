"""The deterministic mode on the device: the same bits in every run."""

import numpy as np
import pytest

from tests.kernels.test_deterministic import SUMS, sums_of

pytestmark = pytest.mark.gpu
pytest.importorskip("cupy")


def test_runs_have_the_same_bits() -> None:
    first = sums_of(deterministic=True)
    for _ in range(5):
        for name, one, other in zip(SUMS, first, sums_of(deterministic=True), strict=True):
            np.testing.assert_array_equal(one, other, name)
