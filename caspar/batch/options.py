"""Options of a batch: those of a solve that have a meaning for each problem.

Input: the user's options and the shape of the problems. Output: the numbers that the kernel reads.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.batch.generate.policy_program import Option
from caspar.batch.generate.shape import BatchShape, Team
from caspar.batch.generate.step_program import LEAST_KEPT_PIVOT, LEAST_PIVOT
from caspar.codegen.targets import TARGETS
from caspar.errors import InputError, OptionError
from caspar.ir.dtype import DType
from caspar.options import CompleteOptions, Precision, SolveOptions, choice
from caspar.solver.lm.policy import LEAST_RELIEF
from caspar.solver.lm.usual_options import (
    EXACT_OPTIONS,
    FIT_DAMPING,
    ROBUST_DAMPING,
    USUAL_OPTIONS,
)

ALLOWED = (
    "max_iterations",
    "initial_damping",
    "min_damping",
    "max_damping",
    "cost_tolerance",
    "gradient_tolerance",
    "step_tolerance",
    "constraint_tolerance",
    "check",
)
"""Those of `SolveOptions` that a batch has."""

_ABSENT = {
    "max_time_s": "problems are not timed one by one; lower max_iterations",
    "linear_tolerance": "linear systems are factorised",
    "min_linear_tolerance": "linear systems are factorised",
    "min_linear_iterations": "linear systems are factorised",
    "max_linear_iterations": "linear systems are factorised",
}


MAX_UNKNOWNS = {"cpu": 96, "cuda": 48}
"""Unknowns of a problem that a kernel solves, by target: on a GPU its normal matrix is in the
shared memory of a warp; on the processor compiling takes long. Larger ones are solved one after the
other: see design record 0039."""


def with_team(
    shape: BatchShape, team: Team | None, target: str, num_problems: int, instances: float
) -> BatchShape:
    """The shape with who solves its problems; `instances`: of all factors in one, on average."""
    if team is None:
        has_warps = TARGETS[target].dialect.has_warps
        team = Team.usual(has_warps, shape.num_unknowns, num_problems, instances)
    return replace(shape, team=team)


def is_large(shape: BatchShape, target: str) -> bool:
    """Return whether problems are too large for a kernel that solves one."""
    return shape.num_unknowns > MAX_UNKNOWNS[target]


def refuse_large(shape: BatchShape, target: str, what: str) -> None:
    """Refuse what needs a kernel that solves a problem; `what` was asked for.

    Raises:
        InputError: Problems are too large.
    """
    if is_large(shape, target):
        sizes = ", ".join(
            f"{one.count} {one.node.name} of {one.node.tangent_dim}" for one in shape.nodes
        )
        raise InputError(
            f"{what}: a problem has {shape.num_unknowns} unknowns ({sizes}); those of more than "
            f"{MAX_UNKNOWNS[target]} are solved one after the other by a caspar.Solver, which has "
            f"{what} of its own: call that of Solver(factors) for one problem"
        )


def checked_precision(given: str | Precision) -> Precision:
    """The precision that the user means.

    Raises:
        OptionError: It is unknown, or mixed.
    """
    if isinstance(given, str) and given == "auto":
        return Precision.FLOAT64
    chosen: Precision = choice(Precision, "precision", given, ("auto",))
    if chosen is Precision.MIXED:
        raise OptionError(
            "precision='mixed': a BatchSolver computes a problem in one type; choose 'float64', "
            "which 'auto' is, or 'float32', where costs are still summed in float64"
        )
    return chosen


def checked_options(given: Mapping[str, Any]) -> SolveOptions:
    """The user's options.

    Raises:
        OptionError: One is unknown, out of range, or has no meaning for a batch.
    """
    for name in given:
        if name in _ABSENT:
            raise OptionError(
                f"{name!r} is no option of BatchSolver.solve, as {_ABSENT[name]}; allowed: "
                f"{', '.join(ALLOWED)}"
            )
    return SolveOptions.from_mapping(given)


def usual_options(shape: BatchShape) -> Mapping[str, float]:
    """Options that the user leaves open: those of a `Solver` that solves one of the problems."""
    is_exact = shape.storage is DType.FLOAT64
    has_one = len(shape.nodes) == 1 and shape.nodes[0].count == 1
    usual = dict(EXACT_OPTIONS if is_exact else USUAL_OPTIONS)
    if is_exact and has_one:
        usual["initial_damping"] = FIT_DAMPING
    if is_exact:
        has_many = sum(one.count for one in shape.nodes) > 1
        are_apart = has_many and all(len(one.factor.nodes) == 1 for one in shape.factors)
        usual |= {"min_damping": 0.0, "tries_undamped": not (shape.is_bounded or are_apart)}
    losses = [one.factor.loss for one in shape.factors if one.factor.loss is not None]
    if len(losses) > 0:
        levels_off = any(loss.levels_off for loss in losses)
        first = ROBUST_DAMPING if levels_off else USUAL_OPTIONS["initial_damping"]
        least = USUAL_OPTIONS["min_damping"]
        usual |= {"initial_damping": first, "min_damping": least, "tries_undamped": False}
    return usual


def options_of_singular(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same for problems that have no step without damping, and are not handed over."""
    found = numbers.copy()
    found[Option.FIRST_DAMPING] = numbers[Option.INITIAL_DAMPING]
    found[Option.LEAST_PIVOT] = LEAST_PIVOT
    return found


def option_numbers(chosen: SolveOptions, shape: BatchShape) -> NDArray[np.float64]:
    """Return the numbers that the kernel reads, by `Option`."""
    options = CompleteOptions.complete(chosen, usual_options(shape))
    relief = max(options.min_damping, LEAST_RELIEF[shape.storage])
    numbers = {
        Option.MAX_ITERATIONS: float(options.max_iterations),
        Option.INITIAL_DAMPING: options.initial_damping,
        Option.MIN_DAMPING: options.min_damping,
        Option.MAX_DAMPING: options.max_damping,
        Option.COST_TOLERANCE: options.cost_tolerance,
        Option.GRADIENT_TOLERANCE: options.gradient_tolerance,
        Option.STEP_TOLERANCE: options.step_tolerance,
        Option.LEAST_RELIEF: relief,
        Option.FIRST_DAMPING: 0.0 if options.tries_undamped else options.initial_damping,
        Option.LEAST_PIVOT: LEAST_KEPT_PIVOT,
    }
    return np.array([numbers[one] for one in Option], dtype=np.float64)
