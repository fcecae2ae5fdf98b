"""Write the text files of a COLMAP model.

Input: arrays. Output: pieces of bytes, some thousand lines each. Numbers have all the digits that
float64 has. Source: COLMAP's scene/reconstruction_io_text.cc.
"""

from collections.abc import Iterator, Sequence

from caspar.cameras import MODELS_BY_ID
from caspar.colmap.model import Cameras, Floats, Frames, Images, Points, Rigs, SensorType

_POINTS_AT_ONCE = 1 << 13


def camera_text(cameras: Cameras) -> Iterator[bytes]:
    """Make cameras.txt."""
    yield b"# CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]\n"
    for number, camera_id in enumerate(cameras.ids.tolist()):
        model = MODELS_BY_ID[int(cameras.model_ids[number])]
        start, end = cameras.offsets[number : number + 2]
        size = f"{cameras.widths[number]} {cameras.heights[number]}"
        parameters = _numbers(cameras.parameters[start:end])
        yield f"{camera_id} {model.name} {size} {parameters}\n".encode()


def image_text(images: Images) -> Iterator[bytes]:
    """Make images.txt."""
    yield b"# IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME\n"
    yield b"# POINTS2D[] as (X, Y, POINT3D_ID)\n"
    for number, name in enumerate(images.names):
        pose = _numbers(images.cam_from_world[number])
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
                words += [_numbers(rigs.sensor_from_rig[place])] if rigs.has_pose[place] else []
        yield f"{' '.join(words)}\n".encode()


def frame_text(frames: Frames) -> Iterator[bytes]:
    """Make frames.txt."""
    yield b"# FRAME_ID, RIG_ID, RIG_FROM_WORLD[QW, QX, QY, QZ, TX, TY, TZ], NUM_DATA_IDS, "
    yield b"DATA_IDS[] as (SENSOR_TYPE, SENSOR_ID, DATA_ID)\n"
    for number, frame_id in enumerate(frames.ids.tolist()):
        start, end = frames.offsets[number : number + 2].tolist()
        words = [str(frame_id), str(frames.rig_ids[number])]
        words += [_numbers(frames.rig_from_world[number]), str(end - start)]
        for place in range(start, end):
            words += [SensorType(frames.sensor_types[place]).name, str(frames.sensor_ids[place])]
            words.append(str(frames.data_ids[place]))
        yield f"{' '.join(words)}\n".encode()


def _numbers(values: Floats) -> str:
    row: Sequence[float] = values.tolist()
    return " ".join(map(repr, row))
