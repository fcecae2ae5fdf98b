"""`caspar.jax.call` and `.residuals`: needs JAX, on the processor."""

from typing import Any

import numpy as np
import pytest

import caspar
from tests.autodiff.call_cases import NAMES, given, mixed, values_of
from tests.autodiff.jax_cases import wide  # noqa: F401
from tests.autodiff.test_calls import constant, drift, drift_arrays

jax = pytest.importorskip("jax", reason="JAX is not installed")


def called(passed: Any, arrays: dict[str, Any]) -> Any:
    """Outputs of `mixed` with some values replaced by JAX arrays."""
    arguments: dict[str, Any] = {
        name: {**one, "values": arrays.get(name, one["values"])}
        if isinstance(one, dict)
        else arrays.get(name, one)
        for name, one in passed.arguments.items()
    }
    return caspar.jax.call(mixed, out=passed.out, **arguments)


def test_check_grads_of_every_access() -> None:
    from jax.test_util import check_grads

    passed = given(count=6)
    values = values_of(passed.arguments)
    arrays = tuple(jax.numpy.asarray(values[name]) for name in NAMES)

    def function(*given: Any) -> Any:
        return tuple(called(passed, dict(zip(NAMES, given, strict=True))))

    for one, other in zip(
        function(*arrays), mixed(out=passed.out, **passed.arguments), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    check_grads(function, arrays, 2, ("rev",), atol=1e-5, rtol=1e-5)


def test_jit_and_traced_indices() -> None:
    passed = given(count=6)
    values = values_of(passed.arguments)

    def total(scale: Any, index: Any) -> Any:
        own = {**passed.arguments["indexed"], "index": index}
        arguments = {**passed.arguments, "indexed": own, "scale": scale}
        return caspar.jax.call(mixed, out=passed.out, **arguments).into_unique.sum()

    scale, index = jax.numpy.asarray(values["scale"]), passed.arguments["indexed"]["index"]
    slope = jax.grad(total)
    found = jax.jit(slope)(scale, index)
    np.testing.assert_allclose(found, slope(scale, index), rtol=1e-12)
    np.testing.assert_allclose(found, slope(scale, jax.numpy.asarray(index)), rtol=1e-12)
    several = jax.vmap(total, (0, None))(jax.numpy.stack([scale, scale + 1.0]), index)
    np.testing.assert_allclose(several[1], total(scale + 1.0, index), rtol=1e-12)


def test_residuals_have_gradients() -> None:
    from jax.test_util import check_grads

    arrays = drift_arrays()
    own = arrays["drift"]

    def residuals(point: Any, gain: Any, wind: Any) -> Any:
        passed = {**own, "wind": {**own["wind"], "values": wind}}
        given = {**arrays, "Point": point, "Gain": gain, "drift": passed}
        return caspar.jax.residuals(drift, given, backend="cpu")

    inputs = [
        jax.numpy.asarray(one) for one in (arrays["Point"], arrays["Gain"], own["wind"]["values"])
    ]
    assert residuals(*inputs).shape == (6, 2)
    check_grads(residuals, inputs, 2, ("rev",))


def test_no_items_and_float32() -> None:
    jax.config.update("jax_enable_x64", False)
    passed = given(count=0)
    scale = jax.numpy.ones(1)

    def total(scale: Any) -> Any:
        found = called(passed, {"scale": scale})
        assert found.written.dtype == np.float32
        return sum(one.sum() for one in found)

    np.testing.assert_array_equal(jax.grad(total)(scale), [0.0])
    found = jax.grad(lambda x: caspar.jax.call(constant, x, count=5).sum())(jax.numpy.ones((1, 2)))
    np.testing.assert_array_equal(found, [[10.0, 10.0]])


def test_numpy_arrays_may_be_written_to_before_the_backward_pass() -> None:
    passed = given(count=6)
    values = values_of(passed.arguments)

    def slopes(*, writes: bool) -> Any:
        own = given(count=6)
        found, pull = jax.vjp(
            lambda array: sum(one.sum() for one in called(own, {"own": array})),
            jax.numpy.asarray(values["own"]),
        )
        if writes:
            own.arguments["indexed"]["index"][:] = 0
            own.arguments["indexed"]["values"][:] = 9.0
            own.arguments["scale"][...] = 9.0
        return pull(jax.numpy.ones_like(found))[0]

    np.testing.assert_array_equal(slopes(writes=True), slopes(writes=False))
