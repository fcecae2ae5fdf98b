"""`python -m benchmarks.colmap_models`: synthetic COLMAP models beside pycolmap's adjustment.

Each of COLMAP's camera models alone and in rigs whose sensor poses are refined, all models in one
problem, a lens for each image, the flags of the options, losses, and priors on positions. Both
libraries start from the same model with COLMAP's default options, 100 iterations at most; costs and
unknowns of Ceres are those of its summary. Differences are caspar's relative to Ceres', so that
negative ones are lower costs; of point errors they are in pixels. Times are of the second call, for
problems as small as these mostly set-up. Needs pycolmap.
"""

import argparse
import copy
import dataclasses
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
from benchmarks.page import table
from benchmarks.report import environment
from caspar.cameras import MODELS_BY_ID
from caspar.colmap.arguments import options_of

VERSION = pycolmap.__version__

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

WRITTEN = ("rigs", "mixed", "sphere", "single", "positions")
"""Cases that `--write` keeps for `tests/colmap`, with Ceres' costs."""

EQUAL = 1e-9
"""Costs that differ by less, relative, are equal."""

HEADINGS = [
    *("model", "residuals", "unknowns, caspar", "Ceres", "initial cost", "final cost"),
    *("point errors", "iterations, caspar", "Ceres", "s, caspar", "s, Ceres", "ended by"),
]


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
    has_positions: bool = False


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
    # a rig for each frame is a lens for each image
    yield Case("single", "SIMPLE_RADIAL", 20, 1, 1, 60)
    yield Case("single OPENCV", "OPENCV", 8, 1, 1)
    yield Case("positions", "SIMPLE_RADIAL", 2, 2, 4, 40, has_positions=True)
    yield Case("positions, single", "PINHOLE", 20, 1, 1, 60, has_positions=True)
    for name in ("SOFT_L1", "HUBER"):
        loss = {"ceres.loss_function_type": getattr(pycolmap.LossFunctionType, name)}
        yield Case(f"loss {name}", "SIMPLE_RADIAL", 2, 2, 5, options=loss)


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where `colmap_models_cpu.md` is written")
    parser.add_argument("--write", type=Path, help="keep models and costs of Ceres for the tests")
    parser.add_argument("--backend", default="cpu")
    request = parser.parse_args()
    pycolmap.logging.minloglevel = 2
    pycolmap.set_random_seed(37)
    if request.write is not None:
        _write(request.write)
        return
    rows, num_equal, num_lower = [], 0, 0
    for case in cases():
        made, priors = synthetic(case)
        ceres = _with_ceres(case, copy.deepcopy(made), priors)
        row, difference = _compared(case, made, priors, ceres, request.backend)
        num_equal += abs(difference) <= EQUAL
        num_lower += difference < -EQUAL
        rows.append(row)
        print("  ".join(row), flush=True)
    total = f"{len(rows)} models: {num_equal} equal costs, {num_lower} lower ones"
    total += f", {len(rows) - num_equal - num_lower} higher ones."
    print(total)
    if request.folder is not None:
        facts = ", ".join(f"{name} {value}" for name, value in environment(request.backend).items())
        assert __doc__ is not None
        about = __doc__.partition("\n\n")[2]
        page = (
            f"# Synthetic COLMAP models beside Ceres\n\n{facts}, pycolmap {VERSION}.\n\n{about}\n"
        )
        page += f"{total}\n\n{table(HEADINGS, rows)}"
        (request.folder / f"colmap_models_{request.backend}.md").write_text(page)


def _write(folder: Path) -> None:
    reference: dict[str, Any] = {}
    for case in cases():
        if case.name not in WRITTEN:
            continue
        made, priors = synthetic(case)
        made.write_binary(str(_folder(folder / case.name)))
        reference[case.name] = _with_ceres(case, copy.deepcopy(made), priors)
        if case.has_positions:
            reference[case.name]["priors"] = {
                "image_ids": [one.corr_data_id.id for one in priors],
                "positions": [one.position.tolist() for one in priors],
                "covariances": [one.position_covariance.tolist() for one in priors],
            }
    (folder / "reference.json").write_text(json.dumps(reference, indent=1) + "\n")


def synthetic(case: Case) -> tuple[Any, list[Any]]:
    """A model with noise in pixels, points and poses; and its priors, if it has any."""
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig = case.num_rigs, case.cameras_per_rig
    options.num_frames_per_rig, options.num_points3D = case.frames_per_rig, case.num_points
    options.num_points2D_without_point3D = 2
    _set_camera(options, case.camera_model)
    options.prior_position = case.has_positions
    database = pycolmap.Database.open(":memory:") if case.has_positions else None
    made = pycolmap.synthesize_dataset(options, database)
    if case.is_mixed:
        _mix(made)
    noise = pycolmap.SyntheticNoiseOptions()
    noise.point2D_stddev, noise.point3D_stddev = 0.5, 0.02
    noise.rig_from_world_translation_stddev, noise.rig_from_world_rotation_stddev = 0.02, 0.5
    noise.prior_position_stddev = 0.05
    pycolmap.synthesize_noise(noise, made, database)
    return made, [] if database is None else database.read_all_pose_priors()


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


def _options(case: Case) -> Any:
    options = pycolmap.BundleAdjustmentOptions()
    options.print_summary = False
    for name, value in case.options.items():
        *parents, last = name.split(".")
        target = options
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, last, value)
    return options


def _config(model: Any) -> Any:
    config = pycolmap.BundleAdjustmentConfig()
    for image_id in model.reg_image_ids():
        config.add_image(image_id)
    config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
    return config


def _with_ceres(case: Case, model: Any, priors: list[Any]) -> dict[str, Any]:
    pycolmap.ObservationManager(model).filter_observations_with_negative_depth()
    start = time.perf_counter()
    if case.has_positions:
        config = _config(model)
        config.fix_gauge(pycolmap.BundleAdjustmentGauge.UNSPECIFIED)
        how = pycolmap.PosePriorBundleAdjustmentOptions()
        adjuster = pycolmap.create_pose_prior_bundle_adjuster(
            _options(case), how, config, priors, model
        )
    else:
        adjuster = pycolmap.create_default_bundle_adjuster(_options(case), _config(model), model)
    solved = adjuster.solve().ceres_summary
    return {
        "initial_cost": solved.initial_cost,
        "final_cost": solved.final_cost,
        "num_residuals": solved.num_residuals,
        "num_unknowns": solved.num_effective_parameters_reduced,
        "num_iterations": solved.num_successful_steps + solved.num_unsuccessful_steps,
        "time_s": time.perf_counter() - start,
    }


def _compared(
    case: Case, made: Any, priors: list[Any], ceres: dict[str, Any], backend: str
) -> tuple[list[str], float]:
    """A row of the table, and the relative difference of costs."""
    given: Any = {"pose_priors": priors} if case.has_positions else {}
    options = options_of(_options(case))[0]
    options = dataclasses.replace(options, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        caspar.colmap.bundle_adjustment(copy.deepcopy(made), options, **given)  # compiles
        start = time.perf_counter()
        summary = caspar.colmap.bundle_adjustment(made, options, **given)
        time_s = time.perf_counter() - start
    errors = np.array([point.error for point in made.points3D.values()])
    made.update_point_3d_errors()
    theirs = np.array([point.error for point in made.points3D.values()])
    assert summary.num_residuals == ceres["num_residuals"]
    difference = summary.final_cost / ceres["final_cost"] - 1
    row = [
        case.name,
        f"{summary.num_residuals:,}",
        f"{summary.result.problem.num_unknowns}",
        f"{ceres['num_unknowns']}",
        f"{summary.initial_cost / ceres['initial_cost'] - 1:.1e}",
        f"{difference:.1e}",
        f"{np.abs(errors - theirs).max():.0e}",
        f"{len(summary.result.iterations)}",
        f"{ceres['num_iterations']}",
        f"{time_s:.3f}",
        f"{ceres['time_s']:.3f}",
        summary.result.status.name,
    ]
    return row, difference


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    main()
