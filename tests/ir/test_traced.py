"""Plain Python that is traced into a graph says there what it says on the host."""

import itertools
import math

import numpy as np
import pytest

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph
from caspar.ir.ops import Op
from caspar.ir.scalar import Scalar
from caspar.ir.traced import one_at_a_time, traced
from tests.ir import traced_cases

NUMBERS = (-1.0, 0.5, 1.0, 2.0, 3.0, math.inf)


@pytest.mark.parametrize("name", ["choice", "first", "first_kept", "truth", "known"])
def test_the_same_numbers(name: str) -> None:
    graph = GraphBuilder(DType.FLOAT64)
    a, b = (Scalar(graph, graph.read(one, 0, 1)[0]) for one in "ab")
    graph.store("c", 0, [getattr(traced(traced_cases, {}), name)(a, b).value])
    pairs = np.array(list(itertools.product(NUMBERS, NUMBERS)))
    inputs = {"a": pairs[:, :1], "b": pairs[:, 1:]}
    found = evaluate_graph(graph.build(), inputs, dict.fromkeys("abc", 1))["c"][:, 0]
    assert found.tolist() == [getattr(traced_cases, name)(*pair) for pair in pairs.tolist()]


def test_names_may_mean_something_else() -> None:
    assert traced(traced_cases, {"LEAST": 9.0}).choice(5.0, 4.0) == 4.0
    assert traced_cases.choice(5.0, 4.0) == -5.0


def test_what_a_constant_leaves_out_is_not_in_the_graph() -> None:
    graph = GraphBuilder(DType.FLOAT64)
    a, b = (Scalar(graph, graph.read(one, 0, 1)[0]) for one in "ab")
    graph.store("c", 0, [traced(traced_cases, {}).known(a, b, is_square=False).value])
    assert [call.op for call in graph.build().calls] == [Op.READ, Op.STORE]


def test_a_statement_that_depends_on_a_number() -> None:
    graph = GraphBuilder(DType.FLOAT64)
    a, b = (Scalar(graph, graph.read(one, 0, 1)[0]) for one in "ab")
    with pytest.raises(AssertionError, match="depends on a number"):
        traced(traced_cases, {}).unknown(a, b)


def test_a_tree_is_made_again_where_other_threads_make_some() -> None:
    """Python 3.11 raises SystemError then."""
    tries: list[int] = []

    def make() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise SystemError("AST constructor recursion depth mismatch")
        return "made"

    assert one_at_a_time(make) == "made"
    assert len(tries) == 3
