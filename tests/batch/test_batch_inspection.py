"""What the kernel of a batch is made of, at every stage."""

import pytest

import caspar
from caspar.errors import OptionError
from tests.batch.batch_cases import curves
from tests.batch.test_batch_teams import spectra


def test_programs_of_a_thread_go_through_all_passes() -> None:
    case = curves()
    solver = caspar.BatchSolver(case.factors, backend="cpu")
    found = solver.inspect(case.arrays, target="cuda")
    assert list(found) == [
        *("decay score", "decay linearize", "near score", "near linearize"),
        *("step", "policy", "fade"),
    ]
    assert "a thread a problem" in repr(found)
    program = found["decay linearize"]
    assert program.stages[0] == "graph"
    assert "sincos" in program.stages
    assert "exp" in str(program.stage("program"))
    assert "exp" in str(program.stage("schedule"))
    assert str(program.changes("flatten")).startswith("flatten")
    assert program.num_registers > 3
    assert "decay: residual" in str(found.text)
    with pytest.raises(OptionError, match="the stages are graph, powers"):
        program.stage("ptx")


def test_resources_of_a_warp() -> None:
    case = spectra()
    solver = caspar.BatchSolver(case.factors, backend="cpu")
    found = solver.inspect(case.arrays, target="cuda")
    assert list(found) == ["reading score", "reading rows", "damp", "promise", "policy", "fade"]
    assert "a warp a problem" in repr(found)
    (report,) = found.resources.reports
    assert report.resources.shared_bytes > 0
    assert "solve_problems" in str(found.resources)
    on_host = solver.inspect(case.arrays)
    with pytest.raises(OptionError, match="only kernels for 'cuda'"):
        _ = on_host.resources
    with pytest.raises(OptionError, match="target='tpu'"):
        solver.inspect(case.arrays, target="tpu")
