"""The inverse of small systems by singular values of the Jacobian itself.

Forming J^T J squares the condition number: of curves whose parameters are nearly interchangeable
half of the digits are lost. Input: a `NormalMatrix` of which nothing is eliminated. Cost tier: once
for a covariance, at most `Limits.max_svd_work` multiplications.
"""

import numpy as np

from caspar.solver.covariance.inverses.dense import of_matrix
from caspar.solver.covariance.inverses.reduced_inverse import ReducedInverse
from caspar.solver.covariance.normal_matrix import NormalMatrix

FREE_SINGULAR_VALUE = 1e-12
"""Singular values up to which a direction is free, relative to the largest. Columns of J have
length 1, and entries are known to about 1e-15."""


def svd_inverse(normal: NormalMatrix) -> ReducedInverse:
    """The pseudo-inverse of the scaled J^T J; its free directions are those of J."""
    backend, layout = normal.backend, normal.layout
    jacobian = normal.dense_jacobian()
    present = np.flatnonzero(jacobian.any(axis=0))
    # with as many rows as columns the singular vectors are all there
    num_missing = max(len(present) - len(jacobian), 0)
    rows = np.concatenate([jacobian[:, present], np.zeros((num_missing, len(present)))])
    _, values, turns = np.linalg.svd(rows, full_matrices=False)
    is_free = values <= FREE_SINGULAR_VALUE * values.max(initial=0.0)
    root = turns.T * np.where(is_free, 0.0, 1.0 / np.where(is_free, 1.0, values))
    inverse = np.zeros((layout.size, layout.size))
    inverse[np.ix_(present, present)] = root @ root.T
    free = np.zeros((layout.size, int(is_free.sum())))
    free[present] = turns[is_free].T
    method = "singular values of the Jacobian"
    return of_matrix(normal, backend.upload(inverse), free, method)
