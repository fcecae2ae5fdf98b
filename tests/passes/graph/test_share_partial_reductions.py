"""Common subsets of sums and products, computed once."""

import numpy as np

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.passes.cost import CUDA_FLOAT32
from caspar.passes.graph.share_partial_reductions import share_partial_products, share_partial_sums
from tests.passes.checking import assert_graph, assert_same_evaluation, graph_of, ops_of
from tests.passes.scheduling.wide_sums import num_additions, wide_sums


def reductions(op: Op, *names: str) -> Graph:
    """One reduction for each name: its letters are terms, capital ones are negated."""

    def write(builder: GraphBuilder, *inputs: int) -> list[int]:
        values = dict(zip("abcdef", inputs, strict=True))
        reduce = builder.sum if op is Op.SUM else builder.prod
        return [
            reduce([values[c] if c.islower() else builder.neg(values[c.lower()]) for c in name])
            for name in names
        ]

    return graph_of(write, 6)


def test_the_example_of_the_paper() -> None:
    assert_graph(
        share_partial_sums(reductions(Op.SUM, "abc", "acde", "ace"), CUDA_FLOAT32),
        """
        v0, v1, v2, v3, v4, v5 = read x[0]
        v6 = sum v0, v2
        v7 = sum v1, v6
        v8 = sum v4, v6
        v9 = sum v3, v8
        store y[0] v7, v9, v8
        """,
    )


def test_the_most_frequent_subset_comes_first() -> None:
    # ab occurs three times, bcd twice: the larger one would leave one addition more
    found = share_partial_sums(reductions(Op.SUM, "abcd", "bcde", "abf", "abe"), CUDA_FLOAT32)
    assert num_additions(found) == 7


def test_of_equally_frequent_subsets_the_larger_one() -> None:
    assert_graph(
        share_partial_sums(reductions(Op.SUM, "abcd", "abce", "def"), CUDA_FLOAT32),
        """
        v0, v1, v2, v3, v4, v5 = read x[0]
        v6 = sum v0, v1, v2
        v7 = sum v3, v6
        v8 = sum v4, v6
        v9 = sum v3, v4, v5
        store y[0] v7, v8, v9
        """,
    )


def test_opposite_differences_share() -> None:
    assert_graph(
        share_partial_sums(reductions(Op.SUM, "aBc", "Abd"), CUDA_FLOAT32),
        """
        v0, v1, v2, v3, v4, v5 = read x[0]
        v6 = neg v1
        v7 = sum v0, v6
        v8 = sum v2, v7
        v9 = neg v7
        v10 = sum v3, v9
        store y[0] v8, v10
        """,
    )


def test_terms_that_agree_in_some_signs_only() -> None:
    graph = reductions(Op.SUM, "abC", "abc", "aBc")
    found = share_partial_sums(graph, CUDA_FLOAT32)
    assert num_additions(found) == 5
    assert_same_evaluation(graph, found, {"x": np.array([[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]])})


def test_a_sum_that_is_the_whole_subset_is_used_itself() -> None:
    found = share_partial_sums(reductions(Op.SUM, "abcd", "abc"), CUDA_FLOAT32)
    assert_graph(
        found,
        """
        v0, v1, v2, v3, v4, v5 = read x[0]
        v6 = sum v0, v1, v2
        v7 = sum v3, v6
        store y[0] v7, v6
        """,
    )


def test_products_share_factors_and_powers() -> None:
    assert_graph(
        share_partial_products(reductions(Op.PROD, "aabc", "aabd", "ae"), CUDA_FLOAT32),
        """
        v0, v1, v2, v3, v4, v5 = read x[0]
        v6 = prod v0, v0, v1
        v7 = prod v2, v6
        v8 = prod v3, v6
        v9 = prod v0, v4
        store y[0] v7, v8, v9
        """,
    )


def test_two_fused_products_are_not_worth_a_sum() -> None:
    """a*b + c*d + e and a*b + c*d + f are four fused multiply-adds; sharing saves none."""

    def write(builder: GraphBuilder, *v: int) -> list[int]:
        products = [builder.prod(v[0:2]), builder.prod(v[2:4])]
        return [builder.sum([*products, last]) for last in v[4:6]]

    graph = graph_of(write, 6)
    assert share_partial_sums(graph, CUDA_FLOAT32) == graph


def test_nothing_to_share() -> None:
    graph = reductions(Op.SUM, "abc", "def", "ad")
    assert share_partial_sums(graph, CUDA_FLOAT32) == graph


def test_chains_of_prefixes() -> None:
    """s_k = x_0 + ... + x_k: each is the one before it and one term."""
    num_terms = 150

    def write(builder: GraphBuilder, *inputs: int) -> list[int]:
        return [builder.sum(inputs[:count]) for count in range(2, num_terms + 1)]

    graph = graph_of(write, num_terms, DType.FLOAT64)
    assert num_additions(graph) == num_terms * (num_terms - 1) // 2
    assert num_additions(share_partial_sums(graph, CUDA_FLOAT32)) == num_terms - 1


def test_wide_sums_are_not_searched_pair_by_pair() -> None:
    """The number of candidates grows with the number of terms, not with its square."""
    graph = wide_sums(num_sums=4, num_terms=3000, num_inputs=6000)
    found = share_partial_sums(graph, CUDA_FLOAT32)
    assert num_additions(found) < num_additions(graph)
    assert set(ops_of(found)) == {Op.SUM}


def test_a_product_that_holds_the_subset_already() -> None:
    def write(builder: GraphBuilder, x: int, y: int) -> list[int]:
        square = builder.prod([x, x])
        return [square, builder.prod([x, x, square]), builder.prod([x, x, square, square, y])]

    graph = graph_of(write, 2)
    found = share_partial_products(graph, CUDA_FLOAT32)
    assert_same_evaluation(graph, found, {"x": np.array([[3.0, 5.0]])})


def test_a_subset_that_is_taken_out_twice() -> None:
    """p = x * y is in x * y * p * p * p already, as the second and third of its kind."""

    def write(builder: GraphBuilder, x: int, y: int) -> list[int]:
        p = builder.prod([x, y])
        q = builder.prod([x, y, p, p, p])
        return [p, q, builder.prod([p, p, q]), builder.prod([x, x, y, y, p, q])]

    graph = graph_of(write, 2, DType.FLOAT64)
    found = share_partial_products(graph, CUDA_FLOAT32)
    assert_same_evaluation(graph, found, {"x": np.array([[3.0, 5.0]])})
