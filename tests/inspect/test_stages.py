"""Every stage of a kernel can be shown, and only what is asked for is computed."""

from dataclasses import replace
from itertools import pairwise

import pytest

from caspar.codegen.cuda.header import HEADER
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.errors import BackendError, OptionError
from caspar.inspect import (
    FactorInspection,
    GraphView,
    KernelInspection,
    TextView,
    inspect_factor,
    stage_names,
    stages,
)
from caspar.ir.text import parse_graph, parse_program
from caspar.passes.pipeline import GRAPH_STAGES
from tests.support_problems import sighting

GRAPHS = ("graph", *(name for name, _ in GRAPH_STAGES))


@pytest.fixture(scope="module")
def kernel() -> KernelInspection:
    return inspect_factor(sighting)["linearize"]


@pytest.fixture(scope="module")
def cpu_kernel() -> KernelInspection:
    return inspect_factor(sighting, target="cpu")["linearize"]


def refuse(*_: object) -> None:
    raise BackendError("asked for")


def test_stages_are_those_of_the_pipeline() -> None:
    assert stage_names("cuda") == (
        *("trace", *GRAPHS, "schedule", "program"),
        *("cuda", "ptx", "sass", "resources"),
    )
    assert stage_names("cpu") == ("trace", *GRAPHS, "schedule", "program", "cpu")
    assert len(set(stage_names("cuda"))) == len(stage_names("cuda"))


@pytest.mark.parametrize("name", stage_names("cuda"))
def test_every_stage_prints(kernel: KernelInspection, name: str) -> None:
    view = kernel.stage(name)
    assert str(view) == repr(view)
    assert str(view).endswith("\n")
    assert len(str(view).splitlines()) > 3


@pytest.mark.parametrize("name", ["trace", "graph", "schedule", "program", "cuda", "ptx", "sass"])
def test_stages_are_attributes_too(kernel: KernelInspection, name: str) -> None:
    assert getattr(kernel, name) == kernel.stage(name)


def test_resources_are_an_attribute_too(kernel: KernelInspection) -> None:
    view = kernel.resources
    assert view.reports == (kernel.report,)


def test_the_source_is_the_compilers(
    kernel: KernelInspection, cpu_kernel: KernelInspection
) -> None:
    for inspected in (kernel, cpu_kernel):
        assert inspected.source == compile_kernel(inspected.spec, inspected.target)
    assert str(cpu_kernel.cpu) == cpu_kernel.source.text
    assert ".target sm_90" in str(kernel.ptx)
    assert "LDG.E" in str(kernel.sass)


def test_cuda_is_shown_without_the_common_header(kernel: KernelInspection) -> None:
    note, own = str(kernel.cuda).split("\n", 1)
    common = kernel.source.text.removesuffix(own)
    assert note.startswith(f"// {len(common.splitlines())} lines of common functions")
    assert common.startswith(HEADER)
    assert "kernel.source.text" in note
    assert own.startswith('extern "C" __global__')
    assert common + own == kernel.source.text


@pytest.mark.parametrize("name", GRAPHS)
def test_printed_graphs_can_be_read_back(kernel: KernelInspection, name: str) -> None:
    view = kernel.stage(name)
    assert isinstance(view, GraphView)
    assert parse_graph(str(view)) == view.graph


def test_the_first_graph_is_the_kernels_and_the_program_the_last_result(
    kernel: KernelInspection,
) -> None:
    first, program = kernel.graph, kernel.program
    assert first.graph == kernel.spec.graph
    assert parse_program(str(program)) == program.program
    assert program.program.num_registers == kernel.source.num_registers


def test_the_schedule_prints_a_step_for_each_instruction(kernel: KernelInspection) -> None:
    schedule, program = kernel.schedule, kernel.program
    steps = str(schedule).splitlines()[1:]
    assert len(steps) == len(program.program.instructions)
    ops = [line.partition(" = ")[2].split()[0] for line in steps if " = " in line]
    assert ops == [i.op.name.lower() for i in program.program.instructions if i.outputs]


def test_pictures_show_themselves_in_a_notebook(kernel: KernelInspection) -> None:
    for view in (kernel.graph, kernel.schedule, kernel.program):
        assert view._repr_svg_().startswith("<svg ")
    for text in (kernel.cuda, kernel.resources):
        assert text._repr_html_().startswith("<pre>")
    assert "&lt;" in TextView("a < b")._repr_html_()


def test_the_schedule_can_be_drawn_after_any_step(kernel: KernelInspection) -> None:
    view = kernel.schedule
    num_steps = len(view.schedule.steps)
    assert f"0 of {num_steps} steps" in view.svg(after=0)
    assert view.svg(after=num_steps) == view.svg()
    for after in (-1, num_steps + 1):
        with pytest.raises(OptionError, match=rf"after={after}: must be between 0 and {num_steps}"):
            view.svg(after=after)


def test_a_single_output_may_be_a_string(kernel: KernelInspection) -> None:
    for view in (kernel.graph, kernel.schedule):
        assert view.svg(outputs="pose__diagonal") == view.svg(outputs=["pose__diagonal"])
        with pytest.raises(OptionError, match="outputs: 'pose__diagona' is not written"):
            view.svg(outputs="pose__diagona")
    for outputs in ("pose__diagonal", ["pose__diagonal"]):
        with pytest.raises(OptionError, match="a program is drawn as a whole"):
            kernel.program.svg(outputs=outputs)


def test_an_unknown_stage_names_those_that_exist(
    kernel: KernelInspection, cpu_kernel: KernelInspection
) -> None:
    with pytest.raises(OptionError, match=r"stage='nothing': the stages for cuda are trace, graph"):
        kernel.stage("nothing")
    with pytest.raises(OptionError, match=r"for cpu .*; 'ptx' .*: inspect\(target='cuda'\)$"):
        cpu_kernel.ptx  # noqa: B018
    for name in ("cpu", "source"):
        with pytest.raises(OptionError, match=r"the stages for cuda are trace"):
            kernel.stage(name)
    with pytest.raises(OptionError, match=r"for cuda .*; 'cpu' .*: inspect\(target='cpu'\)$"):
        kernel.cpu  # noqa: B018


@pytest.mark.parametrize("name", ["graph", "negations", "schedule", "program"])
def test_an_origin_is_printed_where_it_changes(kernel: KernelInspection, name: str) -> None:
    origins = [line.partition("  # ")[2] for line in str(kernel.stage(name)).splitlines()]
    shown = [origin for origin in origins if origin != ""]
    assert 1 < len(shown) < len(origins) / 2
    assert all(before != after for before, after in pairwise(shown))
    assert any("turned" in origin or "sighting" in origin for origin in shown)


def test_text_stages_need_no_compiler(
    kernel: KernelInspection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "compile_source", refuse)
    fresh = replace(kernel)
    assert all(str(fresh.stage(name)) for name in ("trace", *GRAPHS, "schedule", "program", "cuda"))
    with pytest.raises(BackendError, match="asked for"):
        fresh.ptx  # noqa: B018


def test_ptx_needs_no_disassembler(
    kernel: KernelInspection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "disassemble", refuse)
    fresh = replace(kernel)
    assert str(fresh.ptx)
    with pytest.raises(BackendError, match="asked for"):
        fresh.sass  # noqa: B018


def test_a_kernel_says_what_it_is(kernel: KernelInspection) -> None:
    assert repr(kernel).startswith("kernel sighting__linearize for cuda; stages: trace, graph, ")


def test_both_targets_have_their_own_passes() -> None:
    found: dict[str, FactorInspection] = {
        target: inspect_factor(sighting, target=target) for target in TARGETS
    }
    assert {target: inspection["score"].target.name for target, inspection in found.items()} == {
        target: target for target in TARGETS
    }
