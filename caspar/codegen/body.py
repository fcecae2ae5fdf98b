"""Base of the writers of kernel bodies: it walks a program's instructions in order.

Comments of generated code are the user's own text, made harmless.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.ir.graph import TableEntry
from caspar.ir.ops import MEMORY_OPS, Op
from caspar.ir.program import Instruction, Program
from caspar.memory.access import Accessor, ArgSpec
from caspar.memory.kernel import KernelSpec
from caspar.memory.layout import HALF_WORDS

MAX_COMMENT = 110
"""Characters of a comment that are kept."""


def comment_text(text: str) -> str:
    """Text that may stand behind `//` in C and behind `#` in Python.

    In C a backslash at the end, even before blanks, and the trigraph that stands for it would take
    the next line into the comment. Other than ASCII is escaped: compilers disagree on encodings.
    """
    plain = " ".join(text.split()).encode("ascii", "backslashreplace").decode()
    printable = "".join(c if c.isprintable() else "?" for c in plain).replace("??/", "?? /")
    if len(printable) > MAX_COMMENT:
        printable = printable[: MAX_COMMENT - 3] + "..."
    return printable.rstrip("\\ ")


def table_size(table: str, axis: int, dtype: DType) -> tuple[str, DType]:
    """The text of a table's size along an axis, in both languages, and its type.

    `table` is an entry of its memory, but for the place and a bracket. Sizes of tables in float16
    are two words each.
    """
    if dtype is not DType.FLOAT16:
        return f"{table}{axis}]", dtype
    low, high = (f"int({table}{HALF_WORDS * axis + word}])" for word in range(HALF_WORDS))
    return f"({low} + {high} * 65536)", DType.INT32


class BodyWriter(ABC):
    """Writes the lines of one kernel body; `comment` starts a comment in the language."""

    comment: ClassVar[str]

    def __init__(self, spec: KernelSpec, program: Program) -> None:
        self.spec = spec
        self.program = program
        self.lines: list[str] = []

    @property
    def dtype(self) -> DType:
        """The computing type."""
        return self.program.dtype

    def emit(self, *lines: str) -> None:
        """Append lines to the body."""
        self.lines += lines

    def write_instructions(self, instructions: Sequence[Instruction]) -> None:
        """Append the lines of instructions, with where they are from.

        Reads are for whatever comes next, and have no comment.
        """
        shown = ""
        for instruction in instructions:
            if instruction.op is Op.READ:
                self.read(instruction)
                continue
            if instruction.origin not in ("", shown):
                shown = instruction.origin
                self.lines.append(f"{self.comment} {comment_text(shown)}")
            if instruction.op is Op.STORE:
                self.store(instruction)
            elif instruction.op is Op.EXCHANGE:
                self.exchange(instruction)
            elif instruction.op is Op.GATHER:
                self.gather(instruction)
            else:
                self.compute(instruction)

    @abstractmethod
    def read(self, instruction: Instruction) -> None:
        """Append a READ."""

    @abstractmethod
    def store(self, instruction: Instruction) -> None:
        """Append a STORE."""

    @abstractmethod
    def exchange(self, instruction: Instruction) -> None:
        """Append an EXCHANGE."""

    @abstractmethod
    def gather(self, instruction: Instruction) -> None:
        """Append a GATHER."""

    @abstractmethod
    def compute(self, instruction: Instruction) -> None:
        """Append arithmetic."""

    def used_accesses(self) -> list[tuple[ArgSpec, Accessor]]:
        """Arguments that instructions name, or whose index others need, with their accesses."""
        named = {
            step.data[0]
            for step in self.program.instructions
            if step.op in (*MEMORY_OPS, Op.GATHER) and isinstance(step.data, tuple)
        }
        named |= {
            access.index_of
            for arg in self.spec.args
            if arg.name in named
            for access in arg.accessors
        }
        return [
            (arg, access) for arg in self.spec.args if arg.name in named for access in arg.accessors
        ]

    def tables(self) -> list[tuple[ArgSpec, str, int]]:
        """The arguments that hold tables, where an item's begins, and how many axes it has."""
        axes: dict[str, int] = {}
        for step in self.program.instructions:
            if isinstance(step.data, TableEntry):
                axes[step.data.argument] = len(step.operands)
        found = []
        for name, num_axes in axes.items():
            arg = self.spec.arg(name)
            assert arg.read is not None
            found.append((arg, arg.read.table_start(arg), num_axes))
        return found

    def argument(self, instruction: Instruction) -> tuple[ArgSpec, int]:
        """Argument and chunk of a READ, STORE or EXCHANGE."""
        assert isinstance(instruction.data, tuple)
        assert not isinstance(instruction.data, TableEntry)
        name, chunk = instruction.data
        return self.spec.arg(name), chunk
