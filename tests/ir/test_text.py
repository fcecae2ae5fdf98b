"""The printed form: what it looks like, and that parsing inverts printing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caspar.errors import FileFormatError
from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.ir.text import parse_graph, parse_program, print_graph, print_program
from caspar.passes.cost import CUDA_FLOAT32
from caspar.passes.pipeline import compile_graph
from tests.ir.graph_cases import GraphCase
from tests.ir.graph_strategies import special_cases

GRAPH = """\
graph float32
  v0, v1, v2, v3 = read cam[0]
  v4 = const 0.1
  v5 = sum v0, v1, v4  # snavely: residual[0]
  v6, v7 = sincos v2
  store out[1] v5, v6, v7
"""

PROGRAM = """\
program float64 registers=2 predicates=1
  r0, r1 = read cam[0]
  p0 = lt r0, -1e-05
  r0 = select p0, r1, nan
  store out[0] r0  # pixel
"""


EXCHANGE = """\
graph float64
  v0, v1 = read x[0]
  v2, v3 = exchange node_sum[0] v0, v1  # E^T C p
  v4 = sum v0, v2
  store y[0] v4, v3
"""


def test_graph_text() -> None:
    assert print_graph(parse_graph(GRAPH)) == GRAPH


def test_program_text() -> None:
    assert print_program(parse_program(PROGRAM)) == PROGRAM


def test_parsed_graph_is_what_was_built() -> None:
    builder = GraphBuilder(DType.FLOAT32)
    a, b, c, _ = builder.read("cam", 0, 4)
    total = builder.sum([a, b, builder.const(0.1)])
    builder.store("out", 1, [total, *builder.call(Op.SINCOS, [c])])
    assert parse_graph(GRAPH) == builder.build()


def test_an_exchange() -> None:
    builder = GraphBuilder(DType.FLOAT64)
    a, b = builder.read("x", 0, 2)
    builder.origin = "E^T C p"
    total, other = builder.exchange("node_sum", [a, b])
    builder.origin = ""
    builder.store("y", 0, [builder.sum([a, total]), other])
    assert parse_graph(EXCHANGE) == builder.build()
    assert print_graph(parse_graph(EXCHANGE)) == EXCHANGE
    program = compile_graph(parse_graph(EXCHANGE), CUDA_FLOAT32)
    assert parse_program(print_program(program)) == program
    assert [step.op for step in program.instructions].count(Op.EXCHANGE) == 1


def test_origin_survives() -> None:
    assert parse_graph(GRAPH).calls[2].origin == "snavely: residual[0]"


@given(special_cases())
def test_parsing_inverts_printing(case: GraphCase) -> None:
    graph = case.graph
    program = compile_graph(graph, CUDA_FLOAT32)
    # repr: NaN is not equal to itself, minus zero equal to zero, an origin not compared
    assert repr(parse_graph(print_graph(graph))) == repr(graph)
    assert repr(parse_program(print_program(program))) == repr(program)


@given(st.floats(allow_nan=False))
def test_numbers_are_exact(number: float) -> None:
    graph = Graph((Call(Op.CONST, (), (0,), number),), 1, DType.FLOAT64)
    parsed = parse_graph(print_graph(graph)).calls[0].data
    assert isinstance(parsed, float)
    assert parsed == number
    assert math.copysign(1.0, parsed) == math.copysign(1.0, number)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "graph\n",
        "graph float31\n",
        "graph float32\n  v0 = frobnicate v1",
        "graph float32\n  v0 = sin r1",
        "graph float32\n  v0 = read 3",
        "graph float32\n  v0 = const one",
        "graph float32\n  store y v0",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(FileFormatError):
        parse_graph(text)


def test_other_program_text_is_refused() -> None:
    with pytest.raises(FileFormatError, match="cannot read the number 'x0'"):
        parse_program("program float32 registers=1 predicates=0\n  r0 = sin x0")
