"""`caspar.torch.call` and `.residuals`: needs PyTorch, on the processor."""

from typing import Any

import numpy as np
import pytest

import caspar
from caspar.errors import InputError
from tests.autodiff.call_cases import NAMES, given, mixed, values_of
from tests.autodiff.test_calls import averaged, constant, drift, drift_arrays

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def called(passed: Any, tensors: dict[str, Any]) -> Any:
    """Outputs of `mixed` with some values replaced by tensors."""
    arguments: dict[str, Any] = {
        name: {**one, "values": tensors.get(name, one["values"])}
        if isinstance(one, dict)
        else tensors.get(name, one)
        for name, one in passed.arguments.items()
    }
    return caspar.torch.call(mixed, out=passed.out, **arguments)


def test_a_call_returns_what_the_kernel_returns() -> None:
    passed = given()
    expected = mixed(out=passed.out, **passed.arguments)
    found = called(passed, {})
    assert type(found) is type(expected)
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, torch.Tensor)
        # rows of NumPy may have gone to a GPU, whose last bits are others
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_gradcheck_of_every_access() -> None:
    passed = given(count=6)
    values = values_of(passed.arguments)
    tensors = [torch.tensor(values[name], requires_grad=True) for name in NAMES]

    def function(*given: Any) -> Any:
        return tuple(called(passed, dict(zip(NAMES, given, strict=True))))

    assert torch.autograd.gradcheck(function, tensors, atol=1e-7, rtol=1e-7, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, tensors, atol=1e-6, rtol=1e-6, fast_mode=True)


def test_float32_and_shapes_of_gradients() -> None:
    passed = given(dtype="float32")
    values = values_of(passed.arguments)
    tensors = {name: torch.tensor(values[name], requires_grad=True) for name in NAMES}
    found = called(passed, tensors)
    sum((one**2).sum() for one in found).backward()
    for one in tensors.values():
        assert one.grad.dtype == torch.float32
        assert one.grad.shape == one.shape
        assert bool((one.grad != 0.0).any())


def test_no_items() -> None:
    passed = given(count=0)
    values = values_of(passed.arguments)
    tensors = {name: torch.tensor(values[name], requires_grad=True) for name in NAMES}
    found = called(passed, tensors)
    sum(one.sum() for one in found).backward()
    for one in tensors.values():
        assert one.grad.shape == one.shape
        assert not bool(one.grad.any())


def test_transforms_of_functions() -> None:
    passed = given(count=4)
    values = values_of(passed.arguments)

    def total(scale: Any) -> Any:
        return called(passed, {"scale": scale}).into_unique.sum()

    scale = torch.tensor(values["scale"])
    slope = torch.func.grad(total)(scale)
    (expected,) = torch.autograd.grad(total(scale.requires_grad_()), scale)
    torch.testing.assert_close(slope, expected)
    bend = torch.func.jacrev(torch.func.grad(total))(scale)
    step = 1e-5
    ahead, behind = (torch.func.grad(total)(scale.detach() + sign * step) for sign in (1, -1))
    torch.testing.assert_close(bend[0], (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)
    several = torch.func.vmap(total)(torch.stack([scale.detach(), scale.detach() + 1.0]))
    torch.testing.assert_close(several[1], total(scale.detach() + 1.0))


def test_residuals_have_gradients() -> None:
    arrays = drift_arrays()
    own = arrays["drift"]

    def residuals(point: Any, gain: Any, step: Any, wind: Any, angle: Any) -> Any:
        passed = {"step": step, "wind": {**own["wind"], "values": wind}, "residual": angle}
        given = {**arrays, "Point": point, "Gain": gain, "drift": passed}
        return caspar.torch.residuals(drift, given, backend="cpu")

    inputs = [
        torch.tensor(array, requires_grad=True)
        for array in (
            arrays["Point"],
            arrays["Gain"],
            own["step"],
            own["wind"]["values"],
            own["residual"],
        )
    ]
    found = residuals(*inputs)
    assert found.shape == (6, 2)
    assert torch.autograd.gradcheck(residuals, inputs, atol=1e-7, rtol=1e-7)
    assert torch.autograd.gradgradcheck(residuals, inputs, atol=1e-6, rtol=1e-6)


def test_what_no_gradient_flows_through() -> None:
    x = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    assert caspar.torch.call(constant, x.detach(), count=3).grad_fn is None
    rows = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    found = caspar.torch.call(averaged, {"values": rows.detach()}, rows)
    found.sum().backward()
    np.testing.assert_array_equal(rows.grad, np.ones((3, 2)))
    # lists are taken in the type of the others
    assert caspar.torch.call(averaged, {"values": [[1.0, 2.0]]}, rows).dtype == torch.float64
    with pytest.raises(InputError, match="argument x: object is no tensor"):
        caspar.torch.call(constant, object(), count=3)
    with pytest.raises(InputError, match=r"use caspar\.torch\.call"):
        constant(x, count=3)


def test_numpy_arrays_may_be_written_to_before_the_backward_pass() -> None:
    passed = given(count=6)
    values = values_of(passed.arguments)

    def slopes(*, writes: bool) -> Any:
        own = given(count=6)
        tensor = torch.tensor(values["own"], requires_grad=True)
        found = called(own, {"own": tensor})
        if writes:
            own.arguments["indexed"]["index"][:] = 0
            own.arguments["indexed"]["values"][:] = 9.0
            own.arguments["scale"][...] = 9.0
        sum(one.sum() for one in found).backward()
        return tensor.grad

    torch.testing.assert_close(slopes(writes=True), slopes(writes=False), rtol=0.0, atol=0.0)
