"""Instructions of LLVM, line by line, with the types of their results.

Also here: functions that kernels may call. They come from LLVM, which knows how the processor
computes them, or from the C library; those that neither has are written here as LLVM IR.
"""

import struct
from typing import NamedTuple

from caspar.errors import CompileError

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


class Value(NamedTuple):
    """A number, or a pointer to numbers, as instructions name it.

    Its type is `i64`, `i1`, `float` or `double`; of a pointer the type of an entry and `*`.
    """

    text: str
    type: str


_WIDTH = {"i1": 0, "i64": 1, "float": 2, "double": 3}

_FLOATING = ("float", "double")

_INTEGER_OPS = {
    "+": "add nsw",
    "-": "sub nsw",
    "*": "mul nsw",
    "//": "udiv",
    "%": "urem",
    ">>": "lshr",
    "&": "and",
    "|": "or",
}

_FLOAT_OPS = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}

_COMPARISONS = {
    "<": ("slt", "olt"),
    "<=": ("sle", "ole"),
    ">": ("sgt", "ogt"),
    ">=": ("sge", "oge"),
    "==": ("eq", "oeq"),
    "!=": ("ne", "une"),
}
"""Conditions of integers, and of floating-point numbers."""

_CONVERSIONS = {
    ("i64", "float"): "sitofp",
    ("i64", "double"): "sitofp",
    ("float", "i64"): "fptosi",
    ("double", "i64"): "fptosi",
    ("float", "double"): "fpext",
    ("double", "float"): "fptrunc",
}


def quoted(name: str) -> str:
    """A name as LLVM reads it, whatever its letters."""
    if name.isascii():
        return name
    return '"' + "".join(f"\\{byte:02x}" for byte in name.encode()) + '"'


def literal(number: float, kind: str) -> Value:
    """A floating-point number, as the bits of a float64."""
    if kind == "float":
        (number,) = struct.unpack("f", struct.pack("f", number))
    (bits,) = struct.unpack("Q", struct.pack("d", number))
    return Value(f"0x{bits:016X}", kind)


class Instructions:
    """The instructions of a function, in the order in which they are asked for.

    Names of results are hints, or numbers after a point, which no hint has. The next instruction is
    in `block`; `declared` and `called` are functions that they call.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.block = "entry"
        self.declared: set[str] = set()
        self.called: set[str] = set()
        self._num_names = 0

    def emit(self, instruction: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {instruction}")

    def result(self, instruction: str, kind: str, hint: str = "") -> Value:
        """Append an instruction; its result, of a type, by the name of a hint."""
        name = f"%{quoted(hint)}" if hint else self.name()
        self.lines.append(f"  {name} = {instruction}")
        return Value(name, kind)

    def name(self) -> str:
        """A name for a result that is still to come."""
        self._num_names += 1
        return f"%.{self._num_names}"

    # -- blocks ------------------------------------------------------------------------------------

    def labels(self, *parts: str) -> list[str]:
        """Labels of blocks that belong together."""
        self._num_names += 1
        return [f"{part}.{self._num_names}" for part in parts]

    def begin(self, label: str) -> None:
        """Begin a block."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        """Go on with another block."""
        self.emit(f"br label %{label}")

    def branch(self, condition: Value, if_true: str, if_false: str) -> None:
        """Go on with one of two blocks."""
        self.emit(f"br i1 {condition.text}, label %{if_true}, label %{if_false}")

    # -- numbers -----------------------------------------------------------------------------------

    def cast(self, value: Value, kind: str, hint: str = "") -> Value:
        """A value in another type."""
        if value.type == kind:
            return value
        conversion = _CONVERSIONS.get((value.type, kind))
        if conversion is None:
            raise CompileError(f"kernels for the processor have no {kind} of {value.type}")
        return self.result(f"{conversion} {value.type} {value.text} to {kind}", kind, hint)

    def binary(self, op: str, left: Value, right: Value, hint: str = "") -> Value:
        """An operation of Python, in the wider of two types."""
        left, right = self._widened(left, right)
        kind = left.type
        instruction = (_FLOAT_OPS if kind in _FLOATING else _INTEGER_OPS).get(op)
        if instruction is None:
            raise CompileError(f"kernels for the processor have no {op} of {kind}")
        return self.result(f"{instruction} {kind} {left.text}, {right.text}", kind, hint)

    def compare(self, op: str, left: Value, right: Value, hint: str = "") -> Value:
        """A comparison of Python, in the wider of two types."""
        left, right = self._widened(left, right)
        of_integers, of_floats = _COMPARISONS[op]
        kind = left.type
        test = f"fcmp {of_floats}" if kind in _FLOATING else f"icmp {of_integers}"
        return self.result(f"{test} {kind} {left.text}, {right.text}", "i1", hint)

    def choose(self, condition: Value, if_true: Value, if_false: Value, hint: str = "") -> Value:
        """One of two values."""
        kind = if_true.type
        ways = f"{kind} {if_true.text}, {kind} {if_false.text}"
        return self.result(f"select i1 {condition.text}, {ways}", kind, hint)

    def _widened(self, left: Value, right: Value) -> tuple[Value, Value]:
        kind = max(left.type, right.type, key=lambda name: _WIDTH.get(name, -1))
        return self.cast(left, kind), self.cast(right, kind)

    # -- memory ------------------------------------------------------------------------------------

    def place(self, array: Value, index: Value) -> Value:
        """The pointer to an entry of an array."""
        kind = array.type.removesuffix("*")
        address = f"getelementptr inbounds {kind}, ptr {array.text}, i64 {index.text}"
        return self.result(address, array.type)

    def load(self, place: Value, hint: str = "") -> Value:
        """Load an entry; smaller integers become int64."""
        kind = place.type.removesuffix("*")
        extension = {"i16": "zext", "i32": "sext"}.get(kind)
        if extension is None:
            return self.result(f"load {kind}, ptr {place.text}", kind, hint)
        narrow = self.result(f"load {kind}, ptr {place.text}", kind)
        return self.result(f"{extension} {kind} {narrow.text} to i64", "i64", hint)

    def store(self, place: Value, value: Value) -> None:
        """Write a value, in the type of what is there."""
        kind = place.type.removesuffix("*")
        if kind in ("i16", "i32"):
            value = self.result(f"trunc i64 {value.text} to {kind}", kind)
        self.emit(f"store {kind} {self.cast(value, kind).text}, ptr {place.text}")
