"""`pycolmap` objects, where that package is there: in place, with its options, as its adjuster."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caspar.colmap import LossFunction, Model, bundle_adjustment, read_model, write_model
from caspar.colmap.pycolmap_objects import config_of, model_of, options_of
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
    found = options_of(options)
    assert found.refine_principal_point
    assert (found.min_track_length, found.max_num_iterations) == (3, 7)
    options.ceres.loss_function_type = pycolmap.LossFunctionType.CAUCHY
    options.ceres.loss_function_scale = 0.5
    found = options_of(options)
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
