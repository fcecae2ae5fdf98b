"""Gradients on the device are those of the processor."""

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.autodiff.call import lengths_of
from tests.autodiff.call_cases import NUM, Given, call_of, given
from tests.batch import test_batch_gradients as batches
from tests.solver.gradients.gradient_cases import CASES

pytestmark = pytest.mark.gpu


@caspar.kernel
def scaled(
    scale: Annotated[sf.V1, caspar.ReadShared], point: Annotated[sf.V3, caspar.ReadSequential]
) -> Annotated[sf.V3, caspar.WriteSequential]:
    """A point, longer."""
    return point * (scale[0] + 1)


def on_device(tree: Any) -> Any:
    """Arrays of numbers as CuPy's."""
    import cupy

    if isinstance(tree, dict):
        return {name: on_device(part) for name, part in tree.items()}
    return cupy.asarray(tree) if isinstance(tree, np.ndarray | list) else tree


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_processor(name: str, where: str) -> None:
    case = CASES[name]()
    rng = np.random.default_rng(0)
    expected_of = caspar.Solver(case.factors, backend="cpu", precision="float64")
    arrays = {**case.arrays, **expected_of.solve(case.arrays, fixed=case.fixed).values}
    cotangents = {key: rng.normal(size=np.shape(arrays[key])) for key in case.parts}
    expected = expected_of.gradient(arrays, cotangents, fixed=case.fixed)
    given = (arrays, cotangents) if where == "host" else (on_device(arrays), on_device(cotangents))
    solver = caspar.Solver(case.factors, backend="cuda", precision="float64")
    found = solver.gradient(*given, fixed=case.fixed)
    assert found.remarks == expected.remarks
    for key, part in expected.arrays.items():
        parts = part if isinstance(part, dict) else {None: part}
        for argument, one in parts.items():
            other = found[key] if argument is None else found[key][argument]
            other = other.get() if hasattr(other, "get") else other
            scale = max(float(np.abs(one).max()), 1e-3)
            np.testing.assert_allclose(other, one, rtol=1e-7, atol=1e-8 * scale)


def test_gradients_after_a_solve_on_the_device() -> None:
    case = CASES["graph"]()
    solver = caspar.Solver(case.factors, backend="cuda")
    result = solver.solve(on_device(case.arrays))
    cotangents = {"Pose3": result.values["Pose3"]}
    found = solver.gradient(result, cotangents)
    assert type(found["between"]["weight"]).__module__.startswith("cupy")
    arrays = {**case.arrays, "Pose3": result.values["Pose3"].get()}
    expected = caspar.Solver(case.factors, backend="cpu").gradient(
        arrays, {"Pose3": arrays["Pose3"]}
    )
    np.testing.assert_allclose(
        found["between"]["weight"].get(), expected["between"]["weight"], rtol=1e-6, atol=1e-9
    )


def test_batches_are_those_of_the_processor() -> None:
    rng = np.random.default_rng(0)
    arrays, cotangents = batches.waves(rng), {"Wave": rng.normal(size=(batches.NUM, 3))}
    processor = caspar.BatchSolver(batches.FACTORS, backend="cpu")
    values = processor.solve(arrays).values
    expected = processor.gradient({**arrays, **values}, cotangents)
    device = caspar.BatchSolver(batches.FACTORS, backend="cuda")
    found = device.gradient({**on_device(arrays), **on_device(dict(values))}, on_device(cotangents))
    for name, one in expected["sample"].items():
        other = found["sample"][name].get()
        np.testing.assert_allclose(other, one, rtol=1e-8, atol=1e-10)


def test_torch_on_the_device() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    case = CASES["curve_fit"]()
    solver = caspar.Solver(case.factors, backend="cuda")
    y = torch.tensor(case.arrays["decay"]["y"], device="cuda", requires_grad=True)
    given = {
        "Curve": torch.tensor(case.arrays["Curve"], device="cuda"),
        "decay": {
            name: y if name == "y" else torch.tensor(one, device="cuda")
            for name, one in case.arrays["decay"].items()
        },
    }
    caspar.torch.solve(solver, given)["Curve"].sum().backward()
    assert y.grad.device.type == "cuda"
    expected_of = caspar.Solver(case.factors, backend="cpu")
    result = expected_of.solve(case.arrays)
    expected = expected_of.gradient(result, {"Curve": np.ones((1, 3))})["decay"]["y"]
    np.testing.assert_allclose(y.grad.cpu(), expected, rtol=1e-5, atol=1e-7)


def indices_on_device(tree: Any) -> Any:
    """The same with indices as CuPy's; prepared ones as plain ones."""
    import cupy

    if isinstance(tree, dict):
        return {name: indices_on_device(part) for name, part in tree.items()}
    if isinstance(tree, caspar.SharedIndices):
        tree = tree.index
    return cupy.asarray(tree) if isinstance(tree, np.ndarray) else tree


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_derivatives_of_kernels_are_those_of_the_processor(dtype: str) -> None:
    passed = given(count=3000, dtype=dtype)
    call, values = call_of(passed)
    call = replace(call, choices=replace(call.choices, backend="cpu"))
    rng = np.random.default_rng(1)
    cotangents = [rng.normal(size=rows.shape).astype(dtype) for rows in call.run(values)]
    names = [one.name for one in call.inputs]
    expected = call.pulled(names, lengths_of(values)).run([*values, *cotangents])
    out = {**passed.out, "prepared": {**passed.out["prepared"], "size": NUM}}
    device, rows = call_of(Given(indices_on_device(passed.arguments), indices_on_device(out)))
    pulled = device.pulled(names, lengths_of(rows))
    found = pulled.run([*rows, *map(on_device, cotangents)])
    for one, other in zip(found, expected, strict=True):
        assert type(one).__module__.startswith("cupy")
        tolerance = (1e-10 if dtype == "float64" else 1e-4) * max(np.abs(other).max(), 1e-3)
        np.testing.assert_allclose(one.get(), other, atol=tolerance)


def test_torch_tensors_of_the_device_have_gradients() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    points = np.random.default_rng(0).normal(size=(500, 3))
    found = {}
    for device in ("cpu", "cuda"):
        tensor = torch.tensor(points, device=device, requires_grad=True)
        index = torch.zeros(500, dtype=torch.int32, device=device)
        scale = torch.ones(1, 1, dtype=torch.float64, device=device, requires_grad=True)
        moved = caspar.torch.call(scaled, {"values": scale, "index": index}, tensor)
        assert moved.device == tensor.device
        (moved**2).sum().backward()
        found[device] = [scale.grad.cpu().numpy(), tensor.grad.cpu().numpy()]
    for one, other in zip(found["cuda"], found["cpu"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
