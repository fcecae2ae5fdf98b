"""Signs that sums and products take for nothing."""

from collections import Counter

import numpy as np

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.passes.cost import CUDA_FLOAT32
from caspar.passes.graph.push_negations import push_negations
from caspar.passes.pipeline import compile_graph
from tests.passes.checking import (
    assert_graph,
    assert_program,
    assert_same_evaluation,
    graph_of,
    ops_of,
)
from tests.support_verify import verify_graph


def pushed(graph: Graph) -> Graph:
    after = push_negations(graph, CUDA_FLOAT32)
    verify_graph(after)
    return after


def test_a_negated_inner_product() -> None:
    def write(builder: GraphBuilder, x: int, y: int, z: int, w: int) -> list[int]:
        terms = [builder.prod([x, y]), builder.neg(builder.prod([z, w]))]
        return [builder.neg(builder.sum(terms)), builder.neg(builder.prod([x, z]))]

    graph = graph_of(write, 4)
    assert_graph(
        pushed(graph),
        """
        v0, v1, v2, v3 = read x[0]
        v4 = prod v0, v1
        v5 = prod v2, v3
        v6 = neg v4
        v7 = sum v6, v5
        v8 = neg v0
        v9 = prod v8, v2
        store y[0] v7, v9
        """,
    )
    assert_program(
        compile_graph(graph, CUDA_FLOAT32),
        """
        r0, r1, r2, r3 = read x[0]
        r3 = mul r2, r3
        r1 = fnma r0, r1, r3
        r0 = nmul r0, r2
        store y[0] r1, r0
        """,
    )


def test_a_literal_takes_the_sign() -> None:
    def write(builder: GraphBuilder, x: int) -> list[int]:
        return [builder.prod([x, builder.const(-2.0)])]

    assert_program(
        compile_graph(graph_of(write, 1), CUDA_FLOAT32),
        """
        r0 = read x[0]
        r0 = mul r0, -2.0
        store y[0] r0
        """,
    )


def test_a_sum_with_another_reader_keeps_its_sign() -> None:
    def write(builder: GraphBuilder, x: int, y: int) -> list[int]:
        total = builder.sum([x, y])
        return [total, builder.neg(total)]

    graph = graph_of(write, 2)
    assert pushed(graph) == graph


def test_a_negation_that_sums_read_is_free_already() -> None:
    def write(builder: GraphBuilder, x: int, y: int, z: int) -> list[int]:
        return [builder.sub(z, builder.prod([x, y]))]

    graph = graph_of(write, 3)
    assert pushed(graph) == graph
    assert Counter(ops_of(compile_graph(graph, CUDA_FLOAT32))) == {Op.FNMA: 1}


def test_all_terms_negative() -> None:
    def write(builder: GraphBuilder, x: int, y: int, z: int) -> list[int]:
        return [builder.neg(builder.sum([x, builder.prod([y, z])]))]

    assert ops_of(compile_graph(graph_of(write, 3), CUDA_FLOAT32)) == [Op.NEG, Op.FNMA]


def test_a_term_whose_own_sign_was_pushed() -> None:
    """-(x*y) is read by a function, and by a sum that is negated for another one."""

    def write(builder: GraphBuilder, x: int, y: int, z: int) -> list[int]:
        product = builder.neg(builder.prod([x, y]))
        total = builder.neg(builder.sum([product, z]))
        return [builder.unary(Op.EXP, product), builder.unary(Op.SIN, total)]

    graph = graph_of(write, 3)
    inputs = {"x": np.array([[0.5, 2.0, 3.0]])}
    assert_same_evaluation(graph, pushed(graph), inputs)
    assert_same_evaluation(graph, compile_graph(graph, CUDA_FLOAT32), inputs)
