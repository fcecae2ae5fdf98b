"""A factor is traced once, and again as soon as anything that it reads has changed."""

import functools
import itertools
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar import tracing
from caspar.frontend.factors.trace import TracedFactor, trace

X = Annotated[sf.V1, caspar.TunableShared]


class Gain:
    """What objects of a user are like."""

    unit = 1.0

    def __init__(self, value: float) -> None:
        self.value = value

    def of(self, number: Any) -> Any:
        """The product."""
        return self.unit * self.value * number


class Level(Enum):
    """A choice."""

    LOW = 2.0
    HIGH = 3.0


@dataclass
class Sensor:
    """An argument type with a method of its own."""

    bias: sf.V1

    def corrected(self, number: Any) -> Any:
        """Without its bias."""
        return number - self.bias[0]


def helper(number: Any) -> Any:
    """What factors call."""
    return 2 * number


def other_helper(number: Any) -> Any:
    """Another one."""
    return 5 * number


SCALE = 2.0
TABLE = [1.0, [2.0, 3.0], 3.0]
NAMED = {"gain": 2.0}
GAIN = Gain(2.0)
LEVEL = Level.LOW
ARRAY = np.array([2.0, 3.0])
MATRIX = sf.V2(2, 3)
BOUND = functools.partial(helper)
HELPERS = types.ModuleType("helpers")
HELPERS.__file__ = str(Path(__file__).with_name("helpers_of_a_test.py"))
vars(HELPERS)["scale"] = 2.0
MODULE: Any = HELPERS


@caspar.factor
def with_number(x: X) -> sf.V1:
    """A global number."""
    return x * SCALE


@caspar.factor
def with_table(x: X) -> sf.V1:
    """A nested list."""
    rest: Any = TABLE[1]
    return x * TABLE[2] * rest[0]


@caspar.factor
def with_names(x: X) -> sf.V1:
    """A dictionary."""
    return x * sum(NAMED.values())


@caspar.factor
def with_object(x: X) -> sf.V1:
    """An object, its class and a method."""
    return sf.V1(GAIN.of(x[0]))


@caspar.factor
def with_level(x: X) -> sf.V1:
    """A member of an enumeration."""
    return x * LEVEL.value


@caspar.factor
def with_array(x: X) -> sf.V1:
    """An array."""
    return x * float(ARRAY[0])


@caspar.factor
def with_matrix(x: X) -> sf.V1:
    """A matrix of SymForce."""
    return x * MATRIX[0]


@caspar.factor
def with_helper(x: X) -> sf.V1:
    """A function that calls another one, of a class and of SymForce."""
    return sf.V1(sf.sqrt(4 + helper(x[0]) ** 2)) + sf.V1(BOUND(sf.V2(x[0], 1).norm()))


@caspar.factor
def with_module(x: X) -> sf.V1:
    """An attribute of a module."""
    return x * MODULE.scale


@caspar.factor
def with_default(x: X) -> sf.V1:
    """A helper with defaults."""

    def scaled(number: Any, by: float = SCALE, *, plus: float = 1.0) -> Any:
        return number * by + plus

    return sf.V1(scaled(x[0]))


@caspar.factor
def with_method(x: Annotated[Sensor, caspar.TunableShared]) -> sf.V1:
    """A method of an argument."""
    return sf.V1(x.corrected(3.0))


FACTORS = [
    *(with_number, with_table, with_names, with_object, with_level, with_array, with_matrix),
    *(with_helper, with_module, with_default, with_method),
]


def is_kept(factor: caspar.Factor) -> bool:
    """Whether a factor is not traced a second time."""
    return tracing.traced_factor(factor) is tracing.traced_factor(factor)


@pytest.mark.parametrize("factor", FACTORS, ids=lambda factor: factor.name)
def test_what_is_as_it_was_is_not_traced_again(factor: caspar.Factor) -> None:
    assert is_kept(factor)


class Element:
    """A place of a container as an attribute, so that it can be put back."""

    def __init__(self, container: Any, key: Any) -> None:
        self._container = container
        self._key = key

    @property
    def value(self) -> Any:
        """What is there."""
        return self._container[self._key]

    @value.setter
    def value(self, value: Any) -> None:
        self._container[self._key] = value


def in_this_module(name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setitem(globals(), name, value)


def in_place(container: Any, key: Any, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(Element(container, key), "value", value)


def of(thing: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(thing, name, value)


CHANGES: dict[str, tuple[caspar.Factor, Callable[[pytest.MonkeyPatch], None]]] = {
    "a global": (with_number, in_this_module("SCALE", 3.0)),
    "an integer for a float": (with_number, in_this_module("SCALE", 2)),
    "an element": (with_table, in_place(TABLE, 2, 4.0)),
    "an element of an element": (with_table, in_place(TABLE[1], 0, 4.0)),
    "a value of a dictionary": (with_names, in_place(NAMED, "gain", 3.0)),
    "a key of a dictionary": (with_names, lambda patch: patch.setitem(NAMED, "offset", 3.0)),
    "an attribute": (with_object, of(GAIN, "value", 3.0)),
    "an attribute of a class": (with_object, of(Gain, "unit", 2.0)),
    "a method": (with_object, of(Gain, "of", lambda self, number: 7 * number)),
    "a method of one object": (with_object, of(GAIN, "of", lambda number: 7 * number)),
    "a member": (with_level, in_this_module("LEVEL", Level.HIGH)),
    "an array": (with_array, in_place(ARRAY, 0, 4.0)),
    "a matrix": (with_matrix, in_place(MATRIX, 0, sf.S(4))),
    "a helper": (with_helper, in_this_module("helper", other_helper)),
    "code of a helper": (with_helper, of(helper, "__code__", other_helper.__code__)),
    "a partial": (with_helper, in_this_module("BOUND", functools.partial(other_helper))),
    "a function of SymForce": (with_helper, of(sf, "sqrt", lambda number: 2 * number)),
    "a method of SymForce": (with_helper, of(sf.Matrix, "norm", lambda self, **_: self[0] * 9)),
    "a built-in function": (with_names, in_this_module("sum", lambda values: 11.0)),
    "an attribute of a module": (with_module, of(HELPERS, "scale", 3.0)),
    "a global as a default": (with_default, in_this_module("SCALE", 3.0)),
    "a method of an argument": (
        with_method,
        of(Sensor, "corrected", lambda self, number: self.bias[0]),
    ),
    "the code of the factor": (
        with_number,
        of(with_number.function, "__code__", (lambda x: x * 9).__code__),
    ),
}


@pytest.mark.parametrize(("factor", "change"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen(
    factor: caspar.Factor,
    change: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = tracing.traced_factor(factor)
    change(monkeypatch)
    now = tracing.traced_factor(factor)
    assert now.residual == trace(factor).residual
    assert now.residual != before.residual
    monkeypatch.undo()
    assert tracing.traced_factor(factor).residual == before.residual


def with_own(scale: Any, default: float = 2.0) -> caspar.Factor:
    def inner(x: X) -> sf.V1:
        return x * scale[0]

    return caspar.factor(inner)


def test_changed_variables_of_an_outer_function_are_seen() -> None:
    scale = [2.0]
    factor = with_own(scale)
    assert is_kept(factor)
    before = tracing.traced_factor(factor)
    scale[0] = 3.0
    assert tracing.traced_factor(factor).residual != before.residual
    assert factor.function.__closure__ is not None
    factor.function.__closure__[0].cell_contents = [5.0]
    assert "5" in str(tracing.traced_factor(factor).residual)


@pytest.mark.parametrize("keyword", [False, True])
def test_changed_defaults_are_seen(keyword: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(number: Any, by: float = 2.0, *, plus: float = 1.0) -> Any:
        return number * by + plus

    def residual(x: X) -> sf.V1:
        return sf.V1(scaled(x[0]))

    factor = caspar.factor(residual)
    assert is_kept(factor)
    if keyword:
        monkeypatch.setattr(scaled, "__kwdefaults__", {"plus": 7.0})
    else:
        monkeypatch.setattr(scaled, "__defaults__", (7.0,))
    assert "7" in str(tracing.traced_factor(factor).residual)


def test_a_changed_annotation_is_seen() -> None:
    def residual(x: X, y: Annotated[sf.V1, caspar.ConstSequential]) -> sf.V1:
        return x - y

    factor = caspar.factor(residual)
    assert is_kept(factor)
    residual.__annotations__["y"] = Annotated[sf.V1, caspar.ConstUnique]
    kinds = [argument.kind.value for argument in tracing.traced_factor(factor).arguments]
    assert kinds == ["TunableShared", "ConstUnique"]


def test_a_solver_sees_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def cost() -> float:
        solver = caspar.Solver([with_number], backend="cpu", precision="float64")
        arrays = {"Matrix11": np.ones((1, 1)), "with_number": {"x": np.zeros(1, dtype=np.int32)}}
        return float(solver.solve(arrays).initial_cost)

    assert cost() == cost() == 2.0
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    assert cost() == 8.0


def imports(x: X) -> sf.V1:
    import math

    return x * math.pi


def reads_a_file(x: X) -> sf.V1:
    with open(__file__, encoding="utf-8") as file:
        return x * len(file.readline())


def reads_another_file(x: X) -> sf.V1:
    return x * len(Path(__file__).read_text(encoding="utf-8"))


def draws(x: X) -> sf.V1:
    return x * (1 + 0 * random.random())


def draws_by_numpy(x: X) -> sf.V1:
    return x * (1 + 0 * float(np.random.default_rng(0).normal()))


def asks_the_time(x: X) -> sf.V1:
    return x * (1 + 0 * time.time())


def computes_a_name(x: X) -> sf.V1:
    return x * getattr(MODULE, "sca" + "le")


def keeps_in_a_cache(x: X) -> sf.V1:
    return x * cached_number()


def takes_the_next(x: X) -> sf.V1:
    return x * (1 + 0 * next(NUMBERS))


def counts(x: X) -> sf.V1:
    global calls
    calls += 1
    return x


def collects(x: X) -> sf.V1:
    CALLS.append(1)
    return x


def reads_globals(x: X) -> sf.V1:
    return x * globals()["SCALE"]


@functools.cache
def cached_number() -> float:
    return SCALE


NUMBERS: Iterator[int] = itertools.count()
CALLS: list[int] = []
calls = 0


@pytest.mark.parametrize(
    "function",
    [
        *(imports, reads_a_file, reads_another_file, draws, draws_by_numpy, asks_the_time),
        *(computes_a_name, keeps_in_a_cache, takes_the_next, counts, collects, reads_globals),
    ],
)
def test_what_cannot_be_followed_is_traced_each_time(function: Callable[..., Any]) -> None:
    assert not is_kept(caspar.factor(function))


def test_a_debugger_keeps_a_factor_from_being_kept() -> None:
    def residual(x: X) -> sf.V1:
        return x * SCALE

    factor = caspar.factor(residual)
    found: list[TracedFactor] = []
    sys.settrace(lambda *_: None)
    try:
        found.append(tracing.traced_factor(factor))
    finally:
        sys.settrace(None)
    assert len(found[0].lines.of) == 0
    assert len(tracing.traced_factor(factor).lines.of) > 0
