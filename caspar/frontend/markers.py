"""Markers that annotate a residual function's arguments (paper: Memory Accessors).

`Annotated[Type, Marker]` says what an argument is: *tunable* (a node the solver moves) or *const*
(a measurement), and how factors map to instances. Arguments and outputs of kernels are annotated
with access patterns instead: `caspar.memory.patterns`.
"""

import math
from typing import Any, ClassVar, Generic, TypeVar

from caspar.errors import FactorError
from caspar.ir.dtype import DType
from caspar.memory.layout import first_number

T = TypeVar("T")


class Marker:
    """Base of the markers."""


class Tunable(Marker):
    """An argument the solver moves: a node."""


class Const(Marker):
    """An argument the solver leaves as it is."""


class TunableShared(Tunable):
    """Each factor names its node by an index; nodes are shared between factors.

    Example:
        >>> from typing import Annotated
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> @caspar.factor
        ... def measured(length: Annotated[Length, caspar.TunableShared],
        ...              value: Annotated[sf.V1, caspar.ConstSequential]) -> sf.V1:
        ...     return length - value
        >>> values = {"length": [0, 0, 1], "value": [[1.0], [1.2], [5.0]]}
        >>> result = caspar.Solver(measured).solve({"Length": [[0.0], [0.0]], "measured": values})
        >>> result.values["Length"].ravel().round(3)
        array([1.1, 5. ])
    """


class TunableUnique(Tunable):
    """One node for all factors: the node type has exactly one instance.

    Example:
        >>> from typing import Annotated
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> @caspar.factor
        ... def measured(length: Annotated[Length, caspar.TunableUnique],
        ...              value: Annotated[sf.V1, caspar.ConstSequential]) -> sf.V1:
        ...     return length - value
        >>> arrays = {"Length": [[0.0]], "measured": {"value": [[1.0], [1.1], [1.5]]}}
        >>> caspar.Solver(measured).solve(arrays).values["Length"].round(3)
        array([[1.2]])
    """


class TunablePair(Tunable):
    """Factor i touches nodes i and i + 1 (annotate `caspar.Pair[Type]`).

    Example:
        >>> from typing import Annotated
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Place(sf.V1): ...
        >>> @caspar.factor
        ... def step(places: Annotated[caspar.Pair[Place], caspar.TunablePair],
        ...          length: Annotated[sf.V1, caspar.ConstSequential]) -> sf.V1:
        ...     return places[1] - places[0] - length
        >>> arrays = {"Place": [[1.0], [1.0], [1.0]], "step": {"length": [[2.0], [0.5]]}}
        >>> caspar.Solver(step).solve(arrays, fixed={"Place": [0]}).values["Place"].ravel().round(3)
        array([1. , 3. , 3.5])
    """


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

    Example:
        >>> from typing import Annotated
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Spot(sf.V2): ...
        >>> @caspar.factor
        ... def sight(spot: Annotated[Spot, caspar.TunableUnique],
        ...           eye: Annotated[sf.V2, caspar.ConstSequential],
        ...           ray: Annotated[sf.V2, caspar.ConstSequential],
        ...           depth: Annotated[sf.Scalar, caspar.TunableSequential(lower=0.0)]) -> sf.V2:
        ...     return spot - eye - depth * ray
        >>> sights = {"eye": [[0.0, 0.0], [2.0, 0.0]], "ray": [[1.0, 1.0], [-1.0, 1.0]]}
        >>> result = caspar.Solver(sight).solve({"Spot": [[5.0, 5.0]], "sight": sights})
        >>> result.values["Spot"].round(3)
        array([[1., 1.]])
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
    """Factor i has its own value i.

    Example:
        >>> from typing import Annotated
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> @caspar.factor
        ... def measured(length: Annotated[Length, caspar.TunableUnique],
        ...              value: Annotated[sf.Scalar, caspar.ConstSequential]) -> sf.V1:
        ...     return sf.V1(length[0] - value)
        >>> arrays = {"Length": [[0.0]], "measured": {"value": [1.0, 1.1, 1.5]}}
        >>> caspar.Solver(measured).solve(arrays).values["Length"].round(3)
        array([[1.2]])
    """


class ConstIndexed(Const):
    """Each factor names its value by an index; give {"values": ..., "index": ...}.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> markers = {"expected": caspar.ConstIndexed}
        >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", markers=markers))
        >>> expected = {"values": [[1.0], [4.0]], "index": [0, 0, 1]}  # two rows, three instances
        >>> arrays = {"Length": [[0.0]], "prior": {"value": [0, 0, 0], "expected": expected}}
        >>> solver.solve(arrays).values["Length"].round(3)
        array([[2.]])
    """


class ConstShared(ConstIndexed):
    """Like `ConstIndexed`, for values that many neighbouring factors share.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> markers = {"expected": caspar.ConstShared}
        >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", markers=markers))
        >>> expected = {"values": [[1.0], [4.0]], "index": [0, 0, 1]}  # two rows, three instances
        >>> arrays = {"Length": [[0.0]], "prior": {"value": [0, 0, 0], "expected": expected}}
        >>> solver.solve(arrays).values["Length"].round(3)
        array([[2.]])
    """


class ConstUnique(Const):
    """One value for all factors.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Place(sf.V1): ...
        >>> markers = {"a_from_b": caspar.ConstUnique}
        >>> step = caspar.factors.between(Place, noise="unit", name="step", markers=markers)
        >>> steps = {"a": [0, 1], "b": [1, 2], "a_from_b": [2.0]}  # all have this length
        >>> arrays = {"Place": [[1.0], [1.0], [1.0]], "step": steps}
        >>> caspar.Solver(step).solve(arrays, fixed={"Place": [0]}).values["Place"].ravel().round(3)
        array([1., 3., 5.])
    """


class Table:
    """Base of the types of tables that functions look values up in, see `caspar.Grid`.

    Attributes:
        dims: Axes of a table.
        channels: Numbers of a sample.
        refuses: Whether instances are left out that look up outside of their table.
        is_half: Whether the memory of tables is float16, held by uint16 arrays as its bits.
    """

    dims: ClassVar[int]
    channels: ClassVar[int]
    refuses: ClassVar[bool] = False
    is_half: ClassVar[bool] = False

    @classmethod
    def first_number(cls) -> int:
        """Where the numbers of a table begin in its memory: behind the sizes of its axes."""
        return first_number(cls.dims, DType.FLOAT16 if cls.is_half else DType.FLOAT64)

    @classmethod
    def packed(cls, values: Any, dtype: Any = None) -> Any:
        """The memory of tables, see `caspar.Grid.packed`."""
        raise NotImplementedError

    @classmethod
    def split(cls, memory: Any, starts: Any) -> Any:
        """Some tables of a memory, see `caspar.Grid.split`."""
        raise NotImplementedError

    @classmethod
    def sizes(cls, memory: Any) -> list[int]:
        """Samples along the axes of a table, see `caspar.Grid.sizes`."""
        raise NotImplementedError

    @classmethod
    def unpacked(cls, memory: Any) -> Any:
        """Tables as users have them, see `caspar.Grid.unpacked`."""
        raise NotImplementedError


class Pair(tuple[T, T], Generic[T]):
    """Two neighbouring objects of one type: `pair[0]` and its successor `pair[1]`."""

    __slots__ = ()
