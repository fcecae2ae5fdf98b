"""The order and the side of a step for each type, as docs/guide and docs/NUMERICS.md state them.

The formulas are written here in NumPy, without SymForce. They are compared with SymForce's
retraction, coordinate by coordinate, and with one damped iteration of a solve: damping by the
diagonal of J^T J makes the step depend on which coordinates a tangent has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from symforce.ops import LieGroupOps, StorageOps

import caspar

Retraction = Callable[[Any, Any], Any]

NUM_ROWS = 14
DAMPING = 0.5
LEVELLING_DAMPING = 10.0


def added(x: Any, step: Any) -> Any:
    return x + step


def turned_2d(x: Any, step: Any) -> Any:
    angle = np.arctan2(x[1], x[0]) + step[0]
    return np.array([np.cos(angle), np.sin(angle)])


def moved_2d(x: Any, step: Any) -> Any:
    return np.concatenate([turned_2d(x[:2], step[:1]), x[2:] + step[1:]])


def turned_3d(x: Any, step: Any) -> Any:
    """Hamilton's product x exp(step / 2), the real part last."""
    half = np.linalg.norm(step) / 2.0
    vector = step / 2.0 * np.sinc(half / np.pi)
    return np.concatenate(
        [
            x[3] * vector + np.cos(half) * x[:3] + np.cross(x[:3], vector),
            [x[3] * np.cos(half) - x[:3] @ vector],
        ]
    )


def moved_3d(x: Any, step: Any) -> Any:
    return np.concatenate([turned_3d(x[:4], step[:3]), x[4:] + step[3:]])


def aimed(x: Any, step: Any) -> Any:
    across = x - np.array([1.0, 0.0, 0.0])
    mirror = np.eye(3) - 2.0 * np.outer(across, across) / (across @ across)
    norm = np.linalg.norm(step)
    local = np.concatenate([[np.cos(norm)], np.sinc(norm / np.pi) * step])
    return mirror @ np.diag([1.0, -1.0, 1.0]) @ local


@dataclass
class Mixed:
    """A field of each kind."""

    aim: sf.Unit3
    pose: sf.Pose3
    heading: sf.Rot2
    offset: sf.V2


def moved_fields(x: Any, step: Any) -> Any:
    return np.concatenate(
        [
            aimed(x[:3], step[:2]),
            moved_3d(x[3:10], step[2:8]),
            turned_2d(x[10:12], step[8:9]),
            x[12:] + step[9:],
        ]
    )


@dataclass
class Nested:
    """A dataclass within one."""

    place: sf.Pose2
    inner: sf.Rot3


def moved_nested(x: Any, step: Any) -> Any:
    return np.concatenate([moved_2d(x[:4], step[:3]), turned_3d(x[4:], step[3:])])


@dataclass(frozen=True)
class Case:
    """A type, its retraction, and what the solver knows of it.

    Attributes:
        kind: The type.
        retract: From storage and step to storage.
        units: Ranges of the storage that have unit length.
        parts: Ranges of the tangent that are in one unit.
    """

    kind: Any
    retract: Retraction
    units: tuple[slice, ...] = ()
    parts: tuple[slice, ...] = ()


CASES = {
    "V1": Case(sf.V1, added),
    "V3": Case(sf.V3, added, parts=(slice(0, 3),)),
    "V7": Case(sf.V7, added),
    "M22": Case(sf.M22, added),
    "Rot2": Case(sf.Rot2, turned_2d, (slice(0, 2),)),
    "Pose2": Case(sf.Pose2, moved_2d, (slice(0, 2),), (slice(1, 3),)),
    "Rot3": Case(sf.Rot3, turned_3d, (slice(0, 4),), (slice(0, 3),)),
    "Pose3": Case(sf.Pose3, moved_3d, (slice(0, 4),), (slice(0, 3), slice(3, 6))),
    "Unit3": Case(sf.Unit3, aimed, (slice(0, 3),), (slice(0, 2),)),
    "Mixed": Case(
        Mixed,
        moved_fields,
        (slice(0, 3), slice(3, 7), slice(10, 12)),
        (slice(0, 2), slice(2, 5), slice(5, 8), slice(9, 11)),
    ),
    "Nested": Case(Nested, moved_nested, (slice(0, 2), slice(4, 8)), (slice(1, 3), slice(3, 6))),
}

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def drawn(case: Case, rng: np.random.Generator) -> Any:
    row = rng.normal(size=StorageOps.storage_dim(case.kind))
    for part in case.units:
        row[part] /= np.linalg.norm(row[part])
    return row


@each_case
def test_every_coordinate_of_a_step(case: Case) -> None:
    rng = np.random.default_rng(1)
    dim = LieGroupOps.tangent_dim(case.kind)
    for start in (drawn(case, rng) for _ in range(3)):
        value = StorageOps.from_storage(case.kind, list(start))
        for step in (*(0.7 * np.eye(dim)), rng.normal(size=dim)):
            moved = LieGroupOps.retract(value, list(step), 1e-15)
            found = np.array(StorageOps.to_storage(moved), dtype=float)
            assert_allclose(found, case.retract(start, step), atol=1e-12)


def factor_of(case: Case) -> caspar.Factor:
    """A linear function of the storage, so that its derivative shows the retraction's."""
    weights_type = sf.matrix_type_from_shape((StorageOps.storage_dim(case.kind), 1))

    def weighted(x: Any, weights: Any, value: Any) -> Any:
        storage = StorageOps.to_storage(x)
        return sf.V1(sum(w * entry for w, entry in zip(weights, storage, strict=True)) - value[0])

    weighted.__annotations__ = {
        "x": Annotated[case.kind, caspar.TunableShared],
        "weights": Annotated[weights_type, caspar.ConstSequential],
        "value": Annotated[sf.V1, caspar.ConstSequential],
    }
    return caspar.factor(weighted)


def jacobian(case: Case, start: Any, weights: Any) -> Any:
    """Central differences of the NumPy formula, (NUM_ROWS, tangent_dim)."""
    width = 1e-6
    steps = width * np.eye(LieGroupOps.tangent_dim(case.kind))
    columns = [
        (case.retract(start, step) - case.retract(start, -step)) / (2.0 * width) for step in steps
    ]
    return weights @ np.stack(columns, axis=1)


@each_case
def test_an_iteration_takes_the_step_of_these_coordinates(case: Case) -> None:
    rng = np.random.default_rng(2)
    start = drawn(case, rng)
    dim = LieGroupOps.tangent_dim(case.kind)
    # columns of different size: D, and with it the step, tells the coordinates apart
    weights = rng.normal(size=(NUM_ROWS, len(start))) * 3.0 ** rng.uniform(-1, 1, size=len(start))
    values = weights @ case.retract(start, 0.3 * rng.normal(size=dim))

    J = jacobian(case, start, weights)
    H, gradient = J.T @ J, J.T @ (weights @ start - values)
    D = np.diag(H).copy()
    for part in case.parts:
        least = DAMPING / (DAMPING + LEVELLING_DAMPING) * D[part].max()
        D[part] = np.maximum(D[part], least)
    expected = case.retract(start, np.linalg.solve(H + DAMPING * np.diag(D), -gradient))

    solver = caspar.Solver(
        [factor_of(case)], backend="cpu", precision="float64", linear_solver="sparse"
    )
    name = case.kind.__name__
    index = np.zeros(NUM_ROWS, int)
    result = solver.solve(
        {name: start[None], "weighted": {"x": index, "weights": weights, "value": values}},
        max_iterations=1,
        initial_damping=DAMPING,
    )
    assert result.iterations[0].step_accepted
    assert_allclose(result.values[name][0], expected, atol=1e-7)
