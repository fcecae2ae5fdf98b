"""What each target computes natively, and at what price.

Prices are relative to one multiplication, by throughput. They only have to rank the alternatives
that the passes choose from; an op without a price is not native and is not introduced.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from caspar.ir.ops import Op


@dataclass(frozen=True, eq=False)
class OpCosts:
    """Prices of the ops the passes choose between.

    Attributes:
        name: Name of the target.
        prices: Op -> price; ops left out are not native.
    """

    name: str
    prices: Mapping[Op, float]

    def has(self, op: Op) -> bool:
        """Whether the target has an op natively."""
        return op in self.prices

    def price(self, op: Op) -> float:
        """Price of a native op."""
        return self.prices[op]


# One special-function instruction issues at a quarter to an eighth of the rate of a product;
# rcp, rsqrt: that and a correction; sqrt, cbrt and division: further corrections.
CUDA_FLOAT32 = OpCosts(
    "cuda float32",
    {
        Op.MUL: 1,
        Op.RCP: 5,
        Op.DIV: 9,
        Op.SQRT: 8,
        Op.RSQRT: 6,
        Op.CBRT: 17,
        Op.RCBRT: 14,
        Op.POW: 45,
        Op.SIN: 20,
        Op.COS: 20,
        Op.SINCOS: 26,
    },
)
# All of these are software on top of a low-precision start value.
CUDA_FLOAT64 = OpCosts(
    "cuda float64",
    {
        Op.MUL: 1,
        Op.RCP: 8,
        Op.DIV: 11,
        Op.SQRT: 13,
        Op.RSQRT: 10,
        Op.CBRT: 30,
        Op.RCBRT: 26,
        Op.POW: 120,
        Op.SIN: 45,
        Op.COS: 45,
        Op.SINCOS: 60,
    },
)
# A reciprocal is a division; neither reciprocal roots nor sincos are one operation.
CPU = OpCosts(
    "cpu",
    {
        Op.MUL: 1,
        Op.RCP: 5,
        Op.DIV: 5,
        Op.SQRT: 6,
        Op.CBRT: 25,
        Op.POW: 45,
        Op.SIN: 20,
        Op.COS: 20,
    },
)
