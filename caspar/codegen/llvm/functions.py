"""Functions that kernels for the processor may call, in LLVM's terms.

Functions come from LLVM, which knows how the processor computes them, or from the C library.
Those that neither has are written here as LLVM IR.
"""

INTRINSICS = {
    "abs": "fabs",
    "copysign": "copysign",
    "cos": "cos",
    "exp": "exp",
    "floor": "floor",
    "fma": "fma",
    "log": "log",
    "pow": "pow",
    "sin": "sin",
    "sqrt": "sqrt",
}
"""Names of LLVM's functions, by ours."""

LIBM = frozenset(
    (
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt"),
        *("cosh", "erf", "erfc", "hypot", "sinh", "tan", "tanh"),
    )
)
"""Functions of the C library."""

SUFFIX = {"float": "f", "double": ""}
"""Endings of the C library's names, by type."""

BITS = {"float": "f32", "double": "f64"}
"""Endings of the names of LLVM's functions, by type."""

EXTERNAL = sorted(
    f"{name}{suffix}"
    for name in LIBM | set(INTRINSICS) - {"abs"} | {"ldexp", "sincos", "fabs"}
    for suffix in SUFFIX.values()
)
"""All functions of the C library that machine code may call."""

_SUM_PARTIALS = """\
define internal double @sum_partials_{type}(
    ptr %data, i64 %start, i64 %stride, i64 %count
) noinline nounwind {{
entry:
  br label %head
head:
  %number = phi i64 [ 0, %entry ], [ %next, %add ]
  %total = phi double [ 0.0, %entry ], [ %sum, %add ]
  %more = icmp slt i64 %number, %count
  br i1 %more, label %add, label %end
add:
  %step = mul nsw i64 %number, %stride
  %index = add nsw i64 %start, %step
  %place = getelementptr inbounds {type}, ptr %data, i64 %index
  %scalar = load {type}, ptr %place
{widen}  %sum = fadd double %total, %{wide}
  %next = add nsw i64 %number, 1
  br label %head
end:
  ret double %total
}}
"""

FUNCTIONS = {
    "sum_partials_float": _SUM_PARTIALS.format(
        type="float", widen="  %wide = fpext float %scalar to double\n", wide="wide"
    ),
    "sum_partials_double": _SUM_PARTIALS.format(type="double", widen="", wide="scalar"),
    # the exponent's bias by a product, which is exact for small numbers too
    "float_of_half": """\
define internal float @float_of_half(i64 %bits) alwaysinline nounwind {
  %word = trunc i64 %bits to i32
  %without_sign = and i32 %word, 32767
  %magnitude = shl i32 %without_sign, 13
  %small = bitcast i32 %magnitude to float
  %scaled = fmul float %small, 0x46F0000000000000
  %finite = bitcast float %scaled to i32
  %infinite = or i32 %magnitude, 2139095040
  %is_infinite = icmp uge i32 %magnitude, 260046848
  %unsigned = select i1 %is_infinite, i32 %infinite, i32 %finite
  %sign = and i32 %word, 32768
  %sign_bit = shl i32 %sign, 16
  %signed = or i32 %unsigned, %sign_bit
  %value = bitcast i32 %signed to float
  ret float %value
}
""",
    # to the nearest, ties to even, never infinite; below 2^-14 numbers are multiples of 2^-24,
    # which is the last bit of 0.5
    "half_of_float": """\
define internal i64 @half_of_float(float %any) alwaysinline nounwind {
  %above = fcmp ogt float %any, 65504.0
  %not_above = select i1 %above, float 65504.0, float %any
  %below = fcmp olt float %not_above, -65504.0
  %value = select i1 %below, float -65504.0, float %not_above
  %word = bitcast float %value to i32
  %magnitude = and i32 %word, 2147483647
  %is_nan = icmp ugt i32 %magnitude, 2139095040
  %is_small = icmp ult i32 %magnitude, 947912704
  %small = bitcast i32 %magnitude to float
  %shifted = fadd float %small, 0.5
  %shifted_bits = bitcast float %shifted to i32
  %small_half = sub i32 %shifted_bits, 1056964608
  %last_bit = lshr i32 %magnitude, 13
  %odd = and i32 %last_bit, 1
  %biased = sub i32 %magnitude, 939520001
  %rounded = add i32 %biased, %odd
  %large_half = lshr i32 %rounded, 13
  %finite_half = select i1 %is_small, i32 %small_half, i32 %large_half
  %half = select i1 %is_nan, i32 32767, i32 %finite_half
  %high = lshr i32 %word, 16
  %sign = and i32 %high, 32768
  %bits = or i32 %sign, %half
  %wide = zext i32 %bits to i64
  ret i64 %wide
}
""",
}
"""LLVM IR of our own functions."""
