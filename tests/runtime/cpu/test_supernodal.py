"""Sparse factorisation by supernodes, and when it is taken."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from caspar.io import read_g2o
from caspar.runtime.cpu import supernodal
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.cpu.direct import QdldlFactorization
from caspar.runtime.cpu.small_matrix import SmallFactorization
from caspar.runtime.cpu.supernodal import SupernodalFactorization, sparse_factorization
from tests.runtime.cpu.direct_cases import (
    check_normal_equations,
    check_sparse,
    lower_pattern,
    solved,
)
from tests.solver.pose_graphs import DATA, normal_matrix


def grid(side: int, block: int) -> sparse.csr_array:
    """The Laplacian of a cube of nodes plus the identity, with full blocks."""
    line = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    one = sparse.eye_array(side)
    cube = sparse.kron(sparse.kron(line, one), one) + sparse.kron(sparse.kron(one, line), one)
    cube = cube + sparse.kron(sparse.kron(one, one), line) + sparse.eye_array(side**3)
    return sparse.csr_array(sparse.kron(cube, np.eye(block) + 0.1))


def factorised(matrix: Any) -> tuple[Any, Any]:
    """The factorisation that suits a matrix, with its values, and its pattern."""
    pattern, values = lower_pattern(matrix)
    made = sparse_factorization(pattern.indptr, pattern.indices, pattern.size)
    made.values[...] = values
    return made, pattern


@pytest.mark.parametrize(("num_blocks", "block"), [(1, 1), (2, 3), (40, 6), (100, 3)])
def test_new_values_again_and_again(num_blocks: int, block: int) -> None:
    check_sparse(CpuBackend(), num_blocks, block, SupernodalFactorization)


@pytest.mark.parametrize("name", ["smallGrid3D", "M3500"])
def test_pose_graphs(name: str) -> None:
    graph = read_g2o(DATA / f"{name}.g2o.bz2")
    check_normal_equations(CpuBackend(), normal_matrix(graph, graph.poses), SupernodalFactorization)


def test_it_is_taken_if_the_factor_has_many_operations_an_entry() -> None:
    chain, _ = factorised(sparse.diags_array([-1.0, 3.0, -1.0], offsets=[-1, 0, 1], shape=(99, 99)))
    cube, pattern = factorised(grid(9, 3))
    assert isinstance(chain, SmallFactorization)
    assert isinstance(cube, SupernodalFactorization)
    assert cube.operations_of_entry > supernodal.MIN_OPERATIONS
    assert chain.remarks == cube.remarks == ()
    rhs = np.random.default_rng(0).standard_normal(pattern.size)
    solution, failed = solved(CpuBackend(), cube, rhs)
    assert not failed
    np.testing.assert_allclose(grid(9, 3) @ solution, rhs, rtol=0.0, atol=1e-12)


def test_both_libraries_agree_on_what_fails() -> None:
    """The flag that is handed over is written, whichever library is taken."""
    for matrix in (sparse.eye_array(50), grid(8, 3)):
        for change, expected in ((1.0, False), (-1.0, True), (0.0, True), (np.nan, True)):
            pattern, values = lower_pattern(matrix)
            flag = np.full(2, 7.0)
            made = sparse_factorization(pattern.indptr, pattern.indices, pattern.size, flag)
            made.values[...] = values
            made.values[0] *= change
            _, failed = solved(CpuBackend(), made, np.ones(pattern.size))
            assert failed == expected == bool(flag[0])


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supernodal, "MIN_PARALLEL_OPERATIONS", 0.0)
    rhs = np.random.default_rng(0).standard_normal(3 * 10**3)
    solutions = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(supernodal, "num_threads", lambda threads=threads: threads)
        made, _ = factorised(grid(10, 3))
        assert made.num_threads == threads
        solutions.append(solved(CpuBackend(), made, rhs)[0].tobytes())
    assert solutions[0] == solutions[1] == solutions[2]


def test_small_matrices_have_one_thread() -> None:
    assert factorised(grid(8, 3))[0].num_threads == 1


def test_without_the_library_qdldl_factorises_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supernodal, "rslab", None)
    made, _ = factorised(grid(6, 3))
    assert isinstance(made, QdldlFactorization)
    (remark,) = made.remarks
    assert "pip install rslab" in remark


def test_other_errors_of_the_library_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = factorised(grid(8, 3))
    made.values = made.values[:-1]
    with pytest.raises((ValueError, IndexError)):
        made.factorize()

    class Broken:
        """A library that can do nothing but analyse."""

        def analyze(self, *_: Any, **__: Any) -> "Broken":
            return self

        def estimate_memory(self) -> dict[str, int]:
            return {"factor_flops": 1, "factor_nnz": 1}

        def factor(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("worker pool is gone")

    monkeypatch.setattr(supernodal, "rslab", Broken())
    pattern, _ = lower_pattern(grid(2, 3))
    broken = SupernodalFactorization(pattern.indptr, pattern.indices, pattern.size)
    with pytest.raises(RuntimeError, match="worker pool"):
        broken.factorize()
