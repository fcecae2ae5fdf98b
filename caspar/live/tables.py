"""The nodes and the factor instances of a live problem, named by numbers that are never used twice.

Input: checked arrays. Output: contiguous rows of those that exist. Ids and handles ascend from row
to row, so that a row is found by bisection.

Also here: arrays that grow at their end and lose rows anywhere.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from caspar.errors import InputError
from caspar.frontend.factors.factor import Factor, constraint_kinds
from caspar.frontend.factors.terms import term_names, with_terms
from caspar.frontend.factors.trace import (
    WEIGHT,
    ArgumentKind,
    NodeType,
    TracedFactor,
)
from caspar.frontend.markers import Table
from caspar.live.table_pool import TablePool
from caspar.memory.array import address
from caspar.runtime.arrays import to_numpy
from caspar.solver.input.problem import ConstantArray, FactorArrays
from caspar.tracing import traced_factor

MIN_CAPACITY = 64


class GrowingRows:
    """(count, width) rows in memory for more.

    Args:
        width: Scalars of a row.
        dtype: Their type.

    Attributes:
        count: Rows in use.
    """

    def __init__(self, width: int, dtype: DTypeLike = np.float64) -> None:
        self.count = 0
        self._set(np.zeros((MIN_CAPACITY, width), dtype))

    def _set(self, memory: NDArray[Any]) -> None:
        self._memory, self._address = memory, 0

    @property
    def address(self) -> int:
        """The address of the memory, until it grows."""
        if self._address == 0:
            self._address = address(self._memory)
        return self._address

    @property
    def rows(self) -> NDArray[Any]:
        """(count, width), a view that the next growth leaves behind."""
        return self._memory[: self.count]

    @property
    def column(self) -> NDArray[Any]:
        """(count,), a view of the first column."""
        return self._memory[: self.count, 0]

    @property
    def capacity(self) -> int:
        """Rows that fit without moving."""
        return len(self._memory)

    @property
    def memory(self) -> NDArray[Any]:
        """(capacity, width): zeros or former rows behind those in use."""
        return self._memory

    def append(self, rows: NDArray[Any]) -> None:
        """Add (k, width) rows, or (k,) of one column."""
        end = self.count + len(rows)
        if end > self.capacity:
            # half as much again, so that a row is moved three times at most on average
            shape = (max(end, self.capacity * 3 // 2), self._memory.shape[1])
            grown = np.zeros(shape, self._memory.dtype)
            grown[: self.count] = self.rows
            self._set(grown)
        self._memory[self.count : end] = rows.reshape(len(rows), self._memory.shape[1])
        self.count = end

    @staticmethod
    def of(rows: NDArray[Any]) -> "GrowingRows":
        """Return rows with the memory of an array, (count, width)."""
        made = GrowingRows.__new__(GrowingRows)
        made.count = len(rows)
        made._set(rows)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have the rows in use, in memory of their own."""
        return GrowingRows.of, (self.rows.copy(),)

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Drop the rows that are not kept, (count,); the others stay in order."""
        remaining = self.rows[kept]
        self._memory[: len(remaining)] = remaining
        self._memory[len(remaining) : self.count] = 0
        self.count = len(remaining)


Ids = NDArray[np.int64]
Rows = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Numbered:
    """Rows with numbers that ascend; numbers of rows that are gone are not given again.

    Args:
        title: What a row is, such as `node type Pose`.
        word: What a number is called: `id` or `handle`.
    """

    def __init__(self, title: str, word: str) -> None:
        self.title, self.word = title, word
        self._numbers = GrowingRows(1, np.int64)
        self._next = 0

    @property
    def count(self) -> int:
        """Rows."""
        return self._numbers.count

    @property
    def numbers(self) -> Ids:
        """(count,) the number of each row, ascending; a copy."""
        return self._numbers.column.copy()

    def next_numbers(self, count: int) -> Ids:
        """Give numbers to rows that are appended."""
        made = np.arange(self._next, self._next + count, dtype=np.int64)
        self._next += count
        self._numbers.append(made)
        return made

    def places(self, where: str, given: Any, *, repeated: bool = False) -> Ids:
        """The row of each number, (k,).

        Args:
            where: What is read, for errors.
            given: Numbers, one or (k,).
            repeated: Whether a number may stand twice.

        Raises:
            InputError: They are no integers, or a number is unknown, removed or repeated.
        """
        try:
            numbers = np.atleast_1d(to_numpy(given) if hasattr(given, "shape") else np.array(given))
        except (TypeError, ValueError) as error:
            raise InputError(f"{where}: {error}; expected {self.word}s, (k,) integers") from error
        if numbers.size == 0 and numbers.ndim == 1:
            return np.zeros(0, np.int64)
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
            raise InputError(
                f"{where}: {numbers.dtype} of shape {numbers.shape}; expected {self.word}s as "
                "(k,) integers"
            )
        known = self._numbers.column
        places = np.searchsorted(known, numbers)
        is_any = len(known) > 0
        is_known = known.take(places, mode="clip") == numbers if is_any else places < 0
        if not is_known.all():
            number = int(numbers[np.flatnonzero(~is_known)[0]])
            was = "was removed" if 0 <= number < self._next else "was never given out"
            raise InputError(f"{where}: {self.word} {number} of {self.title} {was}")
        ascend = repeated or (places[1:] > places[:-1]).all()
        if not ascend and len(np.unique(places)) < len(places):
            first = int(numbers[_first_repeated(numbers)])
            raise InputError(f"{where}: {self.word} {first} of {self.title} is repeated")
        return places.astype(np.int64, copy=False)

    def flags(self, where: str, given: Any) -> Flags:
        """Flags of all rows, True for the given numbers, each once: see `places`."""
        flags = np.zeros(self.count, np.bool_)
        flags[self.places(where, given)] = True
        return flags

    def rows(self) -> dict[str, Any]:
        """All that is kept of the rows, for `take`: nothing symbolic."""
        symbolic = ("node", "factor", "given", "arguments")
        return {name: one for name, one in self.__dict__.items() if name not in symbolic}

    def take(self, rows: Mapping[str, Any]) -> None:
        """Take the rows of a table of the same factor or node type."""
        self.__dict__.update(copy.deepcopy(dict(rows)))

    def keep_numbers(self, kept: Flags) -> None:
        """Drop the numbers of the rows that are not kept."""
        self._numbers.keep(kept)


def _first_repeated(numbers: Ids) -> int:
    seen: set[int] = set()
    for place, number in enumerate(numbers.tolist()):
        if number in seen:
            return place
        seen.add(number)
    raise AssertionError("no number is repeated")


class NodeTable(Numbered):
    """The nodes of one type.

    Args:
        node: The type.

    Attributes:
        values: (count, storage_dim) current values.
        free: (count, tangent_dim) 1 for each component of the tangent that moves, 0 if it is held.
        unknowns: (count,) the first unknown of each node; those of a node are consecutive.
    """

    def __init__(self, node: NodeType) -> None:
        super().__init__(f"node type {node.name}", "id")
        self.node = node
        self.values = GrowingRows(node.storage_dim)
        self.free = GrowingRows(node.tangent_dim)
        self.unknowns = GrowingRows(1, np.int64)

    @property
    def dim(self) -> int:
        """Unknowns of a node."""
        return self.node.tangent_dim

    @property
    def has_held(self) -> bool:
        """Return whether a component of a node is held."""
        return not self.free.rows.all()

    def add(self, values: Rows, first_unknown: int) -> Ids:
        """Append (k, storage_dim) checked values; the ids of the new nodes."""
        count = len(values)
        self.values.append(values)
        self.free.append(np.ones((count, self.dim)))
        self.unknowns.append(first_unknown + self.dim * np.arange(count, dtype=np.int64))
        return self.next_numbers(count)

    def keep(self, kept: Flags) -> None:
        """Drop the nodes that are not kept."""
        for column in (self.values, self.free, self.unknowns):
            column.keep(kept)
        self.keep_numbers(kept)


class FactorTable(Numbered):
    """The instances of one factor.

    Args:
        factor: The factor, with its loss.
        is_weighted: Whether instances may have weights: not those of constraints.

    Attributes:
        factor: It, with a weight and the parameters of its loss for each instance.
        arguments: Its node arguments.
        nodes: By the user's name of each shared node argument (count,) rows of the node table.
        constants: By the user's name of each constant its rows, (count, dim); of constants that
            all instances share (1, dim). Of tables: numbers in their pool, (count, 1) or (1, 1).
        pools: By the user's name of each argument that holds tables these.
    """

    def __init__(self, factor: TracedFactor, *, is_weighted: bool = True) -> None:
        super().__init__(f"factor {factor.name}", "handle")
        self.given = factor
        self.factor = with_terms(factor, term_names(factor) if is_weighted else ())
        self.arguments = self.factor.nodes
        self._shared = {
            one.source for one in self.factor.inputs if one.kind is ArgumentKind.CONST_UNIQUE
        }
        self.nodes: dict[str, GrowingRows] = {}
        self.constants: dict[str, GrowingRows] = {}
        self.pools: dict[str, TablePool] = {}
        for argument in self.factor.inputs:
            match argument.kind:
                case ArgumentKind.NODE_SHARED:
                    self.nodes[argument.source] = GrowingRows(1, np.int64)
                case ArgumentKind.NODE_UNIQUE | ArgumentKind.NODE_PAIR:
                    raise InputError(
                        f"factor {factor.name}, argument {argument.source}: marked with "
                        f"{argument.kind.value}, which counts nodes by position; nodes of a live "
                        "problem come and go, so mark it with TunableShared"
                    )
                case _ if argument.table is not None:
                    where = f"{self.title}, argument {argument.source}"
                    self.constants[argument.source] = GrowingRows(1, np.int64)
                    self.pools[argument.source] = TablePool(where, argument.table)
                case _:
                    self.constants[argument.source] = GrowingRows(argument.storage_dim)

    def add(self, read: FactorArrays) -> Ids:
        """Append checked arrays; the handles of the new instances.

        Raises:
            InputError: A constant that all instances share differs from the one of earlier ones.
        """
        rows = {name: self._rows(name, read) for name in self.constants}
        for argument in self.arguments:
            self.nodes[argument.source].append(np.asarray(read.nodes[argument.name]))
        for name, column in self.constants.items():
            if not self.is_shared(name) or column.count == 0:
                column.append(rows[name])
        return self.next_numbers(read.count)

    def _rows(self, name: str, read: FactorArrays) -> NDArray[Any]:
        """The rows of a constant, one for each instance unless all share one."""
        if name == WEIGHT and name not in read.constants:
            return np.ones((read.count, 1))
        rows = self.read_rows(name, read.constants[name])
        if not self.is_shared(name):
            return np.broadcast_to(rows, (read.count, rows.shape[1]))
        kept = self.constants[name].rows
        if len(kept) > 0 and not np.array_equal(kept, rows):
            is_table = name in self.pools
            self.drop_tables()
            earlier, other = (
                ("another table", "ConstIndexed")
                if is_table
                else (str(kept[0].tolist()), "ConstSequential")
            )
            raise InputError(
                f"{self.title}, argument {name}: all instances share it, and earlier ones have "
                f"{earlier}; give the same, change it by set_arguments, or mark it with {other}"
            )
        return rows

    def read_rows(self, name: str, constant: ConstantArray) -> NDArray[Any]:
        """The rows of a checked constant, one for each instance or one for all of them.

        Raises:
            InputError: A table has another size than those of earlier instances.
        """
        index = None if constant.index is None else np.asarray(constant.index)
        if name not in self.pools:
            rows: Rows = np.asarray(constant.rows, np.float64)
            return rows if index is None else rows[index]
        starts = np.zeros(1, np.int32) if index is None else index
        if len(starts) == 0:
            return np.zeros((0, 1), np.int64)
        first, which = np.unique(starts, return_inverse=True)
        tables = self._table(name).split(np.asarray(constant.rows)[:, 0], first)
        return self.pools[name].numbers_of(tables)[which][:, None]

    def write(self, names: Iterable[str], places: Ids, read: FactorArrays) -> None:
        """Change some constants of the instances in some rows to those of checked arrays.

        Raises:
            InputError: A table has another size than those of the other instances.
        """
        rows = {}
        # a table that all instances share may change its size: it goes once nothing else fails
        for name in sorted(names, key=self.is_shared):
            if name in self.pools and self.is_shared(name):
                self.pools[name].keep(np.zeros(0, np.int64))
            rows[name] = self.read_rows(name, read.constants[name])
        for name, new in rows.items():
            self.constants[name].rows[slice(None) if self.is_shared(name) else places] = new
        self.drop_tables()

    def _table(self, name: str) -> type[Table]:
        return next(
            one.table for one in self.factor.tables if one.source == name and one.table is not None
        )

    def drop_tables(self) -> None:
        """Forget the tables that no instance names."""
        for name, pool in self.pools.items():
            column = self.constants[name].column
            column[...] = pool.keep(column)

    def is_shared(self, name: str) -> bool:
        """Return whether all instances have one row of a constant."""
        return name in self._shared

    def keep(self, kept: Flags) -> None:
        """Drop the instances that are not kept."""
        if kept.all():
            return
        for column in self.nodes.values():
            column.keep(kept)
        for name, column in self.constants.items():
            if not self.is_shared(name):
                column.keep(kept)
        self.drop_tables()
        self.keep_numbers(kept)

    def touching(self, removed: Mapping[str, Flags]) -> Flags:
        """(count,) the instances that touch one of some nodes, flags by name of their type."""
        touched = np.zeros(self.count, np.bool_)
        for argument in self.arguments:
            flags = removed.get(argument.node_type.name)
            if flags is not None:
                touched |= flags[self.nodes[argument.source].column]
        return touched

    def renumber(self, name: str, places: Ids) -> None:
        """Nodes of a type have other rows now: `places` of each old row."""
        for argument in self.arguments:
            if argument.node_type.name == name:
                column = self.nodes[argument.source].column
                column[...] = places[column]

    def arrays(self, places: Ids | None = None) -> dict[str, Any]:
        """Return copies for `Solver.solve` of this factor, or of some of its instances."""
        chosen = slice(None) if places is None else places
        found: dict[str, Any] = {
            name: one.column[chosen].copy() for name, one in self.nodes.items()
        }
        for argument in self.factor.inputs:
            if argument.node is not None:
                continue
            rows = self.constants[argument.source].rows
            rows = (rows if self.is_shared(argument.source) else rows[chosen]).copy()
            if argument.table is not None:
                tables = self._tables(argument.source)
                is_shared = argument.kind is ArgumentKind.CONST_UNIQUE
                indexed = {"values": tables, "index": rows[:, 0]}
                found[argument.source] = tables[0] if is_shared else indexed
            elif argument.kind is ArgumentKind.CONST_INDEXED:
                found[argument.source] = {"values": rows, "index": np.arange(len(rows))}
            elif argument.source in term_names(self.given):
                found[argument.source] = rows[:, 0]
            elif argument.kind is ArgumentKind.CONST_UNIQUE:
                found[argument.source] = rows[0] if len(rows) > 0 else np.zeros(rows.shape[1])
            else:
                found[argument.source] = rows
        return found

    def _tables(self, name: str) -> Any:
        """The tables of an argument as users have them; without instances one of zeros."""
        kind, memory = self._table(name), self.pools[name].tables
        if len(memory) > 0:
            return kind.unpacked(memory)
        return np.zeros((1,) * (1 + kind.dims) + ((kind.channels,) if kind.channels > 1 else ()))


def on_host(given: Any) -> Any:
    """An array of any library as NumPy's; everything else as it is."""
    if isinstance(given, Mapping):
        return {key: on_host(one) for key, one in given.items()}
    if isinstance(given, np.ndarray) or not hasattr(given, "shape"):
        return given
    return to_numpy(given.get() if hasattr(given, "get") else given)


def empty_tables(
    factors: Sequence[Factor] | Factor,
) -> tuple[dict[str, NodeTable], dict[str, FactorTable]]:
    """The tables of node types and of factors, by name.

    Raises:
        FactorError: A factor cannot be traced.
        InputError: A factor counts nodes by position.
    """
    given = [factors] if isinstance(factors, Factor) else factors
    traced, constraints = [traced_factor(factor) for factor in given], constraint_kinds(given)
    nodes = {one.node_type.name: one.node_type for factor in traced for one in factor.nodes}
    return (
        {name: NodeTable(node) for name, node in nodes.items()},
        {one.name: FactorTable(one, is_weighted=one.name not in constraints) for one in traced},
    )
