"""Derivatives of kernels and residuals that look values up in tables, by places and by tables."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import caspar
from caspar.autodiff import call as calls
from caspar.autodiff.call import Call, lengths_of, passed_to_factor, passed_to_kernel
from caspar.codegen.targets import TARGETS
from caspar.frontend.kernels.pulled import pulled_kernel
from caspar.ir.dtype import DType
from caspar.kernels.call.compiled import kernel_source
from caspar.runtime.nvidia.nvrtc import compile_source
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend
from tests.kernels.test_patterns import use_backend

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")

COUNT = 15


class Clamped(caspar.Grid, dims=2, channels=2, method="cubic"):
    """The nearest sample outside."""


class Zero(caspar.Grid, dims=2, channels=2, border="zero"):
    """Nothing outside."""


class Half(caspar.Grid, dims=2, channels=2, dtype="float16"):
    """The nearest sample outside, in half the memory."""


class Strict(caspar.Grid, dims=1, border="refuse"):
    """A curve that ends."""


def kernel_of(kind: Any) -> Any:
    @caspar.kernel(backend="cpu")
    def looked_up(
        place: Annotated[sf.V2, caspar.ReadSequential],
        scale: Annotated[sf.Symbol, caspar.ReadUnique],
        tables: Annotated[kind, caspar.ReadIndexed],
        image: Annotated[caspar.Image, caspar.ReadUnique],
    ) -> Annotated[sf.V2, caspar.WriteSequential]:
        """Not linear in the tables."""
        first, second = tables.at(*place)
        return sf.V2(first * second, scale * image.at(place[1], place[0]) + second)

    return looked_up


INDEX = np.random.default_rng(3).integers(0, 2, COUNT)


def values_of(kind: Any) -> list[Any]:
    """Places inside and outside of tables of numbers that float16 has, of which one is named."""
    rng = np.random.default_rng(4)
    place = rng.uniform([-2.5, -2.5], [7.5, 6.5], (COUNT, 2))
    tables = rng.normal(size=(3, 5, 6, 2)).astype(np.float16).astype(float)
    return [place, np.array([[1.5]]), tables, rng.normal(size=(6, 5))]


def call_of(kind: Any, values: Sequence[Any]) -> Call:
    place, scale, tables, image = values
    given = place, scale, {"values": tables, "index": INDEX}, image
    return passed_to_kernel(kernel_of(kind), given, {}, None, count=None, check=True).call


def added(length: int, places: Any, numbers: Any) -> NDArray[Any]:
    found: NDArray[Any] = np.zeros(length, numbers.dtype)
    np.add.at(found, places, numbers)
    return found


def derived(call: Call, values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """Derivatives by all values."""
    names = [one.name for one in call.inputs]
    outputs = call.pulled(names, lengths_of(values)).run([*values, *cotangents])
    return call.derivatives(names, outputs, values, np, added)


def assert_slopes(call: Call, values: Sequence[Any], found: Sequence[Any], cotangent: Any) -> None:
    """Derivatives are those of the outputs along random ways."""
    rng = np.random.default_rng(5)
    for place, one in enumerate(found):
        assert one.shape == values[place].shape
        way = rng.normal(size=one.shape)
        ends = [[*values], [*values]]
        for end, sign in zip(ends, (1.0, -1.0), strict=True):
            end[place] = values[place] + sign * 1e-5 * way
        products = [float((call.run(end)[0] * cotangent).sum()) for end in ends]
        assert_allclose(float((one * way).sum()), (products[0] - products[1]) / 2e-5, rtol=1e-6)


@pytest.mark.parametrize("kind", [Clamped, Zero])
@pytest.mark.parametrize("backend", ["cpu", pytest.param("harness", marks=needs_compiler)])
def test_derivatives_by_places_and_tables(
    kind: Any, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_KNOWN", {})
    if backend == "harness":
        use_backend(monkeypatch, HarnessBackend())
    values = values_of(kind)
    call, cotangent = call_of(kind, values), np.random.default_rng(6).normal(size=(COUNT, 2))
    found = derived(call, values, [cotangent])
    assert_slopes(call, values, found, cotangent)
    assert not found[2][2].any()  # no item names it
    assert found[2][:2].any()
    # one argument alone
    (alone,) = call.pulled(["place"], lengths_of(values)).run([*values, cotangent])
    assert_allclose(alone, found[0], rtol=1e-12, atol=1e-13)


def test_tables_in_float16_have_the_same_derivatives() -> None:
    class Full(caspar.Grid, dims=2, channels=2):
        """The same in the type that is computed in."""

    values = values_of(Half)
    cotangent = np.random.default_rng(6).normal(size=(COUNT, 2))
    found = derived(call_of(Half, values), values, [cotangent])
    for one, other in zip(found, derived(call_of(Full, values), values, [cotangent]), strict=True):
        assert_array_equal(one, other)


def test_the_derivative_of_a_derivative() -> None:
    values = values_of(Clamped)
    rng = np.random.default_rng(7)
    cotangent = rng.normal(size=(COUNT, 2))
    first = call_of(Clamped, values).pulled(["place"], lengths_of(values))
    own = [*values, cotangent]
    second = rng.normal(size=(COUNT, 2))
    assert_slopes(first, own, derived(first, own, [second]), second)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
def test_nvrtc_compiles_derivatives(dtype: DType) -> None:
    kernel = call_of(Half, values_of(Half)).kernel
    num_loads = {name: len(one.channels) for name, one in kernel.loads.items()}
    assert num_loads == {"tables": 8, "image": 4}
    traced = pulled_kernel(kernel.traced, ["place", "tables", "image"], num_loads)
    writes = {one.name: one.access.in_kernel({}, True) for one in traced.outputs}
    compile_source(kernel_source(traced, dtype, writes, TARGETS["cuda"]), "sm_90")


@caspar.kernel(backend="cpu")
def on_curve(
    x: Annotated[sf.Symbol, caspar.ReadSequential], curve: Annotated[Strict, caspar.ReadUnique]
) -> Annotated[sf.Symbol, caspar.WriteSequential]:
    """A curve that is looked up."""
    return curve.at(x)


def test_nothing_outside_of_a_table_that_refuses_has_a_derivative() -> None:
    x, curve = np.array([[0.5], [1.25], [2.5], [-1.0]]), np.array([1.0, 3.0, 2.0])
    call = passed_to_kernel(on_curve, (x[:, 0], curve), {}, None, count=None, check=True).call
    (found,) = call.run([x, curve])
    assert_allclose(found[:2, 0], [2.0, 2.75])
    assert np.isnan(found[2:]).all()
    by_x, by_curve = derived(call, [x, curve], [np.ones((4, 1))])
    assert_allclose(by_x[:, 0], [2.0, -1.0, 0.0, 0.0])
    assert_allclose(by_curve, [0.5, 1.25, 0.25])


class Place(sf.V1):
    """A place on a curve."""


@caspar.factor
def sounding(
    place: Annotated[Place, caspar.TunableUnique],
    offset: Annotated[sf.Scalar, caspar.ConstSequential],
    curve: Annotated[Strict, caspar.ConstUnique],
) -> sf.V2:
    """Two rows, which are left out together."""
    return sf.V2(curve.at(place[0] + offset), offset + 1)


def test_residuals_of_factors_are_those_of_the_solver() -> None:
    offset, curve = np.array([0.0, 0.5, 5.0]), np.array([1.0, 3.0, 2.0])
    arrays = {"Place": np.array([[0.25]]), "sounding": {"offset": offset, "curve": curve}}
    passed = passed_to_factor(sounding, arrays, backend="cpu", check=True)
    values = [np.array([[0.25]]), offset[:, None], curve]
    (found,) = passed.call.run(values)
    solver = caspar.Solver(sounding, backend="cpu", precision="float64")
    assert_allclose(found, solver.evaluate(arrays).residuals("sounding"), atol=1e-15)
    assert not found[2].any()
    by_place, by_offset, by_curve = derived(passed.call, values, [np.ones((3, 2))])
    assert_allclose(by_place, [[4.0]])
    assert_allclose(by_offset[:, 0], [3.0, 3.0, 0.0])
    assert_allclose(by_curve, [1.0, 1.0, 0.0])


def test_functions_of_jax_look_up() -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    values = values_of(Zero)
    kernel, cotangent = kernel_of(Zero), np.random.default_rng(6).normal(size=(COUNT, 2))

    def total(place: Any, tables: Any, image: Any) -> Any:
        found = caspar.jax.call(kernel, place, values[1], {"values": tables, "index": INDEX}, image)
        return (found * cotangent).sum()

    given = [jax.numpy.asarray(values[number], dtype="float32") for number in (0, 2, 3)]
    expected = derived(call_of(Zero, values), values, [cotangent])
    found = jax.jit(jax.grad(total, (0, 1, 2)))(*given)
    for one, number in zip(found, (0, 2, 3), strict=True):
        assert_allclose(one, expected[number], atol=2e-4)

    def cost(place: Any, curve: Any) -> Any:
        own = {"offset": np.array([0.0, 0.5, 5.0]), "curve": curve}
        found = caspar.jax.residuals(sounding, {"Place": place, "sounding": own}, backend="cpu")
        return (found[:, 0] ** 2).sum()

    place, curve = jax.numpy.array([[0.25]]), jax.numpy.array([1.0, 3.0, 2.0])
    by_place, by_curve = jax.grad(cost, (0, 1))(place, curve)
    assert_allclose(by_place, [[16.0]], rtol=1e-5)
    assert_allclose(by_curve, [3.5, 4.5, 0.0], rtol=1e-5)


def test_functions_of_torch_look_up() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    values = values_of(Clamped)
    cotangent = np.random.default_rng(6).normal(size=(COUNT, 2))
    given = [torch.tensor(one, requires_grad=True) for one in values]
    place, scale, tables, image = given
    found = caspar.torch.call(
        kernel_of(Clamped), place, scale, {"values": tables, "index": INDEX}, image
    )
    (found * torch.tensor(cotangent)).sum().backward()
    expected = derived(call_of(Clamped, values), values, [cotangent])
    for one, other in zip(given, expected, strict=True):
        assert_allclose(one.grad.numpy(), other, atol=1e-12)
    half = torch.tensor(values[2], dtype=torch.float16, requires_grad=True)
    caspar.torch.call(
        kernel_of(Half), place, scale, {"values": half, "index": INDEX}, image
    ).sum().backward()
    assert half.grad.dtype == torch.float16
