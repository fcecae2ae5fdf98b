"""`caspar.colmap.global_mapping` and its parts on synthetic scenes, beside pycolmap's own."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caspar.cli.app import main
from caspar.cli.exit_code import ExitCode
from caspar.colmap import global_mapping, global_positioning, rotation_averaging
from caspar.errors import InputError, OptionError
from caspar.io.rotations import multiply

pycolmap = pytest.importorskip("pycolmap")
scenes = importlib.import_module("tests.colmap.scenes")
scene, check_as_good = scenes.scene, scenes.check_as_good
global_mapper = importlib.import_module("caspar.colmap.global_mapper")
errors = importlib.import_module("benchmarks.mapping").errors
unplaced = importlib.import_module("benchmarks.global_mapping").unplaced


def _options(**changes: Any) -> Any:
    options = pycolmap.GlobalPipelineOptions()
    options.random_seed, options.num_threads = 1, 1
    for name, value in changes.items():
        setattr(options, name, value)
    return options


def _rotated(database: Path) -> tuple[Any, Any, Any]:
    """The cache, a model with averaged rotations and tracks, and its pose graph."""
    with pycolmap.Database.open(database) as opened:
        cache = pycolmap.DatabaseCache.create(opened, pycolmap.DatabaseCacheOptions())
    model = pycolmap.Reconstruction()
    model.load(cache)
    return cache, model, global_mapper.pose_graph_of(cache, True)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.reliability),
        {"cameras": 2, "frames": 5},
        {"outliers": 0.1, "points": 400},
        pytest.param(
            {"lens": ("OPENCV", [1280.0, 1280.0, 512.0, 384.0, 0.05, 0.01, 0.001, -0.001])},
            marks=pytest.mark.reliability,
        ),
    ],
    ids=["one camera", "rig", "outliers", "opencv"],
)
def test_models_are_as_good_as_those_of_pycolmap(tmp_path: Path, changes: Any) -> None:
    database, truth = scene(tmp_path, **changes)
    own = global_mapping(database, "", tmp_path / "own", _options(), backend="cpu")
    theirs = pycolmap.global_mapping(database, tmp_path, tmp_path / "theirs", _options())
    check_as_good(own, theirs, truth, tmp_path / "own")


def test_lenses_with_parameters_that_a_scene_hardly_determines(tmp_path: Path) -> None:
    """Distortion stays within the triangulation's `max_extra_param`: COLMAP has no model then."""
    lens = [1280.0, 1280.0, 512.0, 384.0, 0.02, 0.005, 0.0, 0.0]
    database, truth = scene(tmp_path, lens=("OPENCV_FISHEYE", lens), cameras=2, frames=6)
    models = global_mapping(database, "", tmp_path / "out", _options(), backend="cpu")
    assert models[0].num_reg_images() == truth.num_images()
    assert np.abs(models[0].camera(1).params[4:]).max() <= 1.0
    rotation, centre = errors(models[0], truth)
    assert rotation < 0.1
    assert centre < 0.01


@pytest.mark.parametrize("has_gravity", [False, True], ids=["unknown sensor poses", "gravity"])
def test_what_pycolmap_does_itself(tmp_path: Path, has_gravity: bool) -> None:
    database, truth = scene(tmp_path, cameras=2, frames=6, has_gravity=has_gravity)
    options = _options()
    options.mapper.rotation_averaging.use_gravity = has_gravity
    if not has_gravity:
        with pycolmap.Database.open(database) as opened:
            for rig in opened.read_all_rigs():
                for sensor in list(rig.non_ref_sensors):
                    rig.set_sensor_from_rig(sensor, None)
                opened.update_rig(rig)
    models = global_mapping(database, "", tmp_path / "out", options, backend="cpu")
    assert models[0].num_reg_images() == truth.num_images()
    rotation, centre = errors(models[0], truth)
    assert rotation < 0.1
    assert centre < 0.01


def _turn_from(model: Any, truth: Any) -> float:
    """Largest angle in degrees between rotations, after the best common rotation of the world."""
    found, true = [], []
    for image_id in sorted(model.reg_image_ids()):
        found.append(model.image(image_id).cam_from_world().rotation.matrix())
        true.append(truth.image(image_id).cam_from_world().rotation.matrix())
    turns = np.swapaxes(np.array(found), 1, 2) @ np.array(true)
    left, _, right = np.linalg.svd(turns.sum(axis=0))
    gaps = (left @ right).T @ turns
    cosines = np.clip((np.trace(gaps, axis1=1, axis2=2) - 1.0) / 2.0, -1.0, 1.0)
    return float(np.degrees(np.arccos(cosines)).max())


@pytest.mark.parametrize("reweighting", ["UNIFORM", "INLIER_MATCH_COUNT"])
@pytest.mark.parametrize("cameras", [1, 2])
def test_wrong_relative_rotations(tmp_path: Path, reweighting: str, cameras: int) -> None:
    """Of every seventh pair: GLOMAP's result, and these pairs are found."""
    database, truth = scene(tmp_path, frames=10, cameras=cameras)
    random = np.random.default_rng(4)
    turned: dict[int, Any] = {}
    options = pycolmap.RotationEstimatorOptions()
    options.reweighting = getattr(pycolmap.RotationAveragingReweighting, reweighting)
    options.random_seed = 1
    worst = []
    for average in (rotation_averaging, pycolmap.run_rotation_averaging):
        _, model, pairs = _rotated(database)
        for number, (pair_id, edge) in enumerate(pairs.edges.items()):
            one, other = pycolmap.pair_id_to_image_pair(pair_id)
            if number % 7 == 3 and truth.image(one).frame_id != truth.image(other).frame_id:
                turn = turned.setdefault(pair_id, random.standard_normal(4))
                quaternion = multiply(
                    turn / np.linalg.norm(turn), edge.cam2_from_cam1.rotation.quat
                )
                edge.cam2_from_cam1.rotation = pycolmap.Rotation3d(quaternion)
        assert average(options, pairs, model, [])
        worst.append(_turn_from(model, truth))
        assert model.num_reg_images() == truth.num_images()
        if average is rotation_averaging:
            wrong = {one for one, edge in pairs.edges.items() if not edge.valid}
            assert wrong == set(turned)
    assert worst[0] <= 1.05 * worst[1] + 0.01


@pytest.mark.parametrize("cameras", [1, 2])
def test_positions_of_a_scene(tmp_path: Path, cameras: int) -> None:
    """With true rotations: centres as near the truth as GLOMAP's."""
    _, truth = scene(tmp_path, frames=10, cameras=cameras, points=300)
    gaps = []
    for position in (global_positioning, pycolmap.run_global_positioning):
        model = unplaced(truth)
        options = pycolmap.GlobalPositionerOptions()
        options.random_seed = 1
        assert position(options, pycolmap.PoseGraph(), model)
        gaps.append(errors(model, truth)[1])
    assert gaps[0] <= 1.01 * gaps[1] + 1e-5


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    example = importlib.import_module("examples.database_to_model")
    assert all(median < 0.002 for median in example.main().values())
    assert "all at once: 20 pictures, 400 points" in capsys.readouterr().out


def test_two_scenes_give_two_models(tmp_path: Path) -> None:
    """Images that no match connects to the first model make the next one."""
    database, truth = scene(tmp_path, frames=12)
    names = sorted(one.name for one in truth.images.values())
    halves = set(names[:7]), set(names[7:])
    with pycolmap.Database.open(database) as opened:
        ids = {one.name: one.image_id for one in opened.read_all_images()}
        for one in halves[0]:
            for other in halves[1]:
                opened.delete_two_view_geometry(ids[one], ids[other])
                opened.delete_matches(ids[one], ids[other])
    models = global_mapping(database, "", tmp_path / "out", _options(), backend="cpu")
    found = [{one.image(i).name for i in one.reg_image_ids()} for one in models.values()]
    assert found == list(halves)
    options = _options(multiple_models=False)
    assert len(global_mapping(database, "", tmp_path / "one", options, backend="cpu")) == 1


def test_bad_input_is_named(tmp_path: Path) -> None:
    database, _ = scene(tmp_path, is_calibrated=False)
    out = tmp_path / "out"
    with pytest.raises(InputError, match="database_path: there is no file"):
        global_mapping(tmp_path / "no.db", "", out)
    with pytest.raises(InputError, match="image_path: there is no folder"):
        global_mapping(database, tmp_path / "no", out)
    with pytest.raises(OptionError, match=r"options is a dict; it must be a pycolmap\.Global"):
        global_mapping(database, "", out, {})
    options = _options(min_num_matches=100_000)
    with pytest.warns(UserWarning, match="1 of 1 cameras have a guessed focal length"):
        assert global_mapping(database, "", out, options) == {}
    _, model, pairs = _rotated(database)
    for call in (rotation_averaging, global_positioning):
        with pytest.raises(OptionError, match="options is a dict; it must be a pycolmap"):
            call({}, pairs, model)
    estimator = pycolmap.RotationEstimatorOptions()
    estimator.weight_type = pycolmap.RotationWeightType.HALF_NORM
    with pytest.raises(OptionError, match="only GEMAN_MCCLURE"):
        rotation_averaging(estimator, pairs, model)
    positioner = pycolmap.GlobalPositionerOptions()
    positioner.optimize_scales = False
    with pytest.raises(OptionError, match="optimize_scales"):
        global_positioning(positioner, pairs, model)


def test_options_without_effect_are_said(tmp_path: Path) -> None:
    database, _ = scene(tmp_path)
    options = _options()
    options.mapper.bundle_adjustment.ceres.solver_options.eta = 0.5
    with pytest.warns(UserWarning, match=r"no effect: ceres.solver_options.eta=0.5$"):
        global_mapping(database, "", tmp_path / "out", options, backend="cpu")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database, truth = scene(tmp_path)
    out = tmp_path / "models"
    arguments = ["map", str(database), str(out), "--global", "--backend", "cpu", "--seed", "1"]
    assert main(arguments) == ExitCode.SUCCESS
    count = truth.num_images()
    assert f"0: {count} of {count} images, 150 points, " in capsys.readouterr().out
    assert main([*arguments, "--input", str(out / "0")]) == ExitCode.WRONG_INPUT
    assert "--input: global mapping begins anew" in capsys.readouterr().err


def test_an_interrupt_leaves_what_was_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, truth = scene(tmp_path)

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(global_mapper, "refine_everything", interrupted)
    with pytest.raises(KeyboardInterrupt):
        global_mapping(database, "", tmp_path / "out", _options(), backend="cpu")
    assert pycolmap.Reconstruction(tmp_path / "out" / "0").num_reg_images() == truth.num_images()
