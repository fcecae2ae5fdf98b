"""Synthetic scenes by pycolmap, in databases, and how good a model of one is."""

from pathlib import Path
from typing import Any

import pycolmap
import pytest

from benchmarks import mapping


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
    path = folder / "database.db"
    others: dict[str, Any] = {}
    if lens is not None:
        others["camera_model_id"] = getattr(pycolmap.CameraModelId, lens[0])
        others["camera_params"] = lens[1]
    truth = mapping.scene(
        path,
        frames,
        points,
        noise=0.5,
        seed=3,
        num_cameras_per_rig=cameras,
        camera_has_prior_focal_length=is_calibrated,
        prior_gravity=has_gravity,
        inlier_match_ratio=1.0 - outliers,
        **others,
    )
    return path, truth


def check_as_good(own: dict[int, Any], theirs: dict[int, Any], truth: Any, written: Path) -> None:
    """One model with all images, whose errors are those of pycolmap's, and its files."""
    assert len(own) == len(theirs) == 1
    assert own[0].num_reg_images() == theirs[0].num_reg_images() == truth.num_images()
    error, other = (one[0].compute_mean_reprojection_error() for one in (own, theirs))
    assert error == pytest.approx(other, rel=1e-2)
    gaps = zip(mapping.errors(own[0], truth), mapping.errors(theirs[0], truth), strict=True)
    for found, wanted in gaps:
        assert found <= 1.1 * wanted + 1e-4
    assert pycolmap.Reconstruction(written / "0").num_points3D() == own[0].num_points3D()
