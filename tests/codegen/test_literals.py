"""Numbers written into sources come out as the nearest of the type."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from caspar.codegen.cpu.kernel import generate_cpu
from caspar.codegen.cuda.kernel import generate_cuda
from caspar.codegen.cuda.ops import literal
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.ir.program import Instruction, Program
from caspar.memory.access import ArgSpec
from caspar.memory.array import Binding
from caspar.memory.kernel import KernelSpec
from caspar.memory.patterns import WriteRows
from caspar.runtime.cpu.backend import CpuBackend
from tests.harness import compile_cuda, find_compiler
from tests.support_kernels import launch_cuda

JUST_ABOVE_HALF_WAY = float(np.float32(1.0)) + 2.0**-24 + 2.0**-50
"""Between 1 and the next float32; nine digits of it lie below the middle."""

NUMBERS = (
    *(np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5, 0.1, 1 / 3, np.pi, 1e16, 123456789.0),
    *(3.4e38, 1e-30, 1.1754944e-38, 1e-45, 16777217.0, JUST_ABOVE_HALF_WAY, -JUST_ABOVE_HALF_WAY),
)


def rounds_to(text: str, wanted: np.floating) -> bool:
    """Whether a compiler that rounds a decimal to nearest makes this number of it."""
    exact = Fraction(text.strip("()").removesuffix("f"))
    to_wanted = abs(exact - Fraction(float(wanted)))
    neighbours = (np.nextafter(wanted, type(wanted)(side)) for side in (-np.inf, np.inf))
    return all(to_wanted <= abs(exact - Fraction(float(other))) for other in neighbours)


@given(st.floats(-1e30, 1e30))
@example(JUST_ABOVE_HALF_WAY)
def test_float32_is_nearest(number: float) -> None:
    assert rounds_to(literal(number, DType.FLOAT32), np.float32(number))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_float64_is_the_same(number: float) -> None:
    assert float(literal(number, DType.FLOAT64).strip("()")) == number


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value)
def test_both_targets_store_the_number(dtype: DType) -> None:
    length = dtype.chunk_length
    steps = [
        Instruction(Op.STORE, (), tuple(NUMBERS[first : first + length]), ("out", chunk))
        for chunk, first in enumerate(range(0, len(NUMBERS), length))
    ]
    spec = KernelSpec(
        "literals", (ArgSpec("out", len(NUMBERS), dtype, write=WriteRows()),), Graph((), 0, dtype)
    )
    program = Program(tuple(steps), 0, 0, dtype)
    wanted = np.array([NUMBERS], dtype.value)
    found = {name: Binding(np.zeros_like(wanted), 1) for name in ("cpu", "cuda")}
    backend = CpuBackend()
    kernel = backend.load([generate_cpu(spec, program)])[spec.name]
    backend.sequence([backend.bind(kernel, {"out": found["cpu"]}, 1)]).run()
    source = generate_cuda(spec, program)
    launch_cuda(compile_cuda(source.text), source, {"out": found["cuda"]}, 1)
    for name, binding in found.items():
        assert_array_equal(binding.data, wanted, name)
        assert_array_equal(np.signbit(binding.data[0, 1:]), np.signbit(wanted[0, 1:]), name)
