"""Factors that make chains, and the preconditioner that they should have, as a dense matrix."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from tests.solver.linear_cases import Drift, Mark, View, drift, glance, hold, pin, tie
from tests.solver.reference import ArgumentJacobian, argument_jacobians

Arrays = dict[str, Any]
Matrix = NDArray[np.float64]


class Speed(sf.V2):
    """Of an observer: a second chain."""


@caspar.factor
def bend(
    before: Annotated[View, caspar.TunableShared],
    here: Annotated[View, caspar.TunableShared],
    after: Annotated[View, caspar.TunableShared],
) -> sf.V3:
    """Second differences: an instance with two links."""
    return before - 2.0 * here + after + 0.1 * sf.V3(before[0] * after[1], 0.0, here[2] ** 2)


@caspar.factor
def ride(
    start: Annotated[View, caspar.TunableShared],
    end: Annotated[View, caspar.TunableShared],
    begun: Annotated[Speed, caspar.TunableShared],
    ended: Annotated[Speed, caspar.TunableShared],
    step: Annotated[Drift, caspar.ConstSequential],
) -> sf.M51:
    """Chains of two types, as of an inertial unit."""
    mean = 0.5 * (begun + ended)
    moved = end - start - step
    return sf.M51(
        moved[0] - mean[0],
        moved[1] - mean[1] * (1.0 + 0.1 * start[2]),
        moved[2],
        ended[0] - begun[0] * (1.0 + 0.1 * ended[1]),
        2.0 * ended[1] - begun[1],
    )


@caspar.factor
def still(speed: Annotated[Speed, caspar.TunableShared]) -> sf.V2:
    return 0.1 * sf.V2(speed[0] + 0.2 * speed[1], speed[1])


CHAIN = (tie, hold)
PAIRS = (drift, tie, hold)
BENDS = (bend, tie, hold)
RIDES = (ride, tie, hold, still)
MARKS = (glance, tie, hold, pin)


def chain_arrays(
    factors: Sequence[caspar.Factor], num_views: int, gaps: Sequence[int] = (), seed: int = 0
) -> Arrays:
    """A walk with loop closures; `gaps` are nodes that nothing joins to the one before."""
    random = np.random.default_rng(seed)
    steps = [k for k in range(num_views - 1) if k + 1 not in gaps]
    loops = [tuple(random.integers(0, num_views, 2)) for _ in range(num_views // 3)]
    # both directions, links with two instances, an instance that joins a node to itself
    ends = [(k, k + 1) if k % 3 else (k + 1, k) for k in steps]
    ends += [(k, k + 1) for k in steps[::4]]
    ends += [(a, b) for a, b in loops if abs(a - b) != 1 or max(a, b) not in gaps]
    start, end = np.array(ends, dtype=int).reshape(-1, 2).T
    whole = [k for k in steps if k + 1 in steps]
    held = np.unique([0, num_views - 1, *gaps])
    marks = 2 * num_views
    seen = random.integers(0, num_views, 3 * marks)

    def noise(*shape: int) -> Matrix:
        return random.standard_normal(shape)

    arrays: Arrays = {
        "View": 0.5 * noise(num_views, 3),
        "Speed": 0.3 * noise(num_views, 2),
        "Mark": noise(marks, 2),
        "tie": {"start": start, "end": end, "step": noise(len(start), 3)},
        "drift": {"step": noise(num_views - 1, 3)},
        "hold": {"view": held, "known": noise(len(held), 3)},
        "bend": {
            "before": np.array(whole),
            "here": np.array(whole) + 1,
            "after": np.array(whole) + 2,
        },
        "ride": {
            "start": np.array(steps),
            "end": np.array(steps) + 1,
            "begun": np.array(steps),
            "ended": np.array(steps) + 1,
            "step": noise(len(steps), 3),
        },
        "still": {"speed": np.arange(num_views)},
        "glance": {"view": seen, "mark": np.arange(3 * marks) % marks, "seen": noise(3 * marks, 2)},
        "pin": {"mark": np.arange(marks), "known": noise(marks, 2)},
    }
    wanted = {factor.name for factor in factors} | {"View"}
    wanted |= {"Speed"} if ride in factors else set()
    wanted |= {"Mark"} if glance in factors else set()
    return {name: rows for name, rows in arrays.items() if name in wanted}


def dense_preconditioner(
    factors: Sequence[caspar.Factor], arrays: Arrays, damping: float, eliminated: str = ""
) -> tuple[Matrix, Matrix]:
    """M and D of the nodes that remain, in the order of the unknowns."""
    items = argument_jacobians(factors, arrays)
    size = 1 + max(int((one.first + one.slope.shape[2] - 1).max()) for f in items for one in f)
    whole = _block_diagonal(items, size)
    diagonal = np.diag(whole).copy()
    matrix = whole + damping * np.diag(diagonal)
    is_kept = np.ones(size, dtype=bool)
    for arguments in items:
        own = [one for one in arguments if one.node == eliminated]
        others = [one for one in arguments if one.node != eliminated]
        for one in own:
            _eliminate(matrix, one, others)
        if len(own) == 0:
            _add_links(matrix, arguments)
    for one in (one for f in items for one in f if one.node == eliminated):
        for column in range(one.slope.shape[2]):
            is_kept[one.first + column] = False
    return matrix[is_kept][:, is_kept], diagonal[is_kept]


def _block_diagonal(items: Sequence[Sequence[ArgumentJacobian]], size: int) -> Matrix:
    made = np.zeros((size, size))
    for one in (one for arguments in items for one in arguments):
        for first, slope in zip(one.first, one.slope, strict=True):
            place = slice(first, first + slope.shape[1])
            made[place, place] += slope.T @ slope
    return made


def _eliminate(matrix: Matrix, own: ArgumentJacobian, others: Sequence[ArgumentJacobian]) -> None:
    """Take C^T E V^-1 E^T C off the diagonal, for each instance alone."""
    for item, first in enumerate(own.first):
        place = slice(first, first + own.slope.shape[2])
        inverse = np.linalg.inv(matrix[place, place])
        for other in others:
            mixed = other.slope[item].T @ own.slope[item]
            block = slice(other.first[item], other.first[item] + mixed.shape[0])
            matrix[block, block] -= mixed @ inverse @ mixed.T


def _add_links(matrix: Matrix, arguments: Sequence[ArgumentJacobian]) -> None:
    """J_a^T J_b of every instance's neighbours; less where one of them has two links."""
    for item in range(len(arguments[0].index)):
        pairs = [
            (a, b)
            for number, a in enumerate(arguments)
            for b in arguments[:number]
            if a.node == b.node and abs(a.index[item] - b.index[item]) == 1
        ]
        links = [one for pair in pairs for one in pair]
        for a, b in pairs:
            shares = sum(one is a for one in links) * sum(one is b for one in links)
            block = a.slope[item].T @ b.slope[item] / np.sqrt(shares)
            rows = slice(a.first[item], a.first[item] + block.shape[0])
            columns = slice(b.first[item], b.first[item] + block.shape[1])
            matrix[rows, columns] += block
            matrix[columns, rows] += block.T


__all__ = [
    "BENDS",
    "CHAIN",
    "MARKS",
    "PAIRS",
    "RIDES",
    "Mark",
    "chain_arrays",
    "dense_preconditioner",
]
