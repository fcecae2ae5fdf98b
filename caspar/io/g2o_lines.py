"""Sort the lines of a g2o file by what they declare, and parse them in bulk.

Input: the file's bytes. Output: `G2oLines`, then `Records` of ids and numbers, with line numbers.
Cost: some microseconds a line, once per file.
"""

import io
import os
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from caspar.errors import FileFormatError
from caspar.io.compressed import FilePath
from caspar.io.numbers import parse_numbers, shown
from caspar.io.pose_graph_kind import PoseGraphKind

_NUM_IDS = 2**63  # ids are int64
_PASSED_OVER = (b"#", b"PARAMS_")


class _Role(Enum):
    VERTEX = "VERTEX"
    EDGE = "EDGE"
    FIX = "FIX"


_TAGS = {
    f"{role.value}_{kind.value}".encode(): (role, kind)
    for role in (_Role.VERTEX, _Role.EDGE)
    for kind in PoseGraphKind
}
_FIX_TAG = b"FIX"


@dataclass(frozen=True)
class Line:
    """A line of the file: its number, counting from 1, and what follows its tag."""

    number: int
    text: bytes


@dataclass(frozen=True)
class G2oLines:
    """The lines of a file, in its order.

    Attributes:
        kind: what all vertices and edges are.
        vertices: vertex lines.
        edges: edge lines.
        fixes: FIX lines.
    """

    kind: PoseGraphKind
    vertices: list[Line]
    edges: list[Line]
    fixes: list[Line]


@dataclass(frozen=True, eq=False)
class Records:
    """Parsed lines of one tag.

    Attributes:
        ids: (num_records, num_ids) int64.
        values: (num_records, num_values) float64, finite.
        line_numbers: the line of each record.
    """

    ids: NDArray[np.int64]
    values: NDArray[np.float64]
    line_numbers: list[int]


def sort_lines(stream: io.BufferedIOBase, path: FilePath) -> G2oLines:
    """Read all lines and sort them by their tags.

    Args:
        stream: the text of a g2o file.
        path: its name, for messages.

    Returns:
        The lines.

    Raises:
        FileFormatError: a tag is unknown, poses of two kinds are mixed, or there are none.
    """
    found: dict[_Role, list[Line]] = {role: [] for role in _Role}
    kind: PoseGraphKind | None = None
    for number, line in enumerate(stream, start=1):
        if not line.strip() or line.lstrip().startswith(_PASSED_OVER):
            continue
        tag, *rest = line.split(None, 1)
        text = rest[0] if rest else b""
        if tag == _FIX_TAG:
            found[_Role.FIX].append(Line(number, text))
            continue
        if tag not in _TAGS:
            allowed = ", ".join([*(known.decode() for known in _TAGS), _FIX_TAG.decode()])
            raise FileFormatError(
                f"{os.fspath(path)}, line {number}: lines of the kind {shown(tag)} are not read; "
                f"allowed are {allowed}"
            )
        role, line_kind = _TAGS[tag]
        if kind is not None and line_kind is not kind:
            raise FileFormatError(
                f"{os.fspath(path)}, line {number}: an {line_kind.name} line in a file that began "
                f"with {kind.name}; a graph must be of one kind"
            )
        kind = line_kind
        found[role].append(Line(number, text))
    if kind is None:
        raise FileFormatError(f"{os.fspath(path)}: the file holds no vertices and no edges")
    return G2oLines(kind, found[_Role.VERTEX], found[_Role.EDGE], found[_Role.FIX])


def parse_records(
    lines: list[Line], what: str, num_ids: int, num_values: int, path: FilePath
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
                f"{os.fspath(path)}, line {line.number}: {what} has {len(tokens)} entries after "
                f"its tag; needed are {num_ids + num_values} ({num_ids} id, {num_values} numbers)"
            )
        ids[row] = [parse_id(token, line, path) for token in tokens[:num_ids]]
    # All at once, ids included: this is several times as fast as line by line.
    run = parse_numbers(b" ".join(line.text for line in lines))
    num_columns = num_ids + num_values
    num_values_found = len(run.values)
    if run.stray is not None:
        line = lines[num_values_found // num_columns]
        raise FileFormatError(
            f"{os.fspath(path)}, line {line.number}: {shown(run.stray)} is not a number"
        )
    values = run.values.reshape(len(lines), num_columns)[:, num_ids:]
    is_finite = np.isfinite(values).all(axis=1)
    if not is_finite.all():
        line = lines[int(np.argmin(is_finite))]
        raise FileFormatError(
            f"{os.fspath(path)}, line {line.number}: {what} holds a number that is not finite"
        )
    return Records(ids, values, [line.number for line in lines])


def parse_id(token: bytes, line: Line, path: FilePath) -> int:
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
            f"{os.fspath(path)}, line {line.number}: {shown(token)} is not a vertex id; allowed "
            "are the integers 0 to 2^63 - 1"
        )
    return int(token)
