"""Instructions of LLVM, line by line, with the types of their results."""

import struct
from typing import NamedTuple

from caspar.errors import CompileError


class Value(NamedTuple):
    """A number, or a pointer to numbers.

    Attributes:
        text: How instructions name it.
        type: `i64`, `i1`, `float` or `double`; of a pointer the type of an entry and `*`.
    """

    text: str
    type: str


_WIDTH = {"i1": 0, "i64": 1, "float": 2, "double": 3}

_FLOATING = ("float", "double")

_INTEGER_OPS = {
    "+": "add nsw",
    "-": "sub nsw",
    "*": "mul nsw",
    "//": "udiv",
    "%": "urem",
    ">>": "lshr",
    "&": "and",
    "|": "or",
}

_FLOAT_OPS = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}

_COMPARISONS = {
    "<": ("slt", "olt"),
    "<=": ("sle", "ole"),
    ">": ("sgt", "ogt"),
    ">=": ("sge", "oge"),
    "==": ("eq", "oeq"),
    "!=": ("ne", "une"),
}
"""Conditions of integers, and of floating-point numbers."""

_CONVERSIONS = {
    ("i64", "float"): "sitofp",
    ("i64", "double"): "sitofp",
    ("float", "i64"): "fptosi",
    ("double", "i64"): "fptosi",
    ("float", "double"): "fpext",
    ("double", "float"): "fptrunc",
}


def quoted(name: str) -> str:
    """A name as LLVM reads it, whatever its letters."""
    if name.isascii():
        return name
    return '"' + "".join(f"\\{byte:02x}" for byte in name.encode()) + '"'


def literal(number: float, kind: str) -> Value:
    """A floating-point number, as the bits of a float64."""
    if kind == "float":
        (number,) = struct.unpack("f", struct.pack("f", number))
    (bits,) = struct.unpack("Q", struct.pack("d", number))
    return Value(f"0x{bits:016X}", kind)


class Instructions:
    """The instructions of a function, in the order in which they are asked for.

    Names of results are hints, or numbers after a point, which no hint has.

    Attributes:
        lines: Their text.
        block: The label of the block that the next one is in.
        declared: Declarations of the functions that they call.
        called: Which of `functions.FUNCTIONS` they call.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.block = "entry"
        self.declared: set[str] = set()
        self.called: set[str] = set()
        self._num_names = 0

    def emit(self, instruction: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {instruction}")

    def result(self, instruction: str, kind: str, hint: str = "") -> Value:
        """Append an instruction; its result, of a type, by the name of a hint."""
        name = f"%{quoted(hint)}" if hint else self.name()
        self.lines.append(f"  {name} = {instruction}")
        return Value(name, kind)

    def name(self) -> str:
        """A name for a result that is still to come."""
        self._num_names += 1
        return f"%.{self._num_names}"

    # -- blocks ------------------------------------------------------------------------------------

    def labels(self, *parts: str) -> list[str]:
        """Labels of blocks that belong together."""
        self._num_names += 1
        return [f"{part}.{self._num_names}" for part in parts]

    def begin(self, label: str) -> None:
        """Begin a block."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        """Go on with another block."""
        self.emit(f"br label %{label}")

    def branch(self, condition: Value, if_true: str, if_false: str) -> None:
        """Go on with one of two blocks."""
        self.emit(f"br i1 {condition.text}, label %{if_true}, label %{if_false}")

    # -- numbers -----------------------------------------------------------------------------------

    def cast(self, value: Value, kind: str, hint: str = "") -> Value:
        """A value in another type."""
        if value.type == kind:
            return value
        conversion = _CONVERSIONS.get((value.type, kind))
        if conversion is None:
            raise CompileError(f"kernels for the processor have no {kind} of {value.type}")
        return self.result(f"{conversion} {value.type} {value.text} to {kind}", kind, hint)

    def binary(self, op: str, left: Value, right: Value, hint: str = "") -> Value:
        """An operation of Python, in the wider of two types."""
        left, right = self._widened(left, right)
        kind = left.type
        instruction = (_FLOAT_OPS if kind in _FLOATING else _INTEGER_OPS).get(op)
        if instruction is None:
            raise CompileError(f"kernels for the processor have no {op} of {kind}")
        return self.result(f"{instruction} {kind} {left.text}, {right.text}", kind, hint)

    def compare(self, op: str, left: Value, right: Value, hint: str = "") -> Value:
        """A comparison of Python, in the wider of two types."""
        left, right = self._widened(left, right)
        of_integers, of_floats = _COMPARISONS[op]
        kind = left.type
        test = f"fcmp {of_floats}" if kind in _FLOATING else f"icmp {of_integers}"
        return self.result(f"{test} {kind} {left.text}, {right.text}", "i1", hint)

    def choose(self, condition: Value, if_true: Value, if_false: Value, hint: str = "") -> Value:
        """One of two values."""
        kind = if_true.type
        ways = f"{kind} {if_true.text}, {kind} {if_false.text}"
        return self.result(f"select i1 {condition.text}, {ways}", kind, hint)

    def _widened(self, left: Value, right: Value) -> tuple[Value, Value]:
        kind = max(left.type, right.type, key=lambda name: _WIDTH.get(name, -1))
        return self.cast(left, kind), self.cast(right, kind)

    # -- memory ------------------------------------------------------------------------------------

    def place(self, array: Value, index: Value) -> Value:
        """The pointer to an entry of an array."""
        kind = array.type.removesuffix("*")
        address = f"getelementptr inbounds {kind}, ptr {array.text}, i64 {index.text}"
        return self.result(address, array.type)

    def load(self, place: Value, hint: str = "") -> Value:
        """Load an entry; smaller integers become int64."""
        kind = place.type.removesuffix("*")
        extension = {"i16": "zext", "i32": "sext"}.get(kind)
        if extension is None:
            return self.result(f"load {kind}, ptr {place.text}", kind, hint)
        narrow = self.result(f"load {kind}, ptr {place.text}", kind)
        return self.result(f"{extension} {kind} {narrow.text} to i64", "i64", hint)

    def store(self, place: Value, value: Value) -> None:
        """Write a value, in the type of what is there."""
        kind = place.type.removesuffix("*")
        if kind in ("i16", "i32"):
            value = self.result(f"trunc i64 {value.text} to {kind}", kind)
        self.emit(f"store {kind} {self.cast(value, kind).text}, ptr {place.text}")
