"""`Model`: what the files of a COLMAP model hold, as plain arrays.

Conventions are COLMAP's. A pose `a_from_b` is qw qx qy qz tx ty tz and takes coordinates of b to
those of a. Pixels have the origin at the upper left corner of the image, so that the centre of the
first pixel is at 0.5, 0.5. Parts of different length, such as the keypoints of images, lie one
after the other in flat arrays: part i is `offsets[i]` to `offsets[i + 1]`. Nothing is computed here
but checks: a few passes over the arrays.
"""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from caspar.cameras import MODELS_BY_ID
from caspar.errors import InputError

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

NO_POINT = -1
"""`Images.point_ids` of a keypoint without a point."""


_DENSE = 8
"""Ids are looked up in a table if the greatest is below so many times their number."""


class SensorType(IntEnum):
    """Kinds of sensors, as COLMAP numbers them."""

    CAMERA = 0
    IMU = 1


@dataclass(frozen=True, eq=False, repr=False)
class Cameras:
    """Cameras, that is intrinsics; see `caspar.cameras.MODELS_BY_ID`.

    Attributes:
        ids: (n,).
        model_ids: (n,) COLMAP's numbers of camera models.
        widths: (n,) pixels.
        heights: (n,) pixels.
        offsets: (n + 1,) into `parameters`.
        parameters: (k,) parameters of all cameras, in the order of their models.
    """

    ids: Integers
    model_ids: Integers
    widths: Integers
    heights: Integers
    offsets: Integers
    parameters: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Rigs:
    """Rigs of sensors that move together.

    Attributes:
        ids: (n,).
        offsets: (n + 1,) into the arrays of sensors; the first sensor of a rig is its reference.
        sensor_types: (k,) `SensorType`.
        sensor_ids: (k,) the id of a camera where the type is `CAMERA`.
        has_pose: (k,) whether the pose is known; True for reference sensors.
        sensor_from_rig: (k, 7) poses; the identity for reference sensors and unknown ones.
    """

    ids: Integers
    offsets: Integers
    sensor_types: Integers
    sensor_ids: Integers
    has_pose: NDArray[np.bool_]
    sensor_from_rig: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Frames:
    """Poses of rigs, and what their sensors recorded there.

    Attributes:
        ids: (n,).
        rig_ids: (n,).
        rig_from_world: (n, 7) poses.
        offsets: (n + 1,) into the arrays of data.
        sensor_types: (k,) `SensorType`.
        sensor_ids: (k,).
        data_ids: (k,) the id of an image where the type is `CAMERA`.
    """

    ids: Integers
    rig_ids: Integers
    rig_from_world: Floats
    offsets: Integers
    sensor_types: Integers
    sensor_ids: Integers
    data_ids: Integers


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Registered images.

    Attributes:
        ids: (n,).
        names: n file names.
        camera_ids: (n,).
        cam_from_world: (n, 7) poses.
        offsets: (n + 1,) into the arrays of keypoints.
        keypoints: (k, 2) pixels.
        point_ids: (k,) the point that each keypoint sees, or `NO_POINT`.
    """

    ids: Integers
    names: tuple[str, ...]
    camera_ids: Integers
    cam_from_world: Floats
    offsets: Integers
    keypoints: Floats
    point_ids: Integers


@dataclass(frozen=True, eq=False, repr=False)
class Points:
    """Points in space and the keypoints that see them.

    Attributes:
        ids: (n,).
        xyz: (n, 3) world coordinates.
        colors: (n, 3) red, green, blue.
        errors: (n,) mean reprojection errors in pixels; -1 where unknown.
        offsets: (n + 1,) into the arrays of tracks.
        image_ids: (k,) images of the tracks.
        keypoint_index: (k,) places of the keypoints within their images.
    """

    ids: Integers
    xyz: Floats
    colors: NDArray[np.uint8]
    errors: Floats
    offsets: Integers
    image_ids: Integers
    keypoint_index: Integers


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A COLMAP model.

    Attributes:
        cameras: Intrinsics.
        images: Registered images.
        points: Points in space.
        rigs: Rigs of COLMAP 4; None: the model has none, as in COLMAP 3.
        frames: Frames of COLMAP 4; None together with `rigs`.

    Raises:
        InputError: An array has a wrong length, an id is there twice, or a reference has no target.
    """

    cameras: Cameras
    images: Images
    points: Points
    rigs: Rigs | None = None
    frames: Frames | None = None

    def __post_init__(self) -> None:
        """Check lengths, ids and references."""
        if (self.rigs is None) != (self.frames is None):
            raise InputError("a model has both rigs and frames, or neither")
        for name, part in self.parts().items():
            _check_lengths(name, part)
            _check_ids(name, part.ids)
        for name, found, allowed, where in self._references():
            is_known = is_in(found, allowed)
            if not is_known.all():
                missing = found[int(np.argmin(is_known))]
                raise InputError(f"{name} {missing} is named in {where}, but is not in the model")

    def parts(self) -> dict[str, Any]:
        """Cameras, images, points, and rigs and frames if there are any, by name."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: part for name, part in found.items() if part is not None}

    def _references(self) -> list[tuple[str, Integers, Integers, str]]:
        references = [
            ("camera", self.images.camera_ids, self.cameras.ids, "images"),
            ("image", self.points.image_ids, self.images.ids, "the tracks of points"),
        ]
        if self.rigs is not None and self.frames is not None:
            cameras = self.rigs.sensor_types == SensorType.CAMERA
            data = self.frames.sensor_types == SensorType.CAMERA
            references += [
                ("rig", self.frames.rig_ids, self.rigs.ids, "frames"),
                ("camera", self.rigs.sensor_ids[cameras], self.cameras.ids, "rigs"),
                ("camera", self.frames.sensor_ids[data], self.cameras.ids, "frames"),
            ]
        return references

    @property
    def num_observations(self) -> int:
        """Number of keypoints that see a point."""
        return int(np.count_nonzero(self.images.point_ids != NO_POINT))

    def __repr__(self) -> str:
        """Return the sizes; the arrays are too large to be shown."""
        sizes = [f"{len(part.ids)} {name}" for name, part in self.parts().items()]
        return f"Model({', '.join(sizes)}, {self.num_observations} observations)"


def is_in(wanted: Integers, ids: Integers) -> NDArray[np.bool_]:
    """Tell which ids are there."""
    if len(ids) == 0 or ids.min() < 0 or ids.max() >= _DENSE * len(ids):
        return np.isin(wanted, ids)
    is_there = np.zeros(int(ids.max()) + 1, np.bool_)
    is_there[ids] = True
    is_inside = (wanted >= 0) & (wanted < len(is_there))
    return is_inside & is_there[np.where(is_inside, wanted, 0)]


def rows_of(ids: Integers, wanted: Integers) -> Integers:
    """Return the row, in (n,) ids, of each wanted id, (m,), which must be among them."""
    if len(ids) > 0 and ids.min() >= 0 and ids.max() < _DENSE * len(ids):
        table = np.empty(int(ids.max()) + 1, np.int64)
        table[ids] = np.arange(len(ids))
        return np.asarray(table[wanted])
    order = np.argsort(ids, kind="stable")
    rows: Integers = order[np.searchsorted(ids, wanted, sorter=order)]
    return rows


def offsets_of(counts: Any) -> Integers:
    """Return (n + 1,) offsets of parts with these counts."""
    return np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))]).astype(np.int64)


def owners_of(offsets: Integers) -> Integers:
    """Return the part, by its row, that each element of a flat array belongs to."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _check_lengths(name: str, part: Any) -> None:
    """Compare lengths: one entry for each id, and one in a flat array for each element."""
    flat = _FLAT[type(part)]
    if "offsets" in vars(part) and (part.offsets[:1].any() or (np.diff(part.offsets) < 0).any()):
        raise InputError(f"model, {name}.offsets: it must start with 0 and never decrease")
    sizes = {True: int(part.offsets[-1]) if "offsets" in vars(part) else 0, False: len(part.ids)}
    for field in fields(part):
        found = len(getattr(part, field.name))
        wanted = len(part.ids) + 1 if field.name == "offsets" else sizes[field.name in flat]
        if found != wanted:
            raise InputError(f"model, {name}.{field.name}: length {found}; it must be {wanted}")


_FLAT: dict[type, tuple[str, ...]] = {
    Cameras: ("parameters",),
    Rigs: ("sensor_types", "sensor_ids", "has_pose", "sensor_from_rig"),
    Frames: ("sensor_types", "sensor_ids", "data_ids"),
    Images: ("keypoints", "point_ids"),
    Points: ("image_ids", "keypoint_index"),
}
"""Arrays with one entry for each element of a part."""


def _check_ids(name: str, ids: Integers) -> None:
    if (ids[1:] > ids[:-1]).all():  # as most files have them
        return
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        raise InputError(f"model, {name}: id {unique[np.argmax(counts)]} is there twice")


def num_parameters_of(model_id: int) -> int | None:
    """Return how many parameters a camera model has; None: there is no such model."""
    model = MODELS_BY_ID.get(model_id)
    return None if model is None else model.num_parameters
