"""Every op: text in both targets, and its distance from the truth on nasty operands."""

import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from caspar.codegen.cpu import ops as cpu_ops
from caspar.codegen.cpu.kernel import generate_cpu
from caspar.codegen.cuda import ops as cuda_ops
from caspar.codegen.cuda.kernel import generate_cuda
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_program
from caspar.ir.ops import Op
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.harness import find_compiler
from tests.support_op_truth import MAX_ULPS, worst_results
from tests.support_ops import OPS, Array, EveryOp, every_op, nasty, run_rows, run_rows_in_harness

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

DTYPES = pytest.mark.parametrize(
    "dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value
)


def run_everywhere(columns: EveryOp, rows: Array) -> Iterator[tuple[str, Array]]:
    """(target, results) of the CPU backend, the harness, and, in float64, NumPy."""
    spec, program = columns.spec, columns.program
    yield "the processor", run_rows(CpuBackend(), spec, generate_cpu(spec, program), rows)
    source = generate_cuda(spec, program)
    yield "CUDA source on the host", run_rows_in_harness(spec, source, rows)
    if program.dtype is DType.FLOAT64:
        yield "NumPy", evaluate_program(program, {"rows": rows})["results"]


@pytest.mark.parametrize("op", OPS)
def test_both_targets_have_text(op: Op) -> None:
    if op is Op.SINCOS:
        assert set(cuda_ops.SINCOS_TEXT) == {DType.FLOAT32, DType.FLOAT64}
        return
    assert op in cpu_ops.OP_TEXT
    assert all(op in table for table in cuda_ops.OP_TEXT.values())


@DTYPES
def test_values_are_near_the_truth(dtype: DType) -> None:
    columns, rows = every_op(dtype), nasty(dtype)
    place = 0 if dtype is DType.FLOAT32 else 1
    wrong = [
        f"{target}: {worst}"
        for target, results in run_everywhere(columns, rows)
        for worst in worst_results(columns, rows, results, place)
        if worst.is_too_far
    ]
    assert not wrong, "\n".join([f"{len(wrong)} ops in {dtype.value}:", *wrong])


def test_documented_bounds_are_those_that_are_asserted() -> None:
    text = (Path(__file__).parents[2] / "docs" / "NUMERICS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\w+` )+)((?:\| \d+ )+)\|$", text, re.MULTILINE)
    documented = {
        Op[name.upper()]: tuple(int(bound) for bound in re.findall(r"\d+", bounds))
        for names, bounds in rows
        for name in re.findall(r"\w+", names)
    }
    assert documented == MAX_ULPS


@DTYPES
def test_nvrtc_knows_every_function(dtype: DType) -> None:
    columns = every_op(dtype)
    compiled = compile_text(generate_cuda(columns.spec, columns.program).text, "sm_90")
    assert compiled.warnings == ()
    assert set(compiled.resources) == {columns.spec.name}


@DTYPES
def test_fused_products_round_once(dtype: DType) -> None:
    """x * y + z where z is the rounded -x * y, or near it: what is left is the rounding error."""
    columns = every_op(dtype)
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(200, 4)).astype(dtype.value)
    rows[:100, 2] = -(rows[:100, 0] * rows[:100, 1])
    rows[50:100, 2] *= 1 + np.finfo(dtype.value).eps
    for target, results in run_everywhere(columns, rows):
        if target == "NumPy":
            continue  # has no fused product
        for op, sign in ((Op.FMA, 1), (Op.FNMA, -1)):
            for (x, y, z, _), found in zip(rows, results[:, columns.ops.index(op)], strict=True):
                exact = sign * Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
                error = abs(Fraction(float(found)) - exact)
                half_ulp = Fraction(float(np.spacing(np.abs(found)))) / 2
                assert error <= half_ulp, f"{op.name} on {target}, {dtype.value}: {x}, {y}, {z}"
