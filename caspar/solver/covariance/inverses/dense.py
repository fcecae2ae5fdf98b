"""The whole inverse, by LAPACK or cuSOLVER. Cost tier: once for a covariance."""

import numpy as np

from caspar.errors import BackendError
from caspar.memory.array import Array
from caspar.solver.covariance.inverses.null_space import SHIFT, null_space, pinned_unknowns
from caspar.solver.covariance.inverses.reduced_inverse import (
    FloatArray,
    ReducedInverse,
    with_padding,
)
from caspar.solver.covariance.normal_matrix import NormalMatrix


def dense_inverse(normal: NormalMatrix) -> ReducedInverse:
    """Form the reduced system as a dense matrix, and invert it."""
    backend, layout = normal.backend, normal.layout
    xp, places = backend.xp, backend.upload(layout.real())
    matrix = _dense_matrix(normal, places)
    size = len(matrix)
    factorization = backend.dense_factorization(size)
    diagonal = xp.arange(size)

    def factorize(added: Array | float) -> None:
        factorization.matrix[...] = matrix
        factorization.matrix[diagonal, diagonal] += added
        factorization.factorize()

    def solve(rhs: FloatArray) -> FloatArray:
        columns = backend.upload(np.ascontiguousarray(rhs.T))
        solutions = xp.empty_like(columns)
        factorization.solve(columns, solutions)
        return np.asarray(backend.to_host(solutions)).T

    def apply(vectors: FloatArray) -> FloatArray:
        return np.asarray(backend.to_host(matrix @ backend.upload(vectors)))

    factorize(SHIFT)
    free = null_space(apply, solve, size)
    pinned = xp.zeros(size)
    pinned[backend.upload(pinned_unknowns(free))] = 1.0
    factorize(pinned)
    inverse = xp.empty((size, size))
    factorization.invert(inverse)
    if float(backend.to_host(factorization.outcome)[0]) != 0.0:
        raise BackendError(
            "covariance: the factorisation of the reduced system failed although its free "
            "directions are held; this is a defect of caspar, please report it"
        )
    if size < layout.size:
        padded = xp.zeros((layout.size, layout.size))
        padded[places[:, None], places] = inverse
        inverse = padded
    free = with_padding(free, layout.real(), layout.size)
    return of_matrix(normal, inverse, free, "dense factorisation")


def of_matrix(
    normal: NormalMatrix, inverse: Array, free: FloatArray, method: str
) -> ReducedInverse:
    """A `ReducedInverse` of a matrix.

    Args:
        normal: The system.
        inverse: (size, size) with padding, on the device.
        free: As in `ReducedInverse`.
        method: The same.
    """
    backend, num, width = normal.backend, normal.layout.num_objects, normal.layout.width
    by_pair = inverse.reshape(num, width, num, width).transpose(0, 2, 1, 3)

    def solve(rhs: FloatArray) -> FloatArray:
        return np.asarray(backend.to_host(inverse @ backend.upload(rhs)))

    return ReducedInverse(method, free, solve, lambda first, second: by_pair[first, second])


def _dense_matrix(normal: NormalMatrix, places: Array) -> Array:
    """The reduced system without padding, both triangles."""
    xp, num, width = normal.backend.xp, normal.layout.num_objects, normal.layout.width
    blocks = normal.blocks(normal.full_pattern()).reshape(num, num, width, width)
    padded = blocks.transpose(0, 2, 1, 3).reshape(num * width, num * width)
    # only blocks on and above the diagonal have been summed
    upper = xp.triu(padded[places][:, places])
    return upper + xp.triu(upper, 1).T
