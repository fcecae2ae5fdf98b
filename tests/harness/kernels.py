"""CUDA sources on which the harness is tested; NVRTC accepts every one (test_harness.py)."""

VECTOR_ADD = """
extern "C" __global__ void __launch_bounds__(256)
add(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
"""

BLOCK_SUM = """
template <int N>
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float partial[N];
  partial[threadIdx.x] = value;
  __syncthreads();
#pragma unroll
  for (int s = N / 2; s > 0; s /= 2) {
    if (threadIdx.x < s) partial[threadIdx.x] += partial[threadIdx.x + s];
    __syncthreads();
  }
  return partial[0];
}

extern "C" __global__ void block_sums(const float* x, float* sums) {
  float sum = block_sum<128>(__ldg(x + blockIdx.x * 128 + threadIdx.x));
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
"""

WARP = """
extern "C" __global__ void warp_sums(const double* x, double* down, double* butterfly) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
  double a = x[i], b = a;
  for (int d = 16; d > 0; d /= 2) a += __shfl_down_sync(0xffffffffu, a, d);
  for (int d = 16; d > 0; d /= 2) b += __shfl_xor_sync(0xffffffffu, b, d);
  if (lane == 0) down[i / 32] = a;
  butterfly[i] = b;
}

extern "C" __global__ void segmented_shuffles(const int* x, int* out, int operand) {
  int t = threadIdx.x, n = blockDim.x;
  out[t] = __shfl_sync(0xffffffffu, x[t], operand, 8);
  out[n + t] = __shfl_up_sync(0xffffffffu, x[t], operand, 8);
  out[2 * n + t] = __shfl_down_sync(0xffffffffu, x[t], operand, 8);
  out[3 * n + t] = __shfl_xor_sync(0xffffffffu, x[t], operand, 8);
}

extern "C" __global__ void votes(const int* x, unsigned* out) {
  int t = threadIdx.x;
  unsigned even = __ballot_sync(0xffffffffu, x[t] % 2 == 0);
  unsigned result[7] = {even, (unsigned)__any_sync(0xffffffffu, x[t] == 7),
                        (unsigned)__all_sync(0xffffffffu, x[t] < 1000), 0u, 0u, 0u, 0u};
  if (t % 2 == 0) result[3] = __ballot_sync(0x55555555u, x[t] > 5);
  result[4] = __match_any_sync(0xffffffffu, x[t] % 3);
  result[5] = __reduce_add_sync(0xffffffffu, (unsigned)x[t]);
  result[6] = __syncthreads_count(x[t] > 5);
  for (int k = 0; k < 7; ++k) out[7 * t + k] = result[k];
}
"""

HISTOGRAM = """
extern "C" __global__ void histogram(const unsigned char* x, unsigned* counts, int n) {
  __shared__ unsigned bins[16];
  if (threadIdx.x < 16) bins[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&bins[x[i] % 16], 1u);
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(&counts[threadIdx.x], bins[threadIdx.x]);
}
"""

VECTORS = """
struct Mixed { char c; float4 f; char d; double2 e; char g; int2 h; char i; float3 j; };

extern "C" __global__ void scale(const float4* x, float4* y, double2* z, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float4 v = __ldcs(&x[i]);
  __stcs(&y[i], make_float4(factor * v.x, factor * v.y, factor * v.z, factor * v.w));
  z[i] = make_double2(v.x, v.w);
}

extern "C" __global__ void layout(int* out) {
  out[0] = alignof(float2); out[1] = alignof(float4); out[2] = alignof(double2);
  out[3] = alignof(int2);   out[4] = alignof(uint4);  out[5] = alignof(float3);
  out[6] = sizeof(float3);  out[7] = sizeof(double4); out[8] = sizeof(Mixed);
}
"""

ACCUMULATE = """
extern "C" __global__ void accumulate(const double* x, const int* index, double* sums, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&sums[index[i]], x[i]);
}

extern "C" __global__ void accumulate_wrongly(const double* x, const int* index, double* sums,
                                              int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) sums[index[i]] += x[i];
}

__device__ float atomic_max(float* address, float value) {
  int* bits = (int*)address;
  int old = *(volatile int*)bits, assumed;
  do {
    assumed = old;
    old = atomicCAS(bits, assumed, __float_as_int(fmaxf(value, __int_as_float(assumed))));
  } while (assumed != old);
  return __int_as_float(old);
}
extern "C" __global__ void largest(const float* x, float* out) {
  atomic_max(out, x[blockIdx.x * blockDim.x + threadIdx.x]);
}
"""

# Idioms published by NVIDIA: the padded tile transpose ("An Efficient Matrix Transpose in CUDA
# C/C++"), a scan by shuffles ("shfl_scan" sample), the aggregated atomic increment ("Pro Tip:
# Optimized Filtering with Warp-Aggregated Atomics"), the sum whose last block finishes
# ("threadFenceReduction" sample).
IDIOMS = """
#define TILE 32
#define ROWS 8
extern "C" __global__ void transpose(const float* in, float* out) {
  __shared__ float tile[TILE][TILE + 1];
  int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
  int width = gridDim.x * TILE, height = gridDim.y * TILE;
  for (int j = 0; j < TILE; j += ROWS) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * width + x];
  __syncthreads();
  x = blockIdx.y * TILE + threadIdx.x;
  y = blockIdx.x * TILE + threadIdx.y;
  for (int j = 0; j < TILE; j += ROWS) {
    out[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
  }
}

extern "C" __global__ void scan(const int* in, int* out) {
  __shared__ int warp_totals[32];
  int t = threadIdx.x, lane = t % warpSize, warp = t / warpSize, value = in[t];
  for (int d = 1; d < 32; d *= 2) {
    int other = __shfl_up_sync(0xffffffffu, value, d);
    if (lane >= d) value += other;
  }
  if (lane == 31) warp_totals[warp] = value;
  __syncthreads();
  if (warp == 0) {
    int total = lane < blockDim.x / 32 ? warp_totals[lane] : 0;
    for (int d = 1; d < 32; d *= 2) {
      int other = __shfl_up_sync(0xffffffffu, total, d);
      if (lane >= d) total += other;
    }
    warp_totals[lane] = total;
  }
  __syncthreads();
  out[t] = value + (warp > 0 ? warp_totals[warp - 1] : 0);
}

extern "C" __global__ void keep_positive(const int* in, int* out, int* count) {
  int value = in[blockIdx.x * blockDim.x + threadIdx.x];
  if (value > 0) {
    unsigned active = __activemask();
    int lane = threadIdx.x % 32, leader = __ffs(active) - 1, base = 0;
    if (lane == leader) base = atomicAdd(count, __popc(active));
    base = __shfl_sync(active, base, leader);
    out[base + __popc(active & ((1u << lane) - 1u))] = value;
  }
}

__device__ unsigned blocks_done = 0;
extern "C" __global__ void sum_of_all(const float* in, volatile float* partial, float* out) {
  __shared__ bool is_last;
  float value = in[blockIdx.x * 32 + threadIdx.x];
  for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(0xffffffffu, value, d);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = value;
    __threadfence();
    is_last = atomicInc(&blocks_done, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last && threadIdx.x == 0) {
    float sum = 0;
    for (int b = 0; b < gridDim.x; ++b) sum += partial[b];
    out[0] = sum;
  }
}
"""

LANGUAGE = """
__constant__ float weights[4] = {1.0f, 2.0f, 4.0f, 8.0f};
__device__ int num_calls = 0;
struct Pair { float x; int i; };

#if __CUDA_ARCH__ >= 600
extern "C" __global__ void parameters(bool flag, unsigned u, long long l, double d, Pair pair,
                                      const float* none, double* out) {
  out[0] = flag; out[1] = u; out[2] = l; out[3] = d; out[4] = pair.x + pair.i;
  out[5] = none == nullptr; out[6] = ++num_calls; out[7] = weights[u % 4];
}
#else
extern "C" __global__ void never_compiled() {}
#endif
// extern "C" __global__ void commented_out() {}

extern "C" __global__ void positions(int* out) {
  int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  int threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] = 100 * block + thread;
}

extern "C" __global__ void uninitialised_shared(float* out) {
  __shared__ float s[64];
  if (threadIdx.x % 2) s[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];
}

extern "C" __global__ void flag_between_threads(int* out) {
  __shared__ int flag;
  if (threadIdx.x == 0) atomicExch(&flag, 0);
  __syncthreads();
  if (threadIdx.x == 0) while (atomicAdd(&flag, 0) == 0) {}
  if (threadIdx.x == 63) atomicExch(&flag, 1);
  out[threadIdx.x] = 1;
}
"""

MATHEMATICS = """
extern "C" __global__ void real(const float* x, float* out) {
  float a = x[0], b = x[1], c = x[2], s, k;
  out[0] = rsqrtf(a);       out[1] = rcbrtf(a);           out[2] = norm3df(a, b, c);
  out[3] = rnorm4df(a, b, c, a); out[4] = rhypotf(a, b);  out[5] = __frcp_rn(a);
  out[6] = __fdividef(a, b); out[7] = __fmaf_rn(a, b, c); out[8] = fmaf(a, b, c);
  sincosf(a, &s, &k);       out[9] = s;                   out[10] = k;
  sincospif(a, &s, &k);     out[11] = s;                  out[12] = k;
  out[13] = copysignf(a, -b); out[14] = min(a, b);        out[15] = max(a, b);
  out[16] = __int_as_float(__float_as_int(a) + 1);        out[17] = __fsqrt_rn(b);
  out[18] = __saturatef(b); out[19] = rsqrt(b);           out[20] = ldexpf(a, 3);
}

extern "C" __global__ void real_double(const double* x, double* out) {
  double a = x[0], b = x[1], c = x[2], s, k;
  out[0] = rsqrt(a);  out[1] = rcbrt(a);  out[2] = norm3d(a, b, c);  out[3] = rnorm3d(a, b, c);
  out[4] = fma(a, b, c);  sincos(a, &s, &k);  out[5] = s;  out[6] = k;
  out[7] = __longlong_as_double(__double_as_longlong(b) ^ (1ll << 63));
  out[8] = __hiloint2double(__double2hiint(c), __double2loint(c));
}

extern "C" __global__ void integer(const int* x, const float* f, long long* out) {
  int a = x[0];
  unsigned u = a;
  out[0] = __popc(a);  out[1] = __ffs(a);  out[2] = __clz(a);  out[3] = __brev(u);
  out[4] = min(-1, a); out[5] = min(-1, u); out[6] = __umulhi(u, 0x80000000u);
  out[7] = __float2int_rn(f[0]);  out[8] = __float2int_rd(f[0]);  out[9] = __float2int_rz(f[1]);
  out[10] = __float2int_rn(f[2]); out[11] = __float2uint_rn(f[1]);
  out[12] = __byte_perm(0x33221100u, 0x77665544u, 0x4432u);
  out[13] = __byte_perm(0x33221100u, 0x77665544u, 0x0715u);
}
"""

ALL = {
    "vector_add": VECTOR_ADD,
    "block_sum": BLOCK_SUM,
    "warp": WARP,
    "histogram": HISTOGRAM,
    "vectors": VECTORS,
    "accumulate": ACCUMULATE,
    "idioms": IDIOMS,
    "language": LANGUAGE,
    "mathematics": MATHEMATICS,
}
