"""`caspar bal`, most of it with a solver that does nothing."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caspar
from caspar.errors import BackendError, CompileError
from caspar.io import read_bal
from caspar.solver.result.result import SolveStatus
from tests.cli.fake_solver import FakeSolver, run
from tests.examples import make_record, make_result

ROOT = Path(__file__).parents[2]

JSON_KEYS = {
    *("problem", "backend", "device", "precision", "linear_solver", "status"),
    *("initial_cost", "final_cost", "compile_time_s", "setup_time_s", "solve_time_s"),
    *("peak_memory_bytes", "iterations", "version"),
}
ITERATION_KEYS = {
    *("iteration", "cost", "candidate_cost", "damping", "gain_ratio", "linear_iterations"),
    *("step_accepted", "reason", "time_s"),
}


class TestBal:
    """`caspar bal` around the solver."""

    def test_report(
        self, solver: type[FakeSolver], problem_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("bal", problem_file) == 0
        printed = capsys.readouterr()
        assert f"{problem_file}: 3 cameras, 20 points, 60 observations" in printed.out
        assert "CONVERGED_COST" in printed.out
        assert "\x1b" not in printed.out + printed.err
        assert printed.err.splitlines() == [
            f"reading {problem_file}",
            "compiling for test [CPU]",
            "solving on test [CPU]",
        ]

    def test_files_of_bundler(
        self, solver: type[FakeSolver], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("bal", ROOT / "data/Balbianello.out.bz2") == 0
        assert "Balbianello.out.bz2: 5 cameras, 544 points, 1,417" in capsys.readouterr().out

    def test_arguments_reach_the_solver(self, solver: type[FakeSolver], problem_file: Path) -> None:
        choices = ("--backend", "cpu", "--precision", "float64", "--max-iterations", "7")
        assert run("bal", problem_file, *choices, "--quiet") == 0
        (made,) = solver.made
        assert made.arguments["factors"] == [caspar.bundle_adjustment.snavely]
        assert (made.arguments["backend"], made.arguments["precision"]) == ("cpu", "float64")
        assert made.arguments["options"] == {"max_iterations": 7}
        problem = read_bal(problem_file)
        arrays = made.arguments["arrays"]
        np.testing.assert_array_equal(arrays["Cam"], problem.cameras)
        np.testing.assert_array_equal(arrays["snavely"]["point"], problem.point_index)
        np.testing.assert_array_equal(arrays["snavely"]["pixel"], problem.pixels)

    def test_loss(self, solver: type[FakeSolver], problem_file: Path) -> None:
        choices = ("--loss", "soft_l1", "--loss-scale", "2.5")
        assert run("bal", problem_file, *choices, "--quiet") == 0
        (made,) = solver.made
        assert made.arguments["factors"][0].loss is caspar.loss.SoftL1
        assert made.arguments["arrays"]["snavely"]["loss_scale"] == 2.5

    @pytest.mark.parametrize(
        ("names", "fixed"),
        [
            (("points",), {"Point": True}),
            (("poses", "first_pose"), {"Cam": {"cam_T_world": True}}),
            (
                ("calibration", "first_pose"),
                {"Cam": {"calibration": True, "cam_T_world": [0]}},
            ),
        ],
    )
    def test_fixed(
        self, solver: type[FakeSolver], problem_file: Path, names: tuple[str, ...], fixed: Any
    ) -> None:
        choices = [part for name in names for part in ("--fixed", name)]
        assert run("bal", problem_file, *choices, "--quiet") == 0
        (made,) = solver.made
        assert made.arguments["options"] == {"fixed": fixed}
        assert made.arguments["prepared"] == fixed

    def test_defaults_are_the_solver_s(self, solver: type[FakeSolver], problem_file: Path) -> None:
        assert run("bal", problem_file, "--quiet") == 0
        (made,) = solver.made
        assert (made.arguments["backend"], made.arguments["precision"]) == ("auto", "mixed")
        assert made.arguments["options"] == {}

    def test_quiet(
        self, solver: type[FakeSolver], problem_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("bal", problem_file, "--quiet") == 0
        assert capsys.readouterr() == ("", "")

    @pytest.mark.parametrize("status", list(SolveStatus))
    def test_exit_code(
        self,
        solver: type[FakeSolver],
        monkeypatch: pytest.MonkeyPatch,
        problem_file: Path,
        status: SolveStatus,
    ) -> None:
        monkeypatch.setattr(solver, "result", make_result(status=status))
        expected = 130 if status is SolveStatus.INTERRUPTED else int(not status.is_success)
        assert run("bal", problem_file, "--quiet") == expected

    def test_outputs(
        self,
        solver: type[FakeSolver],
        problem_file: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        paths = [tmp_path / name for name in ("a.json", "b.txt.bz2", "c.png")]
        arguments = [
            part
            for option, path in zip(("--json", "--out", "--plot"), paths, strict=True)
            for part in (option, path)
        ]
        assert run("bal", problem_file, *arguments) == 0
        assert capsys.readouterr().out.splitlines()[-1] == (
            f"written: {', '.join(map(str, paths))}"
        )
        before, after = read_bal(problem_file), read_bal(paths[1])
        np.testing.assert_array_equal(after.points, before.points + 1.0)
        np.testing.assert_array_equal(after.pixels, before.pixels)
        assert paths[2].read_bytes().startswith(b"\x89PNG")

    def test_point_cloud(
        self, solver: type[FakeSolver], problem_file: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "scene.PLY"
        assert run("bal", problem_file, "--out", path, "--quiet") == 0
        assert path.read_bytes().startswith(b"ply\n")

    def test_values_of_an_interrupted_solve_are_written(
        self,
        solver: type[FakeSolver],
        monkeypatch: pytest.MonkeyPatch,
        problem_file: Path,
        tmp_path: Path,
    ) -> None:
        monkeypatch.setattr(solver, "result", make_result(status=SolveStatus.INTERRUPTED))
        path = tmp_path / "solved.txt"
        assert run("bal", problem_file, "--out", path, "--quiet") == 130
        assert read_bal(path).num_points == 20

    def test_interrupt_before_the_iterations(
        self,
        solver: type[FakeSolver],
        monkeypatch: pytest.MonkeyPatch,
        problem_file: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(solver, "error", KeyboardInterrupt())
        assert run("bal", problem_file, "--quiet") == 130
        assert capsys.readouterr().err == "caspar: interrupted; nothing is written\n"

    @pytest.mark.parametrize(
        ("error", "code", "message"),
        [
            (BackendError("no GPU"), 2, "caspar: no GPU\n"),
            (caspar.errors.OutOfMemoryError("too large"), 2, "caspar: too large\n"),
            (MemoryError(), 2, "caspar: out of memory\n"),
            (CompileError("bad source"), 3, "caspar: defect: bad source\n"),
        ],
    )
    def test_errors_are_one_message(
        self,
        solver: type[FakeSolver],
        monkeypatch: pytest.MonkeyPatch,
        problem_file: Path,
        capsys: pytest.CaptureFixture[str],
        error: Exception,
        code: int,
        message: str,
    ) -> None:
        monkeypatch.setattr(solver, "error", error)
        assert run("bal", problem_file, "--quiet") == code
        assert capsys.readouterr().err == message

    def test_one_failed_output_does_not_cost_the_others(
        self,
        solver: type[FakeSolver],
        monkeypatch: pytest.MonkeyPatch,
        problem_file: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def full(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("caspar.cli.bal.write_bal", full)
        paths = {"--json": tmp_path / "a.json", "--out": tmp_path / "b.txt"}
        arguments = [part for option, path in paths.items() for part in (option, path)]
        assert run("bal", problem_file, *arguments) == 2
        printed = capsys.readouterr()
        assert f"caspar: {paths['--out']} is not written: [Errno 28] No space" in printed.err
        assert printed.out.splitlines()[-1] == f"written: {paths['--json']}"


class TestJson:
    """What `--json` writes."""

    def written(self, problem_file: Path, folder: Path) -> dict[str, Any]:
        path = folder / "result.json"
        run("bal", problem_file, "--json", path, "--quiet")

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        report: dict[str, Any] = json.loads(path.read_text(), parse_constant=refuse)
        return report

    def test_keys_and_values(
        self, solver: type[FakeSolver], problem_file: Path, tmp_path: Path
    ) -> None:
        report = self.written(problem_file, tmp_path)
        assert set(report) == JSON_KEYS
        assert report["problem"] == {"cameras": 3, "points": 20, "observations": 60}
        assert report["status"] == "converged_cost"
        assert report["initial_cost"] == 1000.0
        assert report["final_cost"] == make_result().final_cost
        assert len(report["iterations"]) == 5
        assert all(set(iteration) == ITERATION_KEYS for iteration in report["iterations"])
        assert [iteration["step_accepted"] for iteration in report["iterations"]] == [
            *(True, False, True, True, True)
        ]

    def test_numbers_that_are_not_finite_are_null(
        self,
        solver: type[FakeSolver],
        monkeypatch: pytest.MonkeyPatch,
        problem_file: Path,
        tmp_path: Path,
    ) -> None:
        record = make_record(1, 5.0, gain_ratio=math.nan, candidate_cost=math.inf)
        result = make_result(iterations=(record,), initial_cost=math.nan)
        monkeypatch.setattr(solver, "result", result)
        report = self.written(problem_file, tmp_path)
        assert report["initial_cost"] is None
        assert report["iterations"][0]["gain_ratio"] is None
        assert report["iterations"][0]["candidate_cost"] is None


class TestRealSolver:
    """A small problem on the CPU, from file to file."""

    @pytest.mark.parametrize("precision", ["mixed", "float64"])
    def test_solve(self, problem_file: Path, tmp_path: Path, precision: str) -> None:
        paths = {
            "--json": tmp_path / "result.json",
            "--out": tmp_path / "solved.txt.gz",
            "--plot": tmp_path / "plot.png",
        }
        arguments = [part for option, path in paths.items() for part in (option, path)]
        choices = ("--backend", "cpu", "--precision", precision)
        assert run("bal", problem_file, *choices, *arguments) == 0
        report = json.loads(paths["--json"].read_text())
        assert report["backend"] == "cpu"
        assert report["precision"] == precision
        assert report["status"].startswith("converged")
        # Pixels have errors of 0.5: of 120 residuals, 87 - 7 unknowns (a similarity is free)
        # leave 40 degrees of freedom.
        assert report["final_cost"] == pytest.approx(0.5 * 0.25 * 40, rel=0.5)
        assert report["initial_cost"] > 10.0 * report["final_cost"]
        again = tmp_path / "again.json"
        assert run("bal", paths["--out"], *choices, "--json", again, "--quiet") == 0
        assert json.loads(again.read_text())["initial_cost"] == pytest.approx(
            report["final_cost"], rel=1e-3
        )

    def test_iteration_limit(self, problem_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("bal", problem_file, "--backend", "cpu", "--max-iterations", "1") == 1
        assert "ITERATION_LIMIT" in capsys.readouterr().out
