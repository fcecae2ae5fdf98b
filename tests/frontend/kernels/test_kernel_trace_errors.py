"""Results and errors of kernel functions: the error names the output, what is wrong, what to do."""

import math
import statistics
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
import symforce.symbolic as sf
from symforce.ops.interfaces import LieGroup

import caspar
from caspar.errors import FactorError, KernelError, UnsupportedFunctionError
from caspar.memory.patterns import WritePair, WriteSequential, WriteSum
from tests.frontend.kernels.kernel_functions import Camera
from tests.frontend.kernels.refused_kernels import (
    In,
    Out,
    Pose,
    Two,
    assert_names,
    error_of,
    error_of_result,
)


class Other(NamedTuple):
    """Fields of other names."""

    second: Any
    first: Any


def by_zero(a: Any) -> Any:
    return a[0] / (a[1] - a[1])


def root_of_less(a: Any) -> Any:
    return sf.sqrt(sf.S(-2))


def zero_by_zero(a: Any) -> Any:
    return sf.S(0) / sf.S(0)


def taking_two(b: Any, c: Any) -> Any:
    return b + c


def test_kernel_errors_are_no_factor_errors() -> None:
    assert not issubclass(KernelError, FactorError)
    assert issubclass(KernelError, caspar.errors.CasparError)
    assert issubclass(KernelError, TypeError)
    assert issubclass(UnsupportedFunctionError, KernelError)


class TestResult:
    @pytest.mark.parametrize(
        ("declared", "result", "said"),
        [
            (sf.V3, lambda a: None, (" got None; is the return statement missing",)),
            (sf.V3, lambda a: a[0], ("or a list of 3 scalars, got Symbol a[0]",)),
            (sf.V3, lambda a: 1.5, ("or a list of 3 scalars, got float 1.5",)),
            (sf.V3, lambda a: a.T, ("V3 (3 scalars)", "got an M13 of shape (1, 3)")),
            (sf.V3, lambda a: sf.V2(), ("or a list of 3 scalars, got a V2 (2 scalars)",)),
            (sf.V3, lambda a: (a, a), ("needs a V3 (3 scalars), got a tuple of 2 elements",)),
            (sf.V3, lambda a: [a, a, a], ("a list of 3 elements", "scalar 0 is a V3 (3 scalars)")),
            (sf.V3, lambda a: [a[0], "b", 1], ("a list of 3 elements", "scalar 1 is a str")),
            (sf.V3, lambda a: np.zeros(3), ("V3 (3 scalars)", "got an ndarray of shape (3,)")),
            (sf.V3, lambda a: {"a": a}, ("or a list of 3 scalars, got a dict",)),
            (sf.Symbol, lambda a: a, ("expression or a number, got a V3 (3 scalars)",)),
            (float, lambda a: [a[0]], ("or a number, got a list of 1 element",)),
            (sf.V1, lambda a: a[0], ("V1 (1 scalar), or a list of 1 scalar, got Symbol a[0]",)),
            (sf.M33, lambda a: [1] * 9, ("an M33 of shape (3, 3), got a list of 9 elements",)),
            (sf.M23, lambda a: sf.M32(), ("M23 of shape (2, 3), got an M32 of shape (3, 2)",)),
            (sf.Rot3, lambda a: sf.V4(), ("needs a Rot3 (4 scalars), got a V4 (4 scalars)",)),
            (sf.Rot3, lambda a: [0, 0, 0, 1], ("Rot3 (4 scalars), got a list of 4 elements",)),
            (sf.Pose3, lambda a: a, (": needs a Pose3 (7 scalars), got a V3 (3 scalars)",)),
            (Pose, lambda a: sf.Rot3.identity(), ("a Pose or a Pose3 (7 scalars), got a Rot3",)),
            (
                Camera,
                lambda a: sf.Pose3.identity(),
                ("a Camera (9 scalars), got a Pose3 (7 scalars)",),
            ),
            (
                Camera,
                lambda a: Camera(sf.Pose3.identity(), sf.V3()),
                ("needs a Camera (9 scalars), got a Camera (10 scalars)",),
            ),
        ],
    )
    def test_not_the_declared_type(
        self, declared: Any, result: Callable[[Any], Any], said: tuple[str, ...]
    ) -> None:
        message = error_of_result(Annotated[declared, WriteSequential], result)
        assert_names(message, "kernel scaled (", "refused_kernels.py:", "output out")
        assert_names(message, *said)
        message = error_of_result(
            tuple[Out, Annotated[declared, WriteSum]], lambda a: (a, result(a))
        )
        assert_names(message, "output out1", *said)

    @pytest.mark.parametrize(
        ("result", "said"),
        [
            (lambda a: None, ("returned None", "return statement missing")),
            (lambda a: a, ("returned a V3 (3 scalars)", "")),
            (lambda a: (a,), ("tuple of 1 element;", "")),
            (lambda a: [a, a[0], a], ("list of 3 elements", "")),
        ],
        ids=["None", "one", "fewer", "more"],
    )
    def test_not_the_declared_number(self, result: Any, said: tuple[str, str]) -> None:
        both = tuple[Out, Annotated[sf.Symbol, WriteSum]]
        message = error_of_result(both, result)
        assert_names(message, "kernel scaled (", "refused_kernels.py:", *said)
        assert_names(message, "declares 2 outputs", "tuple of out0, out1")
        message = error_of_result(Two, result)
        assert_names(message, "declares 2 outputs", "Two of first, second", *said)

    def test_a_lie_group_of_ones_own_is_no_other(self) -> None:
        class Turn(LieGroup):
            """Four scalars, like a Rot3."""

            @classmethod
            def storage_dim(cls) -> int:
                return 4

            def to_storage(self) -> list[Any]:
                return [0, 0, 0, 1]

            @classmethod
            def from_storage(cls, elements: Any) -> "Turn":
                return cls()

        declared = Annotated[Turn, WriteSequential]
        message = error_of_result(declared, lambda a: sf.Rot3.identity())
        assert_names(message, "needs a Turn (4 scalars), got a Rot3 (4 scalars)")

    def test_long_expressions_are_not_shown(self) -> None:
        def doubled(a: Any) -> Any:
            total = a[0]
            for _ in range(60):  # as text it would have 2**60 terms
                total = sf.sin(total) + sf.cos(total)
            return total

        message = error_of_result(Annotated[sf.V3, WriteSequential], doubled)
        assert_names(message, "needs a V3 (3 scalars)", "got an expression of type Add")

    def test_a_class_with_other_fields(self) -> None:
        message = error_of_result(Two, lambda a: Other(first=a, second=a[0]))
        assert_names(message, "Other of 2 elements", "Two of first, second")

    @pytest.mark.parametrize(
        ("result", "said"),
        [
            (lambda a: None, ("returned None", "return statement missing")),
            (lambda a: a, ("a V3 (3 scalars)", "caspar.Pair((first, second))")),
            (lambda a: (a, a, a), ("tuple of 3 elements", "caspar.Pair((first, second))")),
            (lambda a: (a, a[0]), ("needs a V3", "got Symbol a[0]")),
        ],
        ids=["None", "one", "three", "type"],
    )
    def test_not_a_pair(self, result: Any, said: tuple[str, ...]) -> None:
        message = error_of_result(Annotated[caspar.Pair[sf.V3], WritePair], result)
        assert_names(message, "kernel scaled (", "output out", *said)

    def test_errors_of_the_function_show_its_line(self) -> None:
        def broken(a: In) -> Out:
            return a * {"scale": 1}["skale"]

        message = error_of(broken)
        assert_names(message, "kernel broken", "test_kernel_trace_errors.py:", "KeyError")
        assert_names(message, 'return a * {"scale": 1}["skale"]')

    @pytest.mark.parametrize(
        ("wrong", "advice"),
        [
            (lambda a: math.sqrt(a[0]), "use sf.sqrt, sf.sin, ..."),
            (lambda a: math.hypot(a[0], 2 * a[1]), "use sf.sqrt, sf.sin, ..."),
            (lambda a: math.isclose(a[0], 1), "use sf.sqrt, sf.sin, ..."),
            (lambda a: np.sqrt(a[0]), "use sf.sqrt, sf.sin, ..."),
            (lambda a: np.sin(a[0] + 1), "use sf.sqrt, sf.sin, ..."),
            (lambda a: np.arctan2(a[0], a[1]), "use sf.sqrt, sf.sin, ..."),
            (lambda a: np.isfinite(a[0]), "use sf.sqrt, sf.sin, ..."),
            (lambda a: np.linalg.norm(a), "use sf.sqrt, sf.sin, ..."),
            (lambda a: np.array([a[0]], dtype=float), "use sf.sqrt, sf.sin, ..."),
            (lambda a: statistics.mean(a.to_flat_list()), "use sf.sqrt, sf.sin, ..."),
            (lambda a: np.maximum(a[0], 0), "write sf.Piecewise("),
            (lambda a: np.clip(a[0], 0, 1), "write sf.Piecewise("),
            (lambda a: np.where(a[0] > 0, 1, 2), "write sf.Piecewise("),
            (lambda a: max(a[0], 0), "write sf.Piecewise("),
            (lambda a: sorted(a), "write sf.Piecewise("),
            (lambda a: 1 if a[0] > 0 and a[1] > 0 else 2, "write sf.Piecewise("),
            (lambda a: 1 if 0 < a[0] < 1 else 2, "write sf.Piecewise("),
            (lambda a: (a[0] > 0) & (a[1] > 0), "sf.sympy.And"),
            (lambda a: float(a[0]), "use sf.sqrt, sf.sin, ..."),
            (lambda a: int(a[0] + 1), "use sf.floor(x)"),
            (lambda a: math.floor(a[0]), "use sf.floor(x)"),
            (lambda a: round(a[0]), "use sf.floor(x)"),
            (lambda a: np.round(a[0]), "use sf.floor(x)"),
            (lambda a: range(a[0]), "sf.Piecewise over the alternatives"),
            (lambda a: a[a[0]], "sf.Piecewise over the alternatives"),
            (lambda a: [1, 2][a[0]], "sf.Piecewise over the alternatives"),
            (lambda a: (1, 2)[2 * a[0]], "sf.Piecewise over the alternatives"),
            (lambda a: np.arange(3)[a[0]], "sf.Piecewise over the alternatives"),
            (lambda a: [1, 2][: a[0]], "sf.Piecewise over the alternatives"),
            (lambda a: [1] * a[0], "sf.Piecewise over the alternatives"),
            (lambda a: f"{a[0]:.3f}", "no digits to format"),
        ],
    )
    def test_what_needs_numbers_says_what_symbols_take(
        self, wrong: Callable[[Any], Any], advice: str
    ) -> None:
        def scaled(a: In) -> Out:
            return a * wrong(a)

        message = error_of(scaled)
        assert_names(message, "runs on symbols, not numbers: ", advice, ", line ")

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            (lambda a: taking_two(*a[:1]), "missing 1 required positional argument: 'c'"),
            (lambda a: taking_two(*a), "takes 2 positional arguments but 3 were given"),
            (lambda a: a.lenght, "AttributeError: 'Matrix31' object has no attribute 'lenght'"),
            (lambda a: a[0].shape, "has no attribute 'shape'"),
            (lambda a: a[0](1), "'Symbol' object is not callable"),
            (lambda a: a[5], "IndexError"),
            (lambda a: a + sf.V2(), "ShapeError"),
            (lambda a: sf.Pose3.identity() * a[0], "NotImplementedError"),
            (lambda a: [1, 2][sf.V2], "TypeError: list indices must be"),
        ],
    )
    def test_other_errors_speak_for_themselves(
        self, wrong: Callable[[Any], Any], said: str
    ) -> None:
        def scaled(a: In) -> Out:
            return a * wrong(a)

        message = error_of(scaled)
        assert_names(message, "kernel scaled", "test_kernel_trace_errors.py:", ", line ", said)
        assert "sf.sqrt" not in message

    def test_comparisons_show_their_line(self) -> None:
        def clipped(a: In) -> Out:
            if a[0] < 0:
                return -a
            return a

        assert_names(error_of(clipped), "kernel clipped", "if a[0] < 0:", "sf.Piecewise")

    def test_unsupported_function(self) -> None:
        def likelihood(a: In) -> Annotated[sf.Symbol, WriteSum]:
            return 1 + sf.sympy.gamma(2 * a[0])

        message = error_of(likelihood, UnsupportedFunctionError)
        assert_names(message, "kernel likelihood", "test_kernel_trace_errors.py:", "'gamma'")
        assert_names(message, "return 1 + sf.sympy.gamma(2 * a[0])")

    def test_free_symbol(self) -> None:
        def scaled(a: In) -> Out:
            return a * sf.Symbol("scale")

        message = error_of(scaled, UnsupportedFunctionError)
        assert_names(message, "kernel scaled", "output out", "free symbol 'scale'", "arguments")

    @pytest.mark.parametrize(
        ("result", "said"),
        [
            (by_zero, "the output out1 is a division by zero"),
            (root_of_less, "is complex"),
            (zero_by_zero, "the output out1 is not a number"),
        ],
    )
    def test_no_number(self, result: Any, said: str) -> None:
        def divided(a: In) -> tuple[Out, Annotated[sf.Symbol, WriteSum]]:
            return a, result(a)

        message = error_of(divided, UnsupportedFunctionError)
        assert_names(message, "kernel divided", said)
