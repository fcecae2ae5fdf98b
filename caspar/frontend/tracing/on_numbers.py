"""A traced function is compared with the same function run on numbers.

Decisions that tracing does not refuse (`dict.get`, `functools.cache`, `str(x)`, a comparison whose
error was caught, what the function keeps from call to call) lose a branch without a word. At some
points the function runs once more. Its arguments are made of symbols again, which have numbers: its
own code gets the answers that the numbers give (`conditions`). If it returns other expressions than
were traced, both are evaluated there, and must not differ by more than rounding explains.

What cannot run on numbers is left out, and so are infinities and NaN that the function returns.
Running on SymEngine's own floats was tried: it tells 1.0 from 1 in `Eq`, and the floor of infinity
ends the process by a signal. Divisions that raise as Python's do were not: SymEngine's division
would have to be replaced, and could probably not be restored.

Input: a function and its expressions. Output: at how many points it ran. Some 10 ms, once for each
function: `caspar.tracing` keeps the verdict in the cache.

Decisions hide in special values: zeros, ones, whole numbers, numbers that are equal, numbers that
stand in the function. Rotations and directions have unit length, the identity among them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby, islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from symforce.ops import StorageOps

from caspar.errors import CasparError, UnsupportedFunctionError
from caspar.frontend.markers import Pair
from caspar.frontend.symbolic.epsilon import SYMBOL, SymForceGrewError, value, with_symbolic_epsilon
from caspar.frontend.symbolic.expression_key import expression_key
from caspar.frontend.symbolic.field_types import UnitRange
from caspar.frontend.symbolic.lower import Lowering
from caspar.frontend.tracing.advice import CONDITIONS
from caspar.frontend.tracing.code_digest import UserCode
from caspar.frontend.tracing.conditions import Watch
from caspar.frontend.tracing.replaced_members import installed
from caspar.frontend.tracing.signature import UserFunction, bound, copied_value
from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph

Array = NDArray[np.float64]

MAX_LITERALS = 4
"""Numbers of the function that become points."""

MAX_KEYS = 16
"""Points at which keys are numbers of the function."""


@dataclass(frozen=True)
class PointArgument:
    """An argument of the user's function: a value of symbols, of a pair two, and its sizes."""

    name: str
    templates: tuple[Any, ...]
    storage_dim: int
    unit_ranges: tuple[UnitRange, ...]

    @property
    def num_scalars(self) -> int:
        """Scalars of all templates."""
        return self.storage_dim * len(self.templates)


def drawn_points(arguments: Sequence[PointArgument], literals: Sequence[float]) -> Array:
    """(points, scalars) of all arguments one after the other; the first point is a common one."""
    dim = sum(argument.num_scalars for argument in arguments)
    rng = np.random.default_rng(0)
    rows = [
        rng.uniform(0.2, 1.0, dim),
        np.zeros(dim),
        np.ones(dim),
        np.arange(1.0, dim + 1),
        np.full(dim, 0.75),
        rng.normal(size=dim),
        *rng.choice((0.3, 0.5, 0.8), (3, dim)),  # some are equal
        *rng.choice((0.0, 1.0, 2.0, *literals[:MAX_LITERALS]), (4, dim)),
        np.full(dim, -1.0),
        1e-3 * rng.normal(size=dim),
        10.0 * rng.normal(size=dim),
    ]
    for special in (0.0, 1.0, 1.0, *literals[:MAX_LITERALS]):
        # each scalar has the value at one of two points, and half of the others have not
        is_special = rng.permuted(np.arange(dim) % 2 == 0)
        others = rng.uniform(0.2, 1.0, dim)
        rows += [np.where(is_special, special, others), np.where(is_special, others, special)]
    points = np.array(rows)
    _make_units(points, arguments)
    return points


def values_of_keys(
    keys: Sequence[tuple[Any, ...]],
    specials: Sequence[tuple[float, ...]],
    number: Callable[[Any, Mapping[str, float]], float],
) -> list[dict[str, float]]:
    """Numbers of symbols with which keys of dictionaries are special values.

    `keys` are expressions that were hashed one after the other, in which several keys may follow;
    `specials` are the numbers of the function, alone or as a tuple; `number` is what an expression
    is if some of its symbols have other numbers than usual.
    """
    found: list[dict[str, float]] = []
    fitting = ((k, s) for s, k in product(specials, keys) if len(k) % len(s) == 0)
    for key, special in islice(fitting, MAX_KEYS):
        values: dict[str, float] = {}
        for expression, target in zip(key, cycle(special), strict=False):
            values |= _solution(expression, target, values, number)
        if values:
            found.append(values)
    return found


def _solution(
    expression: Any,
    target: float,
    known: Mapping[str, float],
    number: Callable[[Any, Mapping[str, float]], float],
) -> dict[str, float]:
    """A symbol and its number with which an expression is a number, if they are easily found."""
    for name in sorted(map(str, expression.free_symbols)):
        if name in known:
            continue
        zero, one = (number(expression, {**known, name: x}) for x in (0.0, 1.0))
        with np.errstate(all="ignore"):
            linear = float(np.divide(target - zero, one - zero))
        for x in (target, linear):  # such as of the symbol itself, of floor(x) and 2 x + 1
            if np.isfinite(x) and number(expression, {**known, name: x}) == target:
                return {name: x}
    return {}


def points_with(
    values: Sequence[Mapping[str, float]],
    point: Array,
    names: Sequence[str],
    arguments: Sequence[PointArgument],
) -> Array:
    """(values, scalars) a point with other numbers for some of its scalars."""
    points = np.array(
        [[one.get(name, x) for name, x in zip(names, point, strict=True)] for one in values]
    ).reshape(-1, len(names))
    _make_units(points, arguments)
    return points


def _make_units(points: Array, arguments: Sequence[PointArgument]) -> None:
    start = 0
    for argument in arguments:
        for _ in argument.templates:
            for unit in argument.unit_ranges:
                _make_unit(points[:, start + unit.start : start + unit.stop])
            start += argument.storage_dim


def _make_unit(part: Array) -> None:
    """Divide rows by their length; rows of zeros become the identity."""
    size = part.shape[1]
    identity = np.eye(size)[0 if size == 2 else size - 1]  # cosine first, quaternions' w last
    part[~np.any(part, axis=1)] = identity
    part /= np.linalg.norm(part, axis=1, keepdims=True)


MAX_WORK = 6_000
"""Sub-expressions times points: large functions run at fewer points, but `MIN_POINTS`."""
MIN_POINTS = 3
TOLERANCE = 1e-6
"""Largest difference between a trace and a run that counts as none, relative to the numbers."""
SAME_RUN = 1e-12
"""The same between two runs."""
SMALL = 1e-9
"""The same, relative to the row's usual size."""
ZERO_DIVISION = frozenset({"ZeroDivisionError", "ArithmeticError"})
"""Names in the code of functions that expect errors of divisions."""
MAX_NUMBERS = 8
"""Numbers of an argument in an error."""

_ONES = 2
"""The number of the point of ones: there, sums and products of whole numbers are exact."""

_Rows = Sequence[Any]


@dataclass(frozen=True)
class Comparison:
    """A function, its expressions `rows`, and how to run it.

    `rows_of` are the rows of a result; it raises the function's kind of error if it is not what is
    declared.
    """

    user: UserFunction
    arguments: tuple[PointArgument, ...]
    row_names: tuple[str, ...]
    rows: tuple[Any, ...]
    rows_of: Callable[[Any], Sequence[Any]]


def compare_with_numbers(comparison: Comparison, code: UserCode) -> int:
    """Compare the expressions with the function; return at how many points it ran.

    The numbers of the function's code are tried as arguments. The error names the row, both numbers
    and the arguments.
    """
    num_points = max(MAX_WORK // _num_sub_expressions(comparison.rows), MIN_POINTS)
    points = drawn_points(comparison.arguments, code.literals)[:num_points]
    function = _OnNumbers(comparison, points)
    try:
        runs, again = with_symbolic_epsilon(function.run, code)
    except SymForceGrewError:
        return compare_with_numbers(comparison, code)
    if again is not None:
        function.check_same(*runs[0], again)
    for point, rows in runs:
        function.check(point, rows)
        if not ZERO_DIVISION.isdisjoint(code.names):
            function.check_is_finite(point)
    return len(runs)


def _num_sub_expressions(rows: Sequence[Any]) -> int:
    seen = set(rows)
    pending = list(rows)
    for expression in pending:  # grows meanwhile
        new = [child for child in expression.args if child not in seen]
        seen.update(new)
        pending += new
    return len(seen)


class _OnNumbers:
    def __init__(self, comparison: Comparison, points: Array) -> None:
        self._comparison = comparison
        self._user = comparison.user
        self._key = expression_key(comparison.rows)
        self._points = points
        self._keys: list[list[Any]] = []
        self._names = [
            str(symbol)
            for argument in comparison.arguments
            for template in argument.templates
            for symbol in StorageOps.to_storage(template)
        ]

    def run(self, code: UserCode) -> tuple[list[tuple[Array, _Rows]], _Rows | None]:
        """Points with the rows that the function returns, and what it returns at the first again.

        Points at which it does not run are left out; None: it runs at none.
        """
        with installed():  # once for all runs
            runs = self._runs(self._points)
            runs += self._runs(self._points_of_keys(code))
            return runs, self._rows_at(runs[0][0]) if runs else None

    def _runs(self, points: Array) -> list[tuple[Array, _Rows]]:
        runs = [(point, self._rows_at(point)) for point in points]
        return [(point, rows) for point, rows in runs if rows is not None]

    def _points_of_keys(self, code: UserCode) -> Array:
        """Points at which the keys that were asked for are numbers of the function."""
        point = self._points[_ONES]

        def number(expression: Any, values: Mapping[str, float]) -> float:
            usual = dict(zip(self._names, point.tolist(), strict=True))
            return _evaluated([expression], {**usual, **values})[0]

        keys = [tuple(expressions) for expressions in self._keys]
        specials = [*code.tuples, *((literal,) for literal in code.literals[MAX_LITERALS:])]
        values = values_of_keys(list(dict.fromkeys(keys)), specials, number)
        return points_with(values, point, self._names, self._comparison.arguments)

    def _rows_at(self, point: Array) -> _Rows | None:
        numbers = dict(zip(self._names, point.tolist(), strict=True))

        def number(expression: Any) -> float:
            return float(_evaluated([expression], numbers)[0])

        watch = Watch(self._user.function.__code__.co_filename, frozenset(numbers), number)
        try:
            call = bound(self._user, self._values())
            result = watch.run(self._user.function, *call.args, **call.kwargs)
        except Exception:  # such as the user's own, for numbers that are not allowed
            return None
        finally:
            self._keys += [
                [expression for _, expression in hashed]
                for _, hashed in groupby(watch.hashed, lambda pair: pair[0])
            ]
        try:
            rows = self._comparison.rows_of(result)
        except CasparError as error:
            raise self._error(f"on numbers, at {self._text(point)}, it fails: {error}") from error
        if len(rows) != len(self._comparison.rows):
            raise self._error(
                f"it returns {len(self._comparison.rows)} rows on symbols, but {len(rows)} on "
                f"numbers, at {self._text(point)}"
            )
        return rows

    def check(self, point: Array, rows: _Rows) -> None:
        """Compare what was traced with what the function returned at a point."""
        # not ==, whose time is exponential where expressions share parts
        if expression_key(rows) == self._key:
            return
        number = self._first_difference(point, self._comparison.rows, rows, TOLERANCE)
        if number is not None:
            traced, found = self._both(point, self._comparison.rows[number], rows[number])
            raise self._error(
                f"{self._comparison.row_names[number]} is {traced:.9g} by the expressions that "
                f"tracing found, but {found:.9g} when the function runs on numbers, at "
                f"{self._text(point)}. The function computes something else on numbers than on "
                "symbols, for example because it uses arguments as keys of a dictionary, a set or "
                "functools.cache, uses their text, catches an error, or keeps state between "
                "calls. Make it a formula: "
                f"{CONDITIONS}"
            )

    def check_is_finite(self, point: Array) -> None:
        """Look for divisions by zero, which are no errors on symbols."""
        numbers = dict(zip(self._names, point.tolist(), strict=True))
        found = np.isfinite(_evaluated(self._comparison.rows, numbers))
        if not found.all():
            raise self._error(
                f"{self._comparison.row_names[int(np.argmin(found))]} is not finite at "
                f"{self._text(point)}. The function catches ZeroDivisionError, but symbols do not "
                "raise it, so what it computes after the error is lost. Add sf.epsilon() to the "
                f"divisor, or {CONDITIONS}"
            )

    def check_same(self, point: Array, rows: _Rows, again: _Rows) -> None:
        """Compare two runs at a point: the function must be deterministic."""
        if expression_key(rows) == expression_key(again):
            return
        if self._first_difference(point, rows, again, SAME_RUN) is not None:
            raise self._error(
                f"it is not deterministic: two runs on the same numbers, at {self._text(point)}, "
                "give different results. Random numbers, times, counters and state outside the "
                "function are traced once and then stay constant; pass them as arguments"
            )

    def _first_difference(
        self, point: Array, first: _Rows, second: _Rows, tolerance: float
    ) -> int | None:
        """The first row whose numbers at a point differ by more than rounding explains."""
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            if self._differs(point, one, other, tolerance):
                return number
        return None

    def _differs(self, point: Array, first: Any, second: Any, tolerance: float) -> bool:
        one, other = self._both(point, first, second)
        if not np.isfinite(other):
            return False
        if not np.isfinite(one):  # the function avoids what the trace computes
            return True
        error = abs(one - other)
        if error <= tolerance * max(abs(one), abs(other)):
            return False
        usual = np.abs([self._both(place, first, second) for place in self._points])
        return bool(error > min(tolerance, SMALL) * np.median(usual[np.isfinite(usual)]))

    def _both(self, point: Array, first: Any, second: Any) -> tuple[float, float]:
        numbers = dict(zip(self._names, point.tolist(), strict=True))
        one, other = _evaluated([first, second], numbers)
        return one, other

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for argument in self._comparison.arguments:
            templates = argument.templates
            values[argument.name] = copied_value(
                templates[0] if len(templates) == 1 else Pair(templates)
            )
        return values

    def _error(self, text: str) -> CasparError:
        return self._user.error(f"{self._user.title} ({self._user.location}): {text}")

    def _text(self, point: Array) -> str:
        texts = []
        start = 0
        for argument in self._comparison.arguments:
            numbers = point[start : start + argument.num_scalars]
            start += argument.num_scalars
            shown = [f"{number:.6g}" for number in numbers[:MAX_NUMBERS]]
            if len(numbers) > MAX_NUMBERS:
                shown.append("...")
            texts.append(f"{argument.name} = ({', '.join(shown)})")
        return ", ".join(texts)


def _evaluated(rows: Sequence[Any], numbers: Mapping[str, float]) -> list[float]:
    """Numbers of expressions; NaN where kernels could not compute them."""
    builder = GraphBuilder(DType.FLOAT64)
    symbols = {name: builder.const(number) for name, number in numbers.items()}
    symbols[str(SYMBOL)] = builder.const(value(DType.FLOAT64))
    lowering = Lowering(builder, symbols, "")
    try:
        for place, row in enumerate(rows):
            builder.store("row", place, [lowering.lower(row)])
    except UnsupportedFunctionError:
        return [np.nan] * len(rows)
    found: list[float] = evaluate_graph(builder.build(), {}, {"row": 1})["row"][0].tolist()
    return found
