"""Projective transformations of space, as of maps of a camera that is not calibrated.

Two such maps of the same scene differ by 15 numbers, not by the 7 of a similarity (Hartley and
Zisserman, *Multiple View Geometry*, section 10.3); graphs of them join submaps (Maggio, Lim and
Carlone, *VGGT-SLAM*, 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import symforce.symbolic as sf
from symforce.ops.interfaces import LieGroup

_SIDE = 4
_OFF_DIAGONAL = tuple((i, j) for i in range(_SIDE) for j in range(_SIDE) if i != j)


class SL4(LieGroup):
    """A 4 x 4 matrix H of determinant 1; in storage column by column, 16 numbers.

    A step A has 15 entries: the 12 off the diagonal, row by row, then the first three on it; the
    last one makes the trace 0. H becomes H (I + A), divided by the fourth root of the determinant
    of I + A, which must be positive. Start values must have a determinant of 1: divide a matrix
    by the fourth root of its determinant.

    Args:
        matrix: H, an `sf.M44`.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> stretched = caspar.factors.SL4(sf.M44.diag([2, 1, 1, sf.Rational(1, 2)]))
        >>> list(stretched * sf.V3(1, 2, 3))
        [4, 4, 6]
        >>> list(stretched.inverse() * sf.V3(4, 4, 6))
        [1, 2, 3]
    """

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix

    def __repr__(self) -> str:
        """The class and the matrix."""
        return f"{type(self).__name__}({self.matrix!r})"

    # -- storage -------------------------------------------------------------------------------

    @classmethod
    def storage_dim(cls) -> int:
        """Return the number of entries of the matrix."""
        return _SIDE * _SIDE

    def to_storage(self) -> list[Any]:
        """Return the entries, column by column."""
        return list(self.matrix.to_storage())

    @classmethod
    def from_storage(cls, elements: Sequence[Any]) -> SL4:
        """Return the transformation of such entries."""
        return cls(sf.M44.from_storage(list(elements)))

    # -- group ---------------------------------------------------------------------------------

    @classmethod
    def identity(cls) -> SL4:
        """The transformation that changes nothing."""
        return cls(sf.M44.eye())

    def compose(self, other: SL4) -> SL4:
        """This transformation after another one."""
        return type(self)(self.matrix * other.matrix)

    def __mul__(self, other: Any) -> Any:
        """Compose with another transformation, or map a point, an `sf.V3`."""
        if isinstance(other, SL4):
            return self.compose(other)
        x, y, z, w = self.matrix * sf.V4(*other, 1)
        return sf.V3(x / w, y / w, z / w)

    def inverse(self) -> SL4:
        """The transformation that undoes this one: the adjugate, as the determinant is 1."""
        return type(self)(_adjugate(self.matrix))

    # -- steps ---------------------------------------------------------------------------------

    @classmethod
    def tangent_dim(cls) -> int:
        """Return the number of entries of a step."""
        return _SIDE * _SIDE - 1

    @classmethod
    def from_tangent(cls, vec: Sequence[Any], epsilon: Any = 0) -> SL4:
        """The identity after a step."""
        moved = sf.M44.eye() + _traceless(vec)
        return cls(moved / sf.sqrt(sf.sqrt(_determinant(moved))))

    def to_tangent(self, epsilon: Any = 0) -> list[Any]:
        """The step that leads here from the identity; the trace must not be 0."""
        scale = _SIDE / sum(self.matrix[i, i] for i in range(_SIDE))
        off = [scale * self.matrix[place] for place in _OFF_DIAGONAL]
        return [*off, *(scale * self.matrix[i, i] - 1 for i in range(_SIDE - 1))]

    def storage_D_tangent(self, epsilon: Any = 0) -> Any:  # noqa: N802
        """(16, 15) derivative of the storage by a step."""
        steps = [[int(i == k) for i in range(_SIDE * _SIDE - 1)] for k in range(_SIDE * _SIDE - 1)]
        columns = [list((self.matrix * _traceless(one)).to_storage()) for one in steps]
        return sf.Matrix(columns).T

    def tangent_D_storage(self, epsilon: Any = 0) -> Any:  # noqa: N802
        """(15, 16) derivative of a step by the storage."""
        inverse, rows = self.inverse().matrix, []
        for column in range(_SIDE):
            for row in range(_SIDE):
                change = sf.M44.zero()
                for i in range(_SIDE):
                    change[i, column] = inverse[i, row]
                mean = inverse[column, row] / _SIDE
                off = [change[place] for place in _OFF_DIAGONAL]
                rows.append([*off, *(change[i, i] - mean for i in range(_SIDE - 1))])
        return sf.Matrix(rows).T


def _traceless(step: Sequence[Any]) -> Any:
    """A of the entries of a step."""
    made = sf.M44.zero()
    for place, entry in zip(_OFF_DIAGONAL, step, strict=False):
        made[place] = entry
    diagonal = list(step[len(_OFF_DIAGONAL) :])
    for i, entry in enumerate([*diagonal, -sum(diagonal)]):
        made[i, i] = entry
    return made


def _minors(m: Any) -> tuple[list[Any], list[Any]]:
    """The 2 x 2 determinants of the upper two rows and of the lower two, by pairs of columns."""
    pairs = [(i, j) for i in range(_SIDE) for j in range(i + 1, _SIDE)]
    upper, lower = (
        [m[first, i] * m[first + 1, j] - m[first, j] * m[first + 1, i] for i, j in pairs]
        for first in (0, 2)
    )
    return upper, lower


def _determinant(m: Any) -> Any:
    s, c = _minors(m)
    return s[0] * c[5] - s[1] * c[4] + s[2] * c[3] + s[3] * c[2] - s[4] * c[1] + s[5] * c[0]


def _adjugate(m: Any) -> Any:
    s, c = _minors(m)
    made = sf.M44.zero()
    for row, (of, own) in enumerate(((c, 1), (c, 0), (s, 3), (s, 2))):
        # column `row` of the adjugate, by the minors of the two rows that it leaves out
        a, b, d, e = (m[own, k] for k in range(_SIDE))
        entries = (
            b * of[5] - d * of[4] + e * of[3],
            -a * of[5] + d * of[2] - e * of[1],
            a * of[4] - b * of[2] + e * of[0],
            -a * of[3] + b * of[1] - d * of[0],
        )
        for k, entry in enumerate(entries):
            made[k, row] = entry if row % 2 == 0 else -entry
    return made
