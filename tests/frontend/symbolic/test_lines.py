"""Sub-expressions know the line of the user's code that made them."""

import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
from symforce.values import Values

from caspar.frontend.symbolic.lines import MAX_TEXT, statement
from tests.frontend.symbolic.line_origins import UNTRACED, lines_of, origins, square

pytestmark = UNTRACED

a, b, c, d = sf.symbols("a b c d")


# -- which line ------------------------------------------------------------------------------------


def test_each_statement_has_what_it_made_first() -> None:
    def residual(x: Any, y: Any) -> Any:
        inner = sf.sin(x + y)
        outer = inner * sf.cos(inner**2)
        return outer + sf.exp(sf.sin(x + y) + 1)

    origin = origins(residual, a, b)
    assert origin(a + b) == "residual: inner = sf.sin(x + y)"
    assert origin(sf.sin(a + b)) == "residual: inner = sf.sin(x + y)"
    assert origin(sf.sin(a + b) ** 2) == "residual: outer = inner * sf.cos(inner**2)"
    assert origin(sf.exp(sf.sin(a + b) + 1)) == "residual: return outer + sf.exp(sf.sin(x + y) + 1)"


def test_line_and_file() -> None:
    def residual(x: Any) -> Any:
        y = sf.sin(x)
        return y

    line = lines_of(residual, a).of[sf.sin(a)]
    assert (line.file, line.function) == (__file__, "residual")
    assert line.number == inspect.getsourcelines(residual)[1] + 1


def test_helpers_have_lines_of_their_own() -> None:
    def residual(x: Any) -> Any:
        y = square(sf.sin(x)) + 1
        return y

    origin = origins(residual, a)
    assert origin(sf.sin(a)) == "residual: y = square(sf.sin(x)) + 1"
    assert origin(sf.sin(a) ** 2) == "square: doubled = value**2"
    assert origin(sf.tan(sf.sin(a))) == "square: return doubled * sf.tan(value)"
    assert origin(sf.sin(a) ** 2 * sf.tan(sf.sin(a)) + 1) == origin(sf.sin(a))


def test_libraries_count_to_the_line_that_calls_them() -> None:
    def residual(rotation: sf.Rot3, vector: sf.V3) -> Any:
        turned = rotation * vector
        return turned.norm(sf.epsilon())

    rotation, vector = sf.Rot3.symbolic("q"), sf.V3.symbolic("v")
    origin = origins(residual, rotation, vector)
    assert origin((rotation * vector)[1]) == "residual: turned = rotation * vector"
    assert "return turned.norm" in origin((rotation * vector).norm(sf.epsilon()))


def test_methods_of_the_user_called_by_a_library() -> None:
    def residual(vector: sf.V3) -> Any:
        return vector.applyfunc(square)

    origin = origins(residual, sf.V3(a, b, c))
    assert origin(b**2) == "square: doubled = value**2"


def test_recursion() -> None:
    def horner(x: Any, depth: int) -> Any:
        if depth == 0:
            return sf.cos(x)
        rest = horner(x, depth - 1)
        return 1 + x * rest

    origin = origins(horner, a, 3)
    assert origin(sf.cos(a)) == "horner: return sf.cos(x)"
    assert origin(1 + a * (1 + a * (1 + a * sf.cos(a)))) == "horner: return 1 + x * rest"


def test_loops() -> None:
    def residual(x: Any) -> Any:
        total = sf.S(0)
        for power in range(1, 5):
            term = sf.sin(power * x)
            total += term * sf.cos(power * x)
        return total * 2

    origin = origins(residual, a)
    for power in range(1, 5):
        assert origin(sf.sin(power * a)) == "residual: term = sf.sin(power * x)"
        product = sf.sin(power * a) * sf.cos(power * a)
        assert origin(product) == "residual: total += term * sf.cos(power * x)"
    total = sum(sf.sin(n * a) * sf.cos(n * a) for n in range(1, 5))
    assert origin(total) == "residual: total += term * sf.cos(power * x)"
    assert origin(2 * total) == "residual: return total * 2"


def test_growing_sums_used_on_the_way() -> None:
    """They are looked at late, but before a line that uses them could claim what they hold."""

    def residual(x: Any, y: Any) -> Any:
        total = x + y
        kept = []
        for power in range(2, 4):
            total += sf.sin(x**power)
            kept.append(total**2)
            product = square(total + 1)
        return sf.Matrix([*kept, product])

    origin = origins(residual, a, b)
    for power in (2, 3):
        assert origin(sf.sin(a**power)) == "residual: total += sf.sin(x**power)"
    assert origin((a + b + sf.sin(a**2)) ** 2) == "residual: kept.append(total**2)"
    assert origin(a + b + sf.sin(a**2)) == "residual: total += sf.sin(x**power)"


def test_growing_sums_of_a_closure() -> None:
    def residual(x: Any, y: Any) -> Any:
        total = x + y

        def halved() -> Any:
            return total / 2

        total += sf.sin(x) * y
        half = halved()
        return half

    origin = origins(residual, a, b)
    assert origin(sf.sin(a) * b) == "residual: total += sf.sin(x) * y"


def test_a_sum_of_many_terms_is_not_walked_again_and_again() -> None:
    def residual(x: Any) -> Any:
        total = x + 1
        for power in range(2, 300):
            total += x**power
        return total

    lines = lines_of(residual, a).of
    assert a**299 in lines
    assert sum((a**n for n in range(2, 200)), a + 1) not in lines


def test_comprehensions_and_lambdas_count_to_their_function() -> None:
    def residual(x: Any) -> Any:
        rows = [sf.sin(n * x) for n in range(1, 3)]
        named = {n: sf.cos(n * x) for n in range(1, 3)}
        total = sum(sf.tan(n * x) for n in range(1, 3))
        scale: Callable[[Any], Any] = lambda value: value**3  # noqa: E731
        return [*rows, *named.values(), total, scale(x)]

    origin = origins(residual, a)
    assert origin(sf.sin(2 * a)) == "residual: rows = [sf.sin(n * x) for n in range(1, 3)]"
    assert origin(sf.cos(2 * a)) == "residual: named = {n: sf.cos(n * x) for n in range(1, 3)}"
    assert origin(sf.tan(2 * a)) == "residual: total = sum(sf.tan(n * x) for n in range(1, 3))"
    assert origin(a**3) == "residual: scale: Callable[[Any], Any] = lambda value: value**3"


def test_a_variable_of_a_comprehension_that_a_function_in_it_uses() -> None:
    """Python 3.13.0 to 3.13.2 end if they are asked for it."""

    def residual(x: Any) -> Any:
        exponents = [k for k in range(3) if k > 0]
        powers = {k: max(x**k for _ in range(k)) for k in exponents}
        return sf.sin(powers[2])

    line = lines_of(residual, a).of[sf.sin(a**2)]
    assert line.text == "return sf.sin(powers[2])"


def test_generators() -> None:
    def powers(x: Any) -> Iterator[Any]:
        current = sf.sin(x)
        while True:
            yield current + 1
            current = current * sf.cos(x)

    def residual(x: Any) -> Any:
        first, second = (value for value, _ in zip(powers(x), range(2), strict=False))
        return first**3 + second

    origin = origins(residual, a)
    assert origin(sf.sin(a) + 1) == "powers: yield current + 1"
    assert origin(sf.sin(a) * sf.cos(a)) == "powers: current = current * sf.cos(x)"
    assert origin((sf.sin(a) + 1) ** 3) == "residual: return first**3 + second"


# -- what holds expressions ------------------------------------------------------------------------


@dataclass
class Camera:
    pose: sf.Pose3
    focal: Any
    name: str = "left"


def test_dataclasses() -> None:
    def residual(pose: sf.Pose3, x: Any) -> Any:
        camera = Camera(pose.inverse(), sf.sin(x))
        camera.focal = sf.cos(x)
        return camera.pose * sf.V3(camera.focal, 0, 0)

    pose = sf.Pose3.symbolic("p")
    origin = origins(residual, pose, a)
    first = "residual: camera = Camera(pose.inverse(), sf.sin(x))"
    assert origin(sf.sin(a)) == first
    assert origin(pose.inverse().t[0]) == first
    assert origin(sf.cos(a)) == "residual: camera.focal = sf.cos(x)"


def test_what_is_filled_in_place() -> None:
    def residual(x: Any) -> Any:
        matrix = sf.M22.zero()
        rows: list[Any] = []
        named: dict[str, Any] = {}
        matrix[0, 1] = sf.sin(x)
        rows.append([sf.cos(x)])
        named["tan"] = sf.tan(x)
        rows += [sf.exp(x)]
        return matrix, rows, named

    origin = origins(residual, a)
    assert origin(sf.sin(a)) == "residual: matrix[0, 1] = sf.sin(x)"
    assert origin(sf.cos(a)) == "residual: rows.append([sf.cos(x)])"
    assert origin(sf.tan(a)) == 'residual: named["tan"] = sf.tan(x)'
    assert origin(sf.exp(a)) == "residual: rows += [sf.exp(x)]"


def test_containers() -> None:
    def residual(x: Any) -> Any:
        nested: list[Any] = [(sf.sin(x), {"key": [sf.cos(x)]}), {sf.tan(x)}]
        nested.append(nested)
        array = np.array([sf.exp(x), 1], dtype=object)
        values = Values(scale=sf.log(x))
        return nested, array, values

    origin = origins(residual, a)
    for function in (sf.sin, sf.cos, sf.tan):
        assert origin(function(a)).startswith("residual: nested: list[Any] = [")
    assert origin(sf.exp(a)).startswith("residual: array = ")
    assert origin(sf.log(a)).startswith("residual: values = ")


def test_other_values_are_left_alone() -> None:
    class Fragile:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("compared")

        __hash__ = None  # type: ignore[assignment]

    def residual(x: Any) -> Any:
        things = [Fragile(), Fragile, open, sys, np.zeros(3), range(3), iter([x]), ...]
        thing = things[0]
        y = sf.sin(x)
        return thing, y

    assert origins(residual, a)(sf.sin(a)) == "residual: y = sf.sin(x)"


# -- source ----------------------------------------------------------------------------------------


def test_statements_of_several_lines() -> None:
    def residual(x: Any, y: Any) -> Any:
        vector = sf.V2(
            sf.sin(x),  # first
            sf.cos(y),
        )
        total = sf.tan(x) + \
            sf.tan(y)  # fmt: skip
        return (
            vector[0] * total
        )  # fmt: skip

    origin = origins(residual, a, b)
    assert origin(sf.cos(b)) == "residual: vector = sf.V2(sf.sin(x), sf.cos(y),)"
    assert origin(sf.tan(b)) == "residual: total = sf.tan(x) + sf.tan(y)"
    assert "vector[0] * total" in origin(sf.sin(a) * (sf.tan(a) + sf.tan(b)))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("x = f(y)  # a comment", "x = f(y)"),
        ('x = f("# no (comment")', 'x = f("# no (comment")'),
        (r"x = f('\'(#')", r"x = f('\'(#')"),
        ("for x in [\n    1,\n    2,\n]:\n    y = x", "for x in [1, 2,]:"),
        ("x = (\n    # nothing\n    y\n)", "x = (y)"),
        ("x = y + \\\n    z\nw = 1", "x = y + z"),
        ("    1),", "1),"),
        ("x = f(", "x = f("),
        ("", ""),
    ],
)
def test_text_of_a_statement(source: str, text: str) -> None:
    assert statement(source.splitlines(keepends=True), 1) == text


def test_a_line_beyond_the_file() -> None:
    assert statement(["x = 1\n"], 7) == ""


def test_long_statements_are_cut() -> None:
    text = "y = " + " + ".join(["sf.sin(x)"] * 40)
    file = "<ipython-input-17>"
    function = from_notebook(f"def residual(x):\n    {text}\n    return y\n", file)
    origin = origins(function, a)(sf.sin(a)).removeprefix("residual: ")
    assert len(origin) == MAX_TEXT
    assert origin.endswith("...")
    assert text.startswith(origin.removesuffix("..."))


def from_notebook(source: str, file: str) -> Callable[..., Any]:
    """A function of a cell, whose source IPython puts into the line cache."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"sf": sf}
    exec(compile(source, file, "exec"), names)
    made: Callable[..., Any] = names["residual"]
    return made


def test_notebooks() -> None:
    source = "def residual(x):\n    y = sf.sin(x)  # wave\n    return y + 1\n"
    function = from_notebook(source, "<ipython-input-18>")
    assert origins(function, a)(sf.sin(a)) == "residual: y = sf.sin(x)"


def test_without_a_source_there_is_the_name() -> None:
    names: dict[str, Any] = {"sf": sf}
    exec("def residual(x):\n    y = [sf.sin(x)]\n    y.append(sf.cos(x))\n    return y", names)
    lines = lines_of(names["residual"], a)
    assert lines.of[sf.sin(a)].origin == "residual"
    assert lines.of[sf.cos(a)].number == 3
    assert lines.place(lines.of[sf.cos(a)]) == ", line 3"
