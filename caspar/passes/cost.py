"""Native ops of each target, and their prices.

Prices are relative to one multiplication, by throughput, plus `PRICE_OF_ULP` for each unit in the
last place of the op's greatest error: where two ways are about as fast, the more accurate one is
taken. They only have to rank the alternatives that the passes choose from; an op without a price is
not native and is not introduced.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from caspar.ir.ops import Op


@dataclass(frozen=True, eq=False)
class OpCosts:
    """Prices, by target, of the ops the passes choose between; ops left out are not native."""

    name: str
    prices: Mapping[Op, float]

    def has(self, op: Op) -> bool:
        """Return whether the target has an op natively."""
        return op in self.prices

    def price(self, op: Op) -> float:
        """Price of a native op."""
        return self.prices[op]


PRICE_OF_ULP = 2.0


def _prices(measured: Mapping[Op, tuple[float, int]]) -> dict[Op, float]:
    return {op: price + PRICE_OF_ULP * ulps for op, (price, ulps) in measured.items()}


# Op -> (multiplications, units in the last place): the first measured on an H200
# (benchmarks/results/op_prices.json), the second from the CUDA programming guide.
CUDA_FLOAT32 = OpCosts(
    "cuda float32",
    _prices(
        {
            Op.MUL: (1, 0),
            Op.LDEXP: (4, 0),
            Op.RCP: (10, 0),
            Op.DIV: (17, 0),
            Op.SQRT: (10, 0),
            Op.RSQRT: (7, 2),
            Op.CBRT: (19, 1),
            Op.RCBRT: (19, 1),
            Op.NORM2: (27, 3),
            Op.NORM3: (32, 3),
            Op.NORM4: (38, 3),
            Op.RNORM2: (15, 2),
            Op.RNORM3: (24, 2),
            Op.RNORM4: (30, 2),
            Op.POW: (102, 4),
            Op.SIN: (30, 2),
            Op.COS: (32, 2),
            Op.SINCOS: (35, 2),
        }
    ),
)
CUDA_FLOAT64 = OpCosts(
    "cuda float64",
    _prices(
        {
            Op.MUL: (1, 0),
            Op.LDEXP: (4, 0),
            Op.RCP: (7, 0),
            Op.DIV: (13, 0),
            Op.SQRT: (13, 0),
            Op.RSQRT: (8.5, 1),
            Op.CBRT: (33, 1),
            Op.RCBRT: (33, 1),
            Op.NORM2: (27, 2),
            Op.NORM3: (50, 2),
            Op.NORM4: (71, 2),
            Op.RNORM2: (19, 1),
            Op.RNORM3: (43, 1),
            Op.RNORM4: (61, 1),
            Op.POW: (134, 2),
            Op.SIN: (30, 2),
            Op.COS: (31, 2),
            Op.SINCOS: (48, 2),
        }
    ),
)
# Estimates. A reciprocal is a division; reciprocal roots, sincos and norms are not one operation.
CPU = OpCosts(
    "cpu",
    {Op.MUL: 1, Op.RCP: 5, Op.DIV: 5, Op.SQRT: 6, Op.CBRT: 25, Op.POW: 45, Op.SIN: 20, Op.COS: 20},
)
