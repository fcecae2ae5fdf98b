"""Processes that are forked after solves, with whatever threads and factors their parent had."""

import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks on this system")


class Place(sf.V3): ...


class Gap(sf.V3): ...


@caspar.factor
def stretch(
    first: Annotated[Place, caspar.TunableShared],
    second: Annotated[Place, caspar.TunableShared],
    gap: Annotated[Gap, caspar.ConstSequential],
) -> sf.V3:
    moved = second - first
    return sf.V3(moved[0] + 0.1 * moved[1] ** 2, moved[1], moved[2]) - gap


@caspar.factor
def tie(
    place: Annotated[Place, caspar.TunableShared], at: Annotated[Gap, caspar.ConstSequential]
) -> sf.V3:
    return place - at


def cube(side: int) -> dict[str, Any]:
    """Arrays of a cube of places, whose neighbours are tied together: its factor is filled."""
    random = np.random.default_rng(side)
    number = np.arange(side**3).reshape(side, side, side)
    along = [np.moveaxis(number, axis, 0) for axis in range(3)]
    first = np.concatenate([line[:-1].ravel() for line in along])
    second = np.concatenate([line[1:].ravel() for line in along])
    places = random.standard_normal((side**3, 3))
    return {
        "Place": places,
        "stretch": {
            "first": first,
            "second": second,
            "gap": 0.1 * random.standard_normal((len(first), 3)),
        },
        "tie": {"place": np.arange(side**3), "at": random.standard_normal((side**3, 3))},
    }


SPARSE: dict[str, Any] = {"backend": "cpu", "precision": "float64", "linear_solver": "sparse"}
CHILD_S = 60
"""Seconds after which the system ends a child."""


class Parent:
    """Solves in this process, and the same in forks of it."""

    def __init__(self, **choices: Any) -> None:
        self.solver = caspar.Solver([stretch, tie], **choices)
        self.result = self.solver.solve(cube(7))
        self.errors = self._errors(self.result)
        self.slopes = self._slopes(self.result)

    def _errors(self, result: caspar.SolveResult) -> Any:
        return self.solver.covariance(result, {"Place": [0, 5]}).standard_errors("Place")

    def _slopes(self, result: caspar.SolveResult) -> Any:
        ones = np.ones_like(result.values["Place"])
        return self.solver.gradient(result, {"Place": ones})["tie"]["at"]

    def solve(self) -> None:
        """The structure of the parent, whose factorisation is kept."""
        assert_close(self.solver.solve(cube(7)), self.result)

    def covariance_and_gradient(self) -> None:
        """Of the parent's result, of the child's, and of another structure."""
        for result in (self.result, self.solver.solve(cube(7))):
            np.testing.assert_allclose(self._errors(result), self.errors, rtol=1e-6)
            np.testing.assert_allclose(self._slopes(result), self.slopes, rtol=1e-6, atol=1e-9)
        other = self.solver.solve(cube(6))
        assert other.status.is_success
        assert np.isfinite(self._errors(other)).all()
        assert np.isfinite(self._slopes(other)).all()

    def other_structure(self) -> None:
        """Another structure, the parent's again, and another solver."""
        assert self.solver.solve(cube(6)).status.is_success
        self.solve()
        assert_close(caspar.Solver([stretch, tie], **SPARSE).solve(cube(7)), self.result)

    def fork(self) -> None:
        """The child of a child."""
        in_child(self.solve)
        self.solve()


def assert_close(found: caspar.SolveResult, expected: caspar.SolveResult) -> None:
    """The same optimum by the same solver; says so if it was another library's."""
    assert found.status == expected.status
    assert found.linear_solver == expected.linear_solver
    np.testing.assert_allclose(found.final_cost, expected.final_cost, rtol=1e-9)
    assert [remark for remark in found.remarks if "forked" in remark] != []
    assert [remark for remark in expected.remarks if "forked" in remark] == []


def in_child(work: Any) -> None:
    """Run work in a fork, which the system ends if it hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_S)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code != -signal.SIGALRM, f"{work.__name__} hangs in a fork"
    assert code == 0, f"{work.__name__} fails in a fork"


def main() -> None:
    """Run all in forks."""
    parent = Parent(**SPARSE)
    works = (parent.solve, parent.covariance_and_gradient, parent.other_structure, parent.fork)
    for work in works:
        in_child(work)


@pytest.mark.parametrize("threads", ["1", "3"])
def test_forks_after_sparse_solves_do_not_hang(threads: str) -> None:
    """In a program of its own, as this process may have threads of others."""
    program = "from tests.solver.test_forks import main; main()"
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "CASPAR_NUM_THREADS": threads},
        check=True,
        timeout=300,
    )
