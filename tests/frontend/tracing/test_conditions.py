"""Decisions by an argument are refused, with the user's line and what to write instead."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from symengine.lib.symengine_wrapper import Basic

import caspar
from caspar.errors import FactorError
from caspar.frontend.factors.trace import TracedFactor, trace
from caspar.frontend.tracing import conditions
from caspar.frontend.tracing.conditions import Watch
from caspar.frontend.tracing.replaced_members import installed
from tests.frontend.evaluating import lowered
from tests.frontend.kernels.refused_kernels import error_of as error_of_kernel
from tests.frontend.tracing import deciding

X = Annotated[sf.V2, caspar.TunableShared]
M = Annotated[sf.V2, caspar.ConstSequential]
P = Annotated[sf.Pose3, caspar.ConstSequential]

BASIC_EQ = vars(Basic)["__eq__"]
WRITE = "write sf.Piecewise("


@dataclass
class Box:
    """Compared field by field."""

    low: Any


def watched(watch: Watch, function: Callable[[], Any]) -> Any:
    with installed():
        return watch.run(function)


def traced(function: Callable[..., Any]) -> TracedFactor:
    def residual(x: X, m: M, p: P) -> sf.V2:
        made: sf.V2 = x - m + sf.V2(p.t[0], function(x, m, p))
        return made

    return trace(caspar.factor(residual))


def asserts(x: Any, m: Any, p: Any) -> Any:
    assert m[0]
    return 1


def loops(x: Any, m: Any, p: Any) -> Any:
    while m[0]:
        return 1
    return 2


def catches(x: Any, m: Any, p: Any) -> Any:
    try:
        return 1 if m[0] == 1 else 2
    except TypeError:
        return 3


def matches(x: Any, m: Any, p: Any) -> Any:
    match m[0]:
        case 1:
            return 2
        case _:
            return 3


def removes(x: Any, m: Any, p: Any) -> Any:
    values = [1, m[0]]
    values.remove(m[1])
    return values[0]


EQUALITIES: list[Callable[..., Any]] = [
    lambda x, m, p: 1 if m[0] == 1 else 2,
    lambda x, m, p: 1 if m[0] != 1 else 2,
    lambda x, m, p: 1 if 1 == m[0] else 2,
    lambda x, m, p: 1 if 2 * m[0] + x[1] == 0 else 2,
    lambda x, m, p: 1 if m[0] == np.float64(1.0) else 2,
    lambda x, m, p: 1 if m[0] in (1, 2) else 2,
    lambda x, m, p: 1 if 3 not in [m[0], m[1]] else 2,
    lambda x, m, p: [1, m[0]].index(m[1]),
    lambda x, m, p: [1, m[0]].count(m[1]),
    lambda x, m, p: 1 if x == m else 2,
    lambda x, m, p: 1 if x != m else 2,
    lambda x, m, p: 1 if p == sf.Pose3.identity() else 2,
    lambda x, m, p: 1 if p.R == sf.Rot3.identity() else 2,
    lambda x, m, p: 1 if [x[0], x[1]] == [m[0], m[1]] else 2,
    lambda x, m, p: 1 if Box(m[0]) == Box(1) else 2,
    lambda x, m, p: 1 if m.to_flat_list() == [1, 2] else 2,
    lambda x, m, p: 1 if (m[0] < 1) == True else 2,  # noqa: E712
    lambda x, m, p: sum(value == 1 for value in m),
    lambda x, m, p: len([value for value in m if value == 1]),
    lambda x, m, p: (lambda value: value == 1)(m[0]) + 1,
    lambda x, m, p: 1 if (np.array(m.to_flat_list()) == 1).any() else 2,
    lambda x, m, p: 1 if deciding.is_one(m[0]) else 2,
    removes,
    matches,
    catches,
]
TRUTHS: list[Callable[..., Any]] = [
    lambda x, m, p: 1 if m[0] else 2,
    lambda x, m, p: 1 if not m[0] else 2,
    lambda x, m, p: m[0] and x[0],
    lambda x, m, p: m[0] or x[0],
    lambda x, m, p: 1 if bool(m[0] - x[0]) else 2,
    lambda x, m, p: any(m),
    lambda x, m, p: all(m),
    lambda x, m, p: len(list(filter(None, m))),
    lambda x, m, p: np.any(np.array(m.to_flat_list())),
    lambda x, m, p: np.count_nonzero(m.to_flat_list()),
    asserts,
    loops,
]
KEYS: list[Callable[..., Any]] = [
    lambda x, m, p: {m[0]: 1, m[1]: 2}[m[0]],
    lambda x, m, p: len({m[0], m[1]}),
    lambda x, m, p: len({value for value in m}),
    lambda x, m, p: {1: 2, 3: 4}[m[0]],
    lambda x, m, p: len({(m[0], 1): 2}),
]
SIGNS: list[Callable[..., Any]] = [
    lambda x, m, p: 1 if m[0].is_zero else 2,
    lambda x, m, p: 1 if (m[0] + 1).is_positive else 2,
]
COMPARISONS: list[Callable[..., Any]] = [
    lambda x, m, p: 1 if m[0] < 1 else 2,
    lambda x, m, p: 1 if 0 < m[0] < 1 else 2,
    lambda x, m, p: max(m),
    lambda x, m, p: min(m[0], 1),
    lambda x, m, p: sorted(m)[0],
    lambda x, m, p: 1 if sf.sympy.Eq(m[0], 1) else 2,
]


def numbered(said: str, functions: list[Callable[..., Any]]) -> list[Any]:
    return [
        pytest.param(function, said, id=f"{said}-{number}")
        for number, function in enumerate(functions)
    ]


REFUSED = [
    *numbered("==, !=, in", EQUALITIES),
    *numbered("truth of a symbol", TRUTHS),
    *numbered("key of a dictionary", KEYS),
    *numbered("is_zero", SIGNS),
    *numbered("comparison of symbols", COMPARISONS),
]


@pytest.mark.parametrize(("function", "said"), REFUSED)
def test_decisions_by_arguments_are_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(FactorError) as caught:
        traced(function)
    message = str(caught.value)
    assert "factor residual" in message
    assert "test_conditions.py:" in message
    assert said in message
    assert ", line " in message
    assert WRITE in message


CONVERSIONS: list[Callable[[Any], Any]] = [
    int,
    float,
    round,
    complex,
    math.sin,
    math.floor,
    math.trunc,
    lambda value: [1, 2][value],
    lambda value: [1, 2, 3][:value],
    lambda value: range(value),
    lambda value: np.array([value], dtype=float),
    lambda value: np.zeros(3)[value],
    lambda value: np.float64(value),
    "%.3f".__mod__,
    lambda value: f"{value:.1f}",
    lambda value: float(sf.sqrt(value)),
    lambda value: value.evalf(),
]


@pytest.mark.parametrize("convert", CONVERSIONS, ids=range(len(CONVERSIONS)))
def test_conversions_are_refused_also_if_the_error_is_caught(convert: Callable[..., Any]) -> None:
    def catches(x: Any, m: Any, p: Any) -> Any:
        try:
            convert(m[0])
        except Exception:
            return m[1]
        return 2 * m[1]

    def suppresses(x: Any, m: Any, p: Any) -> Any:
        found = m[1]
        with suppress(Exception):
            found = convert(m[0] + x[1]) * 0 + 1
        return found

    for function in (catches, suppresses, lambda x, m, p: convert(m[1])):
        with pytest.raises(FactorError, match="The function runs on symbols, not numbers: "):
            traced(function)


def test_conversions_have_the_number_of_a_point() -> None:
    m = sf.Symbol("m")
    watch = Watch(__file__, {"m"}, lambda expression: float(expression.subs(m, 2.0)))
    found = watched(
        watch, lambda: [int(m), float(m / 4), round(m), complex(m), [5, 6, 7][m], f"{m:.1f}", m.n()]
    )
    assert found == [2, 0.5, 2, 2 + 0j, 7, "2.0", sf.S(2.0)]
    with pytest.raises(TypeError, match="interpreted as an integer"):
        watched(watch, lambda: [5, 6, 7][m / 4])


def test_the_line_of_a_helper_elsewhere_is_shown() -> None:
    with pytest.raises(FactorError, match=r"line \d+: .*, .*deciding\.py:8: return bool\(value"):
        traced(lambda x, m, p: 1 if deciding.is_one(m[0]) else 2)


def test_kernels_refuse_them_too() -> None:
    Out = Annotated[sf.Symbol, caspar.WriteSequential]

    def decides(a: Annotated[sf.V2, caspar.ReadSequential]) -> Out:
        return 1 if a[0] == 2 else a[1]

    def asks(a: Annotated[caspar.Pair[sf.V2], caspar.ReadPair]) -> Out:
        return a[0][0] or a[1][1]

    message = error_of_kernel(decides)
    assert "kernel decides" in message
    assert "line" in message
    assert WRITE in message
    assert "truth of a symbol" in error_of_kernel(asks)


DEGREE = 2
FINE: list[Callable[..., Any]] = [
    lambda x, m, p: 1 if DEGREE == 2 else 2,
    lambda x, m, p: 1 if x.shape == (2, 1) and m is not None else 2,
    lambda x, m, p: 1 if m[0] == m[0] else 2,
    lambda x, m, p: [m[0], m[1]].index(m[0]) + 1,
    lambda x, m, p: 1 if None not in (m[0], x[0]) else 2,
    lambda x, m, p: 1 if m[0] - m[0] == 0 else 2,
    lambda x, m, p: 1 if sf.S(1.0) == 1 else 2,
    lambda x, m, p: 1 if sf.epsilon() != 0 else 2,
    lambda x, m, p: {"degree": 1}["degree"],
    lambda x, m, p: 1 + 0 * p.inverse().to_tangent()[0],
    lambda x, m, p: sf.Piecewise((1, sf.sympy.Eq(m[0], 1)), (1, True)),
    lambda x, m, p: sf.Piecewise((1, sf.sympy.And(m[0] < 1, x[0] >= 2)), (1, True)),
    lambda x, m, p: int(sf.S(1)) * round(float(sf.sqrt(1))),
    lambda x, m, p: (np.zeros(2) + m[0] - m[0] + np.ones(2))[1],
    lambda x, m, p: 1 if isinstance(x, sf.Matrix) and len(x) == 2 else 2,
]


@pytest.mark.parametrize("function", FINE, ids=range(len(FINE)))
def test_other_decisions_are_left_alone(function: Callable[..., Any]) -> None:
    found = traced(function)
    names = [str(symbol) for argument in found.arguments for symbol in argument.symbols]
    assert lowered(list(found.residual), names, np.full((1, len(names)), 0.5))[0, 1] == 1.0


POOL = ThreadPoolExecutor(1)


def starts(x: Any, m: Any, p: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(1 if m[0] == 1 else 2), daemon=True)
    thread.start()
    thread.join(30.0)
    return found[0]


def swallows(x: Any, m: Any, p: Any) -> Any:
    with suppress(TypeError):
        return starts(x, m, p)
    return 2


@pytest.mark.parametrize(
    "function",
    [
        starts,
        swallows,
        lambda x, m, p: POOL.submit(lambda: 1 if m[0] == 1 else 2).result(30.0),
        lambda x, m, p: next(iter(POOL.map(lambda value: 1 if value == 1 else 2, m))),
    ],
)
def test_threads_of_the_function_are_refused(function: Callable[..., Any]) -> None:
    assert POOL.submit(int, 1).result(30.0) == 1  # its thread runs already
    with pytest.raises(FactorError, match="thread would decide"):
        traced(function)
    assert POOL.submit(int, 1).result(30.0) == 1


class TestWhoIsAsked:
    def test_symengine_answers_again_afterwards(self) -> None:
        x = sf.Symbol("x")
        traced(lambda x, m, p: 1)
        assert vars(Basic)["__eq__"] is BASIC_EQ
        assert "__bool__" not in vars(Basic)
        assert x == sf.Symbol("x")
        assert x != 1
        assert bool(x)
        assert len({x, sf.Symbol("x")}) == 1
        assert x.is_zero is None
        with pytest.raises(TypeError, match="immutable type"):
            Basic.anything = 1

    def test_other_threads_are_left_alone(self) -> None:
        started, done = threading.Event(), threading.Event()
        m = sf.Symbol("m")
        watch = Watch(__file__, {"m"})
        refused: list[BaseException] = []

        def other() -> None:
            def decide() -> None:
                started.set()
                assert done.wait(30)
                with pytest.raises(TypeError, match="compare symbols"):
                    assert m == 1

            try:
                watched(watch, decide)
            except BaseException as error:
                refused.append(error)

        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        assert started.wait(30)
        assert m != 1
        assert bool(m)
        done.set()
        thread.join(30.0)
        assert not refused
        assert watch.refused is not None

    def test_a_watch_left_behind_refuses_nothing(self) -> None:
        m = sf.Symbol("m")
        with installed():
            conditions._OF_THREAD.watch = Watch(__file__, {"m"})
            try:
                assert m != 1
                assert bool(m)
            finally:
                conditions._OF_THREAD.watch = None
