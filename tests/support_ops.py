"""Every op on nasty operands, in one kernel that runs row by row."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.codegen.source import KernelSource
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import GRAPH_ONLY, MEMORY_OPS, OP_INFO, Op
from caspar.ir.program import Instruction, Program
from caspar.memory.access import ArgSpec
from caspar.memory.array import Binding
from caspar.memory.kernel import KernelSpec
from caspar.memory.patterns import ReadRows, WriteRows
from caspar.runtime.backend import Backend
from tests.harness import compile_cuda
from tests.support_kernels import launch_cuda

Array = NDArray[np.floating]

OPS = [op for op in Op if op not in GRAPH_ONLY | MEMORY_OPS | {Op.GATHER}]


def nasty(dtype: DType) -> Array:
    """(n, 4) operands: signed zeros, tiny, huge, denormal, infinite, NaN, and everyday ones."""
    kind = np.dtype(dtype.value)
    info = np.finfo(kind)
    turns = np.pi * np.array([0.5, 1.0, 1.5, 2.0, 100.0])
    special = [0.0, 1.0, 0.5, 2.0, 3.0, *turns, 1e-4, 10.0, 88.0, 700.0, 1e10, 1e20]
    special += [info.tiny, info.max, info.eps, info.smallest_subnormal, np.inf, np.nan]
    special += [1.0 - info.epsneg, 1.0 + info.eps]
    single = np.array([*special, *(-number for number in special)], kind)
    left, right = (grid.ravel() for grid in np.meshgrid(single, single))
    rng = np.random.default_rng(0)
    rows = [np.stack([left, right, rng.permutation(left), rng.permutation(left)], axis=1)]
    rows.append(rng.normal(size=(500, 4)) * 10.0 ** rng.uniform(-3, 3, (500, 1)))
    rows.append(rng.uniform(-1, 1, (500, 4)))
    rows.append(1.0 + np.array([-1, 1, 1, 1]) * 10.0 ** rng.uniform(-7, 0, (200, 4)))
    made = np.concatenate([part.astype(kind) for part in rows])
    # half of them, the others in the other type
    return made[rng.permutation(len(made))[kind.itemsize // 8 :: 2]]


@dataclass(frozen=True)
class EveryOp:
    """A program of every op, and what its columns are.

    Attributes:
        spec: The kernel: `rows`, four columns, to `results`.
        program: Its program.
        ops: The op of each column of the results; truth values are 1 and 0.
        operands: Of each column: columns of the rows, literals, or (column, column) for x < y.
    """

    spec: KernelSpec
    program: Program
    ops: tuple[Op, ...]
    operands: tuple[tuple[Any, ...], ...]


def every_op(dtype: DType) -> EveryOp:
    """Row by row, every op of the columns."""
    length = dtype.chunk_length
    steps = [
        Instruction(Op.READ, _registers(first, length), (), ("rows", chunk))
        for chunk, first in enumerate(range(0, 4, length))
    ]
    steps += [Instruction(Op.LT, (f"p{i}",), (f"r{i}", f"r{i + 1}")) for i in range(2)]
    outputs: list[str] = []
    ops: list[Op] = []
    used: list[tuple[Any, ...]] = []
    for op in OPS:
        operands = _operands(op)
        names = tuple(_name(operand) for operand in operands)
        made = _registers(4 + len(outputs), OP_INFO[op].num_outputs or 0)
        if OP_INFO[op].boolean:
            steps.append(Instruction(op, ("p2",), names))
            steps.append(Instruction(Op.SELECT, made, ("p2", 1.0, 0.0)))
        else:
            steps.append(Instruction(op, made, names))
        outputs += made
        ops += [op] * len(made)
        used += [operands] * len(made)
    for chunk, first in enumerate(range(0, len(outputs), length)):
        values = tuple(outputs[first : first + length])
        steps.append(Instruction(Op.STORE, (), values, ("results", chunk)))
    args = (
        ArgSpec("rows", 4, dtype, read=ReadRows()),
        ArgSpec("results", len(ops), dtype, write=WriteRows()),
    )
    program = Program(tuple(steps), 4 + len(outputs), 3, dtype)
    return EveryOp(
        KernelSpec("every_op", args, Graph((), 0, dtype)), program, tuple(ops), tuple(used)
    )


def _registers(first: int, count: int) -> tuple[str, ...]:
    return tuple(f"r{number}" for number in range(first, first + count))


def _operands(op: Op) -> tuple[Any, ...]:
    if op in (Op.AND, Op.OR, Op.NOT):
        return ((0, 1), (1, 2))[: OP_INFO[op].arity]
    if op is Op.SELECT:
        return ((0, 1), 1, 2)
    return (0, -3.0) if op is Op.LDEXP else (0, 1, 2, 3)[: OP_INFO[op].arity]


def _name(operand: Any) -> Any:
    if isinstance(operand, tuple):
        return f"p{operand[0]}"
    return f"r{operand}" if isinstance(operand, int) else operand


# -- running ---------------------------------------------------------------------------------------


def run_rows(backend: Backend, spec: KernelSpec, source: KernelSource, rows: Array) -> Array:
    """Run a kernel that makes `results` of `rows` on a backend."""
    empty = np.full((len(rows), spec.arg("results").dim), np.nan, rows.dtype)
    with backend.scope():
        bound = {
            name: Binding(backend.upload(array), len(rows))
            for name, array in (("rows", rows), ("results", empty))
        }
        kernel = backend.load([source])[spec.name]
        backend.sequence([backend.bind(kernel, bound, len(rows))]).run()
        return backend.to_host(bound["results"].data)


def run_rows_in_harness(spec: KernelSpec, source: KernelSource, rows: Array) -> Array:
    """The same of CUDA source, by the host's compiler."""
    results = np.full((len(rows), spec.arg("results").dim), np.nan, rows.dtype)
    bound = {"rows": Binding(rows, len(rows)), "results": Binding(results, len(rows))}
    launch_cuda(compile_cuda(source.text), source, bound, len(rows))
    return results
