"""Ordered steps on values: what scheduling gives and register assignment takes."""

from dataclasses import dataclass
from typing import NamedTuple

from caspar.ir.dtype import DType
from caspar.ir.graph import CallData
from caspar.ir.ops import Op


class Step(NamedTuple):
    """One instruction whose operands are values, not yet registers; see `Call`.

    The op is one of programs; each output is written by one step only.
    """

    op: Op
    outputs: tuple[int, ...]
    operands: tuple[int, ...]
    data: CallData = None
    origin: str = ""


@dataclass(frozen=True)
class Schedule:
    """Steps in execution order; no step produces the values in `literals`."""

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
