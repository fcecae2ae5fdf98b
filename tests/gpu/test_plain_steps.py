"""Steps that a graph on the device takes: bits of records, values and costs are the host's."""

from typing import Any

import pytest

import caspar
from caspar.options import Precision
from tests.solver.lm.test_plain_steps import bundle, check_same, counts, decay, decays, look

pytestmark = pytest.mark.gpu
pytest.importorskip("cuda.core")

__all__ = ["counts"]


@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_the_device_decides_as_the_host(precision: Precision, counts: list[int]) -> None:
    """From the second solve of a structure on."""
    solver = caspar.Solver(
        look, backend="cuda", linear_solver="schur_dense", precision=precision, deterministic=True
    )
    for seed in range(4):
        check_same(solver, bundle(seed, 0.1), fixed={"Pose3": [0]})
        assert (sum(counts) > 0) == (seed > 0)


def test_curves(counts: list[int]) -> None:
    solver = caspar.Solver(decay, backend="cuda", precision="float64", deterministic=True)
    for seed in range(12):
        check_same(solver, decays(seed, 10.0 ** -(seed % 6), 0.3), max_iterations=60)
    assert sum(counts) > 12


def test_another_structure_takes_its_place(counts: list[int]) -> None:
    """The launches are bound again, and the graph is made anew."""
    solver = caspar.Solver(look, backend="cuda", linear_solver="schur_dense", deterministic=True)
    for number in (119, 120, 118):
        for seed in range(2):
            arrays: dict[str, Any] = bundle(seed, 0.1)
            arrays["look"] = {name: rows[-number:] for name, rows in arrays["look"].items()}
            counts.clear()
            check_same(solver, arrays, fixed={"Pose3": [0]})
            assert (sum(counts) > 0) == (seed > 0)


def test_a_device_without_such_graphs(monkeypatch: pytest.MonkeyPatch, counts: list[int]) -> None:
    monkeypatch.setattr("caspar.runtime.cuda.loop.repeat.graph_loop_problem", lambda: "a test")
    solver = caspar.Solver(look, backend="cuda", linear_solver="schur_dense", deterministic=True)
    for seed in range(3):
        assert check_same(solver, bundle(seed, 0.1), fixed={"Pose3": [0]}).backend == "cuda"
    assert counts == []
