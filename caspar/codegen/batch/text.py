"""Statements of a kernel in which a thread or a warp solves a problem, in a language left open.

The kernel is written once, as calls of a `ProblemText`; its subclasses know how a language
declares, loops and branches. Expressions are text that both languages read alike: sums, products,
comparisons, `&` and `|` of truth values, subscripts, and what `cast`, `number` and `chosen` return.

Statements for the lanes of a warp are written with the methods under *lanes*; here there is one
lane, as on the processor. All lanes execute every statement and have their own variables, whose
values are the same in all of them outside `shared_loop`, `triangle`, `rectangle` and `chunks`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from caspar.codegen.body import comment_text, table_size
from caspar.codegen.source import KernelSource, Param
from caspar.ir.dtype import DType
from caspar.ir.graph import TableEntry
from caspar.ir.ops import Op
from caspar.ir.program import Instruction, Operand, Program
from caspar.memory.layout import first_number

PROBLEM = "problem"
"""The variable that holds the number of the problem."""

Place = Callable[[str, int], str]
"""The text of an entry of an array that a program names."""

Begins = Callable[[str], tuple[str, str, DType]]
"""The text of the array that holds a table that a program names, and of where it begins there; and
the type of its numbers."""


@dataclass(frozen=True)
class _Table:
    """The text of a table of an instance.

    Attributes:
        samples: Of a number, but for its place and a bracket.
        last: The last place along each axis.
        sizes: Samples along each axis; nothing needs those along the first one.
        dtype: The type of its numbers.
    """

    samples: str
    last: Sequence[str]
    sizes: Sequence[str]
    dtype: DType


class ProblemText(ABC):
    """Collects the statements of one kernel, for some lanes of a problem.

    `block_end` ends a loop or a branch; empty: less indentation does.
    """

    comment: str
    block_end: str
    num_lanes = 1

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0
        self._num_names = 0

    def emit(self, text: str) -> None:
        """Append a line as it is."""
        self.lines.append("    " * self._depth + text)

    def remark(self, text: str) -> None:
        """Append a comment."""
        self.emit(f"{self.comment} {comment_text(text)}")

    def name(self, hint: str) -> str:
        """A name that nothing else has."""
        self._num_names += 1
        return f"{hint}_{self._num_names}"

    # -- what languages spell differently ----------------------------------------------------------

    @abstractmethod
    def let(self, name: str, value: str) -> None:
        """Name a value that stays."""

    @abstractmethod
    def variable(self, name: str, dtype: DType, value: str) -> None:
        """Declare a number that changes."""

    @abstractmethod
    def array(self, name: str, dtype: DType, size: int) -> None:
        """Declare an array of the thread, uninitialised."""

    @abstractmethod
    def set(self, place: str, value: str) -> None:
        """Give a variable or an entry of an array another value."""

    @abstractmethod
    def loop_head(self, name: str, first: str, end: str) -> list[str]:
        """Return how a loop over numbers begins."""

    @abstractmethod
    def repeat_head(self, condition: str) -> list[str]:
        """Return how a loop begins that goes on while a condition holds."""

    @abstractmethod
    def branch_head(self, condition: str) -> list[str]:
        """Return how a branch begins."""

    @abstractmethod
    def cast(self, expression: str, dtype: DType) -> str:
        """An expression in another type."""

    @abstractmethod
    def number(self, value: float, dtype: DType) -> str:
        """A literal."""

    @abstractmethod
    def chosen(self, condition: str, if_true: str, if_false: str) -> str:
        """One of two expressions, both of which may be computed."""

    @abstractmethod
    def reciprocal_root(self, expression: str, dtype: DType) -> str:
        """1 over the square root of an expression."""

    @abstractmethod
    def compute(self, step: Instruction, operands: Sequence[str], dtype: DType) -> list[str]:
        """Append arithmetic of a type; the names of its results."""

    @abstractmethod
    def source(self, name: str, params: Sequence[Param]) -> KernelSource:
        """The finished kernel: its statements are done for the problem of each number."""

    def count(self, place: str) -> None:
        """Write that a number is not 0 any more, whichever problems say so."""
        self.set(place, "1")

    # -- lanes -------------------------------------------------------------------------------------

    def shared(self, name: str, dtype: DType, size: int) -> None:
        """Declare an array of the problem, uninitialised."""
        self.array(name, dtype, size)

    def meet(self) -> None:
        """Write a barrier: all lanes see what lanes wrote before."""
        return

    def first_lane(self) -> AbstractContextManager[None]:
        """Write a branch that one lane takes."""
        return nullcontext()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Write a branch that one lane takes; before and after it lanes meet."""
        self.meet()
        with self.first_lane():
            yield
        self.meet()

    def add_up(self, name: str) -> None:
        """A variable becomes the sum of those of all lanes, the same bits in all."""
        return

    @contextmanager
    def shared_loop(self, name: str, first: str, end: str) -> Iterator[None]:
        """Write a loop over numbers, each by one of the lanes."""
        with self.loop(name, first, end):
            yield

    @contextmanager
    def sum_loop(self, name: str, first: str, end: str) -> Iterator[None]:
        """A loop inside the work of one lane, whose few statements may be repeated."""
        with self.loop(name, first, end):
            yield

    @contextmanager
    def triangle(self, row: str, column: str, size: int) -> Iterator[None]:
        """Write a loop over the entries of a lower triangle, each by one lane."""
        with self.loop(row, "0", str(size)), self.loop(column, "0", f"{row} + 1"):
            yield

    @contextmanager
    def rectangle(self, row: str, column: str, rows: int, columns: int) -> Iterator[None]:
        """Write a loop over the entries of a matrix, each by one lane."""
        with self.loop(row, "0", str(rows)), self.loop(column, "0", str(columns)):
            yield

    @contextmanager
    def chunks(self, first: str, length: str, count: str, size: int) -> Iterator[None]:
        """Write a loop over runs of numbers below `count`, `size` at most each."""
        assert size == 1
        with self.loop(first, "0", count):
            self.let(length, "1")
            yield

    def of_chunk(self, lane: str, _length: str) -> AbstractContextManager[None]:
        """Write a loop over the numbers of a run, by one lane each."""
        self.let(lane, "0")
        return nullcontext()

    # -- blocks ------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, name: str, first: str, end: str) -> Iterator[None]:
        """Write a loop over the numbers from `first` to before `end`."""
        with self._block(self.loop_head(name, first, end)):
            yield

    @contextmanager
    def repeat(self, condition: str) -> Iterator[None]:
        """Write a loop that goes on as long as a condition holds."""
        with self._block(self.repeat_head(condition)):
            yield

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Write a branch for a condition."""
        with self._block(self.branch_head(condition)):
            yield

    @contextmanager
    def _block(self, head: Sequence[str]) -> Iterator[None]:
        for line in head:
            self.emit(line)
        self._depth += 1
        yield
        self._depth -= 1
        if self.block_end:
            self.emit(self.block_end)

    # -- programs ----------------------------------------------------------------------------------

    def program(
        self,
        program: Program,
        read: Place,
        store: Callable[[str, int, str], None],
        table: Begins,
    ) -> None:
        """Append a scheduled program, whose READs and STOREs move one number of an array each.

        `store` writes the statement that stores a value, given as text of the program's type;
        `table` says where tables are.
        """
        names: dict[str, str] = {}
        tables: dict[str, _Table] = {}
        shown = ""

        def text(operand: Operand) -> str:
            if isinstance(operand, str):
                return names[operand]
            return self.number(operand, program.dtype)

        for step in program.instructions:
            if step.origin not in ("", shown) and step.op is not Op.READ:
                shown = step.origin
                self.remark(shown)
            if step.op is Op.READ:
                assert isinstance(step.data, tuple)
                assert not isinstance(step.data, TableEntry)
                (register,) = step.outputs
                names[register] = name = self.name(register)
                self.let(name, self.cast(read(*step.data), program.dtype))
            elif step.op is Op.STORE:
                assert isinstance(step.data, tuple)
                assert not isinstance(step.data, TableEntry)
                (operand,) = step.operands
                store(*step.data, text(operand))
            elif isinstance(step.data, TableEntry):
                name, places = step.data.argument, [text(one) for one in step.operands]
                if name not in tables:
                    tables[name] = self._table(table(name), len(places), program.dtype)
                (register,) = step.outputs
                names[register] = self.name(register)
                value = self._looked_up(step.data, tables[name], places, program.dtype)
                self.let(names[register], value)
            else:
                results = self.compute(step, [text(one) for one in step.operands], program.dtype)
                names.update(zip(step.outputs, results, strict=True))

    def _table(self, begins: tuple[str, str, DType], num_axes: int, dtype: DType) -> _Table:
        """Write the sizes of a table."""
        array, first, kept = begins
        last, sizes = [], []
        for axis in range(num_axes):
            size, _ = table_size(f"{array}[{first} + ", axis, kept)
            last.append(self.name("last"))
            self.let(last[-1], f"{self.cast(size, dtype)} - {self.number(1.0, dtype)}")
            sizes.append(self.name("size") if axis > 0 else "")
            if axis > 0:
                self.let(sizes[-1], self.cast(size, DType.INT64))
        samples = f"{array}[{first} + {first_number(num_axes, kept)} + "
        return _Table(samples, last, sizes, kept)

    def _looked_up(
        self, entry: TableEntry, table: _Table, places: Sequence[str], dtype: DType
    ) -> str:
        """The text of a number of a table; see `TableEntry`."""
        zero, number, inside = self.number(0.0, dtype), "", []
        for place, last, size in zip(places, table.last, table.sizes, strict=True):
            # a NaN compares as false: it becomes 0 before it is an integer
            below = self.chosen(f"{place} < {last}", place, last)
            nearest = self.cast(self.chosen(f"{zero} < {place}", below, zero), DType.INT64)
            number = f"({number}) * {size} + {nearest}" if number else nearest
            inside += [f"({zero} <= {place})", f"({place} <= {last})"]
        at = f"{entry.channel} + {entry.num_channels} * ({number})"
        number = f"{table.samples}{at}]"
        is_half = table.dtype is DType.FLOAT16
        value = self.cast(f"float_of_half({number})" if is_half else number, dtype)
        value = self.number(1.0, dtype) if entry.is_one_inside else value
        return self.chosen(" & ".join(inside), value, zero) if entry.is_zero_outside else value
