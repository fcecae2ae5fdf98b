"""Read and write the binary files of a COLMAP model, little endian.

Readers make arrays of the bytes of a file; they do not believe a count before as many bytes are
there. Writers make pieces of bytes, some megabytes each, of arrays. Source: COLMAP's
scene/reconstruction_io_binary.cc.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.cameras import MODELS_BY_ID
from caspar.colmap.model import (
    NO_POINT,
    Cameras,
    Frames,
    Images,
    Integers,
    Points,
    Rigs,
    SensorType,
    num_parameters_of,
    offsets_of,
)
from caspar.errors import FileFormatError

CAMERA = struct.Struct("<IiQQ")
IMAGE = struct.Struct("<I7dI")
COUNT = struct.Struct("<Q")
SENSOR = struct.Struct("<iI")
FRAME = struct.Struct("<II7dI")

KEYPOINT = np.dtype([("xy", "<f8", 2), ("point", "<i8")])
POINT = np.dtype(
    [("id", "<i8"), ("xyz", "<f8", 3), ("color", "u1", 3), ("error", "<f8"), ("count", "<i8")]
)
TRACK = np.dtype([("image", "<u4"), ("keypoint", "<u4")])
DATUM = np.dtype([("type", "<i4"), ("sensor", "<u4"), ("data", "<i8")])

POINTS_AT_ONCE = 1 << 16

IDENTITY = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""The pose that changes nothing."""


class ByteReader:
    """Bytes of a file, taken from front to back."""

    def __init__(self, data: bytes, path: str) -> None:
        self.data = data
        self.position = 0
        self._path = path

    def error(self, message: str, position: int | None = None) -> FileFormatError:
        """Make an error that names the file and the byte."""
        place = self.position if position is None else position
        return FileFormatError(f"{self._path}, byte {place}: {message}")

    def require(self, size: int, what: str) -> None:
        """Raise a `FileFormatError` if fewer bytes follow."""
        left = len(self.data) - self.position
        if size > left:
            raise self.error(f"{what} needs {size} bytes, but the file has only {left} more")

    def take(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        """Take some numbers."""
        self.require(layout.size, what)
        values = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return values

    def take_count(self, what: str, least_size: int) -> int:
        """Take the number of records, each of so many bytes at least."""
        (count,) = self.take(COUNT, f"the number of {what}")
        left = len(self.data) - self.position
        if count * least_size > left:
            raise self.error(
                f"{count} {what} need at least {count * least_size} bytes, but the file has only "
                f"{left} more",
                self.position - COUNT.size,
            )
        return int(count)

    def take_array(self, dtype: Any, count: int, what: str) -> NDArray[Any]:
        """Take an array; it lies in the file's bytes."""
        kind = np.dtype(dtype)
        self.require(count * kind.itemsize, what)
        values = np.frombuffer(self.data, kind, count, self.position)
        self.position += count * kind.itemsize
        return values

    def take_name(self, what: str) -> str:
        """Take a text that ends with a NUL byte; bytes other than UTF-8 come back when written."""
        end = self.data.find(b"\0", self.position)
        if end < 0:
            raise self.error(f"{what} has no end: there is no NUL byte")
        name = self.data[self.position : end].decode(errors="surrogateescape")
        self.position = end + 1
        return name

    def finish(self, what: str) -> None:
        """Raise a `FileFormatError` if bytes are left."""
        left = len(self.data) - self.position
        if left > 0:
            raise self.error(f"{left} bytes follow the last {what}; the file must end here")


def read_cameras(reader: ByteReader) -> Cameras:
    """Read cameras.bin."""
    rows: list[tuple[Any, ...]] = []
    parameters: list[NDArray[Any]] = []
    for number in range(reader.take_count("cameras", CAMERA.size)):
        what = f"camera {number} (counting from 0)"
        start = reader.position
        row = reader.take(CAMERA, what)
        count = num_parameters_of(row[1])
        if count is None:
            allowed = f"0 to {max(MODELS_BY_ID)}"
            raise reader.error(f"{what} has camera model {row[1]}; allowed are {allowed}", start)
        if max(row[2:]) >= 2**63:
            raise reader.error(f"{what} is {row[2]} x {row[3]} pixels, which is too large", start)
        rows.append(row)
        parameters.append(reader.take_array("<f8", count, what))
    reader.finish("camera")
    return cameras_of(rows, parameters)


def read_images(reader: ByteReader) -> Images:
    """Read images.bin."""
    rows: list[tuple[Any, ...]] = []
    names: list[str] = []
    keypoints: list[NDArray[Any]] = []
    for number in range(reader.take_count("images", IMAGE.size + 1 + COUNT.size)):
        what = f"image {number} (counting from 0)"
        rows.append(reader.take(IMAGE, what))
        names.append(reader.take_name(f"the name of {what}"))
        count = reader.take_count(f"keypoints of {what}", KEYPOINT.itemsize)
        keypoints.append(reader.take_array(KEYPOINT, count, what))
        if (keypoints[-1]["point"] < NO_POINT).any():
            raise reader.error(f"{what} has the id of a point of 2^63 or more")
    reader.finish("image")
    records = np.concatenate([np.empty(0, KEYPOINT), *keypoints])
    columns = np.array(rows, dtype=np.float64).reshape(-1, 9)
    return Images(
        ids=columns[:, 0].astype(np.int64),
        names=tuple(names),
        camera_ids=columns[:, 8].astype(np.int64),
        cam_from_world=columns[:, 1:8].copy(),
        offsets=offsets_of(list(map(len, keypoints))),
        keypoints=np.ascontiguousarray(records["xy"]),
        point_ids=np.ascontiguousarray(records["point"]),
    )


def read_points(reader: ByteReader) -> Points:
    """Read points3D.bin."""
    count = reader.take_count("points", POINT.itemsize)
    starts = np.empty(count + 1, dtype=np.int64)
    start, size = reader.position, len(reader.data)
    take = COUNT.unpack_from
    place = POINT.itemsize - COUNT.size
    for number in range(count):
        starts[number] = start
        end = start + POINT.itemsize
        if end > size:
            reader.position = start
            reader.require(POINT.itemsize, f"point {number} (counting from 0)")
        (length,) = take(reader.data, start + place)
        start = end + TRACK.itemsize * length
        if start > size:
            reader.position = end
            what = f"the track of point {number} (counting from 0)"
            reader.require(TRACK.itemsize * length, what)
    starts[count] = reader.position = start
    reader.finish("point")
    records, tracks = _split(reader.data, starts, POINT, TRACK)
    if (records["id"] < 0).any():
        number = int(np.argmax(records["id"] < 0))
        raise reader.error(
            f"point {number} (counting from 0) has an id of 2^63 or more", starts[number]
        )
    return Points(
        ids=np.ascontiguousarray(records["id"]),
        xyz=np.ascontiguousarray(records["xyz"]),
        colors=np.ascontiguousarray(records["color"]),
        errors=np.ascontiguousarray(records["error"]),
        offsets=offsets_of(records["count"]),
        image_ids=tracks["image"].astype(np.int64),
        keypoint_index=tracks["keypoint"].astype(np.int64),
    )


def read_rigs(reader: ByteReader) -> Rigs:
    """Read rigs.bin."""
    ids: list[int] = []
    counts: list[int] = []
    sensors: list[tuple[int, int]] = []
    has_pose: list[bool] = []
    poses: list[Any] = []
    for number in range(reader.take_count("rigs", 8)):
        what = f"rig {number} (counting from 0)"
        rig_id, count = reader.take(struct.Struct("<II"), what)
        ids.append(rig_id)
        counts.append(count)
        for place in range(count):
            what = f"sensor {place} of rig {number} (counting from 0)"
            sensors.append(_sensor(reader, what))
            pose: Any = IDENTITY
            is_known = True
            if place > 0:
                (is_known,) = reader.take(struct.Struct("<?"), what)
                pose = reader.take_array("<f8", 7, what) if is_known else IDENTITY
            has_pose.append(is_known)
            poses.append(pose)
    reader.finish("rig")
    return rigs_of(ids, counts, sensors, has_pose, poses)


def read_frames(reader: ByteReader) -> Frames:
    """Read frames.bin."""
    rows: list[tuple[Any, ...]] = []
    data: list[NDArray[Any]] = []
    for number in range(reader.take_count("frames", FRAME.size)):
        what = f"frame {number} (counting from 0)"
        start = reader.position
        rows.append(reader.take(FRAME, what))
        data.append(reader.take_array(DATUM, rows[-1][-1], f"the data of {what}"))
        _check_sensor_types(reader, data[-1]["type"].tolist(), what, start)
        if (data[-1]["data"] < 0).any():
            raise reader.error(f"{what} has a data id of 2^63 or more", start)
    reader.finish("frame")
    records = np.concatenate([np.empty(0, DATUM), *data])
    columns = np.array(rows, dtype=np.float64).reshape(-1, 10)
    return Frames(
        ids=columns[:, 0].astype(np.int64),
        rig_ids=columns[:, 1].astype(np.int64),
        rig_from_world=columns[:, 2:9].copy(),
        offsets=offsets_of(list(map(len, data))),
        sensor_types=records["type"].astype(np.int64),
        sensor_ids=records["sensor"].astype(np.int64),
        data_ids=np.ascontiguousarray(records["data"]),
    )


def _sensor(reader: ByteReader, what: str) -> tuple[int, int]:
    start = reader.position
    kind, sensor_id = reader.take(SENSOR, what)
    _check_sensor_types(reader, [kind], what, start)
    return kind, sensor_id


def _check_sensor_types(reader: ByteReader, kinds: list[int], what: str, start: int) -> None:
    for kind in set(kinds) - set(SensorType):
        allowed = ", ".join(f"{one.value} ({one.name})" for one in SensorType)
        raise reader.error(f"{what} has sensor type {kind}; allowed are {allowed}", start)


def cameras_of(rows: Sequence[tuple[int, ...]], parameters: Sequence[NDArray[Any]]) -> Cameras:
    """Cameras of (id, model id, width, height), and the parameters of each."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return Cameras(
        ids=columns[:, 0].copy(),
        model_ids=columns[:, 1].copy(),
        widths=columns[:, 2].copy(),
        heights=columns[:, 3].copy(),
        offsets=offsets_of(list(map(len, parameters))),
        parameters=np.concatenate([np.empty(0), *parameters]).astype(np.float64),
    )


def rigs_of(
    ids: Sequence[int],
    counts: Sequence[int],
    sensors: Sequence[tuple[int, int]],
    has_pose: Sequence[bool],
    poses: Sequence[Any],
) -> Rigs:
    """Rigs and their numbers of sensors; of all sensors (type, id), and the pose if it is known."""
    columns = np.array(sensors, dtype=np.int64).reshape(-1, 2).T
    return Rigs(
        ids=np.array(ids, dtype=np.int64),
        offsets=offsets_of(counts),
        sensor_types=columns[0].copy(),
        sensor_ids=columns[1].copy(),
        has_pose=np.array(has_pose, dtype=np.bool_),
        sensor_from_rig=np.array(poses, dtype=np.float64).reshape(-1, 7),
    )


def _split(
    data: bytes, starts: Integers, head: np.dtype[Any], tail: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Separate n records of a head and any number of tails: (n,) heads and all tails.

    `starts` is (n + 1,) where records start; the last one is their end.
    """
    heads, tails = [np.empty(0, head)], [np.empty(0, tail)]
    for first in range(0, len(starts) - 1, POINTS_AT_ONCE):
        part = starts[first : first + POINTS_AT_ONCE + 1]
        size = int(part[-1] - part[0])
        text = np.frombuffer(data, np.uint8, size, int(part[0]))
        is_head = head_mask(np.diff(part) - head.itemsize, head)
        heads.append(text[is_head].view(head))
        tails.append(text[~is_head].view(tail))
    return np.concatenate(heads), np.concatenate(tails)


def head_mask(tail_sizes: Integers, head: np.dtype[Any]) -> NDArray[np.bool_]:
    """Return which bytes belong to heads, of records of a head and so many other bytes."""
    sizes = np.empty(2 * len(tail_sizes), np.int64)
    sizes[0::2], sizes[1::2] = head.itemsize, tail_sizes
    return np.repeat(np.tile([True, False], len(tail_sizes)), sizes)


def camera_bytes(cameras: Cameras) -> Iterator[bytes]:
    """Make cameras.bin."""
    yield COUNT.pack(len(cameras.ids))
    rows = np.stack([cameras.ids, cameras.model_ids, cameras.widths, cameras.heights], axis=1)
    for number, row in enumerate(rows.tolist()):
        yield CAMERA.pack(*row)
        start, end = cameras.offsets[number : number + 2]
        yield cameras.parameters[start:end].astype("<f8").tobytes()


def image_bytes(images: Images) -> Iterator[bytes]:
    """Make images.bin."""
    records = np.empty(len(images.keypoints), KEYPOINT)
    records["xy"], records["point"] = images.keypoints, images.point_ids
    yield COUNT.pack(len(images.ids))
    poses = images.cam_from_world.tolist()
    for number, name in enumerate(images.names):
        camera_id = int(images.camera_ids[number])
        yield IMAGE.pack(int(images.ids[number]), *poses[number], camera_id)
        yield name.encode(errors="surrogateescape") + b"\0"
        start, end = images.offsets[number : number + 2].tolist()
        yield COUNT.pack(end - start)
        yield records[start:end].tobytes()


def point_bytes(points: Points) -> Iterator[bytes]:
    """Make points3D.bin."""
    yield COUNT.pack(len(points.ids))
    counts = np.diff(points.offsets)
    for first in range(0, len(points.ids), POINTS_AT_ONCE):
        rows = slice(first, first + POINTS_AT_ONCE)
        heads = np.empty(len(points.ids[rows]), POINT)
        heads["id"], heads["xyz"] = points.ids[rows], points.xyz[rows]
        heads["color"], heads["error"] = points.colors[rows], points.errors[rows]
        heads["count"] = counts[rows]
        places = slice(points.offsets[first], points.offsets[first + len(heads)])
        tails = np.empty(places.stop - places.start, TRACK)
        tails["image"], tails["keypoint"] = points.image_ids[places], points.keypoint_index[places]
        is_head = head_mask(counts[rows] * TRACK.itemsize, POINT)
        text = np.empty(len(is_head), np.uint8)
        text[is_head], text[~is_head] = heads.view(np.uint8), tails.view(np.uint8)
        yield text.tobytes()


def rig_bytes(rigs: Rigs) -> Iterator[bytes]:
    """Make rigs.bin."""
    yield COUNT.pack(len(rigs.ids))
    for number, rig_id in enumerate(rigs.ids.tolist()):
        start, end = rigs.offsets[number : number + 2].tolist()
        yield struct.pack("<II", rig_id, end - start)
        for place in range(start, end):
            yield SENSOR.pack(int(rigs.sensor_types[place]), int(rigs.sensor_ids[place]))
            if place > start:
                yield struct.pack("<?", bool(rigs.has_pose[place]))
                if rigs.has_pose[place]:
                    yield rigs.sensor_from_rig[place].astype("<f8").tobytes()


def frame_bytes(frames: Frames) -> Iterator[bytes]:
    """Make frames.bin."""
    records = np.empty(len(frames.data_ids), DATUM)
    records["type"], records["sensor"] = frames.sensor_types, frames.sensor_ids
    records["data"] = frames.data_ids
    yield COUNT.pack(len(frames.ids))
    ids = np.stack([frames.ids, frames.rig_ids], axis=1).tolist()
    poses = frames.rig_from_world.tolist()
    for number, (frame_id, rig_id) in enumerate(ids):
        start, end = frames.offsets[number : number + 2].tolist()
        yield FRAME.pack(frame_id, rig_id, *poses[number], end - start)
        yield records[start:end].tobytes()
