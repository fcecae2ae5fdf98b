"""Solvers made and run in several threads at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar

NUM_THREADS = 4


class Level(sf.V1): ...


@caspar.factor
def reading(
    level: Annotated[Level, caspar.TunableShared], value: Annotated[sf.V1, caspar.ConstSequential]
) -> sf.V1:
    return level - value


def _solve(start: float) -> float:
    arrays = {
        "Level": np.array([[start]]),
        "reading": {"level": np.zeros(3, dtype=int), "value": np.array([1.0, 2.0, 6.0])},
    }
    return float(caspar.Solver([reading], backend="cpu").solve(arrays).values["Level"][0, 0])


def test_threads_compile_and_solve_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path))
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = list(pool.map(_solve, [0.0, 1.0, 5.0, 9.0]))
    assert found == pytest.approx([3.0] * NUM_THREADS)
