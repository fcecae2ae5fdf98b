"""Problems whose objective is a sum of squares, of Hock and Schittkowski and of Boggs and Tolle.

Hock, Schittkowski, *Test Examples for Nonlinear Programming Codes*, 1981. Each case is written
once, for symbols and for numbers. Starts are those of the book, moved within the bounds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar

Rows = Callable[[Any, Callable[[Any], Any]], list[Any]]
"""From unknowns and a sine to rows."""

INFINITY = float("inf")
ROOT_2, ROOT_3, ROOT_7 = 2.0**0.5, 3.0**0.5, 7.0**0.5


def none(x: Any, sin: Callable[[Any], Any]) -> list[Any]:
    """No rows."""
    return []


@dataclass(frozen=True)
class Case:
    """A problem.

    Attributes:
        name: HS and its number.
        residuals: Rows whose squares are summed.
        start: (n,).
        minimum: The least sum of squares.
        zero: Rows that must be 0.
        positive: Rows that must be at least 0.
        lower: (n,) bounds; None: open.
        upper: Likewise.
    """

    name: str
    residuals: Rows
    start: Sequence[float]
    minimum: float
    zero: Rows = none
    positive: Rows = none
    lower: Sequence[float] | None = None
    upper: Sequence[float] | None = None

    @property
    def bounds(self) -> list[tuple[float, float]] | None:
        """By component; None: there are none."""
        if self.lower is None or self.upper is None:
            return None
        return list(zip(self.lower, self.upper, strict=True))

    def on_numbers(self, rows: Rows, x: Any) -> NDArray[np.float64]:
        """Some rows at some numbers."""
        return np.array(rows(x, np.sin), np.float64)


def rosenbrock(x: Any, sin: Callable[[Any], Any]) -> list[Any]:
    """Rows of Rosenbrock's function."""
    return [10.0 * (x[1] - x[0] ** 2), 1.0 - x[0]]


def _sixth(x: Any, sin: Callable[[Any], Any]) -> list[Any]:
    return [x[0] - x[1], x[2] - 1.0, (x[3] - 1.0) ** 2, (x[4] - 1.0) ** 3]


def _chain(x: Any, sin: Callable[[Any], Any]) -> list[Any]:
    return [x[0] - x[1], x[1] + x[2] - 2.0, x[3] - 1.0, x[4] - 1.0]


def _linear(last: float) -> Rows:
    return lambda x, sin: [x[0] + 3.0 * x[1] - last, x[2] + x[3] - 2.0 * x[4], x[1] - x[4]]


def _near(*point: float) -> Rows:
    return lambda x, sin: [x[number] - entry for number, entry in enumerate(point)]


def _rosen_suzuki(x: Any, sin: Callable[[Any], Any]) -> list[Any]:
    a, b, c, d = x[0], x[1], x[2], x[3]
    return [
        8.0 - a**2 - b**2 - c**2 - d**2 - a + b - c + d,
        10.0 - a**2 - 2.0 * b**2 - c**2 - 2.0 * d**2 + a + d,
        5.0 - 2.0 * a**2 - b**2 - c**2 - 2.0 * a + b + d,
    ]


def _wong(x: Any, sin: Callable[[Any], Any]) -> list[Any]:
    return [
        x[0] + 0.5 * x[1] - 7.0,
        0.5 * ROOT_3 * (x[1] - 6.0),
        x[2] - 10.0,
        2.0 * (x[3] - 5.0),
        x[4] - 3.0,
        ROOT_2 * (x[5] - 1.0),
        5.0**0.5 * x[6],
        ROOT_7 * (x[7] - 11.0),
        ROOT_2 * (x[8] - 10.0),
        x[9] - 7.0,
    ]


def _wong_limits(x: Any, sin: Callable[[Any], Any]) -> list[Any]:
    a, b = x[0], x[1]
    return [
        105.0 - 4.0 * a - 5.0 * b + 3.0 * x[6] - 9.0 * x[7],
        17.0 * x[6] - 10.0 * a + 8.0 * b - 2.0 * x[7],
        8.0 * a - 2.0 * b - 5.0 * x[8] + 2.0 * x[9] + 12.0,
        120.0 - 3.0 * (a - 2.0) ** 2 - 4.0 * (b - 3.0) ** 2 - 2.0 * x[2] ** 2 + 7.0 * x[3],
        40.0 - 5.0 * a**2 - 8.0 * b - (x[2] - 6.0) ** 2 + 2.0 * x[3],
        30.0 - 0.5 * (a - 8.0) ** 2 - 2.0 * (b - 4.0) ** 2 - 3.0 * x[4] ** 2 + x[5],
        2.0 * a * b - a**2 - 2.0 * (b - 2.0) ** 2 - 14.0 * x[4] + 6.0 * x[5],
        3.0 * a - 6.0 * b - 12.0 * (x[8] - 8.0) ** 2 + 7.0 * x[9],
    ]


CASES = (
    Case(
        "HS6",
        lambda x, sin: [1.0 - x[0]],
        (-1.2, 1.0),
        0.0,
        lambda x, sin: [10.0 * (x[1] - x[0] ** 2)],
    ),
    Case(
        "HS8",
        lambda x, sin: [0.0 * x[0]],
        (2.0, 1.0),
        0.0,
        lambda x, sin: [x[0] ** 2 + x[1] ** 2 - 25.0, x[0] * x[1] - 9.0],
    ),
    Case(
        "HS11",
        _near(5.0, 0.0),
        (4.9, 0.1),
        16.501535777,
        positive=lambda x, sin: [x[1] - x[0] ** 2],
    ),
    Case(
        "HS12",
        lambda x, sin: [x[0] - x[1] - 7.0, x[1] - 14.0],
        (0.0, 0.0),
        185.0,
        positive=lambda x, sin: [25.0 - 4.0 * x[0] ** 2 - x[1] ** 2],
    ),
    Case(
        "HS14",
        _near(2.0, 1.0),
        (2.0, 2.0),
        9.0 - 2.875 * ROOT_7,
        lambda x, sin: [x[0] - 2.0 * x[1] + 1.0],
        lambda x, sin: [1.0 - 0.25 * x[0] ** 2 - x[1] ** 2],
    ),
    Case(
        "HS15",
        rosenbrock,
        (-2.0, 1.0),
        306.5,
        positive=lambda x, sin: [x[0] * x[1] - 1.0, x[0] + x[1] ** 2],
        lower=(-INFINITY, -INFINITY),
        upper=(0.5, INFINITY),
    ),
    Case(
        "HS16",
        rosenbrock,
        (-2.0, 1.0),
        0.25,
        positive=lambda x, sin: [x[0] + x[1] ** 2, x[0] ** 2 + x[1]],
        lower=(-2.0, -INFINITY),
        upper=(0.5, 1.0),
    ),
    Case(
        "HS17",
        rosenbrock,
        (-0.5, 1.0),
        1.0,
        positive=lambda x, sin: [x[1] ** 2 - x[0], x[0] ** 2 - x[1]],
        lower=(-0.5, -INFINITY),
        upper=(0.5, 1.0),
    ),
    Case(
        "HS18",
        lambda x, sin: [0.1 * x[0], x[1]],
        (2.0, 2.0),
        5.0,
        positive=lambda x, sin: [x[0] * x[1] - 25.0, x[0] ** 2 + x[1] ** 2 - 25.0],
        lower=(2.0, 0.0),
        upper=(50.0, 50.0),
    ),
    Case(
        "HS20",
        rosenbrock,
        (-0.5, 1.0),
        81.5 - 25.0 * ROOT_3,
        positive=lambda x, sin: [
            x[0] + x[1] ** 2,
            x[0] ** 2 + x[1],
            x[0] ** 2 + x[1] ** 2 - 1.0,
        ],
        lower=(-0.5, -INFINITY),
        upper=(0.5, INFINITY),
    ),
    Case(
        "HS21",
        lambda x, sin: [0.1 * x[0], x[1]],
        (2.0, -1.0),
        0.04,
        positive=lambda x, sin: [10.0 * x[0] - x[1] - 10.0],
        lower=(2.0, -50.0),
        upper=(50.0, 50.0),
    ),
    Case(
        "HS22",
        _near(2.0, 1.0),
        (2.0, 2.0),
        1.0,
        positive=lambda x, sin: [2.0 - x[0] - x[1], x[1] - x[0] ** 2],
    ),
    Case(
        "HS23",
        _near(0.0, 0.0),
        (3.0, 1.0),
        2.0,
        positive=lambda x, sin: [
            x[0] + x[1] - 1.0,
            x[0] ** 2 + x[1] ** 2 - 1.0,
            9.0 * x[0] ** 2 + x[1] ** 2 - 9.0,
            x[0] ** 2 - x[1],
            x[1] ** 2 - x[0],
        ],
        lower=(-50.0, -50.0),
        upper=(50.0, 50.0),
    ),
    Case(
        "HS26",
        lambda x, sin: [x[0] - x[1], (x[1] - x[2]) ** 2],
        (-2.6, 2.0, 2.0),
        0.0,
        lambda x, sin: [(1.0 + x[1] ** 2) * x[0] + x[2] ** 4 - 3.0],
    ),
    Case(
        "HS27",
        lambda x, sin: [0.1 * (x[0] - 1.0), x[1] - x[0] ** 2],
        (2.0, 2.0, 2.0),
        0.04,
        lambda x, sin: [x[0] + x[2] ** 2 + 1.0],
    ),
    Case(
        "HS28",
        lambda x, sin: [x[0] + x[1], x[1] + x[2]],
        (-4.0, 1.0, 1.0),
        0.0,
        lambda x, sin: [x[0] + 2.0 * x[1] + 3.0 * x[2] - 1.0],
    ),
    Case(
        "HS30",
        _near(0.0, 0.0, 0.0),
        (1.0, 1.0, 1.0),
        1.0,
        positive=lambda x, sin: [x[0] ** 2 + x[1] ** 2 - 1.0],
        lower=(1.0, -10.0, -10.0),
        upper=(10.0, 10.0, 10.0),
    ),
    Case(
        "HS31",
        lambda x, sin: [3.0 * x[0], x[1], 3.0 * x[2]],
        (1.0, 1.0, 1.0),
        6.0,
        positive=lambda x, sin: [x[0] * x[1] - 1.0],
        lower=(-10.0, 1.0, -10.0),
        upper=(10.0, 10.0, 1.0),
    ),
    Case(
        "HS32",
        lambda x, sin: [x[0] + 3.0 * x[1] + x[2], 2.0 * (x[0] - x[1])],
        (0.1, 0.7, 0.2),
        1.0,
        lambda x, sin: [1.0 - x[0] - x[1] - x[2]],
        lambda x, sin: [6.0 * x[1] + 4.0 * x[2] - x[0] ** 3 - 3.0],
        (0.0, 0.0, 0.0),
        (INFINITY, INFINITY, INFINITY),
    ),
    Case(
        "HS35",
        lambda x, sin: [x[0] + x[1] - 2.0, x[0] + x[2] - 2.0, x[1] - 1.0],
        (0.5, 0.5, 0.5),
        1.0 / 9.0,
        positive=lambda x, sin: [3.0 - x[0] - x[1] - 2.0 * x[2]],
        lower=(0.0, 0.0, 0.0),
        upper=(INFINITY, INFINITY, INFINITY),
    ),
    Case(
        "HS42",
        _near(1.0, 2.0, 3.0, 4.0),
        (1.0, 1.0, 1.0, 1.0),
        28.0 - 10.0 * ROOT_2,
        lambda x, sin: [x[0] - 2.0, x[2] ** 2 + x[3] ** 2 - 2.0],
    ),
    Case(
        "HS43",
        lambda x, sin: [x[0] - 2.5, x[1] - 2.5, ROOT_2 * (x[2] - 5.25), x[3] + 3.5],
        (0.0, 0.0, 0.0, 0.0),
        35.875,
        positive=_rosen_suzuki,
    ),
    Case(
        "HS46",
        _sixth,
        (0.5 * ROOT_2, 1.75, 0.5, 2.0, 2.0),
        0.0,
        lambda x, sin: [
            x[0] ** 2 * x[3] + sin(x[3] - x[4]) - 1.0,
            x[1] + x[2] ** 4 * x[3] ** 2 - 2.0,
        ],
    ),
    Case(
        "HS48",
        lambda x, sin: [x[0] - 1.0, x[1] - x[2], x[3] - x[4]],
        (3.0, 5.0, -3.0, 2.0, -2.0),
        0.0,
        lambda x, sin: [
            x[0] + x[1] + x[2] + x[3] + x[4] - 5.0,
            x[2] - 2.0 * (x[3] + x[4]) + 3.0,
        ],
    ),
    Case(
        "HS49",
        _sixth,
        (10.0, 7.0, 2.0, -3.0, 0.8),
        0.0,
        lambda x, sin: [x[0] + x[1] + x[2] + 4.0 * x[3] - 7.0, x[2] + 5.0 * x[4] - 6.0],
    ),
    Case(
        "HS50",
        lambda x, sin: [x[0] - x[1], x[1] - x[2], (x[2] - x[3]) ** 2, x[3] - x[4]],
        (35.0, -31.0, 11.0, 5.0, -5.0),
        0.0,
        lambda x, sin: [
            x[number] + 2.0 * x[number + 1] + 3.0 * x[number + 2] - 6.0 for number in range(3)
        ],
    ),
    Case("HS51", _chain, (2.5, 0.5, 2.0, -1.0, 0.5), 0.0, _linear(4.0)),
    Case(
        "HS52",
        lambda x, sin: [4.0 * x[0] - x[1], x[1] + x[2] - 2.0, x[3] - 1.0, x[4] - 1.0],
        (2.0, 2.0, 2.0, 2.0, 2.0),
        1859.0 / 349.0,
        _linear(0.0),
    ),
    Case(
        "HS53",
        _chain,
        (2.0, 2.0, 2.0, 2.0, 2.0),
        176.0 / 43.0,
        _linear(0.0),
        lower=(-10.0,) * 5,
        upper=(10.0,) * 5,
    ),
    Case(
        "HS60",
        lambda x, sin: [x[0] - 1.0, x[0] - x[1], (x[1] - x[2]) ** 2],
        (2.0, 2.0, 2.0),
        0.03256820025,
        lambda x, sin: [x[0] * (1.0 + x[1] ** 2) + x[2] ** 4 - 4.0 - 3.0 * ROOT_2],
        lower=(-10.0,) * 3,
        upper=(10.0,) * 3,
    ),
    Case(
        "HS61",
        lambda x, sin: [2.0 * x[0] - 8.25, ROOT_2 * (x[1] + 4.0), ROOT_2 * (x[2] - 6.0)],
        (0.0, 0.0, 0.0),
        28.4163578,
        lambda x, sin: [3.0 * x[0] - 2.0 * x[1] ** 2 - 7.0, 4.0 * x[0] - x[2] ** 2 - 11.0],
    ),
    Case(
        "HS65",
        lambda x, sin: [x[0] - x[1], (x[0] + x[1] - 10.0) / 3.0, x[2] - 5.0],
        (-4.5, 4.5, 0.0),
        0.9535288567,
        positive=lambda x, sin: [48.0 - x[0] ** 2 - x[1] ** 2 - x[2] ** 2],
        lower=(-4.5, -4.5, -5.0),
        upper=(4.5, 4.5, 5.0),
    ),
    Case(
        "HS77",
        lambda x, sin: [
            x[0] - 1.0,
            x[0] - x[1],
            x[2] - 1.0,
            (x[3] - 1.0) ** 2,
            (x[4] - 1.0) ** 3,
        ],
        (2.0, 2.0, 2.0, 2.0, 2.0),
        0.24150512879,
        lambda x, sin: [
            x[0] ** 2 * x[3] + sin(x[3] - x[4]) - 2.0 * ROOT_2,
            x[1] + x[2] ** 4 * x[3] ** 2 - 8.0 - ROOT_2,
        ],
    ),
    Case(
        "HS79",
        lambda x, sin: [
            x[0] - 1.0,
            x[0] - x[1],
            x[1] - x[2],
            (x[2] - x[3]) ** 2,
            (x[3] - x[4]) ** 2,
        ],
        (2.0, 2.0, 2.0, 2.0, 2.0),
        0.0787768209,
        lambda x, sin: [
            x[0] + x[1] ** 2 + x[2] ** 3 - 2.0 - 3.0 * ROOT_2,
            x[1] - x[2] ** 2 + x[3] + 2.0 - 2.0 * ROOT_2,
            x[0] * x[4] - 2.0,
        ],
    ),
    Case(
        "HS113",
        _wong,
        (2.0, 3.0, 5.0, 5.0, 1.0, 2.0, 7.0, 3.0, 6.0, 10.0),
        55.3062091,
        positive=_wong_limits,
    ),
    Case(
        "BT1",
        lambda x, sin: [10.0 * x[0] - 0.05, 10.0 * x[1]],
        (0.08, 0.06),
        99.0025,
        lambda x, sin: [x[0] ** 2 + x[1] ** 2 - 1.0],
    ),
    Case(
        "BT2",
        lambda x, sin: [x[0] - 1.0, x[0] - x[1], (x[1] - x[2]) ** 2],
        (10.0, 10.0, 10.0),
        0.03256820025,
        lambda x, sin: [x[0] * (1.0 + x[1] ** 2) + x[2] ** 4 - 4.0 - 3.0 * ROOT_2],
    ),
    Case("BT3", _chain, (20.0, 7.0, 2.0, 1.0, 1.0), 176.0 / 43.0, _linear(0.0)),
    Case(
        "BT8",
        _near(0.0, 0.0, 0.0),
        (1.0, 1.0, 1.0, 0.0, 0.0),
        1.0,
        lambda x, sin: [
            x[0] - 1.0 - x[3] ** 2 + x[1] ** 2,
            x[0] ** 2 + x[1] ** 2 - 1.0 - x[4] ** 2,
        ],
    ),
    Case(
        "BT12",
        lambda x, sin: [0.1 * x[0], x[1]],
        (15.811, 1.5811, 0.0, 15.083, 3.7164),
        6.188118812,
        lambda x, sin: [
            x[0] + x[1] - x[2] ** 2 - 25.0,
            x[0] ** 2 + x[1] ** 2 - x[3] ** 2 - 25.0,
            x[0] - x[4] ** 2 - 2.0,
        ],
    ),
    Case(
        "MARATOS",
        lambda x, sin: [0.1 * x[0] - 5.0, 0.1 * x[1]],
        (1.1, 0.1),
        24.01,
        lambda x, sin: [x[0] ** 2 + x[1] ** 2 - 1.0],
    ),
)


class X2(sf.V2):
    """Two unknowns."""


class X3(sf.V3):
    """Three unknowns."""


class X4(sf.V4):
    """Four unknowns."""


class X5(sf.V5):
    """Five unknowns."""


class X10(sf.Matrix):
    """Ten unknowns."""

    SHAPE = (10, 1)


KINDS: dict[int, Any] = {2: X2, 3: X3, 4: X4, 5: X5, 10: X10}


def solver_of(case: Case, **choices: Any) -> caspar.Solver:
    """A solver of a case."""

    def declared(name: str, rows: Rows) -> Callable[[Any], Any]:
        def function(x: Any) -> Any:
            return sf.Matrix(rows(x, sf.sin))

        function.__name__ = name
        function.__annotations__["x"] = Annotated[KINDS[len(case.start)], caspar.TunableUnique]
        return function

    factors = [] if case.name == "HS8" else [caspar.factor(declared("objective", case.residuals))]
    for kind, rows in {"zero": case.zero, "positive": case.positive}.items():
        if rows is not none:
            factors.append(caspar.constraint(kind=kind)(declared(kind, rows)))
    return caspar.Solver(factors, **choices)


def solved(case: Case, solver: caspar.Solver, **options: Any) -> caspar.SolveResult:
    """Its solve from the start of the book."""
    name = KINDS[len(case.start)].__name__
    bounds = None
    if case.lower is not None:
        bounds = {name: (np.array(case.lower), np.array(case.upper))}
    return solver.solve({name: np.array([case.start], np.float64)}, bounds=bounds, **options)
