"""One evaluation of a factor: its residual, what that costs, and its Jacobian.

Input: the kernel that is being written, and how the factor's arguments are read. Output: an
`Evaluation`. Every kernel that evaluates a factor goes through it, so what a residual costs, and
how that changes residual and Jacobian, is decided here and nowhere else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from caspar.frontend.factors.jacobian import Blocks, tangent_jacobians
from caspar.frontend.factors.trace import Argument, TracedFactor
from caspar.frontend.symbolic.epsilon import SYMBOL, value
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar, dot
from caspar.memory.kernel_builder import KernelBuilder


@dataclass(frozen=True)
class Evaluation:
    """A factor at some values. Cost and Jacobian are added to the kernel when they are asked for.

    Attributes:
        kernel: Receives the operations.
        factor: The factor.
        storage: Values of the arguments, by name: (storage_dim,).
        lowering: Lowers more expressions of the same values.
        residual: (rows,).
    """

    kernel: KernelBuilder
    factor: TracedFactor
    storage: Mapping[str, list[Scalar]]
    lowering: Lowering
    residual: list[Scalar]

    @property
    def cost(self) -> Scalar:
        """Half the sum of squares of the residual."""
        return dot(self.residual, self.residual) * 0.5

    def jacobian(self, nodes: Sequence[Argument]) -> Blocks:
        """The derivative of the residual by the tangents of some of the factor's nodes."""
        turned = self.factor.turned
        return tangent_jacobians(
            self.kernel, nodes, self.residual, self.lowering, self.storage, turned
        )


def evaluate(
    kernel: KernelBuilder,
    factor: TracedFactor,
    read: Callable[[Argument], list[Scalar]],
    epsilon_of: DType,
) -> Evaluation:
    """Evaluate a factor.

    Args:
        kernel: Receives the operations.
        factor: The factor.
        read: The values of an argument: (storage_dim,). It is called once for each.
        epsilon_of: The type whose epsilon the residual has. Kernels that have the same Jacobian in
            different types need the same epsilon: else they differ where it counts.
    """
    symbols = {str(SYMBOL): kernel.graph.const(value(epsilon_of))}
    storage = {}
    for argument in factor.arguments:
        storage[argument.name] = read(argument)
        for symbol, scalar in zip(argument.symbols, storage[argument.name], strict=True):
            symbols[str(symbol)] = scalar.value
    kernel.graph.origin = f"{factor.name}: residual"
    where = f"factor {factor.name} ({factor.location})"
    lowering = Lowering(kernel.graph, symbols, where, factor.lines)
    residual = [Scalar(kernel.graph, lowering.lower(row)) for row in factor.residual]
    return Evaluation(kernel, factor, storage, lowering, residual)
