"""Inspect the kernel of a batch: its programs at every stage, its text, its resources.

Input: the shape of a batch. Output: a `BatchInspection`. Each program is compiled as those of other
kernels are, passes, schedule and registers; the kernel has loops around them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from caspar.batch.generate import programs, step_program
from caspar.batch.generate.kernel import batch_kernel
from caspar.batch.generate.policy_program import policy_graph
from caspar.batch.generate.shape import BatchShape, Team
from caspar.codegen.source import KernelSource
from caspar.codegen.targets import TARGETS, Target
from caspar.errors import OptionError
from caspar.inspect.resources import KernelReport, ResourcesView
from caspar.inspect.stages import ProgramInspection
from caspar.inspect.views import TextView, source_view
from caspar.ir.graph import Graph
from caspar.runtime.nvidia.nvrtc import compile_source
from caspar.runtime.nvidia.sass import disassemble


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
        """The source, without the functions that CUDA kernels have in common."""
        return source_view(self.source.text)

    @cached_property
    def resources(self) -> ResourcesView:
        """Registers, spills and instruction counts of the kernel, for the target `cuda`.

        The peak is that of the program with the most values.

        Raises:
            BackendError: NVRTC or nvdisasm is not installed.
            OptionError: The target is another one.
        """
        if "resources" not in self.target.machine_stages:
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


def inspect_batch(
    shape_for: Callable[[str], BatchShape], target: str, arch: str
) -> BatchInspection:
    """The programs of the kernel that solves problems of a shape, which depends on the target.

    Raises:
        OptionError: There is no such target.
    """
    if target not in TARGETS:
        raise OptionError(f"target={target!r}: must be one of {', '.join(map(repr, TARGETS))}")
    shape = shape_for(target)
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
    found["policy"] = policy_graph(
        shape.storage, is_bounded=shape.is_bounded, ends_by_rises=shape.num_unknowns == 1
    )
    found["fade"] = step_program.fade_graph(shape)
    return BatchInspection(
        shape,
        TARGETS[target],
        arch,
        {name: ProgramInspection(name, graph, TARGETS[target]) for name, graph in found.items()},
    )
