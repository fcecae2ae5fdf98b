"""Random valid graphs, the same for the same seed, and inputs for them."""

import random

import numpy as np
from numpy.typing import NDArray

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import Op

INPUT = "x"
INPUT_DIM = 7
"""Not a whole number of chunks, so that a remainder chunk is read."""

_SMOOTH = (Op.SIN, Op.COS, Op.ATAN, Op.TANH, Op.ABS)
_STEPS = (Op.SIGN, Op.FLOOR)
_BINARY = (Op.MIN, Op.MAX)
_COMPARISONS = (Op.LT, Op.LE, Op.EQ, Op.NE)
_EXPONENTS = (-3.0, -2.0, -1.5, -1.0, -1 / 3, -1 / 6, 0.3, 0.5, 2 / 3, 2.0, 3.0, 4.0, 7.0)


def random_graph(seed: int, num_calls: int = 40, dtype: DType = DType.FLOAT64) -> Graph:
    """A graph of about `num_calls` calls that uses every kind of op.

    Two evaluations agree to rounding: sums are squashed, powers, divisions and roots are taken of
    1 + tanh(x)^2, and only inputs are compared or rounded.
    """
    rng = random.Random(seed)
    builder = GraphBuilder(dtype)
    values: list[int] = []
    length = dtype.chunk_length
    for chunk in range((INPUT_DIM + length - 1) // length):
        values.extend(builder.read(INPUT, chunk, min(length, INPUT_DIM - chunk * length)))
    for _ in range(num_calls):
        values.append(rng.choice(_MAKERS)(rng, builder, values))
    num_outputs = rng.randint(1, 6)
    stored = values[-num_outputs:] + rng.sample(values, 2)
    for chunk, first in enumerate(range(0, len(stored), length)):
        builder.store("y", chunk, stored[first : first + length])
    return builder.build()


def random_inputs(seed: int, num_lanes: int = 5) -> dict[str, NDArray[np.float64]]:
    """Inputs of a random graph."""
    return {INPUT: np.random.default_rng(seed).uniform(-1.5, 1.5, (num_lanes, INPUT_DIM))}


def _some(rng: random.Random, values: list[int], count: int) -> list[int]:
    recent = values[-8:]
    return [rng.choice(recent if rng.random() < 0.6 else values) for _ in range(count)]


def _make_sum(rng: random.Random, builder: GraphBuilder, values: list[int]) -> int:
    terms = _some(rng, values, rng.randint(0, 3))
    for _ in range(rng.randint(0, 3)):
        terms.append(builder.prod(_some(rng, values, rng.randint(2, 4))))
    terms = [builder.neg(term) if rng.random() < 0.4 else term for term in terms]
    if rng.random() < 0.3 or not terms:
        terms.append(builder.const(rng.choice((-1.0, 0.5, 1.0, 2.0))))
    return builder.unary(Op.TANH, builder.sum(terms))


def _make_product(rng: random.Random, builder: GraphBuilder, values: list[int]) -> int:
    factors = _some(rng, values, rng.randint(2, 4))
    if rng.random() < 0.3:
        factors.append(builder.const(rng.choice((-1.0, 0.5, 3.0))))
    return builder.unary(Op.SIN, builder.prod(factors))


def _make_function(rng: random.Random, builder: GraphBuilder, values: list[int]) -> int:
    if rng.random() < 0.2:
        return builder.binary(rng.choice(_BINARY), *_some(rng, values, 2))
    if rng.random() < 0.1:
        return builder.binary(rng.choice((Op.COPYSIGN, Op.ATAN2)), *values[:2])
    if rng.random() < 0.2:
        return builder.unary(rng.choice(_STEPS), rng.choice(values[:INPUT_DIM]))
    return builder.unary(rng.choice(_SMOOTH), _some(rng, values, 1)[0])


def _one_plus_square(builder: GraphBuilder, value: int) -> int:
    bounded = builder.unary(Op.TANH, value)
    return builder.sum([builder.const(1.0), builder.prod([bounded, bounded])])


def _make_power(rng: random.Random, builder: GraphBuilder, values: list[int]) -> int:
    base = _one_plus_square(builder, _some(rng, values, 1)[0])
    kind = rng.random()
    if kind < 0.15:
        return builder.unary(rng.choice((Op.SQRT, Op.LOG, Op.EXP)), base)
    if kind < 0.3:
        return builder.div(builder.const(1.0), builder.unary(Op.SQRT, base))
    return builder.pow(base, rng.choice(_EXPONENTS))


def _make_division(rng: random.Random, builder: GraphBuilder, values: list[int]) -> int:
    numerator, value = _some(rng, values, 2)
    return builder.div(numerator, _one_plus_square(builder, value))


def _make_select(rng: random.Random, builder: GraphBuilder, values: list[int]) -> int:
    inputs = values[:INPUT_DIM]
    c, d = _some(rng, values, 2)
    condition = builder.binary(rng.choice(_COMPARISONS), *rng.sample(inputs, 2))
    if rng.random() < 0.3:
        other = builder.binary(Op.LT, *rng.sample(inputs, 2))
        condition = builder.binary(rng.choice((Op.AND, Op.OR)), condition, other)
    if rng.random() < 0.2:
        condition = builder.unary(Op.NOT, condition)
    return builder.select(condition, c, d)


_MAKERS = (
    _make_sum,
    _make_sum,
    _make_sum,
    _make_product,
    _make_product,
    _make_function,
    _make_power,
    _make_division,
    _make_select,
)
