"""When each register of a program holds something that is still read."""

from dataclasses import dataclass

from caspar.ir.program import Program, Register


@dataclass(frozen=True)
class LiveRange:
    """One value in its register.

    Attributes:
        register: Where it is.
        made: Number of the instruction that writes it.
        reads: Numbers of the instructions that read it, ascending.
    """

    register: Register
    made: int
    reads: tuple[int, ...]

    @property
    def end(self) -> int:
        """Number of the last instruction that reads it; that which writes it if none does."""
        return self.reads[-1] if len(self.reads) > 0 else self.made


def live_ranges(program: Program) -> tuple[LiveRange, ...]:
    """Every value's range, in the order they are written."""
    ranges: list[LiveRange] = []
    current: dict[Register, int] = {}
    reads: list[list[int]] = []
    for number, instruction in enumerate(program.instructions):
        for operand in dict.fromkeys(instruction.operands):
            if isinstance(operand, str):
                reads[current[operand]].append(number)
        for register in instruction.outputs:
            current[register] = len(reads)
            reads.append([])
            ranges.append(LiveRange(register, number, ()))
    return tuple(
        LiveRange(entry.register, entry.made, tuple(numbers))
        for entry, numbers in zip(ranges, reads, strict=True)
    )


def pressure(program: Program) -> tuple[int, ...]:
    """Numbers (not truth values) that are live when each instruction has written its results."""
    live = [0] * (len(program.instructions) + 1)
    for entry in live_ranges(program):
        if entry.register.startswith("r"):
            live[entry.made] += 1
            live[max(entry.end, entry.made + 1)] -= 1
    total = 0
    found = []
    for change in live[:-1]:
        total += change
        found.append(total)
    return tuple(found)
