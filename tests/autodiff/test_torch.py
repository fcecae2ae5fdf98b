"""`caspar.torch`: needs PyTorch, on the processor."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caspar
from caspar.errors import InputError
from tests.batch import test_batch_gradients as batches
from tests.pages import blocks, run
from tests.solver.gradients.gradient_cases import CASES, curve_fit, decay, ranging

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

TIGHT: dict[str, Any] = {
    "cost_tolerance": 1e-30,
    "gradient_tolerance": 1e-30,
    "step_tolerance": 1e-15,
}


def tensors(tree: Any) -> Any:
    """NumPy's arrays of numbers as tensors that require gradients."""
    if isinstance(tree, dict):
        return {name: tensors(part) for name, part in tree.items()}
    if isinstance(tree, np.ndarray) and tree.dtype.kind == "f":
        return torch.tensor(tree, requires_grad=True)
    return tree


@pytest.mark.parametrize("name", ["curve_fit", "spots", "registration", "ranging", "plane_graph"])
def test_gradients_are_those_of_the_solver(name: str) -> None:
    case = CASES[name]()
    solver = caspar.Solver(case.factors, backend="cpu")
    given = tensors(case.arrays)
    results: list[Any] = []
    values = caspar.torch.solve(solver, given, fixed=case.fixed, on_result=results.append)
    weights = {key: torch.randn_like(value) for key, value in values.items()}
    loss = sum((weights[key] * value).sum() for key, value in values.items())
    loss.backward()
    expected = solver.gradient(results[0], {key: one.numpy() for key, one in weights.items()})
    for key, part in given.items():
        if not isinstance(part, dict):
            np.testing.assert_allclose(part.grad, expected[key], atol=1e-14)
            continue
        for argument, leaf in part.items():
            leaf = leaf["values"] if isinstance(leaf, dict) else leaf
            if isinstance(leaf, torch.Tensor):
                np.testing.assert_allclose(leaf.grad, expected[key][argument], atol=1e-14)


def test_gradcheck_of_a_curve() -> None:
    arrays = curve_fit().arrays
    solver = caspar.Solver([decay], backend="cpu")

    def curve(y: Any, weight: Any) -> Any:
        given = {**arrays["decay"], "y": y, "weight": weight}
        return caspar.torch.solve(solver, {**arrays, "decay": given}, **TIGHT)["Curve"]

    inputs = [tensors(arrays["decay"][name]) for name in ("y", "weight")]
    assert torch.autograd.gradcheck(curve, inputs, eps=1e-3, atol=1e-5, rtol=1e-4)


def test_a_scale_of_a_loss_may_be_learnt() -> None:
    case = ranging()
    solver = caspar.Solver(case.factors, backend="cpu")
    scale = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    given = {**case.arrays, "distance": {**case.arrays["distance"], "loss_scale": scale}}
    values = caspar.torch.solve(solver, given, fixed=case.fixed)
    (values["Place"] ** 2).sum().backward()
    assert scale.grad.shape == ()
    assert float(scale.grad) != 0.0


def test_batches_have_gradients() -> None:
    rng = np.random.default_rng(0)
    solver = caspar.BatchSolver(batches.FACTORS, backend="cpu")
    arrays = batches.waves(rng)
    given = tensors(arrays)
    values = caspar.torch.solve(solver, given)
    values["Wave"].sum().backward()
    expected = solver.gradient(solver.solve(arrays), {"Wave": np.ones((batches.NUM, 3))})
    np.testing.assert_allclose(given["sample"]["y"].grad, expected["sample"]["y"], atol=1e-14)


def test_types_and_what_needs_no_gradient() -> None:
    arrays = curve_fit().arrays
    solver = caspar.Solver([decay], backend="cpu")
    y = torch.tensor(arrays["decay"]["y"], dtype=torch.float32, requires_grad=True)
    start = torch.tensor(arrays["Curve"], dtype=torch.float32)
    given = {**arrays["decay"], "y": y}
    values = caspar.torch.solve(solver, {"Curve": start, "decay": given})
    assert values["Curve"].dtype == torch.float32
    values["Curve"].sum().backward()
    assert y.grad.dtype == torch.float32
    plain = caspar.torch.solve(solver, arrays)["Curve"]
    assert not plain.requires_grad


def test_second_derivatives_are_refused_in_words() -> None:
    arrays = curve_fit().arrays
    solver = caspar.Solver([decay], backend="cpu")
    y = tensors(arrays["decay"]["y"])
    values = caspar.torch.solve(solver, {**arrays, "decay": {**arrays["decay"], "y": y}})
    (slope,) = torch.autograd.grad(values["Curve"].sum(), y, create_graph=True)
    with pytest.raises(InputError, match="second derivatives of a solve are not available"):
        slope.sum().backward()


def test_writing_into_an_input_is_noticed() -> None:
    arrays = curve_fit().arrays
    solver = caspar.Solver([decay], backend="cpu")
    y = tensors(arrays["decay"]["y"])
    values = caspar.torch.solve(solver, {**arrays, "decay": {**arrays["decay"], "y": y}})
    with torch.no_grad():
        y += 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        values["Curve"].sum().backward()


@pytest.mark.parametrize("argument", ["x", "weight"])
def test_writing_into_a_numpy_constant_is_noticed(argument: str) -> None:
    arrays = curve_fit().arrays
    solver = caspar.Solver([decay], backend="cpu")
    y = tensors(arrays["decay"]["y"])
    values = caspar.torch.solve(solver, {**arrays, "decay": {**arrays["decay"], "y": y}})
    arrays["decay"][argument] *= 2.0
    with pytest.raises(InputError, match=f"have changed since the solve.*decay, {argument}"):
        values["Curve"].sum().backward()


def test_remarks_are_warnings() -> None:
    arrays = curve_fit().arrays
    solver = caspar.Solver([decay], backend="cpu")
    y = tensors(arrays["decay"]["y"])
    given = {**arrays, "decay": {**arrays["decay"], "y": y}}
    values = caspar.torch.solve(solver, given, max_iterations=1, cost_tolerance=1e-30)
    with pytest.warns(UserWarning, match=r"caspar\.torch\.solve: The solve ended with"):
        values["Curve"].sum().backward()


def test_blocks_of_the_guide_run() -> None:
    pytest.importorskip("jax")
    page = Path(__file__).parents[2] / "docs/guide/gradients.md"
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page, "python", "py"):
        run(page, block, names)
    assert names["weight"].grad is not None


def test_factors_are_no_solver() -> None:
    factors: Any = [decay]
    with pytest.raises(InputError, match=r"solver is a list; pass a caspar\.Solver"):
        caspar.torch.solve(factors, curve_fit().arrays)
