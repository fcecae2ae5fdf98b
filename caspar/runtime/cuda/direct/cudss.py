"""Sparse direct solver on CUDA: cuDSS through nvmath-python's bindings.

Both may be missing: `probe.sparse_problem` says so. Making one waits for the device and analyses
the pattern on the host; `solve` only enqueues.
"""

import weakref
from collections.abc import Callable
from functools import partial

import cupy
import numpy as np

from caspar.errors import BackendError
from caspar.memory.array import Array
from caspar.runtime.cuda.direct.dense import check_solution
from caspar.runtime.nvidia.probe import first_line, sparse_problem

try:
    from nvmath.bindings import cudss
except Exception:  # a broken installation raises anything; `sparse_problem` says what
    cudss = None


class CudssFactorization:
    """A sparse matrix, factorised by cuDSS (L D L^T) in the order that it finds.

    Not by its Cholesky factorisation, which is up to 1.4 times as fast: once that has met a
    negative pivot, cuDSS 0.8 refuses every later matrix. L D L^T goes on, so that a matrix that is
    not positive definite is known by its solution only (see `check_solution`).
    """

    remarks: tuple[str, ...] = ()

    def __init__(
        self, indptr: Array, indices: Array, size: int, outcome: Array | None = None
    ) -> None:
        problem = sparse_problem()
        if problem is not None:
            raise BackendError(f"sparse factorisation on CUDA needs cuDSS: {problem}")
        self._indptr = cupy.ascontiguousarray(indptr, dtype=np.int32)
        self._indices = cupy.ascontiguousarray(indices, dtype=np.int32)
        self.values = cupy.zeros(indices.shape[0])
        self.outcome = cupy.zeros(2) if outcome is None else outcome
        self.probes = False
        self._probe: Array | None = None
        vectors = cupy.asarray(np.ones((2, size)))
        releases: list[Callable[[], None]] = []
        # at the end of the process the driver frees everything
        weakref.finalize(self, _release, releases).atexit = False
        try:
            self._create(size, vectors, releases)
            self._execute(cudss.Phase.ANALYSIS)
            # allocates what the factors need; of the identity, as there are no values yet
            identity = np.zeros(self.values.shape[0])
            identity[self._indptr[1:].get() - 1] = 1.0
            self.values.set(identity)
            self._execute(cudss.Phase.FACTORIZATION)
            self._execute(cudss.Phase.SOLVE)
            cupy.cuda.get_current_stream().synchronize()
        except Exception as error:
            raise BackendError(f"cuDSS refuses the matrix: {first_line(error)}") from error

    def launch(self, rhs: Array, solution: Array) -> None:
        """Return None: the host calls the library."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the values, and of the numbers where rows begin."""
        return int(self.values.nbytes + self._indptr.nbytes)

    def _create(self, size: int, vectors: Array, releases: list[Callable[[], None]]) -> None:
        """Make cuDSS's objects; each one's release is noted at once."""
        handle = self._handle = cudss.create()
        releases.append(partial(cudss.destroy, handle))
        config = self._config = cudss.config_create()
        releases.append(partial(cudss.config_destroy, config))
        _configure(config)
        data = self._data = cudss.data_create(handle)
        releases.append(partial(cudss.data_destroy, handle, data))
        value_type, index_type = cudss.DataType.R_64F, cudss.DataType.R_32I
        matrix = self._matrix = cudss.matrix_create_csr(
            size,
            size,
            self.values.shape[0],
            self._indptr.data.ptr,
            0,
            self._indices.data.ptr,
            self.values.data.ptr,
            index_type,
            index_type,
            value_type,
            cudss.MatrixType.SYMMETRIC,
            cudss.MatrixViewType.LOWER,
            cudss.IndexBase.ZERO,
        )
        releases.append(partial(cudss.matrix_destroy, matrix))
        layout = cudss.Layout.COL_MAJOR
        self._rhs, self._solution = (
            cudss.matrix_create_dn(size, 1, size, vector.data.ptr, value_type, layout)
            for vector in vectors
        )
        for vector in (self._rhs, self._solution):
            releases.append(partial(cudss.matrix_destroy, vector))

    def factorize(self) -> None:
        """L D L^T: enqueued on the current stream. Right-hand side and solution are not touched."""
        self._execute(cudss.Phase.REFACTORIZATION)

    def solve(self, rhs: Array, solution: Array) -> None:
        """Solve by the factors: enqueued on the current stream."""
        self._solve(rhs, solution)
        probe = None
        if self.probes:
            # asking cuDSS for its pivots would wait for the device
            if self._probe is None:
                self._probe = cupy.empty(solution.shape[0])
            probe = self._probe
            self._solve(solution, probe)
        check_solution(rhs, solution, self.outcome, probe=probe)

    def _solve(self, rhs: Array, solution: Array) -> None:
        cudss.matrix_set_values(self._rhs, rhs.data.ptr)
        cudss.matrix_set_values(self._solution, solution.data.ptr)
        self._execute(cudss.Phase.SOLVE)

    def _execute(self, phase: int) -> None:
        cudss.set_stream(self._handle, cupy.cuda.get_current_stream().ptr)
        cudss.execute(
            self._handle,
            phase,
            self._config,
            self._data,
            self._matrix,
            self._solution,
            self._rhs,
        )


def _configure(config: int) -> None:
    """Pivots are taken as they come, and left as they are: a zero one spoils the solution."""
    for param, value in (
        (cudss.ConfigParam.PIVOT_TYPE, cudss.PivotType.PIVOT_NONE),
        (cudss.ConfigParam.PIVOT_EPSILON, 0.0),
    ):
        scalar = np.array(value, cudss.get_config_param_dtype(param))
        cudss.config_set(config, param, scalar.ctypes.data, scalar.nbytes)


def _release(releases: list[Callable[[], None]]) -> None:
    """Destroy cuDSS's objects, the last one first; waits for work that still uses them."""
    if len(releases) > 0:
        cupy.cuda.runtime.deviceSynchronize()
    for release in reversed(releases):
        release()
