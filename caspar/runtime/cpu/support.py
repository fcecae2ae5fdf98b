"""What generated CPU kernels import: pointer casts, fused operations and the kernel decorator.

Kernels are C functions of a table of addresses and integers and a tile number, so that one
compiled driver can run any list of them (see `runtime.cpu.backend`).
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic

from caspar.runtime.cpu.machine_code import stored_njit

_stored = partial(stored_njit, Path(__file__).read_bytes())

kernel: Callable[[Callable[..., None]], Any] = cfunc(
    types.void(types.int64, types.int64), error_model="numpy", no_rewrites=True
)
"""Compile `f(args, tile)` as a C function; `args` is the address of the parameter table.

Numba's rewrites are for arrays, which kernels do not have: without them bundle adjustment's compile
in 10.2 s instead of 11.4."""


def _pointer_cast(scalar: types.Type) -> Callable[[int], Any]:
    def cast(typing_context: Any, address: Any) -> Any:
        pointer = types.CPointer(scalar)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(pointer))

        return pointer(types.int64), generate

    result: Callable[[int], Any] = intrinsic(cast)
    return result


as_float32 = _pointer_cast(types.float32)
as_float64 = _pointer_cast(types.float64)
as_int32 = _pointer_cast(types.int32)
as_int64 = _pointer_cast(types.int64)
as_uint16 = _pointer_cast(types.uint16)


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, a, a), generate


@intrinsic
def select(typing_context: Any, condition: Any, if_true: Any, if_false: Any) -> Any:
    """`if_true` where the condition holds, without a branch."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(*args)

    return if_true(types.boolean, if_true, if_true), generate


def _keep_nan(comparison: str) -> Callable[[Any, Any], Any]:
    def choose(typing_context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            wins = builder.fcmp_ordered(comparison, args[0], args[1])
            is_nan = builder.fcmp_unordered("uno", args[0], args[0])
            return builder.select(builder.or_(wins, is_nan), args[0], args[1])

        return a(a, a), generate

    result: Callable[[Any, Any], Any] = intrinsic(choose)
    return result


min_nan = _keep_nan("<")
max_nan = _keep_nan(">")


def _bit_cast(source: types.Type, target: types.Type) -> Callable[[Any], Any]:
    def cast(typing_context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], context.get_value_type(target))

        return target(source), generate

    result: Callable[[Any], Any] = intrinsic(cast)
    return result


_bits_of_float = _bit_cast(types.float32, types.uint32)
_float_of_bits = _bit_cast(types.uint32, types.float32)


@_stored()
def float_of_half(bits: Any) -> Any:
    """The float32 of a float16 given by its bits."""
    magnitude = np.uint32(bits & 0x7FFF) << np.uint32(13)
    # the exponent's bias by a product, which is exact for small numbers too
    value = _bits_of_float(_float_of_bits(np.uint32(magnitude)) * np.float32(2.0**112))
    if magnitude >= 0x0F800000:
        value = np.uint32(magnitude | 0x7F800000)
    return _float_of_bits(np.uint32(value | (np.uint32(bits & 0x8000) << np.uint32(16))))


@_stored()
def half_of_float(value: Any) -> Any:
    """The bits of the float16 nearest to a float32; ties to even, never infinite."""
    if value > np.float32(65504.0):
        value = np.float32(65504.0)
    if value < np.float32(-65504.0):
        value = np.float32(-65504.0)
    word = _bits_of_float(value)
    magnitude = np.uint32(word & 0x7FFFFFFF)
    if magnitude > 0x7F800000:
        half = np.uint32(0x7FFF)
    elif magnitude < 0x38800000:
        # below 2^-14 numbers are multiples of 2^-24, which is the last bit of 0.5
        shifted = _bits_of_float(_float_of_bits(magnitude) + np.float32(0.5))
        half = np.uint32(shifted - np.uint32(0x3F000000))
    else:
        odd = (magnitude >> np.uint32(13)) & np.uint32(1)
        rounded = np.uint32(magnitude - np.uint32(0x38000000) + np.uint32(0xFFF) + odd)
        half = np.uint32(rounded >> np.uint32(13))
    return np.uint16((word >> np.uint32(16)) & np.uint32(0x8000) | half)


@intrinsic
def call_tile(typing_context: Any, function: Any, args: Any, tile: Any) -> Any:
    """Call the kernel at an address on one tile."""
    signature = types.void(types.int64, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        integer = ir.IntType(64)
        kernel_type = ir.FunctionType(ir.VoidType(), [integer, integer])
        pointer = builder.inttoptr(operands[0], kernel_type.as_pointer())
        builder.call(pointer, operands[1:])
        return context.get_dummy_value()

    return signature, generate


@_stored(inline="never")
def sum_partials(data: Any, start: int, stride: int, count: int) -> Any:
    """Sum of `count` scalars, in order, in float64."""
    total = np.float64(0.0)
    for number in range(count):
        total += np.float64(data[start + stride * number])
    return total
