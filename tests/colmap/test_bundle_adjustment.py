"""Bundle adjustment of COLMAP models: Ceres' costs, options, constants, gauges, what is said."""

import dataclasses
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caspar.colmap import (
    BundleAdjustmentConfig,
    BundleAdjustmentOptions,
    Gauge,
    Model,
    Summary,
    TerminationType,
    bundle_adjustment,
    read_model,
    write_model,
)
from caspar.colmap.adjust.observations import mean_errors, observations_of
from caspar.colmap.adjust.problem import make_problem
from caspar.errors import InputError, OptionError
from tests.colmap.models import CERES, ROOT, equal_arrays, packed, synthetic

ON_CPU: dict[str, Any] = {"backend": "cpu"}

CRANE_MAST = {  # initial cost, optimum and unknowns of Ceres, with what is not the default
    "default": ({}, 5841.335396883063, 5837.894924152745, 6409),
    "refine_pp": ({"refine_principal_point": True}, 5841.335396883063, 5784.946268514775, 6411),
    "fixed_intrinsics": (
        {"refine_focal_length": False, "refine_extra_params": False},
        *(5841.335396883063, 5837.900317857027, 6407),
    ),
    "focal_only": ({"refine_extra_params": False}, 5841.335396883063, 5837.895307030236, 6408),
    "fixed_points": ({"refine_points3D": False}, 5841.335396883063, 5841.29666218805, 43),
    "fixed_rotation": (
        {"constant_rig_from_world_rotation": True},
        *(5841.335396883063, 5837.915475813125, 6388),
    ),
    # COLMAP uses constant poses as they are stored, here with quaternions of length 1 + 4e-7
    "fixed_poses": ({"refine_rig_from_world": False}, 5841.333621984634, 5837.960511059039, 6368),
}
"""Of pycolmap 4.2.1."""

HALF_AN_ID: Any = [1.5]

LOSSES = {  # initial cost and optimum of Ceres with crane_mast
    ("CAUCHY", 1.0): (2501.4279814451916, 2156.897004981513),
    ("SOFT_L1", 1.0): (3660.086407828335, 3554.8289839033696),
    ("HUBER", 1.0): (4374.256294949052, 4172.937748848103),
    ("CAUCHY", 0.5): (1237.177844804578, 962.4216564219294),
}
"""Of pycolmap 4.2.1 with tolerances of 1e-14: 85 to 1,433 iterations."""

SBCV_SHARED = (11815.423376640443, 11809.142708059017, 23647)


def adjusted(model: Model, config: Any = None, **options: Any) -> Summary:
    return bundle_adjustment(model, BundleAdjustmentOptions(**ON_CPU, **options), config)


@pytest.mark.parametrize("variant", CRANE_MAST)
def test_real_model(variant: str) -> None:
    options, initial_cost, final_cost, num_unknowns = CRANE_MAST[variant]
    model = packed(ROOT / "data/crane_mast.tar.xz")
    summary = adjusted(model, **options)
    assert summary.result.problem.num_unknowns == num_unknowns
    assert summary.num_residuals == 12074
    assert summary.initial_cost == pytest.approx(initial_cost, rel=1e-13)
    assert summary.final_cost == pytest.approx(final_cost, rel=1e-12)
    assert summary.termination_type is TerminationType.CONVERGENCE
    assert summary.is_solution_usable()


def test_intrinsics_stay_within_bounds() -> None:
    model = packed(ROOT / "data/crane_mast.tar.xz")
    start, free = model.cameras.parameters, adjusted(model)
    optimum, side = free.model.cameras.parameters, float(model.cameras.widths[0])
    assert optimum[0] < start[0]
    assert optimum[3] > start[3] > 0
    # tighter bounds than the start values are as wide as these
    for tighter in (1.0, 1.1):
        least, most = tighter * start[0] / side, start[3] / tighter
        bound = adjusted(model, min_focal_length_ratio=least, max_extra_param=most)
        assert bound.model.cameras.parameters == pytest.approx(start, rel=1e-12)
        assert bound.final_cost > free.final_cost
    wide = adjusted(model, max_focal_length_ratio=10.0, max_extra_param=1.0)
    assert wide.final_cost == pytest.approx(free.final_cost, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_focal_length_ratio": -1.0}, "the first must be 0 or more"),
        ({"min_focal_length_ratio": 2.0, "max_focal_length_ratio": 1.0}, "less than the second"),
        ({"max_extra_param": float("nan")}, "max_extra_param=nan: it must be 0 or more"),
    ],
)
def test_bounds_that_are_none(options: dict[str, float], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        BundleAdjustmentOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("loss", "scale"), LOSSES)
def test_losses(loss: str, scale: float) -> None:
    initial_cost, final_cost = LOSSES[loss, scale]
    model = packed(ROOT / "data/crane_mast.tar.xz")
    chosen = {"loss_function_type": loss, "loss_function_scale": scale}
    summary = adjusted(model, **chosen, max_num_iterations=300)
    assert summary.initial_cost == pytest.approx(initial_cost, rel=1e-13)
    # Cauchy's loss has many minima close to each other
    assert summary.final_cost == pytest.approx(final_cost, rel=1e-3 if loss == "CAUCHY" else 1e-9)
    # Ceres takes 85 to 1,433
    assert len(summary.result.iterations) <= (40 if scale == 1.0 else 80)
    assert summary.termination_type is TerminationType.CONVERGENCE


def test_real_model_of_colmap_3(tmp_path: Path) -> None:
    model = packed(ROOT / "data/sbcv_shared.tar.xz")
    write_model(model, tmp_path / "in")
    options = BundleAdjustmentOptions(**ON_CPU)
    summary = bundle_adjustment(tmp_path / "in", options, output=tmp_path / "out")
    initial_cost, final_cost, num_unknowns = SBCV_SHARED
    assert summary.result.problem.num_unknowns == num_unknowns
    assert summary.initial_cost == pytest.approx(initial_cost, rel=1e-13)
    assert summary.final_cost == pytest.approx(final_cost, rel=1e-12)
    assert equal_arrays(read_model(tmp_path / "in"), model)
    assert equal_arrays(read_model(tmp_path / "out"), summary.model)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        *("cameras.bin", "images.bin", "points3D.bin")
    ]


REFERENCES = os.environ.get("CASPAR_COLMAP_MODELS")
"""A folder of packed models with a `reference.json`, where that exists."""


@pytest.mark.skipif(REFERENCES is None, reason="CASPAR_COLMAP_MODELS names no folder")
@pytest.mark.parametrize("name", ["sbcv_shared", "crane_mast", "lund_door", "tensorf_184"])
def test_more_real_models(name: str) -> None:
    assert REFERENCES is not None
    known = json.loads((Path(REFERENCES) / "reference.json").read_text())
    default = known.get(name, {}).get("default", {"cost0": 55347.9713, "cost1": 55346.845142})
    summary = adjusted(packed(Path(REFERENCES) / f"{name}.tar.xz"))
    digits = 1e-13 if name in known else 1e-9
    assert summary.initial_cost == pytest.approx(default["cost0"], rel=digits)
    assert summary.final_cost == pytest.approx(default["cost1"], rel=1e-9)


@pytest.mark.parametrize("name", ["rigs", "sphere"])
def test_synthetic_model(name: str) -> None:
    """Rigs of fisheye cameras whose poses are refined; cameras of the whole sphere."""
    summary = adjusted(synthetic(name))
    assert summary.num_residuals == CERES[name]["num_residuals"]
    assert summary.result.problem.num_unknowns == CERES[name]["num_unknowns"]
    assert summary.initial_cost == pytest.approx(CERES[name]["initial_cost"], rel=1e-13)
    assert summary.final_cost == pytest.approx(CERES[name]["final_cost"], rel=1e-12)


def test_many_camera_models_in_one_problem() -> None:
    """Ceres stops at its limit in a flat valley of FULL_OPENCV; further on it is 0.2 % lower."""
    summary = adjusted(synthetic("mixed"), max_num_iterations=1000)
    assert summary.result.problem.num_unknowns == CERES["mixed"]["num_unknowns"]
    assert summary.initial_cost == pytest.approx(CERES["mixed"]["initial_cost"], rel=1e-13)
    assert 0.99 * CERES["mixed"]["final_cost"] < summary.final_cost < CERES["mixed"]["final_cost"]
    assert summary.termination_type is TerminationType.CONVERGENCE


def test_values_are_those_of_the_costs() -> None:
    """The model of a summary, evaluated anew, has the final cost; so do its images' poses."""
    summary = adjusted(synthetic("rigs"))
    fixed = BundleAdjustmentConfig(
        constant_cam_intrinsics=frozenset(summary.model.cameras.ids.tolist()),
        constant_rig_from_world_poses=frozenset(range(1, 9)),
        constant_sensor_from_rig_poses=frozenset(summary.model.cameras.ids.tolist()),
        constant_points=frozenset(summary.model.points.ids.tolist()),
    )
    again = adjusted(summary.model, fixed)
    assert again.result.problem.num_unknowns == 0
    assert again.initial_cost == again.final_cost == pytest.approx(summary.final_cost, rel=1e-13)
    assert equal_arrays(again.model, summary.model)
    flat = dataclasses.replace(summary.model, rigs=None, frames=None)
    np.testing.assert_allclose(
        mean_errors(flat, observations_of(flat)), summary.model.points.errors, rtol=1e-9
    )
    assert (np.abs(np.linalg.norm(flat.images.cam_from_world[:, :4], axis=1) - 1) < 1e-14).all()


def test_the_given_model_stays() -> None:
    before = synthetic("rigs")
    copies = {
        name: {field: np.copy(value) for field, value in vars(part).items() if field != "names"}
        for name, part in before.parts().items()
    }
    adjusted(before)
    for name, part in before.parts().items():
        for field, value in copies[name].items():
            np.testing.assert_array_equal(getattr(part, field), value)


def test_equal_calls_give_equal_bits() -> None:
    """Whatever was adjusted in between, with the set-up that is kept."""
    model = synthetic("rigs")
    before = adjusted(model)
    moved = dataclasses.replace(model.points, xyz=model.points.xyz + 0.01)
    between = adjusted(dataclasses.replace(model, points=moved))
    again = adjusted(model)
    assert equal_arrays(before.model, again.model)
    assert between.initial_cost != before.initial_cost
    assert between.final_cost == pytest.approx(before.final_cost, rel=1e-12)


def test_constants_keep_their_bits() -> None:
    model = synthetic("rigs")
    config = BundleAdjustmentConfig(
        constant_cam_intrinsics=frozenset([1]),
        constant_rig_from_world_poses=frozenset([3]),
        constant_sensor_from_rig_poses=frozenset([2]),
        constant_points=frozenset([5, 6]),
        fixed_gauge=Gauge.UNSPECIFIED,
    )
    after = adjusted(model, config).model
    assert model.rigs is not None
    assert model.frames is not None
    assert after.rigs is not None
    assert after.frames is not None
    is_same = after.cameras.parameters == model.cameras.parameters
    assert is_same.reshape(4, 8)[:, [2, 3]].all()  # principal points
    np.testing.assert_array_equal(is_same.reshape(4, 8).all(axis=1), [True, False, False, False])
    is_same = (after.frames.rig_from_world == model.frames.rig_from_world).all(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(is_same), np.flatnonzero(model.frames.ids == 3))
    is_same = (after.rigs.sensor_from_rig == model.rigs.sensor_from_rig).all(axis=1)
    np.testing.assert_array_equal(is_same, [True, True, True, False])
    is_same = (after.points.xyz == model.points.xyz).all(axis=1)
    np.testing.assert_array_equal(model.points.ids[is_same], [5, 6])


CRANE_MAST_COST = 5837.894924152745


@pytest.mark.parametrize("gauge", [Gauge.UNSPECIFIED, Gauge.TWO_CAMS_FROM_WORLD])
def test_gauges(gauge: Gauge) -> None:
    model = packed(ROOT / "data/crane_mast.tar.xz")
    summary = adjusted(model, BundleAdjustmentConfig(fixed_gauge=gauge))
    num_held = 0 if gauge is Gauge.UNSPECIFIED else 7
    assert summary.result.problem.num_unknowns == 6416 - num_held
    assert summary.final_cost == pytest.approx(CRANE_MAST_COST, rel=1e-10)
    after = summary.model
    is_pose_same = (after.images.cam_from_world == model.images.cam_from_world).all(axis=1)
    is_point_same = (after.points.xyz == model.points.xyz).all(axis=1)
    assert np.count_nonzero(is_point_same) == 0
    assert np.count_nonzero(is_pose_same) == 0  # quaternions are scaled to unit length
    moved = np.abs(after.images.cam_from_world - model.images.cam_from_world)[:, 4:]
    assert np.count_nonzero(moved == 0) == (4 if gauge is Gauge.TWO_CAMS_FROM_WORLD else 0)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_three_points_cost_nothing_however_noisy_they_are(noise: float) -> None:
    """The cost of a free gauge: of the seven directions of the gauge none is held twice."""
    model = packed(ROOT / "data/crane_mast.tar.xz")
    moves = np.random.default_rng(0).normal(size=model.points.xyz.shape)
    xyz = model.points.xyz + noise * np.ptp(model.points.xyz, axis=0).min() * moves
    model = dataclasses.replace(model, points=dataclasses.replace(model.points, xyz=xyz))
    said = r"points (\d+) and (\d+) and ([xyz]) of point (\d+) hold the gauge; COLMAP holds three"
    config = BundleAdjustmentConfig(fixed_gauge=Gauge.THREE_POINTS, filter_negative_depth=False)
    with pytest.warns(UserWarning, match=said):
        summary = adjusted(model, config)
    assert summary.result.problem.num_unknowns == 6416 - 7
    assert summary.final_cost == pytest.approx(CRANE_MAST_COST, rel=1e-10)
    found = re.match(said, summary.warnings[-1])
    assert found is not None
    is_same = summary.model.points.xyz == model.points.xyz
    named = [int(np.flatnonzero(model.points.ids == int(found[place]))[0]) for place in (1, 2, 4)]
    assert is_same[named].sum(axis=1).tolist() == [3, 3, 1]
    assert is_same[named[2], "xyz".index(found[3])]
    assert is_same.sum() == 7


def test_constant_points_and_poses_hold_the_gauge() -> None:
    model = packed(ROOT / "data/crane_mast.tar.xz")
    held = frozenset(model.points.ids[[1, 500, 1000]].tolist())
    config = BundleAdjustmentConfig(fixed_gauge=Gauge.THREE_POINTS, constant_points=held)
    summary = adjusted(model, config)
    assert summary.warnings == ()
    assert summary.result.problem.num_unknowns == 6416 - 9
    config = BundleAdjustmentConfig(fixed_gauge=Gauge.THREE_POINTS)
    with pytest.warns(UserWarning, match="constant poses hold the gauge; COLMAP makes three"):
        summary = adjusted(model, config, refine_rig_from_world=False)
    assert summary.final_cost == pytest.approx(CRANE_MAST["fixed_poses"][2], rel=1e-12)


POSES_ONLY: dict[str, Any] = {
    "refine_sensor_from_rig": False,
    "refine_focal_length": False,
    "refine_extra_params": False,
}
HELD: dict[str, Any] = {**POSES_ONLY, "refine_rig_from_world": False, "refine_points3D": False}
PARTS: dict[str, tuple[dict[str, Any], dict[str, Any], int, float, float]] = {
    "three frames": ({"images": range(1, 7)}, {}, 480, 6638.55111605596, 4859.339093611498),
    "two of four frames are constant": (
        {"images": range(1, 9), "constant_rig_from_world_poses": (1, 2)},
        *(POSES_ONLY, 320, 8279.604266704173, 7233.524259543756),
    ),
    "three of eight frames and thirty points are constant": (
        {
            "images": range(1, 17),
            "constant_rig_from_world_poses": (1, 2, 3),
            "constant_points": range(1, 31),
            "fixed_gauge": "UNSPECIFIED",
        },
        *(POSES_ONLY, 920, 17594.192279714942, 10338.537008082214),
    ),
    "other images see refined points": (
        {"images": range(1, 7), "variable_points": range(1, 21), "fixed_gauge": "THREE_POINTS"},
        *({}, 880, 12446.914752251472, 3733.492974031822),
    ),
    "one of them is in a frame that is refined": (
        {"images": range(1, 6), "variable_points": range(1, 21), "fixed_gauge": "THREE_POINTS"},
        *({}, 840, 12125.53167567729, 3647.5243978210833),
    ),
    "all": ({}, HELD, 0, 17594.192279714913, 17594.192279714913),
}
"""What is chosen of the synthetic rigs; residuals that anything is refined of, initial cost and
optimum of pycolmap 4.2.1. All eight frames have 1,280 residuals."""


def test_other_images_hold_the_gauge() -> None:
    """COLMAP holds two more cameras, and ends at 5,242."""
    images, points = frozenset(range(1, 6)), frozenset(range(1, 21))
    chosen = BundleAdjustmentConfig(images=images, variable_points=points)
    with pytest.warns(UserWarning, match="not in the config hold the gauge; COLMAP holds two more"):
        summary = adjusted(synthetic("rigs"), chosen)
    assert summary.final_cost == pytest.approx(3647.5243978210833, rel=1e-12)


@pytest.mark.parametrize("name", PARTS)
def test_residuals_are_counted_as_by_colmap(name: str) -> None:
    chosen, options, num_residuals, initial_cost, final_cost = PARTS[name]
    config = BundleAdjustmentConfig(**chosen, filter_negative_depth=False)
    summary = adjusted(synthetic("rigs"), config, **options)
    assert summary.num_residuals == num_residuals
    assert summary.initial_cost == pytest.approx(initial_cost, rel=1e-13)
    assert summary.final_cost == pytest.approx(final_cost, rel=1e-12)
    if num_residuals == 0:
        assert np.isnan(summary.final_error_px)
        assert "0 residuals; error nan -> nan px" in str(summary)
    else:
        assert summary.final_error_px == pytest.approx((final_cost / num_residuals) ** 0.5)


def test_a_part_of_the_images() -> None:
    """Points that other images see too are constant, and take part without them."""
    model = packed(ROOT / "data/crane_mast.tar.xz")
    images = model.images.ids[:3]
    config = BundleAdjustmentConfig(images=frozenset(images.tolist()))
    problem = make_problem(model, observations_of(model), BundleAdjustmentOptions(), config)
    lengths = np.diff(model.points.offsets)
    inside = np.isin(model.points.image_ids, images).astype(int)
    counts = np.add.reduceat(inside, model.points.offsets[:-1])
    partial = np.repeat((counts < lengths)[:, None], 3, axis=1)
    np.testing.assert_array_equal(problem.constant_points, partial)
    assert len(problem.observations.points) == inside.sum()
    assert not problem.constant_frames[:3].any()
    assert problem.constant_frames[3:].all()
    whole = model.points.ids[(counts > 0) & (counts < lengths)][:10]
    config = dataclasses.replace(config, variable_points=frozenset(whole.tolist()))
    more = make_problem(model, observations_of(model), BundleAdjustmentOptions(), config)
    assert not more.constant_points[np.isin(model.points.ids, whole)].any()
    extra = (lengths - counts)[np.isin(model.points.ids, whole)].sum()
    assert len(more.observations.points) == inside.sum() + extra
    assert more.constant_frames[3:].all()


def test_short_tracks() -> None:
    model = packed(ROOT / "data/crane_mast.tar.xz")
    options = BundleAdjustmentOptions(min_track_length=4)
    problem = make_problem(model, observations_of(model), options, BundleAdjustmentConfig())
    lengths = np.diff(model.points.offsets)
    assert len(problem.observations.points) == lengths[lengths >= 4].sum() > 0


def _with_trouble() -> tuple[Model, dict[str, int]]:
    """A model with points behind cameras, a point of one observation, an image without points."""
    model = packed(ROOT / "data/crane_mast.tar.xz")
    xyz = model.points.xyz.copy()
    lengths = np.diff(model.points.offsets)
    behind = np.flatnonzero(lengths == 2)[:2]
    xyz[behind] *= -1
    point_ids = model.images.point_ids.copy()
    seen = observations_of(model)
    single = int(np.flatnonzero(lengths == 2)[5])
    removed = seen.keypoints[seen.points == single][:1]
    empty = seen.keypoints[seen.images == 7]
    point_ids[removed] = point_ids[empty] = -1
    places = model.images.offsets[np.searchsorted(model.images.ids, model.points.image_ids)]
    stays = point_ids[places + model.points.keypoint_index] >= 0
    owners = np.repeat(np.arange(len(lengths)), lengths)
    counts = np.bincount(owners[stays], minlength=len(lengths))
    points = dataclasses.replace(
        model.points,
        xyz=xyz,
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        image_ids=model.points.image_ids[stays],
        keypoint_index=model.points.keypoint_index[stays],
    )
    images = dataclasses.replace(model.images, point_ids=point_ids)
    trouble = {"behind": len(behind), "single": int(np.count_nonzero(counts == 1))}
    return dataclasses.replace(model, images=images, points=points), trouble


def test_trouble_is_said() -> None:
    assert (np.diff(packed(ROOT / "data/crane_mast.tar.xz").images.ids) > 0).all()
    model, trouble = _with_trouble()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        summary = adjusted(model)
    assert [str(one.message) for one in caught] == list(summary.warnings)
    assert {one.filename for one in caught} == {__file__}
    text = "\n".join(summary.warnings)
    assert f"{trouble['single']} points of one observation take no part" in text
    assert "1 images see no points" in text
    assert f"{summary.num_filtered} observations of points behind their cameras" in text
    assert len(model.points.ids) - len(summary.model.points.ids) == trouble["behind"]
    assert summary.num_filtered == 2 * trouble["behind"]
    assert observations_of(summary.model).points.size == model.num_observations - 4
    assert summary.num_images == 7
    assert "warning: 1 images see no points" in str(summary)
    np.testing.assert_array_equal(
        summary.model.images.cam_from_world[7], model.images.cam_from_world[7]
    )
    single = np.diff(summary.model.points.offsets) == 1
    is_kept = np.isin(model.points.ids, summary.model.points.ids)
    before = model.points.xyz[is_kept][single]
    np.testing.assert_array_equal(summary.model.points.xyz[single], before)


def test_brief_report() -> None:
    summary = adjusted(synthetic("rigs"), max_num_iterations=1)
    assert summary.termination_type is TerminationType.NO_CONVERGENCE
    assert summary.is_solution_usable()
    report = summary.brief_report()
    assert report.startswith("caspar: iterations 1, initial cost 1.75")
    assert report.endswith("NO_CONVERGENCE")
    assert summary.initial_error_px == pytest.approx(np.sqrt(summary.initial_cost / 1280))


def test_points_that_are_not_finite() -> None:
    model = synthetic("rigs")
    xyz = model.points.xyz.copy()
    xyz[3] = np.nan
    broken = dataclasses.replace(model, points=dataclasses.replace(model.points, xyz=xyz))
    with pytest.raises(InputError, match="Point"):
        adjusted(broken, BundleAdjustmentConfig())


def test_contradictions_are_refused() -> None:
    model = synthetic("rigs")
    point_ids = model.images.point_ids.copy()
    point_ids[np.argmax(point_ids >= 0)] = -1
    images = dataclasses.replace(model.images, point_ids=point_ids)
    with pytest.raises(InputError, match="keypoints and tracks disagree"):
        adjusted(dataclasses.replace(model, images=images))
    assert model.rigs is not None
    has_pose = np.array([True, False, True, True])
    rigs = dataclasses.replace(model.rigs, has_pose=has_pose)
    with pytest.raises(InputError, match="was taken by a sensor of unknown pose"):
        adjusted(dataclasses.replace(model, rigs=rigs))
    cameras = model.images.camera_ids[::-1].copy()
    images = dataclasses.replace(model.images, camera_ids=cameras)
    with pytest.raises(InputError, match="has another camera than in its frame"):
        adjusted(dataclasses.replace(model, images=images))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: adjusted(synthetic("rigs"), refine_points3D=1), "refine_points3D=1: it must be"),
        (lambda: adjusted(synthetic("rigs"), min_track_length=-1), "min_track_length=-1: it must"),
        (
            lambda: adjusted(synthetic("rigs"), loss_function_scale=0),
            "loss_function_scale=0: it must be positive and finite",
        ),
        (
            lambda: adjusted(synthetic("rigs"), loss_function_type="TUKEY"),
            "'TUKEY': must be one of 'TRIVIAL', 'SOFT_L1', 'CAUCHY', 'HUBER'",
        ),
        (lambda: BundleAdjustmentConfig(images=HALF_AN_ID), "must be a collection of ids"),
        (
            lambda: BundleAdjustmentConfig(
                constant_points=frozenset([1]), variable_points=frozenset([1])
            ),
            r"points \[1\] are both constant and variable",
        ),
        (lambda: bundle_adjustment(synthetic("rigs"), {}), "options is a dict; it must be a"),
        (lambda: bundle_adjustment(synthetic("rigs"), None, 3), "config is a int; it must be a"),
    ],
)
def test_wrong_options(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_wrong_ids() -> None:
    with pytest.raises(InputError, match="config, images: the model has no 99"):
        adjusted(synthetic("rigs"), BundleAdjustmentConfig(images=frozenset([1, 99])))
    with pytest.raises(InputError, match="no observation takes part"):
        adjusted(synthetic("rigs"), min_track_length=1000)
    with pytest.raises(InputError, match="model is a int; it must be a folder, a"):
        bundle_adjustment(3)
