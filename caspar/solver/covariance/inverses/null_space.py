"""Directions that nothing determines: the null space of a scaled matrix.

Inverse iteration on a block of vectors with a small shift, and Rayleigh-Ritz (Golub and Van Loan,
*Matrix Computations*, section 8.2): what is free grows by 1 / shift in each iteration, everything
else by at most 1 / eigenvalue. Cost tier: once for a covariance, a few dozen solves.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from caspar.solver.covariance.elimination import FREE_EIGENVALUE

FloatArray = NDArray[np.float64]
Operator = Callable[[FloatArray], FloatArray]

SHIFT = 1e-12
"""Added to the diagonal, whose entries are 1: well above roundings of a factorisation."""

NUM_VECTORS = 8
"""Vectors at first; twice as many as long as all of them turn out to be free."""

NUM_ITERATIONS = 4


def null_space(apply: Operator, solve_shifted: Operator, size: int) -> FloatArray:
    """An orthonormal basis of the free directions.

    Args:
        apply: The matrix times (size, k).
        solve_shifted: The inverse of the matrix plus SHIFT times (size, k).
        size: Rows.

    Returns:
        (size, number of free directions).
    """
    generator = np.random.default_rng(0)
    num_vectors = min(NUM_VECTORS, size)
    while True:
        vectors = generator.normal(size=(size, num_vectors))
        for _ in range(NUM_ITERATIONS):
            vectors = np.linalg.qr(solve_shifted(vectors))[0]
        values, turns = np.linalg.eigh(vectors.T @ apply(vectors))
        num_free = int((values <= FREE_EIGENVALUE).sum())
        if num_free < num_vectors or num_vectors == size:
            return np.ascontiguousarray(vectors @ turns[:, :num_free])
        num_vectors = min(2 * num_vectors, size)


def pinned_unknowns(free: FloatArray) -> NDArray[np.int64]:
    """As many unknowns as there are free directions; holding these leaves none free.

    Args:
        free: (size, k) basis.
    """
    if free.shape[1] == 0:
        return np.zeros(0, np.int64)
    _, order = qr(free.T, mode="r", pivoting=True, check_finite=False)
    return np.sort(order[: free.shape[1]]).astype(np.int64)
