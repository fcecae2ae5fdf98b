"""The kernels of the block tridiagonal preconditioner of one node type.

M is the block diagonal of the system and what factors add between nodes that follow each other.
It is factorised, M = L D L^T, in an order that a device can follow: a chain is cut into segments of
`RUN` + 1 nodes; the last `RUN` of each are eliminated one after the other, in all segments at once,
and what remains, the *separators*, is a chain again: a *level*. (Block cyclic reduction, Heller,
*SIAM J. Numer. Anal.* 13, 1976, with longer segments.) z = L^-T D^-1 L^-1 r is symmetric and r.z
not negative whatever rounding does to L and D.

Of a node k that is eliminated between a and b are kept W of its pivot, D_k^-1 = W^T W, and its rows
of L^T, the multipliers D_k^-1 M_ka and D_k^-1 M_kb. Everything is scaled by D^-1/2 of the system
from both sides. Nodes are kept by *slots*, in the order of elimination. Matrices are kept by
columns, each padded to whole chunks, so that a kernel may take one of them, or one of its columns.

Cost tiers: `chain_fill` to `chain_update` once for a linear solve, the others in each iteration.
"""

from collections.abc import Iterator, Sequence

from caspar.equations.factor_kernels import factor_kernels
from caspar.equations.linear.chain_factorization import (
    columns_kernel,
    columns_of,
    factorize_kernel,
    fill_kernel,
    join_kernel,
    padded_rows,
    read_sizes,
    update_kernel,
    zero,
)
from caspar.equations.linear.chain_form import chain_pairs, chained_types
from caspar.equations.linear.explicit_kernels import pair_kernel
from caspar.equations.node_blocks import triangle
from caspar.equations.node_kernels import write_advanced, write_direction
from caspar.equations.scalar_kernels import begin_kernel
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.frontend.names import kernel_name
from caspar.frontend.precision import Types
from caspar.ir.scalar import Scalar, dot, total
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_builder import KernelBuilder
from caspar.memory.patterns import (
    AddIndexed,
    AddSumPartials,
    ReadIndexed,
    ReadSequential,
    WriteIndexed,
    WriteSequential,
)

RUN = 3
"""Nodes of a segment that are eliminated. A level costs two barriers of the grid in each iteration,
and the more of a segment are eliminated, the fewer levels there are: log4(n)."""


def chain_kernels(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], types: Types, form: SolverForm
) -> list[KernelSpec]:
    """Those of every chained type, and `pair_*` of factors: what they add between two nodes."""
    made = [begin_kernel("chain_begin")]
    chained = chained_types(factors, form)
    for node in nodes:
        if node.name in chained:
            made += chain_node_kernels(node, types, scaled=form.is_scaled)
    for factor in factors:
        own = form.factors[factor.name]
        slots = factor_kernels(factor, types, own).slots
        pairs = chain_pairs(factor, own)
        made += [pair_kernel(factor, types, own, slots, pair) for pair in pairs]
    return made


def chain_node_kernels(node: NodeType, types: Types, *, scaled: bool) -> list[KernelSpec]:
    """The kernels of a chained type; `scaled`: see `node_kernels`."""
    return [
        fill_kernel(node, types, scaled=scaled),
        join_kernel(node, types, scaled=scaled),
        factorize_kernel(node, types),
        columns_kernel(node, types),
        update_kernel(node, types),
        _start(node, types, scaled=scaled),
        _step(node, types, scaled=scaled),
        _forward(node, types),
        _solve(node, types),
        _backward(node, types),
        _turn(node, types, scaled=scaled),
    ]


# -- conjugate gradients -------------------------------------------------------------------------


def _enter(
    kernel: KernelBuilder, dim: int, types: Types, residual: Sequence[Scalar], *, scaled: bool
) -> None:
    """The scaled residual to its slot; nothing is carried to it yet."""
    entering = list(residual)
    if not scaled:
        sizes = read_sizes(kernel, dim, types, "diagonal", ReadSequential())
        entering = [r * size.reciprocal() for r, size in zip(residual, sizes, strict=True)]
    kernel.write("chain_residual", entering, types.storage, WriteIndexed())
    kernel.write(
        "chain_carried", [zero(kernel)] * dim, types.storage, WriteIndexed("chain_residual")
    )


def _start(node: NodeType, types: Types, *, scaled: bool) -> KernelSpec:
    """First vectors of PCG, but for the direction: step 0, residual -gradient."""
    dim = node.tangent_dim
    kernel = KernelBuilder(kernel_name(node.name, "chain_start"), types.storage)
    gradient = kernel.read("gradient", dim, types.sums, ReadSequential(rows=True))
    for name in ("step", "direction"):
        kernel.write(name, [zero(kernel)] * dim, types.storage, WriteSequential())
    residual = [-entry for entry in gradient]
    kernel.write("residual", residual, types.storage, WriteSequential())
    _enter(kernel, dim, types, residual, scaled=scaled)
    return kernel.build()


def _step(node: NodeType, types: Types, *, scaled: bool) -> KernelSpec:
    """step += alpha p, residual -= alpha A p."""
    dim = node.tangent_dim
    kernel = KernelBuilder(kernel_name(node.name, "chain_step"), types.storage, few_items=True)
    kernel.guard("done")
    residual = write_advanced(kernel, dim, types)
    _enter(kernel, dim, types, residual, scaled=scaled)
    return kernel.build()


def _multipliers(
    kernel: KernelBuilder, dim: int, types: Types, side: str, number: int
) -> Iterator[Sequence[Scalar]]:
    """Columns of the multipliers of a segment's node."""
    size = dim * padded_rows(dim, types.storage)
    entries = kernel.read(f"{side}{number}", size, types.storage, ReadSequential(), windowed=True)
    yield from columns_of(entries, dim, types.storage)


def _forward(node: NodeType, types: Types) -> KernelSpec:
    """L^-1 r of one level, an item for each segment.

    What goes to the separator of the next segment goes to `chain_carried`: that one's own item
    writes `chain_residual` at the same time.
    """
    dim = node.tangent_dim
    kernel = KernelBuilder(kernel_name(node.name, "chain_forward"), types.storage)
    kernel.guard("done")

    def read(name: str) -> list[Scalar]:
        return kernel.read(name, dim, types.storage, ReadSequential(), windowed=True)

    front: list[list[Scalar]] = []
    passed: list[Scalar] | None = None
    for number in range(RUN):
        residual = read(f"residual{number}")
        if passed is not None:
            residual = [r + entry for r, entry in zip(residual, passed, strict=True)]
            name = f"residual{number}"
            kernel.write(name, residual, types.storage, WriteSequential(), windowed=True)
        own = [r + entry for r, entry in zip(residual, read(f"carried{number}"), strict=True)]
        front.append([-dot(one, own) for one in _multipliers(kernel, dim, types, "front", number)])
        passed = [-dot(one, own) for one in _multipliers(kernel, dim, types, "back", number)]
    assert passed is not None
    summed = [total(parts) for parts in zip(*front, strict=True)]
    kernel.write("separator", summed, types.storage, AddIndexed())
    kernel.write("following", passed, types.storage, AddIndexed())
    return kernel.build()


def _solve(node: NodeType, types: Types) -> KernelSpec:
    """D^-1 of all nodes; sums `descent` = r.z, which is |W L^-1 r|^2."""
    dim = node.tangent_dim
    kernel = KernelBuilder(kernel_name(node.name, "chain_solve"), types.storage, few_items=True)
    kernel.guard("done")
    own = kernel.read("chain_residual", dim, types.storage, ReadIndexed())
    carried = kernel.read("chain_carried", dim, types.storage, ReadIndexed("chain_residual"))
    root = kernel.read(
        "chain_root", dim * (dim + 1) // 2, types.storage, ReadIndexed("chain_residual")
    )
    lower = dict(zip(triangle(dim), root, strict=True))
    residual = [a + b for a, b in zip(own, carried, strict=True)]
    half = [total(lower[i, j] * residual[j] for j in range(i + 1)) for i in range(dim)]
    solved = [total(lower[i, j] * half[i] for i in range(j, dim)) for j in range(dim)]
    kernel.write("chain_solved", solved, types.storage, WriteIndexed("chain_residual"))
    kernel.write("descent", [dot(half, half)], types.sums, AddSumPartials())
    return kernel.build()


def _backward(node: NodeType, types: Types) -> KernelSpec:
    """L^-T of one level, an item for each segment."""
    dim = node.tangent_dim
    kernel = KernelBuilder(kernel_name(node.name, "chain_backward"), types.storage)
    kernel.guard("done")
    separator = kernel.read("separator", dim, types.storage, ReadIndexed())
    behind = kernel.read("following", dim, types.storage, ReadIndexed())
    for number in reversed(range(RUN)):
        name = f"solved{number}"
        own = kernel.read(name, dim, types.storage, ReadSequential(), windowed=True)
        parts: list[list[Scalar]] = [[entry] for entry in own]
        for side, neighbour in (("front", separator), ("back", behind)):
            columns = _multipliers(kernel, dim, types, side, number)
            for column, z in zip(columns, neighbour, strict=True):
                for row, entry in enumerate(column):
                    parts[row].append(-(entry * z))
        behind = [total(terms) for terms in parts]
        kernel.write(name, behind, types.storage, WriteSequential(), windowed=True)
    return kernel.build()


def _turn(node: NodeType, types: Types, *, scaled: bool) -> KernelSpec:
    """The next direction: p = z + beta p."""
    dim = node.tangent_dim
    kernel = KernelBuilder(kernel_name(node.name, "chain_turn"), types.storage, few_items=True)
    kernel.guard("done")
    beta = kernel.scalar("beta")
    preconditioned = kernel.read("chain_solved", dim, types.storage, ReadIndexed())
    if not scaled:
        sizes = read_sizes(kernel, dim, types, "diagonal", ReadSequential())
        preconditioned = [
            z * size.reciprocal() for z, size in zip(preconditioned, sizes, strict=True)
        ]
    previous = kernel.read("direction", dim, types.storage, ReadSequential())
    direction = [z + beta * p for z, p in zip(preconditioned, previous, strict=True)]
    write_direction(kernel, dim, types, direction, scaled=scaled)
    return kernel.build()
