"""One program of a kernel that has several, at every stage of the middle end.

Input: a graph and the target it is compiled for. Output: views of the graph after each pass, of the
schedule, and of the program on registers.
"""

from dataclasses import dataclass
from functools import cached_property

from caspar.codegen.targets import Target
from caspar.errors import OptionError
from caspar.inspect.changes import graph_changes
from caspar.inspect.views import GraphView, ProgramView, ScheduleView, TextView, without_repeats
from caspar.ir.graph import Graph
from caspar.ir.program import Program
from caspar.passes.pipeline import GRAPH_STAGES, StageResult, compile_graph
from caspar.passes.scheduling.steps import Schedule

_PASSES = tuple(name for name, _ in GRAPH_STAGES)
_STAGES = ("graph", *_PASSES, "schedule", "program")


@dataclass(frozen=True)
class ProgramInspection:
    """One program of a kernel.

    Attributes:
        name: What it computes.
        input: The graph before the first pass.
        target: What is generated.
    """

    name: str
    input: Graph
    target: Target

    def __repr__(self) -> str:
        return f"program {self.name} for {self.target.name}; stages: {', '.join(_STAGES)}"

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of its stages, first to last."""
        return _STAGES

    def stage(self, name: str) -> GraphView | ScheduleView | ProgramView:
        """The program at one stage: `graph`, after a pass, `schedule`, or on registers: `program`.

        Raises:
            OptionError: There is no such stage.
        """
        if name not in _STAGES:
            raise OptionError(f"stage={name!r}: the stages are {', '.join(_STAGES)}")
        result = self._results[name]
        if isinstance(result, Graph):
            return GraphView(result, f"{self.name}: {name}")
        if isinstance(result, Program):
            return ProgramView(result, f"{self.name}: program")
        last, program = self._results[_PASSES[-1]], self._results["program"]
        assert isinstance(last, Graph)
        assert isinstance(result, Schedule)
        assert isinstance(program, Program)
        return ScheduleView(last, result, program, f"{self.name}: schedule")

    def changes(self, stage: str) -> TextView:
        """Show what a graph pass did: calls it took away with `-`, calls it put in with `+`.

        Raises:
            OptionError: There is no such pass.
        """
        if stage not in _PASSES:
            raise OptionError(f"stage={stage!r}: changes are those of a pass: {', '.join(_PASSES)}")
        before, after = (self._results[_STAGES[_STAGES.index(stage) - past]] for past in (1, 0))
        assert isinstance(before, Graph)
        assert isinstance(after, Graph)
        lines = graph_changes(before, after)
        if len(lines) == 0:
            return TextView(f"{stage}: nothing changed\n")
        return TextView(without_repeats("\n".join([stage, *(f"  {line}" for line in lines)])))

    @property
    def num_registers(self) -> int:
        """Values that are alive at the same time, as the scheduler predicts."""
        program = self._results["program"]
        assert isinstance(program, Program)
        return program.num_registers

    @cached_property
    def _results(self) -> dict[str, StageResult]:
        observed: dict[str, StageResult] = {}
        compile_graph(self.input, self.target.costs[self.input.dtype], observed.__setitem__)
        (_, graph), *passes, (_, program) = observed.items()
        return {"graph": graph, **dict(passes), "program": program}
