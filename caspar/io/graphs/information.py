"""Square roots of information matrices, each judged by itself and in its own units.

Input: symmetric matrices, one for each measurement. Output: upper triangular roots, and what is
wrong with the matrices that have none. Cost: once per problem, some microseconds a matrix.

A matrix may hold metres beside radians, so "small" means nothing before it is scaled to unit
diagonal. Then its entries are correlations. With other units of the error, a root has its columns
scaled and is otherwise the same, and no root depends on the other measurements of a file.
"""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

EIGENVALUE_TOLERANCE = 1e-6
"""Eigenvalues this far below zero count as zero, relative to the largest one of a matrix scaled to
unit diagonal: a semidefinite matrix written with six digits can have such eigenvalues."""

_LARGEST = 1e100
"""Bound of correlations, so that their eigenvalues are finite; more than 1 is wrong anyway."""

TORO_TRIANGLE = [0, 1, 4, 2, 5, 3]
"""Places in TORO's ff fs ss rr fr sr of the upper triangle of x y angle, row by row."""


def information_from_toro(matrices: FloatArray) -> FloatArray:
    """Return information in the plane, from (n, 3, 3) filled row by row in TORO's order."""
    rows, columns = np.triu_indices(3)
    triangle = matrices[:, rows, columns][:, TORO_TRIANGLE]
    information = np.empty_like(matrices)
    information[:, rows, columns] = triangle
    information[:, columns, rows] = triangle
    return information


def information_roots(information: FloatArray) -> tuple[FloatArray, dict[int, str]]:
    """Upper triangular W with transpose(W) @ W = information, no entry of its diagonal below zero.

    It is the Cholesky factor if there is one. A singular matrix has the triangular factor of
    diag(sqrt(eigenvalues)) @ transpose(eigenvectors) of the scaled matrix, its columns scaled back.

    Args:
        information: (n, dim, dim) symmetric, finite.

    Returns:
        The roots, (n, dim, dim), and for each matrix that is not positive semidefinite what is
        wrong with it, by its number. Its root is that of a clipped matrix: rows and columns whose
        diagonal entry is not positive become zero; the rest is scaled to unit diagonal, and
        negative eigenvalues are set to zero.
    """
    try:
        return np.ascontiguousarray(np.linalg.cholesky(information).transpose(0, 2, 1)), {}
    except np.linalg.LinAlgError:
        pass  # At least one is not positive definite; NumPy does not say which.
    roots = np.empty_like(information)
    rest = []
    for number, matrix in enumerate(information):
        try:
            roots[number] = np.linalg.cholesky(matrix).T
        except np.linalg.LinAlgError:
            rest.append(number)
    roots[rest], eigenvalues = _clipped_roots(information[rest])
    faults = {
        number: fault
        for number, found in zip(rest, eigenvalues, strict=True)
        if (fault := _fault(information[number], found)) != ""
    }
    return roots, faults


def covariance_roots(covariances: FloatArray) -> tuple[FloatArray, dict[int, str]]:
    """Upper triangular W with transpose(W) @ W the inverse of each (dim, dim) covariance.

    For each matrix that has no inverse, or is not positive definite, W is zero, and its number has
    what is wrong with it.
    """
    roots = np.zeros_like(covariances)
    faults: dict[int, str] = {}
    for number, matrix in enumerate(covariances):
        scale = np.sqrt(np.maximum(np.diagonal(matrix), 0.0))
        if not (scale > 0.0).all():
            faults[number] = f"has the diagonal entry {np.diagonal(matrix).min():.6g}"
            continue
        with np.errstate(over="ignore"):
            scaled = np.clip(matrix / scale[:, None] / scale, -_LARGEST, _LARGEST)
        try:
            inverse = np.linalg.inv(np.linalg.cholesky(scaled))
            roots[number] = np.linalg.cholesky(inverse.T @ inverse).T / scale
        except np.linalg.LinAlgError:
            faults[number] = "has, scaled to unit diagonal, an eigenvalue that is not above 0"
    return roots, faults


def _clipped_roots(information: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Roots, and the eigenvalues of the scaled matrices, ascending: (n, dim, dim), (n, dim)."""
    diagonal = np.diagonal(information, axis1=1, axis2=2)
    is_used = diagonal > 0.0
    scale = np.sqrt(np.where(is_used, diagonal, 1.0))
    with np.errstate(over="ignore"):
        scaled = information / scale[:, :, None] / scale[:, None, :]
    scaled = np.clip(scaled, -_LARGEST, _LARGEST) * is_used[:, :, None] * is_used[:, None, :]
    # rows that are not used are apart from the others, and their columns become zero in the end
    places = np.arange(information.shape[1])
    scaled[:, places, places] = 1.0
    eigenvalues, eigenvectors = np.linalg.eigh(scaled)
    sizes = np.sqrt(np.maximum(eigenvalues, 0.0))
    _, roots = np.linalg.qr(sizes[:, :, None] * eigenvectors.transpose(0, 2, 1))
    signs = np.where(np.diagonal(roots, axis1=1, axis2=2) < 0.0, -1.0, 1.0)
    return signs[:, :, None] * roots * (scale * is_used)[:, None, :], eigenvalues


def _fault(matrix: FloatArray, eigenvalues: FloatArray) -> str:
    diagonal = np.diagonal(matrix)
    lowest = int(np.argmin(diagonal))
    if diagonal[lowest] < 0.0:
        return f"has the negative diagonal entry {diagonal[lowest]:.6g}"
    is_bad = (diagonal == 0.0) & (matrix != 0.0).any(axis=1)
    if is_bad.any():
        return (
            f"has zero on its diagonal in row {int(np.argmax(is_bad)) + 1}, but other entries "
            "in that row"
        )
    if eigenvalues[0] < -EIGENVALUE_TOLERANCE * abs(eigenvalues[-1]):
        return f"has, scaled to unit diagonal, the negative eigenvalue {eigenvalues[0]:.6g}"
    return ""
