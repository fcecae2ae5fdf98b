"""Signatures of kernel functions: what arguments, outputs and annotations that are text become."""

from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
import symforce.symbolic as sf
import sympy
from symforce.ops import StorageOps
from symforce.typing import Tuple

import caspar
from caspar.frontend.factors.trace import trace
from caspar.frontend.kernels.spec import kernel_spec
from caspar.frontend.symbolic.field_types import UnitRange
from caspar.ir.dtype import DType
from caspar.memory.patterns import (
    ReadIndexed,
    ReadPair,
    ReadSequential,
    ReadShared,
    ReadUnique,
    WriteIndexed,
    WritePair,
    WriteSequential,
    WriteSum,
)
from tests.frontend.kernels.kernel_functions import (
    Camera,
    Point,
    Pose,
    Scalar,
    Split,
    composed,
    graph_outputs,
    own_writes,
    polar,
    projected,
    pulled,
    relative,
    split,
    traced,
    transposed,
)

Scale = Annotated[sf.Symbol, WriteSequential]


@dataclass
class Ellipse:
    """A field may be called like an attribute of a matrix."""

    shape: sf.V2


class PostponedSplit(NamedTuple):
    """Annotations that are text, which a class of this module reads."""

    length: "Annotated[sf.Symbol, WriteSequential]"
    point: "Annotated[Point, WriteIndexed()]"


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
        assert [a.parts[0].name for a in kernel.inputs] == [
            f"{a.name}__value" for a in kernel.inputs
        ]
        assert kernel.name == "many"
        assert kernel.location.startswith(__file__)

    def test_a_pair_is_read_in_halves(self) -> None:
        (pair,) = traced(relative).inputs
        first, second = pair.parts
        assert pair.access == ReadPair()
        assert (pair.storage_dim, pair.type_name) == (7, "Pose")
        assert (first.name, first.access) == ("pair__first", ReadPair(successor=False))
        assert (second.name, second.access) == ("pair__second", ReadPair(successor=True))
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

        assert trace(residual).arguments[0].matrix_shape == ()

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
        assert [arg.name for arg in spec.args] == ["a__value", "b__value", "out__value"]


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
        found = graph_outputs(spec, {"x__value": np.array([[-1.0], [2.0]])})
        assert found["out__value"].tolist() == [[0.0], [1.0]]


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
