"""The kernels of a factor with an eliminated node: the implicit Schur complement.

With the Jacobians C by the reduced nodes and E by the eliminated one, the damped normal equations
without the eliminated steps are (B - sum C^T E V^-1 E^T C) x = -(g - sum C^T E V^-1 h), where V are
the eliminated nodes' damped diagonal blocks, h their gradients, and B, g those of the reduced
nodes (Triggs et al., *Bundle Adjustment: A Modern Synthesis*, 2000, section 6.1). V^-1 = W^T W is
read as the triangle W that the node type's `factorize` writes.
"""

from collections.abc import Callable, Iterator, Sequence

from caspar.equations.factor_builder import FactorBuilder, FactorForm
from caspar.equations.inner_kernel import inner_kernel
from caspar.equations.linearized import add_block, add_products, linearization, moved_residual
from caspar.equations.parts import NodePart
from caspar.frontend.factors.jacobian import Blocks, JacobianSlots
from caspar.frontend.factors.trace import Argument, TracedFactor
from caspar.frontend.precision import Types
from caspar.ir.scalar import Scalar, dot, total
from caspar.memory.kernel import KernelSpec


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
    """Of Q by rows: a column c to (I - Q Q^T) c; many rows without the matrix."""
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
