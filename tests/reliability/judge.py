"""A second reader of BAL and g2o files, slow and strict: the judge of `caspar.io`'s.

It is written from the descriptions of the formats in the docstrings of `caspar/io/bal.py`,
`caspar/io/g2o.py` and `caspar/io/numbers.py`, shares no code with them and does without NumPy
except for eigenvalues. It reads whole files and works a character and a number at a time.
"""

import bz2
import gzip
import math
import zlib
from collections import deque
from dataclasses import dataclass, field

import numpy as np

SPACE = " \t\n\r\v\f"
DIGITS = "0123456789"


class RefusedError(Exception):
    """The file does not follow its format."""


class UndecidedError(Exception):
    """Rounding decides whether the file can be read: both answers are right."""


@dataclass
class Bal:
    """What a BAL file holds: rotation vectors as they are written."""

    cameras: list[list[float]]
    points: list[list[float]]
    observations: list[list[float]]


@dataclass
class Graph:
    """What a g2o file holds; poses as (rotation, translation) in storage order."""

    ids: list[int] = field(default_factory=list)
    poses: list[list[float]] = field(default_factory=list)
    fixed: set[int] = field(default_factory=set)
    ends: list[tuple[int, int]] = field(default_factory=list)
    measured: list[list[float]] = field(default_factory=list)
    information: list[list[float]] = field(default_factory=list)
    is_chained: bool = False


def unpacked(content: bytes, suffix: str) -> str:
    """The text of a file, one character a byte."""
    try:
        if content.startswith(b"BZh"):
            content = bz2.decompress(content)
        elif content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        elif suffix in (".bz2", ".gz"):
            raise RefusedError("not packed")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise RefusedError(str(error)) from error
    return content.decode("latin-1")


def split(text: str) -> list[str]:
    """Tokens between ASCII white space; `str.split` would know more kinds of it."""
    for space in SPACE:
        text = text.replace(space, " ")
    return [token for token in text.split(" ") if token != ""]


def number(token: str) -> float:
    """A finite number as C prints it."""
    if len(token) > 1024:
        raise RefusedError("too long")
    rest = token[1:] if token[:1] in ("+", "-") else token
    mantissa, has_exponent, exponent = rest.replace("E", "e").partition("e")
    whole, _, fraction = mantissa.partition(".")
    if any(digit not in DIGITS for digit in whole + fraction) or whole + fraction == "":
        raise RefusedError(token)
    if has_exponent:
        power = exponent[1:] if exponent[:1] in ("+", "-") else exponent
        if power == "" or any(digit not in DIGITS for digit in power):
            raise RefusedError(token)
    value = float(token)
    if not math.isfinite(value):
        raise RefusedError(token)
    return value


def natural(token: str) -> int:
    """An integer without a sign, of at most 40 digits."""
    if token == "" or len(token) > 40 or any(digit not in DIGITS for digit in token):
        raise RefusedError(token)
    return int(token)


def read_bal(text: str) -> Bal:
    """Read a BAL file."""
    header, line_break, body = text.partition("\n")
    if len(header) + len(line_break) > 4096 or (len(header) == 4096 and line_break == ""):
        raise RefusedError("header")
    counts = []
    for token in split(header):
        unsigned = token[1:] if token[0] in "+-" else token
        if len(token) > 40:
            raise RefusedError(token)
        count = natural(unsigned) * (-1 if token[0] == "-" else 1)
        if not 1 <= count < 2**31:
            raise RefusedError(token)
        counts.append(count)
    if len(counts) != 3:
        raise RefusedError("header")
    num_cameras, num_points, num_observations = counts
    tokens = split(body)
    if len(tokens) != 4 * num_observations + 9 * num_cameras + 3 * num_points:
        raise RefusedError("number of numbers")
    values = deque(number(token) for token in tokens)

    def rows(count: int, width: int) -> list[list[float]]:
        return [[values.popleft() for _ in range(width)] for _ in range(count)]

    observations = rows(num_observations, 4)
    for camera, point, _, _ in observations:
        if not (camera in range(num_cameras) and point in range(num_points)):
            raise RefusedError("index")
    cameras = rows(num_cameras, 9)
    if any(abs(part) > 1e300 for camera in cameras for part in camera[:3]):
        raise RefusedError("rotation")
    return Bal(cameras, rows(num_points, 3), observations)


def read_g2o(text: str) -> Graph:
    """Read a g2o file."""
    graph, plane = Graph(), None
    for line in text.split("\n"):
        if len(line) > 2**20 - 1:
            raise RefusedError("line")
        tokens = split(line)
        if not tokens or tokens[0].startswith(("#", "PARAMS_")):
            continue
        tag, *entries = tokens
        if tag == "FIX":
            if not entries:
                raise RefusedError("FIX")
            graph.fixed |= {_id(entry) for entry in entries}
            continue
        kinds = {"SE2": True, "SE3:QUAT": False}
        role, _, kind = tag.partition("_")
        if role not in ("VERTEX", "EDGE") or kind not in kinds:
            raise RefusedError(tag)
        if plane not in (None, kinds[kind]):
            raise RefusedError("mixed")
        plane = kinds[kind]
        _add(graph, role, plane, entries)
    if plane is None:
        raise RefusedError("empty")
    _connect(graph, plane)
    for information in graph.information:
        judge_information(matrix(information, plane))
    return graph


def _id(token: str) -> int:
    name = natural(token)
    if name >= 2**63:
        raise RefusedError(token)
    return name


def _add(graph: Graph, role: str, plane: bool, entries: list[str]) -> None:
    num_ids = 1 if role == "VERTEX" else 2
    num_pose = 3 if plane else 7
    num_rest = 0 if role == "VERTEX" else (6 if plane else 21)
    if len(entries) != num_ids + num_pose + num_rest:
        raise RefusedError("number of entries")
    names = [_id(token) for token in entries[:num_ids]]
    values = [number(token) for token in entries[num_ids:]]
    pose = _pose(values[:num_pose], plane)
    if role == "VERTEX":
        graph.ids.append(names[0])
        graph.poses.append(pose)
    else:
        graph.ends.append((names[0], names[1]))
        graph.measured.append(pose)
        graph.information.append(values[num_pose:])


def _pose(values: list[float], plane: bool) -> list[float]:
    if plane:
        return [math.cos(values[2]), math.sin(values[2]), values[0], values[1]]
    length = math.hypot(*values[3:])
    if abs(abs(length - 1.0) - 1e-2) < 1e-12:
        raise UndecidedError("quaternion")
    if abs(length - 1.0) > 1e-2:
        raise RefusedError("quaternion")
    return [part / length for part in values[3:]] + values[:3]


def _connect(graph: Graph, plane: bool) -> None:
    graph.is_chained = not graph.ids
    if graph.is_chained:
        graph.ids = sorted({name for ends in graph.ends for name in ends})
    if len(set(graph.ids)) != len(graph.ids):
        raise RefusedError("twice")
    known = set(graph.ids)
    if any(first == second or not {first, second} <= known for first, second in graph.ends):
        raise RefusedError("ends")
    if not graph.fixed <= known:
        raise RefusedError("FIX")
    if not graph.is_chained:
        return
    poses = {graph.ids[0]: [1.0, 0.0, 0.0, 0.0] if plane else [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]}
    waiting = deque([graph.ids[0]])
    while waiting:
        here = waiting.popleft()
        for (first, second), step in zip(graph.ends, graph.measured, strict=True):
            if here in (first, second):
                there = second if here == first else first
                if there not in poses:
                    forward = step if here == first else _inverse(step, plane)
                    poses[there] = _product(poses[here], forward, plane)
                    waiting.append(there)
    if len(poses) != len(graph.ids):
        raise RefusedError("not connected")
    graph.poses = [poses[name] for name in graph.ids]
    if not all(abs(part) < 1e300 for pose in graph.poses for part in pose):
        raise UndecidedError("overflow")


def _rotated(rotation: list[float], vector: list[float], plane: bool) -> list[float]:
    if plane:
        c, s = rotation
        return [c * vector[0] - s * vector[1], s * vector[0] + c * vector[1]]
    x, y, z, w = rotation
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in rows]


def _product(left: list[float], right: list[float], plane: bool) -> list[float]:
    n = 2 if plane else 4
    moved = _rotated(left[:n], right[n:], plane)
    if plane:
        turned = _rotated(left[:2], right[:2], True)
    else:
        (a, b, c, d), (e, f, g, h) = left[:4], right[:4]
        turned = [
            *(d * e + a * h + b * g - c * f, d * f - a * g + b * h + c * e),
            *(d * g + a * f - b * e + c * h, d * h - a * e - b * f - c * g),
        ]
    return turned + [a + b for a, b in zip(left[n:], moved, strict=True)]


def _inverse(pose: list[float], plane: bool) -> list[float]:
    n = 2 if plane else 4
    back = [pose[0], -pose[1]] if plane else [-pose[0], -pose[1], -pose[2], pose[3]]
    return back + [-part for part in _rotated(back, pose[n:], plane)]


def matrix(triangle: list[float], plane: bool) -> list[list[float]]:
    """The symmetric matrix of an upper triangle, row by row."""
    dim = 3 if plane else 6
    full = [[0.0] * dim for _ in range(dim)]
    values = iter(triangle)
    for row in range(dim):
        for column in range(row, dim):
            full[row][column] = full[column][row] = next(values)
    return full


def judge_information(full: list[list[float]]) -> None:
    """Refuse a matrix that is not positive semidefinite, whatever the units of its rows."""
    dim = len(full)
    scale = [math.sqrt(full[i][i]) if full[i][i] > 0.0 else 0.0 for i in range(dim)]
    if any(full[i][i] < 0.0 for i in range(dim)):
        raise RefusedError("negative diagonal")
    if any(scale[i] == 0.0 and any(full[i]) for i in range(dim)):
        raise RefusedError("nothing on the diagonal")
    divisors = [part if part > 0.0 else 1.0 for part in scale]
    scaled = [[full[i][j] / divisors[i] / divisors[j] for j in range(dim)] for i in range(dim)]
    if any(abs(part) > 1.001 for row in scaled for part in row):
        raise RefusedError("correlation")
    least = float(np.linalg.eigvalsh(np.array(scaled))[0])
    if least < -1e-4:
        raise RefusedError("indefinite")
    if least < -1e-9:
        raise UndecidedError("information")
