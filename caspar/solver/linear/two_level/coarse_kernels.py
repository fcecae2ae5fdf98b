"""The kernels of the two-level preconditioner of the Schur complement S: a coarse space.

z = M^-1 r + P A^-1 P^T r, with the block Jacobi M, A = P^T S P, and the columns of P, each of one
cluster of reduced nodes: how the nodes answer, each by its own block, to affine displacements of
the eliminated ones (translations, rotations, scale, shear), and shifts of each component of their
tangents. Such motions of whole clusters are what block Jacobi is slow at. (Additive two-level
Schwarz: Toselli and Widlund, *Domain Decomposition Methods*, 2005, chapter 2. The columns are
ours.)

Columns are kept in groups, so that blocks of two groups fit registers. In scaled variables (see
`node_kernels`) the columns are scaled too.
"""

from collections.abc import Sequence

from caspar.equations.factor_builder import FactorBuilder, FactorForm
from caspar.equations.factor_kernels import FactorKernels, factor_kernels
from caspar.equations.linearized import linearization
from caspar.equations.node_blocks import damped_diagonal, damped_step, inverse_root
from caspar.equations.parts import NodeBuilder, NodePart, SolverPart, add_total
from caspar.equations.schur_kernels import by_rows, mixed_blocks
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.trace import TracedFactor
from caspar.frontend.precision import Types
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar, dot
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_builder import KernelBuilder
from caspar.memory.patterns import (
    AddIndexed,
    AddSharedPartials,
    ReadIndexed,
    ReadSequential,
    WriteBlockSum,
    WriteIndexed,
    WriteSequential,
    WriteUnique,
)
from caspar.solver.linear.two_level.coarse_form import CoarseForm, coarse_form, is_coarsened

LANES = 32
"""Items that share a row of the coarse inverse."""


def coarse_kernels(
    factors: Sequence[TracedFactor], types: Types, form: SolverForm, width: int
) -> list[KernelSpec]:
    """All of them.

    Args:
        factors: That `coarse_refusal` does not refuse.
        types: Floating types.
        form: Of the solver.
        width: Columns of the coarse inverse that an item of `coarse_apply` multiplies.
    """
    coarse = coarse_form(factors, form)
    made = [
        _modes(coarse, types),
        _square(coarse, types),
        _fill(coarse, types),
        _scale(),
        _entries(),
        _inverse(),
        _begin(),
        _set_aside(coarse, types),
        _restrict(coarse, types),
        _apply(types, width),
        _prolong(coarse, types),
    ]
    for factor in factors:
        own = form.factors[factor.name]
        if len(factor.nodes) == 1 and own.eliminated is not None:
            continue
        usual = factor_kernels(factor, types, own)
        made.append(_respond(factor, types, own, usual))
        if is_coarsened(factor, own):
            made.append(_coarsen(factor, types, own, usual, coarse))
    return made


def apply_name(width: int) -> str:
    """Name of the kernel that multiplies with the coarse inverse."""
    return f"coarse_apply_{width}"


# -- columns -------------------------------------------------------------------------------------


def _respond(
    factor: TracedFactor, types: Types, form: FactorForm, usual: FactorKernels
) -> KernelSpec:
    """To the reduced node C^T C, and C^T E v for all affine displacements v of the eliminated one.

    v is a unit vector, or a coordinate times one; the order is that of `_modes`. Everything in the
    coarse matrix is of one Jacobian, in float64: see `_coarsen`.
    """
    kernel = FactorBuilder(factor, "respond", form, DType.FLOAT64, types)
    blocks = linearization(kernel, usual.slots).blocks
    (reduced,) = kernel.reduced
    rows = list(zip(*blocks[reduced.name], strict=True))
    if form.eliminated is not None:
        kernel.graph.origin = "C^T E"
        columns = list(zip(*blocks[form.eliminated_argument.name], strict=True))
        shifted = [[dot(row, column) for row in rows] for column in _unscaled(kernel, columns)]
        place = kernel.read_argument(form.eliminated)
        stretched = [[entry * x for entry in mixed] for x in place for mixed in shifted]
        values = [entry for mixed in (*shifted, *stretched) for entry in mixed]
        kernel.add_to_array(reduced, "response", values, DType.FLOAT64)
    kernel.graph.origin = "C^T C"
    square = [dot(rows[i], rows[j]) for i in range(len(rows)) for j in range(i + 1)]
    kernel.add_to_array(reduced, "square", square, DType.FLOAT64)
    return kernel.build()


def _unscaled(
    kernel: FactorBuilder, columns: Sequence[Sequence[Scalar]]
) -> Sequence[Sequence[Scalar]]:
    """Columns of E by the eliminated node's own coordinates."""
    eliminated = kernel.form.eliminated_argument
    if not kernel.form.jacobian.is_stored:
        return columns
    diagonal = kernel.read_node(eliminated, NodePart.DIAGONAL)
    return [
        [entry * scale.sqrt() for entry in column]
        for column, scale in zip(columns, diagonal, strict=True)
    ]


def _modes(coarse: CoarseForm, types: Types) -> KernelSpec:
    """Columns from `response`: each node's own damped block solves for its answer.

    In groups, as the coarse matrix needs them, and by rows for `coarse_prolong`.
    """
    dim = coarse.reduced.tangent_dim
    masked = coarse.masks_reduced
    kernel = NodeBuilder(coarse.reduced, "modes", DType.FLOAT64, types, masked=masked)
    block = kernel.read("square", dim * (dim + 1) // 2, DType.FLOAT64, ReadSequential())
    response = kernel.read("response", dim * coarse.num_fields, DType.FLOAT64, ReadSequential())
    damping = kernel.scalar("damping")
    zero, one = (Scalar(kernel.graph, kernel.graph.const(value)) for value in (0.0, 1.0))
    units = [one] * dim
    if coarse.is_scaled:
        diagonal = kernel.read_part(NodePart.DIAGONAL)
        units = [entry.sqrt() for entry in diagonal]
    free = kernel.read_free()
    columns = [
        damped_step(dim, types.storage, block, response[first : first + dim], damping, free=free)
        for first in range(0, len(response), dim)
    ]
    if free is not None:
        units = [moves.where(unit, 0.0) for moves, unit in zip(free, units, strict=True)]
    columns += [[units[j] if i == j else zero for i in range(dim)] for j in range(dim)]
    columns += [[zero] * dim] * (coarse.num_columns - len(columns))
    for number in range(coarse.num_groups):
        group = columns[number * coarse.group : (number + 1) * coarse.group]
        values = [entry for column in group for entry in column]
        kernel.write(f"modes{number}", values, types.storage, WriteSequential())
    for number, row in enumerate(zip(*columns, strict=True)):
        kernel.write(f"rows{number}", row, types.storage, WriteSequential(), windowed=True)
    return kernel.build()


def _split(values: Sequence[Scalar], dim: int) -> list[Sequence[Scalar]]:
    return [values[first : first + dim] for first in range(0, len(values), dim)]


def _read_columns(
    kernel: KernelBuilder, coarse: CoarseForm, types: Types
) -> list[Sequence[Scalar]]:
    dim = coarse.reduced.tangent_dim
    return [
        column
        for number in range(coarse.num_groups)
        for column in _split(
            kernel.read(f"modes{number}", coarse.group * dim, types.storage, ReadSequential()), dim
        )
    ]


# -- the coarse matrix ---------------------------------------------------------------------------


def _square(coarse: CoarseForm, types: Types) -> KernelSpec:
    """P^T (B + damping D) P: of nodes in the order of their clusters, for two groups."""
    dim = coarse.reduced.tangent_dim
    kernel = NodeBuilder(coarse.reduced, "square", DType.FLOAT64, types)
    other = ReadIndexed("row_modes")
    size = coarse.group * dim
    rows = _split(kernel.read("row_modes", size, types.storage, ReadIndexed()), dim)
    columns = _split(kernel.read("column_modes", size, types.storage, other), dim)
    packed = kernel.read("square", dim * (dim + 1) // 2, DType.FLOAT64, other)
    damping = kernel.scalar("damping")
    damped = [damping] * dim
    if not coarse.is_scaled:
        diagonal = kernel.read_part(NodePart.DIAGONAL, other)
        damped = [damping * entry for entry in diagonal]
    block = [
        [packed[max(i, j) * (max(i, j) + 1) // 2 + min(i, j)] for j in range(dim)]
        for i in range(dim)
    ]
    for i in range(dim):
        block[i][i] = block[i][i] + damped[i]
    moved = [[dot(line, column) for line in block] for column in columns]
    values = [dot(row, product) for row in rows for product in moved]
    kernel.write("coarse_block", values, DType.FLOAT64, coarse.sums.block_access)
    return kernel.build()


def _coarsen(
    factor: TracedFactor,
    types: Types,
    form: FactorForm,
    usual: FactorKernels,
    coarse: CoarseForm,
) -> KernelSpec:
    """P^T C^T E W^T, summed over the items of an eliminated node and a cluster: an entry.

    In float64, and V from the very Jacobian of this kernel: with B and V from float32 Jacobians the
    coarse matrix of Ladybug-49 is indefinite in every iteration.
    """
    kernel = FactorBuilder(factor, "coarsen", form, DType.FLOAT64, types)
    eliminated = form.eliminated_argument
    dim = eliminated.tangent_dim
    blocks = linearization(kernel, usual.slots).blocks
    if form.is_fused:
        own = list(zip(*blocks[eliminated.name], strict=True))
        kernel.graph.origin = "V"
        square = kernel.sum_over_node(
            [dot(own[i], own[j]) for i in range(dim) for j in range(i + 1)]
        )
    else:
        square = kernel.read_node(eliminated, NodePart.BLOCK)
    damping = kernel.scalar("damping")
    node, scaled = eliminated.node_type, form.jacobian.is_stored
    storage, free = types.storage, kernel.read_free()
    diagonal = damped_diagonal(kernel, node, square, damping, storage, free, scaled=scaled)
    root = inverse_root(dim, storage, square, damping, diagonal, free)
    packed = [root[row, column] for row in range(dim) for column in range(row + 1)]
    if form.is_fused:
        packed = kernel.spread_over_node(packed)
    triangle = by_rows(packed, dim)
    ((argument, mixed),) = mixed_blocks(kernel, blocks, triangle)
    kernel.graph.origin = "P^T C^T E W^T"
    by_column = list(zip(*mixed, strict=True))
    for number in range(coarse.num_groups):
        size = coarse.group * argument.tangent_dim
        group = kernel.read_array(argument, f"modes{number}", size, types.storage)
        values = [
            dot(mode, entries)
            for mode in _split(group, argument.tangent_dim)
            for entries in by_column
        ]
        kernel.write(f"entries{number}", values, types.storage, AddSharedPartials())
    return kernel.build()


def _fill(coarse: CoarseForm, types: Types) -> KernelSpec:
    """-Z_a Z_b^T for each pair of entries of an eliminated node, for two groups."""
    dim = coarse.eliminated.tangent_dim
    kernel = KernelBuilder("coarse_fill", DType.FLOAT64)
    rows, columns = (
        _split(kernel.read(name, coarse.group * dim, types.storage, ReadIndexed()), dim)
        for name in ("row_entries", "column_entries")
    )
    values = [-dot(row, column) for row in rows for column in columns]
    kernel.write("coarse_block", values, DType.FLOAT64, coarse.sums.block_access)
    return kernel.build()


def _scale() -> KernelSpec:
    """D^-1/2 of P^T (B + damping D) P, 0 for columns that are zero."""
    kernel = KernelBuilder("coarse_scale", DType.FLOAT64)
    (square,) = kernel.read("blocks", 1, DType.FLOAT64, ReadIndexed())
    found = (0.0 < square).where(square.sqrt().reciprocal(), 0.0)
    kernel.write("scale", [found], DType.FLOAT64, WriteSequential())
    return kernel.build()


def _scaled(kernel: KernelBuilder, name: str) -> Scalar:
    """A number of an array, and the scales of its row and column, each by an index."""
    entry, row, column = (
        kernel.read(one, 1, DType.FLOAT64, ReadIndexed())[0]
        for one in (name, "row_scale", "column_scale")
    )
    return entry * row * column


def _entries() -> KernelSpec:
    """Entries of the lower triangle, scaled, to their places in a cleared matrix."""
    kernel = KernelBuilder("coarse_entries", DType.FLOAT64)
    (shift,) = kernel.read("shift", 1, DType.FLOAT64, ReadSequential())
    entry = _scaled(kernel, "blocks") + shift
    kernel.write("matrix", [entry], DType.FLOAT64, WriteIndexed())
    return kernel.build()


def _inverse() -> KernelSpec:
    """The inverse as `coarse_apply` reads it; zero if the matrix had none."""
    kernel = KernelBuilder("coarse_inverse", DType.FLOAT64)
    entry = (kernel.scalar("failed") < 0.5).where(_scaled(kernel, "inverse"), 0.0)
    kernel.write("matrix", [entry], DType.FLOAT64, WriteSequential())
    return kernel.build()


# -- conjugate gradients -------------------------------------------------------------------------


def _begin() -> KernelSpec:
    """Before a first direction that is made later: nothing is done, and none was before it."""
    kernel = KernelBuilder("coarse_begin", DType.FLOAT64)
    zero = Scalar(kernel.graph, kernel.graph.const(0.0))
    for written in ("done", "beta"):
        kernel.write(written, [zero], DType.FLOAT64, WriteUnique())
    return kernel.build()


def _set_aside(coarse: CoarseForm, types: Types) -> KernelSpec:
    """Block Jacobi's first direction is but a part of z: nothing came before the first one."""
    kernel = NodeBuilder(coarse.reduced, "set_aside", types.storage, types)
    local = kernel.read_part(NodePart.DIRECTION)
    zero = Scalar(kernel.graph, kernel.graph.const(0.0))
    kernel.write_part(NodePart.PRECONDITIONED, local)
    kernel.write_part(NodePart.DIRECTION, [zero] * len(local))
    return kernel.build()


def _restrict(coarse: CoarseForm, types: Types) -> KernelSpec:
    """P^T r, summed over the nodes of a cluster."""
    kernel = NodeBuilder(coarse.reduced, "restrict", types.storage, types)
    kernel.guard("done")
    residual = kernel.read_part(NodePart.RESIDUAL)
    values = [dot(column, residual) for column in _read_columns(kernel, coarse, types)]
    kernel.write("restricted", values, DType.FLOAT64, AddSharedPartials())
    return kernel.build()


def _apply(types: Types, width: int) -> KernelSpec:
    """y = A^-1 P^T r, `LANES` items for each row; sums `descent` = r.P y."""
    kernel = KernelBuilder(apply_name(width), DType.FLOAT64)
    kernel.guard("done")
    matrix = kernel.read("matrix", width, DType.FLOAT64, ReadSequential())
    part = kernel.read("restricted", width, DType.FLOAT64, ReadIndexed())
    (own,) = kernel.read("restricted_row", 1, DType.FLOAT64, ReadIndexed())
    value = dot(matrix, part)
    kernel.write("correction", [value], DType.FLOAT64, WriteBlockSum(LANES))
    add_total(kernel, SolverPart.DESCENTS, [own * value], types)
    return kernel.build()


def _prolong(coarse: CoarseForm, types: Types) -> KernelSpec:
    """z += P y, an item for each scalar of z.

    One for each node needs 180 registers, in a loop whose other kernels need 64.
    """
    kernel = KernelBuilder("coarse_prolong", types.storage)
    kernel.guard("done")
    row = kernel.read("rows", coarse.num_columns, types.storage, ReadSequential())
    weights = kernel.read("correction", coarse.num_columns, DType.FLOAT64, ReadIndexed())
    part = NodePart.PRECONDITIONED
    kernel.write(part.text, [dot(row, weights)], part.dtype(types), AddIndexed())
    return kernel.build()
