"""Kernel functions: what a signature becomes, and that the graph computes the function."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import pytest
import symforce.symbolic as sf
import sympy
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from symforce.ops import StorageOps
from symforce.typing import Tuple

import caspar
from caspar.driver import TARGETS, compile_kernel
from caspar.frontend import epsilon
from caspar.frontend.kernel_trace import (
    KernelFunction,
    KernelPart,
    TracedKernel,
    kernel_spec,
    trace_kernel,
)
from caspar.frontend.unit_ranges import UnitRange
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph
from caspar.memory.access import ArgSpec, ReadAccessor, WriteAccessor
from caspar.memory.accessors.scope import CpuScope
from caspar.memory.binding import Binding
from caspar.memory.kernel import KernelSpec
from caspar.memory.patterns import (
    AddPair,
    AddSharedPartials,
    AddSharedSum,
    AddSumPartials,
    ReadIndexed,
    ReadPair,
    ReadSequential,
    ReadShared,
    ReadUnique,
    WriteBlockSum,
    WriteIndexed,
    WritePair,
    WriteSequential,
    WriteSum,
)
from caspar.runtime.cpu import CpuBackend
from caspar.runtime.nvrtc import compile_kernel_text
from tests.frontend.residuals import random_storage

Array = NDArray[Any]
DTYPES = (DType.FLOAT32, DType.FLOAT64)
Scalar = Annotated[sf.Symbol, ReadSequential]
Scale = Annotated[sf.Symbol, WriteSequential]


class Point(sf.V3): ...


class Pose(sf.Pose3): ...


@dataclass
class Camera:
    pose: sf.Pose3
    lens: sf.V2


@dataclass
class Ellipse:
    """A field may be called like an attribute of a matrix."""

    shape: sf.V2


class Split(NamedTuple):
    """Outputs with names."""

    length: Annotated[sf.Symbol, WriteSequential]
    direction: Annotated[sf.Unit3, WriteIndexed]


class PostponedSplit(NamedTuple):
    """Annotations that are text, which a class of this module reads."""

    length: "Annotated[sf.Symbol, WriteSequential]"
    point: "Annotated[Point, WriteIndexed()]"


def traced(function: Callable[..., Any], **local_names: Any) -> TracedKernel:
    return trace_kernel(KernelFunction(function, function.__name__, local_names))


def own_writes(kernel: TracedKernel) -> dict[str, WriteAccessor]:
    """What the kernel itself writes."""
    return {one.name: one.access.in_kernel({}, "cpu", True) for one in kernel.outputs}


def plain_writes(kernel: TracedKernel) -> dict[str, WriteAccessor]:
    """All scalars of an output in a row: what the evaluator shows without a loss."""
    return {one.name: WriteSequential() for one in kernel.outputs}


# -- numbers ---------------------------------------------------------------------------------------


def polar(
    angle: Scalar, radius: Annotated[sf.Scalar, ReadUnique]
) -> Annotated[sf.V2, WriteSequential]:
    return sf.V2(radius * sf.cos(angle), radius * sf.sin(angle))


def product(a: Annotated[float, ReadSequential], b: Scalar) -> Annotated[sf.Symbol, WriteSum]:
    return a * b + 2


def constant(
    a: Scalar,
) -> tuple[
    Annotated[float, WriteSequential], Annotated[sf.V2, WriteSequential], Annotated[int, WriteSum]
]:
    return 3, [a, 0.5], np.float32(1.5)  # type: ignore[return-value]


def moved(
    pose: Annotated[Pose, ReadShared()], point: Annotated[Point, ReadSequential]
) -> Annotated[Point, WriteSequential]:
    return pose * point  # type: ignore[no-any-return]


def composed(
    a: Annotated[sf.Pose3, ReadSequential], b: Annotated[Pose, ReadIndexed]
) -> Annotated[Pose, WriteSequential]:
    return a * b  # type: ignore[no-any-return]


def relative(pair: Annotated[caspar.Pair[Pose], ReadPair]) -> Annotated[sf.Pose3, WriteSequential]:
    return pair[0].inverse() * pair[1]


def pulled(
    pair: Annotated[caspar.Pair[Point], ReadPair], scale: Annotated[sf.V1, ReadUnique]
) -> Annotated[caspar.Pair[Point], WritePair]:
    force = scale[0] * (pair[1] - pair[0])
    return caspar.Pair((force, -force))


def pushed(scale: Scalar) -> Annotated[caspar.Pair[sf.Symbol], AddPair]:
    return scale, -scale  # type: ignore[return-value]


def projected(
    camera: Annotated[Camera, ReadShared], point: Annotated[sf.V3, ReadShared]
) -> tuple[Annotated[sf.V2, WriteSequential], Annotated[Camera, AddSharedSum]]:
    local = camera.pose * point
    pixel = camera.lens[0] * sf.V2(local[0] / local[2], local[1] / local[2])
    return pixel, Camera(camera.pose.inverse(), camera.lens * 2)


def split(point: Annotated[sf.V3, ReadSequential]) -> Split:
    length = point.norm()
    return Split(length, sf.Unit3.from_vector(point))


def transposed(
    a: Annotated[sf.M23, ReadSequential], b: Annotated[sf.M33, ReadUnique]
) -> tuple[Annotated[sf.M32, WriteSequential], Annotated[sf.M13, WriteSequential]]:
    return (a * b).T, [b[0, 0], b[1, 0], b[0, 1]]


def turned(
    angle: Scalar, frame: Annotated[sf.Pose2, ReadSequential]
) -> tuple[Annotated[sf.Rot2, WriteSequential], Annotated[sf.Rot3, WriteSequential]]:
    turn = sf.Rot2.from_tangent([angle])
    return frame.R * turn, sf.Rot3.from_yaw_pitch_roll(angle, 0, 0)


KERNELS = (
    polar, product, constant, moved, composed, relative, pulled, pushed, projected, split,
    transposed, turned,
)  # fmt: skip


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


def graph_outputs(spec: KernelSpec, rows: Mapping[str, Array]) -> dict[str, Array]:
    lengths = {arg.name: arg.chunk_length for arg in spec.args}
    return evaluate_graph(spec.graph, rows, lengths)


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
            assert_allclose(found[output.name][lane], expected, rtol=eps, atol=eps)


def test_epsilon_is_that_of_the_type() -> None:
    def guarded(x: Scalar) -> Annotated[sf.Symbol, WriteSequential]:
        return x * 0 + sf.epsilon() * 2

    kernel = traced(guarded)
    for dtype in DTYPES:
        spec = kernel_spec(kernel, dtype, own_writes(kernel))
        found = graph_outputs(spec, {"x": np.ones((1, 1))})
        assert_allclose(found["out"], [[2 * epsilon.value(dtype)]], rtol=1e-6)


# -- arguments -------------------------------------------------------------------------------------


class TestInputs:
    def test_what_is_known_of_each(self) -> None:
        def many(
            pose: Annotated[Pose, "metres", ReadShared],
            camera: Annotated[Camera, ReadIndexed()],
            scale: Annotated[sf.Symbol, ReadUnique],
            one: Annotated[sf.V1, ReadUnique],
            matrix: Annotated[sf.M23, ReadSequential],
        ) -> Annotated[sf.Symbol, WriteSum]:
            return scale

        kernel = traced(many)
        quaternion = (UnitRange(0, 4, "quaternion"),)
        described = [
            (a.name, a.access, a.type_name, a.storage_dim, a.unit_ranges, a.matrix_shape)
            for a in kernel.inputs
        ]
        assert described == [
            ("pose", ReadShared(), "Pose", 7, quaternion, ()),
            ("camera", ReadIndexed(), "Camera", 9, quaternion, ()),
            ("scale", ReadUnique(), "Symbol", 1, (), ()),
            ("one", ReadUnique(), "V1", 1, (), ()),
            ("matrix", ReadSequential(), "M23", 6, (), (2, 3)),
        ]
        assert [a.is_scalar for a in kernel.inputs] == [False, False, True, False, False]
        assert all(len(a.parts) == 1 for a in kernel.inputs)
        assert [a.parts[0].name for a in kernel.inputs] == [a.name for a in kernel.inputs]
        assert kernel.name == "many"
        assert kernel.location.startswith(__file__)

    def test_a_pair_is_read_in_halves(self) -> None:
        (pair,) = traced(relative).inputs
        first, second = pair.parts
        assert pair.access == ReadPair()
        assert (pair.storage_dim, pair.type_name) == (7, "Pose")
        assert (first.name, first.access) == ("pair_first", ReadPair(successor=False))
        assert (second.name, second.access) == ("pair_second", ReadPair(successor=True))
        assert first.symbols == tuple(StorageOps.to_storage(pair.symbolic[0]))
        assert second.symbols == tuple(StorageOps.to_storage(pair.symbolic[1]))
        assert set(first.symbols).isdisjoint(second.symbols)

    @pytest.mark.parametrize("declared", [sf.Symbol, sf.Scalar, sf.Expr, float], ids=str)
    def test_one_scalar(self, declared: Any) -> None:
        def doubled(x: Any) -> Any:
            return 2 * x

        doubled.__annotations__ = {
            "x": Annotated[declared, ReadSequential],
            "return": Annotated[declared, WriteSequential],
        }
        kernel = traced(doubled)
        assert kernel.inputs[0].is_scalar
        assert kernel.outputs[0].is_scalar
        assert kernel.inputs[0].storage_dim == kernel.outputs[0].storage_dim == 1
        assert str(kernel.outputs[0].rows[0]) == "2*x"

    def test_a_field_called_shape(self) -> None:
        def area(e: Annotated[Ellipse, ReadSequential]) -> Annotated[sf.Symbol, WriteSequential]:
            return e.shape[0] * e.shape[1]

        assert traced(area).inputs[0].matrix_shape == ()

        @caspar.factor
        def residual(e: Annotated[Ellipse, caspar.TunableShared]) -> sf.V2:
            return e.shape

        assert caspar.frontend.trace.trace(residual).arguments[0].matrix_shape == ()

    def test_positional_and_keyword_only_and_without_any(self) -> None:
        five = sf.S(5)

        def mixed(
            a: Scalar, /, b: Scalar, *, c: Scalar = five
        ) -> Annotated[sf.Symbol, WriteSequential]:
            return a - 2 * b + 3 * c

        assert str(traced(mixed).outputs[0].rows[0]) in ("a - 2*b + 3*c", "a + 3*c - 2*b")

        def none() -> Annotated[sf.V2, WriteSequential]:
            return sf.V2(1, 2)

        assert traced(none).inputs == ()

    def test_an_unused_argument_is_one(self) -> None:
        def first(a: Scalar, b: Annotated[sf.V3, ReadIndexed]) -> Annotated[sf.Symbol, WriteSum]:
            return a

        kernel = traced(first)
        spec = kernel_spec(kernel, DType.FLOAT32, own_writes(kernel))
        assert [arg.name for arg in spec.args] == ["a", "b", "out"]


# -- outputs ---------------------------------------------------------------------------------------


class TestOutputs:
    def test_one(self) -> None:
        (out,) = traced(composed).outputs
        assert (out.name, out.access, out.type_name) == ("out", WriteSequential(), "Pose")
        assert (out.storage_dim, out.matrix_shape, len(out.rows)) == (7, (), 7)

    def test_a_tuple(self) -> None:
        matrix, row = traced(transposed).outputs
        assert (matrix.name, matrix.type_name, matrix.matrix_shape) == ("out0", "M32", (3, 2))
        assert (row.name, row.type_name, row.matrix_shape) == ("out1", "M13", (1, 3))
        assert [str(entry) for entry in row.rows] == ["b[0, 0]", "b[1, 0]", "b[0, 1]"]

    def test_a_tuple_of_one(self) -> None:
        def single(x: Scalar) -> tuple[Annotated[sf.Symbol, WriteSequential]]:
            return (x,)

        kernel = traced(single)
        assert [output.name for output in kernel.outputs] == ["out0"]
        assert kernel.make_result(["array"]) == ("array",)

    def test_the_fields_of_a_class(self) -> None:
        length, direction = traced(split).outputs
        assert (length.name, length.access, length.is_scalar) == ("length", WriteSequential(), True)
        assert (direction.name, direction.access) == ("direction", WriteIndexed())

    def test_a_plain_tuple_for_a_class_and_the_other_way_round(self) -> None:
        class Two(NamedTuple):
            a: Any
            b: Any

        def plain(p: Annotated[sf.V3, ReadSequential]) -> Split:
            return p[0], sf.Unit3.from_vector(p)  # type: ignore[return-value]

        def named(
            x: Scalar,
        ) -> tuple[Annotated[sf.Symbol, WriteSequential], Annotated[sf.Symbol, WriteSum]]:
            return Two(x, 2 * x)

        assert str(traced(plain).outputs[0].rows[0]) == "p[0]"
        assert [str(output.rows[0]) for output in traced(named).outputs] == ["x", "2*x"]

    def test_results_have_the_form_of_the_annotation(self) -> None:
        arrays = [np.zeros(3), np.ones(3)]
        assert traced(polar).make_result(arrays[:1]) is arrays[0]
        result = traced(projected).make_result(arrays)
        assert type(result) is tuple
        assert result[0] is arrays[0]
        named = traced(split).make_result(arrays)
        assert type(named) is Split
        assert named.direction is arrays[1]

    def test_rows_of_a_pair_are_first_those_of_the_object(self) -> None:
        (out,) = traced(pulled).outputs
        assert (out.access, out.storage_dim, len(out.rows)) == (WritePair(), 3, 6)
        for a, b in zip(out.rows[:3], out.rows[3:], strict=True):
            assert sf.S(a + b).expand() == 0

    def test_expressions_of_sympy(self) -> None:
        def mixed(x: Scalar) -> Annotated[sf.V2, WriteSequential]:
            return [sympy.Symbol("x") ** 2, True]

        assert [str(row) for row in traced(mixed).outputs[0].rows] == ["x**2", "1"]

    def test_comparisons_are_one_or_zero(self) -> None:
        def positive(x: Scalar) -> Annotated[sf.Symbol, WriteSequential]:
            return x > 0

        kernel = traced(positive)
        spec = kernel_spec(kernel, DType.FLOAT32, own_writes(kernel))
        found = graph_outputs(spec, {"x": np.array([[-1.0], [2.0]])})
        assert found["out"].tolist() == [[0.0], [1.0]]


# -- annotations that are text ---------------------------------------------------------------------


class TestPostponed:
    def test_names_of_the_module(self) -> None:
        def copied(x: "Annotated[Point, ReadSequential]") -> "Annotated[Point, WriteSequential]":
            return x

        kernel = traced(copied)
        assert kernel.inputs[0].type_name == kernel.outputs[0].type_name == "Point"

    def test_names_of_a_function(self) -> None:
        class Local(sf.V2): ...

        class Result(NamedTuple):
            local: "Annotated[Local, WriteSequential]"

        def copied(x: "Annotated[Local, ReadSequential]") -> "Result":
            return Result(x)

        kernel = traced(copied, Local=Local, Result=Result)
        assert kernel.inputs[0].type_name == "Local"
        assert [(out.name, out.type_name) for out in kernel.outputs] == [("local", "Local")]
        assert kernel.make_result(["array"]) == Result("array")  # type: ignore[arg-type]

    def test_fields_and_elements_of_a_tuple(self) -> None:
        def fields(p: Annotated[sf.V3, ReadSequential]) -> PostponedSplit:
            return PostponedSplit(p[0], p)

        def elements(x: Scalar) -> tuple["Annotated[sf.Symbol, WriteSum]", "Scale"]:
            return x, x

        names = [(out.name, out.type_name) for out in traced(fields).outputs]
        assert names == [("length", "Symbol"), ("point", "Point")]

        def symforce_style(
            x: Scalar,
        ) -> Tuple["Annotated[sf.Symbol, WriteSum]", "Scale"]:
            return x, x

        for function in (elements, symforce_style):
            outputs = traced(function).outputs
            assert [out.access for out in outputs] == [WriteSum(), WriteSequential()]

    def test_a_wrapped_function(self) -> None:
        @wraps(polar)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return 2 * polar(*args, **kwargs)

        assert "2*cos(angle)" in str(traced(wrapped).outputs[0].rows[0])


# -- the key ---------------------------------------------------------------------------------------


class TestKeys:
    def key(self, function: Callable[..., Any]) -> str:
        return trace_kernel(KernelFunction(function, "kernel_of", {})).key

    def test_the_same_kernel_has_the_same_key(self) -> None:
        for function in KERNELS:
            assert traced(function).key == traced(function).key
            assert " at 0x" not in traced(function).key
            assert __file__ not in traced(function).key
        assert len({self.key(function) for function in KERNELS}) == len(KERNELS)

    def test_access_type_expression_and_name_count(self) -> None:
        read, write = ReadSequential, WriteSequential

        def base(a: Annotated[sf.V4, read]) -> Annotated[sf.V4, write]:
            return 2 * a

        def expression(a: Annotated[sf.V4, read]) -> Annotated[sf.V4, write]:
            return 3 * a

        def reads(a: Annotated[sf.V4, ReadUnique]) -> Annotated[sf.V4, write]:
            return 2 * a

        def writes(a: Annotated[sf.V4, read]) -> Annotated[sf.V4, WriteBlockSum(32)]:
            return 2 * a

        def size(a: Annotated[sf.V4, read]) -> Annotated[sf.V4, WriteBlockSum(64)]:
            return 2 * a

        def outputs(a: Annotated[sf.V4, read]) -> tuple[Annotated[sf.V4, write]]:
            return (2 * a,)

        def divided(
            a: Annotated[sf.V4, read],
        ) -> tuple[Annotated[sf.V1, write], Annotated[sf.V3, write]]:
            return sf.V1(2 * a[0]), [2 * a[1], 2 * a[2], 2 * a[3]]

        def name(b: Annotated[sf.V4, read]) -> Annotated[sf.V4, write]:
            return 2 * b

        def type_(a: Annotated[sf.V6, read]) -> Annotated[sf.V4, write]:
            return [2 * a[0], 2 * a[1], 2 * a[2], 2 * a[3]]

        functions = (base, expression, reads, writes, size, outputs, divided, name, type_)
        assert len({self.key(function) for function in functions}) == len(functions)

    def test_which_scalars_are_whose_counts(self) -> None:
        def key(first: Any, second: Any) -> str:
            def divided(a: Annotated[sf.V4, ReadSequential]) -> Any:
                rows = a.to_flat_list()
                return rows[: first.SHAPE[0]], rows[first.SHAPE[0] :]

            write = WriteSequential
            returned = tuple[Annotated[first, write], Annotated[second, write]]
            divided.__annotations__["return"] = returned
            return self.key(divided)

        assert key(sf.V1, sf.V3) != key(sf.V2, sf.V2)

    @pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger hides the lines")
    def test_lines_count(self) -> None:
        """They stand in the generated text."""

        def before(a: Scalar) -> Annotated[sf.Symbol, WriteSequential]:
            return 2 * a

        def after(a: Scalar) -> Annotated[sf.Symbol, WriteSequential]:
            return a * 2

        assert self.key(before) != self.key(after)

    def test_a_pattern_of_ones_own_is_known_by_its_source(self) -> None:
        """Who changes its text in a notebook must not get the kernel of before."""

        def key(access: type[ReadAccessor]) -> str:
            def copied(a: Any) -> Annotated[sf.Symbol, WriteSequential]:
                return a

            copied.__annotations__["a"] = Annotated[sf.Symbol, access]
            return self.key(copied)

        def version(change: str) -> type[ReadAccessor]:
            if change == "method":

                @dataclass(frozen=True)
                class Reversed(ReadSequential):
                    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
                        return super().cpu_read(scope, arg, chunk)[::-1]

                return Reversed
            if change == "attribute":

                @dataclass(frozen=True)
                class Reversed(ReadSequential):  # type: ignore[no-redef]
                    cuda_functions: ClassVar[str] = "// mine"

                return Reversed

            @dataclass(frozen=True)
            class Reversed(ReadSequential):  # type: ignore[no-redef]
                pass

            return Reversed

        reads = [version(change) for change in ("method", "attribute", "none")]
        assert len({repr(read()) for read in reads}) == 1
        assert len({key(read) for read in reads}) == 3
        assert key(version("method")) == key(version("method"))


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
            ArgSpec("arg0", 3, single, read=ReadShared(), windowed=True),
            ArgSpec("arg1_first", 6, single, read=ReadPair(successor=False), windowed=True),
            ArgSpec("arg1_second", 6, single, read=ReadPair(successor=True), windowed=True),
            ArgSpec("out0", 2, single, write=AddSharedPartials()),
            ArgSpec("out1", 1, single, write=WriteIndexed(), windowed=True),
            ArgSpec("out2", 3, double, write=AddSumPartials()),
            ArgSpec("out3", 3, single, write=WritePair(), windowed=True),
        )
        assert spec.guard is None

    def test_the_caller_decides_how_outputs_are_written(self) -> None:
        kernel = traced(polar)
        spec = kernel_spec(kernel, DType.FLOAT64, {"out": WriteIndexed()})
        assert spec.arg("out").write == WriteIndexed()

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
)  # fmt: skip


@pytest.mark.parametrize("name", ["int", "sin", "item", "kernel", "double", "main", "λ"])
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
    bindings = {each: Binding(array, 3, fields={"index": index}) for each, array in values.items()}
    out = np.full(3, np.nan, np.float32)
    launch = backend.bind(loaded, {**bindings, "out": Binding(out, 3)}, 3)
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
