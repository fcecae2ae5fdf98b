"""What the kernel of a batch is made of: its programs at every stage, its text, its resources.

Input: the shape of a batch. Output: a `BatchInspection`. Each program is compiled as those of other
kernels are, passes, schedule and registers; the kernel has loops around them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from caspar.batch.generate import programs, step_program
from caspar.batch.generate.kernel import batch_kernel
from caspar.batch.generate.policy_program import policy_graph
from caspar.batch.generate.shape import BatchShape, Team
from caspar.codegen.source import KernelSource
from caspar.codegen.targets import Target
from caspar.errors import OptionError
from caspar.inspect.changes import graph_changes
from caspar.inspect.resources import KernelReport, ResourcesView
from caspar.inspect.views import (
    GraphView,
    ProgramView,
    ScheduleView,
    TextView,
    cuda_view,
    without_repeats,
)
from caspar.ir.graph import Graph
from caspar.ir.program import Program
from caspar.passes.pipeline import GRAPH_STAGES, StageResult, compile_graph
from caspar.passes.scheduling.steps import Schedule
from caspar.runtime.nvidia.nvrtc import compile_source
from caspar.runtime.nvidia.sass import disassemble

_PASSES = tuple(name for name, _ in GRAPH_STAGES)
_STAGES = ("graph", *_PASSES, "schedule", "program")


@dataclass(frozen=True)
class ProgramInspection:
    """One program of the kernel of a batch.

    Attributes:
        name: What it computes, and of which factor.
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
        """What a graph pass did: calls it took away with `-`, calls it put in with `+`.

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


@dataclass(frozen=True)
class BatchInspection(Mapping[str, ProgramInspection]):
    """The programs of the kernel that solves the problems of a batch, by name.

    Attributes:
        shape: What all problems have in common.
        target: What is generated.
        arch: Architecture of `resources`.
        programs: By name, in the order of a turn.
    """

    shape: BatchShape
    target: Target
    arch: str
    programs: Mapping[str, ProgramInspection]

    def __getitem__(self, name: str) -> ProgramInspection:
        return self.programs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.programs)

    def __len__(self) -> int:
        return len(self.programs)

    def __repr__(self) -> str:
        return (
            f"batch for {self.target.name}, {self.shape.num_unknowns} unknowns, a "
            f"{self.shape.team.value} a problem; programs: {', '.join(self.programs)}"
        )

    @cached_property
    def source(self) -> KernelSource:
        """The generated kernel."""
        return batch_kernel(self.shape, self.target)

    @property
    def text(self) -> TextView:
        """Its text, for `cuda` without the functions that kernels have in common."""
        if self.target.name == "cuda":
            return cuda_view(self.source.text)
        return TextView(self.source.text)

    @cached_property
    def resources(self) -> ResourcesView:
        """Registers, spills and instruction counts of the kernel, for the target `cuda`.

        The peak is that of the program with the most values.

        Raises:
            BackendError: NVRTC or nvdisasm is not installed.
            OptionError: The target is another one.
        """
        if self.target.name != "cuda":
            raise OptionError(
                "resources: only kernels for 'cuda' have them: inspect(target='cuda')"
            )
        block_size, compiled = compile_source(self.source, self.arch)
        report = KernelReport(
            name=self.source.name,
            arch=self.arch,
            dtype=self.shape.storage,
            num_values=max(one.num_registers for one in self.programs.values()),
            block_size=block_size,
            resources=compiled.resources[self.source.name],
            sass=disassemble(compiled.cubin)[self.source.name],
        )
        return ResourcesView((report,))


def inspect_batch(shape: BatchShape, target: Target, arch: str) -> BatchInspection:
    """The programs of the kernel that solves problems of a shape.

    Args:
        shape: What all problems have in common.
        target: What is generated.
        arch: Architecture of machine code, `sm_90` for example.
    """
    is_team = shape.team is Team.WARP
    linearize = programs.rows_graph if is_team else programs.linearize_graph
    found: dict[str, Graph] = {}
    for number, one in enumerate(shape.factors):
        found[f"{one.factor.name} score"] = programs.score_graph(shape, number)
        found[f"{one.factor.name} {'rows' if is_team else 'linearize'}"] = linearize(shape, number)
    if shape.is_bounded:
        found["activate"] = step_program.activate_graph(shape)
    if is_team:
        found["damp"] = step_program.damp_graph(shape)
        found["promise"] = step_program.promise_graph(shape)
    else:
        found["step"] = step_program.step_graph(shape)
    found["policy"], found["fade"] = policy_graph(), step_program.fade_graph(shape)
    return BatchInspection(
        shape,
        target,
        arch,
        {name: ProgramInspection(name, graph, target) for name, graph in found.items()},
    )
