// Host C++17 stand-in for what NVRTC predefines, so that CUDA C text compiles unchanged with a
// host compiler. Everything lives in the unnamed namespace that also receives the kernels' text:
// overloads then resolve as in CUDA, and nothing has vague linkage. What is not listed in these
// headers fails to compile, as an unknown name does under NVRTC.
#pragma once

#include <climits>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <math.h>
#include <stdlib.h>
#include <type_traits>
#include <utility>

#include "interface.h"

#include "keywords.h"

#include "vector_types.h"

#include "device_math.h"

#include "device_integers.h"

#include "device_memory.h"

#include "device_atomics.h"

#include "device_warp.h"

#include "kernel_table.h"

// NVRTC knows none of these without a header; a source that uses one must not pass here.
#undef INFINITY
#undef NAN
#undef HUGE_VAL
#undef HUGE_VALF
#undef M_E
#undef M_LN2
#undef M_LN10
#undef M_LOG2E
#undef M_LOG10E
#undef M_PI
#undef M_PI_2
#undef M_PI_4
#undef M_1_PI
#undef M_2_PI
#undef M_SQRT2
#undef M_SQRT1_2
#pragma GCC poison std malloc free rand exit abort
#pragma GCC poison int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t
