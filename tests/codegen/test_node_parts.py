"""What comes of the sums over a node's items is computed once for the node, not for each item."""

from caspar.codegen.cpu.kernel import Part, node_parts
from caspar.codegen.targets import TARGETS
from caspar.ir.dtype import DType
from caspar.ir.ops import Op
from caspar.memory.accessors.nodes.exchanges import ReadForNode, SpreadOverNode, SumOverNode
from caspar.memory.accessors.nodes.node_sums import WriteOwnNode
from caspar.memory.kernel import KernelBuilder
from caspar.memory.patterns import ReadSequential, WriteSequential
from caspar.passes.pipeline import compile_graph


def parts_of(kernel: KernelBuilder) -> list[Part]:
    spec = kernel.build()
    return node_parts(spec, compile_graph(spec.graph, TARGETS["cpu"].costs[DType.FLOAT64]))


def ops_of(part: Part) -> set[Op]:
    return {one.op for one in part.instructions}


def test_a_node_works_once() -> None:
    kernel = KernelBuilder("rooted", DType.FLOAT64, tiled=True)
    (x,) = kernel.read("x", 1, DType.FLOAT64, ReadSequential())
    (node,) = kernel.read("node", 1, DType.FLOAT64, ReadForNode("sum_0"))
    (total,) = kernel.exchange("sum_0", [x.max(-7.0)], SumOverNode())
    root = (total + node).sqrt()
    (spread,) = kernel.exchange("spread", [root], SpreadOverNode("sum_0"))
    (last,) = kernel.exchange("sum_1", [spread * x], SumOverNode("sum_0"))
    kernel.write("node", [root / last], DType.FLOAT64, WriteOwnNode("sum_0"))
    items, nodes, items_again, nodes_again = parts_of(kernel)
    assert [one.of_nodes for one in (items, nodes, items_again, nodes_again)] == 2 * [False, True]
    assert Op.MAX in ops_of(items)
    assert Op.SQRT in ops_of(nodes)
    for later in (items_again, nodes_again):
        assert later.takes == nodes.keeps
        assert ops_of(later).isdisjoint({Op.MAX, Op.SQRT})
    assert Op.STORE in ops_of(nodes_again)


def test_items_store_behind_all_exchanges() -> None:
    kernel = KernelBuilder("stored", DType.FLOAT64, tiled=True)
    (x,) = kernel.read("x", 1, DType.FLOAT64, ReadSequential())
    (total,) = kernel.exchange("sum_0", [x], SumOverNode())
    (spread,) = kernel.exchange("spread", [total], SpreadOverNode("sum_0"))
    kernel.write("y", [x - spread], DType.FLOAT64, WriteSequential())
    *_, last = parts_of(kernel)
    assert not last.of_nodes
    assert Op.STORE in ops_of(last)


def test_without_exchanges_there_is_one_loop() -> None:
    kernel = KernelBuilder("plain", DType.FLOAT64)
    (x,) = kernel.read("x", 1, DType.FLOAT64, ReadSequential())
    kernel.write("y", [x + 1.0], DType.FLOAT64, WriteSequential())
    (part,) = parts_of(kernel)
    assert not part.of_nodes
