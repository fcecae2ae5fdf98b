"""From a derivative by values to derivatives by everything that determines them.

Input: a `Problem`, the values that minimise it, a derivative by these. Output: `Derived`. Cost
tier: kernels once for a solver, memory and analysis once for a structure, the rest once for a
gradient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.memory.array import Array
from caspar.runtime.array_tools import host_checksum
from caspar.runtime.backend import Backend
from caspar.solver.gradients.assembly import Assembly, MakeSystem
from caspar.solver.gradients.charts import Charts
from caspar.solver.gradients.constants import own_derivatives
from caspar.solver.gradients.kernels import ADJOINT, GradientKernels
from caspar.solver.gradients.system import SparseSystem
from caspar.solver.input.problem import Problem

MAX_KEPT = 4
"""Structures whose memory and analysis are kept."""


@dataclass(frozen=True)
class Derived:
    """Derivatives of a loss function, on the device.

    Attributes:
        starts: By node type (n, storage_dim), by what stays where it starts; None: zeros.
        constants: By factor with instances, and by argument, (rows, dim).
        damping: See `Solution`.
        remarks: What is to be said of the Hessian.
    """

    starts: Mapping[str, Array | None]
    constants: Mapping[str, Mapping[str, Array]]
    damping: float
    remarks: tuple[str, ...]


class Adjoint:
    """Derivatives for problems of some factors.

    Args:
        backend: Where the arrays are.
        nodes: Node types.
        factors: Factors, with any terms.
        make_system: Makes what solves the linear systems.
        kernels: Shared with others; None: its own.
    """

    def __init__(
        self,
        backend: Backend,
        nodes: Sequence[NodeType],
        factors: Sequence[TracedFactor],
        make_system: MakeSystem = SparseSystem,
        kernels: GradientKernels | None = None,
    ) -> None:
        self._backend = backend
        self._nodes = nodes
        self._make_system = make_system
        self._kernels = GradientKernels(backend) if kernels is None else kernels
        self._charts = Charts(backend, factors)
        self._assemblies: dict[object, Assembly] = {}

    def derive(
        self,
        problem: Problem,
        factors: Sequence[TracedFactor],
        by_values: Mapping[str, Array],
        moving: Mapping[str, Array],
        role: str,
    ) -> Derived:
        """By the implicit function theorem.

        Args:
            problem: With the values after a solve, on the device, in float64.
            factors: Those that have instances, with their terms.
            by_values: (n, storage_dim) derivatives by the values, on the device.
            moving: By node type of which something is held (n, tangent_dim), 0 for that.
            role: `exact` or `gauss_newton`: see `GradientKernels`.

        Raises:
            InputError: A second derivative is not finite.
        """
        touched = {node.node_type.name for factor in factors for node in factor.nodes}
        nodes = [node for node in self._nodes if node.name in touched]
        values, charts = problem.values, self._charts
        if len(nodes) == 0:
            return Derived(by_values, {}, 0.0, ())
        tangents = {
            node.name: charts.pulled(node.name, values[node.name], by_values[node.name])
            for node in nodes
        }
        solved = self._assembly(factors, nodes, problem, role).solve(problem, tangents, moving)
        starts: dict[str, Array | None] = dict(by_values)
        for name, rows in solved.held.items():
            if rows is not None and name in problem.bounds:
                # what is at a bound is not where it started
                rows = rows * (self._backend.upload(problem.free[name]) == 0.0)
            starts[name] = None if rows is None else charts.pushed(name, values[name], rows)
        constants = {
            one.factor.name: own_derivatives(self._backend, one, is_partial=solved.is_partial)
            for one in solved.factors
        }
        return Derived(starts, constants, solved.damping, solved.remarks)

    def _assembly(
        self,
        factors: Sequence[TracedFactor],
        nodes: Sequence[NodeType],
        problem: Problem,
        role: str,
    ) -> Assembly:
        """Memory and analysis for a structure, kept from gradient to gradient."""
        key = _structure(self._backend, factors, problem, role)
        known = self._assemblies.pop(key, None)
        if known is None:
            self._kernels.load(factors, [role, ADJOINT])
            known = Assembly(
                self._backend, self._kernels, factors, nodes, problem, role, self._make_system
            )
        while len(self._assemblies) >= MAX_KEPT:
            del self._assemblies[next(iter(self._assemblies))]
        self._assemblies[key] = known
        return known


def _structure(
    backend: Backend, factors: Sequence[TracedFactor], problem: Problem, role: str
) -> object:
    """What memory and analysis depend on."""
    indices: list[Array] = []
    sizes: list[object] = [role, *problem.counts.items()]
    for factor in factors:
        arrays = problem.factors[factor.name]
        sizes.append((factor.name, arrays.by_instance, arrays.count))
        indices += [index for index in arrays.nodes.values() if index is not None]
        for source, constant in arrays.constants.items():
            sizes.append((source, constant.rows.shape))
            if constant.index is not None:
                indices.append(constant.index)
    on_host = [index for index in indices if isinstance(index, np.ndarray)]
    others = [index for index in indices if not isinstance(index, np.ndarray)]
    # each where it is: an index of the host goes to the device once for a structure
    sums = (host_checksum(on_host), backend.checksum(others) if len(others) > 0 else 0)
    places = tuple(isinstance(index, np.ndarray) for index in indices)
    return (*sizes, *places, *sums)
