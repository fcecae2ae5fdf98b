"""Direct solvers on the processor."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.linalg.lapack import get_lapack_funcs
from threadpoolctl import ThreadpoolController

from caspar.io import read_g2o
from caspar.runtime.cpu import direct as direct_cpu
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.cpu.direct import (
    FEW_DENSE,
    FEW_ROWS,
    QdldlFactorization,
    size_for_ordering,
)
from tests.runtime.cpu.direct_cases import (
    check_dense,
    check_normal_equations,
    check_sparse,
    lower_pattern,
)
from tests.solver.pose_graphs import DATA, normal_matrix


@pytest.mark.parametrize("size", [1, 2, 9, 189, 300])
def test_dense(size: int) -> None:
    check_dense(CpuBackend(), size)


@pytest.mark.parametrize(("num_blocks", "block"), [(1, 1), (2, 3), (40, 6), (100, 3)])
def test_sparse(num_blocks: int, block: int) -> None:
    check_sparse(CpuBackend(), num_blocks, block)


@pytest.mark.parametrize("name", ["smallGrid3D", "M3500"])
def test_pose_graphs(name: str) -> None:
    graph = read_g2o(DATA / f"{name}.g2o.bz2")
    check_normal_equations(CpuBackend(), normal_matrix(graph, graph.poses))


def windows(num_rows: int, num_windows: int, width: int) -> sparse.csr_array:
    """A chain, and rows that touch a part of it each; positive definite."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, num_rows - width + 1, num_windows)
    columns = (first[:, None] + np.arange(width)).reshape(-1)
    rows = np.repeat(num_rows + np.arange(num_windows), width)
    links = np.arange(1, num_rows)
    lower = sparse.coo_array(
        (
            np.ones(len(links) + len(rows)),
            (np.concatenate([links, rows]), np.concatenate([links - 1, columns])),
        ),
        shape=(num_rows + num_windows,) * 2,
    )
    full = sparse.csr_array(lower + lower.T)
    return sparse.csr_array(full + sparse.diags_array(full.sum(axis=1) + 1.0))


def test_many_long_rows_do_not_fill_the_matrix() -> None:
    """AMD puts rows of 10 sqrt(size) entries last, which is right for a few only."""
    matrix = windows(3_000, 60, 800)
    check_normal_equations(CpuBackend(), matrix)
    pattern, _ = lower_pattern(matrix)
    fills = []
    for most in (1, direct_cpu.MOST_PADDING):
        made = QdldlFactorization(pattern.indptr, pattern.indices, pattern.size, most_padding=most)
        fills.append(made._solver.factors()[0].nnz)
    assert fills[1] < 0.6 * fills[0]


@pytest.mark.parametrize(
    ("degrees", "size"),
    [
        ([3] * 20, 20),
        ([3] * 10_000, 10_000),
        ([3] * 9_970 + [9_000] * FEW_DENSE, 10_000),
        ([3] * 9_969 + [1_000] * (FEW_DENSE + 1), 10_000),
        ([3] * 9_969 + [1_001] * (FEW_DENSE + 1), 10_021),
        ([3] * 9_969 + [2_000] + [9_000] * FEW_DENSE, 40_001),
        ([3] * 9_969 + [9_000] * (FEW_DENSE + 1), 10_000),
        ([440] * 441, 441),
    ],
    ids=[
        "tiny",
        "short rows",
        "few long ones",
        "at the edge",
        "behind it",
        "of many the shortest",
        "too long",
        "full",
    ],
)
def test_size_for_ordering(degrees: list[int], size: int) -> None:
    assert size_for_ordering(np.array(degrees)) == size


def test_dense_matrix_is_factorised_in_its_place() -> None:
    solver = CpuBackend().dense_factorization(3)
    solver.matrix[...] = np.diag([4.0, 9.0, 16.0])
    solver.factorize()
    solver.solve(np.ones(3), np.empty(3))
    np.testing.assert_array_equal(np.diag(solver.matrix), [2.0, 3.0, 4.0])


def num_threads() -> list[int]:
    """Of each BLAS that is loaded."""
    libraries = ThreadpoolController().select(user_api="blas").info()
    return [int(library["num_threads"]) for library in libraries]


@pytest.mark.parametrize(("size", "is_alone"), [(3, True), (FEW_ROWS, True), (FEW_ROWS + 1, False)])
def test_small_matrices_have_one_thread(
    monkeypatch: pytest.MonkeyPatch, size: int, is_alone: bool
) -> None:
    """More would spin where cores have other work; elsewhere nothing is changed."""
    seen: list[list[int]] = []
    usual = get_lapack_funcs

    def watched(names: tuple[str, ...], arrays: tuple[Any, ...]) -> list[Any]:
        factorize, *others = usual(names, arrays)

        def potrf(*arguments: Any, **options: Any) -> Any:
            seen.append(num_threads())
            return factorize(*arguments, **options)

        return [potrf, *others]

    monkeypatch.setattr(direct_cpu, "get_lapack_funcs", watched)
    before = num_threads()
    solver = direct_cpu.LapackCholesky(size)
    solver.matrix[...] = np.eye(size)
    solver.factorize()
    solver.solve(np.ones(size), np.empty(size))
    assert num_threads() == before
    solver.matrix[...] = np.eye(size)
    solver.factorize()
    solver.invert(np.empty((size, size)))
    assert num_threads() == before
    assert seen == 2 * [[1] * len(before) if is_alone else before]


def test_factorisations_at_the_same_time_leave_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that begins is the first that ends; the limit is the process's."""
    begun, ended, usual = Event(), Event(), get_lapack_funcs

    def staggered(names: tuple[str, ...], arrays: tuple[Any, ...]) -> list[Any]:
        factorize, *others = usual(names, arrays)

        def potrf(matrix: Any, **options: Any) -> Any:
            if len(matrix) == 1:
                begun.set()
                time.sleep(0.1)  # the other one comes
            else:
                assert ended.wait(timeout=60.0)
            return factorize(matrix, **options)

        return [potrf, *others]

    def factorise(size: int) -> None:
        solver = direct_cpu.LapackCholesky(size)
        solver.matrix[...] = np.eye(size)
        solver.factorize()

    monkeypatch.setattr(direct_cpu, "get_lapack_funcs", staggered)
    before = num_threads()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(factorise, 1)
        assert begun.wait(timeout=60.0)
        second = pool.submit(factorise, 2)
        first.result(60.0)
        ended.set()
        second.result(60.0)
    assert num_threads() == before
