"""Dense direct solver on CUDA: cuSOLVER through CuPy, and for a small matrix one launch.

Nothing here waits for the device.
"""

from functools import cache, cached_property
from typing import Any

import cupy
import numpy as np
from cupy.cuda.device import get_cusolver_handle
from cupy_backends.cuda.libs import cusolver

from caspar.codegen.cuda.cholesky import CHOLESKY, MOST_UNKNOWNS
from caspar.codegen.cuda.header import COMPILE_OPTIONS
from caspar.memory.array import Array
from caspar.runtime.cuda.compile.kernel import loaded_kernel
from caspar.runtime.cuda.compile.modules import load_functions
from caspar.runtime.cuda.launch.launch import CudaLaunch
from caspar.runtime.factorization import padded_matrix
from caspar.runtime.parameters import parameter_table

_UPPER = 1
"""CUBLAS_FILL_MODE_UPPER: the lower triangle by rows is the upper one by columns."""

_MOST_ON_HOST = 1024
"""Columns of an identity up to which it comes from the host: 8 MiB."""

_CHECK_THREADS = 512
_CHECK_SOURCE = """
// One block: whether a solution is of no use, and the least pivot. That is the square of the least
// entry on the diagonal of `factor`, or by one step of inverse iteration |solution| / |probe|.
extern "C" __global__ void check(unsigned size, const double* rhs, const double* solution,
                                 const int* info, const double* factor, unsigned num_rows,
                                 const double* probe, double* outcome) {
    __shared__ double sums[512], squares[512], probed[512], least[512];
    int bad = info != nullptr && *info != 0, has_rhs = 0;
    double sum = 0.0, square = 0.0, other = 0.0, pivot = 1.0;
    for (unsigned i = threadIdx.x; i < size; i += blockDim.x) {
        const double b = rhs[i], x = solution[i];
        bad |= !isfinite(x);
        has_rhs |= b != 0.0;
        sum += b * x;
        square += x * x;
        if (probe != nullptr) other += probe[i] * probe[i];
    }
    if (factor != nullptr) {
        for (unsigned i = threadIdx.x; i < num_rows; i += blockDim.x) {
            const double entry = factor[(size_t)i * (num_rows + 1)];
            pivot = fmin(pivot, entry * entry);
        }
    }
    sums[threadIdx.x] = sum;
    squares[threadIdx.x] = square;
    probed[threadIdx.x] = other;
    least[threadIdx.x] = pivot;
    bad = __syncthreads_or(bad);
    has_rhs = __syncthreads_or(has_rhs);
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            const unsigned place = threadIdx.x, mate = place + half;
            sums[place] += sums[mate];
            squares[place] += squares[mate];
            probed[place] += probed[mate];
            least[place] = fmin(least[place], least[mate]);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        const bool failed = bad || (has_rhs && !(sums[0] > 0.0));
        double found = least[0];
        if (probe != nullptr && squares[0] > 0.0) found = fmin(1.0, sqrt(squares[0] / probed[0]));
        outcome[0] = failed ? 1.0 : 0.0;
        outcome[1] = failed ? 0.0 : found;
    }
}
"""


@cache
def _check_kernel(device: int) -> Any:
    return load_functions(_CHECK_SOURCE, ("check",))["check"].function


def check_solution(
    rhs: Array,
    solution: Array,
    outcome: Array,
    info: Array | None = None,
    factor: Array | None = None,
    probe: Array | None = None,
) -> None:
    """Enqueue: whether a factorisation failed, or shows in its solution that it should have.

    A solution that is not finite, or at whose side the right-hand side does not point, is not that
    of a positive definite matrix. `outcome` is written, see `Factorization.outcome`. `info` is not
    zero where the library says that it failed; `factor` is Cholesky's, (n, n); `probe` is what the
    factorisation makes of the solution. None: not known.
    """
    size, none = np.uint32(solution.shape[0]), np.uint64(0)
    num_rows = np.uint32(0 if factor is None else factor.shape[0])
    info, factor, probe = (none if one is None else one for one in (info, factor, probe))
    arguments = (size, rhs, solution, info, factor, num_rows, probe, outcome)
    _check_kernel(cupy.cuda.get_device_id())((1,), (_CHECK_THREADS,), arguments)


class CusolverCholesky:
    """A dense matrix, factorised in its place by cuSOLVER's potrf."""

    def __init__(self, size: int, outcome: Array | None = None) -> None:
        self.memory, self.matrix = padded_matrix(cupy, size)
        self.probes = False
        self.outcome = cupy.zeros(2) if outcome is None else outcome
        self._size = size
        self._identity: Array | None = None
        self._info = cupy.zeros(1, np.int32)
        self._solve_info = cupy.zeros(1, np.int32)

    @cached_property
    def _workspace(self) -> Array:
        handle, size, matrix = get_cusolver_handle(), self._size, self.matrix.data.ptr
        return cupy.empty(cusolver.dpotrf_bufferSize(handle, _UPPER, size, matrix, size))

    def launch(self, rhs: Array, solution: Array) -> CudaLaunch | None:
        """Return the launch that factorises and solves; None if the matrix is too large."""
        if self._size > MOST_UNKNOWNS:
            return None
        kernel = loaded_kernel(CHOLESKY, CHOLESKY.block_size, COMPILE_OPTIONS)
        values = (self.matrix, rhs, self._size, solution, self.outcome)
        return CudaLaunch(kernel, parameter_table(values), 1, values)

    def factorize(self) -> None:
        """Cholesky's factorisation: enqueued on the current stream, which CuPy passes on."""
        handle, size, matrix = get_cusolver_handle(), self._size, self.matrix.data.ptr
        workspace, info = self._workspace, self._info.data.ptr
        cusolver.dpotrf(
            handle, _UPPER, size, matrix, size, workspace.data.ptr, workspace.shape[0], info
        )

    def solve(self, rhs: Array, solution: Array) -> None:
        """Solve by the factor: enqueued in the same way."""
        self._solve_columns(rhs.reshape(-1), solution.reshape(-1), rhs.size // self._size)

    def invert(self, inverse: Array) -> None:
        """Solve for the columns of the identity: CuPy does not pass on potri."""
        if self._identity is None:
            # CuPy compiles a kernel to fill a diagonal
            made = np.eye if self._size <= _MOST_ON_HOST else cupy.eye
            self._identity = cupy.asarray(made(self._size)).reshape(-1)
        self._solve_columns(self._identity, inverse.reshape(-1), self._size)

    def _solve_columns(self, rhs: Array, solution: Array, num_columns: int) -> None:
        handle, size, matrix = get_cusolver_handle(), self._size, self.matrix.data.ptr
        if solution.data.ptr != rhs.data.ptr:
            solution.data.copy_from_device_async(rhs.data, rhs.nbytes)
        info, target = self._solve_info.data.ptr, solution.data.ptr
        cusolver.dpotrs(handle, _UPPER, size, num_columns, matrix, size, target, size, info)
        check_solution(rhs, solution, self.outcome, self._info, self.matrix)
