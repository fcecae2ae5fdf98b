"""What the tests of the command line share."""

from pathlib import Path

import pytest

import caspar
from caspar.io import write_bal
from tests.cli.fake_solver import FakeSolver
from tests.examples import make_bal_problem


@pytest.fixture
def solver(monkeypatch: pytest.MonkeyPatch) -> type[FakeSolver]:
    """The solver that does nothing, in place of the real one."""
    monkeypatch.setattr(caspar, "Solver", FakeSolver)
    monkeypatch.setattr(FakeSolver, "made", [])
    return FakeSolver


@pytest.fixture(scope="session")
def problem_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small problem; its name would be markup to rich."""
    path = tmp_path_factory.mktemp("bal") / "problem [1].txt"
    write_bal(path, make_bal_problem())
    return path
