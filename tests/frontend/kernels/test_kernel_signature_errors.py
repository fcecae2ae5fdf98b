"""Signatures that no kernel can have: the error names the argument, what is wrong, what to do."""

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import FactorError, KernelError
from caspar.frontend.factors.trace import trace
from caspar.frontend.kernels.trace import CALL_KEYWORDS, KernelFunction, trace_kernel
from caspar.memory.access import Accessor, ArgSpec, Options, ReadAccessor, WriteAccessor
from caspar.memory.accessors.scope import CpuScope, CudaScope
from caspar.memory.patterns import (
    AddPair,
    AddSharedPartials,
    AddSharedSum,
    ReadPair,
    ReadPairStridedWithDefault,
    ReadPartials,
    ReadRows,
    ReadSequential,
    ReadStrided,
    ReadStridedWithDefault,
    ReadUnique,
    WriteRows,
    WriteSequential,
    WriteSum,
)
from tests.frontend.kernels.refused_kernels import (
    In,
    Out,
    Pose,
    Two,
    assert_names,
    error_of,
    error_of_annotation,
    error_of_result,
)


class Point(sf.V3): ...


class TestSignature:
    def test_no_annotation(self) -> None:
        def scaled(a: In, b) -> Out:  # type: ignore[no-untyped-def]
            return a - b

        message = error_of(scaled)
        assert_names(message, "kernel scaled", "argument b", "not annotated")
        assert_names(message, "Annotated[sf.V3, caspar.ReadSequential]")

    @pytest.mark.parametrize("kind", ["*", "**"])
    def test_variable_arguments(self, kind: str) -> None:
        names: dict[str, Any] = {"In": In, "Out": Out}
        exec(f"def many(a: In, {kind}rest: In) -> Out:\n    return a", names)
        assert_names(error_of(names["many"]), "kernel many", f"{kind}rest", "name each argument")

    def test_no_return_annotation(self) -> None:
        def bare(a: In):  # type: ignore[no-untyped-def]
            return a

        def nothing(a: In) -> None:
            return None

        for function in (bare, nothing):
            message = error_of(function)
            assert_names(message, f"kernel {function.__name__}", "test_kernel_signature_errors.py:")
            assert_names(message, "missing", "-> Annotated[Type, Marker]", "NamedTuple")

    @pytest.mark.parametrize(
        "annotation", [tuple[()], tuple, tuple[Out, ...]], ids=["none", "tuple", "any number"]
    )
    def test_outputs_that_are_not_named(self, annotation: Any) -> None:
        message = error_of_result(annotation)
        assert_names(message, "kernel scaled", "does not name its outputs", "one for each")

    def test_unknown_names_in_text(self) -> None:
        def argument(a: "Annotated[Pointt, ReadSequential]") -> Out:  # type: ignore[name-defined]  # noqa: F821
            return a

        def result(a: In) -> "Annotated[Point, WriteSequentially]":  # noqa: F821
            return a  # type: ignore[no-any-return]

        def element(a: In) -> tuple[Out, "Annotated[Pointt, WriteSum]"]:  # type: ignore[name-defined]  # noqa: F821
            return a, a

        class Fields(NamedTuple):
            a: "Annotated[Pointt, WriteSum]"  # type: ignore[name-defined]  # noqa: F821

        def field(a: In) -> Fields:
            return Fields(a)

        where = "test_kernel_signature_errors.py:"
        assert_names(error_of(argument), "kernel argument, argument a", "Pointt", where)
        assert_names(error_of(result), "kernel result, the result", "WriteSequentially", where)
        assert_names(error_of(element), "kernel element, output out1", "Pointt", where)
        assert_names(error_of(field), "kernel field", "Fields", "Pointt", where)


class TestMarkers:
    def test_none(self) -> None:
        message = error_of_annotation(sf.V3)
        assert_names(message, "kernel scaled, argument a", "no marker", "Annotated[Type, Marker]")
        assert_names(message, "ReadSequential", "ReadShared")
        assert "Write" not in message
        message = error_of_result(sf.V3)
        assert_names(message, "kernel scaled, output out", "no marker", "WriteSequential", "AddSum")
        assert "Read" not in message

    def test_none_on_one_of_several_outputs(self) -> None:
        assert_names(error_of_result(tuple[Out, sf.V3]), "output out1", "no marker")

        class Bare(NamedTuple):
            a: Out
            b: sf.V3

        assert_names(error_of_result(Bare), "output b", "no marker")

    @pytest.mark.parametrize(
        ("metadata", "found"),
        [
            (("metres",), "none"),
            ((ReadSequential, ReadUnique()), "ReadSequential, ReadUnique"),
            ((ReadAccessor,), "ReadAccessor"),
            ((Accessor,), "Accessor"),
        ],
        ids=["none", "two", "ReadAccessor", "Accessor"],
    )
    def test_not_one(self, metadata: tuple[Any, ...], found: str) -> None:
        message = error_of_annotation(Annotated[(Point, *metadata)])
        assert_names(message, "kernel scaled, argument a", "exactly one marker", f"found {found}")

    def test_a_write_on_an_argument(self) -> None:
        for marker in (WriteSequential, AddSharedSum()):
            message = error_of_annotation(Annotated[sf.V3, marker])
            assert_names(message, "argument a", "writes, but arguments are read", "ReadSequential")

    def test_a_read_on_an_output(self) -> None:
        message = error_of_result(Annotated[sf.V3, ReadStrided])
        assert_names(message, "output out", "ReadStrided reads", "WriteSequential")

    @pytest.mark.parametrize("marker", [caspar.TunableShared, caspar.ConstUnique()])
    def test_markers_of_factors(self, marker: Any) -> None:
        message = error_of_annotation(Annotated[sf.V3, marker])
        assert_names(message, "kernel scaled, argument a", "for factors", "ReadSequential")
        message = error_of_result(Annotated[sf.V3, marker])
        assert_names(message, "kernel scaled, output out", "for factors", "WriteSequential")

    def test_markers_of_kernels_on_a_factor(self) -> None:
        def residual(a: Annotated[Point, ReadSequential]) -> sf.V3:
            return a

        with pytest.raises(FactorError) as caught:
            trace(caspar.factor(residual))
        message = str(caught.value)
        assert_names(message, "factor residual, argument a", "ReadSequential is for kernels")
        assert_names(message, "TunableShared", "ConstSequential")

    @pytest.mark.parametrize("marker", [ReadPartials, ReadRows()], ids=str)
    def test_reads_of_kernels_that_are_built_by_hand(self, marker: Any) -> None:
        message = error_of_annotation(Annotated[sf.V3, marker])
        assert_names(message, "argument a", "only for caspar's own", "use one of", "ReadSequential")

    @pytest.mark.parametrize("marker", [AddSharedPartials, WriteRows], ids=str)
    def test_writes_of_kernels_that_are_built_by_hand(self, marker: Any) -> None:
        message = error_of_result(Annotated[sf.V3, marker])
        assert_names(message, "output out", "only for caspar's own", "AddSharedSum", "WriteSum")
        assert "AddSharedPartials," not in message
        assert "WriteRows," not in message

    def test_a_pattern_of_ones_own_that_lacks_arguments(self) -> None:
        @dataclass(frozen=True)
        class Shifted(ReadSequential):
            by: int = field(kw_only=True)

        message = error_of_annotation(Annotated[sf.V3, Shifted])
        assert_names(message, "argument a", "Shifted", "by")

    def test_a_pattern_of_ones_own_that_is_no_frozen_dataclass(self) -> None:
        class Mine(ReadAccessor):
            def num_objects(self, count: int, options: Options) -> int:
                return count

            def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
                return []

            def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
                return []

        @dataclass
        class Changing(Mine):
            by: int = 1

        for marker in (Mine, Mine(), Changing):
            message = error_of_annotation(Annotated[sf.V3, marker])
            assert_names(message, "argument a", "not a frozen dataclass", "@dataclass(frozen=True)")

    def test_a_pattern_of_ones_own_without_source(self) -> None:
        names: dict[str, Any] = {"ReadSequential": ReadSequential, "__name__": "elsewhere"}
        exec(
            "class Mine(ReadSequential):\n    def cpu_read(self, scope, arg, chunk):\n        1",
            names,
        )

        def scaled(a: Any) -> Out:
            return a

        scaled.__annotations__["a"] = Annotated[sf.V3, names["Mine"]]
        made = trace_kernel(KernelFunction(scaled, "scaled", {}))
        with pytest.raises(KernelError) as caught:
            made.key  # noqa: B018
        assert_names(str(caught.value), "kernel scaled, argument a", "Mine.cpu_read", "source")


class TestTypes:
    @pytest.mark.parametrize("declared", [str, list, dict[str, int], object], ids=str)
    def test_not_a_storage_type(self, declared: Any) -> None:
        message = error_of_annotation(Annotated[declared, ReadSequential])
        assert_names(message, "kernel scaled, argument a", "not a storage type", "sf.V3")
        message = error_of_result(Annotated[declared, WriteSequential])
        assert_names(message, "kernel scaled, output out", "not a storage type", "sf.V3")

    @pytest.mark.parametrize("declared", [sf.V3(1, 2, 3), sf.Symbol("a")], ids=["V3", "Symbol"])
    def test_a_value_instead_of_a_type(self, declared: Any) -> None:
        message = error_of_annotation(Annotated[declared, ReadSequential])
        assert_names(message, "kernel scaled, argument a", "not a storage type")
        message = error_of_result(Annotated[declared, WriteSequential])
        assert_names(message, "kernel scaled, output out", "not a storage type")

    def test_no_numbers(self) -> None:
        @dataclass
        class Nothing:
            """Without fields."""

        message = error_of_annotation(Annotated[Nothing, ReadSequential])
        assert_names(message, "argument a", "holds no numbers")
        message = error_of_result(Annotated[Nothing, WriteSequential])
        assert_names(message, "output out", "holds no numbers", "cannot be an output")

    @pytest.mark.parametrize("declared", [Point, tuple[Point, Point], caspar.Pair], ids=str)
    def test_markers_of_pairs_need_one(self, declared: Any) -> None:
        for read in (ReadPair, ReadPairStridedWithDefault(0)):
            message = error_of_annotation(Annotated[declared, read])
            assert_names(message, "kernel scaled, argument a", "caspar.Pair[Type]", "ReadPair")
        message = error_of_result(Annotated[declared, AddPair])
        assert_names(message, "kernel scaled, output out", "caspar.Pair[Type]", "AddPair")

    @pytest.mark.parametrize("declared", [caspar.Pair[Point], caspar.Pair], ids=str)
    def test_pairs_need_a_marker_of_pairs(self, declared: Any) -> None:
        message = error_of_annotation(Annotated[declared, ReadSequential])
        assert_names(message, "argument a", "got ReadSequential", "ReadPairStridedWithDefault")
        assert "ReadUnique" not in message
        message = error_of_result(Annotated[declared, WriteSum])
        assert_names(message, "output out", "got WriteSum", "AddPair, WritePair")


class TestDefaults:
    @pytest.mark.parametrize(
        ("declared", "default", "said"),
        [
            (sf.V3, (), "no default value"),
            (sf.V3, [], "list of 0 elements"),
            (sf.V3, 1.0, "float 1.0"),
            (sf.V3, [1, 2], "list of 2 elements"),
            (sf.V3, np.zeros((3, 1)), "ndarray of shape (3, 1)"),
            (sf.V3, sf.V2(1, 2), "got a V2 (2 scalars)"),
            (sf.V3, ["a", 1, 2], "not made of numbers"),
            (sf.V3, [sf.Symbol("x"), 1, 2], "not made of numbers"),
            (sf.Symbol, sf.Symbol("x"), "not made of numbers"),
            (sf.Rot3, sf.V4(0, 0, 0, 1), "got a V4 (4 scalars)"),
            (sf.Symbol, None, "None"),
            (Pose, sf.Rot3.identity(), "Rot3"),
        ],
        ids=str,
    )
    def test_that_do_not_fit(self, declared: Any, default: Any, said: str) -> None:
        message = error_of_annotation(Annotated[declared, ReadStridedWithDefault(default)])
        assert_names(message, "kernel scaled, argument a", "default", said)
        assert_names(message, "write ReadStridedWithDefault(value)", "numbers")

    def test_a_class_has_none(self) -> None:
        message = error_of_annotation(Annotated[sf.V3, ReadStridedWithDefault])
        assert_names(message, "argument a", "no default value", "of type V3", "3 numbers")
        message = error_of_annotation(Annotated[caspar.Pair[Pose], ReadPairStridedWithDefault])
        assert_names(message, "argument a", "no default value", "of type Pose", "7 numbers")


class TestNames:
    """Arguments and outputs must not share a name, nor take a keyword of the call."""

    @pytest.mark.parametrize("name", CALL_KEYWORDS)
    def test_keywords_of_the_call(self, name: str) -> None:
        names: dict[str, Any] = {"In": In, "Out": Out}
        exec(f"def taken({name}: In) -> Out:\n    return {name}", names)
        message = error_of(names["taken"])
        assert_names(message, f"kernel taken, argument {name}", "keyword", "rename")

    def test_an_output_like_an_argument(self) -> None:
        def copied(out1: In) -> tuple[Out, Out]:
            return out1, out1

        message = error_of(copied)
        assert_names(message, "kernel copied, output out1", "an argument has the same name")

        def named(first: In) -> Two:
            return Two(first, first[0])

        assert_names(error_of(named), "kernel named, output first", "same name; rename")

        def halves(p: Annotated[caspar.Pair[sf.V3], ReadPair]) -> Any:
            return p[0]

        class Whole(NamedTuple):
            p: Out

        halves.__annotations__["return"] = Whole
        assert_names(error_of(halves), "kernel halves, output p:", "same name; rename")


def test_writes_are_no_reads() -> None:
    """What the tests above take for granted."""
    assert not issubclass(WriteAccessor, ReadAccessor)
