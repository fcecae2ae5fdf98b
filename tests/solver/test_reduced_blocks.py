"""Blocks and diagonals that precondition and damp the reduced system, against NumPy.

Conjugate gradients converge with any preconditioner: no solve can tell whether these are right.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import caspar
from caspar.equations.parts import NodePart
from caspar.options import JacobianName
from caspar.solver.choice.recipe import make_recipe
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend
from tests.solver import reference
from tests.solver.linear.linear_cases import problem_of

Array = NDArray[np.float64]

DAMPING = 0.3
JACOBIANS: tuple[JacobianName, ...] = ("recompute", "stored")
MIXES = ("everything", "two factors on marks", "shared lens", "bundle adjustment")

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine"),
    pytest.mark.filterwarnings("ignore:node type"),
]


def found(mix: str, jacobian: JacobianName, deterministic: bool) -> tuple[Array, Array]:
    """D of the views, and the blocks of their reduced system, as the solver has them."""
    factors, arrays = problem_of(mix)
    solver = caspar.Solver(
        factors,
        precision="float64",
        linear_solver="schur_pcg",
        jacobian=jacobian,
        deterministic=deterministic,
        inner_iterations=0,
        backend=HarnessBackend(128),
    )
    with solver.system(arrays) as system:
        system.score()
        system.linearize(DAMPING)
        system.plan.scalar("damping")[...] = DAMPING
        system.plan.scalar("levelling")[...] = 1.0
        # twice: what depends on the damping is made anew
        for _ in range(2):
            system.solvers.current.begin()
        count, memory = len(arrays["View"]), system.plan.memory
        view = system.plan.node_plans["View"]
        two, one = np.split(memory[view.key(NodePart.DIAGONAL)], [2 * count])
        diagonal = np.hstack([two.reshape(count, 2), one[:count, None]])
        return diagonal, memory[view.key(NodePart.REDUCED_BLOCK)].reshape(count, 8)[:, :6].copy()


def wanted(mix: str, scaled: bool) -> tuple[Array, Array]:
    """The same from finite differences: each item of a mark has its own part."""
    factors, arrays = problem_of(mix)
    jacobians = reference.argument_jacobians(factors, arrays)
    squares: dict[str, Any] = {}
    for part in (part for parts in jacobians for part in parts):
        size = (len(arrays[part.node]), part.slope.shape[2])
        own = squares.setdefault(part.node, np.zeros(size))
        np.add.at(own, part.index, (part.slope**2).sum(axis=1))
    nodes = {node.name: node for node in make_recipe(factors).nodes}
    for name, own in squares.items():
        squares[name] = reference.levelled(nodes[name], own, DAMPING)

    def slope(part: reference.ArgumentJacobian) -> Array:
        return part.slope / (np.sqrt(squares[part.node])[part.index][:, None, :] if scaled else 1.0)

    v = np.zeros((len(arrays["Mark"]), 2, 2))
    for part in (part for parts in jacobians for part in parts if part.node == "Mark"):
        e = slope(part)
        np.add.at(v, part.index, np.einsum("nri,nrj->nij", e, e))
    damped = np.ones_like(squares["Mark"]) if scaled else squares["Mark"]
    v += DAMPING * damped[:, :, None] * np.eye(2)
    blocks = np.zeros((len(arrays["View"]), 3, 3))
    for parts in jacobians:
        marks = [part for part in parts if part.node == "Mark"]
        for part in (part for part in parts if part.node == "View"):
            c = slope(part)
            left = np.einsum("nri,nrj->nij", c, c)
            for mark in marks:
                mixed = np.einsum("nri,nrj->nij", c, slope(mark))
                left -= mixed @ np.linalg.inv(v[mark.index]) @ mixed.transpose(0, 2, 1)
            np.add.at(blocks, part.index, left)
    rows, columns = np.tril_indices(3)
    return squares["View"], blocks[:, rows, columns]


CASES = list(product(MIXES, JACOBIANS, [False, True]))
BY_DEFAULT = (
    ("everything", "recompute", False),
    ("two factors on marks", "stored", True),
    ("bundle adjustment", "recompute", True),
)


@pytest.mark.parametrize(
    ("mix", "jacobian", "deterministic"),
    [
        pytest.param(*case, marks=[] if case in BY_DEFAULT else pytest.mark.reliability)
        for case in CASES
    ],
)
def test_they_are_those_of_the_reduced_system(
    mix: str, jacobian: JacobianName, deterministic: bool
) -> None:
    diagonal, blocks = found(mix, jacobian, deterministic)
    expected_diagonal, expected_blocks = wanted(mix, scaled=jacobian == "stored")
    assert_allclose(diagonal, expected_diagonal, rtol=1e-7)
    assert_allclose(blocks, expected_blocks, rtol=1e-6, atol=1e-8)
