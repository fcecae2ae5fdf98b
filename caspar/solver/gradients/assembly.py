"""The Hessian of a problem, and what follows from a derivative by its values.

Input: values, and derivatives by tangents. Output: a `Solved`. Cost tier: memory and the analysis
once for a structure; kernels, sums and a factorisation once for a gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from caspar.errors import InputError
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.gradients.kernels import GradientKernels
from caspar.solver.gradients.launches import FactorLaunches, GradientLaunches
from caspar.solver.gradients.pattern import Integers, Unknowns
from caspar.solver.gradients.system import HessianSystem, SparseSystem
from caspar.solver.input.problem import Problem
from caspar.solver.normal.sums import add_rows

MakeSystem = Callable[[Backend, Unknowns, Sequence[Integers]], HessianSystem]
"""From the backend, the unknowns, and those of each factor's instances."""


@dataclass(frozen=True)
class Solved:
    """What the adjoint system of a gradient leaves.

    Attributes:
        factors: Those with instances; `pull` has the derivatives.
        held: By node type (n, tangent_dim), derivatives by what stays where it starts, else 0;
            None: all of it moves.
        damping: See `Solution`.
        remarks: What is to be said of the Hessian.
        is_partial: Whether numbers that are not finite count as 0.
    """

    factors: Sequence[FactorLaunches]
    held: Mapping[str, Array | None]
    damping: float
    remarks: tuple[str, ...]
    is_partial: bool


class Assembly:
    """Systems of one structure.

    Args:
        backend: Where the arrays are.
        kernels: Compiled for the factors.
        factors: With their terms and at least one instance each.
        nodes: Node types that they touch.
        problem: Its counts and indices.
        role: That of the kernels of the Hessian.
        make_system: Makes what solves.
    """

    def __init__(
        self,
        backend: Backend,
        kernels: GradientKernels,
        factors: Sequence[TracedFactor],
        nodes: Sequence[NodeType],
        problem: Problem,
        role: str,
        make_system: MakeSystem = SparseSystem,
    ) -> None:
        self._backend = backend
        self._launches = GradientLaunches(backend, kernels, factors, nodes, problem, role)
        unknowns = Unknowns.of(nodes, problem.counts)
        instances = [
            unknowns.of_instances(
                one.factor, {name: backend.to_host(index) for name, index in one.index.items()}
            )
            for one in self._launches.factors
        ]
        self._system = make_system(backend, unknowns, instances)

    def solve(
        self,
        problem: Problem,
        tangents: Mapping[str, Array],
        moving: Mapping[str, Array],
    ) -> Solved:
        """Solve H z = b, and run what reads z.

        Args:
            problem: Arrays of the structure, with values on the device.
            tangents: b: (n, tangent_dim) derivatives by the tangents, on the device.
            moving: By node type of which something is held (n, tangent_dim), 0 for that.

        Raises:
            InputError: A second derivative is not finite.
        """
        launches = self._launches
        launches.fill(problem)
        launches.run_hessian()
        solution = self._system.solve([one.hessian for one in launches.factors], tangents, moving)
        if solution is None:
            raise InputError(self._not_finite())
        launches.run_adjoint(solution.z)
        held = {
            name: self._held(name, tangents[name], mask, is_partial=solution.is_partial)
            for name, mask in solution.stays.items()
        }
        return Solved(
            launches.factors, held, solution.damping, solution.remarks, solution.is_partial
        )

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
        return "a sum of second derivatives is not finite, so there is no gradient"

    def _held(self, name: str, tangents: Array, mask: Array, *, is_partial: bool) -> Array | None:
        """Derivatives by the tangent of what stays where it starts: b - H z."""
        xp = self._backend.xp
        if not bool(mask.any()):
            return None
        products = xp.zeros(tangents.shape)
        for one in self._launches.factors:
            for node in one.factor.nodes:
                if node.node_type.name == name:
                    add_rows(xp, products, one.index[node.name], one.pull(node))
        if is_partial:
            mask = mask & xp.isfinite(products)
        return xp.where(mask, tangents - products, 0.0)
