"""CUDA kernels that copy words of 4 bytes: rows in an order, and small arrays all at once."""

COPY_KERNEL = "copy_arrays"
"""Entry point of `COPY_SOURCE`."""

COPY_SOURCE = """\
typedef unsigned int u32;
typedef unsigned long long u64;

// arrays: (num_arrays, 3) where from, where to, number of words; a block copies one of them
extern "C" __global__ void __launch_bounds__(256) copy_arrays(const u64* arrays) {
  const u64* const own = arrays + 3ull * blockIdx.x;
  const u32* const source = reinterpret_cast<const u32*>(own[0]);
  u32* const target = reinterpret_cast<u32*>(own[1]);
  for (u64 word = threadIdx.x; word < own[2]; word += blockDim.x) target[word] = source[word];
}
"""

ROW_KERNELS = {4: "take_rows_by_32", 8: "take_rows_by_64"}
"""Entry points of `ROW_SOURCE`, by the bytes of a place."""

_KERNEL = """
// taken[i] = rows[order[i]], of so many words each
extern "C" __global__ void __launch_bounds__(256) NAME(
    u64 num_words, u32 words_of_row, const u32* rows, const PLACE* order, u32* taken) {
  const u64 word = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (word >= num_words) return;
  const u64 row = word / words_of_row;
  taken[word] = rows[u64(order[row]) * words_of_row + (word - row * words_of_row)];
}
"""

ROW_SOURCE = "typedef unsigned int u32;\ntypedef unsigned long long u64;\n" + "".join(
    _KERNEL.replace("NAME", name).replace("PLACE", {4: "int", 8: "long long"}[size])
    for size, name in ROW_KERNELS.items()
)
"""No place is outside the rows."""
