"""Markers that annotate a residual function's arguments (paper: Memory Accessors).

`Annotated[Type, Marker]` says what an argument is: *tunable* (a node the solver moves) or *const*
(a measurement), and how factors map to instances. Arguments and outputs of kernels are annotated
with access patterns instead: `caspar.memory.patterns`.
"""

import math
from typing import Any, Generic, TypeVar

from caspar.errors import FactorError

T = TypeVar("T")


class Marker:
    """Base of the markers."""


class Tunable(Marker):
    """An argument the solver moves: a node."""


class Const(Marker):
    """An argument the solver leaves as it is."""


class TunableShared(Tunable):
    """Each factor names its node by an index; nodes are shared between factors."""


class TunableUnique(Tunable):
    """One node for all factors: the node type has exactly one instance."""


class TunablePair(Tunable):
    """Factor i touches nodes i and i + 1 (annotate `caspar.Pair[Type]`)."""


class TunableSequential(Tunable):
    """Factor i has its own unknown i, which no other factor touches and the residual is linear in.

    The unknown is eliminated before kernels are made: whatever the other unknowns are, it has the
    value at which the squared residual is least, and that value has a formula. It takes no arrays,
    no start values and no memory. `Solver.evaluate(arrays).unknowns(factor, argument)` returns its
    values. `TunableSequential(lower=0.0)` bounds it, if it is the only such scalar of its factor.

    Args:
        lower: What it must not fall below.
        upper: What it must not exceed.

    Raises:
        FactorError: The bounds are no numbers, or leave nothing between them.
    """

    def __init__(self, *, lower: float = -math.inf, upper: float = math.inf) -> None:
        for name, bound in (("lower", lower), ("upper", upper)):
            if not isinstance(bound, int | float) or math.isnan(bound):
                raise FactorError(f"TunableSequential({name}={bound!r}): it must be a number")
        if not lower < upper:
            raise FactorError(
                f"TunableSequential(lower={lower}, upper={upper}): lower must be below upper"
            )
        self.lower, self.upper = float(lower), float(upper)


class ConstSequential(Const):
    """Factor i has its own value i."""


class ConstIndexed(Const):
    """Each factor names its value by an index; give {"values": ..., "index": ...}."""


class ConstShared(ConstIndexed):
    """Like `ConstIndexed`, for values that many neighbouring factors share."""


class ConstUnique(Const):
    """One value for all factors."""


class Table:
    """Base of the types of tables that functions look values up in, see `caspar.Grid`."""

    @classmethod
    def packed(cls, values: Any, dtype: Any = None) -> Any:
        """The memory of tables, see `caspar.Grid.packed`."""
        raise NotImplementedError


class Pair(tuple[T, T], Generic[T]):
    """Two neighbouring objects of one type: `pair[0]` and its successor `pair[1]`."""

    __slots__ = ()
