"""Writing a factor's kernels: its form, its arguments, its residual and Jacobian.

Also here: the linearised residual of a factor, and what its items add to their nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from caspar.equations.evaluation import Correction, Evaluation, correction_dim, evaluate
from caspar.equations.parts import FactorPart, Layout, NodePart, SolverPart, is_free, value_dtype
from caspar.frontend.factors.block_parts import block_places
from caspar.frontend.factors.jacobian import (
    Blocks,
    JacobianSlots,
    JacobianStorage,
    Linearization,
    load_jacobian,
)
from caspar.frontend.factors.trace import Argument, ArgumentKind, TracedFactor
from caspar.frontend.names import ROUNDED_VALUE, kernel_name
from caspar.frontend.precision import Types
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar, dot
from caspar.memory.access import TILES, ReadAccessor, WriteAccessor
from caspar.memory.accessors.nodes.exchanges import ReadForNode, SpreadOverNode, SumOverNode
from caspar.memory.accessors.nodes.node_sums import AddOwnNode
from caspar.memory.accessors.sums.partials import AddSumSlots
from caspar.memory.accessors.sums.runs import AddRuns
from caspar.memory.kernel import KernelBuilder
from caspar.memory.patterns import (
    AddSharedPartials,
    AddStretchPartials,
    AddSumPartials,
    ReadIndexed,
    ReadSequential,
    ReadUnique,
    WriteSequential,
)


class SharedSums(Enum):
    """Ways to sum values over the items that share a node.

    ATOMIC: neighbouring lanes, then atomics: fastest, but bits differ from run to run.
    ORDERED: a partial for each node of a tile, summed in order by a second kernel.
    """

    ATOMIC = "atomic"
    ORDERED = "ordered"

    @property
    def block_access(self) -> WriteAccessor:
        """Return how items' blocks of a matrix are summed."""
        return AddSharedPartials() if self is SharedSums.ORDERED else AddRuns()


@dataclass(frozen=True)
class FactorForm:
    """The variant in which a factor's kernels are made.

    Attributes:
        sums: How sums over shared nodes are taken.
        jacobian: How products get Jacobians: stored by the linearisation, or recomputed.
        eliminated: The argument whose node is eliminated; None: it has none.
        is_fused: No other factor touches that node type: sums over its nodes stay in a block.
        inner_iterations: Steps that eliminated nodes take by themselves after each common one.
        solver_eliminates: Some node type is eliminated, even if this factor has none of it: then
            a `block` of the others is not whole, and D is summed by itself.
        masks_eliminated: Components of the eliminated node may be held.
        bounds_eliminated: The eliminated node has bounds; then it has masks too.
    """

    sums: SharedSums
    jacobian: JacobianStorage = JacobianStorage.STORED
    eliminated: Argument | None = None
    is_fused: bool = False
    inner_iterations: int = 0
    solver_eliminates: bool = False
    masks_eliminated: bool = False
    bounds_eliminated: bool = False

    @property
    def eliminated_argument(self) -> Argument:
        """The argument whose node is eliminated, where there is one."""
        assert self.eliminated is not None
        return self.eliminated

    def eliminates(self, node_type: str) -> bool:
        """Return whether the eliminated node is of the type of that name."""
        return self.eliminated is not None and self.eliminated.node_type.name == node_type

    def linearized(self, argument: Argument) -> tuple[NodePart, ...]:
        """Return what a linearisation adds to an argument's node; blocks may follow."""
        adds_block = self.has_block(argument) and not self.jacobian.is_stored
        # D is of the block, where that has the parts of all factors
        is_whole = adds_block and (argument is self.eliminated or not self.solver_eliminates)
        diagonals = () if is_whole else (NodePart.DIAGONAL,)
        blocks = (NodePart.BLOCK,) if adds_block else ()
        return (NodePart.GRADIENT, *diagonals, *blocks)

    def linearizes_rounded(self, types: Types) -> bool:
        """Return whether products derive Jacobians of rounded values, of which blocks must be too.

        Gradients are of the values themselves, or a solve would end elsewhere.
        """
        return types.rounds_values and not self.jacobian.is_stored

    def partner(self, factor: TracedFactor) -> Argument | None:
        """The argument whose nodes come with the places in node tiles; None: each has an index."""
        others = [node for node in factor.nodes if node is not self.eliminated]
        shared = [node for node in others if node.kind is not ArgumentKind.NODE_UNIQUE]
        return shared[0] if self.eliminated is not None and len(shared) == 1 else None

    def has_block(self, argument: Argument) -> bool:
        """Return whether its block of J^T J is summed, not only what elimination leaves of it."""
        return argument is self.eliminated or self.eliminated is None

    @property
    def key(self) -> str:
        """Text that determines the form."""
        name = "" if self.eliminated is None else self.eliminated.name
        own = f"{name} {self.is_fused} {self.inner_iterations} {self.solver_eliminates}"
        own += " masked" if self.masks_eliminated else ""
        own += " bounded" if self.bounds_eliminated else ""
        return f"{self.sums.value} {self.jacobian.value} {own}"


class FactorBuilder(KernelBuilder):
    """A `KernelBuilder` that knows a factor's arguments and reads each index once."""

    def __init__(
        self,
        factor: TracedFactor,
        role: str,
        form: FactorForm,
        dtype: DType,
        types: Types,
        *,
        stretches: bool = False,
    ) -> None:
        tiled = form.eliminated is not None
        super().__init__(kernel_name(factor.name, role), dtype, tiled=tiled, stretches=stretches)
        self.factor = factor
        self.form = form
        self.types = types
        partner = form.partner(factor)
        self._index_owner = {} if partner is None else {partner.name: TILES}
        self._runs_owner: dict[str, str] = {}
        self._team_owner = ""

    @property
    def reduced(self) -> tuple[Argument, ...]:
        """The node arguments that are not eliminated."""
        return tuple(node for node in self.factor.nodes if node is not self.form.eliminated)

    def _index_of(self, argument: Argument, name: str) -> str:
        """The argument that has read the index; empty if this one is the first."""
        owner = self._index_owner.setdefault(argument.name, name)
        return "" if owner == name else owner

    def _known_index(self, argument: Argument) -> str:
        """The same for what reads no index on CUDA, and so none that others could use."""
        return self._index_owner.get(argument.name, "")

    def _read_access(self, argument: Argument, name: str) -> ReadAccessor:
        if argument.kind in (ArgumentKind.NODE_UNIQUE, ArgumentKind.CONST_UNIQUE):
            return ReadUnique()
        if argument.kind is ArgumentKind.CONST_SEQUENTIAL:
            return ReadSequential()
        return ReadIndexed(self._index_of(argument, name))

    def read_argument(self, argument: Argument) -> list[Scalar]:
        """The storage of an argument's object: rounded copies in kernels of the storage type."""
        name, dtype = self.value_of(argument)
        access = self._read_access(argument, name)
        return self.read(name, argument.storage_dim, dtype, access)

    def value_of(self, argument: Argument) -> tuple[str, DType]:
        """Return the kernel's name for the storage of an argument, and its type in memory."""
        rounds = self.types.rounds_values and not argument.is_half
        if rounds and self.graph.dtype is self.types.storage:
            return argument.part(ROUNDED_VALUE), self.types.storage
        return argument.value_name, value_dtype(argument, self.types)

    def evaluate(self, epsilon_of: DType) -> Evaluation:
        """The factor at the values of its arguments, with the epsilon of a type."""
        return evaluate(self, self.factor, self.read_argument, epsilon_of)

    def read_residual(self) -> list[Scalar]:
        """The item's residual, as `write_residual` left it."""
        dim = len(self.factor.residual)
        return self.read(FactorPart.RESIDUAL.text, dim, self.types.storage, ReadSequential())

    def write_residual(self, values: Sequence[Scalar]) -> None:
        """Keep the item's residual."""
        self.write(FactorPart.RESIDUAL.text, values, self.types.storage, WriteSequential())

    def read_correction(self) -> Correction | None:
        """Read the result of `write_correction`; None: the Jacobian is not corrected."""
        dim = correction_dim(self.factor)
        if dim == 0:
            return None
        name = FactorPart.CORRECTION.text
        kept = self.read(name, dim, self.types.storage, ReadSequential(once=True))
        return Correction.of_kept(kept, is_selected=self.factor.is_weighted)

    def write_correction(self, correction: Correction) -> None:
        """Keep what weight and loss make of the item's Jacobian."""
        name = FactorPart.CORRECTION.text
        self.write(name, correction.kept, self.types.storage, WriteSequential())

    def read_node(self, argument: Argument, part: NodePart) -> list[Scalar]:
        """A part of a node."""
        dim, dtype = part.dim(argument.node_type), part.dtype(self.types)
        return self.read_array(argument, part.text, dim, dtype)

    def read_free(self) -> list[Scalar] | None:
        """Return whether each component of the eliminated node moves; None: all do."""
        if not self.form.masks_eliminated:
            return None
        return is_free(self.read_node(self.form.eliminated_argument, NodePart.FREE))

    def read_array(self, argument: Argument, array: str, dim: int, dtype: DType) -> list[Scalar]:
        """The same of an array that is no part of the solver's."""
        name = argument.part(array)
        return self.read(name, dim, dtype, self._read_access(argument, name))

    def add_node(self, argument: Argument, part: NodePart, values: Sequence[Scalar]) -> None:
        """Add to a part of a node."""
        access = self._add_access(argument, part.of(argument), part.layout)
        self.write(part.of(argument), values, part.dtype(self.types), access)

    def _add_access(self, argument: Argument, name: str, layout: Layout) -> WriteAccessor:
        if argument.kind is ArgumentKind.NODE_UNIQUE:
            return AddStretchPartials() if self._stretches else AddSumPartials()
        if argument is self.form.eliminated:
            team_of, self._team_owner = self._team_owner, self._team_owner or name
            return AddOwnNode(self._known_index(argument), team_of, in_order=self.form.is_fused)
        if self.form.sums is SharedSums.ORDERED:
            return AddSharedPartials()
        owner = self._runs_owner.setdefault(argument.name, name)
        runs_of = "" if owner == name else owner
        # of all sums those of a product alone are taken so often that a few slow ones show
        rows, spread = layout is Layout.ROWS, layout is Layout.SLOTS
        return AddRuns(self._index_of(argument, name), runs_of, rows=rows, spread=spread)

    def add_curvature(self, value: Scalar) -> None:
        """Add to p.(A p)."""
        ordered = self.form.sums is SharedSums.ORDERED
        part, access = SolverPart.CURVATURES, AddSumPartials() if ordered else AddSumSlots()
        self.write(part.addend, [value], part.dtype(self.types), access)

    def sum_over_node(self, values: Sequence[Scalar]) -> list[Scalar]:
        """The sums over the items of the eliminated node, for its leader."""
        name = self.form.eliminated_argument.part("sum")
        return self.exchange(name, values, SumOverNode())

    def read_for_node(self, part: NodePart) -> list[Scalar]:
        """A part of the eliminated node, for what its leader does with the sums."""
        argument = self.form.eliminated_argument
        access = ReadForNode(argument.part("sum"), self._known_index(argument))
        dim = part.dim(argument.node_type)
        return self.read(part.of(argument), dim, part.dtype(self.types), access)

    def spread_over_node(self, values: Sequence[Scalar]) -> list[Scalar]:
        """Return the results of sums over a node, for each of its items."""
        argument = self.form.eliminated_argument
        access = SpreadOverNode(argument.part("sum"))
        return self.exchange(argument.part("spread"), values, access)


def add_linearized(kernel: FactorBuilder, *, has_gradients: bool = True) -> None:
    """Gradients, and what else a linearisation adds to nodes, from `residual`.

    That was evaluated by `score`, in the type of values, and so are weights that are made of it:
    the correction is made here, and kept for what comes after.

    Without gradients, `add_gradients` is for another kernel.
    """
    evaluation = kernel.evaluate(kernel.graph.dtype)
    linear = Linearization(evaluation.jacobian(kernel.factor.nodes))
    pull: Sequence[Scalar] = ()
    if has_gradients or not kernel.factor.is_plain:
        pull = kernel.read_residual()
    blocks = linear.entries
    correction = evaluation.correction(pull)
    if correction is not None:
        kernel.write_correction(correction)
        linear, pull = Linearization(correction.selected(blocks)), correction.pull
        blocks = correction.times_blocks(linear.entries)
    for argument in kernel.factor.nodes:
        parts = kernel.form.linearized(argument)
        kernel.graph.origin = f"{' and '.join(part.text for part in parts)} of {argument.name}"
        columns = list(zip(*blocks[argument.name], strict=True))
        if has_gradients:
            kernel.add_node(argument, NodePart.GRADIENT, linear.transposed(argument, pull))
        if NodePart.DIAGONAL in parts:
            diagonal = [dot(column, column) for column in columns]
            kernel.add_node(argument, NodePart.DIAGONAL, diagonal)
        if NodePart.BLOCK in parts:
            add_block(kernel, argument, columns)


def add_gradients(kernel: FactorBuilder) -> None:
    """Gradients alone, from `residual`: as `add_linearized` makes them."""
    evaluation = kernel.evaluate(kernel.graph.dtype)
    linear = Linearization(evaluation.jacobian(kernel.factor.nodes))
    pull: Sequence[Scalar] = kernel.read_residual()
    correction = evaluation.correction(pull)
    if correction is not None:
        linear, pull = Linearization(correction.selected(linear.entries)), correction.pull
    for argument in kernel.factor.nodes:
        kernel.graph.origin = f"{NodePart.GRADIENT.text} of {argument.name}"
        kernel.add_node(argument, NodePart.GRADIENT, linear.transposed(argument, pull))


def add_block(
    kernel: FactorBuilder,
    argument: Argument,
    columns: Sequence[Sequence[Scalar]],
    others: Sequence[Sequence[Scalar]] | None = None,
) -> None:
    """The products of its columns with each other, or with `others`, to an argument's blocks.

    Of `others` the products must be symmetric: half of them are added.
    """
    rows = columns if others is None else others
    square = [dot(rows[i], columns[j]) for i, j in block_places(argument.node_type)]
    kernel.add_node(argument, NodePart.BLOCK, square)


def computed_jacobian(kernel: FactorBuilder) -> Blocks:
    """The Jacobian by each node argument, from the values, as weight and loss have corrected it.

    The epsilon is that of the type in which the kernel computes. Kernels of one linear system
    compute in one type, or their Jacobians would differ where it counts.
    """
    return _computed(kernel).blocks


def _computed(kernel: FactorBuilder) -> Linearization:
    entries = kernel.evaluate(kernel.graph.dtype).jacobian(kernel.factor.nodes)
    correction = kernel.read_correction()
    if correction is None:
        return Linearization(entries)
    return Linearization(correction.selected(entries), correction)


def linearization(kernel: FactorBuilder, slots: JacobianSlots | None) -> Linearization:
    """The linearised residual, from stored entries or from the values."""
    if slots is None:
        return _computed(kernel)
    return Linearization(load_jacobian(kernel, slots))


def moved_residual(kernel: FactorBuilder, linear: Linearization) -> Sequence[Scalar]:
    """J p over the node arguments that are not eliminated."""
    kernel.graph.origin = "J p"
    return linear.forward(
        {node.name: kernel.read_node(node, NodePart.DIRECTION) for node in kernel.reduced}
    )


def add_products(kernel: FactorBuilder, linear: Linearization, moved: Sequence[Scalar]) -> None:
    """J^T v for each node argument that is not eliminated."""
    for argument in kernel.reduced:
        kernel.graph.origin = f"J^T (J p) by {argument.name}"
        kernel.add_node(argument, NodePart.PRODUCT, linear.transposed(argument, moved))
