"""A CUDA kernel that tells whether arrays have changed: a sum of mixed words, 64 bits."""

CHECKSUM_KERNEL = "sum_words"
"""Entry point of `CHECKSUM_SOURCE`."""

CHECKSUM_SOURCE = """\
typedef unsigned int u32;
typedef unsigned long long u64;

// Bijective; every bit of the result depends on every bit of the input: the last steps of
// "splitmix64" (Steele, Lea and Flood, OOPSLA 2014).
__device__ __forceinline__ u64 mixed(u64 value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

// What a word adds depends on the word and on its place among the words of all arrays.
__device__ __forceinline__ u64 word_term(u32 word, u64 place) {
  return mixed(mixed(place * 0x9e3779b97f4a7c15ull) ^ word);
}

// arrays: (num_arrays, 2) address and number of words, on the host; so is `result`. state: sum and
// blocks done, zeros before and after.
extern "C" __global__ void __launch_bounds__(256) sum_words(
    u32 num_arrays, const u64* arrays, u64* state, u64* result) {
  __shared__ u64 sums[8];
  const u64 step = u64(gridDim.x) * blockDim.x;
  const u64 thread = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  u64 sum = 0, place = 1;
  for (u32 number = 0; number < num_arrays; ++number) {
    const u32* words = reinterpret_cast<const u32*>(arrays[2u * number]);
    const u64 count = arrays[2u * number + 1u];
    u64 i = thread;
    for (; i + 3u * step < count; i += 4u * step) {
      const u32 a = words[i], b = words[i + step];
      const u32 c = words[i + 2u * step], d = words[i + 3u * step];
      sum += word_term(a, place + i) + word_term(b, place + i + step);
      sum += word_term(c, place + i + 2u * step) + word_term(d, place + i + 3u * step);
    }
    for (; i < count; i += step) sum += word_term(words[i], place + i);
    place += count;
  }
  for (u32 other = 16; other > 0u; other >>= 1) {
    sum += __shfl_xor_sync(0xffffffffu, sum, int(other));
  }
  if ((threadIdx.x & 31u) == 0u) sums[threadIdx.x >> 5] = sum;
  __syncthreads();
  if (threadIdx.x != 0u) return;
  for (u32 warp = 1; warp < 8u; ++warp) sum += sums[warp];
  atomicAdd(&state[0], sum);
  __threadfence();
  if (atomicAdd(&state[1], 1ull) + 1u < gridDim.x) return;
  *result = atomicAdd(&state[0], 0ull);
  state[0] = 0;
  state[1] = 0;
}
"""
