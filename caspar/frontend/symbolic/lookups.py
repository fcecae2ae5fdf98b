"""Lookups in tables: what an expression holds of one, and the calls that it becomes.

In an expression a lookup is a function of the table's symbol and of the coordinates; the function's
name holds everything else. In a graph it is a sum of products: the weights of the samples around
the place, which depend on the distance to the sample below, times the samples, each loaded by a
GATHER. Places of samples are floors, which have no derivative, so the derivative of this sum is the
exact derivative of the interpolant and uses the same loads. At a sample, where the slope of the
linear interpolant jumps, it is the slope towards the greater coordinate.

Where the table's symbol is a number, as in the comparison of a function with itself on numbers,
there is no table: a lookup is then an arbitrary smooth function of its coordinates.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

import symengine
import symforce.symbolic as sf

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import TableEntry
from caspar.ir.ops import Op

PREFIX = "caspar.lookup"
"""The name of every such function begins with it; no name of a user's function has a dot."""

INSIDE = "caspar.inside"
"""The function that says whether a place is in a table."""


class Method(Enum):
    """Interpolation of a table between its samples.

    LINEAR: Linear along each axis, by 2 samples.
    CUBIC: Catmull-Rom splines along each axis, by 4 samples; as Ceres' BiCubicInterpolator.
    BSPLINE3: Cubic B-splines along each axis, by 4 coefficients, which are not the samples.
    """

    LINEAR = "linear"
    CUBIC = "cubic"
    BSPLINE3 = "bspline3"


class Border(Enum):
    """Samples outside of a table.

    CLAMP: The nearest sample of the table.
    ZERO: 0.
    REFUSE: The nearest sample, but an instance with a place outside of the table is left out.
    """

    CLAMP = "clamp"
    ZERO = "zero"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Lookup:
    """One channel of a table, between its samples.

    Attributes:
        method: How it is interpolated.
        border: What samples outside the table are.
        channel: Number within a sample.
        num_channels: Numbers of a sample.
    """

    method: Method
    border: Border
    channel: int
    num_channels: int

    @property
    def function_name(self) -> str:
        """The name of the function in expressions."""
        parts = (self.method.value, self.border.value, self.channel, self.num_channels)
        return ".".join((PREFIX, *map(str, parts)))

    @staticmethod
    def of_name(name: str) -> "Lookup | None":
        """The lookup that a function's name stands for; None if it is another function."""
        if not name.startswith(f"{PREFIX}."):
            return None
        method, border, channel, num_channels = name.removeprefix(f"{PREFIX}.").split(".")
        return Lookup(Method(method), Border(border), int(channel), int(num_channels))


def lower_lookup(builder: GraphBuilder, lookup: Lookup, operands: Sequence[int]) -> int:
    """The value of a lookup.

    Operands are the first number that is read of the table, then the coordinates, the one along
    the last axis first.
    """
    first, *coordinates = operands
    source = builder.producer_of(first)
    if source.op is Op.CONST:
        return _without_table(builder, lookup, operands)
    assert isinstance(source.data, tuple)
    is_zero_outside = lookup.border is Border.ZERO
    entry = TableEntry(source.data[0], lookup.channel, lookup.num_channels, is_zero_outside)
    axes = []
    for coordinate in reversed(coordinates):
        below = builder.unary(Op.FLOOR, coordinate)
        weights = WEIGHTS[lookup.method](builder, builder.sub(coordinate, below))
        axes.append(
            [
                (builder.sum([below, builder.const(float(offset))]), weight)
                for offset, weight in weights.items()
            ]
        )
    return _interpolated(builder, entry, axes, [])


def inside_tables(rows: Iterable[Any]) -> tuple[Any, ...]:
    """Expressions that are 1 if a place is in its table, and 0 if an instance is left out.

    Lookups of the rows of a residual count with `Border.REFUSE`, each place once.
    """
    found: dict[Any, None] = {}
    for row in rows:
        for lookup in sf.sympify(row).atoms(symengine.Function):
            name = lookup.get_name() if type(lookup).__name__ == "FunctionSymbol" else ""
            known = Lookup.of_name(name)
            if known is not None and known.border is Border.REFUSE:
                found[symengine.Function(INSIDE)(*lookup.args)] = None
    return tuple(sorted(found, key=str))


def lower_inside(builder: GraphBuilder, operands: Sequence[int]) -> int:
    """1 if a place is in the table, 0 if not, NaN if a coordinate is none; it has no derivative.

    `operands`: As for `lower_lookup`.
    """
    first, *coordinates = operands
    source = builder.producer_of(first)
    if source.op is Op.CONST:
        return builder.const(1.0)
    assert isinstance(source.data, tuple)
    flag = builder.gather(TableEntry(source.data[0], 1, 1, True), coordinates[::-1])
    zero = builder.const(0.0)
    floors = [builder.unary(Op.ABS, builder.unary(Op.FLOOR, one)) for one in coordinates]
    return builder.sum([flag, *(builder.binary(Op.MIN, one, zero) for one in floors)])


def _interpolated(
    builder: GraphBuilder,
    entry: TableEntry,
    axes: Sequence[Sequence[tuple[int, int]]],
    places: Sequence[int],
) -> int:
    """Interpolate along the remaining axes, at fixed places along the first ones."""
    if len(axes) == 0:
        return builder.gather(entry, places)
    return builder.sum(
        [
            builder.prod([weight, _interpolated(builder, entry, axes[1:], [*places, place])])
            for place, weight in axes[0]
        ]
    )


def _without_table(builder: GraphBuilder, lookup: Lookup, operands: Sequence[int]) -> int:
    """A smooth function of coordinates, table and channel."""
    terms = [builder.const(float(lookup.channel))]
    for number, operand in enumerate(operands):
        scaled = builder.prod([builder.const(1.0 + 0.5 * number), operand])
        terms.append(builder.unary(Op.SIN, scaled))
    return builder.sum(terms)


# -- weights: offset from the sample below -> weight, functions of the distance from that sample --


def _polynomial(builder: GraphBuilder, x: int, coefficients: Sequence[float]) -> int:
    """A polynomial by Horner's rule; coefficients of the lowest power first."""
    value = builder.const(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = builder.sum([builder.const(coefficient), builder.prod([value, x])])
    return value


Weights = Callable[[GraphBuilder, int], dict[int, int]]
"""(builder, distance from the sample below) -> weights."""


def _weights(polynomials: Mapping[int, Sequence[Fraction]]) -> Weights:
    return lambda builder, x: {
        offset: _polynomial(builder, x, list(map(float, coefficients)))
        for offset, coefficients in polynomials.items()
    }


def _sixths(*numerators: int) -> tuple[Fraction, ...]:
    return tuple(Fraction(numerator, 6) for numerator in numerators)


POLYNOMIALS: dict[Method, dict[int, tuple[Fraction, ...]]] = {
    Method.LINEAR: {0: _sixths(6, -6), 1: _sixths(0, 6)},
    Method.CUBIC: {
        -1: _sixths(0, -3, 6, -3),
        0: _sixths(6, 0, -15, 9),
        1: _sixths(0, 3, 12, -9),
        2: _sixths(0, 0, -3, 3),
    },
    Method.BSPLINE3: {
        -1: _sixths(1, -3, 3, -1),
        0: _sixths(4, 0, -6, 3),
        1: _sixths(1, 3, 3, -3),
        2: _sixths(0, 0, 0, 1),
    },
}
"""The weights of each method, by offset from the sample below, lowest power first: R. Keys, Cubic
Convolution Interpolation for Digital Image Processing, 1981, with a = -1/2; M. Unser, Splines: A
Perfect Fit for Signal Processing, 1999."""

WEIGHTS: dict[Method, Weights] = {
    method: _weights(polynomials) for method, polynomials in POLYNOMIALS.items()
}
