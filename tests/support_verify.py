"""Checks that a graph or a program obeys the rules of its representation.

Input: a `Graph` or a `Program`. Output: none, or `VerificationError` with the offending call or
instruction printed. Linear in the number of calls; tests run it at stage borders.
"""

import re
from collections.abc import Sequence

from caspar.errors import VerificationError
from caspar.ir.graph import Call, CallData, Graph, TableEntry
from caspar.ir.ops import GRAPH_ONLY, MEMORY_OPS, OP_INFO, PROGRAM_ONLY, Op
from caspar.ir.program import Instruction, Operand, Program
from caspar.ir.text import print_call, print_instruction

_REGISTER = re.compile(r"([rp])(0|[1-9][0-9]*)")
MAX_AXES = 3
"""The most axes that a table may have."""

_LOGIC = frozenset({Op.AND, Op.OR, Op.NOT})


def verify_graph(graph: Graph) -> None:
    """Check ops, arity, typing, topological order, memory accesses; an error prints the call."""
    boolean_values: dict[int, bool] = {}
    memory = _MemoryRules()
    for number, call in enumerate(graph.calls):
        where = f"call {number}: {print_call(call)}"
        _check_call_shape(call, where)
        for value in call.operands:
            if value not in boolean_values:
                raise VerificationError(f"{where}: v{value} is read before it is produced")
        _check_types(call.op, [boolean_values[value] for value in call.operands], where)
        memory.check(call.op, call.data, max(len(call.outputs), len(call.operands)), where)
        for value in call.outputs:
            if value in boolean_values:
                raise VerificationError(f"{where}: v{value} is produced twice")
            if not 0 <= value < graph.num_values:
                raise VerificationError(
                    f"{where}: v{value} is outside v0 .. v{graph.num_values - 1}"
                )
            boolean_values[value] = OP_INFO[call.op].boolean
    if len(boolean_values) != graph.num_values:
        raise VerificationError(
            f"the graph declares {graph.num_values} values but produces {len(boolean_values)}"
        )


def verify_program(program: Program) -> None:
    """Check ops, arity, typing, registers written before read; an error prints the instruction."""
    written: set[str] = set()
    memory = _MemoryRules()
    for number, instruction in enumerate(program.instructions):
        where = f"instruction {number}: {print_instruction(instruction)}"
        _check_instruction_shape(instruction, where)
        for operand in instruction.operands:
            _check_operand(operand, written, where)
        booleans = [_is_predicate(operand) for operand in instruction.operands]
        _check_types(instruction.op, booleans, where)
        width = max(len(instruction.outputs), len(instruction.operands))
        memory.check(instruction.op, instruction.data, width, where)
        for register in instruction.outputs:
            _check_output(register, instruction.op, program, where)
            written.add(register)
    for kind, count in (("r", program.num_registers), ("p", program.num_predicates)):
        used = sum(register.startswith(kind) for register in written)
        if used != count:
            raise VerificationError(
                f"the program declares {count} '{kind}' registers but writes {used}"
            )


class _MemoryRules:
    """Accesses seen so far: each chunk stored once, not read again after it was stored."""

    def __init__(self) -> None:
        self._widths: dict[tuple[str, int], int] = {}
        self._stored: set[tuple[str, int]] = set()

    def check(self, op: Op, data: CallData, width: int, where: str) -> None:
        """Check the data and the order of one call's access."""
        if op is Op.CONST:
            if not isinstance(data, float):
                raise VerificationError(f"{where}: a constant needs a float, has {data!r}")
            return
        if op is Op.GATHER:
            _check_entry(data, where)
            return
        if op not in MEMORY_OPS:
            if data is not None:
                raise VerificationError(f"{where}: {op.name} takes no data, has {data!r}")
            return
        if not _is_access(data) or isinstance(data, TableEntry):
            raise VerificationError(f"{where}: needs (argument, chunk) as data, has {data!r}")
        assert isinstance(data, tuple)
        assert not isinstance(data, TableEntry)
        if width == 0:
            raise VerificationError(f"{where}: accesses no scalar")
        if self._widths.setdefault(data, width) != width:
            raise VerificationError(f"{where}: another access of this chunk has another width")
        if data in self._stored:
            # an argument updated in place is read as it was before the kernel
            raise VerificationError(f"{where}: the chunk was stored before")
        if op is not Op.READ:
            self._stored.add(data)


def _check_entry(data: CallData, where: str) -> None:
    if (
        not isinstance(data, TableEntry)
        or not data.argument.isidentifier()
        or not 0 <= data.channel <= data.num_channels
    ):
        raise VerificationError(f"{where}: needs an entry of a table as data, has {data!r}")


def _is_access(data: object) -> bool:
    return (
        isinstance(data, tuple)
        and len(data) == 2
        and isinstance(data[0], str)
        and data[0].isidentifier()
        and isinstance(data[1], int)
        and data[1] >= 0
    )


def _check_call_shape(call: Call, where: str) -> None:
    if call.op in PROGRAM_ONLY:
        raise VerificationError(f"{where}: {call.op.name} belongs in programs, not in graphs")
    _check_arity(call.op, len(call.operands), len(call.outputs), where)


def _check_instruction_shape(instruction: Instruction, where: str) -> None:
    if instruction.op in GRAPH_ONLY:
        raise VerificationError(f"{where}: {instruction.op.name} should have been lowered")
    _check_arity(instruction.op, len(instruction.operands), len(instruction.outputs), where)
    if len(set(instruction.outputs)) != len(instruction.outputs):
        raise VerificationError(f"{where}: writes one register twice")


def _check_arity(op: Op, num_operands: int, num_outputs: int, where: str) -> None:
    info = OP_INFO[op]
    if info.arity is not None and num_operands != info.arity:
        raise VerificationError(f"{where}: takes {info.arity} operands, has {num_operands}")
    if info.associative and num_operands < 2:
        raise VerificationError(f"{where}: a reduction takes 2 or more operands")
    if op is Op.GATHER and not 1 <= num_operands <= MAX_AXES:
        raise VerificationError(f"{where}: takes 1 to {MAX_AXES} places, has {num_operands}")
    if op is Op.EXCHANGE and num_outputs != num_operands:
        raise VerificationError(f"{where}: exchanges {num_operands} values for {num_outputs}")
    if info.num_outputs is not None and num_outputs != info.num_outputs:
        raise VerificationError(f"{where}: has {info.num_outputs} outputs, not {num_outputs}")


def _check_types(op: Op, booleans: Sequence[bool], where: str) -> None:
    if op in _LOGIC:
        expected = [True] * len(booleans)
    elif op is Op.SELECT:
        expected = [True, False, False]
    else:
        expected = [False] * len(booleans)
    for position, (found, wanted) in enumerate(zip(booleans, expected, strict=True)):
        if found is not wanted:
            kind = "a truth value" if wanted else "a number"
            raise VerificationError(f"{where}: operand {position} must be {kind}")


def _is_predicate(operand: Operand) -> bool:
    return isinstance(operand, str) and operand.startswith("p")


def _check_operand(operand: Operand, written: set[str], where: str) -> None:
    if isinstance(operand, float):
        return
    if not isinstance(operand, str) or _REGISTER.fullmatch(operand) is None:
        raise VerificationError(f"{where}: {operand!r} is neither a register nor a float")
    if operand not in written:
        raise VerificationError(f"{where}: {operand} is read before it is written")


def _check_output(register: str, op: Op, program: Program, where: str) -> None:
    match = _REGISTER.fullmatch(register)
    if match is None:
        raise VerificationError(f"{where}: {register!r} is not a register name")
    kind, number = match.group(1), int(match.group(2))
    expected = "p" if OP_INFO[op].boolean else "r"
    if kind != expected:
        raise VerificationError(f"{where}: writes {register}, needs a '{expected}' register")
    count = program.num_predicates if kind == "p" else program.num_registers
    if number >= count:
        raise VerificationError(f"{where}: {register} is outside the {count} declared")
