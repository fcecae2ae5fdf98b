"""`pycolmap` objects, where that package is there: in place, with its options, as its adjuster."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caspar.colmap import (
    LossFunction,
    Model,
    PosePriors,
    bundle_adjustment,
    read_model,
    write_model,
)
from caspar.colmap.arguments import (
    config_of,
    options_of,
    pose_prior_options_of,
    pose_priors_of,
)
from caspar.colmap.pycolmap_objects import model_of
from caspar.errors import OptionError
from tests.colmap.models import CERES, ROOT, SYNTHETIC, equal_arrays, packed, synthetic

pycolmap = pytest.importorskip("pycolmap")


def _reconstruction(name: str = "rigs") -> Any:
    return pycolmap.Reconstruction(str(SYNTHETIC / name))


def test_a_reconstruction_is_read() -> None:
    assert equal_arrays(model_of(_reconstruction()), synthetic("rigs"))


@pytest.mark.parametrize("format", ["binary", "text"])
def test_pycolmap_reads_what_is_written(tmp_path: Path, format: str) -> None:
    for number, model in enumerate((synthetic("mixed"), packed(ROOT / "data/sbcv_shared.tar.xz"))):
        folder = tmp_path / str(number)
        write_model(model, folder, format)
        (tmp_path / "again").mkdir(exist_ok=True)
        pycolmap.Reconstruction(str(folder)).write_binary(str(tmp_path / "again"))
        again = read_model(tmp_path / "again")
        if model.rigs is None:
            again = dataclasses.replace(again, rigs=None, frames=None)
        assert equal_arrays(_sorted(again), _sorted(model))


def _sorted(model: Model) -> Model:
    """The same with points by their ids: pycolmap's order is that of a hash table."""
    order = np.argsort(model.points.ids)
    starts, ends = model.points.offsets[order], model.points.offsets[order + 1]
    places = np.concatenate([np.arange(*pair) for pair in zip(starts, ends, strict=True)])
    points = dataclasses.replace(
        model.points,
        ids=model.points.ids[order],
        xyz=model.points.xyz[order],
        colors=model.points.colors[order],
        errors=model.points.errors[order],
        offsets=np.concatenate([[0], np.cumsum(ends - starts)]),
        image_ids=model.points.image_ids[places],
        keypoint_index=model.points.keypoint_index[places],
    )
    return dataclasses.replace(model, points=points)


def test_a_reconstruction_is_adjusted_in_place() -> None:
    reconstruction = _reconstruction()
    point, frame = reconstruction.point3D(1), reconstruction.frame(1)
    summary = bundle_adjustment(reconstruction, pycolmap.BundleAdjustmentOptions())
    assert summary.final_cost == pytest.approx(CERES["rigs"]["final_cost"], rel=1e-12)
    found, wanted = _sorted(model_of(reconstruction)), _sorted(summary.model)
    # COLMAP composes the poses of images itself
    np.testing.assert_allclose(
        found.images.cam_from_world, wanted.images.cam_from_world, rtol=0, atol=1e-14
    )
    assert equal_arrays(dataclasses.replace(found, images=wanted.images), wanted)
    row = int(np.flatnonzero(summary.model.points.ids == 1)[0])
    np.testing.assert_array_equal(point.xyz, summary.model.points.xyz[row])
    assert frame.rig_from_world.rotation.quat is not None
    errors = {number: one.error for number, one in reconstruction.points3D.items()}
    reconstruction.update_point_3d_errors()
    for number, one in reconstruction.points3D.items():
        assert one.error == pytest.approx(errors[number], rel=1e-9)


def test_observations_behind_cameras_go() -> None:
    reconstruction = _reconstruction()
    reconstruction.point3D(3).xyz = -1000 * reconstruction.point3D(3).xyz
    other = copy.deepcopy(reconstruction)
    removed = pycolmap.ObservationManager(other).filter_observations_with_negative_depth()
    with pytest.warns(UserWarning, match=f"{removed} observations of points behind"):
        summary = bundle_adjustment(reconstruction)
    assert summary.num_filtered == removed > 0
    assert reconstruction.num_points3D() == other.num_points3D()
    assert reconstruction.compute_num_observations() == other.compute_num_observations()


def test_options_and_config() -> None:
    options = pycolmap.BundleAdjustmentOptions(refine_principal_point=True, min_track_length=3)
    options.ceres.solver_options.max_num_iterations = 7
    found, ignored = options_of(options)
    assert ignored == ()
    assert found.refine_principal_point
    assert (found.min_track_length, found.max_num_iterations) == (3, 7)
    options.ceres.loss_function_type = pycolmap.LossFunctionType.CAUCHY
    options.ceres.loss_function_scale = 0.5
    found, _ = options_of(options)
    assert found.loss_function_type is LossFunction.CAUCHY
    assert found.loss_function_scale == 0.5
    config = pycolmap.BundleAdjustmentConfig()
    config.add_image(4)
    config.add_constant_point(5)
    config.set_constant_cam_intrinsics(1)
    config.set_constant_rig_from_world_pose(2)
    config.set_constant_sensor_from_rig_pose(pycolmap.sensor_t(pycolmap.SensorType.CAMERA, 3))
    chosen = config_of(config)
    assert chosen.images == frozenset([4])
    assert chosen.constant_points == {5}
    assert not chosen.filter_negative_depth
    assert chosen.constant_cam_intrinsics == {1}
    assert chosen.constant_rig_from_world_poses == {2}
    assert chosen.constant_sensor_from_rig_poses == {3}


def test_adjuster_of_a_custom_pipeline() -> None:
    from caspar.colmap.pycolmap_adjuster import CasparAdjuster  # imports pycolmap

    reconstruction = _reconstruction()
    config = pycolmap.BundleAdjustmentConfig()
    for image_id in reconstruction.reg_image_ids():
        config.add_image(image_id)
    config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
    adjuster = CasparAdjuster(pycolmap.BundleAdjustmentOptions(), config, reconstruction)
    summary = adjuster.solve()
    assert summary.is_solution_usable()
    assert summary.num_residuals == CERES["rigs"]["num_residuals"]
    assert adjuster.caspar_summary is not None
    assert adjuster.caspar_summary.final_cost == pytest.approx(
        CERES["rigs"]["final_cost"], rel=1e-12
    )


def test_options_without_effect_are_named() -> None:
    """Each option of COLMAP counts, or is named if it was changed."""
    assert options_of(pycolmap.BundleAdjustmentOptions())[1] == ()
    options = pycolmap.BundleAdjustmentOptions()
    solver = options.ceres.solver_options
    solver.gradient_tolerance, solver.num_threads = 1.0, 3
    options.caspar.pcg_iter_max = 7
    _, (warning,) = options_of(options)
    assert warning == (
        "options of pycolmap that have no effect: ceres.solver_options.num_threads=3, "
        "ceres.solver_options.gradient_tolerance=1.0, caspar.pcg_iter_max=7"
    )
    with pytest.warns(UserWarning, match="that have no effect: "):
        bundle_adjustment(_reconstruction(), options)


def test_every_option_counts_or_is_named() -> None:
    """Whatever number or flag is changed: caspar's options differ, or a warning has its name."""
    usual, _ = options_of(pycolmap.BundleAdjustmentOptions())
    changed = 0
    for path, value in _leaves(pycolmap.BundleAdjustmentOptions()):
        if not isinstance(value, bool | int | float):
            continue
        options = pycolmap.BundleAdjustmentOptions()
        *parents, name = path.split(".")
        target = options
        for parent in parents:
            target = getattr(target, parent)
        other = 2 * value + 3  # of no integer itself but -3
        setattr(target, name, not value if isinstance(value, bool) else other)
        found, warnings = options_of(options)
        is_same = path in ("print_summary", "ceres.use_gpu")
        assert (found != usual) + any(path in one for one in warnings) + is_same == 1, path
        changed += 1
    assert changed > 60


def _leaves(options: Any, prefix: str = "") -> Any:
    for name, value in options.todict().items():
        if isinstance(value, dict):
            yield from _leaves(getattr(options, name), f"{prefix}{name}.")
        elif name != "max_solver_time_in_seconds":  # half of forever is forever
            yield f"{prefix}{name}", value


def test_limits_of_time_and_tolerance() -> None:
    options = pycolmap.BundleAdjustmentOptions()
    solver = options.ceres.solver_options
    solver.max_solver_time_in_seconds, solver.function_tolerance = 5.0, 1e-6
    solver.initial_trust_region_radius = 1e3
    found, ignored = options_of(options)
    assert ignored == ()
    chosen = {"max_time_s": 5.0, "cost_tolerance": 1e-6, "initial_damping": 1e-3}
    assert found.solve_options == pytest.approx(chosen)


def _priors() -> list[Any]:
    stored = CERES["positions"]["priors"]
    return [
        pycolmap.PosePrior(
            corr_data_id=pycolmap.data_t(pycolmap.sensor_t(pycolmap.SensorType.CAMERA, 1), number),
            position=position,
            position_covariance=covariance,
            coordinate_system=pycolmap.PosePriorCoordinateSystem.CARTESIAN,
        )
        for number, position, covariance in zip(
            stored["image_ids"], stored["positions"], stored["covariances"], strict=True
        )
    ]


def test_pose_priors_beside_ceres() -> None:
    from caspar.colmap.pycolmap_adjuster import CasparPosePriorAdjuster  # imports pycolmap

    options = pycolmap.BundleAdjustmentOptions(print_summary=False)
    how = pycolmap.PosePriorBundleAdjustmentOptions()
    pair = [_reconstruction("positions") for _ in range(2)]
    config = pycolmap.BundleAdjustmentConfig()
    for image_id in pair[0].reg_image_ids():
        config.add_image(image_id)
    adjuster = CasparPosePriorAdjuster(options, how, config, _priors(), pair[0])
    assert adjuster.solve().is_solution_usable()
    ceres = pycolmap.create_pose_prior_bundle_adjuster(options, how, config, _priors(), pair[1])
    cost = ceres.solve().ceres_summary.final_cost
    assert adjuster.caspar_summary is not None
    assert adjuster.caspar_summary.final_cost == pytest.approx(cost, rel=1e-10)
    for image_id in pair[0].reg_image_ids():
        found, wanted = (one.image(image_id).projection_center() for one in pair)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_pose_priors_are_read() -> None:
    priors = _priors()
    priors[1].gravity = [0, 2, 0]
    priors[2].position = [np.nan] * 3
    found = pose_priors_of(priors)
    assert found.has_gravity.tolist() == [number == 1 for number in range(len(priors))]
    assert not found.has_position[2]
    how = pycolmap.PosePriorBundleAdjustmentOptions(prior_position_fallback_stddev=3.0)
    how.alignment_ransac.max_error = 0.5
    how.alignment_ransac.random_seed = 5
    chosen, (warning,) = pose_prior_options_of(how)
    assert (chosen.prior_position_fallback_stddev, chosen.alignment_max_error) == (3.0, 0.5)
    assert warning.endswith("that have no effect: alignment_ransac.random_seed=5")
    priors[0].coordinate_system = pycolmap.PosePriorCoordinateSystem.WGS84
    with pytest.raises(OptionError, match="positions are in WGS84; convert them to metres"):
        pose_priors_of(priors)


def test_gps_beside_pycolmap() -> None:
    places = np.array([[48.1, 11.5, 520.0], [48.1005, 11.5004, 533.0], [48.09, 11.52, 100.0]])
    wanted = pycolmap.GPSTransform().ellipsoid_to_enu(places, 48.1, 11.5, 520.0)
    found = PosePriors.from_gps([1, 2, 3], *places.T)
    np.testing.assert_allclose(found.positions, wanted, rtol=0, atol=1e-6)
