"""Selected entries of the inverse of a sparse matrix, on the host.

On CUDA too, as cuDSS keeps its factor to itself. Cost tier: once for a covariance.
"""

import numpy as np
from scipy.sparse import coo_matrix

from caspar.memory.array import Array
from caspar.runtime.cpu.direct import QdldlFactorization, on_one_thread
from caspar.solver.covariance.inverses.null_space import SHIFT, null_space, pinned_unknowns
from caspar.solver.covariance.inverses.reduced_inverse import (
    FloatArray,
    ReducedInverse,
    with_padding,
)
from caspar.solver.covariance.inverses.selected_inverse import SelectedInverse
from caspar.solver.covariance.normal_matrix import NormalMatrix, Pattern

FEW_ROWS = 2000
"""Rows of the largest block up to which one thread computes the selected inverse."""


def sparse_inverse(normal: NormalMatrix, pattern: Pattern) -> ReducedInverse:
    """Factorise the reduced system as a sparse matrix, and invert it on the factor's pattern."""
    backend, layout = normal.backend, normal.layout
    places = layout.real()
    size = len(places)
    compact = np.full(layout.size, -1, np.int64)
    compact[places] = np.arange(size)
    first, second = pattern.pairs(backend)
    within = np.arange(layout.width)
    rows = compact[first[:, None] * layout.width + within]
    columns = compact[second[:, None] * layout.width + within]
    row, column = np.broadcast_arrays(rows[:, :, None], columns[:, None, :])
    kept = (row >= 0) & (row <= column)
    entries = np.asarray(backend.to_host(normal.blocks(pattern)))[kept]
    # the upper triangle by columns is the lower one by rows
    upper = coo_matrix((entries, (row[kept], column[kept])), shape=(size, size)).tocsc()
    upper.sort_indices()
    diagonal = upper.indptr[1:] - 1
    factorization = QdldlFactorization(upper.indptr, upper.indices, size)

    def factorize(added: FloatArray | float) -> None:
        factorization.values[...] = upper.data
        factorization.values[diagonal] += added
        factorization.factorize()

    def solve(rhs: FloatArray) -> FloatArray:
        solutions = np.empty_like(rhs)
        for number in range(rhs.shape[1]):
            factorization.solve(rhs[:, number], solutions[:, number])
        return solutions

    symmetric = upper + upper.T
    symmetric.setdiag(upper.diagonal())
    # threads of BLAS that wait for each other make work on small blocks up to 100 times slower
    found = []
    factorize(SHIFT)
    on_one_thread(lambda: found.append(null_space(lambda x: symmetric @ x, solve, size)))
    (free,) = found
    pinned = np.zeros(size)
    pinned[pinned_unknowns(free)] = 1.0
    factorize(pinned)
    selected = SelectedInverse(*factorization.factors())
    if selected.max_rows <= FEW_ROWS:
        on_one_thread(selected.compute)
    else:
        selected.compute()
    blocks = backend.upload(selected.blocks(rows, columns))

    def block(first: Array, second: Array) -> Array:
        return blocks[pattern.slots(backend, first, second)]

    return ReducedInverse(
        "sparse factorisation and selected inverse",
        with_padding(free, places, layout.size),
        lambda rhs: with_padding(solve(rhs[places]), places, layout.size),
        block,
    )
