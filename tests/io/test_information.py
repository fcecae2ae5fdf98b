"""Square roots of information matrices, against exact arithmetic."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from caspar.io.graphs.information import covariance_roots, information_roots

Array = NDArray[np.float64]

mp = mpmath.mp.clone()
mp.prec = 400

seeds = st.integers(0, 2**32 - 1)
dims = st.sampled_from([3, 6])


def correlations(random: np.random.Generator, dim: int, rank: int) -> Array:
    """A semidefinite matrix of unit diagonal."""
    factor = random.normal(size=(dim, rank))
    factor /= np.linalg.norm(factor, axis=1, keepdims=True)
    made: Array = factor @ factor.T
    np.fill_diagonal(made, 1.0)
    return made


def symmetric(upper: Array) -> Array:
    """With the upper triangle on both sides."""
    above = np.triu(upper, 1)
    return np.diag(np.diagonal(upper)) + above + above.T


def root(matrix: Array) -> Array:
    """Of one matrix, which must be without fault."""
    roots, faults = information_roots(matrix[None])
    assert faults == {}
    return np.asarray(roots[0])


def assert_is_root(found: Array, matrix: Array, tolerance: float) -> None:
    """Exactly multiplied, relative to the roots of the diagonal entries."""
    np.testing.assert_array_equal(found, np.triu(found))
    assert (np.diagonal(found) >= 0.0).all()
    exact = [[Fraction(float(entry)) for entry in row] for row in found]
    size = range(len(matrix))
    for i in size:
        for j in size:
            product = sum((exact[k][i] * exact[k][j] for k in size), start=Fraction(0))
            off = mp.mpf(1) * (product - Fraction(float(matrix[i, j]))).numerator
            off /= (product - Fraction(float(matrix[i, j]))).denominator
            unit = mp.sqrt(mp.mpf(float(matrix[i, i])) * mp.mpf(float(matrix[j, j])))
            assert abs(off) <= tolerance * unit


@settings(max_examples=60)
@given(seed=seeds, dim=dims, rank=st.integers(1, 8), exponent=st.integers(0, 140))
def test_units_of_every_size(seed: int, dim: int, rank: int, exponent: int) -> None:
    """Regular and singular, with units far apart: each entry is right in its own units."""
    random = np.random.default_rng(seed)
    units = 10.0 ** random.uniform(-exponent, exponent, dim)
    matrix = symmetric(units[:, None] * correlations(random, dim, rank) * units)
    assert_is_root(root(matrix), matrix, 1e-13)


@settings(max_examples=60)
@given(seed=seeds, dim=dims, rank=st.integers(1, 8))
def test_other_units_scale_the_root(seed: int, dim: int, rank: int) -> None:
    """By powers of two bit for bit, but for the order in which a singular one is rounded."""
    random = np.random.default_rng(seed)
    matrix = symmetric(correlations(random, dim, rank))
    units = 2.0 ** random.integers(-200, 200, dim)
    moved = root(units[:, None] * matrix * units)
    np.testing.assert_array_equal(moved, root(matrix) * units)


@settings(max_examples=40)
@given(seed=seeds, dim=dims)
def test_each_root_is_its_own(seed: int, dim: int) -> None:
    """Whatever else a file holds: singular, indefinite and regular measurements."""
    random = np.random.default_rng(seed)
    matrices = [symmetric(correlations(random, dim, rank)) for rank in (dim + 2, 1, dim, dim - 1)]
    matrices += [np.zeros((dim, dim)), -np.eye(dim), symmetric(random.normal(size=(dim, dim)))]
    roots, _ = information_roots(np.array(matrices))
    for matrix, found in zip(matrices, roots, strict=True):
        np.testing.assert_array_equal(found, information_roots(matrix[None])[0][0])


@settings(max_examples=150)
@given(seed=seeds, dim=dims, exponent=st.integers(0, 100), distance=st.floats(-9.0, -1.0))
def test_what_is_indefinite(seed: int, dim: int, exponent: int, distance: float) -> None:
    """Judged by the eigenvalues of the scaled matrix, of which mpmath says the truth."""
    random = np.random.default_rng(seed)
    shrunk = correlations(random, dim, dim - 1) * (1.0 + 10.0**distance)
    np.fill_diagonal(shrunk, 1.0)
    units = 10.0 ** random.uniform(-exponent, exponent, dim)
    matrix = symmetric(units[:, None] * shrunk * units)
    exact = mp.matrix(matrix.tolist())
    sizes = [mp.sqrt(exact[i, i]) for i in range(dim)]
    scaled = mp.matrix(dim, dim)
    for i in range(dim):
        for j in range(dim):
            scaled[i, j] = exact[i, j] / (sizes[i] * sizes[j])
    eigenvalues = sorted(mp.eigsy(scaled, eigvals_only=True))
    ratio = eigenvalues[0] / eigenvalues[-1]
    roots, faults = information_roots(matrix[None])
    if abs(ratio + mp.mpf("1e-6")) > 1e-12:
        assert (len(faults) == 1) is (ratio < -1e-6)
    # a clipped root loses what is negative, and nothing else
    clipped = np.array((roots[0].T / units[:, None]) @ (roots[0] / units))
    assert np.linalg.eigvalsh(clipped)[0] > -1e-12
    off = np.abs(clipped - shrunk).max()
    assert off <= float(max(-eigenvalues[0], 0)) * 1.001 + 1e-12


def test_a_small_correlation_beside_a_singular_measurement() -> None:
    """A singular one elsewhere in the file changed the weight of this one by a factor of 108."""
    diagonal = np.array([1e6, 1e-3, 1e6])
    units = np.sqrt(diagonal)
    matrix = symmetric(units[:, None] * (0.5 * np.eye(3) + 0.5) * units)
    roots, faults = information_roots(np.array([matrix, np.diag([1.0, 1.0, 0.0])]))
    assert faults == {}
    np.testing.assert_array_equal(roots[0], np.linalg.cholesky(matrix).T)
    np.testing.assert_array_equal(roots[1], np.diag([1.0, 1.0, 0.0]))


def test_rows_of_zeros() -> None:
    """What is not measured, in any place; the rest keeps its factor."""
    for place in range(3):
        matrix = np.array([[4.0, 2.0, 1.0], [2.0, 9.0, 3.0], [1.0, 3.0, 16.0]]) * 1e-40
        matrix[place] = matrix[:, place] = 0.0
        found = root(matrix)
        kept = [row for row in range(3) if row != place]
        part = np.ix_(kept, kept)
        np.testing.assert_allclose(found[part], np.linalg.cholesky(matrix[part]).T, rtol=1e-14)
        assert (found[:, place] == 0.0).all()
        assert (found[place] == 0.0).all()


@pytest.mark.parametrize("size", [5e-324, 1e-310, 1e-300, 1e300, 1.7e308])
def test_numbers_at_the_ends_of_the_range(size: float) -> None:
    found = root(np.diag([size, 1.0, 0.0]))
    np.testing.assert_allclose(found, np.diag([size**0.5, 1.0, 0.0]), rtol=1e-15)


@pytest.mark.parametrize(
    ("matrix", "fault"),
    [
        ([[5e-324, 1e308], [1e308, 1.0]], "the negative eigenvalue -1e+100"),
        ([[1.0, 1e308], [1e308, 1.0]], "the negative eigenvalue -1e+100"),
        ([[1.0, 0.0], [0.0, -5e-324]], "the negative diagonal entry -4.94066e-324"),
        ([[1.0, 1e-300], [1e-300, 0.0]], "zero on its diagonal in row 2"),
        ([[0.0, 1.0], [1.0, 0.0]], "zero on its diagonal in row 1"),
    ],
)
def test_faults(matrix: list[list[float]], fault: str) -> None:
    roots, faults = information_roots(np.array([np.eye(2), matrix]))
    assert list(faults) == [1]
    assert fault in faults[1]
    assert np.isfinite(roots).all()


def test_roots_of_covariances() -> None:
    """Each in its own units: W^T W is the inverse, and W is upper triangular."""
    random, units = np.random.default_rng(0), np.array([1e-6, 1.0, 1e5])
    wide = random.normal(size=(4, 3, 5)) * units[:, None]
    covariances = wide @ wide.transpose(0, 2, 1)
    roots, faults = covariance_roots(covariances)
    assert faults == {}
    assert_array_equal(roots, np.triu(roots))
    products = roots.transpose(0, 2, 1) @ roots @ covariances
    identity = np.broadcast_to(np.eye(3), products.shape)
    assert_allclose(products * units[:, None] / units, identity, atol=1e-9)
