"""The kernels of a node type: retract, and its part of the preconditioned conjugate gradients.

The linear system is (J^T J + damping D) step = -gradient with D = diag(J^T J), preconditioned by
the inverse of its diagonal blocks. Blocks are factorised after scaling to unit diagonal; what is
stored is W = L^-1 S, so that W^T W r is positive semidefinite whatever rounding does to W.
"""

from collections.abc import Sequence

from caspar.frontend.epsilon import SYMBOL, value
from caspar.frontend.lower import Lowering
from caspar.frontend.precision import Types
from caspar.frontend.trace import NodeType, retracted_storage
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar, dot, total
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_builder import KernelBuilder
from caspar.memory.patterns import AddSumPartials, ReadSequential, WriteSequential

SMALLEST_CURVATURE = 1e-30
"""Diagonal entries of J^T J below this count as absent: the scalar is untouched by any factor.
No larger clamp: points may run to infinity, and clamping the shrinking diagonal freezes them."""

_SMALLEST_PIVOT = {DType.FLOAT32: 1e-7, DType.FLOAT64: 1e-15}
"""Lower bound of a pivot of a block scaled to unit diagonal."""

MODEL_DIM = 5
"""Sums a retraction takes for the model of the cost: see `retract_kernel`."""


NODE_ROLES = ("factorize", "start", "step", "turn", "solve", "retract")
"""Ends of the names of a node type's kernels."""


def node_kernels(node: NodeType, types: Types, *, eliminated: bool = False) -> list[KernelSpec]:
    """All kernels of a node type."""
    if eliminated:
        return [
            factorize_kernel(node, types, eliminated=True),
            solve_kernel(node, types),
            eliminated_retract_kernel(node, types),
        ]
    return [
        factorize_kernel(node, types),
        start_kernel(node, types),
        step_kernel(node, types),
        turn_kernel(node, types),
        retract_kernel(node, types),
    ]


def _triangle(num_rows: int) -> list[tuple[int, int]]:
    return [(row, column) for row in range(num_rows) for column in range(row + 1)]


def factorize_kernel(node: NodeType, types: Types, *, eliminated: bool = False) -> KernelSpec:
    """From `block` and `damping`: `diagonal` D and `preconditioner` W, lower triangle by rows.

    D is of J^T J. W is of `reduced_block`, the block of the system that is solved; an eliminated
    node has but `block`.
    """
    dim = node.tangent_dim
    kernel = KernelBuilder(f"{node.name}_factorize", types.sums)

    def read(name: str) -> dict[tuple[int, int], Scalar]:
        packed = kernel.read(name, dim * (dim + 1) // 2, types.sums, ReadSequential())
        return dict(zip(_triangle(dim), packed, strict=True))

    full = read("block")
    block = full if eliminated else read("reduced_block")
    damping = kernel.scalar("damping")
    diagonal = [_safe_diagonal(full[row, row]) for row in range(dim)]
    scale = [entry.sqrt().reciprocal() for entry in diagonal]
    scaled = {
        (i, j): entry * scale[i] * scale[j] + (damping if i == j else 0.0)
        for (i, j), entry in block.items()
    }
    inverse = _inverse_cholesky(scaled, dim, _SMALLEST_PIVOT[types.sums])
    stored = [inverse[i, j] * scale[j] for i, j in _triangle(dim)]
    kernel.write("diagonal", diagonal, types.storage, WriteSequential())
    kernel.write("preconditioner", stored, types.storage, WriteSequential())
    return kernel.build()


def _inverse_cholesky(
    matrix: dict[tuple[int, int], Scalar], dim: int, smallest_pivot: float
) -> dict[tuple[int, int], Scalar]:
    """L^-1 of a symmetric positive definite matrix L L^T, lower triangles."""
    factor: dict[tuple[int, int], Scalar] = {}
    reciprocal: list[Scalar] = []
    for j in range(dim):
        pivot = _minus_products(matrix[j, j], [(factor[j, k], factor[j, k]) for k in range(j)])
        reciprocal.append(pivot.max(smallest_pivot).sqrt().reciprocal())
        for i in range(j + 1, dim):
            pairs = [(factor[i, k], factor[j, k]) for k in range(j)]
            factor[i, j] = _minus_products(matrix[i, j], pairs) * reciprocal[j]
    inverse: dict[tuple[int, int], Scalar] = {}
    for j in range(dim):
        inverse[j, j] = reciprocal[j]
        for i in range(j + 1, dim):
            carried = total(factor[i, k] * inverse[k, j] for k in range(j, i))
            inverse[i, j] = -(carried * reciprocal[i])
    return inverse


def damped_step(
    dim: int,
    dtype: DType,
    square: Sequence[Scalar],
    slope: Sequence[Scalar],
    damping: Scalar,
) -> list[Scalar]:
    """-(A + damping diag(A))^-1 g of a small block A, its lower triangle given by rows."""
    block = dict(zip(_triangle(dim), square, strict=True))
    scale = [_safe_diagonal(block[row, row]).sqrt().reciprocal() for row in range(dim)]
    scaled = {
        (i, j): entry * scale[i] * scale[j] + (damping if i == j else 0.0)
        for (i, j), entry in block.items()
    }
    inverse = _inverse_cholesky(scaled, dim, _SMALLEST_PIVOT[dtype])
    lower = {(i, j): inverse[i, j] * scale[j] for i, j in _triangle(dim)}
    inner = [total(lower[i, j] * slope[j] for j in range(i + 1)) for i in range(dim)]
    return [-total(lower[i, j] * inner[i] for i in range(j, dim)) for j in range(dim)]


def _safe_diagonal(entry: Scalar) -> Scalar:
    """An entry of the diagonal; 1 where no factor touches the scalar."""
    least = Scalar(entry.builder, entry.builder.const(SMALLEST_CURVATURE))
    return (least < entry).where(entry, 1.0)


def _minus_products(first: Scalar, pairs: Sequence[tuple[Scalar, Scalar]]) -> Scalar:
    return total([first, *(-(a * b) for a, b in pairs)])


def _preconditioned(
    kernel: KernelBuilder, dim: int, types: Types, residual: Sequence[Scalar]
) -> list[Scalar]:
    """z = W^T (W r)."""
    packed = kernel.read("preconditioner", dim * (dim + 1) // 2, types.storage, ReadSequential())
    lower = dict(zip(_triangle(dim), packed, strict=True))
    inner = [total(lower[i, j] * residual[j] for j in range(i + 1)) for i in range(dim)]
    return [total(lower[i, j] * inner[i] for i in range(j, dim)) for j in range(dim)]


def _write_direction(
    kernel: KernelBuilder, dim: int, types: Types, direction: Sequence[Scalar]
) -> None:
    """Write `direction` p, and `product` = damping D p with its part of the curvature p.(A p)."""
    diagonal = kernel.read("diagonal", dim, types.storage, ReadSequential())
    damping = kernel.scalar("damping")
    damped = [damping * entry * p for entry, p in zip(diagonal, direction, strict=True)]
    kernel.write("direction", direction, types.storage, WriteSequential())
    kernel.write("product", damped, types.storage, WriteSequential())
    kernel.write("curvature", [dot(damped, direction)], types.sums, AddSumPartials())


def start_kernel(node: NodeType, types: Types) -> KernelSpec:
    """First vectors of PCG: step 0, residual -gradient, direction z; sums `descent` = r.z."""
    dim = node.tangent_dim
    kernel = KernelBuilder(f"{node.name}_start", types.storage)
    gradient = kernel.read("gradient", dim, types.sums, ReadSequential())
    residual = [-entry for entry in gradient]
    preconditioned = _preconditioned(kernel, dim, types, residual)
    zero = Scalar(kernel.graph, kernel.graph.const(0.0))
    kernel.write("step", [zero] * dim, types.storage, WriteSequential())
    kernel.write("residual", residual, types.storage, WriteSequential())
    kernel.write("descent", [dot(residual, preconditioned)], types.sums, AddSumPartials())
    _write_direction(kernel, dim, types, preconditioned)
    return kernel.build()


def step_kernel(node: NodeType, types: Types) -> KernelSpec:
    """step += alpha p, residual -= alpha A p, z = W^T W r; sums `descent` = r.z."""
    dim = node.tangent_dim
    kernel = KernelBuilder(f"{node.name}_step", types.storage)
    kernel.guard("done")
    alpha = kernel.scalar("alpha")

    def read(name: str) -> list[Scalar]:
        return kernel.read(name, dim, types.storage, ReadSequential())

    step = [x + alpha * p for x, p in zip(read("step"), read("direction"), strict=True)]
    residual = [r - alpha * q for r, q in zip(read("residual"), read("product"), strict=True)]
    preconditioned = _preconditioned(kernel, dim, types, residual)
    kernel.write("step", step, types.storage, WriteSequential())
    kernel.write("residual", residual, types.storage, WriteSequential())
    kernel.write("preconditioned", preconditioned, types.storage, WriteSequential())
    kernel.write("descent", [dot(residual, preconditioned)], types.sums, AddSumPartials())
    return kernel.build()


def turn_kernel(node: NodeType, types: Types) -> KernelSpec:
    """The next direction: p = z + beta p."""
    dim = node.tangent_dim
    kernel = KernelBuilder(f"{node.name}_turn", types.storage)
    kernel.guard("done")
    beta = kernel.scalar("beta")
    preconditioned = kernel.read("preconditioned", dim, types.storage, ReadSequential())
    previous = kernel.read("direction", dim, types.storage, ReadSequential())
    direction = [z + beta * p for z, p in zip(preconditioned, previous, strict=True)]
    _write_direction(kernel, dim, types, direction)
    return kernel.build()


def solve_kernel(node: NodeType, types: Types) -> KernelSpec:
    """Of an eliminated type: `inner` = W^T W `inner`."""
    dim = node.tangent_dim
    kernel = KernelBuilder(f"{node.name}_solve", types.storage)
    kernel.guard("done")
    inner = kernel.read("inner", dim, types.storage, ReadSequential())
    solved = _preconditioned(kernel, dim, types, inner)
    kernel.write("inner", solved, types.storage, WriteSequential())
    return kernel.build()


def retract_kernel(node: NodeType, types: Types) -> KernelSpec:
    """Move `nodes` by `step` to `candidate`; sums `model`.

    The sums are step.gradient, step.residual, damping step.D step, D-weighted squared norm of
    the step, and 0: the first three give the decrease of the linear model by an inexact step,
    -1/2 step.gradient + 1/2 step.residual + 1/2 damping step.D step (residual = b - A step).
    """
    dim = node.tangent_dim
    kernel = KernelBuilder(f"{node.name}_retract", types.storage)
    step = kernel.read("step", dim, types.storage, ReadSequential())
    _write_moved(kernel, node, types, step)
    gradient = kernel.read("gradient", dim, types.sums, ReadSequential())
    residual = kernel.read("residual", dim, types.storage, ReadSequential())
    model = [dot(step, gradient), dot(step, residual)]
    _write_model(kernel, dim, types, step, model, 0.0)
    return kernel.build()


def eliminated_retract_kernel(node: NodeType, types: Types) -> KernelSpec:
    """Of an eliminated type: the step -W^T W (gradient + `inner`), and as `retract_kernel`.

    Its rows of the system hold exactly, so there is no residual; the last sum is |W gradient|^2,
    twice the decrease that these nodes promise by themselves.
    """
    dim = node.tangent_dim
    kernel = KernelBuilder(f"{node.name}_retract", types.storage)
    gradient = kernel.read("gradient", dim, types.sums, ReadSequential())
    inner = kernel.read("inner", dim, types.storage, ReadSequential())
    rest = [g + t for g, t in zip(gradient, inner, strict=True)]
    step = [-entry for entry in _preconditioned(kernel, dim, types, rest)]
    _write_moved(kernel, node, types, step)
    zero = Scalar(kernel.graph, kernel.graph.const(0.0))
    promised = dot(gradient, _preconditioned(kernel, dim, types, gradient))
    _write_model(kernel, dim, types, step, [dot(step, gradient), zero], promised)
    return kernel.build()


def _write_moved(
    kernel: KernelBuilder, node: NodeType, types: Types, step: Sequence[Scalar]
) -> None:
    """`candidate`: the node after the step."""
    storage, tangent, moved = retracted_storage(node, "node")
    nodes = kernel.read("nodes", node.storage_dim, types.storage, ReadSequential())
    symbols = {str(SYMBOL): kernel.graph.const(value(types.storage))}
    for names, scalars in ((storage, nodes), (tangent, step)):
        symbols |= {str(name): s.value for name, s in zip(names, scalars, strict=True)}
    lowering = Lowering(kernel.graph, symbols, f"node type {node.name}")
    candidate = [Scalar(kernel.graph, lowering.lower(entry)) for entry in moved]
    kernel.write("candidate", candidate, types.storage, WriteSequential())


def _write_model(
    kernel: KernelBuilder,
    dim: int,
    types: Types,
    step: Sequence[Scalar],
    first: Sequence[Scalar],
    last: Scalar | float,
) -> None:
    diagonal = kernel.read("diagonal", dim, types.storage, ReadSequential())
    squared = dot([d * x for d, x in zip(diagonal, step, strict=True)], step)
    promised = squared * 0.0 + last
    model = [*first, kernel.scalar("damping") * squared, squared, promised]
    kernel.write("model", model, types.sums, AddSumPartials())
