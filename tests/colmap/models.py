"""COLMAP models for tests: real ones, synthetic ones with rigs, and ones of a few points."""

import dataclasses
import json
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from caspar.colmap import Cameras, Frames, Images, Model, Points, Rigs, read_model

ROOT = Path(__file__).parents[2]
SYNTHETIC = ROOT / "tests/data/colmap"
"""Written by `python -m benchmarks.colmap_models --write tests/data/colmap` with pycolmap 4.2.1."""

CERES: dict[str, Any] = json.loads((SYNTHETIC / "reference.json").read_text())
"""Costs of Ceres for the synthetic models, from the same benchmark."""


@cache
def synthetic(name: str) -> Model:
    """A model made by COLMAP, with noise."""
    return read_model(SYNTHETIC / name)


@cache
def packed(file: Path) -> Model:
    """A model in an archive."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(file) as archive:
            archive.extractall(folder, filter="data")
        return read_model(next(Path(folder).iterdir()))


def equal_arrays(left: Model, right: Model) -> bool:
    """Whether two models hold the same, bit by bit."""
    parts, others = left.parts(), right.parts()
    return parts.keys() == others.keys() and all(
        _is_same(getattr(part, field.name), getattr(others[name], field.name))
        for name, part in parts.items()
        for field in dataclasses.fields(part)
    )


def _is_same(left: Any, right: Any) -> bool:
    if isinstance(left, tuple):
        return bool(left == right)
    return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())


def tiny(*, with_rigs: bool = True) -> Model:
    """Two cameras in a rig, two frames, three points, odd names, an image without keypoints."""
    cameras = Cameras(
        ids=np.array([7, 3]),
        model_ids=np.array([2, 4]),
        widths=np.array([640, 800]),
        heights=np.array([480, 600]),
        offsets=np.array([0, 4, 12]),
        parameters=np.array([500, 320, 240, 0.1, 600, 610, 400, 300, 0.1, 1 / 3, 1e-300, -0.0]),
    )
    pose = np.array([1, 0, 0, 0, 0.5, 1e-17, -3])
    images = Images(
        ids=np.array([4, 9, 5]),
        names=("a b.jpg", "ä.png", "folder/c.png"),
        camera_ids=np.array([7, 3, 7]),
        cam_from_world=np.stack([pose, pose * 2, pose]),
        offsets=np.array([0, 3, 3, 4]),
        keypoints=np.array([[1.5, 2.25], [0.1, 1e9], [3, 4], [5, 6.0]]),
        point_ids=np.array([2**40, -1, 1, 1]),
    )
    points = Points(
        ids=np.array([2**40, 1, 8]),
        xyz=np.array([[1, 2, 3], [0.1, 0.2, 0.3], [-1, 0, 1e-5]]),
        colors=np.array([[0, 128, 255], [1, 2, 3], [4, 5, 6]], np.uint8),
        errors=np.array([0.5, -1, 1 / 3]),
        offsets=np.array([0, 1, 3, 3]),
        image_ids=np.array([4, 4, 5]),
        keypoint_index=np.array([0, 2, 0]),
    )
    if not with_rigs:
        return Model(cameras, images, points)
    rigs = Rigs(
        ids=np.array([1, 2]),
        offsets=np.array([0, 3, 3]),
        sensor_types=np.array([0, 0, 1]),
        sensor_ids=np.array([7, 3, 5]),
        has_pose=np.array([True, True, False]),
        sensor_from_rig=np.array([[1, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0.1, 0, 0], [1.0, *[0] * 6]]),
    )
    frames = Frames(
        ids=np.array([10, 11]),
        rig_ids=np.array([1, 1]),
        rig_from_world=np.stack([pose, pose]),
        offsets=np.array([0, 3, 4]),
        sensor_types=np.array([0, 0, 1, 0]),
        sensor_ids=np.array([7, 3, 5, 7]),
        data_ids=np.array([4, 9, 2**60, 5]),
    )
    return Model(cameras, images, points, rigs, frames)
