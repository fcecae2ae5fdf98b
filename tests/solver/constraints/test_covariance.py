"""Covariances within what constraints leave free, against projections in NumPy."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import caspar
from tests.solver.constraints.test_equations import apart, at_least, prior

SOLVER = caspar.Solver([prior, apart, at_least], backend="cpu")


def problem() -> dict[str, Any]:
    """Five places; two ties, a limit that binds and one that does not."""
    roots = np.array([[1.0], [2.0], [0.5], [3.0], [1.5]])
    return {
        "Place": np.zeros((5, 1)),
        "prior": {
            "place": np.arange(5),
            "measured": np.array([[0.0], [1.0], [2.5], [3.0], [4.0]]),
            "root": roots,
        },
        "apart": {"first": [1, 2], "second": [0, 1], "distance": np.array([[1.5], [1.0]])},
        "at_least": {"place": [3, 4], "least": np.array([[3.5], [0.0]])},
    }


def projected(roots: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Z (Z^T H Z)^-1 Z^T with the null space Z of the rows."""
    _, _, turned = np.linalg.svd(rows)
    free = turned[len(rows) :].T
    hessian = np.diag(roots[:, 0] ** 2)
    found: NDArray[np.float64] = free @ np.linalg.inv(free.T @ hessian @ free) @ free.T
    return found


def test_constraints_hold_what_they_say() -> None:
    arrays = problem()
    result = SOLVER.solve(arrays)
    assert result.status.is_success
    rows = np.array([[-1.0, 1, 0, 0, 0], [0, -1, 1, 0, 0], [0, 0, 0, 1, 0]])
    expected = projected(arrays["prior"]["root"], rows)
    covariance = SOLVER.covariance(result, {"Place": "all"})
    assert covariance["Place"][:, 0, 0] == pytest.approx(np.diag(expected), rel=1e-6, abs=1e-7)
    between = covariance.cross("Place", 0, "Place", 2)[0, 0]
    assert between == pytest.approx(expected[0, 2], rel=1e-6)
    # 5 rows of factors, 2 directions that three constraints leave
    assert covariance.degrees_of_freedom == 3
    by_arrays = SOLVER.covariance({**arrays, **result.values}, {"Place": [4]})
    assert by_arrays["Place"][0, 0, 0] == pytest.approx(expected[4, 4], rel=1e-6)
