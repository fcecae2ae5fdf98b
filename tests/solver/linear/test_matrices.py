"""Matrix arguments: (n, rows, columns), or SymForce's storage, column by column."""

from typing import Annotated

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose

import caspar
from caspar.errors import InputError

MATRICES = np.array([[[2.0, 1.0], [0.0, 3.0]], [[1.0, -1.0], [4.0, 1.0]]])
RIGHT = np.array([[5.0, 6.0], [1.0, 9.0]])


class Unknown(sf.V2): ...


@caspar.factor
def equation(
    unknown: Annotated[Unknown, caspar.TunableShared],
    matrix: Annotated[sf.M22, caspar.ConstSequential],
    right: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    return matrix * unknown - right


def _solved(matrices: np.ndarray) -> np.ndarray:
    arrays = {
        "Unknown": np.zeros((2, 2)),
        "equation": {"unknown": np.arange(2), "matrix": matrices, "right": RIGHT},
    }
    result = caspar.Solver([equation], backend="cpu", precision="float64").solve(arrays)
    values: np.ndarray = result.values["Unknown"]
    return values


def test_matrices_are_taken_as_they_are_written() -> None:
    expected = np.linalg.solve(MATRICES, RIGHT[..., None])[..., 0]
    assert_allclose(_solved(MATRICES), expected, rtol=1e-9)


def test_rows_are_in_storage_order() -> None:
    by_column = MATRICES.transpose(0, 2, 1).reshape(2, 4)
    assert_allclose(_solved(by_column), _solved(MATRICES), rtol=1e-12)


def test_a_wrong_shape_is_named() -> None:
    with pytest.raises(InputError, match=r"factor equation, argument matrix: shape \(2, 4, 1\)"):
        _solved(MATRICES.reshape(2, 4, 1))
