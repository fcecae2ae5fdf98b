"""The kernels that every solver has, before compilation.

Input: traced factors, their node types and the form of the solver. Output: kernel specs. Once for
each solver. Kernels that only some linear solvers need are in `solver.linear`.
"""

from collections.abc import Sequence

from caspar.equations.factor_kernels import FACTOR_ROLES, factor_kernels
from caspar.equations.node_kernels import node_kernels
from caspar.equations.parts import value_dtype
from caspar.equations.scalar_kernels import memory_kernels, scalar_kernels
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.frontend.names import ROUNDED_VALUE, kernel_name
from caspar.frontend.precision import Types
from caspar.ir.dtype import DType
from caspar.memory.kernel import ConvertSpec, Direction, KernelSpec
from caspar.memory.layout import rows_are_blocked


def kernel_specs(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], types: Types, form: SolverForm
) -> tuple[list[KernelSpec], dict[str, int]]:
    """The kernels of a solver that compute, and each factor's stored Jacobian entries, by name."""
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


def rounded_arguments(
    factors: Sequence[TracedFactor], specs: Sequence[KernelSpec]
) -> dict[str, tuple[str, ...]]:
    """Return, for each factor, the arguments that its kernels read rounded to the storage type."""
    found = {}
    for factor in factors:
        names = {kernel_name(factor.name, role) for role in FACTOR_ROLES}
        calls = [call for spec in specs if spec.name in names for call in spec.graph.calls]
        read = {call.data[0] for call in calls if isinstance(call.data, tuple)}
        rounded = (one.name for one in factor.inputs if one.part(ROUNDED_VALUE) in read)
        found[factor.name] = tuple(rounded)
    return found


def convert_specs(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], types: Types, form: SolverForm
) -> list[ConvertSpec]:
    """The kernels of a solver that move values and masks between rows and the blocked layout."""
    inputs = [argument for factor in factors for argument in factor.inputs]
    pack, unpack = Direction.PACK, Direction.UNPACK
    made = {(pack, node.storage_dim, types.values) for node in nodes}
    made |= {(unpack, node.storage_dim, types.values) for node in nodes}
    made |= {(pack, one.storage_dim, value_dtype(one, types)) for one in inputs if one.node is None}
    if form.rounds_values(types):
        made |= {(pack, one.storage_dim, types.storage) for one in inputs if one.node is None}
    made |= {(pack, node.tangent_dim, types.storage) for node in nodes if node.name in form.masked}
    made |= {(pack, node.tangent_dim, types.values) for node in nodes if node.name in form.bounded}
    return [
        ConvertSpec(direction, dim, dtype)
        for direction, dim, dtype in sorted(made, key=_place)
        if not rows_are_blocked(dim, dtype)
    ]


def _place(made: tuple[Direction, int, DType]) -> tuple[str, int, str]:
    direction, dim, dtype = made
    return direction.value, dim, dtype.value
