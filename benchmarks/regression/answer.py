"""What a solver returns, and how it is judged."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.optimize import least_squares

from benchmarks.regression.problem import Array, NumericProblem, Problem

MAX_DIGITS = 11.0
"""Certified values have this many."""

FALSE_SUCCESS = 0.01
"""A success is false if a polish lowers the sum of squares by more than this, relatively."""

MACHINE_TOLERANCE = 1e-15

MAX_POLISH_EVALUATIONS = 3000


@dataclass(frozen=True)
class Answer:
    """Where a solver ended.

    Attributes:
        parameters: Returned values, (number of parameters,).
        is_success: Whether the solver says that it converged.
        status: What it says.
        steps: Iterations, or evaluations of the residuals, that it counts.
    """

    parameters: Array
    is_success: bool
    status: str
    steps: int = 0


Solve = Callable[[Array], Answer]
"""From a start, (number of parameters,)."""


class Reached(Enum):
    """Which minimum an answer lies at."""

    GLOBAL = "global"
    LOCAL = "local"
    NEITHER = "neither"


@dataclass(frozen=True)
class Outcome:
    """A judged answer.

    Attributes:
        suite: Part of the benchmark.
        problem: Name.
        start: Name of the start.
        solver: Name.
        status: What the solver says.
        is_success: Whether it says that it converged.
        steps: Iterations, or evaluations of the residuals, that it counts.
        sum_of_squares: Of the returned parameters, in float64.
        reached: The minimum there.
        digits: Correct digits of the worst parameter; None without certified parameters.
        is_false_success: Whether the solver reports success and a polish gets much lower, or the
            problem has one minimum and this is another place.
    """

    suite: str
    problem: str
    start: str
    solver: str
    status: str
    is_success: bool
    steps: int
    sum_of_squares: float
    reached: Reached
    digits: float | None
    is_false_success: bool


def judge(
    problem: Problem, numeric: NumericProblem, answer: Answer
) -> tuple[float, Reached, float | None, bool]:
    """Sum of squares, minimum, correct digits and false success, as in `Outcome`."""
    total = numeric.sum_of_squares(answer.parameters)
    if problem.is_solved(total):
        reached = Reached.GLOBAL
    else:
        reached = Reached.LOCAL if problem.is_local(total) else Reached.NEITHER
    digits = None
    if problem.certified is not None:
        digits = correct_digits(answer.parameters, np.array(problem.certified))
    is_false = False
    if answer.is_success and reached is not Reached.GLOBAL:
        is_false = problem.has_one_minimum or _is_lowered(problem, numeric, answer, total)
    return total, reached, digits, is_false


def _is_lowered(problem: Problem, numeric: NumericProblem, answer: Answer, total: float) -> bool:
    polished = polish(numeric, answer.parameters)
    return total > polished * (1.0 + FALSE_SUCCESS) + problem.zero


def correct_digits(parameters: Array, certified: Array) -> float:
    """The least -log10 |x - c| / |c| of all parameters, from 0 to MAX_DIGITS."""
    error = float(np.max(np.abs(parameters - certified) / np.abs(certified)))
    if not math.isfinite(error):
        return 0.0
    return MAX_DIGITS if error == 0.0 else min(max(-math.log10(error), 0.0), MAX_DIGITS)


def polish(numeric: NumericProblem, parameters: Array) -> float:
    """The sum of squares that SciPy reaches from here with tolerances near rounding.

    By MINPACK, or by `trf` if there are bounds or fewer residuals than parameters.
    """
    found = numeric.sum_of_squares(parameters)
    try:
        result = least_squares(
            numeric.residuals,
            inside(parameters, numeric),
            numeric.jacobian,
            method="lm" if has_lm(numeric, parameters) else "trf",
            bounds=(-np.inf, np.inf) if numeric.bounds is None else numeric.bounds,
            xtol=MACHINE_TOLERANCE,
            ftol=MACHINE_TOLERANCE,
            gtol=MACHINE_TOLERANCE,
            max_nfev=MAX_POLISH_EVALUATIONS,
        )
    except ValueError:  # residuals that are not finite
        return found
    return min(found, numeric.sum_of_squares(result.x))


def has_lm(numeric: NumericProblem, start: Array) -> bool:
    """Whether MINPACK takes the problem: no bounds, and no fewer residuals than parameters."""
    return numeric.bounds is None and len(numeric.residuals(start)) >= len(start)


def inside(start: Array, numeric: NumericProblem) -> Array:
    """The start moved off the bounds, as SciPy wants it."""
    if numeric.bounds is None:
        return start
    lower, upper = numeric.bounds
    return np.clip(start, np.nextafter(lower, np.inf), np.nextafter(upper, -np.inf))
