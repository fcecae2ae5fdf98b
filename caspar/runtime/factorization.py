"""Direct solvers of symmetric positive definite systems, as the solver sees them: in float64.

Existing libraries do the work: LAPACK, RSLAB and QDLDL on the processor, cuSOLVER and cuDSS on
CUDA. Each is loaded when it is first asked for. Cost tiers: making one, once for a plan (memory,
and for a sparse matrix the analysis of its pattern); `factorize`, and then `solve` or `invert`, for
every step that is tried.
"""

from typing import Any, Protocol

from caspar.memory.array import Array


class Factorization(Protocol):
    """A matrix of fixed size that is factorised and solved with again and again."""

    probes: bool
    """True if the library does not show its pivots: then it solves once more, and `outcome` has an
    estimate of the least eigenvalue instead."""

    @property
    def outcome(self) -> Array:
        """(2,) float64 on the device: how the last solve or inversion went.

        The first number is 1 if it failed, else 0. It failed if the matrix was seen not to be
        positive definite; the solution means nothing then. A pivot that is not positive shows it,
        and a solution that is not finite. cuDSS keeps its pivots to itself: there a negative one
        shows only where it leaves rhs . solution <= 0, that is, where the solution is no direction
        of descent.

        The second number is the least pivot, 0 if there was none that is positive, and 1 if the
        library does not tell. The condition of the matrix is at least its largest entry over that.
        """

    def factorize(self) -> None:
        """Factorise the matrix as it is now; on CUDA only enqueued, on the current stream."""

    def solve(self, rhs: Array, solution: Array) -> None:
        """Solve by the last factorisation into another array; on CUDA only enqueued."""

    def launch(self, rhs: Array, solution: Array) -> Any:
        """A launch that factorises and solves; None if only the host can call the library."""


class DenseFactorization(Factorization, Protocol):
    """A dense matrix."""

    @property
    def matrix(self) -> Array:
        """(size, size) row-major: the lower triangle is read, and both are destroyed."""

    @property
    def memory(self) -> Array:
        """The matrix as a flat array, and what fills its last 16 bytes."""

    def solve(self, rhs: Array, solution: Array) -> None:
        """The same as of any; also with k right-hand sides as the rows of (k, size)."""

    def invert(self, inverse: Array) -> None:
        """Invert by the last factorisation, both triangles; on CUDA only enqueued.

        What `inverse`, (size, size), holds means nothing if it failed.
        """


class SparseFactorization(Factorization, Protocol):
    """A sparse matrix whose pattern stays."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Reasons why another library than the usual one factorises, with advice."""

    @property
    def num_bytes(self) -> int:
        """Bytes of arrays beside the columns; what the library keeps is not counted."""

    @property
    def values(self) -> Array:
        """(nnz,) entries of the lower triangle in CSR; they are kept."""


def padded_matrix(xp: Any, size: int) -> tuple[Any, Any]:
    """Return flat float64 memory of whole 16 bytes, and the (size, size) matrix in it."""
    memory = xp.empty(size * size + size % 2)
    return memory, memory[: size * size].reshape(size, size)
