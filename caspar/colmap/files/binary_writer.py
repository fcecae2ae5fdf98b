"""Write the binary files of a COLMAP model, little endian.

Input: arrays. Output: pieces of bytes, some megabytes each. Source: COLMAP's
scene/reconstruction_io_binary.cc.
"""

import struct
from collections.abc import Iterator

import numpy as np

from caspar.colmap.files.binary import (
    CAMERA,
    COUNT,
    DATUM,
    FRAME,
    IMAGE,
    KEYPOINT,
    POINT,
    POINTS_AT_ONCE,
    SENSOR,
    TRACK,
    head_mask,
)
from caspar.colmap.model import Cameras, Frames, Images, Points, Rigs


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
