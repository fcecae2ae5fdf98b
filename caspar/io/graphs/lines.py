"""Sort the lines of a file of poses by what they declare, and parse them in bulk.

Input: the file's bytes, and a table of tags. Output: `GraphRecords`: ids and numbers, with line
numbers. Cost: some microseconds a line, once per file. Text is kept for some thousand lines or some
megabytes at a time, so that memory goes with the numbers that the file holds.
"""

import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from caspar.errors import FileFormatError
from caspar.io.compressed import bounded_lines
from caspar.io.graphs.pose_graph import PoseGraphKind
from caspar.io.numbers import parse_numbers, shown
from caspar.io.rotations import FloatArray

LONGEST_LINE_BYTES = 1 << 20
"""An edge in space has 30 numbers; only a comment or a FIX line of 50,000 ids could be longer."""

MAX_UNKNOWN_KINDS = 100
"""Kinds of unknown lines that are passed over; a file with more of them is no graph."""

LARGEST_ID = 2**63 - 1
"""Ids are int64."""

_LINES_AT_ONCE = 1 << 14
_BYTES_AT_ONCE = 1 << 23  # long lines are mostly white space, of which nothing is kept
_LONGEST_OFFSET_BYTES = 4096  # an id and seven numbers; a longer line is taken for none


class Section(Enum):
    """The thing that a line declares; the value names it in messages."""

    POSES = "vertex"
    LANDMARKS = "landmark"
    EDGES = "edge"
    SENSOR_EDGES = "edge between sensors"
    SIGHTINGS = "sighting"
    BEARINGS = "bearing"
    POSE_PRIORS = "pose prior"
    POSITION_PRIORS = "position prior"
    LANDMARK_PRIORS = "landmark prior"
    OFFSETS = "offset"

    @property
    def num_vertices(self) -> int:
        """Ids of vertices that a line begins with; of an offset its own id."""
        return 2 if self in _OF_TWO else 1


_OF_TWO = (Section.EDGES, Section.SENSOR_EDGES, Section.SIGHTINGS, Section.BEARINGS)


def as_written(matrices: FloatArray) -> FloatArray:
    """Return the same matrices: the file has the order of `PoseGraph.sqrt_information`."""
    return matrices


@dataclass(frozen=True)
class OtherOrder:
    """An order in which other programs write the information of such lines.

    `information` brings (n, dim, dim) matrices from it into that of `PoseGraph.sqrt_information`;
    `advice` is for a file whose matrices are positive semidefinite in it only.
    """

    information: Callable[[FloatArray], FloatArray]
    advice: str


@dataclass(frozen=True)
class LineKind:
    """The format behind a tag: ids of vertices and offsets, numbers, an upper triangle.

    Attributes:
        section: What the line declares.
        graph: The kind of graph that it belongs to.
        num_numbers: Numbers that are measured.
        dim: Rows of the matrix whose upper triangle follows, row by row; 0: there is none.
        num_offsets: Ids of offsets behind those of the vertices.
        is_covariance: Whether the matrix is a covariance instead of its inverse.
        stored: Brings (n, num_numbers) numbers into storage order; not for the quaternions of g2o,
            which are checked first.
        information: Brings (n, dim, dim) matrices as they are written into the order of
            `PoseGraph.sqrt_information`.
        other_order: An order that is often mistaken for that of these lines; None: there is none.
    """

    section: Section
    graph: PoseGraphKind
    num_numbers: int
    dim: int = 0
    num_offsets: int = 0
    is_covariance: bool = False
    stored: Callable[[FloatArray], FloatArray] = as_written
    information: Callable[[FloatArray], FloatArray] = as_written
    other_order: OtherOrder | None = None

    @property
    def num_ids(self) -> int:
        """Ids on a line, those of offsets among them."""
        return self.section.num_vertices + self.num_offsets

    @property
    def num_values(self) -> int:
        """Numbers on a line behind the ids."""
        return self.num_numbers + self.dim * (self.dim + 1) // 2

    @property
    def what(self) -> str:
        """Name of a line, for messages."""
        return f"an {self.graph.name} {self.section.value}"


_SHOWN_TAGS = 4  # in a message
_FIX_TAG = b"FIX"
_NAME = re.compile(rb"[A-Za-z_][\w:-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Line:
    """A line of the file: its number, counting from 1, and what follows its tag."""

    number: int
    text: bytes


@dataclass(frozen=True, eq=False)
class Records:
    """Parsed lines of one tag: ids, finite values, and the line of each record."""

    ids: NDArray[np.int64]
    values: NDArray[np.float64]
    line_numbers: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GraphRecords:
    """The lines of a file by what they declare, each sort in the order of the file.

    Attributes:
        kind: what all poses and measurements are.
        by_kind: the records of each kind of lines that the file has.
        offsets: the first line of each offset, not parsed yet, by the offset's id.
        other_offsets: a line that declares an offset again, as something else, by the offset's id.
        fixes: the first line that fixes each vertex, by the vertex's id.
        skipped: the number of lines of each kind that is not read, by their tag.
    """

    kind: PoseGraphKind
    by_kind: Mapping[LineKind, Records]
    offsets: Mapping[int, tuple[Line, LineKind]]
    other_offsets: Mapping[int, Line]
    fixes: Mapping[int, int]
    skipped: Mapping[str, int]


class _RecordReader:
    """Collects lines of one kind and parses them when there are enough."""

    def __init__(self, kind: LineKind, path: str) -> None:
        self._kind = kind
        self._path = path
        self._lines: list[Line] = []
        self._num_bytes = 0
        self._parts: list[Records] = []

    def add(self, line: Line) -> None:
        self._lines.append(line)
        self._num_bytes += len(line.text)
        if len(self._lines) == _LINES_AT_ONCE or self._num_bytes >= _BYTES_AT_ONCE:
            self._parse()

    def all_records(self) -> Records:
        self._parse()
        return Records(
            np.concatenate([part.ids for part in self._parts]),
            np.concatenate([part.values for part in self._parts]),
            np.concatenate([part.line_numbers for part in self._parts]),
        )

    def _parse(self) -> None:
        self._parts.append(parse_records(self._lines, self._kind, self._path))
        self._lines = []
        self._num_bytes = 0


def read_records(
    stream: io.BufferedIOBase,
    path: str,
    tags: Mapping[bytes, LineKind],
    *,
    skips_unknown: bool = False,
) -> GraphRecords:
    """Read all lines, sort them by their tags and parse them.

    With `skips_unknown` lines with unknown tags are counted instead of refused. Raises a
    `FileFormatError` if a tag is unknown and not skipped, poses of two kinds are mixed, there are
    none, a line is longer than `LONGEST_LINE_BYTES` or does not hold what its tag calls for.
    """
    readers: dict[LineKind, _RecordReader] = {}
    offsets: dict[int, tuple[Line, LineKind]] = {}
    other_offsets: dict[int, Line] = {}
    fixes: dict[int, int] = {}
    skipped: Counter[str] = Counter()
    kind: PoseGraphKind | None = None
    for number, text in bounded_lines(stream, path, LONGEST_LINE_BYTES):
        line = Line(number, text)
        if not line.text.strip() or line.text.lstrip().startswith(b"#"):
            continue
        tag, *rest = line.text.split(None, 1)
        content = Line(line.number, rest[0] if rest else b"")
        line_kind = tags.get(tag)
        if line_kind is not None and line_kind.section is Section.OFFSETS:
            _add_offset(content, line_kind, offsets, other_offsets)
        elif tag.startswith(b"PARAMS_"):
            continue  # it serves lines that are not read
        elif tag == _FIX_TAG:
            _add_fixes(content, fixes, path)
        elif line_kind is None:
            if not (skips_unknown and _may_skip(tag, skipped)):
                raise _unknown(tag, line, tags, path)
            skipped[tag.decode()] += 1
        else:
            kind = kind or line_kind.graph
            line_kind = _as_counted(line_kind, content)
            if line_kind.graph is not kind:
                raise FileFormatError(
                    f"{path}, line {line.number}: an {line_kind.graph.name} line in a file that "
                    f"began with {kind.name}; a graph must be of one kind"
                )
            if line_kind not in readers:
                readers[line_kind] = _RecordReader(line_kind, path)
            readers[line_kind].add(content)
    if kind is None:
        raise FileFormatError(f"{path}: the file holds no vertices and no edges")
    by_kind = {one: reader.all_records() for one, reader in readers.items()}
    return GraphRecords(kind, by_kind, offsets, other_offsets, fixes, dict(skipped))


def _as_counted(kind: LineKind, line: Line) -> LineKind:
    """The kind of a line that should name an offset; many programs leave that out.

    Numbers tell: there is one entry less then.
    """
    if kind.num_offsets == 1 and len(line.text.split()) == kind.num_ids + kind.num_values - 1:
        return _without_offset(kind)
    return kind


@cache
def _without_offset(kind: LineKind) -> LineKind:
    return replace(kind, num_offsets=0)


def _unknown(tag: bytes, line: Line, tags: Mapping[bytes, LineKind], path: str) -> FileFormatError:
    shown_tags = [known.decode() for known in list(tags)[:_SHOWN_TAGS]] + [_FIX_TAG.decode()]
    others = len(tags) - _SHOWN_TAGS
    return FileFormatError(
        f"{path}, line {line.number}: lines of the kind {shown(tag)} are not "
        f"read; allowed are {', '.join(shown_tags)}"
        + (f" and {others} others" if others > 0 else "")
        + "; unknown='skip' passes over what is not read"
    )


def _add_offset(
    line: Line, kind: LineKind, offsets: dict[int, tuple[Line, LineKind]], others: dict[int, Line]
) -> None:
    """Note the line of an offset; what is wrong with it matters only if it is used.

    A file that is not read for its offsets, such as one without landmarks, may have any.
    """
    tokens = line.text.split(None, 1)
    if tokens and len(line.text) <= _LONGEST_OFFSET_BYTES and tokens[0].isdigit():
        short = Line(line.number, b" ".join(line.text.split()))
        first, first_kind = offsets.setdefault(int(tokens[0]), (short, kind))
        if (first.text, first_kind) != (short.text, kind):
            others.setdefault(int(tokens[0]), short)


def _may_skip(tag: bytes, skipped: Mapping[str, int]) -> bool:
    if _NAME.fullmatch(tag) is None:
        return False
    return len(skipped) < MAX_UNKNOWN_KINDS or tag.decode() in skipped


def _add_fixes(line: Line, fixes: dict[int, int], path: str) -> None:
    tokens = line.text.split()
    if not tokens:
        raise FileFormatError(
            f"{path}, line {line.number}: FIX names no vertex; it must name at least one"
        )
    for token in tokens:
        fixes.setdefault(_parse_id(token, line, path), line.number)


def parse_records(lines: Sequence[Line], kind: LineKind, path: str) -> Records:
    """Parse lines, without their tag, that each hold some ids and then some numbers.

    Raises a `FileFormatError` if a line has too few or too many entries, an id is not a natural
    number, or an entry is not a finite number.
    """
    num_ids, num_values, what = kind.num_ids, kind.num_values, kind.what
    ids = np.empty((len(lines), num_ids), dtype=np.int64)
    for row, line in enumerate(lines):
        tokens = line.text.split()
        if len(tokens) != num_ids + num_values:
            raise FileFormatError(
                f"{path}, line {line.number}: {what} has {len(tokens)} entries after "
                f"its tag; it must have {num_ids + num_values} ({num_ids} id, {num_values} numbers)"
            )
        ids[row] = [_parse_id(token, line, path) for token in tokens[:num_ids]]
    # All at once, ids included: this is several times as fast as line by line.
    run = parse_numbers(b" ".join(line.text for line in lines))
    num_columns = num_ids + num_values
    num_values_found = len(run.values)
    if run.stray is not None:
        line = lines[num_values_found // num_columns]
        raise FileFormatError(f"{path}, line {line.number}: {shown(run.stray)} is not a number")
    values = run.values.reshape(len(lines), num_columns)[:, num_ids:]
    is_finite = np.isfinite(values).all(axis=1)
    if not is_finite.all():
        line = lines[int(np.argmin(is_finite))]
        raise FileFormatError(
            f"{path}, line {line.number}: {what} holds a number that is not finite"
        )
    return Records(ids, values, np.array([line.number for line in lines], dtype=np.int64))


def _parse_id(token: bytes, line: Line, path: str) -> int:
    """Parse the number of a vertex, an integer from 0 to 2^63 - 1."""
    # The length is limited because Python refuses to convert thousands of digits.
    if not token.isdigit() or len(token) > 40 or int(token) > LARGEST_ID:
        raise FileFormatError(
            f"{path}, line {line.number}: {shown(token)} is not a vertex id; allowed "
            "are the integers 0 to 2^63 - 1"
        )
    return int(token)
