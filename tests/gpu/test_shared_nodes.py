"""One node, or two, that all items of a thousand tiles share."""

from typing import Any

import pytest
from numpy.testing import assert_allclose

import caspar
from caspar.options import JacobianName
from tests.solver.linear.linear_cases import MIXES, make_arrays

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:node type")]
pytest.importorskip("cupy")


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("jacobian", ["stored", "float16", "recompute"])
@pytest.mark.parametrize("mix", ["shared lens", "few lenses"])
def test_equals_the_processor(mix: str, jacobian: JacobianName, deterministic: bool) -> None:
    made = make_arrays(num_views=300, num_marks=100_000)
    factors = MIXES[mix]
    arrays: dict[str, Any] = {factor.name: made[factor.name] for factor in factors}
    nodes = ("View", "Mark", "Lens" if mix == "shared lens" else "Glass")
    arrays |= {name: made[name] for name in nodes}
    expected, found = (
        caspar.Solver(
            factors,
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
