"""Random problems with equations and inequalities, for caspar and SciPy's SLSQP.

A problem has 6 unknowns, 9 residuals that are linear and bent a little, some equations and
inequalities of the same form, and a point that meets all of them. Rows and columns are scaled by
powers of ten.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.optimize import minimize

import caspar

Floats = NDArray[np.float64]

NUM_UNKNOWNS, NUM_ROWS = 6, 9


class Values(sf.V6):
    """Unknowns of a problem."""


def bent(slopes: Any, waves: Any, ends: Any, values: Any, sine: Any) -> Any:
    """Linear in scaled unknowns, and a sine of another sum of them."""
    inner, outer = slopes[0] * values[0], waves[0] * values[0]
    for place in range(1, NUM_UNKNOWNS):
        inner = inner + slopes[place] * values[place]
        outer = outer + waves[place] * values[place]
    return ends[0] * (inner + 0.1 * sine(outer)) - ends[1]


@caspar.factor
def residual(
    values: Annotated[Values, caspar.TunableUnique],
    slopes: Annotated[sf.V6, caspar.ConstSequential],
    waves: Annotated[sf.V6, caspar.ConstSequential],
    ends: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V1:
    """A residual."""
    return sf.V1(bent(slopes, waves, ends, values, sf.sin))


@caspar.constraint(kind="zero")
def equation(
    values: Annotated[Values, caspar.TunableUnique],
    slopes: Annotated[sf.V6, caspar.ConstSequential],
    waves: Annotated[sf.V6, caspar.ConstSequential],
    ends: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V1:
    """An equation."""
    return sf.V1(bent(slopes, waves, ends, values, sf.sin))


@caspar.constraint(kind="positive")
def inequality(
    values: Annotated[Values, caspar.TunableUnique],
    slopes: Annotated[sf.V6, caspar.ConstSequential],
    waves: Annotated[sf.V6, caspar.ConstSequential],
    ends: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V1:
    """An inequality."""
    return sf.V1(bent(slopes, waves, ends, values, sf.sin))


def on_numbers(rows: Floats, values: Floats) -> Floats:
    """(k,) rows at some values."""
    inner, outer = rows[:, :6] @ values, rows[:, 6:12] @ values
    return np.asarray(rows[:, 12] * (inner + 0.1 * np.sin(outer)) - rows[:, 13])


@dataclass(frozen=True)
class Drawn:
    """A problem.

    Attributes:
        start: (6,).
        residuals: (9, 14).
        equations: (m, 14).
        inequalities: (k, 14).
    """

    start: Floats
    residuals: Floats
    equations: Floats
    inequalities: Floats

    @property
    def arrays(self) -> dict[str, Any]:
        """For `Solver.solve`."""
        return {
            "Values": self.start[None],
            "residual": _split(self.residuals),
            "equation": _split(self.equations),
            "inequality": _split(self.inequalities),
        }

    def cost(self, values: Floats) -> float:
        """Half of the sum of squares."""
        return 0.5 * float((on_numbers(self.residuals, values) ** 2).sum())

    def violation(self, values: Floats) -> float:
        """The greatest distance from what must hold."""
        equations = np.abs(on_numbers(self.equations, values)).max(initial=0.0)
        below = -on_numbers(self.inequalities, values).min(initial=0.0)
        return float(max(equations, below))


def _split(rows: Floats) -> dict[str, Floats]:
    return {"slopes": rows[:, :6], "waves": rows[:, 6:12], "ends": rows[:, 12:]}


def drawn(seed: int, *, spread: float = 1.0) -> Drawn:
    """A problem that has values that meet all constraints.

    Args:
        seed: Of the generator.
        spread: Powers of ten over which units of unknowns and rows are spread, up and down.
    """
    rng = np.random.default_rng(seed)
    num_equations, num_inequalities = int(rng.integers(0, 5)), int(rng.integers(0, 7))
    units = 10.0 ** rng.uniform(-spread, spread, NUM_UNKNOWNS)
    point = units * rng.normal(size=NUM_UNKNOWNS)

    def rows(count: int, slack: Floats) -> Floats:
        made = np.zeros((count, 14))
        made[:, :12] = rng.normal(size=(count, 12)) / np.tile(units, 2)
        made[:, 12] = 10.0 ** rng.uniform(-spread, spread, count)
        made[:, 13] = on_numbers(made, point) - made[:, 12] * slack
        return made

    return Drawn(
        units * rng.normal(size=NUM_UNKNOWNS),
        rows(NUM_ROWS, 2.0 * rng.normal(size=NUM_ROWS)),
        rows(num_equations, np.zeros(num_equations)),
        rows(num_inequalities, rng.uniform(0.0, 1.0, num_inequalities)),
    )


def contradicting(seed: int) -> Drawn:
    """A problem two of whose equations, or an equation and an inequality, exclude each other."""
    problem, rng = drawn(seed), np.random.default_rng(seed)
    row = drawn(seed + 10_000).residuals[:1]
    other = row.copy()
    gap = rng.uniform(0.1, 1.0) * row[0, 12]
    other[0, 13] += gap
    equations = np.concatenate([problem.equations[:1], row])
    if seed % 2 == 0:
        return Drawn(
            problem.start,
            problem.residuals,
            np.concatenate([equations, other]),
            problem.inequalities,
        )
    return Drawn(problem.start, problem.residuals, equations, np.concatenate([other]))


def repeating(seed: int) -> Drawn:
    """A problem whose first equation is there again, in another unit."""
    problem = drawn(seed)
    again = problem.equations[:1].copy()
    again[:, 12:] *= 3.0
    return Drawn(
        problem.start,
        problem.residuals,
        np.concatenate([problem.equations, again]),
        problem.inequalities,
    )


def by_slsqp(problem: Drawn) -> tuple[Floats, bool]:
    """Values by SciPy's SLSQP, with derivatives by differences, and whether it claims success."""
    constraints = [
        {"type": kind, "fun": lambda values, rows=rows: on_numbers(rows, values)}
        for kind, rows in (("eq", problem.equations), ("ineq", problem.inequalities))
        if len(rows) > 0
    ]
    options = {"maxiter": 1000, "ftol": 1e-14}
    found = minimize(
        problem.cost, problem.start, method="SLSQP", constraints=constraints, options=options
    )
    return np.asarray(found.x), bool(found.success)
