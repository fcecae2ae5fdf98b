"""A kernel at every stage of the compiler.

    trace -> graph -> each graph pass -> schedule -> program -> cuda -> ptx -> sass, resources
                                                             -> cpu

Each stage is computed when it is first looked at, and what it needs only once. Nothing needs a
GPU; `ptx`, `sass` and `resources` need the packages of the extra `inspect`.
"""

from collections.abc import Mapping
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
from caspar.passes.pipeline import GRAPH_STAGES, StageResult, compile_graph
from caspar.runtime.nvidia.nvrtc import CompiledText, compile_source
from caspar.runtime.nvidia.occupancy import KernelUsage, kernel_usage
from caspar.runtime.nvidia.sass import SassKernel, disassemble

View = TextView | GraphView | ScheduleView | ProgramView | ResourcesView
"""The view of a stage; its class depends on the kind of the stage."""

_PASSES = tuple(name for name, _ in GRAPH_STAGES)
_GRAPHS = ("graph", *_PASSES)
_MIDDLE = (*_GRAPHS, "schedule", "program")

_Results = Mapping[str, StageResult]
"""The result of each stage in `_MIDDLE`."""


def _named(observed: _Results) -> _Results:
    """The pipeline's results; its input and its program under their stages' names."""
    (_, graph), *passes, (_, program) = observed.items()
    return {"graph": graph, **dict(passes), "program": program}


def _middle_view(
    name: str, results: _Results, stage: str
) -> GraphView | ScheduleView | ProgramView:
    result, title = results[stage], f"{name}: {stage}"
    if isinstance(result, Graph):
        return GraphView(result, title)
    if isinstance(result, Program):
        return ProgramView(result, title)
    last, program = results[_PASSES[-1]], results["program"]
    assert isinstance(last, Graph)
    assert isinstance(program, Program)
    return ScheduleView(last, result, program, title)


def _changes(results: _Results, stage: str) -> str:
    before, after = (results[_GRAPHS[_GRAPHS.index(stage) - past]] for past in (1, 0))
    assert isinstance(before, Graph)
    assert isinstance(after, Graph)
    lines = graph_changes(before, after)
    if len(lines) == 0:
        return f"{stage}: nothing changed\n"
    return without_repeats("\n".join([stage, *(f"  {line}" for line in lines)]))


def stage_names(target: str) -> tuple[str, ...]:
    """The stages of a target, first to last.

    Args:
        target: `cuda` or `cpu`.
    """
    return ("trace", *_MIDDLE, target, *TARGETS[target].machine_stages)


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
        if name in _MIDDLE:
            return _middle_view(self.name, self._results, name)
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
        view = _middle_view(self.name, self._results, "graph")
        assert isinstance(view, GraphView)
        return view

    @property
    def schedule(self) -> ScheduleView:
        """The order of all steps, on values."""
        view = _middle_view(self.name, self._results, "schedule")
        assert isinstance(view, ScheduleView)
        return view

    @property
    def program(self) -> ProgramView:
        """The same steps on registers."""
        view = _middle_view(self.name, self._results, "program")
        assert isinstance(view, ProgramView)
        return view

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
        return TextView("".join(_changes(self._results, name) for name in names))

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
    def _results(self) -> _Results:
        return _named(self._generated[1])


@dataclass(frozen=True)
class ProgramInspection:
    """One program of a kernel that has several, at every stage of the middle end.

    Attributes:
        input: The graph before the first pass.
    """

    name: str
    input: Graph
    target: Target

    def __repr__(self) -> str:
        return f"program {self.name} for {self.target.name}; stages: {', '.join(_MIDDLE)}"

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of its stages, first to last."""
        return _MIDDLE

    def stage(self, name: str) -> GraphView | ScheduleView | ProgramView:
        """The program at one stage: `graph`, after a pass, `schedule`, or on registers: `program`.

        Raises an `OptionError` if there is no such stage.
        """
        if name not in _MIDDLE:
            raise OptionError(f"stage={name!r}: the stages are {', '.join(_MIDDLE)}")
        return _middle_view(self.name, self._results, name)

    def changes(self, stage: str) -> TextView:
        """Show what a graph pass did: calls it took away with `-`, calls it put in with `+`.

        Raises:
            OptionError: There is no such pass.
        """
        if stage not in _PASSES:
            raise OptionError(f"stage={stage!r}: changes are those of a pass: {', '.join(_PASSES)}")
        return TextView(_changes(self._results, stage))

    @property
    def num_registers(self) -> int:
        """Values that are alive at the same time, as the scheduler predicts."""
        program = self._results["program"]
        assert isinstance(program, Program)
        return program.num_registers

    @cached_property
    def _results(self) -> _Results:
        observed: dict[str, StageResult] = {}
        compile_graph(self.input, self.target.costs[self.input.dtype], observed.__setitem__)
        return _named(observed)
