"""More than 65,536 nodes that stay: items' places in node tiles take 64 bits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import caspar
from caspar.options import JacobianName
from tests.solver.linear.linear_cases import glance, hold, make_arrays, pin

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:node type")]
pytest.importorskip("cupy")

NUM_VIEWS, NUM_MARKS = 70_000, 90_000


@pytest.mark.parametrize("jacobian", ["recompute", "float16"])
def test_equals_the_processor(jacobian: JacobianName) -> None:
    arrays = make_arrays(NUM_VIEWS, NUM_MARKS)
    arrays = {name: arrays[name] for name in ("View", "Mark", "glance", "hold", "pin")}
    assert np.max(arrays["glance"]["view"]) > 65_536
    factors = (glance, hold, pin)
    expected, found = (
        caspar.Solver(
            factors,
            backend=backend,
            linear_solver="schur_pcg",
            precision="float64",
            jacobian=jacobian if backend == "cuda" else "stored",
        ).solve(arrays)
        for backend in ("cpu", "cuda")
    )
    assert_allclose(found.final_cost, expected.final_cost, rtol=1e-8)
    for node, rows in expected.values.items():
        assert_allclose(found.values[node], rows, atol=1e-4)
