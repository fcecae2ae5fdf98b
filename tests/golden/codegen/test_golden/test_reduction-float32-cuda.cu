// (header)

#undef BLOCK_SIZE
#ifdef CHOSEN_BLOCK_SIZE
#define BLOCK_SIZE CHOSEN_BLOCK_SIZE
#else
#define BLOCK_SIZE 256
#endif
extern "C" __global__ void __launch_bounds__(BLOCK_SIZE MIN_BLOCKS)
accumulate_float32_6_by_32(
    u32 count,
    const float* partials_data,
    u32 partials_length,
    const int* partials_object_start,
    const int* partials_object_partials,
    float* output_data,
    u32 output_length,
    u32 output_first) {
  const u32 object = (blockIdx.x * BLOCK_SIZE + threadIdx.x) / 32u;
  const u32 lane = threadIdx.x % 32u;
  const bool active = object < count;
  const u32 first = 4u * blockIdx.y;
  const u32 width = min(6u - first, 4u);
  const float* chunk = partials_data + u64(first) * partials_length;
  float total[4] = {0, 0, 0, 0};
  const u32 end = active ? partials_object_start[object + 1] : 0u;
  u32 entry = active ? partials_object_start[object] + lane : 0u;
  for (; entry < end; entry += 32u) {
    const float* partial = chunk + u64(partials_object_partials[entry]) * width;
    for (u32 k = 0; k < 4; ++k) if (k < width) total[k] += partial[k];
  }
  for (u32 step = 16u; step > 0; step >>= 1) {
    for (u32 k = 0; k < 4; ++k) total[k] += __shfl_down_sync(0xffffffffu, total[k], step);
  }
  if (!active || lane != 0u) return;
  for (u32 k = 0; k < 4; ++k) {
    const u32 column = first + k;
    if (k >= width) break;
    output_data[(column < 4u ? (column / 4u * 4ull) * output_length + 4ull * (output_first + object) : 4ull * output_length + 2ull * (output_first + object)) + column % 4u] += total[k];
  }
}
