// (header)

extern "C" __global__ void __launch_bounds__(256 MIN_BLOCKS)
distance_score(
    u32 count,
    const float* place_data,
    u32 place_length,
    const int* place_index,
    const float* measured_data,
    u32 measured_length,
    float* residual_data,
    u32 residual_length,
    double* cost_data,
    u32 cost_length,
    u32 cost_offset) {
  const u32 tile = blockIdx.x;
  const u32 own_item = tile * blockDim.x + threadIdx.x;
  const bool active = own_item < count;
  const u32 item = active ? own_item : count - 1u;
  const u32 place_object = place_index[item];
  __shared__ double sums[2][4][32];
  double r0, r1, r2, r3;
  const float2 m1 = *reinterpret_cast<const float2*>(place_data + 2ull * place_object);
  r0 = double(m1.x);
  r1 = double(m1.y);
  const float2 m2 = *reinterpret_cast<const float2*>(measured_data + 2ull * item);
  r2 = double(m2.x);
  r3 = double(m2.y);
  // distance: offset = place - measured
  r0 = r0 - r2;
  r1 = r1 - r3;
  // distance: length = sf.sqrt(offset.squared_norm() + sf.epsilon())
  r0 = fma(r0, r0, 2.2204460492503131e-15);
  r0 = fma(r1, r1, r0);
  r0 = sqrt(r0);
  // squashed: return limit * sf.tanh(value / limit)
  r0 = r0 * 0.33333333333333331;
  r0 = tanh(r0);
  r0 = r0 * 3.0;
  // distance: residual
  if (active) *reinterpret_cast<float*>(residual_data + 1ull * item) = float(r0);
  // distance: cost
  r0 = r0 * r0;
  r0 = r0 * 0.5;
  double m3[1] = {active ? double(r0) : 0.0};
  block_sum<1>(m3, sums[0]);
  if (threadIdx.x < 1u) (cost_data)[1ull * (cost_offset + tile) + threadIdx.x] = m3[0];
}
