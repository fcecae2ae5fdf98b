"""The arrays of a solve, a row each; the arrays of one linear method are in the method's folder.

A row says what kernels call the array, when its numbers are needed, and what an object of it is.
`NodeBuilder` and `factor_builder.FactorBuilder` declare the arguments of kernels from it,
`solver.plan.regions` reserves memory from it, `solver.system.launches` binds from it. An array of a
node type that is added here has memory, and is bound where a kernel of the type asks for it.
"""

from collections.abc import Callable, Sequence
from enum import Enum

from caspar.frontend.factors.block_parts import block_dim
from caspar.frontend.factors.trace import Argument, NodeType
from caspar.frontend.names import ROUNDED_VALUE, VALUE, kernel_name
from caspar.frontend.precision import Types
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar
from caspar.memory.access import ReadAccessor, WriteAccessor
from caspar.memory.kernel import KernelBuilder
from caspar.memory.layout import object_scalars, row_scalars
from caspar.memory.patterns import AddSumPartials, ReadPartials, ReadSequential, WriteSequential


class Lifetime(Enum):
    """Times at which the numbers of an array are needed, and the node types that have one.

    The arrays of one lifetime stand together in memory, one node type after the other.
    """

    VALUES = "in the whole solve"
    MASKS = "the same; of types of which something is held"
    LIMITS = "the same; of types that have bounds"
    CANDIDATES = "from a retraction until the step is accepted or rejected"
    ROUNDED = "from a linearisation to the next; where kernels derive Jacobians from rounded values"
    RESIDUALS = "from a score to the linearisation at the same values"
    JACOBIANS = "from a linearisation to the next"
    CORRECTIONS = "the same; read where Jacobians are made"
    SCALES = "the same; cleared by the linearisation where they are sums"
    SUMS = "the same; cleared by the linearisation"
    REDUCED_SUMS = "in a linear solve, of types that remain if others do not; begin as copies"
    PRECONDITIONERS = "in a linear solve"
    INNER = "in a linear solve and the retraction after it, of eliminated types"
    VECTORS = "in a linear solve and the retraction after it, of types that remain"


class Layout(Enum):
    """Type of an array's numbers, and how its objects stand in memory."""

    BLOCKED = "the type of storage; in chunks, see memory.layout"
    SLOTS = "the same, with copies of each object that are summed when they are read"
    ROWS = "the type of sums; an object's scalars stand together, unless its type is eliminated"


def _storage_dim(node: NodeType) -> int:
    return node.storage_dim


def _tangent_dim(node: NodeType) -> int:
    return node.tangent_dim


class NodePart(Enum):
    """The arrays of a node type, an object for each node; `node_kernels` has the mathematics.

    INFLUENCE is what D remembers of diag(J^T J) at earlier values; only types that remain have it.
    FREE is 1 for each component of the tangent that moves, 0 if it is held, or a code, `TO_LOWER`,
    `TO_UPPER` or `WAS_SENT`. LOWER and UPPER are the bounds of the numbers that components are
    added to, infinite where there are none; of what is held the lower one is above the upper one.
    ROUNDED is what is linearised, in the type of
    storage: kernels read it that derive Jacobians again in that type.

    A factor's kernels call the part of an argument's node `<argument>__<part>`. The partial sums
    that are added to it have that name too.

    Attributes:
        text: What kernels call it.
        lifetime: When its numbers are needed.
        dim: Scalars of an object, without padding.
        layout: How its objects stand in memory.
    """

    __hash__ = object.__hash__  # each member is there once; Enum's own hashes its name in Python

    NODES = "nodes", Lifetime.VALUES, _storage_dim
    CANDIDATE = "candidate", Lifetime.CANDIDATES, _storage_dim
    ROUNDED = ROUNDED_VALUE, Lifetime.ROUNDED, _storage_dim
    INFLUENCE = "influence", Lifetime.VALUES, _tangent_dim
    CANDIDATE_INFLUENCE = "candidate_influence", Lifetime.CANDIDATES, _tangent_dim
    FREE = "free", Lifetime.MASKS, _tangent_dim
    LOWER = "lower", Lifetime.LIMITS, _tangent_dim
    UPPER = "upper", Lifetime.LIMITS, _tangent_dim
    DIAGONAL = "diagonal", Lifetime.SCALES, _tangent_dim
    GRADIENT = "gradient", Lifetime.SUMS, _tangent_dim, Layout.ROWS
    BLOCK = "block", Lifetime.SUMS, block_dim, Layout.ROWS
    REDUCED_GRADIENT = "reduced_gradient", Lifetime.REDUCED_SUMS, _tangent_dim, Layout.ROWS
    REDUCED_BLOCK = "reduced_block", Lifetime.REDUCED_SUMS, block_dim, Layout.ROWS
    PRECONDITIONER = "preconditioner", Lifetime.PRECONDITIONERS, block_dim
    INNER = "inner", Lifetime.INNER, _tangent_dim
    STEP = "step", Lifetime.VECTORS, _tangent_dim
    RESIDUAL = "residual", Lifetime.VECTORS, _tangent_dim
    DIRECTION = "direction", Lifetime.VECTORS, _tangent_dim
    PRODUCT = "product", Lifetime.VECTORS, _tangent_dim, Layout.SLOTS
    PRECONDITIONED = "preconditioned", Lifetime.VECTORS, _tangent_dim

    def __init__(
        self,
        text: str,
        lifetime: Lifetime,
        dim: Callable[[NodeType], int],
        layout: Layout = Layout.BLOCKED,
    ) -> None:
        self.text = text
        self.lifetime = lifetime
        self.dim = dim
        self.layout = layout

    def of(self, argument: Argument) -> str:
        """Return the name that kernels of a factor use."""
        return argument.part(self.text)

    def dtype(self, types: Types) -> DType:
        """Type in memory."""
        if self in (NodePart.NODES, NodePart.CANDIDATE, *LIMITS):
            return types.values
        return types.sums if self.layout is Layout.ROWS else types.storage

    def exists(self, *, eliminated: bool, masked: bool, bounded: bool, rounded: bool) -> bool:
        """Return whether a type has the array."""
        if self in (NodePart.INFLUENCE, NodePart.CANDIDATE_INFLUENCE):
            return not eliminated
        if self is NodePart.ROUNDED:
            return rounded
        if self in LIMITS:
            return bounded
        return masked or self is not NodePart.FREE

    def has_rows(self, *, eliminated: bool) -> bool:
        """Return whether an object's scalars are contiguous; never if its type is eliminated."""
        return self.layout is Layout.ROWS and not eliminated

    def object_scalars(self, node: NodeType, types: Types, *, eliminated: bool) -> int:
        """Scalars that an object takes in memory, padding included."""
        taken = row_scalars if self.has_rows(eliminated=eliminated) else object_scalars
        return taken(self.dim(node), self.dtype(types))


def value_dtype(argument: Argument, types: Types) -> DType:
    """Type of an argument's values in memory."""
    if argument.is_half:
        return DType.FLOAT16
    return types.storage if argument.is_narrow else types.values


LIMITS = (NodePart.LOWER, NodePart.UPPER)
"""Parts of a node type of which some numbers have bounds."""

REDUCED = {NodePart.GRADIENT: NodePart.REDUCED_GRADIENT, NodePart.BLOCK: NodePart.REDUCED_BLOCK}
"""Sums over factors that the system and the reduced one have alike."""


class FactorPart(Enum):
    """The arrays of a factor, besides partial sums for parts of its nodes.

    CONSTANT: an argument's rows, `<argument>__value` in kernels. ROUNDED_CONSTANT: the same in the
    type of storage, `<argument>__rounded`. RESIDUAL, JACOBIAN, CORRECTION: an object for each slot;
    Jacobians that are not stored have no scalars, nor have corrections of a factor without weight
    and loss.
    """

    __hash__ = object.__hash__  # each member is there once; Enum's own hashes its name in Python

    CONSTANT = VALUE, Lifetime.VALUES
    ROUNDED_CONSTANT = ROUNDED_VALUE, Lifetime.VALUES
    RESIDUAL = "residual", Lifetime.RESIDUALS
    JACOBIAN = "jacobian", Lifetime.JACOBIANS
    CORRECTION = "correction", Lifetime.CORRECTIONS

    def __init__(self, text: str, lifetime: Lifetime) -> None:
        self.text = text
        self.lifetime = lifetime


MODEL_DIM = 5
"""Sums a retraction takes for the model of the cost: see `node_kernels.retract_kernel`."""


class SolverPart(Enum):
    """The arrays that a solve has once: what steers it, and sums over all items, as partials.

    Kernels of one item, which read it, call it `text`; others, which add to it, `addend`.
    """

    __hash__ = object.__hash__  # each member is there once; Enum's own hashes its name in Python

    SCALARS = "scalars", "", 1
    COSTS = "costs", "cost", 1
    BEYOND_SCALE = "beyond_scales", "beyond_scale", 1
    CURVATURES = "curvatures", "curvature", 1
    DESCENTS = "descents", "descent", 1
    MODELS = "models", "model", MODEL_DIM

    def __init__(self, text: str, addend: str, dim: int) -> None:
        self.text = text
        self.addend = addend
        self.dim = dim

    def dtype(self, types: Types) -> DType:
        """Type in memory."""
        return DType.FLOAT64 if self is SolverPart.SCALARS else types.sums


def read_total(kernel: KernelBuilder, part: SolverPart, types: Types) -> list[Scalar]:
    """The sums over all items, in a kernel of one item."""
    return kernel.read(part.text, part.dim, part.dtype(types), ReadPartials())


def add_total(
    kernel: KernelBuilder, part: SolverPart, values: Sequence[Scalar], types: Types
) -> None:
    """Add to the sums over all items, as a partial for each tile."""
    kernel.write(part.addend, values, part.dtype(types), AddSumPartials())


TO_LOWER, TO_UPPER = 0.25, 0.375
"""FREE of a number that the linear solve holds, and its step takes to a bound."""

WAS_SENT = 0.75
"""FREE of a number that is free again because a step that took it there was rejected."""


def is_free(mask: Sequence[Scalar]) -> list[Scalar]:
    """The components that the linear solve moves."""
    return [0.5 < entry for entry in mask]


def may_move(mask: Sequence[Scalar]) -> list[Scalar]:
    """The components that a step moves: what is free, and what goes to a bound."""
    return [0.5 * TO_LOWER < entry for entry in mask]


def has_code(entry: Scalar, code: float) -> Scalar:
    """Return whether an entry of FREE is that code."""
    half = 0.5 * (TO_UPPER - TO_LOWER)
    return (code - half < entry) & (entry < code + half)


class NodeBuilder(KernelBuilder):
    """A `KernelBuilder` for the nodes of a type, that declares arguments by the table."""

    def __init__(
        self,
        node: NodeType,
        role: str,
        dtype: DType,
        types: Types,
        *,
        eliminated: bool = False,
        masked: bool = False,
        bounded: bool = False,
        few_items: bool = False,
    ) -> None:
        super().__init__(kernel_name(node.name, role), dtype, few_items=few_items)
        self.node = node
        self.types = types
        self._is_eliminated = eliminated
        self._is_masked = masked
        self._is_bounded = bounded

    def read_free(self) -> list[Scalar] | None:
        """Return whether each component of the tangent moves; None: all do."""
        return is_free(self.read_part(NodePart.FREE)) if self._is_masked else None

    def read_moving(self) -> list[Scalar] | None:
        """The same for the step: numbers that go to a bound move too."""
        return may_move(self.read_part(NodePart.FREE)) if self._is_bounded else self.read_free()

    def read_limits(self) -> list[list[Scalar]] | None:
        """The lower and the upper bounds by component of the tangent; None: there are none."""
        return [self.read_part(part) for part in LIMITS] if self._is_bounded else None

    def read_part(self, part: NodePart, access: ReadAccessor | None = None) -> list[Scalar]:
        """A part of the item's node, or of the one that `access` finds."""
        rows = part.has_rows(eliminated=self._is_eliminated)
        access = ReadSequential(rows=rows) if access is None else access
        return self.read(part.text, part.dim(self.node), part.dtype(self.types), access)

    def write_part(
        self, part: NodePart, values: Sequence[Scalar], access: WriteAccessor | None = None
    ) -> None:
        """Write a part of the item's node."""
        rows = part.has_rows(eliminated=self._is_eliminated)
        access = WriteSequential(rows=rows) if access is None else access
        self.write(part.text, values, part.dtype(self.types), access)
