"""Inner iterations: steps of the eliminated nodes alone, at the candidate of a step.

Points that run to infinity, or that a camera's step left behind, need damping of their own; without
it they hold up the whole problem (Ladybug-49 is within 1e-4 of its optimum after 6 iterations
instead of 21). Each node takes a few Levenberg-Marquardt steps by itself, the other nodes held; a
step counts only if the node's own cost falls. (Ruhe and Wedin's algorithm for separable problems,
carried out inexactly; Ceres calls it inner iterations.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from caspar.equations.evaluation import evaluate
from caspar.equations.factor_builder import FactorBuilder, FactorForm
from caspar.equations.node_blocks import clamped, damped_diagonal, damped_step, free_within
from caspar.equations.parts import LIMITS, NodePart, is_free
from caspar.frontend.factors.jacobian import Linearization
from caspar.frontend.factors.retraction import retracted
from caspar.frontend.factors.trace import TracedFactor
from caspar.frontend.precision import Types
from caspar.ir.scalar import Scalar, dot
from caspar.memory.accessors.nodes.exchanges import ReadForNode, SpreadOverNode, SumOverNode
from caspar.memory.accessors.nodes.node_sums import WriteOwnNode
from caspar.memory.kernel import KernelSpec

DAMPING_GROWTH = 10.0
"""Factor of a node's damping after a step that did not lower its cost."""

SMALLEST_RAISED = 1e-4
"""Damping of a node after such a step, at least."""


@dataclass(frozen=True)
class _State:
    """A node at some values.

    Attributes:
        storage: Its values.
        cost: That of its factors, one number.
        slope: Gradient of the cost by the tangent.
        square: J^T J, as weights and losses have corrected it, lower triangle by rows.
    """

    storage: list[Scalar]
    cost: list[Scalar]
    slope: list[Scalar]
    square: list[Scalar]

    @property
    def parts(self) -> tuple[list[Scalar], ...]:
        """All of it."""
        return self.storage, self.cost, self.slope, self.square


def inner_kernel(
    factor: TracedFactor, types: Types, form: FactorForm, num_steps: int
) -> KernelSpec:
    """Move the eliminated nodes of `candidate` by some steps of their own.

    Args:
        factor: The only factor that touches the eliminated node type.
        types: Floating types.
        form: How its kernels are made.
        num_steps: Steps of each node, those that do not count included.
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
    """Evaluates a factor at other values of its eliminated node."""

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
        """The candidate, for the node's leader."""
        argument, access = self._eliminated, ReadForNode(self.team)
        name, dtype = self._kernel.value_of(argument)
        return self._kernel.read(name, argument.storage_dim, dtype, access)

    def free(self) -> list[Scalar] | None:
        """Whether each component of the node's tangent moves, for its leader; None: all do."""
        form = self._kernel.form
        has_own = form.masks_eliminated and not form.bounds_eliminated
        return is_free(self._of_node(NodePart.FREE)) if has_own else None

    def limits(self) -> list[list[Scalar]] | None:
        """The node's lower and upper bounds, for its leader; None: it has none."""
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
        """What the leader has, for each item."""
        self._num_spreads += 1
        name = self._eliminated.part(f"spread{self._num_spreads}")
        return self._kernel.exchange(name, storage, SpreadOverNode(self.team))

    def _summed(self, values: Sequence[Scalar]) -> list[Scalar]:
        self._num_sums += 1
        name = self._eliminated.part(f"sum{self._num_sums}")
        access = SumOverNode("" if self._num_sums == 1 else self.team)
        return self._kernel.exchange(name, values, access)
