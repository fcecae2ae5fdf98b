"""A kernel at every stage of the compiler.

    trace -> graph -> each graph pass -> schedule -> program -> cuda -> ptx -> sass, resources
                                                             -> cpu

Each stage is computed when it is first looked at, and what it needs only once. Nothing needs a
GPU; `ptx`, `sass` and `resources` need the packages of the extra `inspect`.
"""

from dataclasses import dataclass, field
from functools import cached_property

from caspar.codegen.source import KernelSource
from caspar.codegen.targets import TARGETS, Target
from caspar.driver import compile_kernel
from caspar.errors import OptionError
from caspar.inspect.changes import graph_changes
from caspar.inspect.resources import KernelReport, ResourcesView
from caspar.inspect.views import (
    GraphView,
    ProgramView,
    ScheduleView,
    TextView,
    source_view,
    without_repeats,
)
from caspar.ir.graph import Graph
from caspar.ir.program import Program
from caspar.memory.kernel import KernelSpec
from caspar.passes.pipeline import GRAPH_STAGES, StageResult
from caspar.passes.scheduling.steps import Schedule
from caspar.runtime.nvidia.nvrtc import CompiledText, compile_source
from caspar.runtime.nvidia.sass import SassKernel, disassemble
from caspar.runtime.nvidia.usage import KernelUsage, kernel_usage

View = TextView | GraphView | ScheduleView | ProgramView | ResourcesView
"""What is shown of a stage, by the kind of the stage."""

_PASSES = tuple(name for name, _ in GRAPH_STAGES)
_GRAPHS = ("graph", *_PASSES)


def stage_names(target: str) -> tuple[str, ...]:
    """The stages of a target, first to last.

    Args:
        target: `cuda` or `cpu`.
    """
    return ("trace", *_GRAPHS, "schedule", "program", target, *TARGETS[target].machine_stages)


@dataclass(frozen=True)
class KernelInspection:
    """One kernel.

    Attributes:
        spec: Name, arguments and graph, as the compiler gets them.
        target: What is generated.
        arch: Architecture of `ptx`, `sass` and `resources`.
        traced: Where the kernel comes from, as text.
    """

    spec: KernelSpec
    target: Target
    arch: str
    traced: str = field(repr=False)

    def __repr__(self) -> str:
        return f"kernel {self.name} for {self.target.name}; stages: {', '.join(self.stages)}"

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.spec.name

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of its stages, first to last."""
        return stage_names(self.target.name)

    def stage(self, name: str) -> View:
        """The kernel at one stage.

        Args:
            name: One of `stages`.

        Raises:
            BackendError: What the stage needs is not installed; the message says what to install.
            OptionError: There is no such stage.
        """
        self._require(name)
        if name in _GRAPHS:
            return self._graph_view(name)
        view: View = getattr(self, name)
        return view

    def _require(self, name: str) -> None:
        if name in self.stages:
            return
        own = self.target.name
        message = f"stage={name!r}: the stages for {own} are {', '.join(self.stages)}"
        for other in TARGETS:
            if name in stage_names(other):
                message += f"; {name!r} is one for {other}: inspect(target={other!r})"
        raise OptionError(message)

    @property
    def trace(self) -> TextView:
        """The trace: arguments and residual, retraction, or outputs of a kernel function."""
        return TextView(self.traced)

    @property
    def graph(self) -> GraphView:
        """The graph before the first pass; `stage` gives it after each pass, by the pass's name."""
        return self._graph_view("graph")

    @property
    def schedule(self) -> ScheduleView:
        """The order of all steps, on values."""
        *graphs, schedule, program = self._results.values()
        assert isinstance(graphs[-1], Graph)
        assert isinstance(schedule, Schedule)
        assert isinstance(program, Program)
        return ScheduleView(graphs[-1], schedule, program, f"{self.name}: schedule")

    @property
    def program(self) -> ProgramView:
        """The same steps on registers."""
        program = self._results["program"]
        assert isinstance(program, Program)
        return ProgramView(program, f"{self.name}: program")

    @property
    def cuda(self) -> TextView:
        """CUDA C, for the target `cuda`, without the functions that kernels have in common.

        `source.text` is the complete text, which is what is compiled.
        """
        self._require("cuda")
        return source_view(self.source.text)

    @property
    def cpu(self) -> TextView:
        """Show what is translated to LLVM IR, for the target `cpu`."""
        self._require("cpu")
        return TextView(self.source.text)

    @property
    def ptx(self) -> TextView:
        """NVIDIA's portable assembly, for the target `cuda`."""
        self._require("ptx")
        return TextView(f"{self.compiled.ptx}\n")

    @property
    def sass(self) -> TextView:
        """Disassembled machine code, for the target `cuda`."""
        self._require("sass")
        return TextView(self.disassembled.text)

    @property
    def resources(self) -> ResourcesView:
        """Registers, spills and instruction counts, for the target `cuda`."""
        self._require("resources")
        return ResourcesView((self.report,))

    def changes(self, stage: str | None = None) -> TextView:
        """Show what a graph pass did: calls it took away with `-`, calls it put in with `+`.

        Values have their names before the pass, and new ones numbers after those.

        Args:
            stage: A pass, by its name; None: all of them, in order.

        Raises:
            OptionError: There is no such pass.
        """
        if stage is not None and stage not in _PASSES:
            known = ", ".join(_PASSES)
            raise OptionError(f"stage={stage!r}: changes are those of a pass: {known}")
        names = _PASSES if stage is None else (stage,)
        return TextView("".join(self._changes(name) for name in names))

    def _changes(self, stage: str) -> str:
        before = self._graph_view(_GRAPHS[_GRAPHS.index(stage) - 1])
        lines = graph_changes(before.graph, self._graph_view(stage).graph)
        if len(lines) == 0:
            return f"{stage}: nothing changed\n"
        return without_repeats("\n".join([stage, *(f"  {line}" for line in lines)]))

    def _graph_view(self, name: str) -> GraphView:
        graph = self._results[name]
        assert isinstance(graph, Graph)
        return GraphView(graph, f"{self.name}: {name}")

    # -- what is computed once, and only when it is needed ----------------------------------------

    @cached_property
    def source(self) -> KernelSource:
        """The generated kernel."""
        return self._generated[0]

    @cached_property
    def compiled(self) -> CompiledText:
        """PTX, machine code and the compiler's log, as the CUDA backend compiles.

        Raises:
            BackendError: NVRTC is not installed.
            ResourceError: It needs too much shared memory, for every block size.
        """
        return self._fitting[1]

    @cached_property
    def _fitting(self) -> tuple[int, CompiledText]:
        return compile_source(self.source, self.arch)

    @cached_property
    def usage(self) -> KernelUsage:
        """Show what it takes of a multiprocessor, with the preferred block size that fits.

        Raises:
            BackendError: NVRTC is not installed.
        """
        resources = self.compiled.resources[self.name]
        return kernel_usage(self.source, resources, self._fitting[0], self.arch)

    @cached_property
    def disassembled(self) -> SassKernel:
        """The machine code as instructions.

        Raises:
            BackendError: NVRTC or nvdisasm is not installed.
        """
        return disassemble(self.compiled.cubin)[self.name]

    @cached_property
    def report(self) -> KernelReport:
        """The compiler's figures beside the scheduler's.

        Raises:
            BackendError: NVRTC or nvdisasm is not installed.
        """
        return KernelReport(
            name=self.name,
            arch=self.arch,
            dtype=self.spec.graph.dtype,
            num_values=self.source.num_registers,
            block_size=self._fitting[0],
            resources=self.compiled.resources[self.name],
            sass=self.disassembled,
        )

    @cached_property
    def _generated(self) -> tuple[KernelSource, dict[str, StageResult]]:
        observed: dict[str, StageResult] = {}
        source = compile_kernel(self.spec, self.target, observed.__setitem__)
        return source, observed

    @cached_property
    def _results(self) -> dict[str, StageResult]:
        """Results of each pass; the pipeline's input and its program under their stages' names."""
        (_, graph), *passes, (_, program) = self._generated[1].items()
        return {"graph": graph, **dict(passes), "program": program}
