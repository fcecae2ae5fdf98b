"""Keypoints that see points: which there are, where their points project to, which are filtered.

Input: a `Model`. Output: arrays with one entry for each observation, and models without some of
them. A few passes over the arrays, at the start and at the end of an adjustment.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.cameras import MODELS_BY_ID, CameraModel
from caspar.colmap.model import (
    NO_POINT,
    Cameras,
    Floats,
    Integers,
    Model,
    is_in,
    offsets_of,
    owners_of,
    rows_of,
)
from caspar.errors import InputError
from caspar.io.rotations import rotate

TO_XYZW = [1, 2, 3, 0, 4, 5, 6]
"""Places of qx qy qz qw tx ty tz in a pose as COLMAP writes it."""

LEAST_DEPTH = 2.0**-52
"""Points of a smaller depth are behind a camera; COLMAP's bound."""


@dataclass(frozen=True, eq=False)
class Observations:
    """Keypoints that see points: (m,) places of keypoints, rows of images, cameras and points."""

    keypoints: Integers
    images: Integers
    cameras: Integers
    points: Integers

    @cached_property
    def used_points(self) -> Integers:
        """Rows of points that are seen, ascending."""
        return used_rows(self.points)

    @cached_property
    def used_images(self) -> Integers:
        """Rows of images that see points, ascending."""
        return used_rows(self.images)

    def part(self, chosen: NDArray[np.bool_] | Integers) -> "Observations":
        """Return some of them, by a mask or by rows."""
        if chosen.dtype == np.bool_ and chosen.all():
            return self
        return Observations(
            self.keypoints[chosen], self.images[chosen], self.cameras[chosen], self.points[chosen]
        )


def used_rows(rows: Integers) -> Integers:
    """Return which rows are there, ascending: `numpy.unique` for small numbers, but quicker."""
    return np.flatnonzero(np.bincount(rows)) if len(rows) > 0 else rows


def observations_of(model: Model) -> Observations:
    """Return all observations, in the order of the images and their keypoints.

    Raises an `InputError` if keypoints and tracks of points disagree.
    """
    images, points = model.images, model.points
    keypoints = np.flatnonzero(images.point_ids != NO_POINT)
    owners = owners_of(images.offsets)
    point_ids = images.point_ids[keypoints]
    is_known = is_in(point_ids, points.ids)
    if not is_known.all():
        missing = point_ids[int(np.argmin(is_known))]
        raise InputError(f"point {missing} is named by a keypoint, but is not in the model")
    rows = rows_of(points.ids, point_ids)
    _check_tracks(model, keypoints, rows)
    image_rows = owners[keypoints]
    camera_rows = rows_of(model.cameras.ids, images.camera_ids)[image_rows]
    return Observations(keypoints, image_rows, camera_rows, rows)


def _check_tracks(model: Model, keypoints: Integers, rows: Integers) -> None:
    images, points = model.images, model.points
    track_images = rows_of(images.ids, points.image_ids)
    places = images.offsets[track_images] + points.keypoint_index
    is_inside = places < images.offsets[track_images + 1]
    if is_inside.all() and len(places) == len(keypoints):
        found = np.full(len(images.point_ids), -1)
        found[places] = owners_of(points.offsets)
        if (found[keypoints] == rows).all():
            return
    raise InputError(
        f"keypoints and tracks disagree: {len(keypoints)} keypoints name points, and the tracks of "
        f"points name {len(places)} keypoints, but they are not the same; read the model with "
        "COLMAP and write it again"
    )


def rotation_columns(poses: Floats) -> list[Floats]:
    """Return the three columns, each (n, 3), of the rotation matrices of poses.

    Poses are (n, 7) qx qy qz qw tx ty tz; quaternions are used as they are, of any length.
    """
    return [rotate(poses[:, :4], axis) for axis in np.eye(3)]


def _camera_points(model: Model, seen: Observations) -> Floats:
    poses = model.images.cam_from_world[:, TO_XYZW]
    points = model.points.xyz[seen.points]
    placed: Floats = poses[seen.images, 4:]
    for axis, column in enumerate(rotation_columns(poses)):
        placed += column[seen.images] * points[:, axis : axis + 1]
    return placed


def _reprojections(
    cameras: Cameras, camera_rows: Integers, points: Floats, pixels: Floats
) -> Floats:
    """Return projected minus measured pixels, NaN where a camera cannot see a point.

    Rows of cameras (m,), camera coordinates of points (m, 3), and pixels (m, 2).
    """
    differences = np.empty_like(pixels)
    for model_id in np.unique(cameras.model_ids).tolist():
        model = MODELS_BY_ID[model_id]
        rows = np.flatnonzero(cameras.model_ids[camera_rows] == model_id)
        parameters = _parameters(cameras, camera_rows[rows], model)
        found = model.project_points(parameters, points[rows]) - pixels[rows]
        differences[rows] = model.pixel_differences(parameters, found)
    return differences


def _parameters(cameras: Cameras, rows: Integers, model: CameraModel) -> Floats:
    places = cameras.offsets[rows, None] + np.arange(model.num_parameters)
    parameters: Floats = cameras.parameters[places]
    return parameters


def _angles(left: Floats, right: Floats) -> Floats:
    """Return angles between (m, 3) vectors, accurate for small ones too."""
    sine = np.linalg.norm(np.cross(left, right), axis=1)
    angles: Floats = np.arctan2(sine, np.sum(left * right, axis=1))
    return angles


def without_negative_depths(model: Model, seen: Observations) -> tuple[Model, Observations]:
    """Remove observations of points behind their cameras, and points that fewer than two then see.

    Cameras of a whole sphere have nothing behind them. Returns the model, and all its observations.
    """
    depths = _camera_points(model, seen)[:, 2]
    is_periodic = {number for number, one in MODELS_BY_ID.items() if one.is_periodic}
    has_depth = ~np.isin(model.cameras.model_ids[seen.cameras], list(is_periodic))
    is_behind = has_depth & (depths < LEAST_DEPTH)
    if not is_behind.any():
        return model, seen
    filtered = _without(model, seen, is_behind)
    return filtered, observations_of(filtered)


def without_observations(model: Model, keypoints: Any) -> Model:
    """Return a model without some observations: their keypoints stay, but see no points.

    Points that fewer than two images then see are left out too. The model that is passed stays as
    it is.

    Args:
        model: The model.
        keypoints: (k,) booleans, one for each of `model.images.keypoints`: which see no point, for
            example `summary.weights() < 0.2`.

    Raises:
        InputError: The mask has another shape or type, or the model contradicts itself.
    """
    mask = np.asarray(keypoints)
    wanted = (len(model.images.keypoints),)
    if mask.dtype != np.bool_ or mask.shape != wanted:
        raise InputError(
            f"keypoints: {mask.dtype} of shape {mask.shape}; expected booleans of shape {wanted}, "
            "one for each keypoint of model.images"
        )
    seen = observations_of(model)
    return _without(model, seen, mask[seen.keypoints])


def _without(model: Model, seen: Observations, is_dropped: NDArray[np.bool_]) -> Model:
    num_points = len(model.points.ids)
    left = np.bincount(seen.points[~is_dropped], minlength=num_points)
    is_lost = (np.bincount(seen.points[is_dropped], minlength=num_points) > 0) & (left < 2)
    is_removed = is_dropped | is_lost[seen.points]
    point_ids = model.images.point_ids.copy()
    point_ids[seen.keypoints[is_removed]] = NO_POINT
    points = model.points
    owners = owners_of(points.offsets)
    places = model.images.offsets[rows_of(model.images.ids, points.image_ids)]
    stays = point_ids[places + points.keypoint_index] != NO_POINT
    counts = np.bincount(owners[stays], minlength=len(points.ids))[~is_lost]
    return replace(
        model,
        images=replace(model.images, point_ids=point_ids),
        points=replace(
            points,
            ids=points.ids[~is_lost],
            xyz=points.xyz[~is_lost],
            colors=points.colors[~is_lost],
            errors=points.errors[~is_lost],
            offsets=offsets_of(counts),
            image_ids=points.image_ids[stays],
            keypoint_index=points.keypoint_index[stays],
        ),
    )


def mean_errors(model: Model, seen: Observations) -> Floats:
    """Return (num_points,) mean reprojection errors in pixels; -1 for points that nobody sees.

    The error of an image of the whole sphere is an angle, in pixels of its equator, as in COLMAP.
    """
    points = _camera_points(model, seen)
    pixels = model.images.keypoints[seen.keypoints]
    errors = np.linalg.norm(_reprojections(model.cameras, seen.cameras, points, pixels), axis=1)
    for model_id, sphere in MODELS_BY_ID.items():
        if sphere.is_periodic:
            rows = np.flatnonzero(model.cameras.model_ids[seen.cameras] == model_id)
            sizes = _parameters(model.cameras, seen.cameras[rows], sphere)
            directions = sphere.unproject_points(sizes, pixels[rows])
            errors[rows] = _angles(directions, points[rows]) * sizes[:, 0] / (2 * np.pi)
    is_seen = np.isfinite(errors)
    num_points = len(model.points.ids)
    counts = np.bincount(seen.points[is_seen], minlength=num_points)
    sums = np.bincount(seen.points[is_seen], errors[is_seen], minlength=num_points)
    means: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), -1.0)
    return means
