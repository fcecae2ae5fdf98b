"""Tables that residuals and kernels look values up in: images, grids and splines.

Input: the user's class of tables, which says how many axes a table has and how it is interpolated.
Output: a storage type of one number, the table's symbol, whose `at` makes expressions
(`frontend.symbolic.lookups`); and the memory of tables that kernels read. Cost tier: `at` once for
each tracing, `packed` once for each solve.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import symengine
import symforce.symbolic as sf
from numpy.typing import NDArray
from symforce.ops.interfaces import Storage

from caspar.errors import FactorError, InputError
from caspar.frontend.markers import Table
from caspar.frontend.symbolic.lookups import Border, Lookup, Method
from caspar.memory.layout import HALF_WORDS

MAX_DIMS = 3
MAX_NUMBERS = 2**31 - 1
"""Numbers of all tables of an argument: places are int32."""
MAX_SIZE = 2**24
"""Samples along an axis: float32 counts to here."""


class Grid(Storage, Table):
    """A type of tables of samples on a regular grid, for `Annotated[MyGrid, caspar.ConstIndexed]`.

    Derive a class and say what its tables are::

        class Depth(caspar.Grid, dims=2, method="cubic"): ...

    Args:
        dims: Axes of a table, 1 to 3.
        channels: Numbers of a sample; several are the last axis of the array.
        method: `"linear"`; `"cubic"`, Catmull-Rom splines; or `"bspline3"`, cubic B-splines whose
            coefficients `coefficients` makes from samples.
        border: What samples outside the table are: `"clamp"`, the nearest sample, or `"zero"`.
            With `"refuse"` an instance with a place outside the table is left out: its residual and
            derivatives are 0. A remark of the result tells how many are.
        dtype: What tables are kept in: None, the type that is computed in, or `"float16"`, which
            takes half the memory of float32; numbers are rounded to it when they are passed, and
            widened when they are looked up.

    In a factor the argument is `ConstUnique` (one table, an array of shape (h, w) for 2 axes) or
    `ConstIndexed` (`{"values": (k, h, w), "index": (m,)}`). In a kernel it is `ReadUnique`
    or `ReadIndexed`, and the array is made by `packed`. If it is `TunableShared`, the numbers of
    the table are unknowns, and the array is made by `caspar.grid_patch`.

    Attributes:
        Knot: The type of a sample that is an unknown, a vector of `channels` numbers: the node
            type of the class's name. Other factors may have arguments of it.

    Example:
        >>> from typing import Annotated
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Place(sf.V1): ...
        >>> class Depth(caspar.Grid, dims=1): ...
        >>> @caspar.factor
        ... def sounding(place: Annotated[Place, caspar.TunableUnique],
        ...              seen: Annotated[sf.V1, caspar.ConstSequential],
        ...              depth: Annotated[Depth, caspar.ConstUnique]) -> sf.V1:
        ...     return sf.V1(depth.at(place[0])) - seen
        >>> arrays = {"Place": [[0.2]], "sounding": {"seen": [[2.5]], "depth": [1.0, 2.0, 4.0]}}
        >>> caspar.Solver(sounding).solve(arrays).values["Place"].round(3)
        array([[1.25]])
    """

    dims: ClassVar[int] = 0
    channels: ClassVar[int] = 1
    method: ClassVar[Method] = Method.LINEAR
    border: ClassVar[Border] = Border.CLAMP

    class Knot(sf.Matrix):
        """A sample that is an unknown; each class of tables has a type of the class's name."""

    def __init_subclass__(
        cls,
        *,
        dims: int | None = None,
        channels: int | None = None,
        method: str | None = None,
        border: str | None = None,
        dtype: str | None = None,
    ) -> None:
        """Check what the tables of a class are; what is left out is inherited."""
        super().__init_subclass__()
        cls.dims = cls.dims if dims is None else dims
        cls.channels = cls.channels if channels is None else channels
        cls.method = cls.method if method is None else _choice(cls, "method", Method, method)
        cls.border = cls.border if border is None else _choice(cls, "border", Border, border)
        cls.refuses = cls.border is Border.REFUSE
        if dtype is not None:
            if dtype != "float16":
                raise FactorError(f"class {cls.__name__}: dtype={dtype!r}; allowed is 'float16'")
            cls.is_half = True
        if type(cls.dims) is not int or not 1 <= cls.dims <= MAX_DIMS:
            raise FactorError(
                f"class {cls.__name__}: dims={cls.dims!r}; a table has 1 to {MAX_DIMS} axes, write "
                f"class {cls.__name__}(caspar.Grid, dims=2)"
            )
        if type(cls.channels) is not int or cls.channels < 1:
            raise FactorError(
                f"class {cls.__name__}: channels={cls.channels!r}; a sample has 1 number or more"
            )
        members = {"__module__": cls.__module__, "SHAPE": (cls.channels, 1)}
        cls.Knot = type(cls.__name__, (Grid.Knot,), members)  # type: ignore[assignment, misc]

    def __init__(self, symbol: Any) -> None:
        """Wrap the symbol of a table."""
        if self.dims == 0:
            raise FactorError(
                "caspar.Grid: derive a class that says how many axes its tables have: "
                "class MyGrid(caspar.Grid, dims=2)"
            )
        self._symbol = symbol

    def at(self, *coordinates: Any) -> Any:
        """The interpolated value at a place, one coordinate for each axis.

        Args:
            *coordinates: 0 is the first sample, 1 the second. The first coordinate is along the
                last axis: x along the columns, y along the rows, z along the axis before.

        Returns:
            An expression; of several channels a vector of them.

        Example:
            >>> from typing import Annotated
            >>> import caspar
            >>> import symforce.symbolic as sf
            >>> class Depth(caspar.Grid, dims=1): ...
            >>> @caspar.kernel
            ... def depth_at(x: Annotated[sf.Symbol, caspar.ReadSequential],
            ...              depth: Annotated[Depth, caspar.ReadUnique]
            ... ) -> Annotated[sf.Symbol, caspar.WriteSequential]:
            ...     return depth.at(x)
            >>> depth_at([0.5, 1.25], [1.0, 2.0, 4.0])
            array([1.5, 2.5], dtype=float32)
        """
        if len(coordinates) != self.dims:
            raise FactorError(
                f"{type(self).__name__}.at: {len(coordinates)} coordinates; its tables have "
                f"{self.dims} {'axes' if self.dims > 1 else 'axis'}, and each takes one"
            )
        found = self._values_at(*map(sf.sympify, coordinates))
        return found[0] if self.channels == 1 else sf.Matrix(found)

    def _values_at(self, *places: Any) -> list[Any]:
        """The value of each channel at a place."""
        return [
            symengine.Function(
                Lookup(self.method, self.border, channel, self.channels).function_name
            )(self._symbol, *places)
            for channel in range(self.channels)
        ]

    @classmethod
    def packed(cls, values: Any, dtype: Any = None) -> NDArray[Any]:
        """The memory of tables: of each its sizes along its axes, then its numbers.

        Args:
            values: One table (axes, channels if there are several), or several of one size, with
                an axis for their number in front.
            dtype: Floating type of the result; None: that of `values`, float64 of integers. Tables
                of a class in float16 are always uint16, its bits.

        Returns:
            (k, numbers of a table with its sizes); one table is k = 1.

        Raises:
            InputError: The shape does not fit the class, a table is empty or too large, or a number
                is too large for float16.
        """
        array = np.asarray(values)
        if array.dtype.kind not in "fiu":
            raise InputError(
                f"{cls.__name__}: dtype {array.dtype}; a table has floating numbers or integers"
            )
        own = cls.dims + (1 if cls.channels > 1 else 0)
        has_channels = cls.channels == 1 or array.shape[-1:] == (cls.channels,)
        if array.ndim not in (own, own + 1) or not has_channels:
            raise InputError(
                f"{cls.__name__}: shape {tuple(array.shape)}; expected {cls._shape_text()} for one "
                f"table, with the number of tables in front for several"
            )
        several = array if array.ndim > own else array[None]
        sizes = several.shape[1 : 1 + cls.dims]
        if min(sizes) == 0 or max(sizes) > MAX_SIZE:
            raise InputError(
                f"{cls.__name__}: shape {tuple(array.shape)}; an axis has 1 to {MAX_SIZE:,} samples"
            )
        kept = array.dtype if array.dtype.kind == "f" else np.dtype(np.float64)
        flat = several.reshape(len(several), int(np.prod(several.shape[1:])))
        first = cls.first_number()
        num_numbers = len(several) * (first + flat.shape[1])
        if num_numbers > MAX_NUMBERS:
            raise InputError(
                f"{cls.__name__}: {num_numbers:,} numbers; all tables of an argument have "
                f"{MAX_NUMBERS:,} at most"
            )
        header = list(sizes)
        if cls.is_half:
            dtype = np.uint16
            header = [word for size in sizes for word in (size & 0xFFFF, size >> 16)]
            flat = cls._halves(flat).view(np.uint16)
        memory = np.empty((len(several), first + flat.shape[1]), kept if dtype is None else dtype)
        memory[:, :first] = header
        memory[:, first:] = flat
        return memory

    @classmethod
    def _halves(cls, numbers: NDArray[Any]) -> NDArray[np.float16]:
        with np.errstate(over="ignore"):
            halves: NDArray[np.float16] = np.ascontiguousarray(numbers, np.float16)
        is_lost = np.isinf(halves) & np.isfinite(numbers)
        if is_lost.any():
            raise InputError(
                f"{cls.__name__}: {numbers[is_lost][0]:g} is too large for dtype='float16', whose "
                f"largest number is {float(np.finfo(np.float16).max):,.0f}; scale the table"
            )
        return halves

    @classmethod
    def sizes(cls, memory: NDArray[Any]) -> list[int]:
        """Samples along the axes of the table that a memory, (n,), begins with."""
        header = memory[: cls.first_number()]
        if not cls.is_half:
            return [int(size) for size in header]
        return [int(low) | int(high) << 16 for low, high in header.reshape(-1, HALF_WORDS)]

    @classmethod
    def split(cls, memory: NDArray[Any], starts: Sequence[int]) -> NDArray[Any]:
        """Some tables of a memory that `packed` has made, as it had them before they were joined.

        Args:
            memory: (n,) tables of one size, one after the other.
            starts: Where the wanted ones begin.

        Returns:
            (k, numbers of a table with its sizes).
        """
        length = cls.first_number() + math.prod(cls.sizes(memory)) * cls.channels
        return memory[np.asarray(starts)[:, None] + np.arange(length)]

    @classmethod
    def unpacked(cls, memory: NDArray[Any]) -> NDArray[Any]:
        """The tables of what `packed` has made, with an axis for their number in front."""
        channels = (cls.channels,) if cls.channels > 1 else ()
        numbers = np.ascontiguousarray(memory[:, cls.first_number() :])
        numbers = numbers.view(np.float16) if cls.is_half else numbers
        return numbers.reshape(len(memory), *cls.sizes(memory[0]), *channels)

    @classmethod
    def coefficients(cls, samples: Any) -> NDArray[np.float64]:
        """The coefficients of the B-spline that takes the values of samples at the samples.

        Args:
            samples: One table or several, as for `packed`.

        Returns:
            An array of the same shape, for a class with `method="bspline3"`.

        Example:
            >>> import caspar
            >>> class Depth(caspar.Grid, dims=1, method="bspline3"): ...
            >>> Depth.coefficients([1.0, 2.0, 4.0, 3.0]).round(3)
            array([0.893, 1.536, 4.964, 2.607])
        """
        if cls.method is not Method.BSPLINE3:
            raise InputError(
                f"{cls.__name__}: method={cls.method.value!r} interpolates the samples themselves; "
                "only 'bspline3' needs coefficients"
            )
        cls.packed(samples)  # looks at the shape
        found: NDArray[Any] = np.asarray(samples, np.float64)
        last = found.ndim - (1 if cls.channels > 1 else 0)
        for axis in range(last - cls.dims, last):
            size = found.shape[axis]
            # a sample is 1/6, 4/6, 1/6 of three coefficients
            matrix = np.zeros((size, size))
            for offset, weight in ((-1, 1.0), (0, 4.0), (1, 1.0)):
                place = np.arange(size) + offset
                if cls.border is Border.CLAMP:
                    place = np.clip(place, 0, size - 1)
                inside = (place >= 0) & (place < size)
                np.add.at(matrix, (np.arange(size)[inside], place[inside]), weight / 6.0)
            moved: NDArray[Any] = np.moveaxis(found, axis, 0)
            solved: NDArray[Any] = np.linalg.solve(matrix, moved.reshape(size, -1)).reshape(
                moved.shape
            )
            found = np.moveaxis(solved, 0, axis)
        return np.ascontiguousarray(found)

    @classmethod
    def _shape_text(cls) -> str:
        axes = ("depth", "rows", "columns")[MAX_DIMS - cls.dims :]
        channels = (str(cls.channels),) if cls.channels > 1 else ()
        return f"({', '.join((*axes, *channels))}{',' if len(axes + channels) == 1 else ''})"

    # -- SymForce's storage: the symbol that stands for the table ------------------------------

    @classmethod
    def storage_dim(cls) -> int:
        """One: the table's symbol."""
        return 1

    def to_storage(self) -> list[Any]:
        """The table's symbol."""
        return [self._symbol]

    @classmethod
    def from_storage(cls, elements: Sequence[Any]) -> "Grid":
        """A table of a symbol."""
        return cls(elements[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._symbol})"


class Image(Grid, dims=2):
    """A picture of one channel: two axes, linear interpolation, the border continued outwards.

    Example:
        >>> from typing import Annotated
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> @caspar.kernel
        ... def grey_at(pixel: Annotated[sf.V2, caspar.ReadSequential],
        ...             image: Annotated[caspar.Image, caspar.ReadUnique]
        ... ) -> Annotated[sf.Symbol, caspar.WriteSequential]:
        ...     return image.at(pixel[0], pixel[1])
        >>> grey_at([[0.5, 0.0], [2.0, 0.5]], [[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]])
        array([15., 45.], dtype=float32)
    """


def _choice(cls: type, name: str, kind: Any, given: object) -> Any:
    allowed = [one.value for one in kind]
    if given not in allowed:
        raise FactorError(
            f"class {cls.__name__}: {name}={given!r}; allowed are {', '.join(map(repr, allowed))}"
        )
    return kind(given)
