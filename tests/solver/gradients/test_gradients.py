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


LIKE_OTHERS = ("spots", "bundle", "registration", "hand_eye")
"""What is special about them, `ranging`, `calibration` and `graph` have too."""

Directions = dict[Path, tuple[Rows, Rows]]
"""By argument: its values, and a direction."""


class Compared:
    """The gradient of a case at its minimum, and finite differences of the same loss."""

    def __init__(self, case: Case, rng: np.random.Generator) -> None:
        self.case = case
        solver = caspar.Solver(case.factors, backend="cpu", precision="float64")
        solved = solver.solve(case.arrays, fixed=case.fixed)
        assert solved.status.is_success
        self._polisher = Polisher(case.reference)
        self._arrays = {
            **case.arrays,
            **self._polisher.polished({**case.arrays, **solved.values}),
        }
        self._cotangents = {key: rng.normal(size=np.shape(self._arrays[key])) for key in case.parts}
        self._found = solver.gradient(self._arrays, self._cotangents, fixed=case.fixed)
        found = self._found
        assert (found.hessian, found.damping, found.remarks) == ("exact", 0.0, ())

    def directions(self, rng: np.random.Generator) -> Directions:
        """Random ones, of all arguments that have a gradient."""
        leaves_of_case = floating_leaves(self.case).items()
        starts = {
            path: np.asarray(self._arrays[path[0]]) if len(path) == 1 else leaf
            for path, leaf in leaves_of_case
        }
        return {
            path: (start, direction(self.case, path, start, rng)) for path, start in starts.items()
        }

    def exact(self, along: Directions) -> list[float]:
        """What the gradient says of each argument."""
        return [
            float((derivative(self._found.arrays, path) * one).sum())
            for path, (_, one) in along.items()
        ]

    def measured(self, along: Directions) -> float:
        """By moving all arguments at once."""

        def loss(moved: Rows) -> float:
            changed = {
                path: unit_rows(self.case, path, start + moved * one)
                for path, (start, one) in along.items()
            }
            values = self._polisher.polished(with_leaves(self._arrays, changed))
            return sum(
                float((cotangent * values[key]).sum())
                for key, cotangent in self._cotangents.items()
            )

        return directional(loss, np.zeros(()), np.ones(()), self.case.step)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.reliability) if name in LIKE_OTHERS else name
        for name in CASES
    ],
)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    """Along a direction that moves all arguments."""
    rng = np.random.default_rng(0)
    compared = Compared(CASES[name](), rng)
    along = compared.directions(rng)
    exact = compared.exact(along)
    assert abs(sum(exact) - compared.measured(along)) < AGREEMENT * np.abs(exact).max()


@pytest.mark.reliability
@pytest.mark.parametrize("name", CASES)
def test_each_gradient_agrees_with_finite_differences(name: str) -> None:
    rng = np.random.default_rng(0)
    compared = Compared(CASES[name](), rng)
    along = compared.directions(rng)
    exact = compared.exact(along)
    measured = [compared.measured({path: one}) for path, one in along.items()]
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
    compared = Compared(random_case(rng, 12, 2 + seed % 2, loss), rng)
    along = compared.directions(rng)
    terms = compared.exact(along)
    measured = compared.measured(along)
    assert sum(terms) == pytest.approx(measured, rel=1e-7, abs=1e-8 * np.abs(terms).max())
