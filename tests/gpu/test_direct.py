"""Direct solvers on CUDA; the sparse ones where cuDSS is installed."""

from typing import Any

import numpy as np
import pytest

from caspar.io import read_g2o
from tests.runtime.cpu.direct_cases import check_dense, check_normal_equations, check_sparse
from tests.solver.pose_graphs import DATA, normal_matrix
from tests.support_cudss import require_cudss

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

SPIN = """
extern "C" __global__ void spin(long long cycles) {
    for (long long start = clock64(); clock64() - start < cycles;) {}
}
"""


def cuda_backend() -> Any:
    return pytest.importorskip("caspar.runtime.cuda.backend").CudaBackend()


def assert_only_enqueues(solver: Any, size: int) -> None:
    """The calls return while the device is still busy with what came before."""
    backend = cuda_backend()
    spin = cupy.RawModule(code=SPIN).get_function("spin")
    with backend.scope():
        rhs, solution = cupy.ones(size), cupy.empty(size)
        solver.factorize()
        solver.solve(rhs, solution)
        cupy.cuda.get_current_stream().synchronize()
        spin((1,), (1,), (np.int64(2_000_000_000),))
        solver.factorize()
        solver.solve(rhs, solution)
        assert not cupy.cuda.get_current_stream().done
        cupy.cuda.get_current_stream().synchronize()


@pytest.mark.parametrize("size", [1, 2, 9, 189, 300, 1500])
def test_dense(size: int) -> None:
    check_dense(cuda_backend(), size)


@pytest.mark.parametrize(("num_blocks", "block"), [(1, 1), (2, 3), (40, 6), (100, 3)])
def test_sparse(num_blocks: int, block: int) -> None:
    require_cudss()
    check_sparse(cuda_backend(), num_blocks, block)


@pytest.mark.parametrize("name", ["smallGrid3D", "M3500"])
def test_pose_graphs(name: str) -> None:
    require_cudss()
    graph = read_g2o(DATA / f"{name}.g2o.bz2")
    check_normal_equations(cuda_backend(), normal_matrix(graph, graph.poses))


def test_dense_does_not_wait_for_the_device() -> None:
    solver = cuda_backend().dense_factorization(441)
    solver.matrix[...] = cupy.eye(441)
    assert_only_enqueues(solver, 441)


def test_sparse_does_not_wait_for_the_device() -> None:
    require_cudss()
    pattern = cupy.arange(1001, dtype=np.int32)
    solver = cuda_backend().sparse_factorization(pattern, pattern[:-1], 1000)
    solver.values[...] = 1.0
    assert_only_enqueues(solver, 1000)
