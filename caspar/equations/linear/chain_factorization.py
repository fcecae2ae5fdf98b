"""The kernels that factorise the block tridiagonal matrix of `chain_kernels`, by elimination.

Blocks are `chain_pivot`, those of the diagonal, and of each node its links to the nodes that are
left in front of it and behind it, `chain_front` and `chain_back`.
"""

from collections.abc import Sequence

from caspar.equations.node_blocks import ROUNDING, inverse_cholesky, triangle
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.names import kernel_name
from caspar.frontend.precision import Types
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar, dot, total
from caspar.memory.access import ReadAccessor
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_builder import KernelBuilder
from caspar.memory.patterns import (
    AddIndexed,
    ReadIndexed,
    ReadSequential,
    WriteIndexed,
    WriteSequential,
)

_LARGEST_COLUMN = 1e6
"""Squared length of a column of W M_ka: at most its diagonal entry, near 1, where M is positive
definite. False for NaN."""


def padded_rows(dim: int, dtype: DType) -> int:
    """Scalars of a column: whole chunks."""
    return -(-dim // dtype.chunk_length) * dtype.chunk_length


def zero(kernel: KernelBuilder) -> Scalar:
    """0."""
    return Scalar(kernel.graph, kernel.graph.const(0.0))


def by_columns(
    kernel: KernelBuilder, columns: Sequence[Sequence[Scalar]], dtype: DType
) -> list[Scalar]:
    """A matrix as it is kept."""
    pads = [zero(kernel)] * (padded_rows(len(columns[0]), dtype) - len(columns[0]))
    return [entry for column in columns for entry in (*column, *pads)]


def columns_of(entries: Sequence[Scalar], dim: int, dtype: DType) -> list[Sequence[Scalar]]:
    """The columns of a matrix that was read."""
    size = padded_rows(dim, dtype)
    return [entries[first : first + dim] for first in range(0, len(entries), size)]


def read_sizes(
    kernel: KernelBuilder, dim: int, types: Types, name: str, access: ReadAccessor
) -> list[Scalar]:
    """D^1/2 of the system."""
    return [entry.sqrt() for entry in kernel.read(name, dim, types.storage, access)]


def fill_kernel(node: NodeType, types: Types, *, scaled: bool) -> KernelSpec:
    """After `factorize`, of all nodes: the pivots before elimination, and block Jacobi's W."""
    dim = node.tangent_dim
    kernel = KernelBuilder(kernel_name(node.name, "chain_fill"), types.sums)
    places = triangle(dim)
    packed = kernel.read("reduced_block", len(places), types.sums, ReadSequential(rows=True))
    root = kernel.read("preconditioner", len(places), types.storage, ReadSequential())
    block = dict(zip(places, packed, strict=True))
    if not scaled:
        sizes = read_sizes(kernel, dim, types, "diagonal", ReadSequential())
        scale = [size.reciprocal() for size in sizes]
        block = {(i, j): entry * scale[i] * scale[j] for (i, j), entry in block.items()}
        root = [entry * sizes[j] for (_, j), entry in zip(places, root, strict=True)]
    damping = kernel.scalar("damping") + dim * ROUNDING[types.storage]
    for row in range(dim):
        block[row, row] = block[row, row] + damping
    columns = [[block[max(i, j), min(i, j)] for i in range(dim)] for j in range(dim)]
    pivot = by_columns(kernel, columns, types.sums)
    kernel.write("chain_pivot", pivot, types.sums, WriteIndexed())
    kernel.write("chain_root", root, types.storage, WriteIndexed("chain_pivot"))
    return kernel.build()


def join_kernel(node: NodeType, types: Types, *, scaled: bool) -> KernelSpec:
    """Of all nodes: what joins one to the node in front, seen from both."""
    dim = node.tangent_dim
    kernel = KernelBuilder(kernel_name(node.name, "chain_join"), types.sums)
    entries = kernel.read("links", dim * dim, DType.FLOAT64, ReadSequential())
    block = [list(entries[first : first + dim]) for first in range(0, dim * dim, dim)]
    if not scaled:
        own = read_sizes(kernel, dim, types, "diagonal", ReadSequential())
        front = read_sizes(kernel, dim, types, "front_diagonal", ReadIndexed())
        rows, columns = ([size.reciprocal() for size in sizes] for sizes in (own, front))
        block = [
            [entry * row * column for entry, column in zip(line, columns, strict=True)]
            for line, row in zip(block, rows, strict=True)
        ]
    to_front = by_columns(kernel, list(zip(*block, strict=True)), types.sums)
    to_back = by_columns(kernel, block, types.sums)
    kernel.write("chain_front", to_front, types.sums, WriteIndexed())
    kernel.write("chain_back", to_back, types.sums, WriteIndexed())
    return kernel.build()


def factorize_kernel(node: NodeType, types: Types) -> KernelSpec:
    """Of nodes that are eliminated: W of the pivot.

    Where the pivot is not positive definite block Jacobi's W stays, and `root` is zero: the node
    is not joined to any other then.
    """
    dim = node.tangent_dim
    kernel = KernelBuilder(kernel_name(node.name, "chain_factorize"), types.sums)
    places = triangle(dim)

    def read(name: str, size: int, dtype: DType) -> list[Scalar]:
        return kernel.read(name, size, dtype, ReadSequential(), windowed=True)

    pivot = columns_of(
        read("own_pivot", dim * padded_rows(dim, types.sums), types.sums), dim, types.sums
    )
    known = read("own_root", len(places), types.storage)
    inverse, is_definite = inverse_cholesky({(i, j): pivot[j][i] for i, j in places}, dim)
    found = [inverse[place] for place in places]
    root = [is_definite.where(entry, 0.0) for entry in found]
    kept = [is_definite.where(new, old) for new, old in zip(found, known, strict=True)]
    kernel.write("own_root", kept, types.storage, WriteSequential(), windowed=True)
    kernel.write("root", root, types.sums, WriteSequential())
    return kernel.build()


def columns_kernel(node: NodeType, types: Types) -> KernelSpec:
    """For each column of M_ka and M_kb: W times it, a *half*, and the multipliers' W^T W times it.

    The links of a and b to k, which is gone, become zero. An item for each column: 9 columns of 9
    numbers do not fit registers.
    """
    dim = node.tangent_dim
    kernel = KernelBuilder(kernel_name(node.name, "chain_columns"), types.sums)
    root = kernel.read("root", dim * (dim + 1) // 2, types.sums, ReadIndexed())
    lower = dict(zip(triangle(dim), root, strict=True))
    size = padded_rows(dim, types.sums)
    for side in ("front", "back"):
        # indices of the first side are those of the second
        read, half_write, write = (
            "" if side == "front" else f"{array}_front" for array in ("own", "half", "multiplier")
        )
        column = kernel.read(f"own_{side}", size, types.sums, ReadIndexed(read))[:dim]
        half = [total(lower[i, j] * column[j] for j in range(i + 1)) for i in range(dim)]
        usable = dot(half, half) < _LARGEST_COLUMN
        half = [usable.where(entry, 0.0) for entry in half]
        whole = [total(lower[i, j] * half[i] for i in range(j, dim)) for j in range(dim)]
        kept = by_columns(kernel, [half], types.sums)
        kernel.write(f"half_{side}", kept, types.sums, WriteIndexed(half_write))
        kept = by_columns(kernel, [whole], types.storage)
        kernel.write(f"multiplier_{side}", kept, types.storage, WriteIndexed(write))
        kernel.write(f"{side}_link", [zero(kernel)] * size, types.sums, WriteIndexed())
    return kernel.build()


def update_kernel(node: NodeType, types: Types) -> KernelSpec:
    """For each column: what elimination takes off a block of a neighbour.

    With the halves H_a and H_b these are H_a^T H_a of the pivot of a, H_a^T H_b of its link to b,
    and the other way round: `own` is the first, `column` one of the second.
    """
    dim = node.tangent_dim
    kernel = KernelBuilder(kernel_name(node.name, "chain_update"), types.sums)
    size = padded_rows(dim, types.sums)
    own = columns_of(kernel.read("own", dim * size, types.sums, ReadIndexed()), dim, types.sums)
    column = kernel.read("column", size, types.sums, ReadIndexed())[:dim]
    taken = [-dot(one, column) for one in own]
    kernel.write("block", by_columns(kernel, [taken], types.sums), types.sums, AddIndexed())
    return kernel.build()
