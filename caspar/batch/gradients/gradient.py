"""Turn a batch with the values after a solve into a `Gradient`. Once for a gradient.

Also here: the linear systems of a batch's gradients: a dense block for each problem.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from caspar.batch.covariance import with_active_held
from caspar.batch.generate.shape import BatchShape, is_per_instance
from caspar.batch.gradients.flat import as_one_factor, as_one_problem
from caspar.batch.gradients.given import batch_given, solved_and_remarks
from caspar.batch.input import Batch
from caspar.batch.result import BatchResult, on_host
from caspar.frontend.factors.trace import Argument, ArgumentKind, NodeType, TracedFactor
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.gradients.adjoint import Adjoint, gradient_kernels
from caspar.solver.gradients.gradient import Gradient
from caspar.solver.gradients.gradients import (
    Cotangents,
    chosen_hessian,
    given_back,
    passed_for,
    shape_of,
    with_matrices,
)
from caspar.solver.gradients.system import Hessian, Instances, Integers, Solution
from caspar.solver.normal.blocks import Unknowns
from caspar.solver.normal.matrix import roots_of


class BlockSystem:
    """Systems with a dense block for each problem; `instances`: of each factor."""

    def __init__(
        self,
        backend: Backend,
        shape: BatchShape,
        num_problems: int,
        unknowns: Unknowns,
        instances: Sequence[Instances],
    ) -> None:
        self._backend, self._unknowns, self._num = backend, unknowns, num_problems
        sizes = {one.node.name: one.tangent_size for one in shape.nodes}
        self._sizes = {name: sizes[name] for name in unknowns.nodes}
        self._size = sum(self._sizes.values())
        hessian = self._hessian = Hessian(backend, unknowns, instances)
        problem, place = self._places()
        first = problem[hessian.rows] * self._size**2
        row, column = place[hessian.rows], place[hessian.columns]
        self._lower = backend.upload(first + row * self._size + column)
        self._upper = backend.upload(first + column * self._size + row)

    def _places(self) -> tuple[Integers, Integers]:
        """Return the problem of each unknown, and its row in that problem's block."""
        blocks, places, first = [], [], 0
        for size in self._sizes.values():
            blocks.append(np.repeat(np.arange(self._num), size))
            places.append(first + np.tile(np.arange(size), self._num))
            first += size
        return np.concatenate(blocks), np.concatenate(places)

    def solve(
        self, parts: Sequence[Array], rhs: Mapping[str, Array], moving: Mapping[str, Array]
    ) -> Solution | None:
        """See `HessianSystem`; of a problem with a singular block by its pseudo-inverse."""
        backend, xp, size = self._backend, self._backend.xp, self._size
        total = xp.zeros(self._num * size * size)
        total[self._lower] = total[self._upper] = self._hessian.entries(parts)
        blocks = total.reshape(self._num, size, size)
        is_bad = ~xp.isfinite(blocks).all(axis=(1, 2))
        blocks[is_bad] = 0.0
        diagonal = xp.arange(size)
        sizes = xp.abs(blocks[:, diagonal, diagonal])
        sizes = xp.where(sizes > 0.0, sizes, xp.abs(blocks).max(axis=2))
        sizes = sizes * self._joined({name: self._moves(name, moving) for name in self._sizes})
        scale = xp.where(sizes > 0.0, 1.0 / xp.sqrt(xp.where(sizes > 0.0, sizes, 1.0)), 0.0)
        blocks = blocks * scale[:, :, None] * scale[:, None, :]
        blocks[:, diagonal, diagonal] += scale == 0.0
        roots, free = roots_of(backend, blocks)
        scaled = (self._joined(rhs) * scale)[:, :, None]
        z = (roots @ (roots.transpose(0, 2, 1) @ scaled))[:, :, 0] * scale
        remarks = self._remarks(len({one.number for one in free}), is_bad)
        is_partial = bool(is_bad.any())
        return Solution(self._split(z), self._split(scale == 0.0), 0.0, remarks, is_partial)

    def _moves(self, name: str, moving: Mapping[str, Array]) -> Array:
        if name in moving:
            return self._backend.upload(moving[name])
        return self._backend.xp.ones(self._shape(name))

    def _shape(self, name: str) -> tuple[int, int]:
        return self._unknowns.nodes[name].count, self._unknowns.nodes[name].dim

    def _joined(self, by_node: Mapping[str, Array]) -> Array:
        """(P, unknowns of a problem)."""
        rows = [by_node[name].reshape(self._num, size) for name, size in self._sizes.items()]
        return self._backend.xp.concatenate(rows, axis=1)

    def _split(self, rows: Array) -> dict[str, Array]:
        found, first = {}, 0
        for name, size in self._sizes.items():
            part = self._backend.xp.ascontiguousarray(rows[:, first : first + size])
            found[name] = part.reshape(self._shape(name))
            first += size
        return found

    def _remarks(self, num_singular: int, is_bad: Array) -> tuple[str, ...]:
        remarks, num_bad = [], int(is_bad.sum())
        if num_singular > 0:
            remarks.append(
                f"The Hessian of {num_singular:,} of {self._num:,} problems is singular, or not "
                "positive definite: their gradients are those of the pseudo-inverse, in which free "
                "directions do not move. Hold these, for example by a prior."
            )
        if num_bad > 0:
            remarks.append(
                f"Second derivatives of {num_bad:,} of {self._num:,} problems are not finite: "
                "their gradients are zero."
            )
        return tuple(remarks)


__all__ = ["BatchGradients", "BatchResult", "Gradient", "batch_given"]
"""Names that a solver of batches needs for gradients, and results of both."""

Fields = Mapping[str, Any] | None

Asked = tuple[BatchResult | Mapping[str, Any], Fields, Fields]

Read = Callable[[Mapping[str, Any], Fields, Fields], Batch]

WithTerms = Callable[[Batch, Mapping[str, Any]], tuple[Batch, tuple[str, ...]]]

MAX_KEPT = 4
"""Shapes of batches whose memory is kept."""


class BatchGradients:
    """Gradients of a batch solver's problems."""

    def __init__(self, backend: Backend, nodes: Sequence[NodeType]) -> None:
        self._backend = backend
        self._nodes = nodes
        self._kernels = gradient_kernels(backend)
        self._adjoints: dict[object, Adjoint] = {}
        self._working = Lock()

    def differentiate(
        self, asked: Asked, cotangents: Any, hessian: str, read: Read, with_terms: WithTerms
    ) -> Gradient:
        """See `BatchSolver.gradient`.

        `read` reads what was asked for in float64, `with_terms` gives constraints their data, and
        has remarks.
        """
        arrays, constraints, remarks = solved_and_remarks(*asked)
        batch = read(arrays, constraints.fixed, constraints.bounds)
        backend, nodes = self._backend, self._nodes
        factors = [one.factor for one in batch.shape.factors]
        batch, on_terms = with_terms(batch, arrays)
        flat = [as_one_factor(one.factor) for one in batch.shape.factors]
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
        return Gradient(role, 0.0, (*on_role, *derived.remarks, *on_terms, *remarks), found)

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
    problem = given.get("problem") if isinstance(given, Mapping) else None
    is_ragged = problem is not None
    has_rows = is_per_instance(one) or one.kind is ArgumentKind.CONST_INDEXED
    usual = 3 if has_rows and not is_ragged else 2
    if is_ragged:
        # rows are in the order of problems here
        order = backend.upload(np.argsort(on_host(problem), kind="stable"))
        ordered = rows.copy()
        ordered[order] = rows
        rows = ordered
    is_matrix = len(one.matrix_shape) > 0 and len(shape) == usual + 1
    return with_matrices(rows, shape, is_matrix=is_matrix)
