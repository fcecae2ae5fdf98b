"""Solve the arrays of a problem: with which linear solver, to which tolerance.

Input: a `Problem` and its `SolveArrays`. Output: a `SolveResult`. One pass over the observations
besides the solve.
"""

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from caspar.colmap.adjust.options import BundleAdjustmentOptions, LossFunction
from caspar.colmap.adjust.problem import Problem
from caspar.colmap.adjust.solve_arrays import SolveArrays
from caspar.options import LinearSolverChoice, Precision
from caspar.solver.limits import Limits
from caspar.solver.result.result import IterationRecord, SolveResult
from caspar.solver.solver import Solver

INNER_ITERATIONS = 1
"""Steps of the points alone after each common one; see `caspar.Solver`."""

CAUCHY_INNER_ITERATIONS = 3
"""The same with Cauchy's loss: points settle in their minima, and solves of two COLMAP models take
half to four fifths of the iterations (docs/design/0025-losses.md)."""

FLOAT64_OPTIONS = {
    "cost_tolerance": 1e-12,
    "gradient_tolerance": 1e-16,
    "step_tolerance": 1e-10,
    "max_linear_iterations": 1000,
}
"""COLMAP's defaults let Ceres go on until the cost no longer changes but by rounding. Cameras with
lenses of their own need more PCG iterations than cameras that share one."""

EXACT_OPTIONS = {**FLOAT64_OPTIONS, "gradient_tolerance": 1e-13}
"""The same if steps are exact or nearly: the one before the last shows that nothing is left."""

FIRST_DAMPING = 1e-5
"""First damping without a loss, where linear solves are exact or the blocks of their preconditioner
hold pose and lens. Ceres begins with 1e-4. A model is near its optimum, and damping holds it back
along the directions in which a lens trades for a motion (docs/design/0026-colmap.md)."""

ROBUST_FIRST_DAMPING = 1e-4
"""The same with a loss, as Ceres begins: fewer iterations than with the solver's own first damping,
also from poses and points that were moved, and mostly a lower minimum of Cauchy's loss."""

MASKS = Limits(min_constant_nodes=sys.maxsize)
"""Nodes of which all are held are masked, too."""

MAX_EXACT_SIZE = 1200
"""Unknowns of the system of cameras up to which it is factorised as a dense matrix."""

MAX_EXACT_TYPES = 4
"""Node types of cameras (frames, sensors, lenses of each model) up to which it is: it has kernels
for each two of them, and they are compiled."""

MAX_KEPT_BYTES = 32 << 20
"""Memory of a solve that is kept for the next adjustment of the same observations, such as one with
other values or options, which need no set-up then."""

MAX_PAIRS_PER_OBSERVATION = 30
"""Pairs of observations of one point, for each observation, up to which the matrix is formed."""


def solved(
    problem: Problem,
    parts: SolveArrays,
    options: BundleAdjustmentOptions,
    verbose: bool | None,
    on_iteration: Callable[[IterationRecord], object] | None,
    *,
    shares_kernels: bool = False,
) -> SolveResult:
    """Solve; `verbose` and `on_iteration` are as of `caspar.Solver.solve`.

    `shares_kernels`: the kernels are those of other adjustments that hold something else, or
    nothing. They read masks then, and held points are eliminated: solves take longer.
    """
    method = _method(problem, parts, options)
    limits = MASKS if shares_kernels else None
    solver = solver_for(tuple(parts.factors), options, method, limits)
    chosen: dict[str, Any] = {"max_iterations": options.max_num_iterations}
    if solver.precision is Precision.FLOAT64:
        is_quick = method is LinearSolverChoice.SCHUR_DENSE or parts.has_views
        chosen |= EXACT_OPTIONS if is_quick else FLOAT64_OPTIONS
        if is_quick:
            is_plain = options.loss_function_type is LossFunction.TRIVIAL
            chosen["initial_damping"] = FIRST_DAMPING if is_plain else ROBUST_FIRST_DAMPING
    is_kept = False
    try:
        result = solver.solve(
            parts.arrays,
            fixed=parts.fixed if shares_kernels else parts.held,
            bounds=parts.bounds or None,
            verbose=verbose,
            on_iteration=on_iteration,
            **{**chosen, **options.solve_options},
        )
        is_kept = result.peak_memory_bytes <= MAX_KEPT_BYTES
        return result
    finally:
        if not is_kept:
            solver.release()


def solver_for(
    factors: tuple[Any, ...],
    options: BundleAdjustmentOptions,
    method: LinearSolverChoice = LinearSolverChoice.AUTO,
    limits: Limits | None = None,
) -> Solver:
    """Return a solver of some factors; that of the last adjustments has its kernels."""
    is_cauchy = options.loss_function_type is LossFunction.CAUCHY
    inner = CAUCHY_INNER_ITERATIONS if is_cauchy else INNER_ITERATIONS
    return _solver(factors, options.backend, options.precision, method, inner, limits)


@lru_cache(maxsize=8)
def _solver(
    factors: tuple[Any, ...],
    backend: Any,
    precision: Any,
    method: LinearSolverChoice,
    inner: int,
    limits: Limits | None,
) -> Solver:
    """Solvers of the last adjustments: their kernels are loaded."""
    return Solver(
        factors,
        backend=backend,
        precision=precision,
        linear_solver=method,
        inner_iterations=inner,
        limits=limits,
    )


def _method(
    problem: Problem, parts: SolveArrays, options: BundleAdjustmentOptions
) -> LinearSolverChoice:
    """The user's choice, or a factorisation where the cameras are few.

    A factorisation takes fewer steps to the last digits than `auto`, which counts single steps.
    """
    asked = LinearSolverChoice(options.linear_solver)
    if asked is not LinearSolverChoice.AUTO or not options.is_float64:
        return asked
    size = sum(parts.fixed[kind].size for kind in parts.camera_types)
    seen = problem.observations
    counts = np.bincount(seen.points)
    num_pairs = int(np.sum(counts * (counts + 1))) // 2
    is_small = 0 < size <= MAX_EXACT_SIZE and len(parts.camera_types) <= MAX_EXACT_TYPES
    if is_small and num_pairs <= MAX_PAIRS_PER_OBSERVATION * len(seen.points):
        return LinearSolverChoice.SCHUR_DENSE
    return asked
