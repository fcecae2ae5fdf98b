"""Drawings are valid SVG and hold what they should; `test_determinism` compares their bytes."""

import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from caspar.errors import OptionError
from caspar.inspect.pictures import draw_graph as module
from caspar.inspect.pictures.draw_graph import draw_graph, draw_progress
from caspar.inspect.pictures.draw_program import draw_program
from caspar.inspect.pictures.svg import Drawing
from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.ops import Op
from tests.inspect.cases import fused_products, paper_figure, scheduled
from tests.ir.random_graphs import random_graph

SVG = "{http://www.w3.org/2000/svg}"
LIVE, VIRTUAL, LATEST = "#F8CECC", "#DAE8FC", "#D5E8D4"


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter(f"{SVG}text")]


def shapes(svg: str) -> tuple[int, int]:
    """Numbers of boxes and of rounded shapes, without those of the legend."""
    titled = [
        rect for rect in parsed(svg).iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None
    ]
    rounded = sum("rx" in rect.attrib for rect in titled)
    return len(titled) - rounded, rounded


def fills(svg: str) -> Counter[str]:
    return Counter(
        rect.attrib["fill"]
        for rect in parsed(svg).iter(f"{SVG}rect")
        if rect.find(f"{SVG}title") is not None
    )


def test_calls_are_boxes_and_values_are_rounded() -> None:
    graph = paper_figure()
    svg = draw_graph(graph, "figure")
    num_literals = sum(call.op is Op.CONST for call in graph.calls)
    assert shapes(svg) == (len(graph.calls) - num_literals, graph.num_values - num_literals)
    assert {"read x[0]", "store y[0]", "sum", "sin", "cos", "v0", "v1"} <= set(texts(svg))
    assert texts(svg)[0] == "figure"


def test_literals_and_powers_stand_in_the_call() -> None:
    builder = GraphBuilder(DType.FLOAT32)
    (x,) = builder.read("x", 0, 1)
    square = builder.call(Op.PROD, [x, x, builder.const(0.25)])[0]
    builder.store("y", 0, [builder.sum([square, builder.const(2.0)])])
    svg = draw_graph(builder.build(), "powers")
    assert {"·^2, 0.25", "·, 2"} & set(texts(svg)) == {"·^2, 0.25", "·, 2"}
    assert shapes(svg) == (4, 3)


def test_a_schedule_shows_registers_states_and_order() -> None:
    case = scheduled(fused_products())
    svg = draw_progress(case.after(case.num_steps - 1), "sum")
    assert fills(svg)[LATEST] >= 1
    assert fills(svg)[VIRTUAL] == 4
    assert any(text.endswith(" r0") for text in texts(svg))
    assert {"1", "2", "3"} <= set(texts(svg))
    assert "stroke-dasharray" in svg
    assert fills(draw_progress(case.after(0), "sum"))[LIVE] == 0


def test_the_program_shows_every_instruction_and_its_peak() -> None:
    case = scheduled(fused_products())
    svg = draw_program(case.program, "sum")
    lines = texts(svg)
    assert f"pressure, peak {case.program.num_registers}" in lines
    assert sum("= fma" in line or "= fnma" in line for line in lines) == 2
    num_written = sum(len(entry.outputs) for entry in case.program.instructions)
    circles = len(list(parsed(svg).iter(f"{SVG}circle")))
    assert circles == num_written + 1  # and the legend's


def test_long_instructions_are_cut_and_complete_under_the_pointer() -> None:
    builder = GraphBuilder(DType.FLOAT32)
    name = "a_rather_long_name_of_an_argument_that_somebody_may_have_chosen"
    builder.store("y", 0, builder.read(name, 0, 4))
    svg = draw_program(scheduled(builder.build()).program, "long")
    assert all(len(line) <= 64 for line in texts(svg)[1:])
    assert any(name in (title.text or "") for title in parsed(svg).iter(f"{SVG}title"))


def test_only_what_some_outputs_need_is_drawn() -> None:
    builder = GraphBuilder(DType.FLOAT32)
    a, b = builder.read("x", 0, 2)
    builder.store("first", 0, [builder.prod([a, b])])
    builder.store("second", 0, [builder.neg(a)])
    graph = builder.build()
    assert "neg" not in texts(draw_graph(graph, "first", ["first"]))
    assert "prod" not in texts(draw_graph(graph, "second", ["second"]))
    assert draw_graph(graph, "both", ["first", "second"]) == draw_graph(graph, "both")
    with pytest.raises(
        OptionError, match="'third' is not written by this kernel; it writes first, second"
    ):
        draw_graph(graph, "third", ["third"])


def test_a_graph_too_large_to_draw_names_its_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CALLS", 3)
    with pytest.raises(OptionError, match=r"more than the 3 that are drawn; name some .*: y"):
        draw_graph(paper_figure(), "large")


def test_text_is_escaped() -> None:
    drawing = Drawing()
    drawing.text((0.0, 0.0), "a < b & c", title='"<>"')
    drawing.rectangle((0.0, 0.0), (1.0, 1.0), "none", title="x > y")
    svg = drawing.finish((10.0, 10.0), "<&>")
    root = parsed(svg)
    assert [title.text for title in root.iter(f"{SVG}title")] == ["<&>", '"<>"', "x > y"]
    assert texts(svg) == ["a < b & c"]


@pytest.mark.parametrize("seed", range(3))
def test_random_graphs_can_be_drawn(seed: int) -> None:
    case = scheduled(random_graph(seed, 40, DType.FLOAT32))
    for svg in (
        draw_graph(case.graph, "graph"),
        draw_progress(case.after(case.num_steps // 2), "half"),
        draw_program(case.program, "program"),
    ):
        width, height = (float(parsed(svg).attrib[name]) for name in ("width", "height"))
        assert 100.0 < width < 20_000.0
        assert 100.0 < height < 20_000.0
