"""The evaluators: meaning of the ops, chunks, lanes, dtype."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from caspar.ir.evaluate import OP_FUNCTIONS, evaluate_graph, evaluate_program
from caspar.ir.ops import OP_INFO, Op
from caspar.ir.text import parse_graph, parse_program

# operands of an op -> result, away from trivial values
MEANING = {
    Op.SUM: ((1.0, 2.0, 4.0), 7.0),
    Op.PROD: ((2.0, 3.0, 5.0), 30.0),
    Op.SUB: ((2.0, 5.0), -3.0),
    Op.FMA: ((2.0, 3.0, 5.0), 11.0),
    Op.FNMA: ((2.0, 3.0, 5.0), -1.0),
    Op.DIV: ((3.0, 4.0), 0.75),
    Op.RCP: ((4.0,), 0.25),
    Op.POW: ((4.0, 1.5), 8.0),
    Op.RSQRT: ((4.0,), 0.5),
    Op.CBRT: ((-27.0,), -3.0),
    Op.RCBRT: ((-8.0,), -0.5),
    Op.ATAN2: ((1.0, -1.0), 3 * np.pi / 4),
    Op.ASINH: ((0.75,), np.log(2.0)),
    Op.ACOSH: ((1.25,), np.log(2.0)),
    Op.ATANH: ((0.6,), np.log(2.0)),
    Op.ERF: ((0.5,), 0.5204998778130465),
    Op.ERFC: ((0.5,), 0.4795001221869535),
    Op.SIGN: ((-3.0,), -1.0),
    Op.COPYSIGN: ((3.0, -0.0), -3.0),
    Op.FLOOR: ((-1.5,), -2.0),
    Op.MIN: ((np.nan, 2.0), np.nan),
    Op.MAX: ((2.0, 3.0), 3.0),
    Op.LE: ((2.0, 2.0), True),
    Op.LT: ((2.0, 2.0), False),
    Op.SELECT: ((False, 2.0, 3.0), 3.0),
}


@pytest.mark.parametrize("op", MEANING, ids=lambda op: op.name)
def test_meaning(op: Op) -> None:
    operands, expected = MEANING[op]
    assert_allclose(OP_FUNCTIONS[op](*map(np.asarray, operands)), expected)


def test_sign_of_zero_is_zero() -> None:
    assert OP_FUNCTIONS[Op.SIGN](np.zeros(1)) == 0.0


def test_every_op_has_a_meaning() -> None:
    assert set(OP_FUNCTIONS) == set(OP_INFO) - {Op.CONST, Op.READ, Op.STORE, Op.EXCHANGE, Op.GATHER}


EXCHANGE = """graph float64
    v0, v1 = read x[0]
    v2, v3 = exchange node_sum[0] v0, v1
    v4 = exchange other[0] v2
    v5 = sum v0, v4
    store y[0] v2, v3
    store y[1] v5
    """


def test_an_exchange_sums_over_the_lanes_of_an_object() -> None:
    x = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])
    objects = {"node_sum": np.array([5, 0, 5]), "other": np.array([0, 0, 1])}
    found = evaluate_graph(parse_graph(EXCHANGE), {"x": x}, {"y": 2}, objects)["y"]
    # the second exchange sums what came of the first
    assert_array_equal(found, [[5.0, 50.0, 8.0], [2.0, 20.0, 9.0], [5.0, 50.0, 9.0]])


def test_lanes_without_objects_exchange_nothing() -> None:
    x = np.array([[1.0, 10.0], [2.0, 20.0]])
    found = evaluate_graph(parse_graph(EXCHANGE), {"x": x}, {"y": 2})["y"]
    assert_array_equal(found, [[1.0, 10.0, 2.0], [2.0, 20.0, 4.0]])


def test_one_row_for_all_lanes_is_summed_for_each() -> None:
    graph = parse_graph("graph float32\nv0 = const 0.5\nv1 = exchange s[0] v0\nstore y[0] v1")
    found = evaluate_graph(graph, {"x": np.zeros((3, 1))}, None, {"s": np.array([0, 1, 1])})["y"]
    assert found.dtype == np.float32
    assert_array_equal(found, [[0.5], [1.0], [1.0]])


def test_chunks_are_columns() -> None:
    graph = parse_graph(
        """graph float32
        v0, v1, v2, v3 = read x[0]
        v4 = read x[1]
        v5 = read w[1]
        v6 = sum v0, v4, v5
        store y[1] v6, v3
        """
    )
    x = np.arange(10.0).reshape(2, 5)
    w = np.array([[10.0, 20.0, 30.0]])
    result = evaluate_graph(graph, {"x": x, "w": w}, {"w": 2})["y"]
    assert result.dtype == np.float32
    # chunk 0 of y was not stored
    assert_array_equal(result[:, :4], np.full((2, 4), np.nan))
    assert_array_equal(result[:, 4:], [[0 + 4 + 30, 3], [5 + 9 + 30, 8]])


def test_float64_chunks_hold_two() -> None:
    graph = parse_graph("graph float64\nv0, v1 = read x[1]\nstore y[0] v1, v0")
    assert_array_equal(evaluate_graph(graph, {"x": np.arange(4.0)[None]})["y"], [[3.0, 2.0]])


def test_computing_is_done_in_the_dtype() -> None:
    text = "v0 = read x[0]\nv1 = const 1e-08\nv2 = sum v0, v1\nstore y[0] v2"
    ones = {"x": np.ones((1, 1))}
    single = evaluate_graph(parse_graph("graph float32\n" + text), ones)["y"]
    double = evaluate_graph(parse_graph("graph float64\n" + text), ones)["y"]
    assert single[0, 0] == 1.0
    assert double[0, 0] == 1.0 + 1e-8


def test_program_registers_are_overwritten() -> None:
    program = parse_program(
        """program float64 registers=2 predicates=1
        r0, r1 = read x[0]
        p0 = lt r0, r1
        r0 = fnma r0, 2.0, r1
        r0, r1 = sincos r0
        r0 = select p0, r0, r1
        store y[0] r0
        """
    )
    x = np.array([[1.0, 2.5], [2.0, 1.0]])
    expected = [[np.sin(0.5)], [np.cos(-3.0)]]
    assert_allclose(evaluate_program(program, {"x": x})["y"], expected)


def test_constant_outputs_fill_the_lanes() -> None:
    graph = parse_graph("graph float64\nv0 = const 2.0\nstore y[0] v0")
    assert_array_equal(evaluate_graph(graph, {"x": np.zeros((3, 1))})["y"], np.full((3, 1), 2.0))
