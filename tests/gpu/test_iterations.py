"""What an iteration of Levenberg-Marquardt does not do: wait more than once, allocate."""

from itertools import pairwise
from typing import Any

import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.options import JacobianName
from tests.solver.bundles import arrays_of, read

pytestmark = pytest.mark.gpu
cupy: Any = pytest.importorskip("cupy")
MemoryHook: Any = cupy.cuda.MemoryHook


class Allocations(MemoryHook):
    """Counts what is asked of CuPy's memory pool."""

    name = "allocations"

    def __init__(self) -> None:
        self.number = 0

    def malloc_preprocess(self, **_: Any) -> None:
        self.number += 1


@pytest.mark.parametrize("jacobian", ["recompute", "float16"])
@pytest.mark.parametrize("is_fused", [True, False], ids=["one kernel", "launches"])
def test_one_read_and_no_allocation(
    is_fused: bool, jacobian: JacobianName, monkeypatch: pytest.MonkeyPatch
) -> None:
    from caspar.runtime.cuda import backend as cuda
    from caspar.runtime.cuda.launch import scalars as cuda_scalars

    if not is_fused:
        monkeypatch.setattr(cuda, "fits_device", lambda _: False)
    reads = 0
    original = cuda_scalars.CudaScalars.read

    def read_scalars(scalars: Any) -> list[float]:
        nonlocal reads
        reads += 1
        return original(scalars)

    monkeypatch.setattr(cuda_scalars.CudaScalars, "read", read_scalars)
    arrays = arrays_of(read("problem-21-11315"))
    solver = caspar.Solver([snavely], backend="cuda", jacobian=jacobian)
    solver.solve(arrays)
    seen: list[tuple[int, int]] = []
    with Allocations() as allocations:
        result = solver.solve(
            arrays,
            max_iterations=6,
            on_iteration=lambda _: seen.append((reads, allocations.number)),
        )
        cupy.empty(8)
    assert len(result.iterations) == 6
    assert allocations.number > seen[-1][1], "the hook sees nothing"
    steps = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(seen)]
    assert steps == [(1, 0)] * 5
