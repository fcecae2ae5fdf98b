"""The Hessian of a problem, and what follows from a derivative by its values.

Input: values, and derivatives by tangents. Output: a `Solved`. Cost tier: memory and the pattern
once for a structure; kernels, sums and a factorisation once for a gradient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caspar.errors import InputError
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.covariance.sums import add_rows
from caspar.solver.gradients.kernels import GradientKernels
from caspar.solver.gradients.launches import FactorLaunches, GradientLaunches
from caspar.solver.gradients.pattern import Unknowns, pattern_of
from caspar.solver.gradients.system import HessianSystem, Solution
from caspar.solver.input.problem import Problem

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Solved:
    """What the adjoint system of a gradient leaves.

    Attributes:
        factors: Those with instances; `pull` has the derivatives.
        held: By node type (n, tangent_dim), derivatives by what stays where it starts, else 0.
        damping: See `Solution`.
        remarks: What is to be said of the Hessian.
    """

    factors: Sequence[FactorLaunches]
    held: Mapping[str, Array]
    damping: float
    remarks: tuple[str, ...]


class Assembly:
    """Systems of one structure.

    Args:
        backend: Where the arrays are.
        kernels: Compiled for the factors.
        factors: With their terms and at least one instance each.
        nodes: Node types that they touch.
        problem: Its counts and indices.
        role: That of the kernels of the Hessian.
    """

    def __init__(
        self,
        backend: Backend,
        kernels: GradientKernels,
        factors: Sequence[TracedFactor],
        nodes: Sequence[NodeType],
        problem: Problem,
        role: str,
    ) -> None:
        self._backend = backend
        self._launches = GradientLaunches(backend, kernels, factors, nodes, problem, role)
        self._unknowns = Unknowns.of(nodes, problem.counts)
        pattern = pattern_of(
            self._unknowns.size,
            [
                self._unknowns.of_instances(
                    one.factor, {name: backend.to_host(index) for name, index in one.index.items()}
                )
                for one in self._launches.factors
            ],
        )
        self._num_entries = len(pattern.indices)
        self._places = [backend.upload(places.ravel()) for places in pattern.places]
        self._doubled = [
            None if len(instance) == 0 else (backend.upload(instance), backend.upload(entry))
            for instance, entry in pattern.doubled
        ]
        self._system = HessianSystem(pattern)

    def solve(
        self,
        problem: Problem,
        values: Mapping[str, Array],
        tangents: Mapping[str, Array],
        moving: Mapping[str, Array],
    ) -> Solved:
        """Solve H z = b, and run what reads z.

        Args:
            problem: Arrays of the structure.
            values: (n, storage_dim) after the solve, on the device.
            tangents: b: (n, tangent_dim) derivatives by the tangents, on the device.
            moving: By node type of which something is held (n, tangent_dim), 0 for that.

        Raises:
            InputError: A second derivative is not finite.
        """
        backend, unknowns = self._backend, self._unknowns
        self._launches.fill(problem, values)
        self._launches.run_hessian()
        entries = self._entries()
        rhs = self._joined({name: backend.to_host(tangents[name]) for name in unknowns.shapes})
        moves = None
        if any(name in moving for name in unknowns.shapes):
            ones = {name: np.ones(shape) for name, shape in unknowns.shapes.items()}
            host = {name: np.asarray(moving[name]) for name in ones if name in moving}
            moves = self._joined({**ones, **host}) != 0.0
        solution = self._system.solve(entries, rhs, moves)
        adjoints = {
            name: backend.upload(np.ascontiguousarray(rows))
            for name, rows in unknowns.split(solution.z).items()
        }
        self._launches.run_adjoint(adjoints)
        stays = unknowns.split(solution.stays)
        held = {name: self._held(name, tangents[name], mask) for name, mask in stays.items()}
        return Solved(self._launches.factors, held, solution.damping, remarks_on(solution))

    def _entries(self) -> Floats:
        """(nnz,) of H, on the host."""
        xp = self._backend.xp
        total = xp.zeros(self._num_entries)
        for one, places, doubled in zip(
            self._launches.factors, self._places, self._doubled, strict=True
        ):
            own = one.hessian
            if doubled is not None:
                own = own.copy()
                own[doubled] *= 2.0
            total += xp.bincount(places, weights=own.ravel(), minlength=self._num_entries)
        entries = np.asarray(self._backend.to_host(total))
        if not np.isfinite(entries).all():
            raise InputError(self._not_finite())
        return entries

    def _not_finite(self) -> str:
        xp = self._backend.xp
        for one in self._launches.factors:
            bad = xp.flatnonzero(~xp.isfinite(one.hessian).all(axis=1))
            if len(bad) > 0:
                return (
                    f"factor {one.factor.name}: a second derivative of instance {int(bad[0])} is "
                    "not finite at these values, so there is no gradient. Look for a root or a "
                    "norm of zero in the residual, or pass hessian='gauss_newton'"
                )
        return "the sum of second derivatives is not finite, so there is no gradient"

    def _joined(self, by_node: Mapping[str, Floats]) -> Floats:
        return np.concatenate([by_node[name].ravel() for name in self._unknowns.shapes])

    def _held(self, name: str, tangents: Array, mask: NDArray[np.bool_]) -> Array:
        """Derivatives by the tangent of what stays where it starts: b - H z."""
        xp = self._backend.xp
        if not mask.any():
            return xp.zeros(tangents.shape)
        products = xp.zeros(tangents.shape)
        for one in self._launches.factors:
            for node in one.factor.nodes:
                if node.node_type.name == name:
                    add_rows(xp, products, one.index[node.name], one.pull(node))
        return xp.where(self._backend.upload(mask), tangents - products, 0.0)


def remarks_on(solution: Solution) -> tuple[str, ...]:
    """What is to be said of the Hessian."""
    remarks = []
    if solution.damping > 0.0:
        remarks.append(
            f"The Hessian is singular: {solution.damping:g} of its diagonal was added. Gradients "
            "mean something if the loss function does not depend on what the residuals leave free, "
            "such as where a map as a whole is; hold that, for example by a prior."
        )
    if not solution.is_definite:
        remarks.append(
            "The Hessian is not positive definite: these values are no minimum, or have not "
            "converged. Solve with tighter tolerances."
        )
    return tuple(remarks)
