"""Lines of a file by what they declare, their numbers in storage order, with roots of information.

Input: `GraphRecords`. Output: a `Group` for each section. Cost: once per file, a microsecond a
line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from caspar.errors import FileFormatError
from caspar.io.graphs.information import covariance_roots, information_roots
from caspar.io.graphs.kind import PoseGraphKind
from caspar.io.graphs.lines import GraphRecords, LineKind, Records, Section
from caspar.io.rotations import FloatArray

# A quaternion written with few digits is of length one to this; one whose numbers are in another
# order, or no quaternion at all, mostly is not.
_LENGTH_TOLERANCE = 1e-2

Indefinite = Literal["error", "clip"]
"""A reader's reaction to information that is not positive semidefinite."""

NO_OFFSET = -1
"""The id of an offset where a line names none."""


@dataclass(frozen=True)
class Reading:
    """Settings for assembling the records.

    Attributes:
        path: The file, for messages.
        reader: The function that was called, for messages.
        indefinite: What is done with information that is not positive semidefinite.
        has_two_numberings: Whether a pose and a landmark may have one id.
    """

    path: str
    reader: str
    indefinite: Indefinite
    has_two_numberings: bool = False


@dataclass(frozen=True, eq=False)
class Group:
    """The lines of a section, in the order of the file.

    Attributes:
        section: What they declare.
        ids: (n, num_vertices).
        offset_ids: (n, num_offsets), at least one column; `NO_OFFSET` where a line names none.
        numbers: (n, k) in storage order.
        roots: (n, dim, dim) of information.
        line_numbers: (n,).
    """

    section: Section
    ids: NDArray[np.int64]
    offset_ids: NDArray[np.int64]
    numbers: FloatArray
    roots: FloatArray
    line_numbers: NDArray[np.int64]


def group_of(section: Section, records: GraphRecords, reading: Reading) -> Group:
    """Gather the records of all kinds of lines that declare the same."""
    parts = [
        _part(kind, found, reading)
        for kind, found in records.by_kind.items()
        if kind.section is section
    ]
    if not parts:
        return _nothing(section, records.kind)
    lines = np.concatenate([part.line_numbers for part in parts])
    order = np.argsort(lines, kind="stable")

    def joined(name: str) -> NDArray[np.generic]:
        return np.ascontiguousarray(np.concatenate([getattr(part, name) for part in parts])[order])

    names = ("ids", "offset_ids", "numbers", "roots", "line_numbers")
    return Group(section, *map(joined, names))  # type: ignore[arg-type]


_OF_POSES = (Section.POSES, Section.EDGES, Section.SENSOR_EDGES, Section.POSE_PRIORS)
"""Sections whose numbers are poses."""


def _nothing(section: Section, kind: PoseGraphKind) -> Group:
    """A section without lines."""
    is_pose = section in _OF_POSES
    dim, tangent_dim = (1, 1) if section is Section.BEARINGS else (kind.dim, kind.dim)
    if is_pose:
        dim, tangent_dim = kind.storage_dim, kind.tangent_dim
    ids = np.empty((0, section.num_vertices), np.int64)
    roots = np.empty((0, tangent_dim, tangent_dim))
    return Group(section, ids, ids[:, :2], np.empty((0, dim)), roots, np.empty(0, np.int64))


def _part(kind: LineKind, records: Records, reading: Reading) -> Group:
    num_vertices = kind.section.num_vertices
    count = len(records.ids)
    numbers = stored(kind, records, reading.path)
    roots = np.empty((count, 0, 0))
    if kind.dim > 0:
        roots = _roots(kind, records, reading)
    has_offsets = kind.num_offsets > 0 and kind.section is not Section.POSITION_PRIORS
    offset_ids = records.ids[:, num_vertices:] if has_offsets else np.full((count, 1), NO_OFFSET)
    return Group(
        kind.section,
        records.ids[:, :num_vertices],
        offset_ids,
        numbers,
        roots,
        records.line_numbers,
    )


def stored(kind: LineKind, records: Records, path: str) -> FloatArray:
    """Bring numbers as written in the file into storage order."""
    written = records.values[:, : kind.num_numbers]
    has_quaternion = kind.num_numbers == PoseGraphKind.SE3.storage_dim
    if not has_quaternion:
        return kind.stored(written)
    quaternion = written[:, 3:]
    with np.errstate(over="ignore"):  # a length of infinity is refused below
        length = np.linalg.norm(quaternion, axis=1)
    is_unit = np.abs(length - 1.0) <= _LENGTH_TOLERANCE
    if not is_unit.all():
        row = int(np.argmin(is_unit))
        raise FileFormatError(
            f"{path}, line {records.line_numbers[row]}: the quaternion (qx qy qz qw) "
            f"has length {length[row]:.6g}; it must be 1 to {_LENGTH_TOLERANCE:g}"
        )
    return np.concatenate([quaternion / length[:, None], written[:, :3]], axis=1)


def _roots(kind: LineKind, records: Records, reading: Reading) -> FloatArray:
    """Roots of information from upper triangles, row by row."""
    triangle = records.values[:, kind.num_numbers :]
    matrices = np.empty((len(triangle), kind.dim, kind.dim))
    rows, columns = np.triu_indices(kind.dim)
    matrices[:, rows, columns] = triangle
    matrices[:, columns, rows] = triangle
    if kind.is_covariance:
        roots, faults = covariance_roots(kind.information(matrices))
        if faults:
            row, fault = next(iter(faults.items()))
            raise FileFormatError(
                f"{reading.path}, line {records.line_numbers[row]}: the covariance {fault}; it "
                f"must be positive definite{_and_others(faults)}"
            )
        return roots
    roots, faults = information_roots(kind.information(matrices))
    if len(faults) > 0 and reading.indefinite == "error":
        row, fault = next(iter(faults.items()))
        advice = (
            f"{reading.reader}(..., indefinite='clip') reads the "
            "file nevertheless: it sets negative eigenvalues of the matrix scaled to unit diagonal "
            "to 0, and rows and columns whose diagonal entry is not positive too"
        )
        other = kind.other_order
        if other is not None and not information_roots(other.information(matrices))[1]:
            advice = other.advice
        raise FileFormatError(
            f"{reading.path}, line {records.line_numbers[row]}: the information matrix {fault}; "
            f"it must be positive semidefinite{_and_others(faults)}. {advice}"
        )
    return roots


def _and_others(faults: Mapping[int, str]) -> str:
    return "" if len(faults) == 1 else f" ({len(faults) - 1:,} more have such a fault)"
