"""What cannot be a factor says so: the factor, the argument, what is wrong, what to do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import pytest
import symforce.symbolic as sf

import caspar
from caspar.equations.factor_kernels import factor_kernels
from caspar.errors import FactorError, UnsupportedFunctionError
from caspar.frontend.factors.trace import trace
from caspar.frontend.markers import Const, Marker, Tunable
from caspar.frontend.precision import TYPES
from caspar.options import Precision
from caspar.tracing import traced_factor
from tests.frontend.symbolic import postponed

T = TypeVar("T")


class Point(sf.V3): ...


class Box(Generic[T]): ...


Node = Annotated[Point, caspar.TunableShared]


def error_of(function: Callable[..., Any], kind: type[FactorError] = FactorError) -> str:
    """The message of tracing and compiling a function."""
    with pytest.raises(kind) as caught:
        factor_kernels(trace(caspar.factor(function)), TYPES[Precision.MIXED])
    return str(caught.value)


def assert_names(message: str, *parts: str) -> None:
    missing = [part for part in parts if part not in message]
    assert not missing, f"{missing} not in: {message}"


class TestSignature:
    def test_no_annotation(self) -> None:
        def alignment(a: Node, b) -> sf.V3:  # type: ignore[no-untyped-def]
            return a - b

        message = error_of(alignment)
        assert_names(message, "factor alignment", "argument b", "not annotated", "Annotated[")

    def test_a_value_for_a_type(self) -> None:
        def alignment(a: Annotated[sf.V3(), caspar.TunableShared]) -> sf.V3:  # type: ignore
            return a

        message = error_of(alignment)
        assert_names(message, "factor alignment", "argument a", "is a value, not a type")
        assert_names(message, "write the type Matrix31, without brackets behind it")

    def test_no_marker(self) -> None:
        def alignment(a: Node, b: Point) -> sf.V3:
            return a - b

        assert_names(error_of(alignment), "factor alignment", "argument b", "no marker", "ConstUn")

    @pytest.mark.parametrize(
        ("metadata", "found"),
        [
            (("metres",), "none"),
            ((caspar.TunableShared, caspar.ConstUnique), "TunableShared, ConstUnique"),
            ((Marker,), "Marker"),
            ((Tunable,), "Tunable"),
            ((Const(),), "Const"),
        ],
        ids=["none", "two", "Marker", "Tunable", "Const"],
    )
    def test_not_one_marker(self, metadata: tuple[Any, ...], found: str) -> None:
        def alignment(a: Node, b: Any) -> sf.V3:
            return a - b

        alignment.__annotations__["b"] = Annotated[(Point, *metadata)]
        message = error_of(alignment)
        assert_names(message, "factor alignment", "argument b", "exactly one marker", found)
        assert_names(message, "TunableShared, ", "ConstSequential")

    def test_unknown_names_in_postponed_annotations(self) -> None:
        for factor, name in (
            (postponed.unknown_type, "Spott"),
            (postponed.unknown_marker, "TunableShred"),
        ):
            with pytest.raises(FactorError) as caught:
                trace(factor)
            message = str(caught.value)
            assert_names(message, f"factor {factor.name}", "argument spot", name, "postponed.py:")

    @pytest.mark.parametrize("kind", ["*", "**"])
    def test_variable_arguments(self, kind: str) -> None:
        names: dict[str, Any] = {"Node": Node}
        exec(f"def many(a: Node, {kind}rest: Node):\n    return a", names)
        assert_names(error_of(names["many"]), "factor many", f"{kind}rest", "name each argument")

    def test_no_tunable_argument(self) -> None:
        def constant(a: Annotated[Point, caspar.ConstSequential]) -> sf.V3:
            return a

        assert_names(error_of(constant), "factor constant", "no tunable argument", "TunablePair")

    def test_no_arguments(self) -> None:
        def nothing() -> sf.V3:
            return sf.V3()

        assert_names(error_of(nothing), "factor nothing", "no tunable argument")

    @pytest.mark.parametrize(
        "thing",
        [Point, print, len, lambda a: a, 3],
        ids=["class", "builtin", "len", "lambda", "number"],
    )
    def test_not_a_function_with_annotations(self, thing: Any) -> None:
        with pytest.raises(FactorError):
            trace(caspar.factor(thing))


class TestTypes:
    @pytest.mark.parametrize(
        "declared",
        [str, list, dict[str, int], Box[int], object],
        ids=str,
    )
    def test_not_a_storage_type(self, declared: Any) -> None:
        def alignment(a: Node, b: Any) -> sf.V3:
            return a

        for marker in (caspar.TunableShared, caspar.ConstSequential):
            alignment.__annotations__["b"] = Annotated[declared, marker]
            message = error_of(alignment)
            assert_names(message, "factor alignment", "argument b", "not a storage type", "sf.V3")

    def test_a_name_of_nothing(self) -> None:
        def alignment(a: Node, b: Any) -> sf.V3:
            return a

        alignment.__annotations__["b"] = Annotated["Nowhere", caspar.TunableShared]  # noqa: F821
        assert_names(error_of(alignment), "argument b", "'Nowhere' cannot be evaluated where")
        alignment.__annotations__["b"] = Annotated["5", caspar.TunableShared]
        assert_names(error_of(alignment), "argument b", "not a storage type")

    def test_no_numbers(self) -> None:
        @dataclass
        class Nothing:
            """Without fields."""

        def empty(a: Node, b: Annotated[Nothing, caspar.ConstSequential]) -> sf.V3:
            return a

        def none(a: Node, b: Annotated[None, caspar.ConstSequential]) -> sf.V3:
            return a

        assert_names(error_of(empty), "factor empty", "argument b", "holds no numbers")
        assert_names(error_of(none), "factor none", "argument b", "holds no numbers")

    def test_no_tangent_space(self) -> None:
        def phase(c: Annotated[sf.Complex, caspar.TunableShared]) -> sf.V1:
            return sf.V1(c.real)

        assert_names(error_of(phase), "factor phase", "argument c", "no tangent space")

    @pytest.mark.parametrize("declared", [Point, tuple[Point, Point], sf.V6], ids=str)
    def test_a_pair_needs_pair(self, declared: Any) -> None:
        def motion(p: Any) -> sf.V3:
            return p[0] - p[1]

        motion.__annotations__["p"] = Annotated[declared, caspar.TunablePair]
        message = error_of(motion)
        assert_names(message, "factor motion", "argument p", "caspar.Pair[Type]")

    @pytest.mark.parametrize("marker", [caspar.TunableShared, caspar.ConstSequential], ids=str)
    def test_pair_needs_the_marker(self, marker: Any) -> None:
        def motion(p: Any) -> sf.V3:
            return p[0] - p[1]

        motion.__annotations__["p"] = Annotated[caspar.Pair[Point], marker]
        message = error_of(motion)
        assert_names(message, "factor motion", "argument p", "TunablePair")


class TestResult:
    @pytest.mark.parametrize(
        ("result", "said"),
        [
            (lambda a: None, ("NoneType", "return statement")),
            (lambda a: a[0], ("wrap it as sf.V1", "")),
            (lambda a: 1.5, ("float", "wrap it as sf.V1")),
            (lambda a: (a[0], a[1]), ("tuple", "sf.V2(a, b)")),
            (lambda a: [a[0], a[1]], ("list", "sf.V2(a, b)")),
            (lambda a: a.T, ("(1, 3)", "column vector")),
            (lambda a: a * a.T, ("(3, 3)", "column vector")),
            (lambda a: sf.Rot3.from_tangent(a.to_flat_list()), ("Rot3", "column vector")),
        ],
        ids=["None", "scalar", "float", "tuple", "list", "row", "matrix", "rotation"],
    )
    def test_not_a_column_vector(self, result: Any, said: tuple[str, str]) -> None:
        def alignment(a: Node) -> Any:
            return result(a)

        assert_names(error_of(alignment), "factor alignment", "test_trace_errors.py:", *said)

    def test_unsupported_function(self) -> None:
        def likelihood(a: Node) -> sf.V1:
            return sf.V1(1 + sf.sympy.gamma(2 * a[0]))

        message = error_of(likelihood, UnsupportedFunctionError)
        assert_names(message, "factor likelihood", "test_trace_errors.py:", "'gamma'")
        assert_names(message, "gamma(2*a[0])")

    def test_free_symbol(self) -> None:
        def scaled(a: Node) -> sf.V3:
            return a * sf.Symbol("scale")

        message = error_of(scaled, UnsupportedFunctionError)
        assert_names(message, "factor scaled", "free symbol 'scale'")

    def test_errors_of_the_function_show_its_line(self) -> None:
        def broken(a: Node) -> sf.V3:
            return a * {"scale": 1}["skale"]

        message = error_of(broken)
        assert_names(message, "factor broken", "test_trace_errors.py:", "KeyError", "'skale'")
        assert_names(message, 'return a * {"scale": 1}["skale"]')

    def test_a_division_by_zero(self) -> None:
        def divided(a: Node) -> sf.V1:
            return sf.V1(a[0] / (a[1] - a[1]))

        message = error_of(divided, UnsupportedFunctionError)
        assert_names(message, "factor divided", "division by zero", "epsilon")

    def test_an_argument_without_effect(self) -> None:
        def forgetful(a: Node, b: Node) -> sf.V3:
            return a

        with pytest.warns(UserWarning, match="factor forgetful, argument b"):
            traced_factor(caspar.factor(forgetful))
