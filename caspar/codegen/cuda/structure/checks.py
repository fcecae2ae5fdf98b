"""CUDA kernels over plain arrays: copies, checksums, checks of indices and of values.

CuPy would compile a kernel for each step of them, one after the other, in the first solve of a
machine.
"""

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


VALUE_KERNELS = {
    4: ("largest_of_float32", "move_float32"),
    8: ("largest_of_float64", "move_float64"),
}
"""Entry points of `VALUE_SOURCE`, by the bytes of a number: largest magnitudes, moved values."""

_HEAD = """\
typedef unsigned int u32;
typedef unsigned long long u64;
"""

_KERNELS = """
// largest[column]: bits, as float64, of the largest magnitude in a column of (num_rows, gridDim.y)
// numbers whose rows are `stride` numbers apart; zeros before. Bits of magnitudes are in the order
// of the magnitudes, and those of NaN are above all others.
extern "C" __global__ void __launch_bounds__(256) LARGEST(
    u64 num_rows, u64 stride, const NUMBER* rows, u64* largest) {
  const u32 column = blockIdx.y;
  const u64 step = u64(gridDim.x) * blockDim.x;
  u64 most = 0;
  for (u64 row = u64(blockIdx.x) * blockDim.x + threadIdx.x; row < num_rows; row += step) {
    const u64 bits = u64(__double_as_longlong(double(rows[row * stride + column])));
    const u64 size = bits & 0x7fffffffffffffffull;
    if (size > most) most = size;
  }
  for (u32 other = 16; other > 0u; other >>= 1) {
    const u64 theirs = __shfl_xor_sync(0xffffffffu, most, int(other));
    if (theirs > most) most = theirs;
  }
  if ((threadIdx.x & 31u) == 0u && most > 0u) atomicMax(&largest[column], most);
}

// `moved` is `given` plus added[column], of (count / width, width) numbers. With a draw below 32
// each number that is not zero also moves by a rounding, and that bit of a multiple of its place
// says whether up or down.
extern "C" __global__ void __launch_bounds__(256) MOVE(
    u64 count, u32 width, u32 draw, NUMBER first, NUMBER second, NUMBER third, NUMBER fourth,
    const NUMBER* given, NUMBER* moved) {
  const u64 place = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (place >= count) return;
  const u32 column = u32(place % width);
  const NUMBER added = column == 0u ? first : column == 1u ? second : column == 2u ? third : fourth;
  const NUMBER value = given[place];
  if (draw >= 32u) {
    moved[place] = value + added;
    return;
  }
  const bool is_up = ((u32(place) * 2654435761u) >> draw & 1u) != 0u;
  const NUMBER end = is_up ? INFINITE : -INFINITE;
  moved[place] = value == NUMBER(0) ? value : NEXT(value, end) + COPY_SIGN(added, end);
}
"""

_WORDS = {
    4: {
        "NUMBER": "float",
        "INFINITE": "__int_as_float(0x7f800000)",
        "NEXT": "nextafterf",
        "COPY_SIGN": "copysignf",
    },
    8: {
        "NUMBER": "double",
        "INFINITE": "__longlong_as_double(0x7ff0000000000000ll)",
        "NEXT": "nextafter",
        "COPY_SIGN": "copysign",
    },
}


def _kernels(size: int) -> str:
    largest, move = VALUE_KERNELS[size]
    text = _KERNELS.replace("LARGEST", largest).replace("MOVE", move)
    for word, meaning in _WORDS[size].items():
        text = text.replace(word, meaning)
    return text


VALUE_SOURCE = _HEAD + "".join(_kernels(size) for size in VALUE_KERNELS)
"""The multiplier is 2**32 over the golden ratio (Knuth, volume 3, 6.4)."""


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
