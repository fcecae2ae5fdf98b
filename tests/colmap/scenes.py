"""Synthetic scenes by pycolmap, in databases."""

from pathlib import Path
from typing import Any

import pycolmap


def scene(
    folder: Path,
    *,
    frames: int = 8,
    points: int = 150,
    cameras: int = 1,
    outliers: float = 0.0,
    lens: tuple[str, list[float]] | None = None,
    is_calibrated: bool = True,
    has_gravity: bool = False,
) -> tuple[Path, Any]:
    """A database of a scene with noise, and the true model."""
    pycolmap.logging.minloglevel = 2
    pycolmap.set_random_seed(3)
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig = 1, cameras
    options.num_frames_per_rig, options.num_points3D = frames, points
    options.camera_has_prior_focal_length = is_calibrated
    options.prior_gravity = has_gravity
    options.inlier_match_ratio = 1.0 - outliers
    if lens is not None:
        options.camera_model_id = getattr(pycolmap.CameraModelId, lens[0])
        options.camera_params = lens[1]
    path = folder / "database.db"
    with pycolmap.Database.open(path) as database:
        truth = pycolmap.synthesize_dataset(options, database)
        noise = pycolmap.SyntheticNoiseOptions()
        noise.point2D_stddev = 0.5
        pycolmap.synthesize_noise(noise, truth, database)
    return path, truth
