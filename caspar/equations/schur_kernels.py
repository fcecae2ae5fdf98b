"""The kernels of a factor with an eliminated node: the implicit Schur complement.

With the Jacobians C by the reduced nodes and E by the eliminated one, the damped normal equations
without the eliminated steps are (B - sum C^T E V^-1 E^T C) x = -(g - sum C^T E V^-1 h), where V are
the eliminated nodes' damped diagonal blocks, h their gradients, and B, g those of the reduced
nodes (Triggs et al., *Bundle Adjustment: A Modern Synthesis*, 2000, section 6.1). V^-1 = W^T W is
read as the triangle W that the node type's `factorize` writes.

Also here: inner iterations: steps of the eliminated nodes alone, at the candidate of a step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from caspar.equations.evaluation import evaluate
from caspar.equations.factor_builder import (
    FactorBuilder,
    FactorForm,
    add_block,
    add_products,
    linearization,
    moved_residual,
)
from caspar.equations.node_blocks import clamped, damped_diagonal, damped_step, free_within
from caspar.equations.parts import LIMITS, NodePart, is_free
from caspar.frontend.factors.jacobian import Blocks, JacobianSlots, Linearization
from caspar.frontend.factors.retraction import retracted
from caspar.frontend.factors.trace import Argument, TracedFactor
from caspar.frontend.precision import Types
from caspar.ir.scalar import Scalar, dot, total
from caspar.memory.accessors.nodes.exchanges import ReadForNode, SpreadOverNode, SumOverNode
from caspar.memory.accessors.nodes.node_sums import WriteOwnNode
from caspar.memory.kernel import KernelSpec

DAMPING_GROWTH = 10.0
"""Factor of a node's damping after a step that did not lower its cost."""

SMALLEST_RAISED = 1e-4
"""Damping of a node after such a step, at least."""


@dataclass(frozen=True)
class _State:
    """A node at some values: the cost, its gradient, and J^T J as losses have corrected it."""

    storage: list[Scalar]
    cost: list[Scalar]
    slope: list[Scalar]
    square: list[Scalar]

    @property
    def parts(self) -> tuple[list[Scalar], ...]:
        return self.storage, self.cost, self.slope, self.square


def inner_kernel(
    factor: TracedFactor, types: Types, form: FactorForm, num_steps: int
) -> KernelSpec:
    """Move the eliminated nodes of `candidate` by some steps of their own.

    No other factor touches them. `num_steps` are of each node, those that do not count included.
    """
    kernel = FactorBuilder(factor, "inner", form, types.values, types)
    node = form.eliminated_argument.node_type
    reader = _Evaluator(kernel)
    damping = kernel.scalar("damping")
    state = reader.evaluate(reader.start(), is_last=False)
    free, limits = reader.free(), reader.limits()
    for left in reversed(range(num_steps)):
        kernel.graph.origin = "step of the node alone"
        if limits is not None:
            free = free_within(limits, node, state.storage, state.slope)
        diagonal = damped_diagonal(
            kernel, node, state.square, damping, types.storage, free, scaled=False
        )
        moved = damped_step(
            node.tangent_dim, types.values, state.square, state.slope, damping, diagonal, free
        )
        storage = retracted(node, state.storage, moved, free)
        if limits is not None:
            storage = clamped(limits, node, state.storage, storage, types.values)
        trial = reader.evaluate(storage, is_last=left == 0)
        kernel.graph.origin = "take the step if the cost falls"
        falls = trial.cost[0] < state.cost[0]
        raised = (damping * DAMPING_GROWTH).max(SMALLEST_RAISED)
        damping = falls.where(damping, raised)
        state = _State(
            *(
                [falls.where(new, old) for new, old in zip(after, before, strict=left > 0)]
                for after, before in zip(trial.parts, state.parts, strict=True)
            )
        )
    name, dtype = kernel.value_of(form.eliminated_argument)
    kernel.write(name, state.storage, dtype, WriteOwnNode(reader.team))
    return kernel.build()


class _Evaluator:
    def __init__(self, kernel: FactorBuilder) -> None:
        self._kernel = kernel
        self._num_sums = 0
        self._num_spreads = 0
        self._eliminated = eliminated = kernel.form.eliminated_argument
        self.team = eliminated.part("sum1")
        self._read = {
            argument.name: kernel.read_argument(argument)
            for argument in kernel.factor.inputs
            if argument is not eliminated
        }

    def start(self) -> list[Scalar]:
        argument, access = self._eliminated, ReadForNode(self.team)
        name, dtype = self._kernel.value_of(argument)
        return self._kernel.read(name, argument.storage_dim, dtype, access)

    def free(self) -> list[Scalar] | None:
        """Return for the node's leader which tangent components move; None if no mask is read."""
        form = self._kernel.form
        has_own = form.masks_eliminated and not form.bounds_eliminated
        return is_free(self._of_node(NodePart.FREE)) if has_own else None

    def limits(self) -> list[list[Scalar]] | None:
        if not self._kernel.form.bounds_eliminated:
            return None
        return [self._of_node(part) for part in LIMITS]

    def _of_node(self, part: NodePart) -> list[Scalar]:
        argument, dtype = self._eliminated, part.dtype(self._kernel.types)
        access = ReadForNode(self.team)
        return self._kernel.read(part.of(argument), argument.tangent_dim, dtype, access)

    def evaluate(self, storage: list[Scalar], *, is_last: bool) -> _State:
        """The state of a node, for its leader, who alone has its storage.

        Of the last one only the cost counts.
        """
        kernel, eliminated = self._kernel, self._eliminated
        values = {**self._read, eliminated.name: self._spread(storage)}
        evaluation = evaluate(
            kernel, kernel.factor, lambda argument: values[argument.name], kernel.graph.dtype
        )
        cost = evaluation.cost
        if is_last:
            return _State(storage, self._summed([cost]), [], [])
        linear = Linearization(evaluation.jacobian([eliminated]))
        pull, blocks = evaluation.residual, linear.entries
        correction = evaluation.correction(pull)
        if correction is not None:
            linear, pull = Linearization(correction.selected(blocks)), list(correction.pull)
            blocks = correction.times_blocks(linear.entries)
        slope = linear.transposed(eliminated, pull)
        columns = list(zip(*blocks[eliminated.name], strict=True))
        square = [dot(columns[i], columns[j]) for i in range(len(columns)) for j in range(i + 1)]
        total, *sums = self._summed([cost, *slope, *square])
        return _State(storage, [total], sums[: len(slope)], sums[len(slope) :])

    def _spread(self, storage: list[Scalar]) -> list[Scalar]:
        """Give the leader's values to each item."""
        self._num_spreads += 1
        name = self._eliminated.part(f"spread{self._num_spreads}")
        return self._kernel.exchange(name, storage, SpreadOverNode(self.team))

    def _summed(self, values: Sequence[Scalar]) -> list[Scalar]:
        self._num_sums += 1
        name = self._eliminated.part(f"sum{self._num_sums}")
        access = SumOverNode("" if self._num_sums == 1 else self.team)
        return self._kernel.exchange(name, values, access)


def schur_kernels(
    factor: TracedFactor, types: Types, form: FactorForm, slots: JacobianSlots | None
) -> dict[str, KernelSpec]:
    """The kernels of a factor with an eliminated node, by role.

    `gather`: adds E^T C x to the eliminated node's `inner`. `scatter`: with y = V^-1 E^T C p in
    `inner`, adds C^T (C p - E y). `product`: both in one, where sums over a node stay in a block.
    `reduce`: subtracts the eliminated nodes' part from gradients, and adds what they leave of
    diagonal blocks. `inner`: see `inner_kernel`. None of them where the factor touches nothing
    else.
    """
    if len(factor.nodes) == 1:
        return {}
    made = {"gather": _gather(factor, types, form, slots)}
    if form.is_fused:
        made["product"] = _product(factor, types, form, slots, fused=True)
    else:
        made["scatter"] = _product(factor, types, form, slots, fused=False)
    made["reduce"] = _reduce(factor, types, form, slots)
    if form.is_fused and form.inner_iterations > 0:
        made["inner"] = inner_kernel(factor, types, form, form.inner_iterations)
    return made


def _gather(
    factor: TracedFactor, types: Types, form: FactorForm, slots: JacobianSlots | None
) -> KernelSpec:
    kernel = FactorBuilder(factor, "gather", form, types.storage, types)
    eliminated = form.eliminated_argument
    linear = linearization(kernel, slots)
    moved = moved_residual(kernel, linear)
    kernel.graph.origin = "E^T C x"
    kernel.add_node(eliminated, NodePart.INNER, linear.transposed(eliminated, moved))
    return kernel.build()


def _product(
    factor: TracedFactor,
    types: Types,
    form: FactorForm,
    slots: JacobianSlots | None,
    *,
    fused: bool,
) -> KernelSpec:
    role = "product" if fused else "scatter"
    kernel = FactorBuilder(factor, role, form, types.storage, types, stretches=fused)
    kernel.guard("done")
    if fused:
        # all else stays as it is while a linear system is solved
        kernel.await_launch(*(NodePart.DIRECTION.of(node) for node in kernel.reduced))
    eliminated = form.eliminated_argument
    linear = linearization(kernel, slots)
    moved = moved_residual(kernel, linear)
    if fused:
        kernel.graph.origin = "E^T C p"
        inner = kernel.sum_over_node(linear.transposed(eliminated, moved))
        kernel.graph.origin = "y = V^-1 E^T C p"
        triangle = by_rows(kernel.read_for_node(NodePart.PRECONDITIONER), eliminated.tangent_dim)
        solved = _transposed_times(triangle, _times(triangle, inner))
        step = kernel.spread_over_node(solved)
    else:
        step = kernel.read_node(eliminated, NodePart.INNER)
    kernel.graph.origin = "C p - E y"
    back = linear.forward({eliminated.name: step})
    rest = [u - e for u, e in zip(moved, back, strict=True)]
    add_products(kernel, linear, rest)
    # p.(S p) = |C p|^2 - y.(V y) = sum (C p).(C p - E y)
    kernel.graph.origin = "p.(S p)"
    kernel.add_curvature(dot(moved, rest))
    return kernel.build()


def _reduce(
    factor: TracedFactor, types: Types, form: FactorForm, slots: JacobianSlots | None
) -> KernelSpec:
    """Each observation's part: exact for gradients; for blocks where no two are of one pair.

    Whole blocks, C^T (I - E V^-1 E^T) C: to add C^T C and take the rest off takes twice the sums.
    """
    kernel = FactorBuilder(factor, "reduce", form, types.storage, types)
    eliminated = form.eliminated_argument
    blocks = linearization(kernel, slots).blocks
    triangle = read_triangle(kernel, eliminated)
    gradient = kernel.read_node(eliminated, NodePart.GRADIENT)
    kernel.graph.origin = "E V^-1 h"
    rows = _turned_rows(kernel, blocks, triangle)
    scaled = _times(triangle, gradient)
    taken = [dot(row, scaled) for row in rows]
    kernel.graph.origin = "I - E V^-1 E^T"
    left = _times_left(rows)
    for argument in kernel.reduced:
        kernel.graph.origin = f"C^T E V^-1 h and C^T (I - E V^-1 E^T) C by {argument.name}"
        columns = list(zip(*blocks[argument.name], strict=True))
        kernel.add_node(argument, NodePart.GRADIENT, [-dot(c, taken) for c in columns])
        add_block(kernel, argument, columns, [left(column) for column in columns])
    return kernel.build()


def _times_left(rows: Sequence[Sequence[Scalar]]) -> Callable[[Sequence[Scalar]], list[Scalar]]:
    """Return what multiplies a column c by I - Q Q^T; with many rows, without that matrix."""
    columns = list(zip(*rows, strict=True))
    if len(rows) > 2 * len(columns):

        def taken_off(column: Sequence[Scalar]) -> list[Scalar]:
            inner = [dot(q, column) for q in columns]
            return [c - dot(row, inner) for c, row in zip(column, rows, strict=True)]

        return taken_off
    left = [
        [(1.0 if i == j else 0.0) - dot(row, other) for j, other in enumerate(rows)]
        for i, row in enumerate(rows)
    ]
    return lambda column: [dot(row, column) for row in left]


def mixed_blocks(
    kernel: FactorBuilder, blocks: Blocks, triangle: list[list[Scalar]]
) -> Iterator[tuple[Argument, list[list[Scalar]]]]:
    """Z = C^T E W^T by each node argument that is not eliminated: Z Z^T = C^T E V^-1 E^T C."""
    rows = _turned_rows(kernel, blocks, triangle)
    for argument in kernel.reduced:
        kernel.graph.origin = f"C^T E V^-1 by {argument.name}"
        columns = list(zip(*blocks[argument.name], strict=True))
        mixed = [
            [
                total(c * row[k] for c, row in zip(column, rows, strict=True))
                for k in range(len(triangle))
            ]
            for column in columns
        ]
        yield argument, mixed


def _turned_rows(
    kernel: FactorBuilder, blocks: Blocks, triangle: list[list[Scalar]]
) -> list[list[Scalar]]:
    """E W^T: the rows of E, each as W times it."""
    return [_times(triangle, row) for row in blocks[kernel.form.eliminated_argument.name]]


def read_triangle(kernel: FactorBuilder, eliminated: Argument) -> list[list[Scalar]]:
    """W of an eliminated node, its rows up to the diagonal."""
    packed = kernel.read_node(eliminated, NodePart.PRECONDITIONER)
    return by_rows(packed, eliminated.tangent_dim)


def by_rows(packed: Sequence[Scalar], dim: int) -> list[list[Scalar]]:
    """A packed lower triangle, its rows up to the diagonal."""
    entries = iter(packed)
    return [[next(entries) for _ in range(row + 1)] for row in range(dim)]


def _times(triangle: list[list[Scalar]], vector: Sequence[Scalar]) -> list[Scalar]:
    return [dot(row, vector[: len(row)]) for row in triangle]


def _transposed_times(triangle: list[list[Scalar]], vector: Sequence[Scalar]) -> list[Scalar]:
    dim = len(triangle)
    return [
        total(triangle[row][column] * vector[row] for row in range(column, dim))
        for column in range(dim)
    ]
