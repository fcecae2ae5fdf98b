"""The program as a picture: instructions from top to bottom, registers as columns.

A bar is a value in its register, from the instruction that writes it (dot) to the last that reads
it (tick). On the right the pressure, with its peak marked: what the scheduler predicts.
"""

from dataclasses import dataclass

from caspar.inspect.pictures.svg import CHARACTER_WIDTH, INK, Drawing, text_width
from caspar.ir.program import Instruction, Program, Register
from caspar.ir.text import print_instruction


@dataclass(frozen=True)
class LiveRange:
    """One value in its register, with the numbers of the instructions that write and read it."""

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


ROW = 14.0
COLUMN = 15.0
MAX_TEXT = 64
"""Characters of an instruction; longer ones are cut, and complete under the pointer."""

_MARGIN = 20.0
_HEAD_WIDTH = 460.0
_SIZE = 10.0
_MEMORY_COLOR, _PEAK_COLOR = "#DAE8FC", "#F8CECC"
_BAR_COLORS = {False: "#9DB8D9", True: "#B9A3C6"}
"""Colours of bars; the key is True if the value was read from memory."""

_PRESSURE_COLOR, _MARK_COLOR = "#D6B656", "#B85450"


def draw_program(program: Program, title: str) -> str:
    """A program as SVG."""
    texts = [_shortened(instruction) for instruction in program.instructions]
    widest = max((len(text) for text in texts), default=0)
    left = _MARGIN + 34.0 + widest * CHARACTER_WIDTH * _SIZE + 14.0
    registers = [f"r{n}" for n in range(program.num_registers)]
    registers += [f"p{n}" for n in range(program.num_predicates)]
    column = {name: left + (n + 0.5) * COLUMN for n, name in enumerate(registers)}
    right = left + len(registers) * COLUMN + 14.0
    levels = pressure(program)
    peak = max(levels, default=0)
    top = _MARGIN + 72.0
    drawing = Drawing()
    _write_head(drawing, title, column, (right, top), peak)
    _write_rows(drawing, program, texts, top, (right, levels))
    for entry in live_ranges(program):
        _write_range(drawing, entry, column[entry.register], top, program)
    room = max(4.0 * peak + 40.0, text_width(f"pressure, peak {peak}", _SIZE))
    width = max(right + room + _MARGIN, text_width(title) + 2.0 * _MARGIN, _HEAD_WIDTH)
    return drawing.finish((width, top + ROW * len(texts) + _MARGIN), title)


def _shortened(instruction: Instruction) -> str:
    text = print_instruction(instruction).partition("  # ")[0]
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def _write_head(
    drawing: Drawing,
    title: str,
    column: dict[Register, float],
    pressure_corner: tuple[float, float],
    peak: int,
) -> None:
    drawing.text((_MARGIN, _MARGIN), title, anchor="start", bold=True)
    _write_legend(drawing)
    right, top = pressure_corner
    for name, x in column.items():
        drawing.text(
            (x, top - 9.0), name[1:], size=8.0, fill=INK if name[0] == "r" else _MARK_COLOR
        )
    for kind, what in (("r", "registers"), ("p", "predicates")):
        places = [x for name, x in column.items() if name[0] == kind]
        if len(places) > 0:
            at = (places[0] - COLUMN / 2.0, top - 22.0)
            drawing.text(at, what if len(places) > 4 else kind, size=_SIZE, anchor="start")
    drawing.text((right, top - 9.0), f"pressure, peak {peak}", size=_SIZE, anchor="start")


def _write_legend(drawing: Drawing) -> None:
    x, y = _MARGIN, _MARGIN + 20.0
    for text, is_loaded in (("computed", False), ("read from memory", True)):
        drawing.rectangle((x, y - 4.0), (14.0, 8.0), _BAR_COLORS[is_loaded])
        drawing.text((x + 18.0, y), text, size=_SIZE, anchor="start")
        x += 18.0 + text_width(text, _SIZE) + 16.0
    drawing.circle((x + 3.0, y), 3.0, INK)
    drawing.text((x + 10.0, y), "written", size=_SIZE, anchor="start")
    x += 10.0 + text_width("written", _SIZE) + 16.0
    drawing.line((x, y), (x + 8.0, y), _MARK_COLOR, 1.5)
    drawing.text((x + 12.0, y), "read", size=_SIZE, anchor="start")
    x += 12.0 + text_width("read", _SIZE) + 16.0
    drawing.rectangle((x, y - 5.0), (14.0, 10.0), _PEAK_COLOR)
    drawing.text((x + 18.0, y), "peak", size=_SIZE, anchor="start")


def _write_rows(
    drawing: Drawing,
    program: Program,
    texts: list[str],
    top: float,
    levels: tuple[float, tuple[int, ...]],
) -> None:
    """Numbers, instructions and pressure; rows at the peak and accesses to memory are coloured."""
    right, heights = levels
    peak = max(heights, default=0)
    for number, (instruction, text) in enumerate(zip(program.instructions, texts, strict=True)):
        y = top + number * ROW
        if heights[number] == peak:
            drawing.rectangle((_MARGIN, y), (right - _MARGIN + 4.0 * peak, ROW), _PEAK_COLOR)
        if instruction.data is not None:
            size = (text_width(text, _SIZE) + 4.0, ROW - 2.0)
            drawing.rectangle((_MARGIN + 32.0, y + 1.0), size, _MEMORY_COLOR)
        middle = y + ROW / 2.0
        drawing.text((_MARGIN + 26.0, middle), str(number), size=8.0, anchor="end")
        drawing.text(
            (_MARGIN + 34.0, middle),
            text,
            size=_SIZE,
            anchor="start",
            title=print_instruction(instruction),
        )
        drawing.rectangle((right, y + 2.0), (4.0 * heights[number], ROW - 4.0), _PRESSURE_COLOR)
        drawing.text(
            (right + 4.0 * heights[number] + 3.0, middle),
            str(heights[number]),
            size=8.0,
            anchor="start",
        )


def _write_range(
    drawing: Drawing, entry: LiveRange, x: float, top: float, program: Program
) -> None:
    start, end = top + (entry.made + 0.5) * ROW, top + (entry.end + 0.5) * ROW
    is_loaded = program.instructions[entry.made].data is not None
    drawing.rectangle(
        (x - 4.0, start),
        (8.0, max(end - start, 3.0)),
        _BAR_COLORS[is_loaded],
        title=f"{entry.register}: {print_instruction(program.instructions[entry.made])}",
    )
    for number in entry.reads:
        y = top + (number + 0.5) * ROW
        drawing.line((x - 4.0, y), (x + 4.0, y), _MARK_COLOR, 1.5)
    drawing.circle((x, start), 3.0, INK)
