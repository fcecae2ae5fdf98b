"""Declaring arguments by reading and writing them."""

from caspar.ir.dtype import DType
from caspar.ir.ops import Op
from caspar.memory.access import ArgSpec
from caspar.memory.kernel import KernelBuilder
from caspar.memory.patterns import (
    AddSumPartials,
    ReadSequential,
    ReadUnique,
    WriteRows,
    WriteSequential,
)


def test_arguments_come_in_the_order_of_their_first_use() -> None:
    kernel = KernelBuilder("k", DType.FLOAT32)
    x = kernel.read("x", 3, DType.FLOAT32, ReadSequential())
    scale = kernel.scalar("scale")
    kernel.write("y", x[:1], DType.FLOAT64, AddSumPartials())
    kernel.write("x", [scale * entry for entry in x], DType.FLOAT32, WriteSequential())
    spec = kernel.build()
    assert spec.name == "k"
    assert spec.guard is None
    assert spec.args == (
        ArgSpec("x", 3, DType.FLOAT32, ReadSequential(), WriteSequential()),
        ArgSpec("scale", 1, DType.FLOAT64, ReadUnique()),
        ArgSpec("y", 1, DType.FLOAT64, write=AddSumPartials()),
    )
    assert spec.arg("y").dtype is DType.FLOAT64


def test_objects_are_read_and_stored_by_chunks() -> None:
    kernel = KernelBuilder("k", DType.FLOAT64)
    values = kernel.read("x", 5, DType.FLOAT32, ReadSequential())
    kernel.write("rows", values, DType.FLOAT64, WriteRows())
    kernel.write("sum", values, DType.FLOAT64, AddSumPartials())
    calls = kernel.build().graph.calls
    reads = [(call.data, len(call.outputs)) for call in calls if call.op is Op.READ]
    stores = [(call.data, len(call.operands)) for call in calls if call.op is Op.STORE]
    assert reads == [(("x", 0), 4), (("x", 1), 1)]
    assert stores == [
        *((("rows", 0), 2), (("rows", 1), 2), (("rows", 2), 1)),
        *((("sum", 0), 4), (("sum", 1), 1)),
    ]


def test_a_second_read_is_the_first_one() -> None:
    kernel = KernelBuilder("k", DType.FLOAT32)
    first = kernel.read("x", 2, DType.FLOAT32, ReadSequential())
    assert kernel.read("x", 2, DType.FLOAT32, ReadSequential()) == first


def test_nothing_is_written_without_scalars() -> None:
    kernel = KernelBuilder("k", DType.FLOAT32)
    kernel.write("nothing", [], DType.FLOAT32, WriteSequential())
    assert kernel.build().args == ()


def test_the_guard_is_an_argument() -> None:
    kernel = KernelBuilder("k", DType.FLOAT32)
    kernel.guard("done")
    spec = kernel.build()
    assert spec.guard == "done"
    assert spec.args == (ArgSpec("done", 1, DType.FLOAT64, ReadUnique()),)
