"""`pycolmap.Reconstruction`: to arrays, and back in place.

pycolmap itself is not imported: whoever has such objects has it. A reconstruction goes through the
binary files that it writes, which takes a microsecond an observation; going back takes two
microseconds a point.
"""

import os
import tempfile
from typing import Any

import numpy as np

from caspar.colmap.files.folder import read_model
from caspar.colmap.model import NO_POINT, Model, owners_of

_MEMORY_FOLDER = "/dev/shm"
"""A file system in memory, on Linux."""


def is_pycolmap(thing: Any, name: str) -> bool:
    """Tell whether something is an object of a class of pycolmap."""
    kind = type(thing)
    return kind.__name__ == name and kind.__module__.partition(".")[0] == "pycolmap"


def model_of(reconstruction: Any) -> Model:
    """Read a `pycolmap.Reconstruction`."""
    folder = _MEMORY_FOLDER if os.path.isdir(_MEMORY_FOLDER) else None
    with tempfile.TemporaryDirectory(prefix="caspar-", dir=folder) as place:
        reconstruction.write_binary(place)
        return read_model(place)


def update(reconstruction: Any, before: Model, after: Model) -> None:
    """Bring a reconstruction of COLMAP 4 from one model to another; callers' objects stay valid.

    The model after has other values and perhaps fewer observations.
    """
    _delete_observations(reconstruction, before, after)
    cameras = after.cameras
    for row, camera_id in enumerate(cameras.ids.tolist()):
        start, end = cameras.offsets[row : row + 2]
        reconstruction.camera(camera_id).params = cameras.parameters[start:end]
    _update_poses(reconstruction, after)
    points = reconstruction.points3D
    now = after.points
    rows = np.arange(len(now.ids))
    if len(now.ids) == len(before.points.ids):
        is_same = np.all(now.xyz == before.points.xyz, axis=1) & (
            now.errors == before.points.errors
        )
        rows = np.flatnonzero(~is_same)
    values = zip(now.ids[rows].tolist(), now.xyz[rows], now.errors[rows].tolist(), strict=True)
    for point_id, xyz, error in values:
        point = points[point_id]
        point.xyz = xyz
        point.error = error


def _update_poses(reconstruction: Any, after: Model) -> None:
    if after.rigs is None or after.frames is None:  # as written by pycolmap before version 3.12
        for image_id, pose in zip(
            after.images.ids.tolist(), after.images.cam_from_world, strict=True
        ):
            image = reconstruction.images[image_id]
            image.cam_from_world = _rigid(image.cam_from_world, pose)
        return
    for frame_id, pose in zip(after.frames.ids.tolist(), after.frames.rig_from_world, strict=True):
        frame = reconstruction.frame(frame_id)
        frame.rig_from_world = _rigid(frame.rig_from_world, pose)
    owners = owners_of(after.rigs.offsets)
    is_reference = np.isin(np.arange(len(owners)), after.rigs.offsets)
    for row in np.flatnonzero(after.rigs.has_pose & ~is_reference).tolist():
        rig = reconstruction.rig(int(after.rigs.ids[owners[row]]))
        found = rig.non_ref_sensors
        sensor = next(
            one
            for one in found
            if one.id == after.rigs.sensor_ids[row]
            and int(one.type) == after.rigs.sensor_types[row]
        )
        pose = _rigid(found[sensor], after.rigs.sensor_from_rig[row])
        rig.set_sensor_from_rig(sensor, pose)


def _rigid(like: Any, pose: Any) -> Any:
    rotation = type(like.rotation)(pose[[1, 2, 3, 0]])
    return type(like)(rotation, pose[4:])


def _delete_observations(reconstruction: Any, before: Model, after: Model) -> None:
    images = before.images
    gone = np.flatnonzero((images.point_ids != NO_POINT) & (after.images.point_ids == NO_POINT))
    owners = owners_of(images.offsets)[gone]
    places = gone - images.offsets[owners]
    for place, row, keypoint in zip(gone.tolist(), owners.tolist(), places.tolist(), strict=True):
        # a point goes with the last but one of its observations
        if reconstruction.exists_point3D(int(images.point_ids[place])):
            reconstruction.delete_observation(int(images.ids[row]), keypoint)
