"""Traced functions are compared with themselves on numbers: what differs, and what must not."""

import functools
import itertools
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import FactorError, KernelError
from caspar.frontend.factors.trace import factor_comparison, trace
from caspar.frontend.kernels.trace import KernelFunction, kernel_comparison, trace_kernel
from caspar.frontend.symbolic.field_types import unit_ranges
from caspar.frontend.tracing.code_digest import UserCode, user_code
from caspar.frontend.tracing.on_numbers import (
    PointArgument,
    compare_with_numbers,
    drawn_points,
    values_of_keys,
)
from tests.frontend.factors import residuals
from tests.support_functions import CASES
from tests.support_functions import x as first
from tests.support_functions import y as second

X = Annotated[sf.V2, caspar.TunableShared]
M = Annotated[sf.V2, caspar.ConstSequential]
Pose = Annotated[sf.Pose3, caspar.TunableShared]
Pose2 = Annotated[sf.Pose2, caspar.TunableShared]


def compared(function: Callable[..., Any]) -> int:
    """At how many points a factor is compared."""
    factor = function if isinstance(function, caspar.Factor) else caspar.factor(function)
    code = user_code(factor.function, [])
    return compare_with_numbers(factor_comparison(factor, trace(factor)), code)


def residual_with(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def residual(x: X, m: M) -> sf.V2:
        return sf.V2(x[0] + m[1], x[1] - m[0] + function(x, m))

    return residual


TABLE = {(2.5, 3.5): 1, (4, 5): 2}
LONG_TABLE = {7: 0, **{number: 3 for number in range(20, 60)}, 11: 2}
PAIRS = {(4, 4.5): 2}


@dataclass(frozen=True)
class Cell:
    """A key."""

    row: Any
    column: Any


class Box:
    """Holds a table."""

    def __init__(self) -> None:
        self.table = {(2.5, 4.5): 2}


CELLS = {Cell(2.5, 3.5): 2}
BOX = Box()


def nearest(first: Any, second: Any, known: Any = (((3, 4), 5),)) -> Any:
    return dict(known).get((first, second), 3)


_counter = itertools.count()


def writes_outside() -> Callable[..., Any]:
    offset = sf.V2(0, 0)

    def residual(x: X, m: M) -> sf.V2:
        offset[0] += 1
        return x - m + offset

    return residual


DIFFERENT: list[Callable[[Any, Any], Any]] = [
    lambda x, m: {1: 2}.get(m[0], 3),
    lambda x, m: {17: 2, 18: 4}.get(m[0], 3),
    lambda x, m: {0.37: 2}.get(m[0], 3),
    lambda x, m: len(set(m.to_flat_list())),
    lambda x, m: len(dict.fromkeys(m)),
    lambda x, m: 2 if str(m[0]).startswith("m") else 3,
    lambda x, m: 2 if f"{m[0]}" == "m[0]" else 3,
    lambda x, m: 2 if "-" in str(m) else 3,
    lambda x, m: 2 if "-" in repr(x) else 3,
    lambda x, m: 2 if "-" in f"{m}" else 3,
    lambda x, m: 2 if "-" in f"{sf.Rot2.from_angle(m[0])}" else 3,
    lambda x, m: len("%s" % (m * m.T)),
    lambda x, m: 2 if dict(zip(m, (5, 6), strict=True)).get(x[0]) else 3,
    lambda x, m: statistics.mode([m[0], m[1], x[1]]),
    lambda x, m: {(3, 7): 2}.get((x[0], x[1]), 3),
    lambda x, m: {(5.5, 7): 2, (6, 8): 1}.get((m[1], x[0]), 3),
    lambda x, m: {(5, 7, 9): 2}.get((m[1], x[0], m[0]), 3),
    lambda x, m: {(5, 7): 2}.get((2 * m[1] + 1, x[0]), 3),
    lambda x, m: {(5, 7): 2}.get((sf.floor(m[1]), sf.floor(x[0])), 3),
    lambda x, m: {((5, 6), 7): 2}.get(((m[0], m[1]), x[0]), 3),
    lambda x, m: {(5, 7): 2}.get(tuple(m), 3),
    lambda x, m: TABLE.get((m[0], x[1]), 3),
    lambda x, m: LONG_TABLE.get(m[0], 3),
    lambda x, m: sum(PAIRS.get(pair, 0) for pair in zip(x, m, strict=True)),
    lambda x, m: {(10, 3): 2}.get((x[0] * m[0], m[1] - x[1]), 3),
    lambda x, m: CELLS.get(Cell(x[0], m[1]), 3),
    lambda x, m: BOX.table.get((x[0], m[1]), 3),
    lambda x, m: nearest(x[0], m[0]),
    lambda x, m: Counter([m[0], m[1], x[0]]).most_common(1)[0][1],
]


@pytest.mark.parametrize("function", DIFFERENT, ids=range(len(DIFFERENT)))
def test_differences_are_refused(function: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(FactorError) as caught:
        compared(residual_with(function))
    message = str(caught.value)
    for part in ("factor residual", "test_on_numbers.py:", "row 1 of the residual is ", ", but "):
        assert part in message
    assert "on numbers, at x = (" in message
    assert ", m = (" in message
    assert "sf.Piecewise" in message


@pytest.mark.parametrize(
    "residual",
    [
        residual_with(lambda x, m: random.random()),
        residual_with(lambda x, m: m[0] * time.perf_counter()),
        residual_with(lambda x, m: next(_counter)),
        writes_outside(),
    ],
    ids=["random", "time", "counter", "closure"],
)
def test_what_is_not_deterministic_is_refused(residual: Callable[..., Any]) -> None:
    with pytest.raises(FactorError, match=r"not deterministic.*at x = \("):
        compared(residual)


def test_another_number_of_rows_is_refused() -> None:
    def residual(x: X, m: M) -> Any:
        return x - m if {1: True}.get(m[0]) else sf.V1(x[0] - m[0])

    with pytest.raises(FactorError, match="1 rows on symbols, but 2 on numbers, at x"):
        compared(residual)


def divides(x: Any, m: Any) -> Any:
    try:
        return x[0] / (m[0] - 1)
    except ZeroDivisionError:
        return 0


def suppresses(x: Any, m: Any) -> Any:
    found = 0
    with suppress(ArithmeticError):
        found = 1 / (x[0] - m[0])
    return found


@pytest.mark.parametrize("function", [divides, suppresses, lambda x, m: 2 * divides(x, m)])
def test_caught_divisions_by_zero_are_refused(function: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(FactorError, match=r"row 1 .* not finite at x = .* catches ZeroDivision"):
        compared(residual_with(function))


def test_special_values_instead_of_infinity_are_seen() -> None:
    function = residual_with(lambda x, m: {0: 2}.get(m[0], 1 / m[0]))
    with pytest.raises(FactorError, match=r"row 1 of the residual is (inf|nan) by .* but "):
        compared(function)


def test_something_else_than_a_vector_is_refused() -> None:
    def residual(x: X, m: M) -> Any:
        return None if {1: True}.get(m[0]) else x - m

    with pytest.raises(FactorError, match=r"on numbers, at x = .* it fails: .* returned NoneType"):
        compared(residual)


def test_kernels_name_the_output() -> None:
    def chosen(
        a: Annotated[sf.V2, caspar.ReadSequential],
        b: Annotated[caspar.Pair[sf.V2], caspar.ReadPair],
    ) -> tuple[
        Annotated[sf.V2, caspar.WriteSequential], Annotated[sf.Symbol, caspar.WriteSequential]
    ]:
        return a + b[0], {1: a[0]}.get(b[1][0], a[1])

    function = KernelFunction(chosen, "chosen", {})
    comparison = kernel_comparison(function, trace_kernel(function))
    with pytest.raises(KernelError, match=r"kernel chosen .* scalar 0 of output out1 is .*b = \("):
        compare_with_numbers(comparison, UserCode())


class TestNoFalseAlarms:
    @pytest.mark.parametrize("name", CASES)
    def test_every_function(self, name: str) -> None:
        expression = CASES[name].expression

        def residual(x: X, m: M) -> sf.V2:
            return sf.V2(expression.subs({first: x[0], second: m[0]}), x[1] + m[1])

        assert compared(residual) > 0

    @pytest.mark.parametrize(
        "function",
        [
            lambda x, m: sf.Piecewise((x[0], sf.sympy.Eq(m[0], 1)), (m[1], True)),
            lambda x, m: sf.Piecewise((x[0], sf.sympy.Eq(m[0], m[1])), (m[1], True)),
            lambda x, m: sf.Piecewise((x[0], sf.sympy.Ne(m[0], 0.75)), (m[1], True)),
            lambda x, m: sf.Piecewise((1, x[0] < m[0]), (2, x[0] <= m[1]), (3, True)),
            lambda x, m: sf.Piecewise((1, 0.1 * 3 * x[0] < 0.3 * m[0]), (2, True)),
            lambda x, m: sf.floor(0.1 * x[0] * 10) + sf.floor(3 * (m[0] / 3)),
            lambda x, m: sf.Mod(x[0], 0.1) + x[1] % 2,
            lambda x, m: sf.Max(x[0], m[0], 0) - sf.Min(x[1], m[1], 1),
            lambda x, m: sf.sign(x[0] - m[0]) + sf.sign_no_zero(x[1]) + sf.Abs(x[0]),
            lambda x, m: sf.copysign_no_zero(x[0], m[0]) + sf.sympy.ceiling(x[1]),
            lambda x, m: sf.wrap_angle(x[0] * sf.pi) + sf.angle_diff(x[1], m[0]),
            lambda x, m: x.norm() + m.norm(0) + (x - m).normalized()[0],
            lambda x, m: sf.atan2(x[0], m[0]) + sf.acos(x[1]) + sf.asin(m[1]),
            lambda x, m: (1 - sf.cos(1e-4 * x[0])) / (1e-8 * x[0] ** 2),
            lambda x, m: (x[0] + 5e6) - 5e6 + ((m[0] + 1e-9) - m[0]) * 1e3,
            lambda x, m: ((x[0] + m[0]) ** 2 - x[0] ** 2 - m[0] ** 2) / (x[0] * m[0]),
            lambda x, m: sf.exp(1e3 * x[0]) + 1 / x[1] + sf.log(m[0]) + x[0] ** m[1],
            lambda x, m: (1e-15 * x[0]) * sf.exp(m[0]) * 1e-15,
            lambda x, m: 1e15 * x[0] ** 3 / (1e-12 + m[0] ** 2),
            lambda x, m: sf.sqrt(x[0] ** 2 - 1) + (x[1] ** 3) ** (sf.S(1) / 3),
            lambda x, m: sum(x[0] ** n / (n + 1) for n in range(30)),
            lambda x, m: 1 if x.shape == (2, 1) else m[0],
        ],
    )
    def test_corners_and_cancellation(self, function: Callable[[Any, Any], Any]) -> None:
        assert compared(residual_with(function)) > 0

    def test_logarithms_of_rotations(self) -> None:
        def of_poses(a: Pose, b: Annotated[sf.Pose3, caspar.ConstSequential]) -> sf.V6:
            return sf.V6(a.between(b).to_tangent())

        def of_planar_poses(a: Pose2, b: Pose2) -> sf.V3:
            return sf.V3(a.local_coordinates(b))

        def of_rotations(a: Annotated[sf.Rot3, caspar.TunableShared]) -> sf.V3:
            return sf.V3(a.to_tangent()) + sf.V3(a.to_yaw_pitch_roll())

        def of_directions(a: Annotated[sf.Unit3, caspar.TunableShared], b: Pose) -> sf.V2:
            moved = sf.Unit3.from_vector(b.R * a.to_unit_vector())
            return sf.V2(moved.local_coordinates(a))

        for function in (of_poses, of_planar_poses, of_rotations, of_directions):
            assert compared(function) > 0

    def test_factors_of_other_tests(self) -> None:
        factors = [one for one in vars(residuals).values() if isinstance(one, caspar.Factor)]
        assert len(factors) > 3
        for factor in factors:
            assert compared(factor) > 0

    def test_what_does_not_run_on_numbers_is_left_out(self) -> None:
        def fails(x: X, m: M) -> sf.V2:
            if len(set(m.to_flat_list())) < 2:
                raise ValueError("they must differ")
            return x - m

        def never(x: X, m: M) -> sf.V2:
            if not str(m[0]).startswith("m"):
                raise ValueError("symbols only")
            return x - m

        def derives(x: X, m: M) -> sf.V2:
            return sf.V2((x[0] ** 2 * m[0]).diff(x[0]), x[1])

        assert 0 < compared(fails) < compared(derives)
        assert compared(never) == 0

    def test_errors_of_other_divisions(self) -> None:
        def ratio(count: int) -> float:
            try:
                return 1 / count
            except ZeroDivisionError:
                return 0

        assert compared(residual_with(lambda x, m: ratio(0) * x[0] / (m[0] ** 2 + 1))) > 0
        assert compared(residual_with(lambda x, m: 1 / m[0] + sf.log(x[0]))) > 0

    def test_memory_of_formulas_is_fine(self) -> None:
        known: dict[str, Any] = {}

        @functools.cache
        def square(value: Any) -> Any:
            return value**2

        def residual(x: X, m: M) -> sf.V2:
            known["last"] = x
            return sf.V2(square(x[0]) - m[0], square(x[1]) - m[1])

        assert compared(residual) > 0


def test_points() -> None:
    declared = (sf.Pose3, sf.Rot2, sf.Unit3)
    arguments = [
        PointArgument(kind.__name__, (kind.symbolic("a"),), kind.storage_dim(), unit_ranges(kind))
        for kind in declared
    ]
    points = drawn_points(arguments, [17.0])
    assert points.shape[1] == 7 + 2 + kind_dim(sf.Unit3)
    assert np.linalg.norm(points[:, :4], axis=1) == pytest.approx(1.0)
    assert np.linalg.norm(points[:, 7:9], axis=1) == pytest.approx(1.0)
    assert [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0] in points[:, :9].tolist()
    assert (points[:, 4:7] == 1.0).all(axis=1).any()
    assert (points[:, 4:7] == 17.0).any(axis=0).all()


def kind_dim(kind: Any) -> int:
    return int(kind.storage_dim())


def test_points_of_keys() -> None:
    a, b, c = (sf.Symbol(name) for name in "abc")

    def number(expression: Any, values: Any) -> float:
        return float(expression.subs({"a": 1.0, "b": 1.0, "c": 1.0, **values}))

    def found(key: Any, *specials: Any) -> Any:
        return values_of_keys([key], specials, number)

    assert found((a, b), (3.0, 4.0)) == [{"a": 3.0, "b": 4.0}]
    assert found((2 * b - 1, sf.floor(a)), (3.0, 4.0)) == [{"a": 4.0, "b": 2.0}]
    assert found((a, b, c, a), (3.0, 4.0), (5.0,)) == [
        {"a": 3.0, "b": 4.0, "c": 3.0},
        {"a": 5.0, "b": 5.0, "c": 5.0},
    ]
    assert found((a, b, c), (3.0, 4.0)) == []
    assert found((a * b, c + b), (3.0, 4.0)) == [{"a": 3.0, "b": 3.0}]
    assert found((a**2, sf.sin(c)), (3.0, 4.0)) == []
