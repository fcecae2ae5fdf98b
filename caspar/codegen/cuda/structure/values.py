"""CUDA kernels for checks of values: largest magnitudes of columns, and values moved a little.

CuPy would compile a kernel for each step of them, one after the other, in the first solve of a
machine.
"""

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
    """Return the text of both kernels for numbers of some bytes."""
    largest, move = VALUE_KERNELS[size]
    text = _KERNELS.replace("LARGEST", largest).replace("MOVE", move)
    for word, meaning in _WORDS[size].items():
        text = text.replace(word, meaning)
    return text


VALUE_SOURCE = _HEAD + "".join(_kernels(size) for size in VALUE_KERNELS)
"""The multiplier is 2**32 over the golden ratio (Knuth, volume 3, 6.4)."""
