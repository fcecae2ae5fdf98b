"""Kernels and launches that are wrong: each must be refused, with a message that says where."""

import re
import signal
from typing import Any

import numpy as np
import pytest

from tests.harness import HarnessError, compile_cuda, find_compiler, kernels

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

BARRIERS = """
extern "C" __global__ void two_barriers(int* x) {
  if (threadIdx.x < 32) {
    __syncthreads();
    x[threadIdx.x] = 1;
  } else {
    __syncthreads();
  }
}
extern "C" __global__ void early_return(int* x) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  x[threadIdx.x] = 1;
}
extern "C" __global__ void shuffle_in_a_branch(int* x) {
  if (threadIdx.x < 16) x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
  __syncthreads();
}
extern "C" __global__ void different_masks(int* x) {
  if (threadIdx.x % 32 < 16) x[threadIdx.x] = __ballot_sync(0xffffffffu, 1);
  else x[threadIdx.x] = __ballot_sync(0xffff8000u, 1);
}
extern "C" __global__ void not_in_mask(int* x) { x[threadIdx.x] = __ballot_sync(0xffu, 1); }
extern "C" __global__ void odd_width(int* x) {
  x[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0, 12);
}
"""

ACCESSES = """
extern "C" __global__ void read_at(const float* x, float* out, int i) {
  out[0] = x[i];
}
extern "C" __global__ void write_at(float* x, int i) {
  x[i] = 1.0f;
}
extern "C" __global__ void shared_at(float* out, int i) {
  __shared__ float s[32];
  __shared__ float t[32];
  s[threadIdx.x] = t[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = s[i];
}
extern "C" __global__ void local_at(float* out, int i) {
  float table[4] = {1, 2, 3, 4};
  out[0] = table[i];
}
extern "C" __global__ void vector_at(const float* x, float* out, int i) {
  float4 v = *reinterpret_cast<const float4*>(x + i);
  out[0] = v.x + v.w;
}
extern "C" __global__ void cast_away(const float* x) { const_cast<float*>(x)[0] = 1.0f; }
extern "C" __global__ void atomic_at(double* x, int i) { atomicAdd(x + i, 1.0); }
extern "C" __global__ void null_pointer(float* x) { x[threadIdx.x] = 1.0f; }
"""

RACES = """
extern "C" __global__ void reverse(const float* x, float* out) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  BARRIER;
  out[threadIdx.x] = s[63 - threadIdx.x];
}
extern "C" __global__ void overwrite(float* out) {
  __shared__ float s[64];
  float sum = 0;
  for (int k = 0; k < 3; ++k) {
    s[threadIdx.x] = k;
    __syncthreads();
    sum += s[(threadIdx.x + 1) % 64];
    BARRIER;
  }
  out[threadIdx.x] = sum;
}
extern "C" __global__ void within_a_warp(float* out) {
  __shared__ float s[32];
  s[threadIdx.x] = threadIdx.x;
  WARP_BARRIER;
  out[threadIdx.x] = s[31 - threadIdx.x];
}
"""

ARITHMETIC = """
extern "C" __global__ void divide(int* x, int by) { x[0] = 7 / by; }
extern "C" __global__ void shift(int* x, int by) { x[0] = 7 << by; }
extern "C" __global__ void convert(int* x, float from) { x[0] = (int)from; }
extern "C" __global__ void trap(int* x) { if (x[0] == 0) __trap(); }
extern "C" __global__ void assume(int* x) { __builtin_assume(x[0] > 0); }
__device__ __noinline__ int depth(volatile int* x, int n) {
  volatile int here[64];
  here[n % 64] = n;
  return n == 0 ? x[0] : depth(x, n - 1) + here[n % 64];
}
extern "C" __global__ void recurse(int* x, int n) { x[0] = depth(x, n); }
extern "C" __global__ void spin(int* x) { while (atomicAdd(x, 0) == 0) {} }
"""


def _fails(source: str, kernel: str, block: Any, args: list[Any], pattern: str) -> None:
    with pytest.raises(HarnessError, match=pattern):
        compile_cuda(source).launch(kernel, 1, block, args)


@pytest.mark.parametrize(
    ("kernel", "pattern"),
    [
        ("two_barriers", r"barrier divergence.*line \d+ `__syncthreads\(\);`"),
        ("early_return", r"deadlock.*40 \(first: \(0,0,0\)\) at the block barrier.*24.*returned"),
        ("shuffle_in_a_branch", r"deadlock.*16.*warp operation with mask 0xffffffff on line 16"),
        ("different_masks", r"different warp operations.*0xffff8000"),
        ("not_in_mask", r"lane 8 is not in its own mask 0x000000ff"),
        ("odd_width", r"power of two up to 32, not 12"),
    ],
)
def test_barriers_that_never_open(kernel: str, pattern: str) -> None:
    _fails(BARRIERS, kernel, 64, [np.zeros(64, np.int32)], pattern)


@pytest.mark.parametrize("index", [8, 100, -1, -5])
def test_read_out_of_bounds(index: int) -> None:
    x, out = np.ones(8, np.float32), np.zeros(1, np.float32)
    where = "before the beginning" if index < 0 else "after the end"
    pattern = rf"line 3 `out\[0\] = x\[i\];` reads 4 bytes.* bytes {where} of argument 0 `x`"
    _fails(ACCESSES, "read_at", 1, [x, out, np.int32(index)], pattern)


@pytest.mark.parametrize("index", [8, -1])
def test_write_out_of_bounds_of_a_view_spares_its_neighbours(index: int) -> None:
    arena = np.zeros(24, np.float32)
    pattern = r"line 6 .* writes 4 bytes.* argument 0 `x` \(32 bytes\) \[thread \(0,0,0\) of block"
    _fails(ACCESSES, "write_at", 1, [arena[8:16], np.int32(index)], pattern)
    assert not arena.any()


def test_a_vector_that_ends_past_the_end() -> None:
    x, out = np.ones(6, np.float32), np.zeros(1, np.float32)
    pattern = "out of bounds.*argument 0 `x`"
    _fails(ACCESSES, "vector_at", 1, [x, out, np.int32(4)], pattern)


def test_misaligned_vector() -> None:
    x, out = np.ones(16, np.float32), np.zeros(1, np.float32)
    _fails(ACCESSES, "vector_at", 1, [x, out, np.int32(1)], "misaligned access on line 20")
    _fails(ACCESSES, "vector_at", 1, [x[2:], out, np.int32(0)], "misaligned access on line 20")


@pytest.mark.parametrize(("kernel", "index"), [("shared_at", 32), ("local_at", 4)])
def test_index_outside_a_shared_or_local_array(kernel: str, index: int) -> None:
    out = np.zeros(32, np.float32)
    _fails(ACCESSES, kernel, 32, [out, np.int32(index)], f"index {index} of an array on line")


def test_atomic_out_of_bounds_and_writes_through_const() -> None:
    _fails(ACCESSES, "atomic_at", 1, [np.zeros(2), np.int32(2)], "line 24 .*atomically updates")
    _fails(ACCESSES, "cast_away", 1, [np.zeros(2, np.float32)], "argument 0 `x`, which is const")
    _fails(ACCESSES, "null_pointer", 1, [None], "out of bounds: line 25 .* no memory near")


@pytest.mark.parametrize("kernel", ["reverse", "overwrite"])
def test_missing_barrier(kernel: str) -> None:
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    args = [x, out] if kernel == "reverse" else [out]
    wrong = compile_cuda(RACES, defines={"BARRIER": "", "WARP_BARRIER": ""})
    right = compile_cuda(RACES, defines={"BARRIER": "__syncthreads()", "WARP_BARRIER": ""})
    with pytest.raises(HarnessError, match=r"data race on shared memory .* line .*no barrier"):
        wrong.launch(kernel, 1, 64, args)
    with pytest.raises(HarnessError, match="depends on the order of threads"):
        wrong.launch_under_schedules(kernel, 1, 64, args, check_races=False)
    right.launch_under_schedules(kernel, 1, 64, args)
    np.testing.assert_array_equal(out, x[::-1] if kernel == "reverse" else 3)


def test_missing_warp_barrier() -> None:
    out = np.zeros(32, np.float32)
    wrong = compile_cuda(RACES, defines={"BARRIER": "", "WARP_BARRIER": ""})
    right = compile_cuda(RACES, defines={"BARRIER": "", "WARP_BARRIER": "__syncwarp()"})
    with pytest.raises(HarnessError, match="data race on shared memory"):
        wrong.launch("within_a_warp", 1, 32, [out])
    right.launch_under_schedules("within_a_warp", 1, 32, [out])
    np.testing.assert_array_equal(out, np.arange(32)[::-1])


def test_sum_without_atomics_races_within_and_across_blocks() -> None:
    module = compile_cuda(kernels.ACCUMULATE)
    x, sums = np.ones(64), np.zeros(64)
    own, same = np.arange(64, dtype=np.int32), np.arange(64, dtype=np.int32) % 32
    module.launch("accumulate_wrongly", 2, 32, [x, own, sums, np.int32(64)])
    np.testing.assert_array_equal(sums, 1)
    for grid, block in ((2, 32), (1, 64)):
        with pytest.raises(HarnessError, match="data race on argument 2 `sums` at byte 0"):
            module.launch("accumulate_wrongly", grid, block, [x, same, sums, np.int32(64)])


@pytest.mark.parametrize(
    ("kernel", "value", "pattern"),
    [
        ("divide", np.int32(0), "integer division by zero .* line 2"),
        ("shift", np.int32(32), "shift by more bits"),
        ("convert", np.float32(3e9), "integer type that cannot hold it on line 4"),
        ("trap", None, r"__trap\(\) was reached on line 5"),
        ("assume", None, r"__builtin_assume\(\) does not hold on line 6"),
        ("recurse", np.int32(100_000), "overflowed its stack"),
    ],
)
def test_undefined_behaviour(kernel: str, value: Any, pattern: str) -> None:
    args = [np.zeros(1, np.int32)] + ([] if value is None else [value])
    _fails(ARITHMETIC, kernel, 1, args, pattern)


def test_endless_loop_ends_with_the_time_limit() -> None:
    module = compile_cuda(ARITHMETIC)
    with pytest.raises(HarnessError, match=r"did not end within 0\.2 s"):
        module.launch("spin", 1, 32, [np.zeros(1, np.int32)], timeout_s=0.2)


def test_a_fault_changes_nothing_and_the_module_stays_usable() -> None:
    handler = signal.getsignal(signal.SIGSEGV)
    module = compile_cuda(ARITHMETIC)
    x = np.array([5], np.int32)
    with pytest.raises(HarnessError, match="stack"):
        module.launch("recurse", 1, 1, [x, np.int32(100_000)])
    assert x[0] == 5
    module.launch("recurse", 1, 1, [x, np.int32(3)])
    assert x[0] == 5 + 3 + 2 + 1
    assert signal.getsignal(signal.SIGSEGV) == handler


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("x[0] = __no_such_intrinsic(x[0]);", "__no_such_intrinsic"),
        ("x[0] = std::fabs(x[0]);", "std"),
        ("uint32_t i = 0; x[i] = 1;", "uint32_t"),
        ("x[0] = INFINITY;", "INFINITY"),
        ("float3 v = __ldg((const float3*)x);", "__ldg has no overload"),
        ('asm volatile("red.global.add.f32 [%0], %1;" :: "r"(0), "r"(1));', "red.global"),
        ("atomicMax(x, 1.0f);", "atomicMax"),
        ("float y; x[0] = y;", "uninitialized"),
        ("extern __shared__ float s[]; x[0] = s[0];", "dynamic shared memory"),
    ],
)
def test_what_cuda_lacks_does_not_compile(body: str, name: str) -> None:
    with pytest.raises(HarnessError, match=re.escape(name)):
        compile_cuda(f'extern "C" __global__ void k(float* x) {{ {body} }}')


def test_compiler_messages_name_lines_of_the_source() -> None:
    with pytest.raises(HarnessError, match=r"kernel\.cu:3"):
        compile_cuda('\nextern "C" __global__ void k(float* x) {\n  x[0] = y;\n}\n')


@pytest.mark.parametrize(
    ("position", "value", "pattern"),
    [
        (
            0,
            np.zeros(8),
            "argument 0 `a`: takes a pointer to real of 4 bytes, not an array of float64",
        ),
        (0, np.zeros(16, np.float32)[::2], "C-contiguous"),
        (0, np.float32(1), "a pointer takes a NumPy array"),
        (3, 8, "NumPy scalar"),
        (3, np.int64(8), "argument 3 `n`: takes integer of 4 bytes, not int64"),
        (3, np.uint32(8), "not uint32"),
    ],
)
def test_arguments_of_the_wrong_type(position: int, value: Any, pattern: str) -> None:
    args: list[Any] = [*(np.zeros(8, np.float32) for _ in range(3)), np.int32(8)]
    args[position] = value
    _fails(kernels.VECTOR_ADD, "add", 8, args, pattern)


def test_launches_that_cuda_refuses() -> None:
    module = compile_cuda(kernels.VECTOR_ADD)
    read_only = np.zeros(8, np.float32)
    read_only.flags.writeable = False
    args: list[Any] = [read_only, read_only, np.zeros(8, np.float32), np.int32(8)]
    module.launch("add", 1, 8, args)
    with pytest.raises(HarnessError, match="read-only"):
        module.launch("add", 1, 8, [*args[:2], read_only, args[3]])
    with pytest.raises(HarnessError, match="takes 4 arguments"):
        module.launch("add", 1, 8, args[:3])
    with pytest.raises(HarnessError, match="at most 256"):
        module.launch("add", 1, 512, args)
    with pytest.raises(HarnessError, match="grid"):
        module.launch("add", 0, 8, args)
    with pytest.raises(HarnessError, match="it defines: add"):
        module.launch("sub", 1, 8, args)
