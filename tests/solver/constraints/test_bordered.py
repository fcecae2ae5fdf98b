"""Solutions of the bordered system, against NumPy's of the whole matrix."""

import numpy as np
import pytest

from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.constraints.bordered import Border, System
from caspar.solver.gradients.system import Hessian, Instances
from caspar.solver.normal.blocks import Unknowns


@pytest.mark.parametrize("seed", range(4))
def test_active_and_idle_rows(seed: int) -> None:
    random = np.random.default_rng(seed)
    count, size, dim = 4, 8, 2
    unknowns = Unknowns.of({"Node": (count, 2)})
    index = np.array([0, 1, 2], np.int32), np.array([1, 2, 3], np.int32)
    instances = Instances(("Node", "Node"), index)
    backend = CpuBackend()
    hessian = Hessian(backend, unknowns, [instances])
    border = Border(hessian, size, [instances.unknowns(unknowns)], [dim])
    blocks = random.normal(size=(3, dim, 4))
    root = random.normal(size=(3, 4, 4))
    parts = root @ root.transpose(0, 2, 1) + 0.1 * np.eye(4)
    row, column = np.tril_indices(4)
    matrix, jacobian = np.zeros((size, size)), np.zeros((3 * dim, size))
    for number, own in enumerate(instances.unknowns(unknowns)):
        matrix[np.ix_(own, own)] += parts[number]
        jacobian[number * dim : (number + 1) * dim, own] += blocks[number]
    active = random.uniform(size=3 * dim) < 0.6
    upper, lower = random.normal(size=size), random.normal(size=3 * dim)
    stays = np.arange(size) == 5
    scale = np.where(stays, 0.0, 1.0 / np.sqrt(np.diag(matrix)))
    system = System(
        np.asarray(hessian.entries([parts[:, row, column]])),
        border.jacobian([blocks]),
        active,
        scale,
        0.0,
    )
    factored = border.factorized(system)
    assert factored is not None
    found = border.solved(factored, upper, lower)
    assert found is not None
    step, change = found
    moves, num = ~stays, int(active.sum())
    own = jacobian[np.ix_(active, moves)]
    whole = np.block([[matrix[np.ix_(moves, moves)], -own.T], [-own, np.zeros((num, num))]])
    expected = np.linalg.solve(whole, np.concatenate([upper[moves], lower[active]]))
    assert step[moves] == pytest.approx(expected[: moves.sum()], rel=1e-9, abs=1e-11)
    assert change[active] == pytest.approx(expected[moves.sum() :], rel=1e-9, abs=1e-11)
    assert (step[stays] == 0.0).all()
    assert (change[~active] == 0.0).all()


def test_no_minimum() -> None:
    """A first block that bends down along what the constraint leaves free is refused."""
    unknowns = Unknowns.of({"Node": (1, 2)})
    instances = Instances(("Node",), (np.zeros(1, np.int32),))
    hessian = Hessian(CpuBackend(), unknowns, [instances])
    border = Border(hessian, 2, [instances.unknowns(unknowns)], [1])
    block = np.array([[[1.0, 0.0]]])

    def solves(along: float) -> bool:
        first = np.asarray(hessian.entries([np.array([[-1.0, 0.0, along]])]))
        ones = np.ones(2)
        system = System(first, border.jacobian([block]), np.array([True]), ones, 0.0)
        return border.factorized(system) is not None

    assert solves(2.0)
    assert not solves(-2.0)
