"""Pose and lens as one node, where each image has a lens of its own."""

import dataclasses

import numpy as np
import pytest

from caspar.colmap import BundleAdjustmentConfig, BundleAdjustmentOptions, bundle_adjustment
from caspar.colmap.adjust.solving import solved
from caspar.colmap.arguments import request_given
from caspar.colmap.prepare import prepare
from tests.colmap.models import CERES, ROOT, packed, synthetic

ON_CPU = BundleAdjustmentOptions(backend="cpu")


def test_costs_are_those_of_ceres() -> None:
    summary = bundle_adjustment(synthetic("single"), ON_CPU)
    assert "20 View_SIMPLE_RADIAL" in str(summary)
    assert summary.result.problem.num_unknowns == CERES["single"]["num_unknowns"]
    assert summary.initial_cost == pytest.approx(CERES["single"]["initial_cost"], rel=1e-13)
    assert summary.final_cost == pytest.approx(CERES["single"]["final_cost"], rel=1e-12)


def test_values_go_back_to_poses_and_lenses() -> None:
    """The same optimum as with nodes of their own; what is held keeps its bits."""
    model = synthetic("single")
    held = int(model.cameras.ids[7])
    config = BundleAdjustmentConfig(constant_cam_intrinsics=frozenset([held]))
    merged = bundle_adjustment(model, ON_CPU, config).model
    request = request_given(ON_CPU, config)
    apart = prepare(model, request, merges_views=False)
    assert not apart.parts.has_views
    result = solved(apart.problem, apart.parts, ON_CPU, False, None)
    other = apart.model(apart.parts.values(result.values))
    for part in ("cameras", "frames", "points"):
        for field in ("parameters", "rig_from_world", "xyz"):
            if hasattr(getattr(merged, part), field):
                found, wanted = (getattr(getattr(one, part), field) for one in (merged, other))
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    places = slice(*model.cameras.offsets[7:9])
    before, after = model.cameras.parameters, merged.cameras.parameters
    np.testing.assert_array_equal(after[places], before[places])
    principal = np.reshape(after == before, (-1, 4))[:, [1, 2]]
    assert principal.all()


@pytest.mark.parametrize("name", ["rigs", "mixed", "sphere", "crane_mast"])
def test_shared_lenses_and_rigs_have_none(name: str) -> None:
    model = packed(ROOT / "data/crane_mast.tar.xz") if name == "crane_mast" else synthetic(name)
    assert not prepare(model, request_given(ON_CPU, None)).parts.has_views


def test_a_lens_of_two_images_keeps_all_apart() -> None:
    model = synthetic("single")
    assert model.rigs is not None
    assert model.frames is not None
    cameras, sensors = model.images.camera_ids.copy(), model.frames.sensor_ids.copy()
    rigs = model.frames.rig_ids.copy()
    is_moved = model.images.camera_ids == cameras[1]
    cameras[is_moved] = cameras[0]
    frame = int(np.flatnonzero(model.frames.data_ids == model.images.ids[1])[0])
    first = int(np.flatnonzero(model.frames.data_ids == model.images.ids[0])[0])
    sensors[frame], rigs[frame] = sensors[first], rigs[first]
    shared = dataclasses.replace(
        model,
        images=dataclasses.replace(model.images, camera_ids=cameras),
        frames=dataclasses.replace(model.frames, sensor_ids=sensors, rig_ids=rigs),
    )
    assert not prepare(shared, request_given(ON_CPU, None)).parts.has_views
    assert prepare(model, request_given(ON_CPU, None)).parts.has_views


def test_poses_that_are_constant_stay_constants() -> None:
    options = dataclasses.replace(ON_CPU, refine_rig_from_world=False)
    assert not prepare(synthetic("single"), request_given(options, None)).parts.has_views
