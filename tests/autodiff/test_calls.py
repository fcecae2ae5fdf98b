"""Derivatives of kernels: every access, both languages, both types, without PyTorch and JAX."""

import importlib
import re
import sys
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.autodiff import call as calls
from caspar.autodiff.call import Call, lengths_of, passed_to_factor, passed_to_kernel
from caspar.codegen.targets import TARGETS
from caspar.errors import InputError, KernelError, MissingPackageError
from caspar.frontend.kernels.pulled import pulled_kernel
from caspar.ir.dtype import DType
from caspar.kernels.call.compiled import kernel_source
from caspar.runtime.nvidia.nvrtc import compile_source
from caspar.version import install_command
from tests.autodiff.call_cases import COUNT, call_of, given, mixed
from tests.covering import first
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend
from tests.kernels.test_patterns import use_backend

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")


@pytest.fixture(params=["cpu", pytest.param("harness", marks=needs_compiler)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The processor, or CUDA's text on it."""
    monkeypatch.setattr(calls, "_KNOWN", {})
    if request.param == "harness":
        use_backend(monkeypatch, HarnessBackend())
    return str(request.param)


# CUDA's texts of the same accesses are run by `tests/kernels/test_patterns.py`
ON_THE_PROCESSOR = pytest.mark.parametrize("backend", first(1, ["cpu", "harness"]), indirect=True)


def cotangents_of(call: Call, values: list[Any], seed: int = 1) -> list[Any]:
    """Random derivatives by the outputs."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=rows.shape).astype(rows.dtype) for rows in call.run(values)]


def pulled(call: Call, values: list[Any], cotangents: list[Any]) -> tuple[Any, ...]:
    """Derivatives by all values."""
    names = [one.name for one in call.inputs]
    return call.pulled(names, lengths_of(values)).run([*values, *cotangents])


def slope(
    call: Call,
    values: list[Any],
    place: int,
    way: Any,
    cotangents: list[Any],
    step: float = 2e-3,
) -> float:
    """The derivative of <cotangents, outputs> along a way of one value, by six values."""

    def product(length: float) -> float:
        moved = [rows + length * way if number == place else rows for number, rows in own]
        found = call.run(moved)
        return float(sum((a * b).sum() for a, b in zip(found, cotangents, strict=True)))

    own = list(enumerate(values))
    weights = {1: 45.0, 2: -9.0, 3: 1.0}
    return sum(
        weight * (product(number * step) - product(-number * step))
        for number, weight in weights.items()
    ) / (60.0 * step)


@ON_THE_PROCESSOR
def test_every_access_has_the_right_derivative(backend: str) -> None:
    call, values = call_of(given())
    cotangents = cotangents_of(call, values)
    rng = np.random.default_rng(2)
    for place, found in enumerate(pulled(call, values, cotangents)):
        assert found.shape == values[place].shape
        way = rng.normal(size=found.shape) * (rng.uniform(size=found.shape) < 0.05)
        if found.size == 1:
            way = np.ones(found.shape)
        expected = slope(call, values, place, way, cotangents)
        size = np.abs(found * way).sum()
        assert abs(float((found * way).sum()) - expected) <= 1e-7 * max(size, 1.0)
        assert (size > 0.0) == (call.inputs[place].name != "ignored")


def test_float32_is_float64_rounded() -> None:
    call, values = call_of(given())
    cotangents = cotangents_of(call, values)
    expected = pulled(call, values, cotangents)
    narrow, _ = call_of(given(dtype="float32"))
    own = [rows.astype("float32") for rows in values]
    found = pulled(narrow, own, [rows.astype("float32") for rows in cotangents])
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, atol=2e-5 * max(np.abs(other).max(), 1.0))


@ON_THE_PROCESSOR
def test_the_derivative_of_a_derivative(backend: str) -> None:
    """A kernel that is pulled is a kernel: <w, J^T y'> has derivatives by x and y'."""
    call, values = call_of(given(count=40))
    names = ["own", "scale", "pair_read", "shared_read", "strided_read"]
    first = call.pulled(names, lengths_of(values))
    own = [*values, *cotangents_of(call, values)]
    cotangents = cotangents_of(first, own, seed=3)
    rng = np.random.default_rng(4)
    for place, found in enumerate(pulled(first, own, cotangents)):
        assert found.shape == own[place].shape
        way = rng.normal(size=found.shape)
        # short: slopes jump where branches meet
        expected = slope(first, own, place, way, cotangents, step=1e-4)
        size = np.abs(found * way).sum()
        assert abs(float((found * way).sum()) - expected) <= 1e-7 * max(size, 1.0)


def test_only_what_is_wanted_is_computed() -> None:
    call, values = call_of(given())
    cotangents = cotangents_of(call, values)
    everything = dict(
        zip([one.name for one in call.inputs], pulled(call, values, cotangents), strict=True)
    )
    some = call.pulled(["scale", "own"], lengths_of(values))
    assert [one.name for one in some.outputs] == ["own__pull", "scale__pull"]
    by_own, by_scale = some.run([*values, *cotangents])
    np.testing.assert_allclose(by_own, everything["own"], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(by_scale, everything["scale"], rtol=1e-12)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
def test_nvrtc_compiles_derivatives(dtype: DType) -> None:
    call, _ = call_of(given())
    traced = call.kernel.traced
    for derived in (
        pulled_kernel(traced, [one.name for one in traced.inputs]),
        pulled_kernel(pulled_kernel(traced, ["own"]), ["own", "scale"]),
    ):
        writes = {one.name: one.access.in_kernel({}, True) for one in derived.outputs}
        source = kernel_source(derived, dtype, writes, TARGETS["cuda"])
        compile_source(source, "sm_90")


def test_lengths_of_outputs_are_known_before_the_call() -> None:
    for count in (0, 1, 2, COUNT):
        call, values = call_of(given(count))
        lengths = call.output_lengths(lengths_of(values))
        assert lengths == lengths_of(call.run(values))


class Point(sf.V2):
    """A point of a path."""


class Gain(sf.V1):
    """One number."""


@caspar.factor
def drift(
    pair: Annotated[caspar.Pair[Point], caspar.TunablePair],
    gain: Annotated[Gain, caspar.TunableUnique],
    step: Annotated[sf.V2, caspar.ConstSequential],
    wind: Annotated[sf.V2, caspar.ConstIndexed],
    residual: Annotated[sf.V1, caspar.ConstUnique],
) -> sf.V2:
    """A step, up to wind."""
    before, after = pair
    return (after - before - step) * gain[0] - sf.sin(residual[0]) * wind


def drift_arrays() -> dict[str, Any]:
    """Arrays of `drift`, and of another factor."""
    rng = np.random.default_rng(0)
    own = {
        "step": rng.normal(size=(6, 2)),
        "wind": {"values": rng.normal(size=(3, 2)), "index": [0, 1, 2, 2, 1, 0]},
        "residual": np.array([0.3]),
        "weight": np.ones(6),
    }
    return {
        "Point": rng.normal(size=(7, 2)),
        "Gain": rng.normal(size=(1, 1)),
        "drift": own,
        "other": {"x": 1.0},
    }


def test_residuals_are_those_of_the_solver() -> None:
    arrays = drift_arrays()
    taken = passed_to_factor(drift, arrays, backend="cpu", check=True)
    assert [one.name for one in taken.call.outputs] == ["residual_"]
    rows = [np.atleast_2d(np.asarray(one)) for one in taken.values]
    (found,) = taken.call.run(rows)
    del arrays["other"]
    solver = caspar.Solver([drift], backend="cpu", precision="float64")
    np.testing.assert_allclose(found, solver.evaluate(arrays).residuals("drift"), atol=1e-15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("Gain"), "factor drift: 'Gain' missing"),
        (lambda a: a.pop("drift"), "factor drift: 'drift' missing"),
        (lambda a: a.update(drift=3.0), "expected a mapping of step, wind, residual, got float"),
        (lambda a: a["drift"].pop("step"), "factor drift: 'step' is missing"),
        (lambda a: a["drift"].update(stepp=1.0), r"unknown name 'stepp' \(did you mean 'step'"),
        (lambda a: a["drift"].update(wind={"index": [0]}), "argument wind: 'values' is missing"),
    ],
)
def test_wrong_arrays_of_a_factor(change: Any, message: str) -> None:
    arrays = drift_arrays()
    change(arrays)
    with pytest.raises(InputError, match=message):
        passed_to_factor(drift, arrays, backend="cpu", check=True)


@caspar.kernel
def averaged(
    x: Annotated[sf.V2, caspar.ReadStridedWithDefault([0.0, 0.0])],
    y: Annotated[sf.V2, caspar.ReadSequential],
) -> Annotated[sf.V2, caspar.WriteSequential]:
    """Reads what may not be there."""
    return x + y


def test_what_has_no_derivative_is_refused_in_words() -> None:
    values = np.ones((3, 2))
    arguments = {"x": {"values": values}, "y": values}
    call = passed_to_kernel(averaged, (), arguments, None, count=None, check=True).call
    with pytest.raises(KernelError, match="argument x: ReadStridedWithDefault has no derivative"):
        call.pulled(["x"], [3, 3])
    assert call.pulled(["y"], [3, 3]).run([values, values, values])[0].shape == (3, 2)
    out = {**given().out, "added": np.zeros((COUNT, 3))}
    with pytest.raises(InputError, match="output added: an array to write to"):
        passed_to_kernel(mixed, (), given().arguments, out, count=None, check=True)
    with pytest.raises(InputError, match=r"needs a kernel that caspar.kernel made, got Factor"):
        passed_to_kernel(drift, (), {}, None, count=None, check=True)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"needs a factor that caspar.factor made, got Kernel"):
        passed_to_factor(mixed, {}, backend="cpu", check=True)  # type: ignore[arg-type]


@caspar.kernel
def constant(x: Annotated[sf.V2, caspar.ReadUnique]) -> Annotated[sf.V2, caspar.WriteSequential]:
    """The same for all."""
    return 2 * x


def test_numbers_of_items() -> None:
    values = np.ones((1, 2))
    call = passed_to_kernel(constant, (values,), {}, None, count=None, check=True).call
    with pytest.raises(InputError, match="no argument says how many items there are; pass count"):
        call.count([1])
    call = passed_to_kernel(constant, (values,), {}, None, count=5, check=True).call
    assert call.output_lengths([1]) == [5]
    (found,) = call.pulled(["x"], [1]).run([values, np.ones((5, 2))])
    np.testing.assert_array_equal(found, [[10.0, 10.0]])
    call, rows = call_of(given())
    lengths = lengths_of(rows)
    lengths[0] = 7
    with pytest.raises(InputError, match="7 items, but its arguments are for 7, 300"):
        call.count(lengths)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_without_the_library(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == library or name.startswith(f"caspar.{library}"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(vars(caspar), library, raising=False)
    needs = rf"caspar\.{library} needs {library}, .* {re.escape(install_command(library))}"
    with pytest.raises(MissingPackageError, match=needs) as caught:
        importlib.import_module(f"caspar.{library}")
    assert isinstance(caught.value, ImportError)
    with pytest.raises(MissingPackageError, match=needs):
        getattr(caspar, library)
