"""Assigns registers to the values of a schedule.

Input: a `Schedule`. Output: a `Program` whose `num_registers` is the greatest number of values
live at once: in straight-line code, giving each value the lowest free register reaches it. An
output may take the register of an operand that dies in the same step. Linear, but for the heap
of free registers.
"""

import heapq

from caspar.ir.ops import OP_INFO
from caspar.ir.program import Instruction, Operand, Program, Register
from caspar.passes.scheduling.steps import Schedule, last_readers


def assign_registers(schedule: Schedule) -> Program:
    """Assign registers."""
    last_step = last_readers(schedule)
    pools = {False: _Pool("r"), True: _Pool("p")}
    registers: dict[int, Register] = {}
    boolean: dict[int, bool] = {}
    instructions = []
    for number, step in enumerate(schedule.steps):
        operands: list[Operand] = [
            schedule.literals[value] if value in schedule.literals else registers[value]
            for value in step.operands
        ]
        for value in dict.fromkeys(step.operands):
            if value not in schedule.literals and last_step[value] == number:
                pools[boolean[value]].free(registers[value])
        for value in step.outputs:
            boolean[value] = OP_INFO[step.op].boolean
            registers[value] = pools[boolean[value]].take()
        for value in step.outputs:
            if last_step[value] == number:
                pools[boolean[value]].free(registers[value])
        outputs = tuple(registers[value] for value in step.outputs)
        instructions.append(Instruction(step.op, outputs, tuple(operands), step.data, step.origin))
    num_registers, num_predicates = pools[False].size, pools[True].size
    return Program(tuple(instructions), num_registers, num_predicates, schedule.dtype)


class _Pool:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._free: list[int] = []
        self.size = 0

    def take(self) -> Register:
        if self._free:
            return f"{self._prefix}{heapq.heappop(self._free)}"
        self.size += 1
        return f"{self._prefix}{self.size - 1}"

    def free(self, register: Register) -> None:
        heapq.heappush(self._free, int(register[1:]))
