"""Kernel functions: that the graph computes the function, and what the kernel is."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from symforce.ops import StorageOps

import caspar
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.frontend.kernels.spec import kernel_spec
from caspar.frontend.kernels.trace import (
    KernelPart,
    TracedKernel,
    kernel_argument,
)
from caspar.frontend.symbolic import epsilon
from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec
from caspar.memory.array import Binding
from caspar.memory.patterns import (
    AddSharedPartials,
    AddSharedSum,
    AddSumPartials,
    ReadIndexed,
    ReadPair,
    ReadShared,
    WriteIndexed,
    WritePair,
    WriteSequential,
    WriteSum,
)
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.nvidia.nvrtc import compile_kernel_text
from tests.covering import first
from tests.frontend.factors.residuals import random_storage
from tests.frontend.kernels.kernel_functions import (
    DTYPES,
    KERNELS,
    Array,
    Scalar,
    graph_outputs,
    own_writes,
    plain_writes,
    polar,
    projected,
    traced,
)

# -- numbers ---------------------------------------------------------------------------------------


def arguments_from(kernel: TracedKernel, rows: Mapping[str, Array], lane: int) -> list[Any]:
    """The function's arguments as SymForce values of numbers."""
    values = []
    for argument in kernel.inputs:
        is_pair = isinstance(argument.symbolic, caspar.Pair)
        like = argument.symbolic if is_pair else [argument.symbolic]
        parts = [
            StorageOps.from_storage(part, rows[name.name][lane].tolist())
            for part, name in zip(like, argument.parts, strict=True)
        ]
        values.append(caspar.Pair(parts) if is_pair else parts[0])
    return values


def flat(value: Any) -> list[float]:
    """The storage of what a function returned."""
    if isinstance(value, list | tuple):
        return [scalar for part in value for scalar in flat(part)]
    return [float(scalar) for scalar in StorageOps.to_storage(value)]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("function", KERNELS, ids=lambda function: function.__name__)
def test_the_graph_computes_the_function(function: Callable[..., Any], dtype: DType) -> None:
    rng = np.random.default_rng(0)
    kernel = traced(function)
    rows = {
        part.name: np.stack([random_storage(type(element), rng) for _ in range(4)])
        for argument in kernel.inputs
        for part, element in zip(
            argument.parts,
            argument.symbolic
            if isinstance(argument.symbolic, caspar.Pair)
            else [argument.symbolic],
            strict=True,
        )
    }
    spec = kernel_spec(kernel, dtype, plain_writes(kernel))
    assert spec.graph.dtype is dtype
    found = graph_outputs(spec, rows)
    for lane in range(4):
        result = function(*arguments_from(kernel, rows, lane))
        values = [result] if kernel.result_type is None else result
        for output, value in zip(kernel.outputs, values, strict=True):
            expected = flat(value)
            eps = 100 * float(np.finfo(dtype.value).eps)
            assert len(expected) == output.storage_dim * (2 if output.access.is_pair else 1)
            assert_allclose(found[output.kernel_argument][lane], expected, rtol=eps, atol=eps)


def test_epsilon_is_that_of_the_type() -> None:
    def guarded(x: Scalar) -> Annotated[sf.Symbol, WriteSequential]:
        return x * 0 + sf.epsilon() * 2

    kernel = traced(guarded)
    for dtype in DTYPES:
        spec = kernel_spec(kernel, dtype, own_writes(kernel))
        found = graph_outputs(spec, {"x__value": np.ones((1, 1))})
        assert_allclose(found["out__value"], [[2 * epsilon.value(dtype)]], rtol=1e-6)


# -- the kernel ------------------------------------------------------------------------------------


class TestSpec:
    def test_arguments(self) -> None:
        def example(
            arg0: Annotated[sf.V3, ReadShared],
            arg1: Annotated[caspar.Pair[sf.V6], ReadPair],
        ) -> tuple[
            Annotated[sf.V2, AddSharedSum],
            Annotated[sf.Symbol, WriteIndexed],
            Annotated[sf.V3, WriteSum],
            Annotated[caspar.Pair[sf.V3], WritePair],
        ]:
            moved = arg0 * arg1[0][0]
            return sf.V2(moved[0], moved[1]), moved[2], moved, caspar.Pair((moved, 2 * arg0))

        kernel = traced(example)
        spec = kernel_spec(kernel, DType.FLOAT32, own_writes(kernel))
        single, double = DTYPES
        assert spec.args == (
            ArgSpec("arg0__value", 3, single, read=ReadShared(), windowed=True),
            ArgSpec("arg1__first", 6, single, read=ReadPair(successor=False), windowed=True),
            ArgSpec("arg1__second", 6, single, read=ReadPair(successor=True), windowed=True),
            ArgSpec("out0__value", 2, single, write=AddSharedPartials()),
            ArgSpec("out1__value", 1, single, write=WriteIndexed(), windowed=True),
            ArgSpec("out2__value", 3, double, write=AddSumPartials()),
            ArgSpec("out3__value", 3, single, write=WritePair(), windowed=True),
        )
        assert spec.guard is None

    def test_the_caller_decides_how_outputs_are_written(self) -> None:
        kernel = traced(polar)
        spec = kernel_spec(kernel, DType.FLOAT64, {"out": WriteIndexed()})
        assert spec.arg("out__value").write == WriteIndexed()

    def test_lines_of_the_function_are_its_origins(self) -> None:
        kernel = traced(polar)
        origins = {
            call.origin
            for call in kernel_spec(kernel, DType.FLOAT32, own_writes(kernel)).graph.calls
        }
        assert "polar: out" in origins
        assert "polar: return sf.V2(radius * sf.cos(angle), radius * sf.sin(angle))" in origins


HOSTILE = (
    "item", "tile", "active", "first", "last", "table", "args", "data", "length", "r0", "m1", "p0",
    "K0", "at_1", "own_item", "threadIdx", "int", "double", "sums", "place", "fma", "u32", "math",
    "BLOCK_SIZE", "as_float32", "a", "a_object", "a_index", "a_first", "_x", "kernel",
    "a_segment", "tiles", "self_", "nan", "np", "a_second", "value", "a_value", "λ", "größe",
    "Größe", "点", "b" * 300, "B" * 300, "ä" * 120, "epsilon",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    first(4, ["int", "sin", "größe", "f" * 3000, "item", "kernel", "double", "main", "λ"]),
)
def test_names_do_not_meet_those_of_the_generated_text(name: str) -> None:
    """Kernels called like keywords and functions, of arguments called like what is generated."""
    signature = ", ".join(f"{argument}: Read" for argument in HOSTILE)
    names: dict[str, Any] = {
        "Read": Annotated[sf.Symbol, ReadIndexed],
        "Write": Annotated[sf.Symbol, WriteSequential],
    }
    total = " + ".join(f"{number} * {each}" for number, each in enumerate(HOSTILE, 1))
    exec(f"def {name}({signature}) -> Write:\n    return {total}", names)
    kernel = traced(names[name])
    spec = kernel_spec(kernel, DType.FLOAT32, own_writes(kernel))
    assert spec.name.isascii()
    assert spec.name.isidentifier()
    cuda = compile_kernel_text(compile_kernel(spec, TARGETS["cuda"]).text)
    assert cuda.warnings == ()
    backend = CpuBackend()
    loaded = backend.load([compile_kernel(spec, TARGETS["cpu"])])[spec.name]
    rng = np.random.default_rng(0)
    index = np.array([2, 0, 1], np.int32)
    values = {each: rng.random(3, np.float32) for each in HOSTILE}
    bindings = {
        kernel_argument(each): Binding(array, 3, fields={"index": index})
        for each, array in values.items()
    }
    out = np.full(3, np.nan, np.float32)
    launch = backend.bind(loaded, {**bindings, kernel_argument("out"): Binding(out, 3)}, 3)
    backend.runner([launch])()
    expected = sum(number * values[each][index] for number, each in enumerate(HOSTILE, 1))
    assert_allclose(out, expected, rtol=1e-5)


def test_what_is_traced_is_frozen() -> None:
    kernel = traced(polar)
    assert hash(traced(projected)) == hash(traced(projected))
    assert traced(projected) == traced(projected)
    for thing in (kernel, kernel.inputs[0], kernel.inputs[0].parts[0], kernel.outputs[0]):
        with pytest.raises(dataclasses.FrozenInstanceError):
            thing.name = "other"  # type: ignore[misc]
    assert isinstance(kernel.inputs[0].parts[0], KernelPart)
