"""Multipliers and penalties of an augmented Lagrangian, and how they change from solve to solve.

Input: constraints at the values that a solve ended with. Output: the data of the next one. Cost
tier: array code on the host, once for a solve of the loop.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np

from caspar.solver.constraints.violations import Floats, Linearised, Sizes, pushing_multipliers
from caspar.solver.normal.matrix import add_rows

FIRST_PENALTY = 10.0
"""First penalty of an instance, in variables in which the cost has a curvature of 1 and the
instance a slope of 1."""

GROWTH = 10.0
"""Of the penalty of an entry that has not come nearer to what must hold."""

ENOUGH = 0.25
"""An entry whose distance has shrunk to this share keeps its penalty."""

MOST_GROWTH = 1e8
"""Of a penalty over all solves: more would drown the cost in rounding."""


@dataclass(frozen=True)
class Terms:
    """Multipliers and penalties of one constraint.

    Attributes:
        multipliers: (m, dim) l.
        penalties: (m, dim) p, greater than 0.
        first: (m, dim) p at the start.
        distance: (m, dim) how far l / p moved in the last update, in units of c.
    """

    multipliers: Floats
    penalties: Floats
    first: Floats
    distance: Floats

    @staticmethod
    def of(penalties: Floats) -> "Terms":
        """Before the first solve."""
        zeros, far = np.zeros_like(penalties), np.full_like(penalties, np.inf)
        return Terms(zeros, penalties, penalties, far)

    @property
    def data(self) -> tuple[Floats, Floats]:
        """w and s: see `penalised`."""
        return np.sqrt(self.penalties), self.multipliers / self.penalties

    @property
    def offset(self) -> float:
        """Cost of the terms if all constraints hold: the cost of a solve is too high by it."""
        return 0.5 * float((self.multipliers**2 / self.penalties).sum())

    def pulling(self, multipliers: Floats, rows: Floats) -> "Terms":
        """Terms whose pull at c = `rows` is the multipliers, also where c is off by the tolerance.

        Args:
            multipliers: (m, dim); where they are 0, nothing pulls.
            rows: (m, dim).
        """
        pulls = (multipliers + self.penalties * rows) * (multipliers != 0.0)
        return replace(self, multipliers=pulls)

    def updated(self, found: Linearised, enough: float = ENOUGH) -> "Terms":
        """After a solve that ended at some values; entries of `enough` keep their penalties."""
        moved = self.multipliers - self.penalties * found.rows
        multipliers = pushing_multipliers(found.kind, moved)
        distance = np.abs(multipliers - self.multipliers) / self.penalties
        is_slow = distance > enough * self.distance
        grown = np.where(is_slow, GROWTH, 1.0) * self.penalties
        penalties = np.minimum(grown, MOST_GROWTH * self.first)
        return replace(self, multipliers=multipliers, penalties=penalties, distance=distance)


def first_terms(
    found: Mapping[str, Linearised], curvatures: Mapping[str, Floats], sizes: Sizes
) -> dict[str, Terms]:
    """Multipliers of 0, and penalties that fit the cost.

    Where nothing has a curvature the penalty is the usual one.

    Args:
        found: The constraints at the start.
        curvatures: See `first_penalties`.
        sizes: Of values, by node type.
    """
    penalties = first_penalties(np, found, curvatures, sizes)
    made = [rows[rows > 0.0] for rows in penalties.values()]
    usual = float(np.median(np.concatenate(made))) if any(map(len, made)) else FIRST_PENALTY
    return {
        name: Terms.of(np.where(rows > 0.0, rows, usual)[:, None] / found[name].scale(sizes) ** 2)
        for name, rows in penalties.items()
    }


def first_penalties(
    xp: ModuleType,
    found: Mapping[str, Linearised],
    curvatures: Mapping[str, Floats],
    sizes: Sizes,
) -> dict[str, Floats]:
    """(m,) the penalty of each instance by constraint, of entries in units of their terms.

    In variables scaled by the roots of the curvatures an instance has the slopes g, and its penalty
    is `FIRST_PENALTY` / max g^2. Unknowns on which no factor depends get a curvature by the
    instances that are done, and so on. The penalty is 0 where nothing has a curvature.

    Args:
        xp: NumPy or CuPy, by where arrays are.
        found: The constraints at the start.
        curvatures: By node type (n, tangent_dim), the diagonal of J^T J of all factors; 0 for what
            is held.
        sizes: Of values, by node type.
    """
    known = {name: rows.copy() for name, rows in curvatures.items()}
    scales = {name: one.scale(sizes) for name, one in found.items()}
    penalties = {name: np.zeros_like(one.rows[:, 0]) for name, one in found.items()}
    while not all(bool((rows > 0.0).all()) for rows in penalties.values()):
        fresh = {}
        for name, one in found.items():
            slopes = _slopes(one, scales[name], known)
            is_new = (penalties[name] == 0.0) & (slopes > 0.0)
            fresh[name] = np.where(is_new, FIRST_PENALTY / np.where(is_new, slopes, 1.0), 0.0)
        if not any(bool(rows.any()) for rows in fresh.values()):
            break
        spread = {name: np.zeros_like(rows) for name, rows in known.items()}
        for name, one in found.items():
            penalties[name] += fresh[name]
            weights = (fresh[name] / FIRST_PENALTY)[:, None] / scales[name] ** 2
            for node in one.nodes:
                share = (node.entries**2 * weights[:, :, None]).sum(axis=1)
                add_rows(xp, spread[node.node], node.index, share)
        for name, rows in known.items():
            rows[...] = np.where(rows > 0.0, rows, spread[name])
    return penalties


def _slopes(found: Linearised, scale: Floats, curvatures: Mapping[str, Floats]) -> Floats:
    """(m,) the greatest g^2 of each instance, by the unknowns whose curvature is known."""
    total = np.zeros_like(found.rows)
    for node in found.nodes:
        curvature = curvatures[node.node][node.index][:, None, :]
        is_known = curvature > 0.0
        share = node.entries**2 / np.where(is_known, curvature, 1.0)
        total += np.where(is_known, share, 0.0).sum(axis=2)
    slopes: Floats = (total / scale**2).max(axis=1)
    return slopes
