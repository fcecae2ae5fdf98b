"""One node that all items of a thousand tiles share."""

import pytest
from numpy.testing import assert_allclose

import caspar
from tests.solver.linear_cases import MIXES, make_arrays

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:node type")]
pytest.importorskip("cupy")


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("jacobian", ["stored", "float16", "recompute"])
def test_equals_the_processor(jacobian: str, deterministic: bool) -> None:
    arrays = make_arrays(num_views=300, num_marks=100_000)
    arrays = {name: arrays[name] for name in ("View", "Mark", "Lens", "sight", "hold", "pin")}
    expected, found = (
        caspar.Solver(
            MIXES["shared lens"],
            backend=backend,
            linear_solver="schur_pcg",
            precision="float64",
            jacobian=jacobian if backend == "cuda" else "stored",
            deterministic=deterministic,
        ).solve(arrays)
        for backend in ("cpu", "cuda")
    )
    assert_allclose(found.final_cost, expected.final_cost, rtol=1e-8)
    for node, rows in expected.values.items():
        assert_allclose(found.values[node], rows, atol=1e-4)
