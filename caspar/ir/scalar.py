"""Writing graphs by hand: a value with operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from caspar.ir.builder import GraphBuilder
from caspar.ir.ops import Op


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value of a graph under construction, with Python's operators."""

    builder: GraphBuilder
    value: int

    def _lift(self, other: Scalar | float) -> int:
        return other.value if isinstance(other, Scalar) else self.builder.const(other)

    def __add__(self, other: Scalar | float) -> Scalar:
        return Scalar(self.builder, self.builder.sum([self.value, self._lift(other)]))

    def __sub__(self, other: Scalar | float) -> Scalar:
        return Scalar(self.builder, self.builder.sub(self.value, self._lift(other)))

    def __mul__(self, other: Scalar | float) -> Scalar:
        return Scalar(self.builder, self.builder.prod([self.value, self._lift(other)]))

    def __truediv__(self, other: Scalar | float) -> Scalar:
        return Scalar(self.builder, self.builder.div(self.value, self._lift(other)))

    def __neg__(self) -> Scalar:
        return Scalar(self.builder, self.builder.neg(self.value))

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: float) -> Scalar:
        return (-self) + other

    def __lt__(self, other: Scalar | float) -> Scalar:
        return Scalar(self.builder, self.builder.binary(Op.LT, self.value, self._lift(other)))

    def __le__(self, other: Scalar | float) -> Scalar:
        return Scalar(self.builder, self.builder.binary(Op.LE, self.value, self._lift(other)))

    def __gt__(self, other: Scalar | float) -> Scalar:
        return Scalar(self.builder, self.builder.binary(Op.LT, self._lift(other), self.value))

    def __ge__(self, other: Scalar | float) -> Scalar:
        return Scalar(self.builder, self.builder.binary(Op.LE, self._lift(other), self.value))

    def __or__(self, other: Scalar) -> Scalar:
        return Scalar(self.builder, self.builder.binary(Op.OR, self.value, other.value))

    def __and__(self, other: Scalar) -> Scalar:
        return Scalar(self.builder, self.builder.binary(Op.AND, self.value, other.value))

    def __invert__(self) -> Scalar:
        return Scalar(self.builder, self.builder.unary(Op.NOT, self.value))

    def max(self, other: Scalar | float) -> Scalar:
        """The larger one; NaN if either is."""
        return Scalar(self.builder, self.builder.binary(Op.MAX, self.value, self._lift(other)))

    def sqrt(self) -> Scalar:
        """Square root."""
        return Scalar(self.builder, self.builder.unary(Op.SQRT, self.value))

    def reciprocal(self) -> Scalar:
        """1 / self."""
        return Scalar(self.builder, self.builder.div(self.builder.const(1.0), self.value))

    def where(self, if_true: Scalar | float, if_false: Scalar | float) -> Scalar:
        """`if_true` where this truth value holds, else `if_false`."""
        chosen = self.builder.select(self.value, self._lift(if_true), self._lift(if_false))
        return Scalar(self.builder, chosen)


def total(terms: Iterable[Scalar]) -> Scalar:
    """Sum of one or more scalars as one n-ary call."""
    scalars = list(terms)
    builder = scalars[0].builder
    return Scalar(builder, builder.sum(term.value for term in scalars))


def dot(left: Sequence[Scalar], right: Sequence[Scalar]) -> Scalar:
    """Inner product of two vectors of equal length."""
    return total(a * b for a, b in zip(left, right, strict=True))
