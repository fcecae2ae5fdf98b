"""The text of small kernels, in both types and for both targets."""

from collections.abc import Callable

import pytest

from caspar.codegen.cuda.header import HEADER
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.ir.dtype import DType
from caspar.memory.kernel import KernelBuilder, KernelSpec, ReduceSpec
from caspar.memory.patterns import (
    AddSharedPartials,
    AddSumPartials,
    ReadIndexed,
    ReadSequential,
    WriteRows,
    WriteSequential,
)

Golden = Callable[[str, str], None]

SUFFIXES = {"cuda": "cu", "cpu": "txt"}


def damped_step(storage: DType, sums: DType) -> KernelSpec:
    """A kernel with one access of each kind that the solver uses."""
    kernel = KernelBuilder("damped_step", storage)
    kernel.guard("done")
    x = kernel.read("x", 3, storage, ReadSequential())
    y = kernel.read("y", 3, storage, ReadIndexed())
    alpha = kernel.scalar("alpha")
    moved = [a - alpha * b for a, b in zip(x, y, strict=True)]
    length = (moved[0] * moved[0] + moved[1] * moved[1] + moved[2] * moved[2]).sqrt()
    kernel.write("x", moved, storage, WriteSequential())
    kernel.write("unit", [a / length for a in moved], storage, WriteRows())
    kernel.write("total", [(length < 1.0).where(length, 1.0)], sums, AddSumPartials())
    kernel.write("gradient", moved[:2], sums, AddSharedPartials())
    return kernel.build()


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize(
    ("storage", "sums"),
    [(DType.FLOAT32, DType.FLOAT64), (DType.FLOAT64, DType.FLOAT64)],
    ids=["mixed", "float64"],
)
def test_kernel(target: str, storage: DType, sums: DType, golden: Golden) -> None:
    source = compile_kernel(damped_step(storage, sums), TARGETS[target])
    golden(source.text.replace(HEADER, "// (header)\n"), SUFFIXES[target])


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value)
def test_reduction(target: str, dtype: DType, golden: Golden) -> None:
    source = TARGETS[target].generate_reduce(ReduceSpec(6, dtype, 32))
    golden(source.text.replace(HEADER, "// (header)\n"), SUFFIXES[target])
