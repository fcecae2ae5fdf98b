"""From the result of a solve and a derivative by its values to a `Gradient`.

Cost tier: kernels once for a solver, the pattern of the Hessian once for a structure, the rest once
for a gradient.
"""

from collections.abc import Mapping
from dataclasses import replace
from threading import Lock
from typing import Any

from caspar.errors import InputError
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.choice.form import Recipe
from caspar.solver.covariance.estimate import Covariance, Covariances, without_active
from caspar.solver.gradients.assembly import Assembly
from caspar.solver.gradients.charts import Charts
from caspar.solver.gradients.gradient import Given, Gradient
from caspar.solver.gradients.inputs import Cotangents, given_back, own_derivatives
from caspar.solver.gradients.kernels import ADJOINT, GradientKernels
from caspar.solver.gradients.options import chosen_hessian
from caspar.solver.input.problem import Problem, given_factors

__all__ = ["Covariance", "Covariances", "Gradient", "Gradients"]
"""Covariances too: both are what a solver derives from its values."""

MAX_KEPT = 4
"""Structures whose memory and analysis are kept."""


class Gradients:
    """Gradients of a solver's problems.

    Args:
        backend: Where the solver runs.
        recipe: Its factors and node types; its precision and linear solver do not matter.
    """

    def __init__(self, backend: Backend, recipe: Recipe) -> None:
        self._backend = backend
        self._recipe = recipe
        self._kernels = GradientKernels(backend)
        self._charts = Charts(backend, recipe.factors)
        self._assemblies: dict[object, Assembly] = {}
        self._working = Lock()

    def differentiate(self, result: Any, cotangents: Mapping[str, Any], hessian: str) -> Gradient:
        """See `Solver.gradient`."""
        given = self._given(result)
        with self._working:
            return self._differentiated(given, result, cotangents, hessian)

    def _given(self, result: Any) -> Given:
        given = result.given
        if given is None:
            raise InputError(
                "this result is a copy or comes from a pickle, which does not hold the arrays that "
                "a gradient needs: pass the result that solve returned"
            )
        names = {factor.name for factor in self._recipe.factors}
        if not isinstance(given, Given) or set(given.problem.factors) != names:
            raise InputError(
                f"this result is of another solver; this one has the factors {', '.join(names)}"
            )
        return given

    def _differentiated(
        self, given: Given, result: Any, cotangents: Mapping[str, Any], hessian: str
    ) -> Gradient:
        backend = self._backend
        problem = given.problem
        factors = [
            one
            for one in given_factors(self._recipe.factors, problem)
            if problem.factors[one.name].count > 0
        ]
        role, remarks = chosen_hessian(hessian, factors)
        touched = {node.node_type.name for factor in factors for node in factor.nodes}
        nodes = [node for node in self._recipe.nodes if node.name in touched]
        inputs = Cotangents(backend, self._recipe.nodes, problem, result.values)
        by_storage = inputs.read(cotangents)
        values = inputs.values
        tangents = {
            node.name: self._charts.pulled(node.name, values[node.name], by_storage[node.name])
            for node in nodes
        }
        moving = without_active(replace(problem, values=values), backend)
        assembly = self._assembly(factors, nodes, problem, role)
        solved = assembly.solve(problem, values, tangents, moving)
        derivatives = {
            factor.factor.name: own_derivatives(backend, factor, problem)
            for factor in solved.factors
        }
        starts = {
            node.name: self._by_start(node, problem, values, by_storage, solved.held)
            for node in self._recipe.nodes
        }
        return Gradient(
            hessian=role,
            damping=solved.damping,
            remarks=(*remarks, *solved.remarks, *_on_result(result)),
            _arrays=given_back(backend, self._recipe.nodes, given, starts, derivatives),
        )

    def _by_start(
        self,
        node: NodeType,
        problem: Problem,
        values: Mapping[str, Array],
        by_storage: Mapping[str, Array],
        held: Mapping[str, Array],
    ) -> Array | None:
        """(n, storage_dim) derivatives by what was given as the start; None: zeros."""
        name = node.name
        if name not in held:
            # no factor touches it
            return by_storage[name]
        rows = held[name]
        if name in problem.bounds:
            # what is at a bound is not where it started
            rows = rows * (self._backend.upload(problem.free[name]) == 0.0)
        if not bool(rows.any()):
            return None
        return self._charts.pushed(name, values[name], rows)

    def _assembly(
        self,
        factors: list[TracedFactor],
        nodes: list[NodeType],
        problem: Problem,
        role: str,
    ) -> Assembly:
        """Memory and analysis for a structure, kept from gradient to gradient."""
        key = _structure(self._backend, factors, problem, role)
        known = self._assemblies.pop(key, None)
        if known is None:
            self._kernels.load(factors, [role, ADJOINT])
            known = Assembly(self._backend, self._kernels, factors, nodes, problem, role)
        while len(self._assemblies) >= MAX_KEPT:
            del self._assemblies[next(iter(self._assemblies))]
        self._assemblies[key] = known
        return known


def _structure(
    backend: Backend, factors: list[TracedFactor], problem: Problem, role: str
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
    return (*sizes, backend.checksum(indices))


def _on_result(result: Any) -> tuple[str, ...]:
    if result.status.is_success:
        return ()
    return (
        f"The solve ended with {result.status.name}: gradients hold at a minimum, so these may be "
        "wrong. Solve on until it converges.",
    )
