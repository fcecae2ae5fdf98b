"""The examples run as their users run them, and find what they say."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

import caspar
from caspar.frontend.symbolic.lookups import Method
from examples import (
    bundle_adjustment,
    calibration_errors,
    camera_prototype,
    direct_odometry,
    field_paths,
    growing_map,
    inertial_window,
    inverse_kinematics,
    kernel_example,
    localisation,
    multiple_factors,
    outliers,
    picture_in_map,
    point_cloud,
    pose_graph,
    pose_graph_ellipses,
    relaxation,
    shared_intrinsics,
    spline_lens,
    tags,
)
from tests.codegen.test_lookups import FORMULAS

EXAMPLES = Path(bundle_adjustment.__file__).parent
BY_LAUNCHERS = ("several_processes.py",)
"""Started by torchrun and the like: see `tests/solver/ranks`."""
NAMES = sorted({path.name for path in EXAMPLES.glob("*.py")} - {*BY_LAUNCHERS})
ARGUMENTS = {
    "growing_map.py": ["--poses", "150"],
    "inertial_window.py": ["--keyframes", "30"],
    "multiple_factors.py": ["--poses", "400", "--landmarks", "60"],
}
WITHOUT_REPORT = (
    *("kernel_example.py", "localisation.py", "outliers.py", "point_cloud.py", "relaxation.py"),
    *("differentiable_calibration.py", "inverse_kinematics.py", "learned_noise.py"),
    *("compiler_passes.py", "database_to_model.py", "field_paths.py", "robust_losses.py"),
    *("inertial_window.py", "tags.py"),
)
RUN_BY_TESTS = {
    **dict.fromkeys(
        (
            *("bundle_adjustment", "calibration_errors", "camera_prototype", "direct_odometry"),
            *("field_paths", "growing_map", "inertial_window", "inverse_kinematics"),
            *("kernel_example", "localisation", "multiple_factors", "outliers", "picture_in_map"),
            *("point_cloud", "pose_graph", "pose_graph_ellipses", "relaxation"),
            *("shared_intrinsics", "spline_lens", "tags"),
        ),
        "tests/solver/test_examples.py",
    ),
    **dict.fromkeys(
        ("camera_calibration", "inertial_navigation", "pose_graph_3d"),
        "tests/solver/test_example_factors.py",
    ),
    "database_to_model": "tests/colmap/test_global_mapping.py",
    **dict.fromkeys(
        ("hand_eye", "uwb_ranges", "victoria_park", "walking_robot"),
        "tests/factors/test_examples.py",
    ),
}
"""Examples whose `main` a test there calls: as scripts they run under `-m reliability`."""

NEEDED = {
    "database_to_model.py": ("pycolmap", "pycolmap"),
    "torch_tensors.py": ("torch", "PyTorch"),
}
"""The package that a script needs, and its name."""


FORKS = """
import contextlib, json, os, runpy, sys, warnings
import caspar, matplotlib.pyplot, scipy.spatial.transform
caspar.Solver, caspar.BatchSolver
for line in sys.stdin:
    script, arguments, written = json.loads(line)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        for number, path in enumerate(written, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        sys.argv, sys.path[0] = [script, *arguments], os.path.dirname(script)
        code = 0
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            code = 1
            sys.excepthook(*sys.exc_info())
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs each script in a fork of an interpreter that has loaded caspar, which takes seconds."""


def says_converged(printed: str) -> bool:
    """Whether the report of a solve says so."""
    return re.search(r"^status +CONVERGED", printed, re.MULTILINE) is not None


@pytest.fixture(scope="module")
def interpreter() -> Iterator[subprocess.Popen[str]]:
    """It takes a line of JSON for each script, and prints how the script ended."""
    path = os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", FORKS],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        yield running


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks on this system")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.reliability)
        if Path(name).stem in RUN_BY_TESTS
        else name
        for name in NAMES
    ],
)
def test_script_runs(name: str, interpreter: subprocess.Popen[str], tmp_path: Path) -> None:
    written = [tmp_path / "stdout", tmp_path / "stderr"]
    request = [str(EXAMPLES / name), ARGUMENTS.get(name, []), list(map(str, written))]
    assert interpreter.stdin is not None
    assert interpreter.stdout is not None
    interpreter.stdin.write(json.dumps(request) + "\n")
    interpreter.stdin.flush()
    code = int(interpreter.stdout.readline())
    said, complained = (path.read_text(encoding="utf-8") for path in written)
    package, title = NEEDED.get(name, ("caspar", "caspar"))
    if importlib.util.find_spec(package) is None:
        assert code == 1
        assert complained == f"This example needs {title}: pip install {package}\n"
        return
    assert code == 0, complained
    assert says_converged(said) is (name not in WITHOUT_REPORT)


@pytest.mark.parametrize("name", RUN_BY_TESTS)
def test_other_scripts_call_what_tests_call(name: str) -> None:
    script = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert re.search(
        r'\nif __name__ == "__main__":\n(    import sys\n\n)?    main\(.*\)\n\Z', script
    )
    tests = (EXAMPLES.parent / RUN_BY_TESTS[name]).read_text(encoding="utf-8")
    assert re.search(rf"\b({name}|example)\.main\(", tests)


def test_bundle_adjustment_reaches_the_optimum(capsys: pytest.CaptureFixture[str]) -> None:
    result = bundle_adjustment.main([])
    assert result.final_cost <= 30378.64 * (1.0 + 1e-6)
    printed = capsys.readouterr().out
    assert str(result) in printed
    assert says_converged(printed)


class TestMultipleFactors:
    def test_finds_the_mount(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = multiple_factors.main(["--poses", "400", "--landmarks", "60"])
        assert result.status.is_success
        error = result.values["Mount"][0] - multiple_factors.TRUE_MOUNT
        assert abs(error[:4]).max() < 0.01
        assert abs(error[4:]).max() < 0.1
        printed = capsys.readouterr().out
        assert str(result) in printed
        assert says_converged(printed)

    def test_grows_to_what_is_solved_at_once(self) -> None:
        """By half laps, from where the last one ended, to the optimum of the whole drive."""
        drive = multiple_factors.measure(num_poses=240, num_landmarks=40, num_laps=2)
        results = multiple_factors.drive_and_solve(drive, num_laps=2)
        assert [result.problem.nodes["Pose"] for result in results] == [60, 120, 180, 240]
        assert [result.problem.nodes["Landmark"] for result in results] == [29, 40, 40, 40]
        assert all(result.status.is_success for result in results)
        whole = multiple_factors.simulate(num_poses=240, num_landmarks=40, num_laps=2)
        at_once = caspar.Solver(multiple_factors.FACTORS).solve(whole)
        assert results[-1].final_cost == pytest.approx(at_once.final_cost, rel=1e-4)
        residuals, unknowns = at_once.problem.num_residuals, at_once.problem.num_unknowns
        assert 2.0 * at_once.final_cost == pytest.approx(residuals - unknowns, rel=0.1)


def test_calibration_errors(capsys: pytest.CaptureFixture[str]) -> None:
    calibration_errors.main()
    printed = capsys.readouterr().out
    assert "fx 532.827 +- 0.44, fy 532.946 +- 0.46, cx 342.487 +- 0.46" in printed
    assert "correlation of k2 and k3: -0.982" in printed
    assert says_converged(printed)


def test_ellipses_hold_what_they_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of places drawn from a covariance, 95 of 100 are inside."""
    covariance = np.array([[4.0, 1.5], [1.5, 1.0]])
    lengths, angles = pose_graph_ellipses.ellipses(covariance[None])
    places = np.random.default_rng(0).multivariate_normal(np.zeros(2), covariance, 100_000)
    along = np.array([np.cos(angles[0]), np.sin(angles[0])])
    across = np.array([-along[1], along[0]])
    radii = np.column_stack([places @ across, places @ along]) / lengths[0]
    assert np.mean((radii**2).sum(axis=1) < 1.0) == pytest.approx(0.95, abs=3e-3)
    image = tmp_path / "ellipses.png"
    cov = pose_graph_ellipses.main(str(image))
    assert image.read_bytes()[1:4] == b"PNG"
    printed = capsys.readouterr().out
    assert str(cov) in printed
    assert says_converged(printed)


def test_a_picture_is_placed_in_a_map(capsys: pytest.CaptureFixture[str]) -> None:
    result = picture_in_map.main()
    assert result.problem.num_unknowns == 9
    assert result.problem.held["Point"] == 3 * 1001
    printed = capsys.readouterr().out
    found = re.search(r"least squares +off by (\S+)\ngraduated +off by (\S+)", printed)
    assert found is not None
    assert float(found[2]) < 1e-3 < 1e-2 < float(found[1])
    assert re.search("wrong matches kept: [0-5] of 302", printed)
    assert says_converged(printed)


def test_lenses_are_shared_held_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    result = shared_intrinsics.main()
    assert result.status.is_success
    assert says_converged(capsys.readouterr().out)
    views = shared_intrinsics.scene()["View"]
    lens = result.values_of("Lens")
    np.testing.assert_array_equal(lens["center"], shared_intrinsics.TRUE_LENSES[:, 1:3])
    np.testing.assert_allclose(lens["focal"], shared_intrinsics.TRUE_LENSES[:, 0], rtol=3e-3)
    assert lens["bend"][1] == -0.01
    np.testing.assert_array_equal(result.values["View"][0], views[0])
    assert shared_intrinsics.draw(result).axes[0].get_aspect() == 1.0


def test_a_loss_tells_wrong_observations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays, is_wrong = outliers.read()
    robust = outliers.solve(arrays, caspar.loss.Cauchy, max_iterations=15)
    rms, found, suspected = outliers.judge(robust, is_wrong)
    assert rms < 1.5
    assert found > 0.9
    assert suspected < 0.02
    monkeypatch.setattr(outliers, "solve", lambda *_: robust)
    outliers.main()
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["loss", "none", "Huber", "SoftL1", "Cauchy"]


def test_pose_graph_reaches_the_optimum(capsys: pytest.CaptureFixture[str]) -> None:
    """137.91295 is where exact steps end, by a sparse factorisation of the same residuals."""
    result = pose_graph.main()
    assert result.status.is_success
    assert 2.0 * result.final_cost == pytest.approx(137.913, rel=1e-4)
    assert result.remarks == ()
    assert says_converged(capsys.readouterr().out)


class TestKernelExample:
    def test_agrees_with_numpy(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert kernel_example.main() < 1e-5
        assert "sums      (10, 2)     float32" in capsys.readouterr().out

    def test_compares_with_numpy(self) -> None:
        """What is wrong is seen."""
        arrays = kernel_example.make_arrays(num_items=100)
        outputs = kernel_example.call(arrays)
        wrong = kernel_example.by_numpy(arrays._replace(point=np.zeros(100, dtype=np.int64)))
        assert kernel_example.report(outputs, wrong) > 0.1


class TestPointCloud:
    def test_agrees_with_numpy(self) -> None:
        assert point_cloud.main() < 1e-4

    def test_turns_with_its_poses(self) -> None:
        carousel = point_cloud.Carousel(point_cloud.make_cloud(num_scans=5, points_each=10))
        carousel.turn(0.0)
        x, y, _ = carousel.centre()
        carousel.turn(np.pi / 2.0)
        np.testing.assert_allclose(carousel.centre()[:2], [-y, x], atol=1e-4)


class TestCameraPrototype:
    def test_calibrates(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = camera_prototype.main()
        assert result.status.is_success
        camera = result.values["Camera"][0]
        np.testing.assert_allclose(camera, camera_prototype.TRUE_CAMERA, rtol=3e-3)
        residuals, unknowns = result.problem.num_residuals, result.problem.num_unknowns
        assert 2.0 * result.final_cost == pytest.approx(0.04 * (residuals - unknowns), rel=0.1)
        printed = capsys.readouterr().out
        assert "ReadIndexed -> ReadUnique: the same program, " in printed
        assert says_converged(printed)

    def test_derivative_is_that_of_differences(self) -> None:
        board = camera_prototype.Board(num_views=3, side=3)
        assert camera_prototype.compare_jacobians(board, camera_prototype.TRUE_CAMERA) < 1e-7


def test_tags_are_found() -> None:
    result = tags.main()
    assert result.is_success.all()
    poses, *_ = tags.make(1000)
    away = np.linalg.norm(result.values["Tag"][:, 4:] - poses[:, 4:], axis=1)
    assert np.median(away) < 0.005


def test_molecules_are_found() -> None:
    result = localisation.main()
    assert result.is_success.mean() > 0.999
    spots, _ = localisation.make(10_000)
    error = result.values["Spot"][:, :2] - spots[:, :2]
    assert np.abs(error).mean() < 0.06


def test_a_camera_is_followed(capsys: pytest.CaptureFixture[str]) -> None:
    truth, found = direct_odometry.main(16)
    assert says_converged(capsys.readouterr().out)
    assert np.linalg.norm(found[:, 4:] - truth[:, 4:], axis=1).max() < 0.003
    turned = Rotation.from_quat(found[:, :4]).inv() * Rotation.from_quat(truth[:, :4])
    assert turned.magnitude().max() < 0.002


def test_a_map_grows_at_its_minimum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "map.png"
    made, result = growing_map.main(["--poses", "300", "--picture", str(picture)])
    assert (len(made.poses), result.problem.nodes["Tree"]) == (300, len(made.trees))
    assert result.initial_cost <= 1.001 * result.final_cost
    assert picture.stat().st_size > 1000
    assert says_converged(capsys.readouterr().out)
    graph = [str(growing_map.DRIVE.with_name("M3500.g2o.bz2")), "--poses", "120"]
    made, result = growing_map.main(graph)
    assert result.problem.factors["odometry"] > 119
    assert result.initial_cost <= 1.001 * result.final_cost


def test_a_window_follows_a_flight(tmp_path: Path) -> None:
    """It knows how far off it is; the inertial sensor alone is soon lost."""
    picture = tmp_path / "flight.png"
    flight, found = inertial_window.main(["--keyframes", "60", "--picture", str(picture)])
    true = flight.states[:, 4:7]
    errors, lost = found.positions - true, found.alone - true
    assert np.linalg.norm(errors, axis=1).max() < 0.4
    assert np.linalg.norm(lost[-1]) > 10.0 * np.linalg.norm(errors[-1])
    assert 0.5 < np.sqrt(np.mean((errors / found.sigmas) ** 2)) < 1.5
    assert picture.stat().st_size > 1000


def test_an_arm_reaches_its_goals() -> None:
    result, away = inverse_kinematics.main(100, 8)
    assert result.is_success.mean() > 0.98
    assert (away < 1e-3).mean() > 0.95
    angles = result.values["Joints"]
    assert (inverse_kinematics.LOWER <= angles).all()
    assert (angles <= inverse_kinematics.UPPER).all()


def test_paths_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = field_paths.simulate(24)
    monkeypatch.setattr(field_paths, "simulate", lambda _: few)
    field_paths.main()
    found = re.search(r"paths that touch no obstacle: (\S+) %", capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) > 80.0


def test_relaxation_times_are_found() -> None:
    result = relaxation.main(32)
    assert result.is_success.all()
    t1, _, _, voxel = relaxation.make(32)
    assert len(set(result.num_residuals.tolist())) > 3
    assert result.num_residuals.sum() == len(voxel)
    assert np.abs(1.0 / result.values["Voxel"][:, 2] - t1).max() < 0.15


class TestSplineLens:
    """A lens of 8 x 11 knots, seen by four boards."""

    def test_reaches_the_optimum_of_scipy(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        solved = spline_lens.solve(spline_lens.simulate((8, 11), num_boards=4, side=5))
        monkeypatch.setattr(spline_lens, "solve", lambda _: solved)
        assert spline_lens.main(sizes=(8, 11)) is solved[1]
        assert says_converged(capsys.readouterr().out)
        arrays, result = solved
        assert result.status.is_success
        assert not any("left the cell" in remark for remark in result.remarks)
        # SciPy's first steps from the example's start would take half a minute
        known = np.concatenate([result.values["Lens"].ravel(), np.zeros(6 * 4 - 3)])
        start = known + np.random.default_rng(0).normal(0.0, 1e-3, known.shape)
        tight = {"xtol": 1e-15, "ftol": 1e-11, "gtol": 1e-15}
        found = least_squares(self.residuals, start, x_scale="jac", args=(arrays,), **tight)
        assert result.final_cost == pytest.approx(found.cost, rel=1e-8)

    @staticmethod
    def residuals(unknowns: NDArray[Any], arrays: Any) -> NDArray[Any]:
        """The factors of the example by NumPy, of knots and steps from the boards' poses."""
        own, starts = arrays["corner"], arrays["Board"]
        count = arrays["Lens"].size
        knots, rest = unknowns[:count].reshape(-1, 2), unknowns[count:]
        steps = np.concatenate([np.zeros(3), rest]).reshape(-1, 6)
        turned = Rotation.from_quat(starts[:, :4]) * Rotation.from_rotvec(steps[:, :3])
        moved = starts[:, 4:] + steps[:, 3:]
        board = own["board"]
        rays = turned[board].apply(np.pad(own["place"], ((0, 0), (0, 1)))) + moved[board]
        projected = spline_lens.stereographic(rays)
        place = own["knots_per_unit"] * projected + own["middle"]
        x, y = (place - own["lens"].base).T
        across, down = (
            [FORMULAS[Method.BSPLINE3][k](one) for k in (-1, 0, 1, 2)] for one in (x, y)
        )
        weights = np.array([one * other for one in down for other in across])
        shift = (weights[:, :, None] * knots[np.array(own["lens"].index)]).sum(axis=0)
        pixel = spline_lens.FOCAL * (projected + shift) + spline_lens.CENTER
        seen = (pixel - own["pixel"]) / spline_lens.NOISE
        pair = arrays["smooth"]
        differences = (knots[pair["knot"]] - knots[pair["neighbour"]]) / spline_lens.SMOOTHNESS
        return np.concatenate([seen.ravel(), differences.ravel()])
