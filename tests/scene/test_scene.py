"""Scenes: what is drawn of a solve, and where it is."""

import copy
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import InputError
from caspar.io.rotations import conjugate, rotate
from caspar.scene import GroupKind, Scene, reader, scene_of_models, scene_of_result
from caspar.scene.reader import SceneReader
from tests.colmap.models import ROOT, packed
from tests.examples import make_bal_problem
from tests.solver.losses.loss_cases import bounded_point, line_arrays


class Mark(sf.V3):
    """A point in space."""


@caspar.factor
def seen(
    camera: Annotated[sf.Pose3, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A pinhole camera whose names say nothing of directions."""
    x, y, z = camera * mark
    return sf.V2(x / z, y / z) - pixel


@pytest.fixture(scope="module")
def solved() -> tuple[caspar.Solver, dict[str, Any], caspar.SolveResult, caspar.Recording]:
    problem = make_bal_problem(num_cameras=4, num_points=30)
    arrays = {
        "Cam": problem.cameras,
        "Point": problem.points,
        "snavely": {
            "cam": problem.camera_index,
            "point": problem.point_index,
            "pixel": problem.pixels,
        },
    }
    solver = caspar.Solver(caspar.bundle_adjustment.snavely, backend="cpu")
    recording = caspar.Recording()
    result = solver.solve(arrays, on_iteration=recording, max_iterations=8)
    return solver, arrays, result, recording


def of(scene: Scene, name: str) -> Any:
    (group,) = (one for one in scene.groups if one.name == name)
    return group


def test_recording_has_the_values_of_each_step(solved: Any) -> None:
    solver, arrays, result, recording = solved
    assert [one.iteration for one in recording.records] == [
        one.iteration for one in result.iterations if one.step_accepted
    ]
    for record, values in zip(recording.records, recording.values, strict=True):
        cost = solver.evaluate({**arrays, **values}).cost
        assert cost == pytest.approx(record.cost, rel=1e-9)
    for name, values in result.values.items():
        np.testing.assert_array_equal(recording.values[-1][name], values)
    assert all(record.reader is None for record in recording.records)


def test_reading_values_changes_nothing(solved: Any) -> None:
    solver, arrays, result, _ = solved
    again = solver.solve(arrays, max_iterations=8)
    assert [one.cost for one in again.iterations] == [one.cost for one in result.iterations]


def test_values_of_a_graph_that_is_ordered() -> None:
    """A factorised graph has its nodes in another order on the device."""
    graph = caspar.io.read_g2o(ROOT / "data/smallGrid3D.g2o.bz2")
    recording = caspar.Recording()
    summary = caspar.pose_graph.solve(
        graph, initialize="chordal", backend="cpu", on_iteration=recording
    )
    task = caspar.pose_graph.problem(graph)
    solver = caspar.Solver(task.factors, backend="cpu", precision="float64")
    for record, values in zip(recording.records, recording.values, strict=True):
        cost = solver.evaluate({**task.arrays, **values}).cost
        assert cost == pytest.approx(record.cost, rel=1e-9)
    scene = scene_of_result(summary.result, recording)
    assert [link.total for link in scene.links] == [graph.num_edges]


def test_values_are_there_during_the_call_only(solved: Any) -> None:
    solver, arrays, result, _ = solved
    kept: list[caspar.IterationRecord] = []
    solver.solve(arrays, on_iteration=kept.append, max_iterations=1)
    with pytest.raises(InputError, match="only while on_iteration is called"):
        kept[0].values()
    with pytest.raises(InputError, match=r"caspar\.Recording\(\)"):
        result.iterations[0].values()


def test_cameras_and_points(solved: Any) -> None:
    _, arrays, result, recording = solved
    scene = scene_of_result(result, recording, nouns={"Cam": "camera"})
    assert scene.title == "4 cameras, 30 points"
    assert (of(scene, "Cam").kind, of(scene, "Cam").forward) == (GroupKind.CAMERAS, -1.0)
    assert of(scene, "Point").kind is GroupKind.POINTS
    labels = [state.label for state in scene.states]
    between = [f"iteration {one.iteration}" for one in recording.records[:-1]]
    assert labels == ["start", *between, "solution"]
    first, last = scene.states[0], scene.states[-1]
    np.testing.assert_array_equal(first.places["Point"], arrays["Point"])
    poses = np.asarray(result.values["Cam"])[:, :7]
    centres = -rotate(conjugate(poses[:, :4]), poses[:, 4:])
    np.testing.assert_allclose(last.places["Cam"], centres, atol=1e-12)
    residuals = result.residuals("snavely")
    mine = np.asarray(arrays["snavely"]["point"]) == 7
    error = np.sqrt(np.mean((residuals[mine] ** 2).sum(axis=1)))
    assert last.errors["Point"][7] == pytest.approx(error)
    assert first.cost == pytest.approx(result.initial_cost)


def test_large_scenes_are_thinned(solved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_POINTS", 8)
    scene = scene_of_result(solved[2])
    np.testing.assert_array_equal(of(scene, "Point").rows, np.arange(0, 30, 4))
    assert "8 of 30 points are drawn" in scene.facts
    assert scene.states[-1].places["Point"].shape == (8, 3)


def test_iterations_are_left_out_before_coordinates(
    solved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caspar.scene.result, "MAX_STATES", 4)
    scene = scene_of_result(solved[2], solved[3])
    assert len(scene.states) == 4
    assert any("recorded steps are shown" in fact for fact in scene.facts)


def test_wrong_recordings_and_copies(solved: Any) -> None:
    other = caspar.Recording()
    other.values = [{"Cam": np.zeros((1, 10))}]
    other.records = list(solved[3].records[:1])
    with pytest.raises(InputError, match="pass the recording"):
        scene_of_result(solved[2], other)
    with pytest.raises(InputError, match="does not hold the arrays"):
        scene_of_result(copy.copy(solved[2]))


def test_recordings_without_steps(tmp_path: Path) -> None:
    """Of a solve that begins at its solution, and one that was passed to no solve."""
    poses = np.array([[1.0, 0.0, float(place), 0.0] for place in range(3)])

    @caspar.factor
    def apart(
        poses: Annotated[caspar.Pair[sf.Pose2], caspar.TunablePair],
    ) -> sf.V2:
        first, second = poses
        return second.t - first.t - sf.V2(1, 0)

    solver = caspar.Solver(apart, backend="cpu")
    for shift in (0.0, 0.5):
        start = poses + [0.0, 0.0, 0.0, shift] * np.arange(3)[:, None]
        recording = caspar.Recording()
        result = solver.solve(
            {"Pose2": start}, on_iteration=recording if shift == 0.0 else None, fixed={"Pose2": [0]}
        )
        assert len(recording) == 0
        scene = caspar.scene.scene_of_result(result, recording)
        assert [state.label for state in scene.states] == ["start", "solution"]
        assert not any("recorded" in fact for fact in scene.facts)
        result.to_html(tmp_path / "scene.html", recording)
        assert (tmp_path / "scene.html").stat().st_size > 1e6


def test_nothing_to_draw() -> None:
    arrays = line_arrays()
    solver = caspar.Solver(bounded_point, backend="cpu")
    with pytest.raises(InputError, match="nothing can be drawn"):
        SceneReader(solver.traced_factors, {"point": arrays["point"]})


@pytest.mark.parametrize("looks", [1.0, -1.0])
def test_direction_of_a_camera_is_found(looks: float) -> None:
    """Poses from the world to the camera, which no name says."""
    random = np.random.default_rng(0)
    marks = random.uniform(-1.0, 1.0, (50, 3))
    angles = np.linspace(0.0, 3.0, 6)
    turns = np.stack([0 * angles, np.sin(angles / 2), 0 * angles, np.cos(angles / 2)], axis=1)
    poses = np.concatenate([turns, np.tile([0.0, 0.0, 5.0 * looks], (6, 1))], axis=1)
    camera, mark = np.repeat(np.arange(6), 50), np.tile(np.arange(50), 6)
    arrays = {"Pose3": poses, "Mark": marks, "seen": {"camera": camera, "mark": mark}}
    solver = caspar.Solver(seen, backend="cpu")
    found = SceneReader(solver.traced_factors, arrays)
    state = found.state("start", 0.0, arrays, None)
    expected = -rotate(conjugate(turns), poses[:, 4:])
    np.testing.assert_allclose(state.places["Pose3"], expected, atol=1e-12)
    (group,) = (one for one in found.groups if one.name == "Pose3")
    assert group.forward == looks


def test_graph_in_the_plane() -> None:
    class Tree(sf.V2):
        """A landmark."""

    factors = (
        caspar.factors.between(sf.Pose2, name="step"),
        caspar.factors.bearing_range(sf.Pose2, Tree, name="sighting"),
        caspar.factors.prior(sf.Pose2),
    )
    poses = np.array([[1.0, 0.0, 2.0, 3.0], [0.0, 1.0, 4.0, 5.0]])
    arrays = {
        "Pose2": poses,
        "Tree": np.array([[7.0, 8.0]]),
        "step": {"a": [0], "b": [1]},
        "sighting": {"pose": [1], "point": [0]},
        "prior": {"value": [0]},
    }
    found = SceneReader(caspar.Solver(factors, backend="cpu").traced_factors, arrays)
    state = found.state("start", 0.0, arrays, lambda name: np.full((1, 3), 2.0))
    assert found.is_planar
    assert [link.name for link in found.links] == ["step"]
    np.testing.assert_array_equal(state.segments["step"], [[[2.0, 3.0, 0.0], [4.0, 5.0, 0.0]]])
    np.testing.assert_array_equal(state.places["Tree"], [[7.0, 8.0, 0.0]])
    assert state.errors["step"][0] == pytest.approx(np.sqrt(12.0))


def test_models() -> None:
    model = packed(ROOT / "data/crane_mast.tar.xz")
    options = caspar.colmap.BundleAdjustmentOptions(backend="cpu")
    summary = caspar.colmap.bundle_adjustment(model, options)
    scene = scene_of_models(model, summary)
    assert of(scene, "image").labels == model.images.names
    assert [state.label for state in scene.states] == ["start", "solution"]
    errors = summary.model.points.errors
    np.testing.assert_allclose(scene.states[-1].errors["point"], errors[errors >= 0.0], rtol=1e-12)
