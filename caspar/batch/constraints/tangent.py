"""Constraints of a batch as rows of great weight, for covariances and gradients.

Input: a batch with the values after a solve, in float64. Output: the same with constraints as
factors, whose data say that: see `solver.constraints.tangent` and `solver.constraints.derivative`.
Cost tier: kernels once for a solver, the rest once for a covariance or gradient.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from caspar.batch.constraints.parts import on_device
from caspar.batch.constraints.problems import BatchConstraints, Look, greatest
from caspar.batch.constraints.run import problem_of_each
from caspar.batch.input import Batch
from caspar.batch.result import BatchResult
from caspar.errors import InputError
from caspar.frontend.factors.factor import ConstraintKind
from caspar.memory.array import Array
from caspar.solver.constraints.penalties import FIRST_PENALTY, Terms
from caspar.solver.constraints.tangent import ACTIVE, WEIGHT

BARELY = 1e-12
"""Distance, relative to its terms, by which an active entry is put on the side where it pushes:
more than rounding."""


def _looked(constraints: BatchConstraints, batch: Batch) -> tuple[Batch, Look, dict[str, Terms]]:
    """The batch on the device, its constraints, and penalties of great weight."""
    batch = on_device(batch, constraints.backend)
    look = constraints.look(batch)
    first = constraints.first_terms(batch, look)
    weight = WEIGHT / FIRST_PENALTY
    return batch, look, {name: Terms.of(weight * one.penalties) for name, one in first.items()}


def with_tangent_rows(constraints: BatchConstraints, batch: Batch) -> Batch:
    """The batch with active entries as rows, for covariances on the tangent space."""
    xp = constraints.backend.xp
    batch, look, terms = _looked(constraints, batch)
    idle = xp.zeros(batch.num_problems, np.int64)
    for name, one in terms.items():
        rows, scale = look.found[name].rows, look.scales[name]
        is_active = xp.ones(rows.shape, bool)
        if constraints.kinds[name] is ConstraintKind.POSITIVE:
            is_active = rows <= ACTIVE * scale
        shift = rows + xp.where(is_active, BARELY, -1.0) * scale
        terms[name] = replace(one, multipliers=one.penalties * shift)
        own = look.rows[name].by_problem((~is_active).astype(np.float64))
        idle += own.sum(axis=1).astype(np.int64)
    made = constraints.with_terms(batch, terms)
    return replace(made, num_residuals=made.num_residuals - idle)


def with_multipliers(
    constraints: BatchConstraints, batch: Batch, result: Any, arrays: Mapping[str, Any]
) -> tuple[Batch, tuple[str, ...]]:
    """The batch with the multipliers of a result, for gradients; and remarks.

    Args:
        constraints: Those of the solver.
        batch: With the values of the result.
        result: Of its solve.
        arrays: As the user passed them.

    Raises:
        InputError: Arrays in place of a result.
    """
    if not isinstance(result, BatchResult):
        raise InputError(
            "gradient: a solver with constraints needs the result of its solve, which has the "
            "multipliers; arrays do not"
        )
    xp = constraints.backend.xp
    batch, look, terms = _looked(constraints, batch)
    multipliers = {name: _in_order(constraints, result, name, look, arrays[name]) for name in terms}
    largest, is_weak = xp.zeros(batch.num_problems), xp.zeros(batch.num_problems, bool)
    for name, own in multipliers.items():
        largest = xp.maximum(largest, greatest(xp, look.rows[name].by_problem(xp.abs(own))))
    for name, own in multipliers.items():
        rows = look.found[name].rows
        terms[name] = terms[name].pulling(own, rows)
        if constraints.kinds[name] is ConstraintKind.POSITIVE:
            is_near = xp.abs(rows) <= ACTIVE * look.scales[name]
            is_idle = own <= 1e-9 * largest[look.rows[name].owners][:, None]
            weak = (is_near & is_idle).astype(np.float64)
            is_weak |= look.rows[name].by_problem(weak).any(axis=1)
    number = int(is_weak.sum())
    remark = (
        f"In {number:,} of {batch.num_problems:,} problems inequalities are met with equality and "
        "hold nothing back: there the values have a kink, and the gradient is that of one side."
    )
    return constraints.with_terms(batch, terms), (remark,) if number > 0 else ()


def _in_order(
    constraints: BatchConstraints,
    result: BatchResult,
    name: str,
    look: Look,
    passed: Any,
) -> Array:
    """(m, dim) multipliers, those of a problem together, from the order in which they came back."""
    backend = constraints.backend
    own = backend.upload(result.multipliers[name]).reshape(-1, constraints.dims[name])
    if look.rows[name].length is not None:
        return own
    return own[backend.upload(np.argsort(problem_of_each(passed), kind="stable"))]
