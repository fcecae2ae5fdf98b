"""The kernels that every solver has, before compilation.

Input: traced factors, their node types and the form of the solver. Output: kernel specs. Once for
each solver. Kernels that only some linear solvers need are in `solver.linear`.
"""

from collections.abc import Sequence

from caspar.equations.factor_kernels import factor_kernels
from caspar.equations.node_kernels import node_kernels
from caspar.equations.scalar_kernels import memory_kernels, scalar_kernels
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.frontend.precision import Types
from caspar.memory.conversion import ConvertSpec, Direction
from caspar.memory.kernel import KernelSpec
from caspar.memory.layout import rows_are_blocked


def kernel_specs(
    factors: Sequence[TracedFactor],
    nodes: Sequence[NodeType],
    types: Types,
    form: SolverForm,
) -> tuple[list[KernelSpec], dict[str, int]]:
    """The kernels of a solver that compute, before compilation.

    Returns:
        The kernels, and by the factor's name each factor's stored Jacobian entries.
    """
    specs: list[KernelSpec] = []
    jacobian_dims = {}
    for factor in factors:
        kernels = factor_kernels(factor, types, form.factors[factor.name])
        specs += kernels.kernels.values()
        jacobian_dims[factor.name] = kernels.jacobian_dim
    for node in nodes:
        specs += node_kernels(node, types, form)
    specs += [*scalar_kernels(types), *memory_kernels()]
    return specs, jacobian_dims


def convert_specs(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], types: Types, form: SolverForm
) -> list[ConvertSpec]:
    """The kernels of a solver that move values and masks between rows and the blocked layout."""
    packed = {argument.storage_dim for factor in factors for argument in factor.inputs}
    packed |= {node.tangent_dim for node in nodes if node.name in form.masked}
    unpacked = {node.storage_dim for node in nodes}
    return [
        ConvertSpec(direction, dim, types.storage)
        for direction, dims in ((Direction.PACK, packed), (Direction.UNPACK, unpacked))
        for dim in sorted(dims)
        if not rows_are_blocked(dim, types.storage)
    ]
