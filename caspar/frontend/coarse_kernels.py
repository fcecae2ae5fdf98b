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
from dataclasses import dataclass

from caspar.frontend.factor_builder import FactorBuilder, FactorForm, SharedSums, linearization
from caspar.frontend.jacobian import JacobianSlots
from caspar.frontend.node_kernels import damped_step, inverse_root
from caspar.frontend.precision import Types
from caspar.frontend.schur_kernels import mixed_blocks
from caspar.frontend.solver_form import SolverForm
from caspar.frontend.trace import Argument, ArgumentKind, NodeType, TracedFactor
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar, dot, total
from caspar.memory.access import WriteAccessor
from caspar.memory.accessors.runs import AddRuns
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_builder import KernelBuilder
from caspar.memory.patterns import (
    AddSharedPartials,
    AddSumPartials,
    ReadIndexed,
    ReadSequential,
    WriteBlockSum,
    WriteIndexed,
    WriteSequential,
    WriteUnique,
)

MAX_GROUP = 8
"""Columns of a group at most."""

LANES = 32
"""Items that share a row of the coarse inverse."""

MAX_ELIMINATED_DIM = 4
"""Of larger ones there are too many affine displacements."""

_SMALLEST_SQUARE = 1e-30


@dataclass(frozen=True)
class CoarseForm:
    """Columns of a cluster.

    Attributes:
        eliminated: The eliminated type.
        reduced: The reduced type.
        sums: How sums over shared nodes are taken.
        is_scaled: Whether linear systems are solved in scaled variables.
    """

    eliminated: NodeType
    reduced: NodeType
    sums: SharedSums
    is_scaled: bool

    @property
    def num_fields(self) -> int:
        """Affine displacements."""
        dim = self.eliminated.tangent_dim
        return dim + dim * dim

    @property
    def num_groups(self) -> int:
        """Groups of columns."""
        return -(-(self.num_fields + self.reduced.tangent_dim) // MAX_GROUP)

    @property
    def group(self) -> int:
        """Columns of a group; the last ones of the last group may be zero."""
        return -(-(self.num_fields + self.reduced.tangent_dim) // self.num_groups)

    @property
    def num_columns(self) -> int:
        """Columns of a cluster."""
        return self.group * self.num_groups


def coarse_refusal(factors: Sequence[TracedFactor], form: SolverForm) -> str:
    """Why there is no coarse space for these factors; empty where there is one."""
    nodes = {node.name: node for factor in factors for node in _types(factor)}
    reduced = [name for name in nodes if name not in form.eliminated]
    if len(form.eliminated) != 1 or len(reduced) != 1:
        return (
            f"{len(form.eliminated)} node types are eliminated and {len(reduced)} are not; it "
            "needs one of each"
        )
    node = nodes[form.eliminated[0]]
    if node.storage_dim != node.tangent_dim or node.tangent_dim > MAX_ELIMINATED_DIM:
        return (
            f"the eliminated node type {node.name} has {node.storage_dim} scalars and a tangent of "
            f"{node.tangent_dim}; it needs vectors of at most {MAX_ELIMINATED_DIM}"
        )
    for factor in factors:
        kept = [one for one in factor.nodes if one.node is not None and one.node.name in reduced]
        if len(kept) > 1 or any(one.kind is not ArgumentKind.NODE_SHARED for one in kept):
            return (
                f"factor {factor.name} does not touch one {reduced[0]} by an index; it needs "
                "factors that do"
            )
    return ""


def _types(factor: TracedFactor) -> list[NodeType]:
    return [argument.node for argument in factor.nodes if argument.node is not None]


def coarse_form(factors: Sequence[TracedFactor], form: SolverForm) -> CoarseForm:
    """The coarse space of factors that `coarse_refusal` does not refuse."""
    nodes = {node.name: node for factor in factors for node in _types(factor)}
    (reduced,) = (node for name, node in nodes.items() if name not in form.eliminated)
    sums = next(iter(form.factors.values())).sums
    return CoarseForm(nodes[form.eliminated[0]], reduced, sums, form.is_scaled)


def is_coarsened(factor: TracedFactor, form: FactorForm) -> bool:
    """Whether a factor couples reduced nodes through eliminated ones."""
    return form.eliminated is not None and len(factor.nodes) > 1


def coarse_factor_kernels(
    factor: TracedFactor,
    types: Types,
    form: FactorForm,
    slots: JacobianSlots | None,
    coarse: CoarseForm,
) -> list[KernelSpec]:
    """`respond` and `coarsen` of a factor with an eliminated and a reduced node."""
    if not is_coarsened(factor, form):
        return []
    return [
        _respond(factor, types, form, slots),
        _coarsen(factor, types, form, slots, coarse),
    ]


def coarse_kernels(coarse: CoarseForm, types: Types, width: int) -> list[KernelSpec]:
    """All others.

    Args:
        coarse: The columns.
        types: Floating types.
        width: Columns of the coarse inverse that an item of `coarse_apply` multiplies.
    """
    return [
        _modes(coarse, types),
        _square(coarse, types),
        _fill(coarse, types),
        _scale(),
        _entries(),
        _inverse(),
        _begin(),
        _restrict(coarse, types),
        _apply(types, width),
        _prolong(coarse, types),
    ]


def apply_name(width: int) -> str:
    """Name of the kernel that multiplies with the coarse inverse."""
    return f"coarse_apply_{width}"


def add_blocks(sums: SharedSums) -> WriteAccessor:
    """How blocks of two groups are summed."""
    return AddSharedPartials() if sums is SharedSums.ORDERED else AddRuns()


def _eliminated(form: FactorForm) -> Argument:
    assert form.eliminated is not None
    return form.eliminated


def _dim(argument: Argument) -> int:
    assert argument.node is not None
    return argument.node.tangent_dim


# -- columns -------------------------------------------------------------------------------------


def _respond(
    factor: TracedFactor, types: Types, form: FactorForm, slots: JacobianSlots | None
) -> KernelSpec:
    """C^T E v for every affine displacement v of the eliminated node, to the reduced node.

    v is a unit vector, or a coordinate times one; the order is that of `_modes`.
    """
    kernel = FactorBuilder(factor, "respond", form, types.storage, types)
    eliminated = _eliminated(form)
    blocks = linearization(kernel, slots).blocks
    place = kernel.read_argument(eliminated)
    kernel.graph.origin = "C^T E"
    columns = [list(column) for column in zip(*blocks[eliminated.name], strict=True)]
    if form.jacobian.is_stored:
        dim = _dim(eliminated)
        diagonal = kernel.read_node(eliminated, "diagonal", dim, types.storage)
        scales = [entry.sqrt() for entry in diagonal]
        columns = [[e * s for e in column] for column, s in zip(columns, scales, strict=True)]
    (reduced,) = kernel.reduced
    rows = list(zip(*blocks[reduced.name], strict=True))
    shifted = [[dot(row, column) for row in rows] for column in columns]
    stretched = [[entry * x for entry in mixed] for x in place for mixed in shifted]
    values = [entry for mixed in (*shifted, *stretched) for entry in mixed]
    kernel.add_node(reduced, "response", values, types.sums)
    return kernel.build()


def _modes(coarse: CoarseForm, types: Types) -> KernelSpec:
    """Columns from `response`: each node's own damped block solves for its answer."""
    dim = coarse.reduced.tangent_dim
    kernel = KernelBuilder(f"{coarse.reduced.name}_modes", types.sums)
    block = kernel.read("block", dim * (dim + 1) // 2, types.sums, ReadSequential())
    response = kernel.read("response", dim * coarse.num_fields, types.sums, ReadSequential())
    damping = kernel.scalar("damping")
    zero, one = (Scalar(kernel.graph, kernel.graph.const(value)) for value in (0.0, 1.0))
    units = [one] * dim
    if coarse.is_scaled:
        diagonal = kernel.read("diagonal", dim, types.storage, ReadSequential())
        units = [entry.sqrt() for entry in diagonal]
    columns = [
        damped_step(dim, types.storage, block, response[first : first + dim], damping)
        for first in range(0, len(response), dim)
    ]
    columns += [[units[j] if i == j else zero for i in range(dim)] for j in range(dim)]
    columns += [[zero] * dim] * (coarse.num_columns - len(columns))
    for number in range(coarse.num_groups):
        group = columns[number * coarse.group : (number + 1) * coarse.group]
        values = [entry for column in group for entry in column]
        kernel.write(f"modes{number}", values, types.storage, WriteSequential())
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
    kernel = KernelBuilder(f"{coarse.reduced.name}_square", DType.FLOAT64)
    other = ReadIndexed("row_modes")
    size = coarse.group * dim
    rows = _split(kernel.read("row_modes", size, types.storage, ReadIndexed()), dim)
    columns = _split(kernel.read("column_modes", size, types.storage, other), dim)
    packed = kernel.read("block", dim * (dim + 1) // 2, types.sums, other)
    damping = kernel.scalar("damping")
    damped = [damping] * dim
    if not coarse.is_scaled:
        diagonal = kernel.read("diagonal", dim, types.storage, other)
        damped = [damping * entry for entry in diagonal]
    block = [
        [packed[max(i, j) * (max(i, j) + 1) // 2 + min(i, j)] for j in range(dim)]
        for i in range(dim)
    ]
    for i in range(dim):
        block[i][i] = block[i][i] + damped[i]
    moved = [[dot(line, column) for line in block] for column in columns]
    values = [dot(row, product) for row in rows for product in moved]
    kernel.write("coarse_block", values, DType.FLOAT64, add_blocks(coarse.sums))
    return kernel.build()


def _coarsen(
    factor: TracedFactor,
    types: Types,
    form: FactorForm,
    slots: JacobianSlots | None,
    coarse: CoarseForm,
) -> KernelSpec:
    """P^T C^T E W^T, summed over the items of an eliminated node and a cluster: an entry.

    In float64, W from V, for the reason that `explicit_kernels` gives.
    """
    kernel = FactorBuilder(factor, "coarsen", form, DType.FLOAT64, types)
    eliminated = _eliminated(form)
    dim = _dim(eliminated)
    blocks = linearization(kernel, slots).blocks
    square = kernel.read_node(eliminated, "block", dim * (dim + 1) // 2, types.sums)
    root = inverse_root(dim, types.storage, square, kernel.scalar("damping"))
    triangle = [[root[row, column] for column in range(row + 1)] for row in range(dim)]
    ((argument, mixed),) = mixed_blocks(kernel, blocks, triangle)
    kernel.graph.origin = "P^T C^T E W^T"
    by_column = list(zip(*mixed, strict=True))
    for number in range(coarse.num_groups):
        size = coarse.group * _dim(argument)
        group = kernel.read_node(argument, f"modes{number}", size, types.storage)
        values = [
            dot(mode, entries) for mode in _split(group, _dim(argument)) for entries in by_column
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
    kernel.write("coarse_block", values, DType.FLOAT64, add_blocks(coarse.sums))
    return kernel.build()


def _scale() -> KernelSpec:
    """D^-1/2 of P^T (B + damping D) P, 0 for columns that are zero."""
    kernel = KernelBuilder("coarse_scale", DType.FLOAT64)
    (square,) = kernel.read("blocks", 1, DType.FLOAT64, ReadIndexed())
    scale = square.max(_SMALLEST_SQUARE).sqrt().reciprocal()
    found = (square > _SMALLEST_SQUARE).where(scale, 0.0)
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
    """Before the first direction: nothing is done yet, and no direction was before it."""
    kernel = KernelBuilder("coarse_begin", DType.FLOAT64)
    zero = Scalar(kernel.graph, kernel.graph.const(0.0))
    for name in ("done", "beta"):
        kernel.write(name, [zero], DType.FLOAT64, WriteUnique())
    return kernel.build()


def _restrict(coarse: CoarseForm, types: Types) -> KernelSpec:
    """P^T r, summed over the nodes of a cluster."""
    dim = coarse.reduced.tangent_dim
    kernel = KernelBuilder(f"{coarse.reduced.name}_restrict", types.storage)
    kernel.guard("done")
    residual = kernel.read("residual", dim, types.storage, ReadSequential())
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
    kernel.write("descent", [own * value], types.sums, AddSumPartials())
    return kernel.build()


def _prolong(coarse: CoarseForm, types: Types) -> KernelSpec:
    """z += P y."""
    dim = coarse.reduced.tangent_dim
    kernel = KernelBuilder(f"{coarse.reduced.name}_prolong", types.storage)
    kernel.guard("done")
    columns = _read_columns(kernel, coarse, types)
    weights = kernel.read("correction", len(columns), DType.FLOAT64, ReadIndexed())
    local = kernel.read("preconditioned", dim, types.storage, ReadSequential())
    moved = [
        total([local[i], *(w * column[i] for w, column in zip(weights, columns, strict=True))])
        for i in range(dim)
    ]
    kernel.write("preconditioned", moved, types.storage, WriteSequential())
    return kernel.build()
