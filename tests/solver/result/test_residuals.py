"""Residuals and weights of a result in mixed precision are those of float64."""

from typing import Any

import numpy as np
import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.options import JacobianName
from caspar.solver.limits import Limits
from tests.covering import alternating
from tests.solver.shards.sharing import sharing
from tests.solver.shards.test_parts import _bundle, _in_parts

ROBUST = snavely.with_loss(caspar.loss.Cauchy)

SCALE = 0.75


def robust_arrays() -> dict[str, Any]:
    """A bundle with weights, some of them 0, and a scale of the loss."""
    arrays = _bundle()
    count = len(arrays["snavely"]["point"])
    weight = np.random.default_rng(3).uniform(0.2, 3.0, count)
    weight[::7] = 0.0
    arrays["snavely"] |= {"weight": weight, "loss_scale": SCALE}
    return arrays


def assert_exact(result: caspar.SolveResult, arrays: dict[str, Any]) -> None:
    """The residuals and weights are those that a solver in float64 finds at the same values."""
    assert result.precision == "mixed"
    values = {
        name: np.concatenate(rows) if isinstance(rows, list) else rows
        for name, rows in result.values.items()
    }
    exact = caspar.Solver(ROBUST, backend="cpu", precision="float64").evaluate({**arrays, **values})
    found, wanted = result.residuals("snavely"), exact.residuals("snavely")
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)
    assert not np.array_equal(found, found.astype(np.float32))
    weights = result.weights("snavely")
    np.testing.assert_allclose(weights, exact.weights("snavely"), rtol=1e-9, atol=0.0)
    assert not np.array_equal(weights, weights.astype(np.float32))
    square = (found**2).sum(axis=1) / SCALE**2
    cost = 0.5 * SCALE**2 * arrays["snavely"]["weight"] @ np.log1p(square)
    assert result.final_cost == pytest.approx(cost, rel=1e-12)


@pytest.mark.parametrize(
    ("jacobian", "limits"),
    alternating(["stored", "float16", "recompute"], [None, Limits(max_wide_constant_bytes=0)]),
)
def test_residuals_and_weights_are_exact(jacobian: JacobianName, limits: Limits | None) -> None:
    arrays = robust_arrays()
    # so that large constants lose nothing by being kept in float32
    arrays["snavely"]["pixel"] = arrays["snavely"]["pixel"].astype(np.float32).astype(float)
    arrays["snavely"]["weight"] = arrays["snavely"]["weight"].astype(np.float32).astype(float)
    solver = caspar.Solver(
        ROBUST, backend="cpu", precision="mixed", jacobian=jacobian, limits=limits
    )
    assert_exact(solver.solve(arrays, max_iterations=6), arrays)


@pytest.mark.parametrize("devices", [1, 2])
def test_of_parts_on_several_devices(devices: int) -> None:
    arrays = robust_arrays()
    scale = arrays["snavely"].pop("loss_scale")
    middle = len(arrays["Point"]) // 2
    parts = _in_parts(arrays, [middle], "Point")
    parts["snavely"]["loss_scale"] = arrays["snavely"]["loss_scale"] = scale
    result = sharing((ROBUST,), devices, precision="mixed").solve(parts, max_iterations=6)
    assert result.device.startswith("2 x ") is (devices == 2)
    assert_exact(result, arrays)
