"""f - l^T c with its derivatives of first and second order, on the host.

Input: a `Problem` in float64, values and multipliers. Output: a `Point`. Each factor and constraint
writes its instances' parts by one kernel; their sums are array code. Cost tier: kernels once for a
solver, memory and pattern once for a solve, the rest once for a step of Newton's method.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from caspar.equations import adjoint as parts
from caspar.equations.parts import SolverPart
from caspar.frontend.factors.factor import ConstraintKind
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.memory.array import Array
from caspar.memory.kernel import KernelSpec
from caspar.runtime.backend import Backend, Launch
from caspar.solver.constraints.bordered import Border
from caspar.solver.constraints.violations import (
    Constraints,
    Floats,
    Linearised,
    first_dims,
    linearised,
    pushing_multipliers,
)
from caspar.solver.gradients.adjoint import Charts
from caspar.solver.gradients.system import Hessian, Instances
from caspar.solver.input.problem import Problem
from caspar.solver.normal.blocks import Unknowns
from caspar.solver.normal.instance_kernels import InstanceInputs, InstanceKernels, Packed

Bound = tuple[InstanceInputs, Launch, dict[str, Array]]
"""What a kernel reads, its launch, and what it writes."""

NEWTON, CURVED = "newton", "curved"
"""Roles: the kernels of factors and of constraints."""

MOST_TANGENT = 48
"""Unknowns of an instance up to which kernels of second derivatives are compiled."""

MOST_ENTRIES = 400_000
"""Entries of all instances' parts of the Hessian up to which they are summed on the host."""

FEW_ENTRIES = 400_000
"""The same up to which Newton's method may begin at the start."""


@dataclass(frozen=True)
class Point:
    """The Lagrangian at some values and multipliers.

    Attributes:
        values: By node type (n, storage_dim).
        multipliers: By constraint (m, dim).
        costs: By factor; f is their sum.
        gradient: (size,) of f.
        found: The constraints.
        active: (rows,) which of their entries are.
        rows: (rows,) c.
        jacobian: Entries of J: see `Border`.
        pull: (size,) g - J^T (l - P c) of active rows.
        first: H + J^T P J of active rows: entries of the lower triangle.
    """

    values: Mapping[str, Floats]
    multipliers: Mapping[str, Floats]
    costs: Mapping[str, float]
    gradient: Floats
    found: Mapping[str, Linearised]
    active: NDArray[np.bool_]
    rows: Floats
    jacobian: Floats
    pull: Floats
    first: Floats

    @property
    def cost(self) -> float:
        """f."""
        return sum(self.costs.values())

    @property
    def is_finite(self) -> bool:
        """Return whether cost, derivatives and constraints are finite."""
        return bool(
            np.isfinite(self.cost)
            and np.isfinite(self.gradient).all()
            and np.isfinite(self.first).all()
            and all(one.is_finite for one in self.found.values())
        )


class Lagrangian:
    """The Lagrangian of the problems of a solver.

    Args:
        backend: Where kernels run.
        nodes: Node types.
        constraints: The constraints.
        factors: All factors that are no constraints, without terms.
    """

    def __init__(
        self,
        backend: Backend,
        nodes: Sequence[NodeType],
        constraints: Constraints,
        factors: Sequence[TracedFactor],
    ) -> None:
        self.backend, self.nodes, self.constraints = backend, tuple(nodes), constraints
        self.charts = Charts(backend, [*factors, *constraints.factors])
        makers: dict[str, Callable[[TracedFactor], KernelSpec]] = {
            NEWTON: parts.newton_kernel,
            CURVED: partial(parts.constraint_kernel, is_curved=True),
        }
        self.kernels = InstanceKernels(backend, "Newton's method", makers)

    def suits(self, factors: Sequence[TracedFactor], problem: Problem) -> bool:
        """Return whether second derivatives of a problem are worth their time and memory.

        Args:
            factors: Factors with terms.
            problem: Their arrays.
        """
        return self._num_entries(factors, problem) <= MOST_ENTRIES

    def suits_start(self, factors: Sequence[TracedFactor], problem: Problem) -> bool:
        """Return whether Newton's method may begin at the start: a small problem without losses.

        Args:
            factors: Factors with terms.
            problem: Their arrays.
        """
        has_losses = any(one.loss is not None for one in factors)
        return not has_losses and self._num_entries(factors, problem) <= FEW_ENTRIES

    def _num_entries(self, factors: Sequence[TracedFactor], problem: Problem) -> float:
        """Entries of the parts of the Hessian; infinite if kernels would be too large."""
        everything = [*factors, *self.constraints.factors]
        if any(parts.tangent_size(one) > MOST_TANGENT for one in everything):
            return np.inf
        counts = problem.num_instances
        return sum(counts[one.name] * parts.hessian_dim(one) for one in everything)


class Expansion:
    """The Lagrangian of one structure.

    Args:
        lagrangian: Of the solver.
        factors: Factors that are no constraints, with terms.
        problem: Its arrays.
    """

    def __init__(
        self, lagrangian: Lagrangian, factors: Sequence[TracedFactor], problem: Problem
    ) -> None:
        backend = self._backend = lagrangian.backend
        self._lagrangian, self.problem = lagrangian, problem
        constraints = lagrangian.constraints
        self._kinds = constraints.kinds
        counts, present = problem.counts, problem.num_instances
        factors = [one for one in factors if present[one.name] > 0]
        held = [one for one in constraints.factors if present[one.name] > 0]
        lagrangian.kernels.load(factors, [NEWTON])
        lagrangian.kernels.load(held, [CURVED])
        nodes = lagrangian.nodes
        self._values = {
            one.name: Packed.empty(backend, counts[one.name], one.storage_dim) for one in nodes
        }
        shapes = {one.name: (counts[one.name], one.tangent_dim) for one in nodes}
        self.unknowns = Unknowns.of(shapes)
        self._multipliers: dict[str, Packed] = {}
        self._factors = [self._bound_factor(one) for one in factors]
        self._constraints = [self._bound_constraint(one) for one in held]
        bound = [*self._factors, *self._constraints]
        self._run = backend.repeated_runner([launch for _, launch, _ in bound])
        instances = [_instances(backend, inputs) for inputs, _, _ in bound]
        self._hessian = Hessian(backend, self.unknowns, instances)
        self._columns = {
            inputs.factor.name: one.unknowns(self.unknowns)
            for (inputs, _, _), one in zip(bound, instances, strict=True)
        }
        columns = [self._columns[one.name] for one in held]
        self._triangles = {one.name: np.tril_indices(parts.tangent_size(one)) for one in held}
        dims = [len(one.residual) for one in held]
        self.border = Border(self._hessian, self.unknowns.size, columns, dims)

    def _bound_factor(self, factor: TracedFactor) -> Bound:
        inputs = InstanceInputs(self._backend, factor, self.problem, self._values)
        dims = {
            SolverPart.COSTS.addend: 1,
            parts.GRADIENT: parts.tangent_size(factor),
            parts.HESSIAN: parts.hessian_dim(factor),
        }
        return inputs, *inputs.bind(self._lagrangian.kernels.of(factor, NEWTON), dims)

    def _bound_constraint(self, factor: TracedFactor) -> Bound:
        inputs = InstanceInputs(self._backend, factor, self.problem, self._values)
        own = Packed.empty(self._backend, inputs.count, len(factor.residual))
        self._multipliers[factor.name] = own
        dims = {**first_dims(factor), parts.HESSIAN: parts.hessian_dim(factor)}
        kernel = self._lagrangian.kernels.of(factor, CURVED)
        return inputs, *inputs.bind(kernel, dims, {parts.MULTIPLIER: own.binding})

    def at(
        self,
        values: Mapping[str, Floats],
        multipliers: Mapping[str, Floats],
        penalties: Mapping[str, Floats],
    ) -> Point:
        """The Lagrangian at some values and multipliers, with penalties: by constraint (m, dim)."""
        backend = self._backend
        for name, packed in self._values.items():
            packed.fill(backend.upload(values[name]))
        for name, packed in self._multipliers.items():
            packed.fill(backend.upload(pushing_multipliers(self._kinds[name], multipliers[name])))
        self._run()
        size = self.unknowns.size
        costs, gradient, curvature = {}, np.zeros(size), []
        for inputs, _, outputs in self._factors:
            name = inputs.factor.name
            costs[name] = float(outputs[SolverPart.COSTS.addend].sum())
            rows = np.asarray(backend.to_host(outputs[parts.GRADIENT]))
            gradient += np.bincount(self._columns[name].ravel(), rows.ravel(), minlength=size)
            curvature.append(outputs[parts.HESSIAN])
        found, blocks, pulls, active = {}, [], [np.zeros(0)], [np.zeros(0, bool)]
        for inputs, _, outputs in self._constraints:
            name = inputs.factor.name
            one = found[name] = linearised(backend, inputs, self._kinds[name], outputs)
            pull = multipliers[name] - penalties[name] * one.rows
            is_active = (pull > 0.0) | (one.kind is ConstraintKind.ZERO)
            block = np.concatenate([node.entries for node in one.nodes], axis=2)
            weighted = block * np.where(is_active, penalties[name], 0.0)[:, :, None]
            row, column = self._triangles[name]
            product = np.einsum("mrk,mrl->mkl", block, weighted)[:, row, column]
            curvature.append(backend.upload(product) - outputs[parts.HESSIAN])
            blocks.append(block)
            pulls.append(np.where(is_active, pull, 0.0).ravel())
            active.append(is_active.ravel())
        jacobian = self.border.jacobian(blocks)
        return Point(
            dict(values),
            dict(multipliers),
            costs,
            gradient,
            found,
            np.concatenate(active),
            np.concatenate([np.zeros(0), *(one.rows.ravel() for one in found.values())]),
            jacobian,
            gradient - self.border.pulled(jacobian, np.concatenate(pulls)),
            np.asarray(backend.to_host(self._hessian.entries(curvature))),
        )

    def moved(self, point: Point, step: Floats) -> dict[str, Floats]:
        """Return (size,) values by node type, after a step of all unknowns."""
        backend, charts = self._backend, self._lagrangian.charts
        found = dict(point.values)
        for name, steps in self.unknowns.split(step).items():
            moves = (steps != 0.0).any(axis=1)
            if moves.any():
                rows, own = backend.upload(found[name]), backend.upload(steps.copy())
                moved = np.asarray(backend.to_host(charts.moved(name, rows, own)))
                found[name] = np.where(moves[:, None], moved, found[name])
        return found


def _instances(backend: Backend, inputs: InstanceInputs) -> Instances:
    """The nodes of each instance, on the host."""
    nodes = inputs.factor.nodes
    return Instances(
        tuple(node.node_type.name for node in nodes),
        tuple(np.asarray(backend.to_host(inputs.index[node.name])) for node in nodes),
    )
