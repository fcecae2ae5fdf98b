"""The verifiers accept what the builder makes and name what breaks a rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caspar.errors import VerificationError
from caspar.ir.text import parse_graph, parse_program
from tests.ir.random_graphs import random_graph
from tests.support_verify import verify_graph, verify_program

BAD_GRAPHS = {
    "v1 is read before it is produced": "v0 = sin v1\nv1 = const 1.0\nstore y[0] v0",
    "v0 is produced twice": "v0 = const 1.0\nv0 = const 2.0\nstore y[0] v0",
    "v5 is outside v0 .. v0": "v5 = const 1.0",
    "takes 1 operands, has 2": "v0 = const 1.0\nv1 = sin v0, v0\nstore y[0] v1",
    "takes 2 or more operands": "v0 = const 1.0\nv1 = sum v0\nstore y[0] v1",
    "has 2 outputs, not 1": "v0 = const 1.0\nv1 = sincos v0\nstore y[0] v1",
    "FMA belongs in programs": "v0 = const 1.0\nv1 = fma v0, v0, v0\nstore y[0] v1",
    "operand 0 must be a truth value": "v0 = const 1.0\nv1 = not v0\nstore y[0] v0",
    "operand 1 must be a number": (
        "v0 = const 1.0\nv1 = lt v0, v0\nv2 = sum v0, v1\nstore y[0] v2"
    ),
    "accesses no scalar": "v0 = const 1.0\nstore y[0]",
    "another width": "v0, v1 = read x[0]\nv2 = read x[0]\nstore y[0] v0, v1, v2",
    "stored before": "v0 = read x[0]\nstore y[0] v0\nstore y[0] v0",
    "exchanges 2 values for 1": "v0, v1 = read x[0]\nv2 = exchange s[0] v0, v1\nstore y[0] v2",
    "s[0]: accesses no scalar": "exchange s[0]",
    "s[0] v1: the chunk was stored before": (
        "v0 = read x[0]\nv1 = exchange s[0] v0\nv2 = exchange s[0] v1\nstore y[0] v2"
    ),
    "exchange s[0] v1: operand 0 must be a number": (
        "v0 = read x[0]\nv1 = lt v0, v0\nv2 = exchange s[0] v1\nstore y[0] v2"
    ),
    "x[0]: the chunk was stored before": (
        "v0 = const 1.0\nstore x[0] v0\nv1 = read x[0]\nstore y[0] v1"
    ),
}

BAD_PROGRAMS = {
    "r0 is read before it is written": (1, 0, "r0 = sin r0"),
    "SUM should have been lowered": (1, 0, "r0 = read x[0]\nr0 = sum r0, r0"),
    "r1 is outside the 1 declared": (1, 0, "r0, r1 = read x[0]"),
    "declares 3 'r' registers but writes 2": (3, 0, "r0, r1 = read x[0]"),
    "p0 is outside the 0 declared": (1, 0, "r0 = read x[0]\np0 = lt r0, 1.0"),
    "declares 1 'p' registers but writes 0": (1, 1, "r0 = read x[0]"),
    "needs a 'p' register": (1, 0, "r0 = read x[0]\nr0 = lt r0, 1.0"),
    "operand 0 must be a truth value": (1, 0, "r0 = read x[0]\nr0 = select r0, r0, r0"),
    "writes one register twice": (1, 0, "r0, r0 = read x[0]"),
    "q0": (1, 0, "q0 = read x[0]"),
    "exchanges 1 values for 2": (2, 0, "r0 = read x[0]\nr0, r1 = exchange s[0] r0"),
    "stored before": (1, 0, "r0 = read x[0]\nstore x[0] r0\nr0 = read x[0]"),
}


@given(st.integers(0, 10_000))
def test_graphs_of_the_builder_are_valid(seed: int) -> None:
    verify_graph(random_graph(seed))


@pytest.mark.parametrize("message", BAD_GRAPHS)
def test_invalid_graphs_are_refused(message: str) -> None:
    graph = parse_graph("graph float32\n" + BAD_GRAPHS[message])
    with pytest.raises(VerificationError) as error:
        verify_graph(graph)
    assert message in str(error.value)


@pytest.mark.parametrize("message", BAD_PROGRAMS)
def test_invalid_programs_are_refused(message: str) -> None:
    registers, predicates, body = BAD_PROGRAMS[message]
    header = f"program float32 registers={registers} predicates={predicates}\n"
    with pytest.raises(VerificationError) as error:
        verify_program(parse_program(header + body))
    assert message in str(error.value)


def test_the_offending_call_is_printed() -> None:
    graph = parse_graph("graph float32\nv0 = read x[0]\nv1 = sin v0, v0  # snavely: line 3")
    with pytest.raises(VerificationError, match=r"call 1: v1 = sin v0, v0  # snavely: line 3"):
        verify_graph(graph)
