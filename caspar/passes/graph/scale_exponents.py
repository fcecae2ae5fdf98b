"""Products with a power of two become LDEXP, where the target has it cheaper than a product.

x * 2^k, k an integer, is a change of the exponent (paper: Hardware-Mapped Functions). On CUDA it is
a product after all: the compiler makes LDEXP of a literal four instructions more than the product,
which moreover fuses with a sum (docs/design/0007). So its price keeps this pass idle there.
"""

import math

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.passes.cost import OpCosts
from caspar.passes.graph.rewrite import rebuild

_MAX_EXPONENT = 100
"""Within the exponents of float32, so that 2^k is neither zero nor infinite."""


def scale_exponents(graph: Graph, costs: OpCosts) -> Graph:
    """Replace products with a literal power of two."""
    if not costs.has(Op.LDEXP) or costs.price(Op.LDEXP) >= costs.price(Op.MUL):
        return graph

    def rule(builder: GraphBuilder, call: Call, operands: tuple[int, ...]) -> list[int] | None:
        if call.op is not Op.PROD:
            return None
        exponents = {value: _exponent(builder, value) for value in operands}
        scaling = [value for value in operands if exponents[value] is not None]
        if len(scaling) != 1:
            return None
        scaled = builder.prod(value for value in operands if value != scaling[0])
        exponent = exponents[scaling[0]]
        assert exponent is not None
        return list(builder.call(Op.LDEXP, [scaled, builder.const(float(exponent))]))

    return rebuild(graph, rule)


def _exponent(builder: GraphBuilder, value: int) -> int | None:
    """k where a value is the literal 2^k, else None."""
    literal = builder.literal(value)
    if literal is None or not 0.0 < literal < math.inf:
        return None
    mantissa, exponent = math.frexp(literal)
    return exponent - 1 if mantissa == 0.5 and abs(exponent) <= _MAX_EXPONENT else None
