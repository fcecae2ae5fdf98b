"""Signs are known where they follow from the ops, and never claimed wrongly."""

from collections.abc import Callable

import pytest

from caspar.ir.builder import GraphBuilder
from caspar.ir.ops import Op
from caspar.passes.graph.decompose_powers import Sign, signs
from tests.passes.checking import graph_of

Write = Callable[[GraphBuilder, int, int], int]


def squared(builder: GraphBuilder, x: int) -> int:
    return builder.prod([x, x])


EXPECTED: list[tuple[Write, Sign]] = [
    (lambda b, x, y: x, Sign.UNKNOWN),
    (lambda b, x, y: squared(b, x), Sign.NONNEGATIVE),
    (lambda b, x, y: b.prod([x, y]), Sign.UNKNOWN),
    (lambda b, x, y: b.sum([squared(b, x), squared(b, y)]), Sign.NONNEGATIVE),
    (lambda b, x, y: b.sum([squared(b, x), b.const(1e-8)]), Sign.POSITIVE),
    (lambda b, x, y: b.sum([squared(b, x), b.const(-1e-8)]), Sign.UNKNOWN),
    (lambda b, x, y: b.sum([x, b.const(1e-8)]), Sign.UNKNOWN),
    (lambda b, x, y: b.sum([squared(b, x), b.neg(squared(b, y))]), Sign.UNKNOWN),
    (lambda b, x, y: b.unary(Op.EXP, x), Sign.NONNEGATIVE),
    (lambda b, x, y: b.unary(Op.ABS, x), Sign.NONNEGATIVE),
    (lambda b, x, y: b.binary(Op.MAX, x, b.const(0.5)), Sign.POSITIVE),
    (lambda b, x, y: b.binary(Op.MIN, x, b.const(0.5)), Sign.UNKNOWN),
    (
        lambda b, x, y: b.select(b.binary(Op.LT, x, y), b.const(1.0), b.const(0.0)),
        Sign.NONNEGATIVE,
    ),
]


@pytest.mark.parametrize("case", range(len(EXPECTED)))
def test_signs(case: int) -> None:
    write, expected = EXPECTED[case]
    graph = graph_of(lambda b, x, y: [write(b, x, y)], 2)
    stored = graph.calls[-1].operands[0]
    assert signs(graph)[stored] is expected
