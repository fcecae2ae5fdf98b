"""CUDA kernels that move objects between rows and the blocked layout.

Rows (n, dim) are contiguous: a block's items are one stretch of them. Of a blocked array they are
one stretch of each chunk. Both sides are accessed in coalesced vectors of 16 bytes, and the items
are transposed in shared memory.

H200, the least over dims 1 to 17 and 24 and both types, of the bandwidth of a copy: to the blocked
layout 0.95 (0.88 from rows that do not begin at 16 bytes), to rows 0.97 (0.95).
"""

from caspar.codegen.cuda.kernel import kernel_text
from caspar.codegen.source import KernelSource, kernel_params
from caspar.ir.dtype import CHUNK_BYTES
from caspar.memory.accessors.scope import SCALAR_TYPE
from caspar.memory.kernel import ConvertSpec, Direction

BLOCK_SIZE = 128
"""Threads of a block. Twice as many: 0.82 of the bandwidth of a copy for the slowest dim, not 0.95
(H200)."""

_TILE_BYTES = 4096
"""Bytes of the rows of a block. Half as many: 0.88 for the slowest dim; twice: 0.93 (H200)."""

_MIN_TILE, _MAX_TILE = 32, 512
"""Items of a block: a warp's access of a chunk is whole with 32."""

_SHARED_BYTES = 48 * 1024
"""Shared memory of a block that every device has."""


def generate_cuda_convert(spec: ConvertSpec) -> KernelSource:
    """Write the kernel of a conversion."""
    params = kernel_params(spec.args)
    tile_size = _tile_size(spec)
    is_wide = tile_size == 0
    text = kernel_text(
        spec.name,
        spec.args,
        params,
        BLOCK_SIZE,
        _wide_body(spec) if is_wide else [_call(spec, tile_size)],
        functions=() if is_wide else _FUNCTIONS[spec.direction],
        restrict=True,
    )
    num_chunks = len(spec.blocked.chunk_widths)
    return KernelSource(
        spec.name,
        text,
        params,
        (BLOCK_SIZE,),
        threads_per_item=num_chunks if is_wide else max(BLOCK_SIZE // tile_size, 1),
        items_per_thread=max(tile_size // BLOCK_SIZE, 1),
    )


def _tile_size(spec: ConvertSpec) -> int:
    """Items of a block, a power of two; 0 where not even a few fit in shared memory."""
    item_bytes = spec.dim * spec.dtype.itemsize
    size = _MIN_TILE
    while size < _MAX_TILE and 2 * size * item_bytes <= _TILE_BYTES:
        size *= 2
    while size * (item_bytes + CHUNK_BYTES) > _SHARED_BYTES:
        size //= 2
    # where a tile is whole vectors, all begin at the alignment of the first
    return size if size % 4 == 0 else 0


def _call(spec: ConvertSpec, tile_size: int) -> str:
    given = f"{SCALAR_TYPE[spec.dtype]}, {spec.dim}u, {tile_size}u, BLOCK_SIZE"
    window = "blocked_length, blocked_first, count"
    if spec.direction is Direction.PACK:
        return f"blocked_from_rows<RowTile<{given}>>(blocked_data, rows_data, {window});"
    return f"rows_from_blocked<RowTile<{given}>>(rows_data, blocked_data, {window});"


def _wide_body(spec: ConvertSpec) -> list[str]:
    """Items that do not fit in shared memory: a thread moves one chunk, scalar by scalar."""
    length, num_chunks = spec.blocked.chunk_length, len(spec.blocked.chunk_widths)
    scalar = SCALAR_TYPE[spec.dtype]
    packs = spec.direction is Direction.PACK
    row, place = (f"const {scalar}", scalar) if packs else (scalar, f"const {scalar}")
    lines = [
        "const u64 work = u64(blockIdx.x) * BLOCK_SIZE + threadIdx.x;",
        f"const u64 item = work / {num_chunks}u;",
        "if (item >= count) return;",
        f"const u32 column = u32(work % {num_chunks}u) * {length}u;",
        f"const u32 width = min({spec.dim}u - column, {length}u);",
        "const u32 stride = width == 3u ? 4u : width;",
        f"{row}* const row = rows_data + {spec.dim}ull * item + column;",
        f"{place}* const place = blocked_data + u64(column) * blocked_length"
        f" + stride * (u64({spec.blocked.object('0u')}) + item);",
    ]
    if packs:
        return [*lines, "for (u32 k = 0; k < stride; ++k) place[k] = k < width ? row[k] : 0;"]
    return [*lines, "for (u32 k = 0; k < width; ++k) row[k] = place[k];"]


_ROW_TILE = """\
#ifndef CASPAR_ROW_TILE
#define CASPAR_ROW_TILE
template <typename T> struct Wide;
template <> struct Wide<float> { typedef float4 type; };
template <> struct Wide<double> { typedef double2 type; };

// The rows of ITEMS objects in shared memory.
template <typename T, u32 COLUMNS, u32 ITEMS, u32 BLOCK_THREADS>
struct RowTile {
  typedef T Scalar;
  typedef typename Wide<T>::type Vector;
  static constexpr u32 DIM = COLUMNS, TILE = ITEMS, THREADS = BLOCK_THREADS;
  static constexpr u32 CHUNK = 16 / sizeof(T);  // scalars of a vector
  static constexpr u32 NUM_CHUNKS = (DIM + CHUNK - 1) / CHUNK;
  static constexpr u32 REST = DIM % CHUNK;  // scalars in use in the last chunk; 0: all
  // Items stand STRIDE scalars apart. Threads of a warp access the same part of consecutive items:
  // in units of 4, 8 or 16 bytes (what DIM allows) the stride must be odd, or they meet in the same
  // banks. It is, unless items are an even number of vectors.
  static constexpr bool IS_PADDED = DIM % (2 * CHUNK) == 0;
  static constexpr u32 STRIDE = IS_PADDED ? DIM + CHUNK : DIM;
  static constexpr u32 VECTOR_ROUNDS = (TILE * DIM / CHUNK + THREADS - 1) / THREADS;
  static constexpr u32 SCALAR_ROUNDS = (TILE * DIM + THREADS - 1) / THREADS;
  static constexpr u32 CHUNK_ROUNDS = (TILE * NUM_CHUNKS + THREADS - 1) / THREADS;

  // whether all of a chunk's scalars are in use
  static __device__ __forceinline__ bool is_full(u32 chunk) {
    return REST == 0 || chunk + 1 < NUM_CHUNKS;
  }

  // where the scalar at `offset` of the rows stands
  static __device__ __forceinline__ u32 position(u32 offset) {
    return IS_PADDED ? offset + offset / DIM * CHUNK : offset;
  }
};
#endif
"""

_BLOCKED_FROM_ROWS = """\
#ifndef CASPAR_BLOCKED_FROM_ROWS
#define CASPAR_BLOCKED_FROM_ROWS
// `count` scalars of rows to shared memory: all loads of a thread, or some where they are of single
// scalars, are on their way before the first is waited for.
template <typename R, typename T>
__device__ __forceinline__ void load_rows(T* stage, const T* __restrict__ rows, u32 count) {
  typedef typename R::Vector Vector;
  if (u64(rows) % 16 == 0) {
    const u32 vectors = count / R::CHUNK;
    Vector part[R::VECTOR_ROUNDS];
#pragma unroll
    for (u32 round = 0; round < R::VECTOR_ROUNDS; ++round) {
      const u32 vector = round * R::THREADS + threadIdx.x;
      if (vector < vectors) part[round] = reinterpret_cast<const Vector*>(rows)[vector];
    }
#pragma unroll
    for (u32 round = 0; round < R::VECTOR_ROUNDS; ++round) {
      const u32 vector = round * R::THREADS + threadIdx.x;
      if (vector < vectors) {
        *reinterpret_cast<Vector*>(stage + R::position(vector * R::CHUNK)) = part[round];
      }
    }
    const u32 offset = vectors * R::CHUNK + threadIdx.x;
    if (offset < count) stage[R::position(offset)] = rows[offset];
  } else {
    constexpr u32 BATCH = R::SCALAR_ROUNDS < 8 ? R::SCALAR_ROUNDS : 8;
    for (u32 begin = threadIdx.x; begin < count; begin += BATCH * R::THREADS) {
      T part[BATCH];
#pragma unroll
      for (u32 round = 0; round < BATCH; ++round) {
        const u32 offset = begin + round * R::THREADS;
        if (offset < count) part[round] = rows[offset];
      }
#pragma unroll
      for (u32 round = 0; round < BATCH; ++round) {
        const u32 offset = begin + round * R::THREADS;
        if (offset < count) stage[R::position(offset)] = part[round];
      }
    }
  }
}

// WIDTH scalars from shared memory, by the widest access that items allow.
template <typename R, u32 WIDTH, typename T>
__device__ __forceinline__ void get_scalars(T* value, const T* place) {
  if constexpr (WIDTH == R::CHUNK && R::DIM % R::CHUNK == 0) {
    typedef typename R::Vector Vector;
    *reinterpret_cast<Vector*>(value) = *reinterpret_cast<const Vector*>(place);
  } else if constexpr (sizeof(T) == 4 && WIDTH % 2 == 0 && R::DIM % 2 == 0) {
#pragma unroll
    for (u32 k = 0; k < WIDTH; k += 2) {
      const float2 pair = *reinterpret_cast<const float2*>(place + k);
      value[k] = pair.x;
      value[k + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (u32 k = 0; k < WIDTH; ++k) value[k] = place[k];
  }
}

// Objects first, first + 1, ... of a blocked array, from `count` rows.
template <typename R, typename T>
__device__ __forceinline__ void blocked_from_rows(
    T* __restrict__ blocked, const T* __restrict__ rows, u32 length, u32 first, u32 count) {
  typedef typename R::Vector Vector;
  __shared__ __align__(16) T stage[R::TILE * R::STRIDE];
  const u32 begin = blockIdx.x * R::TILE;
  const u32 items = min(R::TILE, count - begin);
  load_rows<R>(stage, rows + u64(begin) * R::DIM, items * R::DIM);
  __syncthreads();
#pragma unroll
  for (u32 round = 0; round < R::CHUNK_ROUNDS; ++round) {
    const u32 work = round * R::THREADS + threadIdx.x;
    const u32 chunk = work / R::TILE, item = work % R::TILE;
    if (item >= items || chunk >= R::NUM_CHUNKS) continue;
    const T* const place = stage + item * R::STRIDE + chunk * R::CHUNK;
    T* const target = blocked + u64(chunk) * R::CHUNK * length;
    const u64 object = u64(first) + begin + item;
    __align__(16) T value[R::CHUNK];
    if (R::is_full(chunk)) {
      get_scalars<R, R::CHUNK>(value, place);
      reinterpret_cast<Vector*>(target)[object] = *reinterpret_cast<const Vector*>(value);
    } else if constexpr (R::REST == 1) {
      target[object] = place[0];
    } else if constexpr (R::REST == 2) {
      get_scalars<R, 2>(value, place);
      reinterpret_cast<float2*>(target)[object] = make_float2(value[0], value[1]);
    } else if constexpr (R::REST == 3) {
      get_scalars<R, 3>(value, place);
      reinterpret_cast<float4*>(target)[object] = make_float4(value[0], value[1], value[2], 0.0f);
    }
  }
}
#endif
"""

_ROWS_FROM_BLOCKED = """\
#ifndef CASPAR_ROWS_FROM_BLOCKED
#define CASPAR_ROWS_FROM_BLOCKED
// WIDTH scalars to shared memory, by the widest access that items allow.
template <typename R, u32 WIDTH, typename T>
__device__ __forceinline__ void put_scalars(T* place, const T* value) {
  if constexpr (WIDTH == R::CHUNK && R::DIM % R::CHUNK == 0) {
    typedef typename R::Vector Vector;
    *reinterpret_cast<Vector*>(place) = *reinterpret_cast<const Vector*>(value);
  } else if constexpr (sizeof(T) == 4 && WIDTH % 2 == 0 && R::DIM % 2 == 0) {
#pragma unroll
    for (u32 k = 0; k < WIDTH; k += 2) {
      *reinterpret_cast<float2*>(place + k) = make_float2(value[k], value[k + 1]);
    }
  } else {
#pragma unroll
    for (u32 k = 0; k < WIDTH; ++k) place[k] = value[k];
  }
}

// `count` scalars of rows from shared memory.
template <typename R, typename T>
__device__ __forceinline__ void store_rows(T* __restrict__ rows, const T* stage, u32 count) {
  typedef typename R::Vector Vector;
  if (u64(rows) % 16 == 0) {
    const u32 vectors = count / R::CHUNK;
#pragma unroll
    for (u32 round = 0; round < R::VECTOR_ROUNDS; ++round) {
      const u32 vector = round * R::THREADS + threadIdx.x;
      if (vector < vectors) {
        reinterpret_cast<Vector*>(rows)[vector] =
            *reinterpret_cast<const Vector*>(stage + R::position(vector * R::CHUNK));
      }
    }
    const u32 offset = vectors * R::CHUNK + threadIdx.x;
    if (offset < count) rows[offset] = stage[R::position(offset)];
  } else {
#pragma unroll 8
    for (u32 offset = threadIdx.x; offset < count; offset += R::THREADS) {
      rows[offset] = stage[R::position(offset)];
    }
  }
}

// `count` rows, from the objects first, first + 1, ... of a blocked array.
template <typename R, typename T>
__device__ __forceinline__ void rows_from_blocked(
    T* __restrict__ rows, const T* __restrict__ blocked, u32 length, u32 first, u32 count) {
  typedef typename R::Vector Vector;
  __shared__ __align__(16) T stage[R::TILE * R::STRIDE];
  const u32 begin = blockIdx.x * R::TILE;
  const u32 items = min(R::TILE, count - begin);
  Vector part[R::CHUNK_ROUNDS];
#pragma unroll
  for (u32 round = 0; round < R::CHUNK_ROUNDS; ++round) {
    const u32 work = round * R::THREADS + threadIdx.x;
    const u32 chunk = work / R::TILE, item = work % R::TILE;
    if (item >= items || chunk >= R::NUM_CHUNKS) continue;
    const T* const source = blocked + u64(chunk) * R::CHUNK * length;
    const u64 object = u64(first) + begin + item;
    if (R::REST == 3 || R::is_full(chunk)) {
      part[round] = reinterpret_cast<const Vector*>(source)[object];
    } else if constexpr (R::REST == 1) {
      part[round].x = source[object];
    } else if constexpr (R::REST == 2) {
      const float2 pair = reinterpret_cast<const float2*>(source)[object];
      part[round].x = pair.x;
      part[round].y = pair.y;
    }
  }
#pragma unroll
  for (u32 round = 0; round < R::CHUNK_ROUNDS; ++round) {
    const u32 work = round * R::THREADS + threadIdx.x;
    const u32 chunk = work / R::TILE, item = work % R::TILE;
    if (item >= items || chunk >= R::NUM_CHUNKS) continue;
    T* const place = stage + item * R::STRIDE + chunk * R::CHUNK;
    __align__(16) T value[R::CHUNK];
    *reinterpret_cast<Vector*>(value) = part[round];
    if (R::is_full(chunk)) {
      put_scalars<R, R::CHUNK>(place, value);
    } else {
      put_scalars<R, R::REST == 0 ? 1 : R::REST>(place, value);
    }
  }
  __syncthreads();
  store_rows<R>(rows + u64(begin) * R::DIM, stage, items * R::DIM);
}
#endif
"""

_FUNCTIONS = {
    Direction.PACK: (_ROW_TILE, _BLOCKED_FROM_ROWS),
    Direction.UNPACK: (_ROW_TILE, _ROWS_FROM_BLOCKED),
}
