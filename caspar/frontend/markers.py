"""Markers that annotate a residual function's arguments (paper: Memory Accessors).

`Annotated[Type, Marker]` says what an argument is: *tunable* (a node the solver moves) or *const*
(a measurement), and how factors map to instances. Arguments and outputs of kernels are annotated
with access patterns instead: `caspar.memory.patterns`.
"""

from typing import Any, Generic, TypeVar

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
