"""Ordered steps on values: what scheduling gives and register assignment takes."""

from dataclasses import dataclass

from caspar.ir.dtype import DType
from caspar.ir.graph import CallData
from caspar.ir.ops import OP_INFO, Op


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction whose operands are values, not yet registers.

    Attributes:
        op: One of the ops of programs.
        outputs: Values written, each by one step only.
        operands: Values read.
        data: As in `Call`.
        origin: As in `Call`.
    """

    op: Op
    outputs: tuple[int, ...]
    operands: tuple[int, ...]
    data: CallData = None
    origin: str = ""


@dataclass(frozen=True)
class Schedule:
    """Steps in execution order.

    Attributes:
        steps: Every step after the producers of its operands.
        literals: Value -> number, for operands that are literals; no step produces them.
        dtype: Floating type.
    """

    steps: tuple[Step, ...]
    literals: dict[int, float]
    dtype: DType


def last_readers(schedule: Schedule) -> dict[int, int]:
    """Number of the last step that reads (or, unread, makes) each value."""
    last_step: dict[int, int] = {}
    for number, step in enumerate(schedule.steps):
        for value in (*step.outputs, *step.operands):
            last_step[value] = number
    return last_step


def peak_pressure(schedule: Schedule) -> int:
    """Greatest number of numbers (not truth values) that are live at once."""
    last_step = last_readers(schedule)
    live = peak = 0
    boolean: dict[int, bool] = {}
    for number, step in enumerate(schedule.steps):
        for value in dict.fromkeys(step.operands):
            is_number = value not in schedule.literals and not boolean[value]
            live -= is_number and last_step[value] == number
        is_boolean = OP_INFO[step.op].boolean
        boolean.update(dict.fromkeys(step.outputs, is_boolean))
        live += 0 if is_boolean else len(step.outputs)
        peak = max(peak, live)
        unread = sum(last_step[value] == number for value in step.outputs)
        live -= 0 if is_boolean else unread
    return peak
