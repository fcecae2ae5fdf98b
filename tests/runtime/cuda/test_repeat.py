"""Who repeats the launches of a large loop, and what is said where it is the host."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import caspar
from caspar.runtime.backend import SequenceLoop
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.cpu.launch import CpuSequence
from caspar.runtime.cuda.loop import repeat
from caspar.runtime.cuda.loop.repeat import repeated_loop
from tests.solver.linear.linear_cases import MIXES, problem_of

FLAG = np.zeros(1)
STREAM, LAUNCHES = object(), [object()]
MIX = "bundle adjustment"


class KeptLoop:
    """Of a library that works."""

    remarks = ()

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments


class RefusedLoop:
    """Of a driver that refuses."""

    def __init__(self, *arguments: Any) -> None:
        raise RuntimeError("CUDA_ERROR_NOT_SUPPORTED: operation not supported\nand more")


def chosen(monkeypatch: pytest.MonkeyPatch, loop: Any, problem: str | None = None) -> Any:
    """The loop with a library and a machine made up here."""
    module = None if loop is None else SimpleNamespace(GraphLoop=loop)
    monkeypatch.setitem(sys.modules, repeat.GRAPH_MODULE, module)
    monkeypatch.setattr(repeat, "graph_loop_problem", lambda: problem)
    return repeated_loop(STREAM, LAUNCHES, FLAG, lambda: CpuSequence([]))


def test_the_device_repeats_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = chosen(monkeypatch, KeptLoop)
    assert loop.arguments == (STREAM, LAUNCHES, FLAG)
    assert loop.remarks == ()


def test_the_host_polls_where_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is not imported then."""
    loop = chosen(monkeypatch, None, "there is no cuda-core >= 1.0")
    assert isinstance(loop, SequenceLoop)
    assert loop.remarks == (
        "The host polls PCG every few iterations, as it is not one CUDA graph: "
        "there is no cuda-core >= 1.0.",
    )


def test_the_host_polls_where_the_driver_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = chosen(monkeypatch, RefusedLoop)
    assert isinstance(loop, SequenceLoop)
    (remark,) = loop.remarks
    assert remark.endswith(
        "CUDA makes no such graph: RuntimeError: CUDA_ERROR_NOT_SUPPORTED: operation not supported."
    )


def test_the_result_remarks_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = CpuBackend.loop

    def polled(backend: CpuBackend, phases: Any, flag: Any, scalars: Any) -> SequenceLoop:
        loop: Any = usual(backend, phases, flag, scalars)
        return SequenceLoop(loop.sequence, loop.flag, ("polled, for a reason",))

    monkeypatch.setattr(CpuBackend, "loop", polled)
    solver = caspar.Solver(MIXES[MIX], backend="cpu", linear_solver="schur_pcg")
    assert "polled, for a reason" in solver.solve(problem_of(MIX)[1]).remarks
