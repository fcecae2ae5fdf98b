"""Cholesky's factorisation of a small matrix and a solve by it, as one CUDA kernel of one block.

A library's factorisation is called by the host, between launches. Of a small matrix it takes less
time than the host's part in that; as one launch among others it is part of a CUDA graph.

The lower triangle is in shared memory. Panels of eight columns are eliminated one after the other
(right-looking, LAPACK's blocked potf2). Each thread factorises the panel's diagonal block by
itself: that takes no barrier. The right-hand side is one more row of the matrix, so that the
forward substitution is done on the way.
"""

from caspar.codegen.source import DATA, LENGTH, KernelSource, Param
from caspar.ir.dtype import DType

MOST_UNKNOWNS = 96
"""Rows of a matrix that the kernel takes: its triangle and a panel fit into 48 KiB."""

CHOLESKY_THREADS = 256

_TEXT = f"""\
typedef unsigned int u32;

#define PANEL 8u
#define MOST {MOST_UNKNOWNS}u
#define SIDE 16u  // of the square of threads

__device__ __forceinline__ u32 place(u32 row, u32 column) {{
  return row * (row + 1u) / 2u + column;
}}

// A diagonal block of the lower triangle; beyond the matrix it is that of the identity.
__device__ __forceinline__ void load_block(double (&block)[8][8], const double* lower, u32 size,
                                           u32 first) {{
#pragma unroll
  for (u32 r = 0; r < PANEL; ++r) {{
#pragma unroll
    for (u32 c = 0; c <= r; ++c) {{
      const bool inside = first + r < size;
      block[r][c] = inside ? lower[place(first + r, first + c)] : (r == c ? 1.0 : 0.0);
    }}
  }}
}}

// matrix: (size, size) by rows, of which the lower triangle is read.
// outcome: whether there is no solution, and the least pivot, of 1 and the squares of the factor's
// diagonal.
extern "C" __global__ void __launch_bounds__({CHOLESKY_THREADS})
solve_cholesky(const double* matrix, const double* rhs, u32 size, double* solution,
               double* outcome) {{
  __shared__ double lower[MOST * (MOST + 1u) / 2u];
  __shared__ double panel[MOST][PANEL + 1u];
  __shared__ double side[MOST], inverses[MOST];
  __shared__ double side_panel[PANEL];
  const u32 thread = threadIdx.x;
  double least = 1.0;
  bool failed = false;
  for (u32 row = thread / SIDE; row < size; row += blockDim.x / SIDE) {{
    for (u32 column = thread % SIDE; column <= row; column += SIDE) {{
      lower[place(row, column)] = matrix[row * size + column];
    }}
  }}
  for (u32 row = thread; row < size; row += blockDim.x) side[row] = rhs[row];
  u32 first = 0;
  for (; first < size; first += PANEL) {{
    __syncthreads();
    const u32 width = min(PANEL, size - first), rest = first + width;
    // the row behind the last one is the right-hand side
    const u32 row = rest + thread;
    const bool is_side = row == size;
    double block[8][8], inverse[8];
    if (row <= size) {{
      load_block(block, lower, size, first);
#pragma unroll
      for (u32 c = 0; c < PANEL; ++c) {{
        const double pivot = block[c][c];
        failed |= !(pivot > 0.0);
        least = fmin(least, pivot);
        inverse[c] = rsqrt(pivot > 0.0 ? pivot : 1.0);
        block[c][c] = (pivot > 0.0 ? pivot : 1.0) * inverse[c];
#pragma unroll
        for (u32 r = c + 1u; r < PANEL; ++r) block[r][c] *= inverse[c];
#pragma unroll
        for (u32 r = c + 1u; r < PANEL; ++r) {{
#pragma unroll
          for (u32 d = c + 1u; d <= r; ++d) block[r][d] -= block[r][c] * block[d][c];
        }}
      }}
      double entries[8];
#pragma unroll
      for (u32 c = 0; c < PANEL; ++c) {{
        double sum = 0.0;
        if (c < width) sum = is_side ? side[first + c] : lower[place(row, first + c)];
#pragma unroll
        for (u32 d = 0; d < c; ++d) sum -= block[c][d] * entries[d];
        entries[c] = sum * inverse[c];
      }}
#pragma unroll
      for (u32 c = 0; c < PANEL; ++c) {{
        if (is_side) {{
          side_panel[c] = entries[c];
          if (c < width) side[first + c] = entries[c];
        }} else {{
          panel[row][c] = entries[c];
          if (c < width) lower[place(row, first + c)] = entries[c];
        }}
      }}
    }}
    __syncthreads();
    if (is_side) {{
#pragma unroll
      for (u32 r = 0; r < PANEL; ++r) {{
#pragma unroll
        for (u32 c = 0; c < r; ++c) {{
          if (r < width) lower[place(first + r, first + c)] = block[r][c];
        }}
        if (r < width) inverses[first + r] = inverse[r];
      }}
    }}
    for (u32 i = rest + thread / SIDE; i < size; i += blockDim.x / SIDE) {{
      for (u32 j = rest + thread % SIDE; j <= i; j += SIDE) {{
        double sum = lower[place(i, j)];
#pragma unroll
        for (u32 c = 0; c < PANEL; ++c) sum -= panel[i][c] * panel[j][c];
        lower[place(i, j)] = sum;
      }}
    }}
    for (u32 j = rest + thread; j < size; j += blockDim.x) {{
      double sum = side[j];
#pragma unroll
      for (u32 c = 0; c < PANEL; ++c) sum -= side_panel[c] * panel[j][c];
      side[j] = sum;
    }}
  }}
  // the thread of the last right-hand side has seen all pivots
  const bool sums_up = thread == 0u;
  double along = 0.0;
  bool has_rhs = false;
  while (first > 0) {{
    __syncthreads();
    first -= PANEL;
    double entries[8];
    if (thread < first || sums_up) {{
      double block[8][8];
      load_block(block, lower, size, first);
#pragma unroll
      for (u32 back = 0; back < PANEL; ++back) {{
        const u32 c = PANEL - 1u - back;
        double sum = first + c < size ? side[first + c] : 0.0;
#pragma unroll
        for (u32 r = c + 1u; r < PANEL; ++r) sum -= block[r][c] * entries[r];
        entries[c] = first + c < size ? sum * inverses[first + c] : 0.0;
      }}
    }}
    for (u32 column = thread; column < first; column += blockDim.x) {{
      double sum = side[column];
#pragma unroll
      for (u32 r = 0; r < PANEL; ++r) {{
        if (first + r < size) sum -= lower[place(first + r, column)] * entries[r];
      }}
      side[column] = sum;
    }}
    if (sums_up) {{
#pragma unroll
      for (u32 c = 0; c < PANEL; ++c) {{
        if (first + c < size) {{
          const double given = rhs[first + c];
          solution[first + c] = entries[c];
          failed |= !isfinite(entries[c]);
          has_rhs |= given != 0.0;
          along += given * entries[c];
        }}
      }}
    }}
  }}
  if (sums_up) {{
    failed |= has_rhs && !(along > 0.0);
    outcome[0] = failed ? 1.0 : 0.0;
    outcome[1] = failed ? 0.0 : least;
  }}
}}
"""

CHOLESKY = KernelSource(
    "solve_cholesky",
    _TEXT,
    (
        Param(DATA, "matrix", DType.FLOAT64),
        Param(DATA, "rhs", DType.FLOAT64),
        Param(LENGTH, "rhs"),
        Param(DATA, "solution", DType.FLOAT64, written=True),
        Param(DATA, "outcome", DType.FLOAT64, written=True),
    ),
    (CHOLESKY_THREADS,),
)
"""Solves by a matrix of at most `MOST_UNKNOWNS` rows, in one block."""
