"""The linearised residual of a factor, and what its items add to their nodes.

Input: a `FactorBuilder`, and entries of the Jacobian. Output: calls and writes in its graph.
"""

from collections.abc import Sequence

from caspar.equations.factor_builder import FactorBuilder
from caspar.equations.parts import NodePart
from caspar.frontend.factors.block_parts import block_places
from caspar.frontend.factors.jacobian import Blocks, JacobianSlots, Linearization, load_jacobian
from caspar.frontend.factors.trace import Argument
from caspar.ir.scalar import Scalar, dot


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
