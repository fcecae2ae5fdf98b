"""Gradients against finite differences of solves that are taken to rounding."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import caspar
from caspar.arrays.trees import Path, leaves, with_leaves
from tests.solver.gradients.gradient_cases import CASES, Case, random_case
from tests.solver.gradients.polishing import Polisher, directional

Rows = NDArray[np.float64]

AGREEMENT = 1e-7
"""Of a derivative with the finite difference, relative to the largest of the problem's."""


def floating_leaves(case: Case) -> dict[Path, Rows]:
    """Constants, weights and scales, and the values of node types that are held in part."""
    held = () if case.fixed is None else tuple(case.fixed)
    return {
        path: np.asarray(leaf, np.float64)
        for path, leaf in leaves(case.arrays).items()
        if (len(path) > 1 or path[0] in held) and np.asarray(leaf).dtype.kind == "f"
    }


def derivative(gradient: Mapping[str, Any], path: Path) -> Rows:
    """What a gradient says of an argument."""
    found: Any = gradient[path[0]]
    return np.asarray(found if len(path) == 1 else found[path[1]])


def unit_columns(case: Case, path: Path) -> list[slice]:
    """The columns of an argument, or of a node type, that have unit length."""
    if len(path) > 1:
        return [case.units[path]] if path in case.units else []
    found, first = [], 0
    for part in case.parts[path[0]]:
        size = {"rotation": 4, "turn": 2}.get(str(part), 0)
        found += [slice(first, first + size)] if size > 0 else []
        first += size or int(part)
    return found


def direction(case: Case, path: Path, leaf: Rows, rng: np.random.Generator) -> Rows:
    """A random direction that moves what has unit length along the sphere, and what is held."""
    found: Rows = rng.normal(size=leaf.shape) * np.maximum(
        np.abs(leaf).mean(axis=0 if leaf.ndim > 1 else None), 0.1
    )
    if len(path) == 1:
        assert case.fixed is not None
        moves = np.ones(len(leaf), bool)
        moves[case.fixed[path[0]]] = False
        found[moves] = 0.0
    for columns in unit_columns(case, path):
        unit = leaf[:, columns]
        found[:, columns] -= (found[:, columns] * unit).sum(axis=1, keepdims=True) * unit
    return found


def unit_rows(case: Case, path: Path, leaf: Rows) -> Rows:
    """The same with parts of unit length, as a solve would read it."""
    leaf = leaf.copy()
    for columns in unit_columns(case, path):
        leaf[:, columns] /= np.linalg.norm(leaf[:, columns], axis=1, keepdims=True)
    return leaf


@pytest.mark.parametrize("name", CASES)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    case = CASES[name]()
    rng = np.random.default_rng(0)
    solver = caspar.Solver(case.factors, backend="cpu", precision="float64")
    solved = solver.solve(case.arrays, fixed=case.fixed)
    assert solved.status.is_success
    polisher = Polisher(case.reference)
    arrays = {**case.arrays, **polisher.polished({**case.arrays, **solved.values})}
    cotangents = {key: rng.normal(size=np.shape(arrays[key])) for key in case.parts}
    found = solver.gradient(arrays, cotangents, fixed=case.fixed)
    assert (found.hessian, found.damping, found.remarks) == ("exact", 0.0, ())
    exact, measured = [], []
    for path, leaf in floating_leaves(case).items():
        start = np.asarray(arrays[path[0]]) if len(path) == 1 else leaf
        along = direction(case, path, start, rng)

        def loss(moved: Rows, path: Path = path) -> float:
            changed = with_leaves(arrays, {path: unit_rows(case, path, moved)})
            values = polisher.polished(changed)
            return sum(float((cotangents[key] * values[key]).sum()) for key in cotangents)

        measured.append(directional(loss, start, along, case.step))
        exact.append(float((derivative(found.arrays, path) * along).sum()))
    errors = np.abs(np.subtract(exact, measured))
    assert errors.max() < AGREEMENT * np.abs(measured).max()
    assert (errors < 1e-6 * np.abs(measured) + 1e-9 * np.abs(measured).max()).all()


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(one, marks=pytest.mark.reliability) for one in range(3, 6))]
)
def test_random_small_factors_agree_with_finite_differences(seed: int) -> None:
    """Random polynomials and waves, with weights, losses, held parts and a second node type."""
    rng = np.random.default_rng(seed)
    loss = [None, caspar.loss.Huber, caspar.loss.Cauchy][seed % 3]
    count, dim = 12, 2 + seed % 2
    case = random_case(rng, count, dim, loss)
    solver = caspar.Solver(case.factors, backend="cpu", precision="float64")
    polisher = Polisher(case.reference)
    solved = solver.solve(case.arrays, fixed=case.fixed)
    arrays = {**case.arrays, **polisher.polished({**case.arrays, **solved.values})}
    cotangents = {key: rng.normal(size=np.shape(arrays[key])) for key in case.parts}
    found = solver.gradient(arrays, cotangents, fixed=case.fixed)
    starts = {
        path: np.asarray(arrays[path[0]]) if len(path) == 1 else leaf
        for path, leaf in floating_leaves(case).items()
    }
    along = {path: direction(case, path, start, rng) for path, start in starts.items()}

    def loss_of(moved: Rows) -> float:
        changed = {path: start + moved * along[path] for path, start in starts.items()}
        values = polisher.polished(with_leaves(arrays, changed))
        return sum(float((cotangents[key] * values[key]).sum()) for key in cotangents)

    measured = directional(loss_of, np.zeros(()), np.ones(()), case.step)
    terms = [(derivative(found.arrays, path) * one).sum() for path, one in along.items()]
    assert sum(terms) == pytest.approx(measured, rel=1e-7, abs=1e-8 * np.abs(terms).max())
