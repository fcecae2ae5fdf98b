"""Read and write the text files of a COLMAP model.

Readers make arrays of the lines of a file, some microseconds a line. They pass over lines that
begin with # and empty lines, except the second line of an image, which is empty if the image has no
keypoints. Writers make pieces of bytes, some thousand lines each, of arrays; numbers have all the
digits that float64 has. Source: COLMAP's scene/reconstruction_io_text.cc.
"""

import codecs
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.cameras import MODELS, MODELS_BY_ID
from caspar.colmap.files.binary import IDENTITY, cameras_of, rigs_of
from caspar.colmap.model import (
    Cameras,
    Floats,
    Frames,
    Images,
    Integers,
    Points,
    Rigs,
    SensorType,
    offsets_of,
)
from caspar.errors import FileFormatError
from caspar.io.numbers import parse_numbers, shown

_LARGEST_EXACT = 2.0**53
"""Integers below it are the same in float64."""

_LONGEST_INTEGER = 40
"""Python refuses to convert thousands of digits."""

_LINES_AT_ONCE = 1 << 13

_POINT_COLUMNS = 8
"""Entries of a point before its track: id, x, y, z, red, green, blue, error."""


@dataclass(frozen=True)
class Line:
    """A line of a file, without its end; its number is counted from 1."""

    path: str
    number: int
    text: bytes

    def error(self, message: str) -> FileFormatError:
        """Make an error that names the file and the line."""
        return FileFormatError(f"{self.path}, line {self.number}: {message}")


class LineReader:
    """Lines of a file, taken from first to last."""

    def __init__(self, data: bytes, path: str) -> None:
        self._stream = io.BytesIO(data.removeprefix(codecs.BOM_UTF8))
        self._path = path
        self._number = 0

    def any_line(self) -> Line | None:
        """Take the next line, whatever it is; None: there is none."""
        text = self._stream.readline()
        if not text:
            return None
        self._number += 1
        return Line(self._path, self._number, text.strip())

    def lines(self) -> Iterator[Line]:
        """Take the lines that hold something."""
        while (line := self.any_line()) is not None:
            if line.text and not line.text.startswith(b"#"):
                yield line


class TokenReader:
    """Entries of a line, taken from left to right."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._tokens = line.text.split()
        self._next = 0

    def word(self, what: str) -> bytes:
        """Take an entry as it is."""
        if self._next == len(self._tokens):
            raise self._line.error(f"the line ends where its {what} should be")
        self._next += 1
        return self._tokens[self._next - 1]

    def integer(self, what: str) -> int:
        """Take an integer from 0 to 2^63 - 1."""
        token = self.word(what)
        if not token.isdigit() or len(token) > _LONGEST_INTEGER or int(token) >= 2**63:
            raise self._line.error(f"its {what} is {shown(token)}, not an integer of 0 to 2^63 - 1")
        return int(token)

    def floats(self, count: int, what: str) -> Floats:
        """Take some numbers."""
        tokens = [self.word(what) for _ in range(count)]
        return _numbers(Line(self._line.path, self._line.number, b" ".join(tokens)))

    def sensor(self, what: str) -> tuple[int, int]:
        """Take a type of sensor and the id of one."""
        token = self.word(f"{what}'s type")
        kind = next((one for one in SensorType if one.name.encode() == token), None)
        if kind is None:
            allowed = ", ".join(one.name for one in SensorType)
            raise self._line.error(f"its {what} has type {shown(token)}; allowed are {allowed}")
        return int(kind), self.integer(f"{what}'s id")

    def rest(self, what: str) -> bytes:
        """Take what is left, white space included."""
        found = self._line.text.split(None, self._next)[self._next :]
        if not found:
            raise self._line.error(f"the line ends where its {what} should be")
        self._next = len(self._tokens)
        return found[0]

    def finish(self) -> None:
        """Raise a `FileFormatError` if entries are left."""
        if self._next < len(self._tokens):
            found = shown(self._tokens[self._next])
            raise self._line.error(f"the line goes on with {found} where it must end")


def read_cameras(reader: LineReader) -> Cameras:
    """Read cameras.txt."""
    rows: list[tuple[int, ...]] = []
    parameters: list[NDArray[Any]] = []
    for line in reader.lines():
        tokens = TokenReader(line)
        camera_id, name = tokens.integer("camera id"), tokens.word("camera model")
        model = MODELS.get(name.decode(errors="replace"))
        if model is None or model.model_id is None:
            raise line.error(f"{shown(name)} is not one of COLMAP's camera models")
        size = tokens.integer("width"), tokens.integer("height")
        rows.append((camera_id, model.model_id, *size))
        parameters.append(tokens.floats(model.num_parameters, "parameters"))
        tokens.finish()
    return cameras_of(rows, parameters)


def read_images(reader: LineReader) -> Images:
    """Read images.txt."""
    ids: list[tuple[int, int]] = []
    names: list[str] = []
    poses: list[Floats] = []
    keypoints: list[Floats] = []
    point_ids: list[Integers] = []
    for line in reader.lines():
        tokens = TokenReader(line)
        image_id = tokens.integer("image id")
        poses.append(tokens.floats(7, "pose"))
        ids.append((image_id, tokens.integer("camera id")))
        names.append(tokens.rest("name").decode(errors="surrogateescape"))
        second = reader.any_line()
        pixels, seen = _keypoints(Line("", 0, b"") if second is None else second)
        keypoints.append(pixels)
        point_ids.append(seen)
    columns = np.array(ids, dtype=np.int64).reshape(-1, 2)
    return Images(
        ids=columns[:, 0].copy(),
        names=tuple(names),
        camera_ids=columns[:, 1].copy(),
        cam_from_world=np.array(poses, dtype=np.float64).reshape(-1, 7),
        offsets=offsets_of(list(map(len, keypoints))),
        keypoints=np.concatenate([np.empty((0, 2)), *keypoints]),
        point_ids=np.concatenate([np.empty(0, np.int64), *point_ids]),
    )


def _keypoints(line: Line) -> tuple[Floats, Integers]:
    numbers = _numbers(line)
    if len(numbers) % 3 != 0:
        raise line.error(
            f"the line has {len(numbers)} entries; keypoints need three each: x, y, id of a point"
        )
    records = numbers.reshape(-1, 3)
    point_ids = _point_ids(records[:, 2], -1, lambda row: (line, line.text.split()[3 * row + 2]))
    return records[:, :2], point_ids


def read_points(reader: LineReader) -> Points:
    """Read points3D.txt."""
    records: list[Floats] = [np.empty((0, _POINT_COLUMNS))]
    tracks: list[Floats] = [np.empty((0, 2))]
    counts: list[Integers] = [np.empty(0, np.int64)]
    ids: list[Integers] = [np.empty(0, np.int64)]
    pending: list[Line] = []
    for line in reader.lines():
        pending.append(line)
        if len(pending) == _LINES_AT_ONCE:
            _add_points(pending, ids, records, tracks, counts)
            pending = []
    _add_points(pending, ids, records, tracks, counts)
    columns, track = np.concatenate(records), np.concatenate(tracks).astype(np.int64)
    return Points(
        ids=np.concatenate(ids),
        xyz=columns[:, 1:4].copy(),
        colors=columns[:, 4:7].astype(np.uint8),
        errors=columns[:, 7].copy(),
        offsets=offsets_of(np.concatenate(counts)),
        image_ids=track[:, 0].copy(),
        keypoint_index=track[:, 1].copy(),
    )


def _add_points(
    lines: list[Line],
    ids: list[Integers],
    records: list[Floats],
    tracks: list[Floats],
    counts: list[Integers],
) -> None:
    """Parse many lines at once: several times as fast as one by one."""
    lengths = np.array([len(line.text.split()) for line in lines], dtype=np.int64)
    for line, length in zip(lines, lengths.tolist(), strict=True):
        if length < _POINT_COLUMNS or length % 2 != 0:
            raise line.error(
                f"the line has {length} entries; a point has {_POINT_COLUMNS}, and two more for "
                "each keypoint of its track"
            )
    run = parse_numbers(b"\n".join(line.text for line in lines))
    if run.stray is not None:
        line = lines[run.line_of(len(run.values)) - 1]
        raise line.error(f"{shown(run.stray)} is not a number")
    starts = offsets_of(lengths)
    places = starts[:-1, None] + np.arange(_POINT_COLUMNS)
    is_track = np.ones(len(run.values), np.bool_)
    is_track[places] = False
    columns, track = run.values[places], run.values[is_track].reshape(-1, 2)
    owners = np.repeat(np.arange(len(lines)), (lengths - _POINT_COLUMNS) // 2)
    for values, what, largest, rows in (
        *((columns[:, place], "colour", 255.0, None) for place in (4, 5, 6)),
        (track[:, 0], "id of an image", 2.0**32 - 1, owners),
        (track[:, 1], "index of a keypoint", 2.0**32 - 1, owners),
    ):
        is_good = (values == np.floor(values)) & (values >= 0) & (values <= largest)
        if not is_good.all():
            place = int(np.argmin(is_good))
            line = lines[place if rows is None else int(rows[place])]
            raise line.error(
                f"{values[place]:.17g} is no {what}; allowed are integers of 0 to {largest:.0f}"
            )
    ids.append(
        _point_ids(columns[:, 0], 0, lambda row: (lines[row], lines[row].text.split(None, 1)[0]))
    )
    records.append(columns)
    tracks.append(track)
    counts.append((lengths - _POINT_COLUMNS) // 2)


def read_rigs(reader: LineReader) -> Rigs:
    """Read rigs.txt."""
    ids: list[int] = []
    counts: list[int] = []
    sensors: list[tuple[int, int]] = []
    has_pose: list[bool] = []
    poses: list[Any] = []
    for line in reader.lines():
        tokens = TokenReader(line)
        ids.append(tokens.integer("rig id"))
        counts.append(tokens.integer("number of sensors"))
        for place in range(counts[-1]):
            sensors.append(tokens.sensor("reference sensor" if place == 0 else "sensor"))
            is_known = place == 0 or tokens.integer("mark of a pose") != 0
            pose = tokens.floats(7, "pose") if place > 0 and is_known else IDENTITY
            has_pose.append(is_known)
            poses.append(pose)
        tokens.finish()
    return rigs_of(ids, counts, sensors, has_pose, poses)


def read_frames(reader: LineReader) -> Frames:
    """Read frames.txt."""
    ids: list[tuple[int, int]] = []
    poses: list[Floats] = []
    counts: list[int] = []
    data: list[tuple[int, int, int]] = []
    for line in reader.lines():
        tokens = TokenReader(line)
        ids.append((tokens.integer("frame id"), tokens.integer("rig id")))
        poses.append(tokens.floats(7, "pose"))
        counts.append(tokens.integer("number of data"))
        data += [
            (*tokens.sensor("sensor"), tokens.integer("id of data")) for _ in range(counts[-1])
        ]
        tokens.finish()
    columns = np.array(ids, dtype=np.int64).reshape(-1, 2)
    records = np.array(data, dtype=np.int64).reshape(-1, 3)
    return Frames(
        ids=columns[:, 0].copy(),
        rig_ids=columns[:, 1].copy(),
        rig_from_world=np.array(poses, dtype=np.float64).reshape(-1, 7),
        offsets=offsets_of(counts),
        sensor_types=records[:, 0].copy(),
        sensor_ids=records[:, 1].copy(),
        data_ids=records[:, 2].copy(),
    )


def _numbers(line: Line) -> Floats:
    run = parse_numbers(line.text)
    if run.stray is not None:
        raise line.error(f"{shown(run.stray)} is not a number")
    return run.values


def _point_ids(
    values: Floats, least: int, place_of: Callable[[int], tuple[Line, bytes]]
) -> Integers:
    """Return ids of points exactly, though they were parsed as floating point numbers.

    The least id is `least`; `place_of` is the line and the text of an id, by its row.
    """
    is_exact = (values == np.floor(values)) & (values >= least) & (values < _LARGEST_EXACT)
    ids = np.where(is_exact, values, 0.0).astype(np.int64)
    for row in np.flatnonzero(~is_exact).tolist():
        line, token = place_of(row)
        if not token.isdigit() or len(token) > _LONGEST_INTEGER or int(token) >= 2**63:
            raise line.error(
                f"{values[row]:.17g} is no id of a point; allowed are integers of {least} to "
                "2^63 - 1"
            )
        ids[row] = int(token)
    return ids


_POINTS_AT_ONCE = 1 << 13


def camera_text(cameras: Cameras) -> Iterator[bytes]:
    """Make cameras.txt."""
    yield b"# CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]\n"
    for number, camera_id in enumerate(cameras.ids.tolist()):
        model = MODELS_BY_ID[int(cameras.model_ids[number])]
        start, end = cameras.offsets[number : number + 2]
        size = f"{cameras.widths[number]} {cameras.heights[number]}"
        parameters = _number_texts(cameras.parameters[start:end])
        yield f"{camera_id} {model.name} {size} {parameters}\n".encode()


def image_text(images: Images) -> Iterator[bytes]:
    """Make images.txt."""
    yield b"# IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME\n"
    yield b"# POINTS2D[] as (X, Y, POINT3D_ID)\n"
    for number, name in enumerate(images.names):
        pose = _number_texts(images.cam_from_world[number])
        head = f"{images.ids[number]} {pose} {images.camera_ids[number]} {name}\n"
        yield head.encode(errors="surrogateescape")
        rows = slice(*images.offsets[number : number + 2])
        keypoints = zip(
            images.keypoints[rows].tolist(), images.point_ids[rows].tolist(), strict=True
        )
        yield " ".join(f"{x!r} {y!r} {point}" for (x, y), point in keypoints).encode() + b"\n"


def point_text(points: Points) -> Iterator[bytes]:
    """Make points3D.txt."""
    yield b"# POINT3D_ID, X, Y, Z, R, G, B, ERROR, TRACK[] as (IMAGE_ID, POINT2D_IDX)\n"
    for first in range(0, len(points.ids), _POINTS_AT_ONCE):
        rows = slice(first, first + _POINTS_AT_ONCE)
        offsets = points.offsets[first : first + _POINTS_AT_ONCE + 1]
        places = slice(offsets[0], offsets[-1])
        pairs = zip(
            points.image_ids[places].tolist(), points.keypoint_index[places].tolist(), strict=True
        )
        track = [f" {image} {keypoint}" for image, keypoint in pairs]
        ends = (offsets - offsets[0]).tolist()
        heads = zip(
            points.ids[rows].tolist(),
            points.xyz[rows].tolist(),
            points.colors[rows].tolist(),
            points.errors[rows].tolist(),
            strict=True,
        )
        lines = [
            f"{point_id} {x!r} {y!r} {z!r} {red} {green} {blue} {error!r}"
            f"{''.join(track[ends[row] : ends[row + 1]])}\n"
            for row, (point_id, (x, y, z), (red, green, blue), error) in enumerate(heads)
        ]
        yield "".join(lines).encode()


def rig_text(rigs: Rigs) -> Iterator[bytes]:
    """Make rigs.txt."""
    yield b"# RIG_ID, NUM_SENSORS, REF_SENSOR_TYPE, REF_SENSOR_ID, SENSORS[] as "
    yield b"(SENSOR_TYPE, SENSOR_ID, HAS_POSE, [QW, QX, QY, QZ, TX, TY, TZ])\n"
    for number, rig_id in enumerate(rigs.ids.tolist()):
        start, end = rigs.offsets[number : number + 2].tolist()
        words = [str(rig_id), str(end - start)]
        for place in range(start, end):
            words += [SensorType(rigs.sensor_types[place]).name, str(rigs.sensor_ids[place])]
            if place > start:
                words.append("1" if rigs.has_pose[place] else "0")
                words += (
                    [_number_texts(rigs.sensor_from_rig[place])] if rigs.has_pose[place] else []
                )
        yield f"{' '.join(words)}\n".encode()


def frame_text(frames: Frames) -> Iterator[bytes]:
    """Make frames.txt."""
    yield b"# FRAME_ID, RIG_ID, RIG_FROM_WORLD[QW, QX, QY, QZ, TX, TY, TZ], NUM_DATA_IDS, "
    yield b"DATA_IDS[] as (SENSOR_TYPE, SENSOR_ID, DATA_ID)\n"
    for number, frame_id in enumerate(frames.ids.tolist()):
        start, end = frames.offsets[number : number + 2].tolist()
        words = [str(frame_id), str(frames.rig_ids[number])]
        words += [_number_texts(frames.rig_from_world[number]), str(end - start)]
        for place in range(start, end):
            words += [SensorType(frames.sensor_types[place]).name, str(frames.sensor_ids[place])]
            words.append(str(frames.data_ids[place]))
        yield f"{' '.join(words)}\n".encode()


def _number_texts(values: Floats) -> str:
    row: Sequence[float] = values.tolist()
    return " ".join(map(repr, row))
