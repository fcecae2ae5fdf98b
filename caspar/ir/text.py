"""The printed form of graphs and programs, and its parsers.

One call or instruction a line; numbers are printed by `repr`, so printing and parsing again is
the identity. A call's origin is a trailing comment. Example::

    graph float32
      v0, v1 = read cam[0]
      v2 = const 0.5
      v3 = sum v0, v1, v2
      store out[0] v3  # snavely: residual[0]

    program float32 registers=2 predicates=0
      r0, r1 = read cam[0]
      r0 = add r0, r1
      r0 = add r0, 0.5
      store out[0] r0

A number of a table is `gather image[channel/channels] places`; `channels|0`: 0 outside.
"""

import re

from caspar.errors import FileFormatError
from caspar.ir.dtype import DType
from caspar.ir.graph import Call, CallData, Graph, TableEntry
from caspar.ir.ops import MEMORY_OPS, Op
from caspar.ir.program import Instruction, Operand, Program

_COMMENT = "  # "
_ENTRY = re.compile(r"(\w+)\[(\d+)/(\d+)(\|0)?\]")
_ACCESS = re.compile(r"(\w+)\[(\d+)\]")
_LINE = re.compile(r"(?:(?P<outputs>[^=]*?) = )?(?P<op>[a-z0-9]+)(?: (?P<rest>.*))?")
_GRAPH_HEADER = re.compile(r"graph (\w+)")
_PROGRAM_HEADER = re.compile(r"program (\w+) registers=(\d+) predicates=(\d+)")
_REGISTER = re.compile(r"[rp]\d+")


def print_graph(graph: Graph) -> str:
    """The graph as text, one call a line."""
    lines = [f"graph {graph.dtype.value}"]
    lines.extend(f"  {print_call(call)}" for call in graph.calls)
    return "\n".join(lines) + "\n"


def print_program(program: Program) -> str:
    """The program as text, one instruction a line."""
    lines = [
        f"program {program.dtype.value} registers={program.num_registers}"
        f" predicates={program.num_predicates}"
    ]
    lines.extend(f"  {print_instruction(step)}" for step in program.instructions)
    return "\n".join(lines) + "\n"


def print_call(call: Call) -> str:
    """One call as a line, without indentation."""
    outputs = [f"v{value}" for value in call.outputs]
    operands = [f"v{value}" for value in call.operands]
    return _print_line(call.op, outputs, operands, call.data, call.origin)


def print_instruction(instruction: Instruction) -> str:
    """One instruction as a line, without indentation."""
    operands = [
        repr(operand) if isinstance(operand, float) else str(operand)
        for operand in instruction.operands
    ]
    return _print_line(
        instruction.op, list(instruction.outputs), operands, instruction.data, instruction.origin
    )


def _print_line(
    op: Op, outputs: list[str], operands: list[str], data: CallData, origin: str
) -> str:
    words = [op.name.lower()]
    if outputs:
        words.insert(0, ", ".join(outputs) + " =")
    if isinstance(data, TableEntry):
        outside = "|0" if data.is_zero_outside else ""
        words.append(f"{data.argument}[{data.channel}/{data.num_channels}{outside}]")
    elif isinstance(data, tuple):
        words.append("{}[{}]".format(*data))
    elif data is not None:
        words.append(repr(data))
    if operands:
        words.append(", ".join(operands))
    comment = _COMMENT + " ".join(origin.split()) if origin else ""
    return " ".join(words) + comment


def parse_graph(text: str) -> Graph:
    """The graph of a printed form; a `FileFormatError` for a line that is not in it."""
    header, lines = _split(text)
    match = _GRAPH_HEADER.fullmatch(header)
    if match is None:
        raise FileFormatError(f"expected 'graph <dtype>', found {header!r}")
    calls = [_parse_call(line) for line in lines]
    num_values = sum(len(call.outputs) for call in calls)
    return Graph(tuple(calls), num_values, _dtype(match.group(1)))


def parse_program(text: str) -> Program:
    """The program of a printed form; a `FileFormatError` for a line that is not in it."""
    header, lines = _split(text)
    match = _PROGRAM_HEADER.fullmatch(header)
    if match is None:
        raise FileFormatError(
            f"expected 'program <dtype> registers=<n> predicates=<n>', found {header!r}"
        )
    instructions = tuple(_parse_instruction(line) for line in lines)
    dtype, registers, predicates = match.groups()
    return Program(instructions, int(registers), int(predicates), _dtype(dtype))


def _dtype(name: str) -> DType:
    try:
        return DType(name)
    except ValueError:
        known = ", ".join(dtype.value for dtype in DType)
        raise FileFormatError(f"unknown dtype {name!r}, known are {known}") from None


def _split(text: str) -> tuple[str, list[str]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise FileFormatError("the text is empty")
    return lines[0], lines[1:]


def _parse_call(line: str) -> Call:
    op, outputs, rest, origin = _parse_line(line)
    data: CallData = None
    if op is Op.CONST:
        data, rest = _number(rest[0] if rest else "", line), []
    elif op is Op.GATHER:
        data, rest = _entry(rest, line)
    elif op in MEMORY_OPS:
        data, rest = _access(rest, line)
    operands = tuple(_value(word, line) for word in rest)
    return Call(op, operands, tuple(_value(word, line) for word in outputs), data, origin)


def _parse_instruction(line: str) -> Instruction:
    op, outputs, rest, origin = _parse_line(line)
    data: CallData = None
    if op is Op.GATHER:
        data, rest = _entry(rest, line)
    elif op in MEMORY_OPS:
        data, rest = _access(rest, line)
    operands: tuple[Operand, ...] = tuple(
        word if _REGISTER.fullmatch(word) is not None else _number(word, line) for word in rest
    )
    return Instruction(op, tuple(outputs), operands, data, origin)


def _parse_line(line: str) -> tuple[Op, list[str], list[str], str]:
    code, _, origin = line.partition(_COMMENT)
    match = _LINE.fullmatch(code.strip())
    if match is None or match["op"].upper() not in Op.__members__:
        raise FileFormatError(f"not a call or instruction: {line!r}")
    op = Op[match["op"].upper()]
    return op, _words(match["outputs"]), _words(match["rest"]), origin.strip()


def _words(text: str | None) -> list[str]:
    return [] if text is None else [word.strip() for word in text.split(",")]


def _access(words: list[str], line: str) -> tuple[tuple[str, int], list[str]]:
    first, _, operand = (words[0] if words else "").partition(" ")
    match = _ACCESS.fullmatch(first)
    if match is None:
        raise FileFormatError(f"expected argument[chunk] in {line!r}")
    data = (match.group(1), int(match.group(2)))
    return data, ([operand.strip()] if operand else []) + words[1:]


def _entry(words: list[str], line: str) -> tuple[TableEntry, list[str]]:
    first, _, operand = (words[0] if words else "").partition(" ")
    match = _ENTRY.fullmatch(first)
    if match is None:
        raise FileFormatError(f"expected argument[channel/channels] in {line!r}")
    name, channel, num_channels, outside = match.groups()
    entry = TableEntry(name, int(channel), int(num_channels), outside is not None)
    return entry, ([operand.strip()] if operand else []) + words[1:]


def _value(word: str, line: str) -> int:
    if not word.startswith("v") or not word[1:].isdigit():
        raise FileFormatError(f"cannot read the value {word!r} in {line!r}")
    return int(word[1:])


def _number(word: str, line: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise FileFormatError(f"cannot read the number {word!r} in {line!r}") from None
