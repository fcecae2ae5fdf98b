"""The kernels that form the system as a matrix: blocks of pairs of nodes, and its entries.

With `schur_kernels`' names the system is B - sum C^T E V^-1 E^T C over the items of each eliminated
node, damped. Diagonal blocks of B are in `block`, but those of factors with an eliminated node,
which `mix` adds. What is added besides: blocks of factors that touch two nodes; what `block` does
not hold of a large node (see `block_parts`); and for each pair of items of an eliminated node
-Z_a Z_b^T with Z = C^T E W^T, V^-1 = W^T W. Blocks, matrix and solution are float64 whatever the
precision.

`merge_kernels` are those of items that are summed before their pairs are walked; see `structure`.
They are compiled for structures that have such items only.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from caspar.equations.factor_builder import (
    FactorBuilder,
    FactorForm,
    SharedSums,
    add_block,
    add_linearized,
    linearization,
)
from caspar.equations.factor_kernels import exact_role, factor_kernels
from caspar.equations.node_blocks import ROUNDING, damped_diagonal, inverse_root
from caspar.equations.node_kernels import damping_diagonal
from caspar.equations.parts import NodeBuilder, NodePart, SolverPart, add_total, read_total
from caspar.equations.scalar_kernels import LARGEST, LinearOutcome
from caspar.equations.schur_kernels import mixed_blocks
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.block_parts import block_places, has_whole_block
from caspar.frontend.factors.jacobian import Blocks, JacobianSlots, load_jacobian
from caspar.frontend.factors.trace import Argument, NodeType, TracedFactor
from caspar.frontend.names import SEPARATOR, internal_name, part_name
from caspar.frontend.precision import Types
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar, dot
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import (
    ReadIndexed,
    ReadSequential,
    WriteIndexed,
    WriteSequential,
    WriteUnique,
)

HELD_SCALE = 2.0**-300
"""Scale of the row and column of what is held. Its own entry is the inverse square, so that it is 1
in the scaled matrix whatever factors add, and the others are below any rounding: the rows of unity,
without another structure of the matrix."""


@dataclass(frozen=True)
class FillTypes:
    """The types of a kernel that adds an eliminated type's part to the blocks of two others.

    Attributes:
        sums_rows: Whether its Z of the rows are sums over items.
    """

    eliminated: NodeType
    row: NodeType
    column: NodeType
    sums_rows: bool = False
    sums_columns: bool = False

    @property
    def name(self) -> str:
        """Name of the kernel."""
        kind = "fill" + "_rows" * self.sums_rows + "_columns" * self.sums_columns
        types = (self.eliminated.name, self.row.name, self.column.name)
        return SEPARATOR.join((kind, *map(internal_name, types)))


def explicit_kernels(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], types: Types, form: SolverForm
) -> list[KernelSpec]:
    """All of them.

    `entries_dense`, `entries_sparse`, `direct_end`; `fill__*` of eliminated types; of reduced ones
    `begin_direct` and `end_direct`, before and after the factorisation; and those of each factor.
    """
    made = [_entries("dense"), _entries("sparse"), _outcome(types)]
    made += [
        fill_kernel(FillTypes(*together), types, form)
        for together in pairs_of_types(factors, nodes, form)
    ]
    for node in nodes:
        if node.name not in form.eliminated:
            made += [_begin(node, types, form), _end(node, types, form)]
    ranks = {node.name: rank for rank, node in enumerate(nodes)}
    for factor in factors:
        made += pair_kernels(factor, types, form.factors[factor.name], ranks)
    return made


def row_kernels(
    factors: Sequence[TracedFactor], types: Types, form: SolverForm
) -> list[KernelSpec]:
    """Return the kernels that write the rows of each factor's least-squares problem."""
    return [rows_kernel(factor, types, form.factors[factor.name]) for factor in factors]


def pairs_of_types(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], form: SolverForm
) -> list[tuple[NodeType, NodeType, NodeType]]:
    """Each eliminated type, and two types whose nodes are touched together with it."""
    found = []
    for eliminated in nodes:
        if eliminated.name not in form.eliminated:
            continue
        touched = set()
        for factor in factors:
            if form.factors[factor.name].eliminates(eliminated.name):
                touched |= {one.node_type.name for one in factor.nodes}
        together = [node for node in nodes if node.name in touched - {eliminated.name}]
        for rank, row in enumerate(together):
            found += [(eliminated, row, other) for other in together[: rank + 1]]
    return found


def fill_kernel(given: FillTypes, types: Types, form: SolverForm) -> KernelSpec:
    """-Z_a Z_b^T for each pair of items of an eliminated node."""
    kernel = KernelBuilder(given.name, DType.FLOAT64)
    dim = given.eliminated.tangent_dim

    def read(name: str, node: NodeType, *, sums: bool) -> list[list[Scalar]]:
        dtype = DType.FLOAT64 if sums else types.storage
        mixed = kernel.read(name, node.tangent_dim * dim, dtype, ReadIndexed())
        return [mixed[first : first + dim] for first in range(0, len(mixed), dim)]

    rows = read("row_mixed", given.row, sums=given.sums_rows)
    columns = read("column_mixed", given.column, sums=given.sums_columns)
    values = [-dot(a, b) for a in rows for b in columns]
    sums = next(iter(form.factors.values())).sums
    kernel.write("pair_block", values, DType.FLOAT64, sums.block_access)
    return kernel.build()


def merge_name(eliminated: str, reduced: str) -> str:
    """Name of the kernel that sums Z of items that couple the same two nodes."""
    return SEPARATOR.join(("merge", *map(internal_name, (eliminated, reduced))))


def merge_kernels(
    factors: Sequence[TracedFactor],
    nodes: Sequence[NodeType],
    types: Types,
    form: SolverForm,
    merged: Collection[tuple[str, str]],
) -> list[KernelSpec]:
    """`merge__*` of each array of Z that is summed, and `fill_*` that read the sums."""
    by_name = {node.name: node for node in nodes}
    made = [
        _merge(by_name[eliminated], by_name[reduced], types, form)
        for eliminated, reduced in sorted(merged)
    ]
    for eliminated, row, column in pairs_of_types(factors, nodes, form):
        given = FillTypes(
            eliminated,
            row,
            column,
            sums_rows=(eliminated.name, row.name) in merged,
            sums_columns=(eliminated.name, column.name) in merged,
        )
        if given.sums_rows or given.sums_columns:
            made.append(fill_kernel(given, types, form))
    return made


def _merge(eliminated: NodeType, reduced: NodeType, types: Types, form: SolverForm) -> KernelSpec:
    """Z of items, added in float64."""
    kernel = KernelBuilder(merge_name(eliminated.name, reduced.name), DType.FLOAT64)
    dim = eliminated.tangent_dim * reduced.tangent_dim
    values = kernel.read("item_mixed", dim, types.storage, ReadIndexed())
    sums = next(iter(form.factors.values())).sums
    kernel.write("merged", values, DType.FLOAT64, sums.block_access)
    return kernel.build()


def _begin(node: NodeType, types: Types, form: SolverForm) -> KernelSpec:
    """The damped diagonal block, `scale` = D^-1/2 or 1, and the scaled right-hand side.

    What elimination takes off may be nearly all of the diagonal, and then rounding errors of the
    squares must not make the rest negative. (Ladybug-49 in mixed precision: 4 of 25 factorisations
    fail without it, none with it.)
    """
    dim = node.tangent_dim
    masked = node.name in form.masked
    kernel = NodeBuilder(node, "begin_direct", DType.FLOAT64, types, masked=masked)
    part = NodePart.BLOCK if len(form.eliminated) == 0 else NodePart.REDUCED_BLOCK
    stored = dict(zip(block_places(node), kernel.read_part(part), strict=True))
    gradient = kernel.read_part(NodePart.GRADIENT)
    diagonal = damping_diagonal(kernel, scaled=form.is_scaled)
    rounding = ROUNDING[types.storage] if len(form.eliminated) > 0 else 0.0
    damping = kernel.scalar("damping") + rounding
    zero = Scalar(kernel.graph, kernel.graph.const(0.0))
    block = []
    for i in range(dim):
        for j in range(dim):
            entry = stored.get((max(i, j), min(i, j)), zero)
            block.append(entry + damping * diagonal[i] if i == j else entry)
    scale = [entry.sqrt().reciprocal() for entry in diagonal]
    rhs = [-(g * s) for g, s in zip(gradient, scale, strict=True)]
    free = kernel.read_free()
    if free is not None:
        for i, moves in enumerate(free):
            own = i * (dim + 1)
            block[own] = moves.where(block[own], HELD_SCALE**-2)
            scale[i] = moves.where(scale[i], HELD_SCALE)
            rhs[i] = moves.where(rhs[i], 0.0)
    # the blocks were cleared
    kernel.write("pair_block", block, DType.FLOAT64, WriteSequential(), skips_zeros=True)
    kernel.write("scale", scale, DType.FLOAT64, WriteSequential())
    kernel.write("rhs", rhs, DType.FLOAT64, WriteSequential())
    return kernel.build()


def _end(node: NodeType, types: Types, form: SolverForm) -> KernelSpec:
    """`step`, no `residual`; sums rhs . solution to `descent`, rhs . rhs to `curvature`."""
    dim = node.tangent_dim
    masked, role = node.name in form.masked, "end_direct"
    kernel = NodeBuilder(node, role, DType.FLOAT64, types, masked=masked, few_items=True)
    solution, scale, rhs = (
        kernel.read(name, dim, DType.FLOAT64, ReadSequential())
        for name in ("solution", "scale", "rhs")
    )
    step = [x * s for x, s in zip(solution, scale, strict=True)]
    free = kernel.read_free()
    if free is not None:
        step = [moves.where(x, 0.0) for moves, x in zip(free, step, strict=True)]
    zero = Scalar(kernel.graph, kernel.graph.const(0.0))
    kernel.write_part(NodePart.STEP, step)
    kernel.write_part(NodePart.RESIDUAL, [zero] * dim)
    add_total(kernel, SolverPart.DESCENTS, [dot(rhs, solution)], types)
    add_total(kernel, SolverPart.CURVATURES, [dot(rhs, rhs)], types)
    return kernel.build()


def _entries(matrix: str) -> KernelSpec:
    """Entries of the lower triangle from blocks, scaled to unit diagonal of J^T J.

    Dense: to their places in a cleared matrix. Sparse: in the order of its rows.
    """
    kernel = KernelBuilder(f"entries_{matrix}", DType.FLOAT64)

    def read(name: str) -> Scalar:
        return kernel.read(name, 1, DType.FLOAT64, ReadIndexed())[0]

    entry = read("blocks") * read("row_scale") * read("column_scale")
    access = WriteIndexed() if matrix == "dense" else WriteSequential()
    kernel.write("matrix", [entry], DType.FLOAT64, access)
    return kernel.build()


def _outcome(types: Types) -> KernelSpec:
    """Return the kernel that writes the numbers which the host reads of a factorisation.

    One that failed counts as an iteration: more damping helps. A right-hand side that is not
    finite does not: nothing helps.
    """
    kernel = KernelBuilder("direct_end", DType.FLOAT64)
    (descent,) = read_total(kernel, SolverPart.DESCENTS, types)
    (square,) = read_total(kernel, SolverPart.CURVATURES, types)
    finite = square < LARGEST
    usable = finite & (descent < LARGEST) & (kernel.scalar("failed") < 0.5)
    solved = float(LinearOutcome.TOLERANCE)
    outcome = (0.0 < square).where(solved, float(LinearOutcome.AT_OPTIMUM))
    done = usable.where(outcome, float(LinearOutcome.NOT_FINITE))
    one = Scalar(kernel.graph, kernel.graph.const(1.0))
    values: Sequence[tuple[str, Scalar]] = (
        ("done", done),
        ("first_descent", descent),
        ("linear_iterations", finite.where(one, 0.0)),
        ("least_pivot", kernel.scalar("pivot")),
    )
    for name, value in values:
        kernel.write(name, [value], DType.FLOAT64, WriteUnique())
    return kernel.build()


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
