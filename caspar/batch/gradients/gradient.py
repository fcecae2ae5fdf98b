"""From a batch with the values after a solve to a `Gradient`. Once for a gradient."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from caspar.batch.covariance import with_active_held
from caspar.batch.generate.shape import is_per_instance
from caspar.batch.gradients.blocks import BlockSystem
from caspar.batch.gradients.flat import as_one_factor, as_one_problem
from caspar.batch.gradients.given import batch_given, solved_and_remarks
from caspar.batch.input import Batch
from caspar.batch.result import BatchResult, on_host
from caspar.frontend.factors.trace import Argument, NodeType, TracedFactor
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.gradients.adjoint import Adjoint, gradient_kernels
from caspar.solver.gradients.gradient import Gradient
from caspar.solver.gradients.gradients import chosen_hessian
from caspar.solver.gradients.inputs import (
    Cotangents,
    given_back,
    passed_for,
    shape_of,
    with_matrices,
)

__all__ = ["BatchGradients", "BatchResult", "Gradient", "batch_given"]
"""What a solver of batches needs for gradients, and what these begin with."""

Fields = Mapping[str, Any] | None

Asked = tuple[BatchResult | Mapping[str, Any], Fields, Fields]

Read = Callable[[Mapping[str, Any], Fields, Fields], Batch]

MAX_KEPT = 4
"""Shapes of batches whose memory is kept."""


class BatchGradients:
    """Gradients of a batch solver's problems.

    Args:
        backend: Where the solver runs.
        nodes: Its node types.
    """

    def __init__(self, backend: Backend, nodes: Sequence[NodeType]) -> None:
        self._backend = backend
        self._nodes = nodes
        self._kernels = gradient_kernels(backend)
        self._adjoints: dict[object, Adjoint] = {}
        self._working = Lock()

    def differentiate(self, asked: Asked, cotangents: Any, hessian: str, read: Read) -> Gradient:
        """See `BatchSolver.gradient`.

        Args:
            asked: The result or arrays, what was fixed, and bounds.
            cotangents: As the user passed them.
            hessian: Likewise.
            read: Reads arrays, what is fixed, and bounds, in float64.
        """
        arrays, constraints, remarks = solved_and_remarks(*asked)
        batch = read(arrays, constraints.fixed, constraints.bounds)
        backend, nodes = self._backend, self._nodes
        factors = [one.factor for one in batch.shape.factors]
        flat = [as_one_factor(one) for one in factors]
        role, on_role = chosen_hessian(hessian, flat)
        problem = as_one_problem(batch, backend)
        values = {name: _flat_rows(arrays[name]) for name in problem.values}
        inputs = Cotangents(backend, nodes, problem.counts, values)
        flat_cotangents = cotangents
        if isinstance(cotangents, Mapping):
            flat_cotangents = {name: _flat_rows(given) for name, given in cotangents.items()}
        by_values = inputs.read(flat_cotangents, are_partial=True)
        present = [one for one in flat if problem.factors[one.name].count > 0]
        with self._working:
            adjoint = self._adjoint(batch, flat)
            moving = with_active_held(batch, backend).free
            derived = adjoint.derive(problem, present, by_values, moving, role)
            shape = partial(_shaped, backend)
            found = given_back(backend, problem, factors, arrays, derived, shape)
        return Gradient(role, 0.0, (*on_role, *derived.remarks, *remarks), found)

    def _adjoint(self, batch: Batch, factors: Sequence[TracedFactor]) -> Adjoint:
        shape, count = batch.shape, batch.num_problems
        key = (count, *shape.structure)
        known = self._adjoints.pop(key, None)
        if known is None:

            def make(backend: Backend, *others: Any) -> BlockSystem:
                return BlockSystem(backend, shape, count, *others)

            known = Adjoint(self._backend, self._nodes, factors, make, self._kernels)
        while len(self._adjoints) >= MAX_KEPT:
            del self._adjoints[next(iter(self._adjoints))]
        self._adjoints[key] = known
        return known


def _flat_rows(given: Any) -> Any:
    """(P, n, dim) as (P n, dim)."""
    shape = shape_of(given)
    return given.reshape(-1, shape[-1]) if len(shape) == 3 else given


def _shaped(backend: Backend, one: Argument, rows: Array, passed: Any) -> Array:
    """(rows, dim) of a constant as it was passed to a `BatchSolver`."""
    given = passed.get(one.source) if isinstance(passed, Mapping) else None
    shape = shape_of(passed_for(one, passed))
    is_ragged = isinstance(given, Mapping)
    usual = 3 if is_per_instance(one) and not is_ragged else 2
    if isinstance(given, Mapping):
        # rows are in the order of problems here
        order = backend.upload(np.argsort(on_host(given["problem"]), kind="stable"))
        ordered = rows.copy()
        ordered[order] = rows
        rows = ordered
    is_matrix = len(one.matrix_shape) > 0 and len(shape) == usual + 1
    return with_matrices(rows, shape, is_matrix=is_matrix)
