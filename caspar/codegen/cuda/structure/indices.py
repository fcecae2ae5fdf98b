"""CUDA kernels that check indices: range and repetition."""

INDEX_KERNELS = ("any_outside", "first_outside", "first_repeated")
"""Entry points of `INDEX_SOURCE`."""

INDEX_SOURCE = """\
typedef unsigned int u32;

// Whether any entry is outside 0 .. size - 1; `flag` is on the host.
extern "C" __global__ void __launch_bounds__(256) any_outside(
    u32 count, const int* index, u32 size, u32* flag) {
  const u32 item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item < count && u32(index[item]) >= size) *flag = 1u;
}

// The first entry outside 0 .. size - 1; `first` starts above all entries.
extern "C" __global__ void __launch_bounds__(256) first_outside(
    u32 count, const int* index, u32 size, u32* first) {
  const u32 item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item < count && u32(index[item]) >= size) atomicMin(first, item);
}

// The first entry that is not the first to name its object; `owner`, for each object, and `first`
// start above all entries. Run once with `find` 0 and once with `find` 1.
extern "C" __global__ void __launch_bounds__(256) first_repeated(
    u32 count, const int* index, u32* owner, u32 find, u32* first) {
  const u32 item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= count) return;
  if (find == 0) {
    atomicMin(&owner[index[item]], item);
  } else if (owner[index[item]] != item) {
    atomicMin(first, item);
  }
}
"""
