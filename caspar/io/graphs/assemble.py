"""Make a `PoseGraph` of the lines of a file: rows for ids, storage order, roots of information.

Input: a file, and its kinds of lines. Output: `PoseGraph`. Cost: once per file, a microsecond a
line.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from caspar.errors import FileFormatError, OptionError, warn_user
from caspar.io.compressed import FilePath, open_for_reading, path_text
from caspar.io.graphs.chained import chained_poses, motions, seen_points
from caspar.io.graphs.information import covariance_roots, information_roots
from caspar.io.graphs.lines import (
    GraphRecords,
    Line,
    LineKind,
    Records,
    Section,
    parse_records,
    read_records,
)
from caspar.io.graphs.pose_graph import (
    Landmarks,
    PoseGraph,
    PoseGraphKind,
    Priors,
    SensorEdges,
    Sightings,
)
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
    """Settings for assembling records: names for messages, and what `read_graph` was told."""

    path: str
    reader: str
    indefinite: Indefinite
    has_two_numberings: bool = False


@dataclass(frozen=True, eq=False)
class Group:
    """The lines of a section, in the order of the file.

    Ids are (n, num_vertices); `offset_ids` (n, num_offsets), at least one column, with `NO_OFFSET`
    where a line names none; numbers (n, k) in storage order; roots of information (n, dim, dim).
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


UnknownLines = Literal["error", "skip"]
"""A reader's reaction to lines of a kind that it does not know."""


def read_graph(
    path: FilePath,
    tags: Mapping[bytes, LineKind],
    reader: str,
    indefinite: Indefinite = "error",
    unknown: UnknownLines = "error",
    *,
    has_two_numberings: bool = False,
) -> PoseGraph:
    """Read a graph of any format; raises as `read_g2o`.

    `tags` are the kinds of lines of the format, `reader` the function that was called, for
    messages. `has_two_numberings`: a pose and a landmark may have one id.
    """
    _check_choice("indefinite", indefinite, get_args(Indefinite))
    _check_choice("unknown", unknown, get_args(UnknownLines))
    path = path_text(path)
    with open_for_reading(path) as stream:
        records = read_records(stream, path, tags, skips_unknown=unknown == "skip")
    if records.skipped:
        kinds = ", ".join(f"{count:,} {tag}" for tag, count in records.skipped.items())
        warn_user(f"{path}: lines of kinds that are not read were passed over: {kinds}")
    return assemble(records, Reading(path, reader, indefinite, has_two_numberings))


def _check_choice(name: str, given: object, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise OptionError(f"{name}={given!r}: it must be {' or '.join(map(repr, allowed))}")


def assemble(records: GraphRecords, reading: Reading) -> PoseGraph:
    """Make the graph; a `FileFormatError` has the line if ids, numbers or matrices do not fit."""
    kind = records.kind
    groups = {section: group_of(section, records, reading) for section in Section}
    poses_from_edges = len(groups[Section.POSES].ids) == 0
    landmark_ids, pose_ids = _landmark_ids(groups), _pose_ids(groups)
    if _declares_vertices(records, groups):
        landmark_ids, pose_ids = (
            groups[section].ids[:, 0] for section in (Section.LANDMARKS, Section.POSES)
        )
    pose_rows = _rows(pose_ids, groups[Section.POSES], reading)
    landmark_rows = _rows(landmark_ids, groups[Section.LANDMARKS], reading)
    if not reading.has_two_numberings:
        _check_one_numbering(pose_rows, landmark_rows, groups, reading)

    edges = groups[Section.EDGES]
    ends = _ends(edges, pose_rows, reading)
    offsets = _Offsets(records, reading)
    sensor_edges = _sensor_edges(groups[Section.SENSOR_EDGES], pose_rows, offsets, reading)
    if poses_from_edges:
        measured = np.concatenate([edges.numbers, motions(kind, sensor_edges)])
        all_ends = np.concatenate([ends, sensor_edges.ends])
        poses = chained_poses(kind, measured, all_ends, pose_ids, reading.path)
    else:
        poses = groups[Section.POSES].numbers
    sightings, bearings = (
        _sightings(groups[section], pose_rows, landmark_rows, offsets, reading)
        for section in (Section.SIGHTINGS, Section.BEARINGS)
    )
    if len(groups[Section.LANDMARKS].ids) == 0:
        points = seen_points(kind, poses, sightings, landmark_ids, reading.path)
    else:
        points = groups[Section.LANDMARKS].numbers
    fixed, fixed_landmarks = _fixed(records.fixes, pose_rows, landmark_rows, reading)
    return PoseGraph(
        kind=kind,
        ids=pose_ids,
        poses=poses,
        fixed=fixed,
        index_a=ends[:, 0].copy(),
        index_b=ends[:, 1].copy(),
        measurement=edges.numbers,
        sqrt_information=edges.roots,
        poses_from_edges=poses_from_edges,
        skipped=records.skipped,
        landmarks=Landmarks(landmark_ids, points, fixed_landmarks),
        sensor_edges=sensor_edges,
        sightings=sightings,
        bearings=bearings,
        pose_priors=_priors(groups[Section.POSE_PRIORS], pose_rows, offsets, reading),
        position_priors=_priors(groups[Section.POSITION_PRIORS], pose_rows, offsets, reading),
        landmark_priors=_priors(groups[Section.LANDMARK_PRIORS], landmark_rows, offsets, reading),
    )


# -- ids -------------------------------------------------------------------------------------------


def _declares_vertices(records: GraphRecords, groups: Mapping[Section, Group]) -> bool:
    """Tell whether all vertices must be declared: some are, and the landmarks are not GTSAM's.

    GTSAM's files declare poses only, and seen landmarks have ids of their own.
    """
    has_landmarks = any(
        kind.section in (Section.LANDMARKS, *_OF_LANDMARKS) and not kind.is_covariance
        for kind in records.by_kind
    )
    is_declared = any(len(groups[one].ids) > 0 for one in (Section.POSES, Section.LANDMARKS))
    return has_landmarks and is_declared


def _landmark_ids(groups: Mapping[Section, Group]) -> NDArray[np.int64]:
    declared = groups[Section.LANDMARKS].ids[:, 0]
    named = [groups[section].ids[:, -1] for section in _OF_LANDMARKS]
    return declared if len(declared) > 0 else np.unique(np.concatenate(named))


def _pose_ids(groups: Mapping[Section, Group]) -> NDArray[np.int64]:
    declared = groups[Section.POSES].ids[:, 0]
    named = [groups[section].ids.reshape(-1) for section in (Section.EDGES, Section.SENSOR_EDGES)]
    named += [groups[section].ids[:, 0] for section in _NAMING_POSES]
    return declared if len(declared) > 0 else np.unique(np.concatenate(named))


_OF_LANDMARKS = (Section.SIGHTINGS, Section.BEARINGS, Section.LANDMARK_PRIORS)
_NAMING_POSES = (Section.SIGHTINGS, Section.BEARINGS, Section.POSE_PRIORS, Section.POSITION_PRIORS)


def _rows(ids: NDArray[np.int64], vertices: Group, reading: Reading) -> dict[int, int]:
    rows: dict[int, int] = {}
    for row, name in enumerate(ids.tolist()):
        first = rows.setdefault(name, row)
        if first != row:
            raise FileFormatError(
                f"{reading.path}, line {vertices.line_numbers[row]}: vertex {name} was "
                f"declared before, in line {vertices.line_numbers[first]}"
            )
    return rows


def _check_one_numbering(
    poses: Mapping[int, int],
    landmarks: Mapping[int, int],
    groups: Mapping[Section, Group],
    reading: Reading,
) -> None:
    both = sorted(poses.keys() & landmarks.keys())
    if not both:
        return
    lines = [
        int(group.line_numbers[np.argmax((group.ids == both[0]).any(axis=1))])
        for group in groups.values()
        if (group.ids == both[0]).any() and group.section is not Section.OFFSETS
    ]
    raise FileFormatError(
        f"{reading.path}, line {max(lines)}: vertex {both[0]} is a pose and a landmark; each "
        "vertex must have an id of its own"
    )


def _found(
    group: Group, column: int, rows: Mapping[int, int], reading: Reading
) -> NDArray[np.int32]:
    found = np.empty(len(group.ids), dtype=np.int32)
    for place, name in enumerate(group.ids[:, column].tolist()):
        row = rows.get(name)
        if row is None:
            raise FileFormatError(
                f"{reading.path}, line {group.line_numbers[place]}: the {group.section.value} "
                f"names vertex {name}, which "
                "the file does not declare; it must declare all vertices or none"
            )
        found[place] = row
    return found


def _ends(edges: Group, poses: Mapping[int, int], reading: Reading) -> NDArray[np.int32]:
    is_loop = edges.ids[:, 0] == edges.ids[:, 1]
    if is_loop.any():
        row = int(np.argmax(is_loop))
        raise FileFormatError(
            f"{reading.path}, line {edges.line_numbers[row]}: the edge joins vertex "
            f"{edges.ids[row, 0]} with itself; an edge must join two vertices"
        )
    return np.stack([_found(edges, column, poses, reading) for column in (0, 1)], axis=1)


def _sensor_edges(
    group: Group, poses: Mapping[int, int], offsets: "_Offsets", reading: Reading
) -> SensorEdges:
    ends = _ends(group, poses, reading)
    return SensorEdges(
        index_a=ends[:, 0].copy(),
        index_b=ends[:, 1].copy(),
        offset_a=offsets.of(group),
        offset_b=offsets.of(group, 1),
        measurement=group.numbers,
        sqrt_information=group.roots,
    )


class _Offsets:
    """The offsets of a file, each parsed when a line first names it."""

    def __init__(self, records: GraphRecords, reading: Reading) -> None:
        self._records = records
        self._reading = reading
        self._poses: dict[int, FloatArray] = {
            NO_OFFSET: np.array(records.kind.identity, dtype=np.float64)
        }

    def of(self, group: Group, column: int = 0) -> FloatArray:
        """(n, storage_dim) an offset of each line."""
        names = group.offset_ids[:, column].tolist()
        for name, line in zip(names, group.line_numbers.tolist(), strict=True):
            if name not in self._poses:
                self._poses[name] = self._parsed(name, line)
        if not names:
            return np.empty((0, self._records.kind.storage_dim))
        return np.stack([self._poses[name] for name in names])

    def _parsed(self, name: int, named_in: int) -> FloatArray:
        line, kind = self._records.offsets.get(name, (Line(0, b""), None))
        if kind is None or kind.graph is not self._records.kind:
            raise FileFormatError(
                f"{self._reading.path}, line {named_in}: the line names offset {name}, which no "
                "PARAMS line of the file declares"
            )
        other = self._records.other_offsets.get(name)
        if other is not None:
            raise FileFormatError(
                f"{self._reading.path}, line {other.number}: offset {name} was declared before, as "
                f"something else, in line {line.number}"
            )
        records = parse_records([line], kind, self._reading.path)
        pose: FloatArray = stored(kind, records, self._reading.path)[0]
        return pose


def _sightings(
    group: Group,
    poses: Mapping[int, int],
    landmarks: Mapping[int, int],
    offsets: _Offsets,
    reading: Reading,
) -> Sightings:
    return Sightings(
        pose=_found(group, 0, poses, reading),
        landmark=_found(group, 1, landmarks, reading),
        offset=offsets.of(group),
        measurement=group.numbers,
        sqrt_information=group.roots,
    )


def _priors(group: Group, rows: Mapping[int, int], offsets: _Offsets, reading: Reading) -> Priors:
    return Priors(_found(group, 0, rows, reading), offsets.of(group), group.numbers, group.roots)


def _fixed(
    fixes: Mapping[int, int],
    poses: Mapping[int, int],
    landmarks: Mapping[int, int],
    reading: Reading,
) -> Iterable[NDArray[np.bool_]]:
    """Two arrays: True for the poses and for the landmarks that FIX lines name."""
    fixed = [np.zeros(len(rows), dtype=np.bool_) for rows in (poses, landmarks)]
    for name, line_number in fixes.items():
        if name not in poses and name not in landmarks:
            raise FileFormatError(
                f"{reading.path}, line {line_number}: FIX names vertex {name}, which the file "
                "does not have"
            )
        for mask, rows in zip(fixed, (poses, landmarks), strict=True):
            if name in rows:
                mask[rows[name]] = True
    return fixed
