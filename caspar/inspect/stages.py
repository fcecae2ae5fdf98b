"""A kernel at every stage of the compiler.

    trace -> graph -> each graph pass -> schedule -> program -> cuda -> ptx -> sass, resources
                                                             -> cpu

Each stage is computed when it is first looked at, and what it needs only once. Nothing needs a
GPU; `ptx`, `sass` and `resources` need the packages of the extra `inspect`.
"""

from dataclasses import dataclass, field
from functools import cached_property

from caspar.codegen.source import KernelSource
from caspar.driver import Target, compile_kernel
from caspar.errors import OptionError
from caspar.inspect.resources import KernelReport, ResourcesView
from caspar.inspect.views import GraphView, ProgramView, ScheduleView, TextView
from caspar.ir.graph import Graph
from caspar.ir.program import Program
from caspar.memory.kernel import KernelSpec
from caspar.passes.pipeline import GRAPH_STAGES, StageResult
from caspar.passes.steps import Schedule
from caspar.runtime.nvrtc import CompiledText, compile_kernel_text
from caspar.runtime.sass import SassKernel, disassemble

View = TextView | GraphView | ScheduleView | ProgramView | ResourcesView

_MACHINE_STAGES = {"cuda": ("ptx", "sass", "resources"), "cpu": ()}
"""Stages after the source text, by target."""


def stage_names(target: str) -> tuple[str, ...]:
    """The stages of a target, first to last.

    Args:
        target: `cuda` or `cpu`.
    """
    passes = (name for name, _ in GRAPH_STAGES)
    return ("trace", "graph", *passes, "schedule", "program", target, *_MACHINE_STAGES[target])


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
        if name not in self.stages:
            known = ", ".join(self.stages)
            raise OptionError(f"stage={name!r}: the stages for {self.target.name} are {known}")
        if name == "trace":
            return TextView(self.traced)
        if name == self.target.name:
            return TextView(self.source.text)
        if name == "ptx":
            return TextView(f"{self.compiled.ptx}\n")
        if name == "sass":
            return TextView(self.disassembled.text)
        if name == "resources":
            return ResourcesView((self.report,))
        return self._view_of_result(name)

    @property
    def trace(self) -> View:
        """What was traced: arguments and residual, or retraction."""
        return self.stage("trace")

    @property
    def graph(self) -> View:
        """The graph before the first pass; `stage` gives it after each pass, by the pass's name."""
        return self.stage("graph")

    @property
    def schedule(self) -> View:
        """The order of all steps, on values."""
        return self.stage("schedule")

    @property
    def program(self) -> View:
        """The same steps on registers."""
        return self.stage("program")

    @property
    def cuda(self) -> View:
        """CUDA C, for the target `cuda`."""
        return self.stage("cuda")

    @property
    def cpu(self) -> View:
        """Python for Numba, for the target `cpu`."""
        return self.stage("cpu")

    @property
    def ptx(self) -> View:
        """NVIDIA's portable assembly, for the target `cuda`."""
        return self.stage("ptx")

    @property
    def sass(self) -> View:
        """Disassembled machine code, for the target `cuda`."""
        return self.stage("sass")

    @property
    def resources(self) -> View:
        """Registers, spills and instruction counts, for the target `cuda`."""
        return self.stage("resources")

    def _view_of_result(self, name: str) -> View:
        result, title = self._results[name], f"{self.name}: {name}"
        if isinstance(result, Graph):
            return GraphView(result, title)
        program = self._results["program"]
        assert isinstance(program, Program)
        if isinstance(result, Schedule):
            graphs = [entry for entry in self._results.values() if isinstance(entry, Graph)]
            return ScheduleView(graphs[-1], result, program, title)
        return ProgramView(program, title)

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
        """
        return compile_kernel_text(self.source.text, self.arch)

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
            block_size=self.source.block_size,
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
        """What each pass gave; the pipeline's input and its program under their stages' names."""
        (_, graph), *passes, (_, program) = self._generated[1].items()
        return {"graph": graph, **dict(passes), "program": program}
