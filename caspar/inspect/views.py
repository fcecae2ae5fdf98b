"""Views of a stage: text when it is printed, a picture in a notebook if there is one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from caspar.codegen.cuda.kernel import KERNEL_START
from caspar.errors import OptionError
from caspar.inspect.pictures.draw_graph import draw_graph, draw_progress
from caspar.inspect.pictures.draw_program import draw_program
from caspar.inspect.progress import Progress
from caspar.ir.graph import Graph
from caspar.ir.program import Instruction, Program
from caspar.ir.text import print_graph, print_instruction, print_program
from caspar.passes.scheduling.steps import Schedule, Step
from caspar.tables import Shown

_COMMENT = "  # "

_NO_HEADER = (
    "// {} lines of common functions before this are left out: "
    "kernel.source.text, or --complete, has all"
)


def without_repeats(text: str) -> str:
    """Printed calls or instructions, with an origin only where it is not that of the line before.

    As in generated source: a line without origin, such as a read, does not end its neighbours'.
    """
    shown, lines = "", []
    for line in text.splitlines():
        code, _, origin = line.partition(_COMMENT)
        lines.append(code if origin in ("", shown) else line)
        shown = origin or shown
    return "".join(f"{line}\n" for line in lines)


def _as_names(outputs: str | Sequence[str]) -> Sequence[str]:
    """A single name is a string."""
    return (outputs,) if isinstance(outputs, str) else outputs


@dataclass(frozen=True, repr=False)
class TextView(Shown):
    """Text, as it is.

    Attributes:
        text: What is printed.
    """

    text: str

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text)}</pre>"


def source_view(text: str) -> TextView:
    """A source without the functions that kernels for CUDA have in common."""
    common, start, own = text.partition(KERNEL_START)
    if start == "":
        return TextView(text)
    return TextView(f"{_NO_HEADER.format(common.count(chr(10)))}\n{start}{own}")


class Picture(Shown, ABC):
    """A view that a notebook draws."""

    @abstractmethod
    def svg(self) -> str:
        """The picture, as SVG."""

    def _repr_svg_(self) -> str:
        return self.svg()


@dataclass(frozen=True, repr=False)
class GraphView(Picture):
    """A graph.

    Attributes:
        graph: What is shown.
        title: Stands above its picture.
    """

    graph: Graph
    title: str

    def __str__(self) -> str:
        return without_repeats(print_graph(self.graph))

    def svg(self, outputs: str | Sequence[str] = ()) -> str:
        """Calls as boxes, values as rounded shapes.

        Args:
            outputs: Name or names of arguments that are written: only what they need is drawn.
                Empty: all.

        Raises:
            BackendError: igraph is not installed.
            OptionError: The graph is too large to draw, or does not write one of `outputs`.
        """
        return draw_graph(self.graph, self.title, _as_names(outputs))


@dataclass(frozen=True, repr=False)
class ScheduleView(Picture):
    """The order of all steps.

    Attributes:
        graph: What was ordered.
        schedule: Its steps.
        program: The same steps on registers.
        title: Stands above its picture.
    """

    graph: Graph
    schedule: Schedule
    program: Program
    title: str

    def __str__(self) -> str:
        steps = "".join(f"  {self._line(step)}\n" for step in self.schedule.steps)
        head = f"schedule {self.schedule.dtype.value} steps={len(self.schedule.steps)}"
        return without_repeats(f"{head}\n{steps}")

    def _line(self, step: Step) -> str:
        """A step as an instruction on values; those the graph does not have are partial results."""
        literals = self.schedule.literals
        operands = [literals.get(value, f"v{value}") for value in step.operands]
        outputs = tuple(f"v{value}" for value in step.outputs)
        return print_instruction(
            Instruction(step.op, outputs, tuple(operands), step.data, step.origin)
        )

    def svg(self, after: int | None = None, outputs: str | Sequence[str] = ()) -> str:
        """The graph with the state of its calls and values after some steps.

        Args:
            after: Number of steps that are done; None: all.
            outputs: As for `GraphView.svg`.

        Raises:
            BackendError: igraph is not installed.
            OptionError: There are not so many steps, or as for `GraphView.svg`.
        """
        num_steps = len(self.schedule.steps)
        num_done = num_steps if after is None else after
        if not 0 <= num_done <= num_steps:
            raise OptionError(f"after={after!r}: must be between 0 and {num_steps}, the last step")
        progress = Progress(self.graph, self.schedule, self.program, num_done)
        title = f"{self.title}: {num_done} of {num_steps} steps"
        return draw_progress(progress, title, _as_names(outputs))


@dataclass(frozen=True, repr=False)
class ProgramView(Picture):
    """A program.

    Attributes:
        program: What is shown.
        title: Stands above its picture.
    """

    program: Program
    title: str

    def __str__(self) -> str:
        return without_repeats(print_program(self.program))

    def svg(self, outputs: str | Sequence[str] = ()) -> str:
        """Instructions from top to bottom, registers as columns with live ranges, pressure.

        Args:
            outputs: Must be empty: registers and pressure are those of the whole program.

        Raises:
            OptionError: `outputs` is not empty.
        """
        if len(outputs) > 0:
            raise OptionError(
                f"outputs={outputs!r}: a program is drawn as a whole; the pictures of graphs and "
                "of the schedule can be restricted to some outputs"
            )
        return draw_program(self.program, self.title)
