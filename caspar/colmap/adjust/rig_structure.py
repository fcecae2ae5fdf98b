"""The frame and the sensor of each image.

Input: a `Model`. Output: rows of frames and sensors. A model of COLMAP 3 has a frame for each image
and no other sensors. A few passes over the frames, once for an adjustment.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from caspar.colmap.adjust.observations import TO_XYZW
from caspar.colmap.model import (
    Floats,
    Frames,
    Integers,
    Model,
    Rigs,
    SensorType,
    owners_of,
    rows_of,
)
from caspar.errors import InputError
from caspar.io.rotations import compose_se3

TO_WXYZ = [3, 0, 1, 2, 4, 5, 6]
"""Places of qw qx qy qz tx ty tz in a pose in caspar's order."""

REFERENCE = -1
"""The sensor of images that the reference sensor of their rig took."""


@dataclass(frozen=True, eq=False)
class RigStructure:
    """Frames and sensors of images; poses are qx qy qz qw tx ty tz.

    Attributes:
        frame_ids: (num_frames,) ids of frames, without frames those of images.
        frame_poses: (num_frames, 7) rig_from_world.
        sensor_poses: (num_sensors, 7) sensor_from_rig, of all sensors of all rigs.
        sensor_cameras: (num_sensors,) ids of cameras; -1 for other sensors.
        sensor_references: (num_sensors,) row of the reference sensor of the same rig.
        frames: (num_images,) rows of frames.
        sensors: (num_images,) rows of sensors, or `REFERENCE`.
        reference_sensors: (num_images,) rows of the reference sensors of the images' rigs.
    """

    frame_ids: Integers
    frame_poses: Floats
    sensor_poses: Floats
    sensor_cameras: Integers
    sensor_references: Integers
    frames: Integers
    sensors: Integers
    reference_sensors: Integers

    def cam_from_world(self, frame_poses: Floats, sensor_poses: Floats) -> Floats:
        """Return (num_images, 7) poses of images, from poses of frames and sensors."""
        poses = frame_poses[self.frames]
        has_sensor = self.sensors != REFERENCE
        sensors = sensor_poses[self.sensors[has_sensor]]
        poses[has_sensor] = compose_se3(sensors, poses[has_sensor])
        return poses

    def with_own_frames(self, images: Integers) -> "RigStructure":
        """Return it with frames for some images alone, by rows, behind the others, of id -1."""
        frames, sensors = self.frames.copy(), self.sensors.copy()
        frames[images] = len(self.frame_ids) + np.arange(len(images))
        sensors[images] = REFERENCE
        poses = self.cam_from_world(self.frame_poses, self.sensor_poses)[images]
        return replace(
            self,
            frame_ids=np.concatenate([self.frame_ids, np.full(len(images), -1)]),
            frame_poses=np.concatenate([self.frame_poses, poses]),
            frames=frames,
            sensors=sensors,
        )


def rig_structure(model: Model) -> RigStructure:
    """Find frames and sensors.

    Raises an `InputError` if an image has no frame, its camera is not that of the frame or not in
    the rig, or the pose of its sensor is not known.
    """
    if model.rigs is None or model.frames is None:
        num_images = len(model.images.ids)
        nothing = np.empty(0, np.int64)
        return RigStructure(
            frame_ids=model.images.ids,
            frame_poses=model.images.cam_from_world[:, TO_XYZW],
            sensor_poses=np.empty((0, 7)),
            sensor_cameras=nothing,
            sensor_references=nothing,
            frames=np.arange(num_images),
            sensors=np.full(num_images, REFERENCE),
            reference_sensors=np.full(num_images, REFERENCE),
        )
    return _with_rigs(model, model.rigs, model.frames)


def with_poses(
    model: Model, structure: RigStructure, frame_poses: Floats, sensor_poses: Floats
) -> Model:
    """Return a model with other poses of frames and sensors, and so of images."""
    images = structure.cam_from_world(frame_poses, sensor_poses)[:, TO_WXYZ]
    model = replace(model, images=replace(model.images, cam_from_world=images))
    if model.rigs is None or model.frames is None:
        return model
    return replace(
        model,
        rigs=replace(model.rigs, sensor_from_rig=sensor_poses[:, TO_WXYZ]),
        frames=replace(model.frames, rig_from_world=frame_poses[:, TO_WXYZ]),
    )


def _with_rigs(model: Model, rigs: Rigs, frames: Frames) -> RigStructure:
    is_image = frames.sensor_types == SensorType.CAMERA
    is_image &= np.isin(frames.data_ids, model.images.ids)
    data = np.flatnonzero(is_image)
    datum_of_image = np.full(len(model.images.ids), -1)
    datum_of_image[rows_of(model.images.ids, frames.data_ids[data])] = data
    _refuse(model, datum_of_image < 0, "is in no frame")
    is_other = frames.sensor_ids[datum_of_image] != model.images.camera_ids
    _refuse(model, is_other, "has another camera than in its frame")
    frame_rows = owners_of(frames.offsets)[datum_of_image]
    rig_rows = rows_of(rigs.ids, frames.rig_ids)[frame_rows]
    sensor_rows = _sensor_rows(model, rigs, rig_rows)
    _refuse(model, ~rigs.has_pose[sensor_rows], "was taken by a sensor of unknown pose")
    references = rigs.offsets[rig_rows]
    is_camera = rigs.sensor_types == SensorType.CAMERA
    return RigStructure(
        frame_ids=frames.ids,
        frame_poses=frames.rig_from_world[:, TO_XYZW],
        sensor_poses=rigs.sensor_from_rig[:, TO_XYZW],
        sensor_cameras=np.where(is_camera, rigs.sensor_ids, -1),
        sensor_references=rigs.offsets[owners_of(rigs.offsets)],
        frames=frame_rows,
        sensors=np.where(sensor_rows == references, REFERENCE, sensor_rows),
        reference_sensors=references,
    )


def _sensor_rows(model: Model, rigs: Rigs, rig_rows: Integers) -> Integers:
    cameras = np.flatnonzero(rigs.sensor_types == SensorType.CAMERA)
    owners = owners_of(rigs.offsets)[cameras]
    # ids are below 2^32
    keys = (owners << 32) + rigs.sensor_ids[cameras]
    wanted = (rig_rows << 32) + model.images.camera_ids
    _refuse(model, ~np.isin(wanted, keys), "was taken by a camera that is not in its rig")
    return cameras[rows_of(keys, wanted)]


def _refuse(model: Model, is_wrong: NDArray[np.bool_], what: str) -> None:
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise InputError(f"image {model.images.ids[row]} ({model.images.names[row]}) {what}")
