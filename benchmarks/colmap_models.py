"""Bundle adjustment of synthetic COLMAP models beside `pycolmap.bundle_adjustment`.

    python -m benchmarks.colmap_models
    python -m benchmarks.colmap_models --write tests/data/colmap

Needs pycolmap (values in the repository: 4.2.1). Each of COLMAP's camera models alone and in rigs,
all models in one problem with shared and single intrinsics, and the flags of the options. Both
libraries start from the same model; costs of Ceres are those of its summary. `--write` keeps some
of the models, and Ceres' costs, for `tests/colmap/test_bundle_adjustment.py`.
"""

import argparse
import copy
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pycolmap

import caspar.colmap
from caspar.cameras import MODELS_BY_ID

PARAMETERS = {
    "f": 900.0,
    "fx": 900.0,
    "fy": 910.0,
    "cx": 512.0,
    "cy": 384.0,
    "k": -0.05,
    "k0": 0.05,
    "k1": 0.05,
    "k2": -0.02,
    "k3": 0.003,
    "k4": 0.004,
    "k5": 0.002,
    "k6": 0.001,
    "p0": 0.001,
    "p1": 0.001,
    "p2": -0.002,
    "sx1": 0.001,
    "sy1": -0.001,
    "s0": 0.001,
    "s1": -0.001,
    "s2": 0.001,
    "s3": -0.001,
    "omega": 0.6,
    "alpha": 0.6,
    "beta": 1.1,
    "w": 1024.0,
    "h": 512.0,
}

WRITTEN = ("rigs", "mixed", "sphere")
"""Cases that `--write` keeps."""


@dataclass(frozen=True)
class Case:
    """A synthetic model, and options of COLMAP for it."""

    name: str
    camera_model: str
    num_rigs: int = 1
    cameras_per_rig: int = 1
    frames_per_rig: int = 8
    num_points: int = 100
    options: dict[str, Any] = field(default_factory=dict)
    is_mixed: bool = False


def cases() -> Iterator[Case]:
    """All cases."""
    for model in MODELS_BY_ID.values():
        yield Case(f"one {model.name}", model.name)
        yield Case(f"rigs {model.name}", model.name, 2, 2, 5)
    for name, value in (
        ("refine_sensor_from_rig", False),
        ("refine_rig_from_world", False),
        ("constant_rig_from_world_rotation", True),
        ("refine_principal_point", True),
        ("refine_points3D", False),
        ("refine_focal_length", False),
        ("refine_extra_params", False),
        ("min_track_length", 18),
    ):
        yield Case(f"{name}={value}", "OPENCV", 2, 2, 5, options={name: value})
    yield Case("rigs", "OPENCV_FISHEYE", 2, 2, 4, 40)
    yield Case("mixed", "SIMPLE_RADIAL", 3, 2, 5, 60, is_mixed=True)
    yield Case("sphere", "EQUIRECTANGULAR", 1, 1, 5, 40)


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    request = parser.parse_args()
    pycolmap.logging.minloglevel = 2
    pycolmap.set_random_seed(37)
    reference = {}
    for case in cases():
        if request.write is not None and case.name not in WRITTEN:
            continue
        made = synthetic(case)
        if request.write is not None:
            made.write_binary(str(_folder(request.write / case.name)))
        ceres = _with_ceres(case, copy.deepcopy(made))
        reference[case.name] = ceres
        _compare(case, made, ceres)
    if request.write is not None:
        (request.write / "reference.json").write_text(json.dumps(reference, indent=1) + "\n")


def synthetic(case: Case) -> Any:
    """A model with noise in pixels, points and poses."""
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig = case.num_rigs, case.cameras_per_rig
    options.num_frames_per_rig, options.num_points3D = case.frames_per_rig, case.num_points
    options.num_points2D_without_point3D = 2
    _set_camera(options, case.camera_model)
    made = pycolmap.synthesize_dataset(options)
    if case.is_mixed:
        _mix(made)
    noise = pycolmap.SyntheticNoiseOptions()
    noise.point2D_stddev, noise.point3D_stddev = 0.5, 0.02
    noise.rig_from_world_translation_stddev, noise.rig_from_world_rotation_stddev = 0.02, 0.5
    pycolmap.synthesize_noise(noise, made)
    return made


def _set_camera(options: Any, name: str) -> None:
    model = next(one for one in MODELS_BY_ID.values() if one.name == name)
    options.camera_model_id = getattr(pycolmap.CameraModelId, name)
    options.camera_params = [PARAMETERS[one] for one in model.parameter_names]
    options.camera_height = 512 if model.is_periodic else 768


def _mix(made: Any) -> None:
    """Give the cameras different models, and project all points anew."""
    names = ["OPENCV", "SIMPLE_PINHOLE", "OPENCV_FISHEYE", "FULL_OPENCV", "EUCM", "PINHOLE"]
    for camera_id in made.cameras:
        camera, name = made.camera(camera_id), names[camera_id % len(names)]
        model = next(one for one in MODELS_BY_ID.values() if one.name == name)
        camera.model = getattr(pycolmap.CameraModelId, name)
        camera.params = [PARAMETERS[one] for one in model.parameter_names]
    for image_id in made.images:
        image = made.image(image_id)
        for point in image.points2D:
            if point.has_point3D():
                point.xy = image.project_point(made.point3D(point.point3D_id).xyz)


def _with_ceres(case: Case, model: Any) -> dict[str, float]:
    options = pycolmap.BundleAdjustmentOptions()
    options.print_summary = False
    for name, value in case.options.items():
        setattr(options, name, value)
    pycolmap.ObservationManager(model).filter_observations_with_negative_depth()
    config = pycolmap.BundleAdjustmentConfig()
    for image_id in model.reg_image_ids():
        config.add_image(image_id)
    config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
    start = time.perf_counter()
    adjuster = pycolmap.create_default_bundle_adjuster(options, config, model)
    solved = adjuster.solve().ceres_summary
    return {
        "initial_cost": solved.initial_cost,
        "final_cost": solved.final_cost,
        "num_residuals": solved.num_residuals,
        "num_unknowns": solved.num_effective_parameters_reduced,
        "time_s": time.perf_counter() - start,
    }


def _compare(case: Case, made: Any, ceres: dict[str, float]) -> None:
    options = pycolmap.BundleAdjustmentOptions()
    for name, value in case.options.items():
        setattr(options, name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        caspar.colmap.bundle_adjustment(copy.deepcopy(made), options)  # compiles
        start = time.perf_counter()
        summary = caspar.colmap.bundle_adjustment(made, options)
    errors = np.array([point.error for point in made.points3D.values()])
    made.update_point_3d_errors()
    theirs = np.array([point.error for point in made.points3D.values()])
    print(
        f"{case.name:38s} residuals {summary.num_residuals:5d} {ceres['num_residuals']:5d}  "
        f"unknowns {summary.result.problem.num_unknowns:4d} {ceres['num_unknowns']:4d}  "
        f"initial {summary.initial_cost / ceres['initial_cost'] - 1:8.1e}  "
        f"final {summary.final_cost / ceres['final_cost'] - 1:8.1e}  point errors "
        f"{np.abs(errors - theirs).max():.0e}  {time.perf_counter() - start:.2f} s, Ceres "
        f"{ceres['time_s']:.2f} s  {summary.result.status.name}"
    )


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    main()
