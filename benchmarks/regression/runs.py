"""All starts of a problem by all solvers: kernels and derivatives are made once for each problem.

The cost of a start is one solve by each solver, and a polish of every success away from the least
known minimum.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from benchmarks.regression import mgh_fixed, mgh_sized, nist, stiff
from benchmarks.regression.answer import (
    MACHINE_TOLERANCE,
    Answer,
    Outcome,
    Solve,
    has_lm,
    judge,
    polish,
)
from benchmarks.regression.caspar_fit import TIGHT, CasparFit, Form
from benchmarks.regression.peers import ceres_solve, gtsam_solve, has_ceres, has_gtsam, scipy_solve
from benchmarks.regression.problem import Array, NumericProblem, Problem
from caspar.options import PrecisionName

SEED = 20260701

DECADES = 1.0
"""Random starts are up to this many powers of ten larger or smaller."""

LIMIT = 1000
"""Evaluations or iterations of the peers on CUTEst and stiff problems, as many as caspar's."""

PRECISIONS: tuple[PrecisionName, ...] = ("float64", "mixed")

GTSAM_LINEAR_SOLVERS = ("MULTIFRONTAL_CHOLESKY", "MULTIFRONTAL_QR")

DEFAULT_RANDOM_STARTS = 40
"""For each data set of NIST; the test functions get half."""


class Suite(Enum):
    """What can be chosen on the command line."""

    NIST = "nist"
    MGH = "mgh"
    RANDOM = "random"
    CUTEST = "cutest"
    STIFF = "stiff"


class Part(Enum):
    """Starts that are counted together."""

    NIST = "NIST, published starts"
    STANDARD = "test functions, standard start"
    TIMES_10 = "test functions, start times 10"
    TIMES_100 = "test functions, start times 100"
    RANDOM_NIST = "NIST, random starts"
    RANDOM_MGH = "test functions, random starts"
    CUTEST = "CUTEst"
    STIFF = "stiff problems"

    @property
    def is_random(self) -> bool:
        """Whether starts are drawn."""
        return self in (Part.RANDOM_NIST, Part.RANDOM_MGH)


def all_problems() -> dict[Suite, list[Problem]]:
    """The problems of NIST and of Moré, Garbow and Hillstrom."""
    functions = [*mgh_fixed.problems(), *mgh_sized.problems(), *mgh_sized.linear_problems()]
    return {Suite.NIST: nist.problems(), Suite.MGH: functions}


def scaled_start(start: Array, factor: float) -> Array:
    """The start times a factor; a start of zeros becomes the factor everywhere, as in MINPACK."""
    if np.any(start != 0.0):
        return start * factor
    return np.full_like(start, factor)


def random_starts(problem: Problem, count: int) -> list[Array]:
    """Starts around the published ones, taken in turn.

    Each parameter is multiplied by a power of ten, its exponent uniform within DECADES of zero. Its
    sign stays; a zero has no size and no sign, and is taken as 1 or -1.
    """
    random = np.random.default_rng([SEED, zlib.crc32(problem.name.encode())])
    starts = []
    for i in range(count):
        start = np.array(problem.starts[i % len(problem.starts)])
        signs = random.choice([-1.0, 1.0], start.shape)
        sizes = 10.0 ** random.uniform(-DECADES, DECADES, start.shape)
        starts.append(np.where(start == 0.0, signs, start) * sizes)
    return starts


def outcomes(
    problem: Problem, collection: Suite, suites: set[Suite], num_random: int
) -> Iterator[Outcome]:
    """Judged answers of all solvers from all starts of the chosen suites."""
    numeric = NumericProblem(problem)
    fits = {form: CasparFit(problem, form) for form in Form}
    peers = {f"SciPy {method}": scipy_solve(numeric, method) for method in ("lm", "trf")}
    if has_ceres():
        peers["Ceres"] = ceres_solve(numeric)
    defaults = _caspar_solvers(fits, "", {}) | peers
    all_solvers = _caspar_solvers(fits, "", {}) | _caspar_solvers(fits, ", tight", TIGHT) | peers
    for part, label, start in _starts(problem, collection, suites, num_random):
        solvers = defaults if part.is_random else all_solvers
        yield from _judged(problem, numeric, solvers, part, label, start)


def cutest_outcomes(problem: Problem) -> Iterator[Outcome]:
    """Judged answers of caspar in two precisions and of the peers."""
    numeric, start = NumericProblem(problem), np.array(problem.starts[0])
    solvers = _by_precision(problem) | _peers(numeric, start)
    yield from _judged(problem, numeric, solvers, Part.CUTEST, "standard", start)


def stiff_outcomes() -> Mapping[str, Callable[[], Iterator[Outcome]]]:
    """By name of a stiff problem, the same on it, beside GTSAM if it can be imported."""
    plain = {
        one.name: partial(_stiff, one, partial(_by_precision, one)) for one in stiff.problems()
    }
    paths = [stiff.PathFit(weight) for weight in stiff.TIE_WEIGHTS]
    tied = {one.problem.name: partial(_stiff, one.problem, partial(_paths, one)) for one in paths}
    return plain | tied


def _stiff(problem: Problem, own: Callable[[], Mapping[str, Solve]]) -> Iterator[Outcome]:
    numeric, start = NumericProblem(problem), np.array(problem.starts[0])
    tolerances = dict.fromkeys(("xtol", "ftol", "gtol"), MACHINE_TOLERANCE)
    minpack = scipy_solve(numeric, "lm", LIMIT, x_scale="jac", **tolerances)
    solvers = {**own(), "SciPy lm, scaled, tight": minpack, **_peers(numeric, start)}
    if has_gtsam():
        for name in GTSAM_LINEAR_SOLVERS:
            solvers[f"GTSAM {name}"] = gtsam_solve(numeric, name)
    yield from _judged(problem, numeric, solvers, Part.STIFF, "standard", start)


def _paths(fit: stiff.PathFit) -> dict[str, Solve]:
    return {f"caspar {one}": partial(fit.solve, precision=one) for one in PRECISIONS}


def _by_precision(problem: Problem) -> dict[str, Solve]:
    fits = {one: CasparFit(problem, Form.VECTOR, precision=one) for one in PRECISIONS}
    return {f"caspar {one}": partial(fit.solve, options={}) for one, fit in fits.items()}


def _peers(numeric: NumericProblem, start: Array) -> dict[str, Solve]:
    """SciPy, `lm` where it takes the problem, and Ceres if it can be imported."""
    methods = ("lm", "trf") if has_lm(numeric, start) else ("trf",)
    peers = {f"SciPy {one}": scipy_solve(numeric, one, LIMIT) for one in methods}
    return peers | ({"Ceres": ceres_solve(numeric, LIMIT)} if has_ceres() else {})


def _judged(
    problem: Problem,
    numeric: NumericProblem,
    solvers: Mapping[str, Solve],
    part: Part,
    label: str,
    start: Array,
) -> Iterator[Outcome]:
    answers = {name: solve(start) for name, solve in solvers.items()}
    if np.isinf(problem.minimum):
        problem = replace(problem, minimum=_least(numeric, answers))
    for name, answer in answers.items():
        total, reached, digits, is_false = judge(problem, numeric, answer)
        yield Outcome(
            suite=part.value,
            problem=problem.name,
            start=label,
            solver=name,
            status=answer.status,
            is_success=answer.is_success,
            steps=answer.steps,
            sum_of_squares=total,
            reached=reached,
            digits=digits,
            is_false_success=is_false,
        )


def _least(numeric: NumericProblem, answers: Mapping[str, Answer]) -> float:
    """The least sum of squares that anyone reaches, after a polish."""
    found = [answer.parameters for answer in answers.values()]
    return polish(numeric, min(found, key=numeric.sum_of_squares))


def _caspar_solvers(
    fits: Mapping[Form, CasparFit], suffix: str, options: Mapping[str, Any]
) -> dict[str, Solve]:
    """Both forms with the same options, by name."""
    return {
        f"caspar, {form.value}{suffix}": partial(fit.solve, options=options)
        for form, fit in fits.items()
    }


def _starts(
    problem: Problem, collection: Suite, suites: set[Suite], num_random: int
) -> Iterator[tuple[Part, str, Array]]:
    """Part, name and values of each start."""
    if collection is Suite.NIST:
        if Suite.NIST in suites:
            for number, start in enumerate(problem.starts, 1):
                yield Part.NIST, f"start {number}", np.array(start)
        if Suite.RANDOM in suites:
            for number, drawn in enumerate(random_starts(problem, num_random), 1):
                yield Part.RANDOM_NIST, f"random {number}", drawn
        return
    is_linear = problem.name in {linear.name for linear in mgh_sized.linear_problems()}
    standard = np.array(problem.starts[0])
    if Suite.MGH in suites:
        yield Part.STANDARD, "standard", standard
        if not is_linear:
            yield Part.TIMES_10, "times 10", scaled_start(standard, 10.0)
            yield Part.TIMES_100, "times 100", scaled_start(standard, 100.0)
    if Suite.RANDOM in suites and not is_linear:
        for number, drawn in enumerate(random_starts(problem, num_random // 2), 1):
            yield Part.RANDOM_MGH, f"random {number}", drawn
