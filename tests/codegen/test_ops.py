"""Every op: text in both targets, and the value NumPy gives, on nasty arguments."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from caspar.codegen import cpu_ops, cuda_ops
from caspar.codegen.cpu import generate_cpu
from caspar.codegen.cuda import generate_cuda
from caspar.codegen.source import KernelSource
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_program
from caspar.ir.graph import Graph
from caspar.ir.ops import GRAPH_ONLY, OP_INFO, Op
from caspar.ir.program import Instruction, Program
from caspar.memory.access import ArgSpec, Read, Write
from caspar.memory.binding import Binding
from caspar.memory.kernel import KernelSpec
from caspar.runtime.cpu import CpuBackend
from tests.harness import compile_cuda, find_compiler
from tests.support_kernels import launch_cuda

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

Array = NDArray[np.floating]

OPS = [op for op in Op if op not in (*GRAPH_ONLY, Op.READ, Op.STORE)]

EXACT = {
    *(Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.RCP, Op.SQRT, Op.NEG, Op.ABS, Op.SIGN, Op.COPYSIGN),
    *(Op.FLOOR, Op.MIN, Op.MAX, Op.LT, Op.LE, Op.EQ, Op.NE, Op.AND, Op.OR, Op.NOT, Op.SELECT),
}
"""Ops with one right answer; fused products, which NumPy lacks, have a test of their own."""

FREE_ZERO = {Op.MIN, Op.MAX, Op.SIGN}
"""Ops whose zeros may have either sign."""

MAX_ULPS = {Op.POW: 4, Op.RSQRT: 2, Op.RCBRT: 4, Op.TAN: 4, Op.SINH: 4, Op.COSH: 4, Op.TANH: 4}
OTHER_ULPS = 3
"""Units in the last place between two libraries' functions."""


def nasty(dtype: DType) -> Array:
    """(n, 3) operands: signed zeros, tiny, huge, denormal, infinite, NaN, and everyday ones."""
    kind = np.dtype(dtype.value)
    info = np.finfo(kind)
    special = [0.0, 1.0, 0.5, 2.0, 3.0, 1.5707963, 1e-4, 700.0, info.tiny, info.max, info.eps]
    special += [info.smallest_subnormal, np.inf, np.nan, 1.0 - info.epsneg, 1.0 + info.eps, 1e10]
    single = np.array([*special, *(-number for number in special)], kind)
    left, right = (grid.ravel() for grid in np.meshgrid(single, single))
    rng = np.random.default_rng(0)
    pairs = np.stack([left, right, rng.permutation(left)], axis=1)
    everyday = rng.normal(size=(500, 3)) * 10.0 ** rng.uniform(-3, 3, (500, 1))
    return np.concatenate([pairs, everyday.astype(kind), rng.uniform(-1, 1, (500, 3)).astype(kind)])


def program_of(dtype: DType) -> tuple[KernelSpec, Program, list[Op]]:
    """Row by row, every op of the columns x, y, z; truth values as 1 and 0."""
    args = (
        ArgSpec("rows", 3, dtype, read=Read.ROWS),
        ArgSpec("results", len(OPS) + 1, dtype, write=Write.ROWS),
    )
    x, y, z = "r0", "r1", "r2"
    length = dtype.chunk_length
    steps = [
        Instruction(Op.READ, (x, y, z)[first : first + length], (), ("rows", chunk))
        for chunk, first in enumerate(range(0, 3, length))
    ]
    steps += [Instruction(Op.LT, ("p0",), (x, y)), Instruction(Op.LT, ("p1",), (y, z))]
    outputs: list[str] = []
    ops: list[Op] = []
    for op in OPS:
        info = OP_INFO[op]
        if op in (Op.AND, Op.OR, Op.NOT):
            operands: tuple[str, ...] = ("p0", "p1")[: info.arity]
        elif op is Op.SELECT:
            operands = ("p0", y, z)
        else:
            operands = (x, y, z)[: info.arity]
        made = tuple(f"r{3 + len(outputs) + number}" for number in range(info.num_outputs or 0))
        if info.boolean:
            steps.append(Instruction(op, ("p2",), operands))
            steps.append(Instruction(Op.SELECT, made, ("p2", 1.0, 0.0)))
        else:
            steps.append(Instruction(op, made, operands))
        outputs += made
        ops += [op] * len(made)
    for chunk, first in enumerate(range(0, len(outputs), length)):
        values = tuple(outputs[first : first + length])
        steps.append(Instruction(Op.STORE, (), values, ("results", chunk)))
    program = Program(tuple(steps), 3 + len(outputs), 3, dtype)
    return KernelSpec("every_op", args, Graph((), 0, dtype)), program, ops


def run_everywhere(spec: KernelSpec, program: Program, rows: Array) -> Iterator[tuple[str, Array]]:
    """(target, results) of the CPU backend and the harness."""

    def bindings() -> dict[str, Binding]:
        results = np.full((len(rows), spec.args[1].dim), np.nan, rows.dtype)
        return {"rows": Binding(rows, len(rows)), "results": Binding(results, len(rows))}

    sources: dict[str, KernelSource] = {
        "cpu": generate_cpu(spec, program),
        "cuda": generate_cuda(spec, program),
    }
    bound = bindings()
    backend = CpuBackend()
    kernel = backend.load([sources["cpu"]])[spec.name]
    backend.sequence([backend.bind(kernel, bound, len(rows))]).run()
    yield "cpu", bound["results"].data
    bound = bindings()
    launch_cuda(compile_cuda(sources["cuda"].text), sources["cuda"], bound, len(rows))
    yield "cuda", bound["results"].data


def ulps(found: Array, wanted: Array) -> NDArray[np.float64]:
    """Distance in units of the last place; 0 between equal values, also NaN and infinity."""
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    with np.errstate(all="ignore"):
        distance = np.abs(found - wanted) / np.spacing(np.abs(wanted))
    return np.where(same, 0.0, np.where(np.isfinite(distance), distance, np.inf))


@pytest.mark.parametrize("op", OPS)
def test_both_targets_have_text(op: Op) -> None:
    if op is Op.SINCOS:
        assert set(cuda_ops.SINCOS_TEXT) == {DType.FLOAT32, DType.FLOAT64}
        return
    assert op in cpu_ops.OP_TEXT
    assert all(op in table for table in cuda_ops.OP_TEXT.values())


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value)
def test_values_are_those_of_numpy(dtype: DType) -> None:
    spec, program, ops = program_of(dtype)
    rows = nasty(dtype)
    wanted = evaluate_program(program, {"rows": rows})["results"]
    for target, results in run_everywhere(spec, program, rows):
        for column, op in enumerate(ops):
            if op in (Op.FMA, Op.FNMA):
                continue
            distance = ulps(results[:, column], wanted[:, column])
            if op in EXACT - FREE_ZERO:
                is_zero = wanted[:, column] == 0.0
                signs = np.signbit(results[:, column]) != np.signbit(wanted[:, column])
                distance[is_zero & signs] = np.inf
            worst = int(np.argmax(distance))
            allowed = 0 if op in EXACT else MAX_ULPS.get(op, OTHER_ULPS)
            assert distance[worst] <= allowed, (
                f"{op.name} on {target}, {dtype.value}: {results[worst, column]!r}, NumPy says "
                f"{wanted[worst, column]!r}, of {rows[worst]}"
            )


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value)
def test_fused_products_round_once(dtype: DType) -> None:
    """x * y + z where z is the rounded -x * y, or near it: what is left is the rounding error."""
    spec, program, ops = program_of(dtype)
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(200, 3)).astype(dtype.value)
    rows[:100, 2] = -(rows[:100, 0] * rows[:100, 1])
    rows[50:100, 2] *= 1 + np.finfo(dtype.value).eps
    for target, results in run_everywhere(spec, program, rows):
        for op, sign in ((Op.FMA, 1), (Op.FNMA, -1)):
            for (x, y, z), found in zip(rows, results[:, ops.index(op)], strict=True):
                exact = sign * Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
                error = abs(Fraction(float(found)) - exact)
                half_ulp = Fraction(float(np.spacing(np.abs(found)))) / 2
                assert error <= half_ulp, f"{op.name} on {target}, {dtype.value}: {x}, {y}, {z}"
