"""Solves in Rerun."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import caspar
from caspar.errors import MissingPackageError
from caspar.solver.result.result import IterationRecord
from caspar.version import install_command
from tests.examples import make_bal_problem


def arrays() -> dict[str, Any]:
    problem = make_bal_problem(num_cameras=4, num_points=30)
    observed = {
        "cam": problem.camera_index,
        "point": problem.point_index,
        "pixel": problem.pixels,
    }
    return {"Cam": problem.cameras, "Point": problem.points, "snavely": observed}


def test_iterations_are_logged(tmp_path: Path) -> None:
    rerun = pytest.importorskip("rerun")
    solver = caspar.Solver(caspar.bundle_adjustment.snavely, backend="cpu")
    plain = solver.solve(arrays(), max_iterations=4)
    rerun.init("caspar_test")
    rerun.save(tmp_path / "solve.rrd")
    logger = caspar.rerun.Logger(solver, arrays())
    result = solver.solve(arrays(), on_iteration=logger, max_iterations=4)
    rerun.disconnect()
    assert [one.cost for one in result.iterations] == [one.cost for one in plain.iterations]
    assert (tmp_path / "solve.rrd").stat().st_size > 5000


class Stand:
    """Stands for rerun: notes what is logged."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.logged: dict[str, list[Any]] = {}

    def set_time(self, timeline: str, *, sequence: int) -> None:
        assert timeline == "iteration"
        self.times.append(sequence)

    def log(self, path: str, what: Any) -> None:
        self.logged.setdefault(path, []).append(what)

    def __getattr__(self, name: str) -> Any:
        return lambda *positional, **named: (name, positional, named)


def test_what_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand()
    monkeypatch.setitem(sys.modules, "rerun", stand)
    solver = caspar.Solver(caspar.bundle_adjustment.snavely, backend="cpu")
    logger = caspar.rerun.Logger(solver, arrays(), path="here")
    records: list[IterationRecord] = []

    def both(record: IterationRecord) -> None:
        logger(record)
        records.append(record)

    solver.solve(arrays(), on_iteration=both, max_iterations=4)
    assert stand.times == list(range(len(records) + 1))
    num_states = 1 + sum(record.step_accepted for record in records)
    assert {path: len(found) for path, found in stand.logged.items() if "scene" in path} == {
        "here/scene/Cam": num_states,
        "here/scene/Point": num_states,
    }
    costs = [found[1][0] for found in stand.logged["here/course/cost"]]
    assert costs[1:] == [record.cost for record in records]
    name, (points,), named = stand.logged["here/scene/Point"][-1]
    assert (name, points.shape, named["colors"].shape) == ("Points3D", (30, 3), (30, 3))


def test_without_rerun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    solver = caspar.Solver(caspar.bundle_adjustment.snavely, backend="cpu")
    with pytest.raises(MissingPackageError, match=re.escape(install_command("rerun"))):
        caspar.rerun.Logger(solver, arrays())
