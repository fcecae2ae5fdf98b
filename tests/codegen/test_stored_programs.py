"""Programs in the cache: the same sources as without it, also for a renamed factor."""

from pathlib import Path
from typing import Any

import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.codegen.targets import TARGETS
from caspar.driver import MIN_STORED_CALLS, SolverDesign, generate_sources, stored_program
from caspar.frontend.factors.factor import Factor
from caspar.ir.graph import Graph
from caspar.options import Precision
from caspar.passes.pipeline import compile_graph
from tests.support_problems import PROBLEMS, Way


@pytest.fixture
def scheduled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the large graphs that are scheduled from now on, with an empty cache."""
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path / "cache"))
    sizes: list[int] = []

    def counted(graph: Graph, *arguments: Any) -> Any:
        if len(graph.calls) >= MIN_STORED_CALLS:
            sizes.append(len(graph.calls))
        return compile_graph(graph, *arguments)

    monkeypatch.setattr("caspar.passes.pipeline.compile_graph", counted)
    return sizes


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_sources_are_the_same(scheduled: list[int], target: str) -> None:
    problem = PROBLEMS["bundle_adjustment"]()
    form = problem.form(Way(target))
    design = SolverDesign(problem.factors, problem.nodes, Precision.MIXED, TARGETS[target], form)
    wanted = generate_sources(design)
    scheduled.clear()
    first = generate_sources(design, program_of=stored_program)
    assert len(scheduled) > 0
    scheduled.clear()
    second = generate_sources(design, program_of=stored_program)
    assert len(scheduled) == 0
    assert first == second == wanted


def test_a_renamed_factor_is_not_scheduled_again(scheduled: list[int]) -> None:
    caspar.Solver([snavely], backend="cpu").compile()
    assert len(scheduled) > 0
    scheduled.clear()
    renamed = Factor(snavely.function, "renamed", snavely.local_names)
    caspar.Solver([renamed], backend="cpu").compile()
    assert len(scheduled) == 0
