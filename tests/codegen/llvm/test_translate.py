"""Translated kernels compute what Python does with the same text."""

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.codegen.llvm.instructions import FUNCTIONS, INTRINSICS, LIBM
from caspar.codegen.llvm.translate import llvm_module
from caspar.errors import CompileError
from caspar.runtime.cpu.machine_code import compile_code

Array = NDArray[Any]

OF_PYTHON: Mapping[str, Any] = {
    "float32": np.float32,
    "float64": np.float64,
    "zeros": np.zeros,
    **{f"as_{name}": lambda array: array for name in ("float32", "float64", "int32", "int64")},
    "as_uint16": lambda array: array,
}
"""What a text calls, for Python; arrays are their own addresses."""


def compiled(body: str, *arrays: Array, tile: int = 0) -> None:
    """Run a kernel of arrays `a`, `b`, ... as machine code."""
    text = with_arrays(body, *arrays)
    (address,) = compile_code(text, ["kernel"], llvm_module(text, "kernel"))
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)
    table = np.array([array.ctypes.data for array in arrays], dtype=np.int64)
    function(table.ctypes.data, tile)


def interpreted(body: str, *arrays: Array, tile: int = 0) -> None:
    """Run it in Python."""
    scope = dict(OF_PYTHON)
    exec(with_arrays(body, *arrays), scope)
    scope["kernel"](arrays, tile)


def with_arrays(body: str, *arrays: Array) -> str:
    declared = [
        f"{chr(ord('a') + number)} = as_{array.dtype}(table[{number}])"
        for number, array in enumerate(arrays)
    ]
    lines = "".join(f"    {line}\n" for line in [*declared, *body.strip("\n").splitlines()])
    return f"HALF = float32(0.5)\n\ndef kernel(table, tile):\n{lines}"


def run_both(body: str, *arrays: Array, tile: int = 0) -> tuple[list[Array], list[Array]]:
    """The arrays after each of the two."""
    found, expected = ([array.copy() for array in arrays] for _ in range(2))
    compiled(body, *found, tile=tile)
    interpreted(body, *expected, tile=tile)
    return found, expected


LOOP = """
first = tile * 4
last = min(first + 4, 7)
for item in range(first, last):
    a[item] = b[item] * HALF + float32(1.5)
"""

NESTED = """
for row in range(3):
    total = float64(0.0)
    for column in range(4):
        if column == row:
            continue
        total += b[4 * row + column]
    a[row] += total
"""

BRANCHES = """
for item in range(7):
    inside = 2 <= item and item < 5
    either = item < 2 or not inside
    if inside:
        a[item] = b[item]
    else:
        if either:
            a[item] = -b[item]
    a[item] += b[item + 1] if item % 3 == 0 else b[item // 2]
"""

INTEGERS = """
for item in range(5):
    c[item] = d[item] + (c[item] >> 3 & 0x7) * 2
"""

SUMS = """
sums = zeros(4 * 2)
if b[0] != 0:
    return
for turn in range(2):
    for item in range(4):
        if turn == 0:
            sums[item] += b[item]
            continue
        a[item] = sums[item] / b[item + 1]
"""

MIXED = """
for item in range(4):
    a[item] = b[item] * c[item]
    b[item] = a[item] - item
"""


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("body", [LOOP, NESTED, BRANCHES, SUMS])
@pytest.mark.parametrize("first", [0.0, 1.0])
def test_statements(body: str, kind: str, first: float) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 12)).astype(kind)
    b[0] = first
    for tile in range(2):
        found, expected = run_both(body, a, b, tile=tile)
        for one, other in zip(found, expected, strict=True):
            assert_array_equal(one, other, strict=True)


def test_integers_of_all_sizes() -> None:
    a, b = np.zeros(1), np.zeros(1)
    c = np.array([8, 123456789012, 7, 64, 1 << 40])
    d = np.array([1, -2, 3, 2**31 - 1, -(2**31)], dtype=np.int32)
    found, expected = run_both(INTEGERS, a, b, c, d)
    assert_array_equal(found[2], expected[2], strict=True)


def test_what_is_stored_is_rounded_to_the_type_of_the_array() -> None:
    rng = np.random.default_rng(0)
    a, c = rng.normal(size=(2, 4)).astype("float32")
    b = rng.normal(size=4)
    found, expected = run_both(MIXED, a, b, c)
    for one, other in zip(found, expected, strict=True):
        assert_array_equal(one, other, strict=True)


# -- functions -------------------------------------------------------------------------------------

NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.3, -0.7, 2.5, 1e-30, 700.0, math.inf, -math.inf, math.nan]


def of_rows(call: str, kind: str, *columns: Array) -> Array:
    """Call a function on rows of numbers."""
    arrays = [np.zeros(len(columns[0]), dtype=kind), *columns]
    compiled(f"for item in range({len(columns[0])}):\n    a[item] = {call}", *arrays)
    return arrays[0]


EXPECTED: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("abs", "copysign", "cos", "exp", "floor", "log")},
    **{name: getattr(np, name) for name in ("sin", "sqrt", "cbrt", "cosh", "hypot", "sinh")},
    **{name: getattr(np, name) for name in ("tan", "tanh", "sign")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("cos", "cosh", "sin", "sinh", "tan")},
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc),
    "fma": lambda x, y, z: x * y + z,
    "pow": np.power,
    "min_nan": np.minimum,
    "max_nan": np.maximum,
}

ARITY = {"atan2": 2, "copysign": 2, "hypot": 2, "pow": 2, "fma": 3, "min_nan": 2, "max_nan": 2}


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(set(INTRINSICS) | LIBM | {"sign", "min_nan", "max_nan"}))
def test_functions(name: str, kind: str) -> None:
    arity = ARITY.get(name, 1)
    grid = np.meshgrid(*[np.array(NUMBERS, dtype=kind)] * arity)
    columns = [axis.ravel() for axis in grid]
    found = of_rows(
        f"{name}({', '.join('bcd'[at] + '[item]' for at in range(arity))})", kind, *columns
    )
    with np.errstate(all="ignore"):
        expected = EXPECTED[name](*(column.astype("float64") for column in columns)).astype(kind)
    np.testing.assert_allclose(found, expected, rtol=4 * float(np.finfo(kind).eps))


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_powers_of_two(kind: str) -> None:
    columns = np.array([[1.0, -3.0, 0.5], [4.0, -2.0, 70.0]]).astype(kind)
    found = of_rows("ldexp(b[item], int(c[item]))", kind, *columns)
    assert_array_equal(found, (columns[0] * 2.0 ** columns[1]).astype(kind))


def test_every_half_is_read() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    found = of_rows("float_of_half(b[item])", "float32", bits)
    assert_array_equal(found, bits.view(np.float16).astype(np.float32))


def test_halves_are_the_nearest_and_finite() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 1 << 32, size=200_000, dtype=np.uint32).view(np.float32)
    numbers = numbers[~np.isnan(numbers)]
    halves = np.arange(1 << 15, dtype=np.uint16).view(np.float16)
    middles = (halves[1:0x7C00].astype("float32") + halves[: 0x7C00 - 1].astype("float32")) / 2
    numbers = np.concatenate([numbers, middles, -middles, [65519.9, 65520.0, np.inf, -np.inf]])
    numbers = numbers.astype(np.float32)
    found = of_rows("half_of_float(b[item])", "uint16", numbers).view(np.float16)
    none = of_rows("half_of_float(b[item])", "uint16", np.array([np.nan], dtype=np.float32))
    assert np.isnan(none.view(np.float16)).all()
    with np.errstate(over="ignore"):
        expected = np.clip(numbers, -65504.0, 65504.0).astype(np.float16)
    assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_sums_of_partials(kind: str) -> None:
    """From an entry on, with a stride, a number of them; in float64."""
    data = np.random.default_rng(0).normal(size=50).astype(kind)
    total = np.zeros(1)
    compiled("a[0] = sum_partials(b, 3, 4, 10)", total, data)
    assert total[0] == sum(float(scalar) for scalar in data[3:43:4])


def test_functions_of_ours_are_there_only_if_called() -> None:
    text = llvm_module(with_arrays("a[0] = 1.0", np.zeros(1)), "kernel")
    assert not any(name in text for name in FUNCTIONS)


def test_loops_that_end_by_a_condition() -> None:
    """Newton's root of 2, in an array of the call; `continue` goes on with the condition."""
    body = """\
c = array_float64(3)
c[1] = 2.0
turn = 0
while turn < 9:
    turn = turn + 1
    if turn > 7:
        continue
    c[1] = (c[1] + 2.0 / c[1]) * 0.5
    a[1] = a[1] + 1.0
a[0] = c[1]"""
    found = np.zeros(2)
    compiled(body, found)
    assert found[0] == pytest.approx(math.sqrt(2.0), abs=1e-15)
    assert found[1] == 7.0


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("with tile:\n    pass", "do not have 'with tile"),
        ("c = array_float64(tile)", "do not have 'tile'"),
        ("a[0] = b.shape", "do not have 'b.shape'"),
        ("a[0] = missing", "'missing' has no value yet"),
        ("a[0] = gamma(a[0])", "no function 'gamma'"),
        ("a[0] = a[0] % a[1]", "no % of double"),
        ("a[0] = a < 1.0", "have no double of double"),
        ("x, y = a[0], a[1]", "do not have"),
        ("a[0] = 'text'", "do not have \"'text'\""),
        ("a[0] = not a[0]", "do not have 'not a"),
    ],
)
def test_what_kernels_do_not_have(body: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        llvm_module(with_arrays(body, np.zeros(1), np.zeros(1)), "kernel")


def test_what_llvm_does_not_take() -> None:
    text = with_arrays("if tile == 0:\n    x = a[1] + 1.0\na[0] = x", np.zeros(1))
    with pytest.raises(CompileError, match=r"LLVM does not take a kernel: .*dominate"):
        compile_code("undefined", ["kernel"], llvm_module(text, "kernel"))
