"""COLMAP models that are measured: packed ones, moved ones, and one that is made.

Input: packed folders, or sizes. Output: folders of models, or a `caspar.colmap.Model`. A few passes
over the observations.
"""

import dataclasses
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from benchmarks.synthetic import SyntheticBundle
from caspar.cameras import MODELS, CameraModel
from caspar.colmap import Model, read_model, write_model
from caspar.colmap.model import Cameras, Images, Points, offsets_of

MOVED = (0.02, 0.02, 0.01)
"""Standard deviations of what is added to rotations (radians), translations and points, the last
two relative to the size of the scene."""

IMAGE = (1024, 768)
"""Pixels of the images of a model that is made."""

PARAMETERS = {"cx": 512.0, "cy": 384.0, "k": -0.02, "k1": -0.02, "k2": 0.004, "p1": 1e-4}
"""Intrinsics of such a model; others than focal lengths are zero."""

LENS_ERROR = 0.002
"""Relative error of its focal lengths at the start."""


def unpacked(path: Path, place: Path) -> Path | None:
    """Unpack a model into a folder, in binary form; None: it is something else, or is there."""
    with tarfile.open(path) as archive:
        names = {name.split("/")[0] for name in archive.getnames()}
        folder = place / min(names)
        if len(names) != 1 or folder.exists():
            return None
        archive.extractall(place, filter="data")
    if not any(folder.glob("cameras.*")):
        return None
    binary = place / f"{folder.name}_binary"
    write_model(read_model(folder), binary)
    (place / "models").mkdir(exist_ok=True)
    return binary.rename(place / "models" / folder.name)


def moved(model: Model) -> Model:
    """Move the poses and points of a model at random."""
    rng = np.random.default_rng(37)
    turn, shift, wander = MOVED
    low, high = np.percentile(model.points.xyz, [5, 95], axis=0)
    size = float(np.linalg.norm(high - low))
    poses = model.images.cam_from_world.copy()
    angles = Rotation.from_rotvec(rng.normal(size=(len(poses), 3)) * turn)
    turned = (angles * Rotation.from_quat(poses[:, [1, 2, 3, 0]])).as_quat()
    poses[:, :4] = turned[:, [3, 0, 1, 2]]
    poses[:, 4:] += rng.normal(size=(len(poses), 3)) * shift * size
    xyz = model.points.xyz + rng.normal(size=model.points.xyz.shape) * wander * size
    return dataclasses.replace(
        model,
        images=dataclasses.replace(model.images, cam_from_world=poses),
        points=dataclasses.replace(model.points, xyz=xyz),
        rigs=None,
        frames=None,
    )


def made_from(bundle: SyntheticBundle, camera_models: Sequence[str], num_lenses: int) -> Model:
    """A model of COLMAP with the poses, points and tracks of a synthetic bundle.

    Args:
        bundle: The scene; its cameras look along their negative z axis.
        camera_models: Names; cameras take them in turn.
        num_lenses: Cameras in the sense of COLMAP, which images share in turn.
    """
    lenses = [MODELS[camera_models[row % len(camera_models)]] for row in range(num_lenses)]
    true_parameters = [
        _parameters(one.parameter_names, 400.0 + row) for row, one in enumerate(lenses)
    ]
    lens_of_image = np.arange(len(bundle.cameras)) % num_lenses
    order = np.argsort(bundle.camera_index, kind="stable")
    image, point = bundle.camera_index[order].astype(np.int64), bundle.point_index[order]
    poses = _turned(bundle.true_cameras)
    seen = Rotation.from_quat(poses[image, :4]).apply(bundle.true_points[point]) + poses[image, 4:]
    pixels = np.empty((len(image), 2))
    for row, (lens, parameters) in enumerate(zip(lenses, true_parameters, strict=True)):
        chosen = lens_of_image[image] == row
        pixels[chosen] = lens.project_points(parameters, seen[chosen])
    rng = np.random.default_rng(37)
    pixels += bundle.pixel_noise * rng.standard_normal(pixels.shape)
    start = [
        np.where(np.isin(np.arange(len(one)), lens.focal), one * (1.0 + LENS_ERROR), one)
        for lens, one in zip(lenses, true_parameters, strict=True)
    ]
    return _model(bundle, lenses, start, lens_of_image, (image, point.astype(np.int64), pixels))


def _parameters(names: Sequence[str], focal: float) -> NDArray[np.float64]:
    return np.array([focal if name[0] == "f" else PARAMETERS.get(name, 0.0) for name in names])


def _turned(cameras: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, 7) qx qy qz qw tx ty tz of cameras that look along their positive z axis."""
    half_turn = Rotation.from_quat([1.0, 0.0, 0.0, 0.0])
    rotations = half_turn * Rotation.from_quat(cameras[:, :4])
    return np.hstack([rotations.as_quat(), half_turn.apply(cameras[:, 4:7])])


def _model(
    bundle: SyntheticBundle,
    lenses: Sequence[CameraModel],
    start: Sequence[NDArray[np.float64]],
    lens_of_image: NDArray[np.int64],
    observations: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]],
) -> Model:
    image, point, pixels = observations
    num_images, num_points = len(bundle.cameras), len(bundle.points)
    counts = np.bincount(image, minlength=num_images)
    offsets = offsets_of(counts)
    by_point = np.argsort(point, kind="stable")
    poses = _turned(bundle.cameras)
    return Model(
        cameras=Cameras(
            ids=np.arange(1, len(lenses) + 1),
            model_ids=np.array([one.model_id for one in lenses]),
            widths=np.full(len(lenses), IMAGE[0]),
            heights=np.full(len(lenses), IMAGE[1]),
            offsets=offsets_of([len(one) for one in start]),
            parameters=np.concatenate(start),
        ),
        images=Images(
            ids=np.arange(1, num_images + 1),
            names=tuple(f"{row:06}.jpg" for row in range(num_images)),
            camera_ids=1 + lens_of_image,
            cam_from_world=poses[:, [3, 0, 1, 2, 4, 5, 6]],
            offsets=offsets,
            keypoints=pixels,
            point_ids=1 + point,
        ),
        points=Points(
            ids=np.arange(1, num_points + 1),
            xyz=bundle.points,
            colors=np.zeros((num_points, 3), np.uint8),
            errors=np.full(num_points, -1.0),
            offsets=offsets_of(np.bincount(point, minlength=num_points)),
            image_ids=1 + image[by_point],
            keypoint_index=(np.arange(len(image)) - offsets[image])[by_point],
        ),
    )
