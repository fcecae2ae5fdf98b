"""Sort the lines of a g2o file by what they declare, and parse them in bulk.

Input: the file's bytes. Output: `G2oRecords`: ids and numbers, with line numbers.
Cost: some microseconds a line, once per file. Text is kept for some thousand lines or some
megabytes at a time, so that memory goes with the numbers that the file holds.
"""

import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from caspar.errors import FileFormatError
from caspar.io.numbers import parse_numbers, shown
from caspar.io.pose_graph_kind import PoseGraphKind

LONGEST_LINE_BYTES = 1 << 20
"""An edge in space has 30 numbers; only a comment or a FIX line of 50,000 ids could be longer."""

MAX_UNKNOWN_KINDS = 100
"""Kinds of unknown lines that are passed over; a file with more of them is no graph."""

_NUM_IDS = 2**63  # ids are int64
_LINES_AT_ONCE = 1 << 14
_BYTES_AT_ONCE = 1 << 23  # long lines are mostly white space, of which nothing is kept
_PASSED_OVER = (b"#", b"PARAMS_")


class _Role(Enum):
    VERTEX = "VERTEX"
    EDGE = "EDGE"


_TAGS = {
    f"{role.value}_{kind.value}".encode(): (role, kind) for role in _Role for kind in PoseGraphKind
}
_FIX_TAG = b"FIX"
_NAME = re.compile(rb"[A-Za-z_][\w:-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Line:
    """A line of the file: its number, counting from 1, and what follows its tag."""

    number: int
    text: bytes


@dataclass(frozen=True, eq=False)
class Records:
    """Parsed lines of one tag.

    Attributes:
        ids: (num_records, num_ids) int64.
        values: (num_records, num_values) float64, finite.
        line_numbers: (num_records,) int64, the line of each record.
    """

    ids: NDArray[np.int64]
    values: NDArray[np.float64]
    line_numbers: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class G2oRecords:
    """The lines of a file by what they declare, each sort in the order of the file.

    Attributes:
        kind: what all vertices and edges are.
        vertices: one id a record.
        edges: two ids a record.
        fixes: the first line that fixes each vertex, by the vertex's id.
        skipped: the number of lines of each kind that is not read, by their tag.
    """

    kind: PoseGraphKind
    vertices: Records
    edges: Records
    fixes: dict[int, int]
    skipped: dict[str, int]


class _RecordReader:
    """Collects the lines of one role and parses them when there are enough."""

    def __init__(self, role: _Role, kind: PoseGraphKind, path: str) -> None:
        self._num_ids = 1 if role is _Role.VERTEX else 2
        self._num_values = kind.num_numbers
        if role is _Role.EDGE:
            self._num_values += kind.tangent_dim * (kind.tangent_dim + 1) // 2
        self._what = f"an {kind.name} {role.value.lower()}"
        self._path = path
        self._lines: list[Line] = []
        self._num_bytes = 0
        self._parts: list[Records] = []

    def add(self, line: Line) -> None:
        """Take a line without its tag."""
        self._lines.append(line)
        self._num_bytes += len(line.text)
        if len(self._lines) == _LINES_AT_ONCE or self._num_bytes >= _BYTES_AT_ONCE:
            self._parse()

    def all_records(self) -> Records:
        """Return what all lines hold."""
        self._parse()
        return Records(
            np.concatenate([part.ids for part in self._parts]),
            np.concatenate([part.values for part in self._parts]),
            np.concatenate([part.line_numbers for part in self._parts]),
        )

    def _parse(self) -> None:
        self._parts.append(
            _parse_records(self._lines, self._what, self._num_ids, self._num_values, self._path)
        )
        self._lines = []
        self._num_bytes = 0


def read_records(
    stream: io.BufferedIOBase, path: str, *, skips_unknown: bool = False
) -> G2oRecords:
    """Read all lines, sort them by their tags and parse them.

    Args:
        stream: the text of a g2o file.
        path: its name, for messages.
        skips_unknown: whether lines with unknown tags are counted instead of refused.

    Returns:
        The records.

    Raises:
        FileFormatError: a tag is unknown and not skipped, poses of two kinds are mixed, there are
            none, a line is longer than `LONGEST_LINE_BYTES` or does not hold what its tag calls
            for.
    """
    readers: dict[_Role, _RecordReader] = {}
    fixes: dict[int, int] = {}
    skipped: Counter[str] = Counter()
    kind: PoseGraphKind | None = None
    for line in _lines(stream, path):
        if not line.text.strip() or line.text.lstrip().startswith(_PASSED_OVER):
            continue
        tag, *rest = line.text.split(None, 1)
        content = Line(line.number, rest[0] if rest else b"")
        if tag == _FIX_TAG:
            _add_fixes(content, fixes, path)
            continue
        if tag not in _TAGS and skips_unknown and _may_skip(tag, skipped):
            skipped[tag.decode()] += 1
            continue
        if tag not in _TAGS:
            allowed = ", ".join([*(known.decode() for known in _TAGS), _FIX_TAG.decode()])
            raise FileFormatError(
                f"{path}, line {line.number}: lines of the kind {shown(tag)} are not "
                f"read; allowed are {allowed}"
            )
        role, line_kind = _TAGS[tag]
        if kind is not None and line_kind is not kind:
            raise FileFormatError(
                f"{path}, line {line.number}: an {line_kind.name} line in a file that "
                f"began with {kind.name}; a graph must be of one kind"
            )
        if kind is None:
            kind = line_kind
            readers = {role: _RecordReader(role, kind, path) for role in _Role}
        readers[role].add(content)
    if kind is None:
        raise FileFormatError(f"{path}: the file holds no vertices and no edges")
    vertices, edges = (readers[role].all_records() for role in _Role)
    return G2oRecords(kind, vertices, edges, fixes, dict(skipped))


def _may_skip(tag: bytes, skipped: Mapping[str, int]) -> bool:
    """Tell whether a tag may name a kind of lines, and not too many others came before."""
    if _NAME.fullmatch(tag) is None:
        return False
    return len(skipped) < MAX_UNKNOWN_KINDS or tag.decode() in skipped


def _lines(stream: io.BufferedIOBase, path: str) -> Iterator[Line]:
    """Read one line after the other, none longer than the limit."""
    number = 0
    while text := stream.readline(LONGEST_LINE_BYTES + 1):
        number += 1
        if len(text) > LONGEST_LINE_BYTES:
            raise FileFormatError(
                f"{path}, line {number}: the line is longer than "
                f"{LONGEST_LINE_BYTES} bytes, the limit; it begins with {shown(text)}"
            )
        yield Line(number, text)


def _add_fixes(line: Line, fixes: dict[int, int], path: str) -> None:
    """Note the vertices that a FIX line names."""
    tokens = line.text.split()
    if not tokens:
        raise FileFormatError(
            f"{path}, line {line.number}: FIX names no vertex; it must name at least one"
        )
    for token in tokens:
        fixes.setdefault(_parse_id(token, line, path), line.number)


def _parse_records(
    lines: list[Line], what: str, num_ids: int, num_values: int, path: str
) -> Records:
    """Parse lines that each hold some ids and then some numbers.

    Args:
        lines: the lines, without their tag.
        what: what a line declares, for messages.
        num_ids: ids on each line.
        num_values: numbers after the ids.
        path: the file's name, for messages.

    Returns:
        One record a line.

    Raises:
        FileFormatError: a line has too few or too many entries, an id is not a natural number, or
            an entry is not a finite number.
    """
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
    """Parse the number of a vertex.

    Args:
        token: the id as written.
        line: where it stands, for messages.
        path: the file's name, for messages.

    Returns:
        The id.

    Raises:
        FileFormatError: it is not an integer from 0 to 2^63 - 1.
    """
    # The length is limited because Python refuses to convert thousands of digits.
    if not token.isdigit() or len(token) > 40 or int(token) >= _NUM_IDS:
        raise FileFormatError(
            f"{path}, line {line.number}: {shown(token)} is not a vertex id; allowed "
            "are the integers 0 to 2^63 - 1"
        )
    return int(token)
