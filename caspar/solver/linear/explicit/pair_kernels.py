"""The kernels of a factor that add blocks of pairs of nodes to a matrix; see `explicit_kernels`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caspar.equations.factor_builder import FactorBuilder, FactorForm, SharedSums
from caspar.equations.factor_kernels import exact_role, factor_kernels
from caspar.equations.linearized import add_block, add_linearized, linearization
from caspar.equations.node_blocks import damped_diagonal, inverse_root
from caspar.equations.parts import NodePart
from caspar.equations.schur_kernels import mixed_blocks
from caspar.frontend.factors.block_parts import block_places, has_whole_block
from caspar.frontend.factors.jacobian import Blocks, JacobianSlots, load_jacobian
from caspar.frontend.factors.trace import Argument, NodeType, TracedFactor
from caspar.frontend.names import part_name
from caspar.frontend.precision import Types
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar, dot
from caspar.memory.kernel import KernelSpec
from caspar.memory.patterns import ReadSequential, WriteSequential

ROWS = "rows"
"""End of the names of the kernels that write Jacobians and residuals, for a QR decomposition."""


@dataclass(frozen=True)
class ArgumentPair:
    """Two node arguments of a factor that the system couples.

    Attributes:
        row: Its nodes are the rows of the block; of the type that comes later.
        column: Its nodes are the columns. The same argument: the entries between the parts of its
            block.
    """

    row: Argument
    column: Argument

    @property
    def role(self) -> str:
        """End of the name of the pair's kernel."""
        return part_name(part_name("pair", self.row.name), self.column.name)

    @property
    def is_of_one_type(self) -> bool:
        """Return whether both have one type, so that node numbers tell which is the row."""
        return self.row.node_type.name == self.column.node_type.name

    @property
    def is_of_one_argument(self) -> bool:
        """Return whether both are one argument, so that the block is on the diagonal."""
        return self.row.name == self.column.name


def argument_pairs(
    factor: TracedFactor, form: FactorForm, ranks: Mapping[str, int]
) -> list[ArgumentPair]:
    """The pairs of reduced node arguments; `ranks` are the places of the node types by name.

    An argument with a block in parts is also paired with itself.
    """
    reduced = [node for node in factor.nodes if node is not form.eliminated]
    pairs = [ArgumentPair(one, one) for one in reduced if not has_whole_block(one.node_type)]
    for place, second in enumerate(reduced):
        for first in reduced[:place]:
            in_order = ranks[first.node_type.name] >= ranks[second.node_type.name]
            pairs.append(ArgumentPair(first, second) if in_order else ArgumentPair(second, first))
    return pairs


def pair_kernels(
    factor: TracedFactor, types: Types, form: FactorForm, ranks: Mapping[str, int]
) -> list[KernelSpec]:
    """`pair__*`: the blocks of two arguments. `mix`: Z of each item, where a node is eliminated.

    Where Jacobians are recomputed, it is in float64, and a `linearize` of the same takes the place
    of the other: with blocks of float32 Jacobians beside Z of float64 ones the matrix is indefinite
    wherever an eliminated node is nearly undetermined.
    """
    slots = factor_kernels(factor, types, form).slots
    is_exact = slots is None and types.storage is not DType.FLOAT64
    pairs = argument_pairs(factor, form, ranks)
    made = [_pair(factor, types, form, slots, pair, exact=is_exact) for pair in pairs]
    if is_exact:
        made.append(_linearize(factor, types, form))
    if form.eliminated is not None and len(factor.nodes) > 1:
        made.append(_mix(factor, types, form, slots))
    return made


def _pair(
    factor: TracedFactor,
    types: Types,
    form: FactorForm,
    slots: JacobianSlots | None,
    pair: ArgumentPair,
    *,
    exact: bool = False,
) -> KernelSpec:
    """A^T B, by items; of one type `pair_order` says (1, 0), (0, 1): transposed, (1, 1): both."""
    role, dtype = (exact_role(pair.role), DType.FLOAT64) if exact else (pair.role, types.storage)
    kernel = FactorBuilder(factor, role, form, dtype, types)
    blocks = linearization(kernel, slots).blocks
    kernel.graph.origin = f"block of {pair.row.name} and {pair.column.name}"
    rows = list(zip(*blocks[pair.row.name], strict=True))
    columns = list(zip(*blocks[pair.column.name], strict=True))
    if pair.is_of_one_argument:
        block = _between_parts(kernel, pair.row.node_type, columns)
    else:
        block = [[dot(row, column) for column in columns] for row in rows]
    if pair.is_of_one_type and not pair.is_of_one_argument:
        ahead, back = kernel.read("pair_order", 2, types.storage, ReadSequential())
        size = range(len(block))
        block = [[ahead * block[i][j] + back * block[j][i] for j in size] for i in size]
    values = [entry for row in block for entry in row]
    # partial sums have to be written where they are zero too
    skips_zeros = form.sums is SharedSums.ATOMIC
    access = form.sums.block_access
    kernel.write("pair_block", values, DType.FLOAT64, access, skips_zeros=skips_zeros)
    return kernel.build()


def _between_parts(
    kernel: FactorBuilder, node: NodeType, columns: Sequence[Sequence[Scalar]]
) -> list[list[Scalar]]:
    """The entries of J^T J that a node's stored blocks do not hold.

    Zero above the diagonal: the matrix takes the lower triangle of a block on its diagonal.
    """
    zero = Scalar(kernel.graph, kernel.graph.const(0.0))
    stored = set(block_places(node))
    return [
        [
            dot(row, column) if j < i and (i, j) not in stored else zero
            for j, column in enumerate(columns)
        ]
        for i, row in enumerate(columns)
    ]


def _linearize(factor: TracedFactor, types: Types, form: FactorForm) -> KernelSpec:
    """Return the kernel that adds what the usual one adds."""
    kernel = FactorBuilder(factor, exact_role("linearize"), form, DType.FLOAT64, types)
    add_linearized(kernel)
    return kernel.build()


def _mix(
    factor: TracedFactor, types: Types, form: FactorForm, slots: JacobianSlots | None
) -> KernelSpec:
    """Z, -Z W h to the gradient and C^T C to the block, in float64.

    W is made again from V: rounded to float32, as `preconditioner` is, it leaves errors of 1e-4 in
    Z where V is nearly singular, and the matrix is indefinite.
    """
    kernel = FactorBuilder(factor, "mix", form, DType.FLOAT64, types)
    eliminated = form.eliminated_argument
    dim = eliminated.tangent_dim
    blocks = linearization(kernel, slots).blocks
    square = kernel.read_node(eliminated, NodePart.BLOCK)
    gradient = kernel.read_node(eliminated, NodePart.GRADIENT)
    damping = kernel.scalar("damping")
    node, is_scaled = eliminated.node_type, form.jacobian.is_stored
    storage, free = types.storage, kernel.read_free()
    diagonal = damped_diagonal(kernel, node, square, damping, storage, free, scaled=is_scaled)
    root = inverse_root(dim, storage, square, damping, diagonal, free)
    triangle = [[root[row, column] for column in range(row + 1)] for row in range(dim)]
    scaled = [dot(row, gradient[: len(row)]) for row in triangle]
    for argument, mixed in mixed_blocks(kernel, blocks, triangle):
        slope = [-dot(entries, scaled) for entries in mixed]
        kernel.add_node(argument, NodePart.GRADIENT, slope)
        add_block(kernel, argument, list(zip(*blocks[argument.name], strict=True)))
        values = [entry for row in mixed for entry in row]
        name = argument.part("mixed")
        kernel.write(name, values, types.storage, WriteSequential(), windowed=True)
    return kernel.build()


def rows_kernel(factor: TracedFactor, types: Types, form: FactorForm) -> KernelSpec:
    """`rows`: the Jacobian by each node argument, row by row, and then the residual.

    Weight and loss have corrected both, so that J^T J and J^T r are those of the other solvers.
    """
    slots = factor_kernels(factor, types, form).slots
    kernel = FactorBuilder(factor, ROWS, form, DType.FLOAT64, types)
    evaluation = kernel.evaluate(DType.FLOAT64)
    residual = list(evaluation.residual)
    correction = evaluation.correction(residual)
    if correction is not None:
        residual = correction.corrected_residual()
    blocks: Blocks
    if slots is not None:
        blocks = load_jacobian(kernel, slots)
    else:
        blocks = evaluation.jacobian(factor.nodes)
        if correction is not None:
            blocks = correction.times_blocks(correction.selected(blocks))
    entries = [x for node in factor.nodes for row in blocks[node.name] for x in row]
    kernel.write(ROWS, [*entries, *residual], DType.FLOAT64, WriteSequential(rows=True))
    return kernel.build()
