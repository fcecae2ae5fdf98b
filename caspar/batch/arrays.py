"""Reading single arrays of a batch: shapes, types, lengths; which rows belong to which problem.

Input: what the user passed for one argument. Output: rows of the storage type, where they were
given, and how many rows lie between one problem and the next. Values may be NaN or infinite: the
problem that they belong to says so in its status.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caspar.errors import InputError
from caspar.frontend.markers import Table
from caspar.frontend.symbolic.field_types import UnitRange
from caspar.memory.array import Array
from caspar.solver.input.array_reader import ArrayReader, with_unit
from caspar.user_arrays import object_advice

VALUES, PROBLEM = "values", "problem"
"""Entries of the mapping that a ragged argument is passed as."""

MAX_ROWS = 2**31 - 1
"""Rows of a ragged argument: kernels count them in 32 bits."""


@dataclass(frozen=True)
class Rows:
    """Values of an argument for all problems.

    Attributes:
        rows: (n, dim) values, or (n,) indices.
        stride: Rows between one problem and the next; 0: all problems have the same.
        length: Rows of a problem.
        problem: (n,) the problem of each row, where problems have different numbers; else None.
    """

    rows: Array
    stride: int
    length: int
    problem: Array | None = None


@dataclass(frozen=True)
class Ragged:
    """The rows of a factor's ragged arguments, by problem.

    Attributes:
        starts: (P + 1,) int32, the first row of each problem, and n.
        order: (n,) the order in which rows are taken; None: as they are.
        counts: (P,) rows of each problem.
    """

    starts: Array
    order: Array | None
    counts: Array


class BatchArrays:
    """Reads the arrays of a batch; `check` looks at indices and unit lengths.

    Attributes:
        num_problems: P, once the first node type was read.
        xp: NumPy or CuPy, by where that lives.
        dtype: Type of the values.
    """

    def __init__(self, reader: ArrayReader, *, check: bool) -> None:
        self._reader = reader
        self._check = check
        self.dtype = reader.types.values.value
        self.num_problems = -1
        self.xp: Any = np

    def nodes(
        self, where: str, given: Any, dim: int, units: Sequence[UnitRange]
    ) -> tuple[Array, int]:
        """Start values of a node type: (P * count, dim) rows, and the count of a problem."""
        array, xp = self._numbers(where, given)
        if array.ndim == 1 and dim == 1:
            array = array.reshape(-1, 1)
        if array.ndim not in (2, 3) or array.shape[-1] != dim:
            raise InputError(
                f"{where}: shape {tuple(array.shape)}; expected (P, {dim}) for P problems with one "
                f"node each, or (P, n, {dim}) with n nodes each"
            )
        count = int(array.shape[1]) if array.ndim == 3 else 1
        number = int(array.shape[0])
        if self.num_problems < 0:
            self.num_problems, self.xp = number, xp
        elif number != self.num_problems:
            raise InputError(
                f"{where}: {number} problems along the first axis, where the node types before it "
                f"have {self.num_problems}"
            )
        if count == 0:
            raise InputError(f"{where}: shape {tuple(array.shape)}; a problem has no node of it")
        rows = self._converted(array.reshape(-1, dim), xp)
        return self._with_units(where, rows, units, xp, count), count

    def one_each(
        self,
        where: str,
        given: Any,
        dim: int,
        units: Sequence[UnitRange] = (),
        matrix: tuple[int, ...] = (),
    ) -> Rows:
        """One value for each problem, or one for all."""
        array, xp = self._numbers(where, given)
        array = _flat_matrices(array, matrix, 2)
        if array.ndim <= 1 and (dim == 1 or array.shape == (dim,)):
            array = array.reshape(-1, dim)
        if array.ndim != 2 or array.shape[1] != dim or array.shape[0] not in (1, self.num_problems):
            raise InputError(
                f"{where}: shape {tuple(array.shape)}; expected ({self.num_problems}, {dim}), one "
                f"for each problem, or (1, {dim}), the same for all"
            )
        rows = self._with_units(where, self._converted(array, xp), units, xp, 1)
        is_same = int(rows.shape[0]) == 1 and self.num_problems != 1
        return Rows(rows, 0 if is_same else 1, 1)

    def instances(
        self,
        where: str,
        given: Any,
        dim: int,
        units: Sequence[UnitRange] = (),
        matrix: tuple[int, ...] = (),
    ) -> Rows:
        """Values for each instance of each problem."""
        inner, problem = self._unpacked(where, given)
        array, xp = self._numbers(where, inner)
        expected = 2 if problem is not None else 3
        array = _flat_matrices(array, matrix, expected)
        if dim == 1 and array.ndim == expected - 1:
            array = array[..., None]
        if array.ndim != expected or array.shape[-1] != dim:
            scalars = f" or {'(n,)' if problem is not None else '(P, m)'}" if dim == 1 else ""
            shape = f"(n, {dim})" if problem is not None else f"(P, m, {dim})"
            raise InputError(
                f"{where}: shape {tuple(array.shape)}; expected {shape}{scalars}"
                f"{_ADVICE if problem is None else ''}"
            )
        rows = self._converted(array.reshape(-1, dim), xp)
        rows = self._with_units(where, rows, units, xp, None)
        return self._shared_out(where, rows, array.shape, problem)

    def tables(self, where: str, table: type[Table], given: Any, *, is_pool: bool) -> Rows:
        """One table or several, one after the other; `length` is how many.

        `is_pool`: An index names the tables of instances. Else there is one for each problem, or
        one for all.
        """
        memory = self._reader.tables(where, table, given)
        count, numbers = map(int, memory.shape)
        if count == 0 or (not is_pool and count not in (1, self.num_problems)):
            expected = "one or more" if is_pool else f"1, or {self.num_problems}: each problem's"
            raise InputError(f"{where}: {count} tables; expected {expected}")
        stride = 0 if is_pool or count == 1 else numbers
        return Rows(memory.reshape(-1, 1), stride, count)

    def index(self, where: str, given: Any, size: int, what: str) -> Rows:
        """Return the node or row of its problem that each instance touches."""
        inner, problem = self._unpacked(where, given)
        array, xp = self._reader.array(where, inner)
        expected = 1 if problem is not None else 2
        if array.dtype.kind not in "iu" or array.ndim != expected:
            shape = "(n,)" if problem is not None else "(P, m)"
            raise InputError(
                f"{where}: {array.dtype} of shape {tuple(array.shape)}; expected integers of shape "
                f"{shape}, the number of a {what} within its problem"
                f"{object_advice(inner, array)}"
            )
        rows = xp.ascontiguousarray(array.reshape(-1), dtype=np.int32)
        if self._check and rows.shape[0] > 0:
            low, high = int(rows.min()), int(rows.max())
            if low < 0 or high >= size:
                wrong = low if low < 0 else high
                raise InputError(
                    f"{where}: index {wrong} is out of range; a problem has {size} such {what}s, "
                    f"so 0 to {size - 1} are allowed"
                )
        return self._shared_out(where, rows, array.shape, problem)

    def ragged(self, where: str, problem: Array) -> Ragged:
        """Find the rows of each problem.

        Raises:
            InputError: A problem is named that there is not.
        """
        xp, count = self.xp, self.num_problems
        if problem.shape[0] > MAX_ROWS:
            raise InputError(
                f"{where}: {problem.shape[0]:,} rows; at most {MAX_ROWS:,} are allowed"
            )
        if self._check and problem.shape[0] > 0:
            low, high = int(problem.min()), int(problem.max())
            if low < 0 or high >= count:
                wrong = low if low < 0 else high
                raise InputError(
                    f"{where}: problem {wrong} is out of range; there are {count} problems, so 0 "
                    f"to {count - 1} are allowed"
                )
        is_sorted = bool((problem[1:] >= problem[:-1]).all())
        # CuPy's is stable, and has no other kind
        stable = {"kind": "stable"} if xp is np else {}
        order = None if is_sorted else xp.argsort(problem, **stable)
        counts = xp.bincount(problem, minlength=count)
        starts = xp.zeros(count + 1, np.int32)
        starts[1:] = xp.cumsum(counts)
        return Ragged(starts, order, counts)

    # -- pieces ------------------------------------------------------------------------------------

    def _numbers(self, where: str, given: Any) -> tuple[Array, Any]:
        array, xp = self._reader.array(where, given)
        if array.dtype.kind not in "fiu":
            raise InputError(
                f"{where}: dtype {array.dtype}; allowed are float32, float64 and integers"
                f"{object_advice(given, array)}"
            )
        return array, xp

    def _unpacked(self, where: str, given: Any) -> tuple[Any, Array | None]:
        """The values of an argument, and the problem of each row where it is ragged."""
        if not isinstance(given, Mapping):
            return given, None
        if set(given) != {VALUES, PROBLEM}:
            raise InputError(
                f"{where}: a mapping of {', '.join(map(repr, given)) or 'nothing'}; expected an "
                f"array, or {{'{VALUES}': rows of all problems, '{PROBLEM}': the problem of each}}"
            )
        problem, _ = self._reader.array(f"{where}, {PROBLEM}", given[PROBLEM])
        if problem.ndim != 1 or (problem.dtype.kind not in "iu" and problem.shape[0] > 0):
            raise InputError(
                f"{where}, {PROBLEM}: {problem.dtype} of shape {tuple(problem.shape)}; expected "
                "integers of shape (n,), one for each row"
            )
        return given[VALUES], problem.astype(np.int64) if problem.shape[0] == 0 else problem

    def _shared_out(
        self, where: str, rows: Array, shape: tuple[int, ...], problem: Array | None
    ) -> Rows:
        if problem is not None:
            if problem.shape[0] != rows.shape[0]:
                raise InputError(
                    f"{where}: {rows.shape[0]} rows of {VALUES}, but {problem.shape[0]} entries of "
                    f"{PROBLEM}; there must be one for each row"
                )
            return Rows(rows, 0, -1, problem)
        leading, length = int(shape[0]), int(shape[1])
        if leading not in (1, self.num_problems):
            raise InputError(
                f"{where}: {leading} problems along the first axis; expected {self.num_problems}, "
                f"or 1: the same for all{_ADVICE}"
            )
        is_same = leading == 1 and self.num_problems != 1
        return Rows(rows, 0 if is_same else length, length)

    def _converted(self, array: Array, xp: Any) -> Array:
        with np.errstate(over="ignore"):  # infinite then, which is told of the problem
            return xp.ascontiguousarray(array, dtype=self.dtype)

    def _with_units(
        self, where: str, rows: Array, units: Sequence[UnitRange], xp: Any, count: int | None
    ) -> Array:
        """Rows whose rotations and directions have unit length, if they nearly have."""
        place = "row {}".format if count is None else lambda row: f"problem {row // count}"
        for part in units if self._check and rows.shape[0] > 0 else ():
            # a problem with NaN has its own word
            rows = with_unit(where, rows, part, xp, xp.isnan(rows).any(axis=1), place)
        return rows


_ADVICE = (
    ". For problems of different lengths pass "
    f"{{'{VALUES}': all rows, '{PROBLEM}': the problem of each}}; for the same values in all "
    "problems a first axis of 1, as in array[None]"
)


def _flat_matrices(array: Array, matrix: tuple[int, ...], ndim: int) -> Array:
    """Matrices, if there are some, as SymForce stores them: column by column."""
    if len(matrix) == 0 or array.ndim != ndim + 1 or tuple(array.shape[-2:]) != matrix:
        return array
    return array.swapaxes(-1, -2).reshape(*array.shape[:-2], matrix[0] * matrix[1])
