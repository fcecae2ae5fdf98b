"""The command line, called in this process; most tests with a solver that does nothing."""

import bz2
import io
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from rich.console import Console

import caspar
from caspar.cli import doctor, main
from caspar.cli.progress import progress_display
from caspar.errors import BackendError, CompileError
from caspar.io import read_bal, write_bal
from caspar.runtime.probe import CudaDevice, CudaDriver, CupyState
from caspar.solver.result import SolveResult, SolveStatus
from tests.examples import make_bal_problem, make_record, make_result

ROOT = Path(__file__).parents[1]
JSON_KEYS = {
    *("problem", "backend", "device", "precision", "linear_solver", "status"),
    *("initial_cost", "final_cost", "compile_time_s", "setup_time_s", "solve_time_s"),
    *("peak_memory_bytes", "iterations", "version"),
}
ITERATION_KEYS = {
    *("iteration", "cost", "candidate_cost", "damping", "gain_ratio", "linear_iterations"),
    *("step_accepted", "reason", "time_s"),
}


class FakeSolver:
    """Gives back its start values, moved a little, and a result made up before."""

    made: ClassVar[list["FakeSolver"]] = []
    result: ClassVar[SolveResult] = make_result()
    error: ClassVar[BaseException | None] = None

    def __init__(self, factors: Any, *, backend: str, precision: str) -> None:
        self.arguments = {"factors": factors, "backend": backend, "precision": precision}
        self.backend = SimpleNamespace(name="cpu", device="test [CPU]")
        self.made.append(self)

    def compile(self) -> None:
        if self.error is not None:
            raise self.error

    def solve(
        self, arrays: Any, *, on_iteration: Callable[[Any], object], **options: Any
    ) -> SolveResult:
        self.arguments |= {"arrays": arrays, "options": options}
        for record in self.result.iterations:
            assert not on_iteration(record)
        values = {"Cam": arrays["Cam"], "Point": arrays["Point"] + 1.0}
        return SolveResult(**{**vars(self.result), "values": values})


@pytest.fixture
def solver(monkeypatch: pytest.MonkeyPatch) -> type[FakeSolver]:
    """The solver that does nothing, in place of the real one."""
    monkeypatch.setattr(caspar, "Solver", FakeSolver)
    monkeypatch.setattr(FakeSolver, "made", [])
    return FakeSolver


@pytest.fixture(scope="module")
def problem_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bal") / "problem [1].txt"
    write_bal(path, make_bal_problem())
    return path


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


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
            "tracing the residual",
            "compiling for test [CPU]",
            "solving on test [CPU]",
        ]

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

        monkeypatch.setattr("caspar.cli.outputs.write_bal", full)
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


class TestWrongInput:
    """One message, exit code 2, and no solver was made."""

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda text: text[: len(text) // 2], "cut short"),
            (lambda text: text + b"1 2 3\n", "there is text after the last of the 20 points"),
            (lambda text: text.replace(b"3 20 60", b"3 21 60", 1), "cut short"),
            (lambda text: text.replace(b"3 20 60", b"3 20", 1), "line 1"),
            (
                lambda text: text.replace(b"\n0 0 ", b"\n0 zero ", 1),
                "'zero', which is not a number",
            ),
            (lambda text: text.replace(b"\n0 0 ", b"\n7 0 ", 1), "allowed are the integers 0 to 2"),
            (lambda text: text.replace(b"\n0 0 ", b"\n0 nan ", 1), "must be finite"),
            (lambda text: bz2.compress(text)[:-20], "cut short"),
            (lambda text: b"", "the file is empty"),
            (lambda text: b"\x89PNG\r\n\x1a\n", "line 1"),
        ],
        ids=[
            *("truncated", "trailing", "count", "header", "word", "index", "nan"),
            *("packed", "empty", "binary"),
        ],
    )
    def test_file_format(
        self,
        solver: type[FakeSolver],
        problem_file: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        change: Callable[[bytes], bytes],
        message: str,
    ) -> None:
        path = tmp_path / "bad.txt"
        path.write_bytes(change(problem_file.read_bytes()))
        assert run("bal", path, "--quiet") == 2
        printed = capsys.readouterr().err
        assert printed.startswith(f"caspar: {path}")
        assert message in printed
        assert printed.count("\n") == 1
        assert solver.made == []

    def test_missing_file(
        self, solver: type[FakeSolver], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "none.txt"
        assert run("bal", path, "--quiet") == 2
        assert capsys.readouterr().err == f"caspar: {path}: No such file or directory\n"

    def test_folder_as_file(
        self, solver: type[FakeSolver], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("bal", tmp_path, "--quiet") == 2
        assert "this is a directory" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--out", "FOLDER/a.xyz"), "must end in .txt, .txt.bz2, .txt.gz, .ply"),
            (("--out", "FOLDER/a.bz2"), "must end in"),
            (("--plot", "FOLDER/a.jpg"), "must end in .png, .svg, .pdf"),
            (("--json", "FOLDER/none/a.json"), "there is no folder"),
            (("--json", "FOLDER"), "this is a folder"),
            (("--out", "PROBLEM"), "this is the problem itself"),
            (("--json", "FOLDER/a.txt", "--out", "FOLDER/x/../a.txt"), "the file of --json"),
        ],
    )
    def test_outputs_are_checked_before_the_problem_is_read(
        self,
        solver: type[FakeSolver],
        monkeypatch: pytest.MonkeyPatch,
        problem_file: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        arguments: tuple[str, ...],
        message: str,
    ) -> None:
        (tmp_path / "x").mkdir()
        monkeypatch.setattr("caspar.cli.bal.read_bal", None)
        named = [
            argument.replace("FOLDER", str(tmp_path)).replace("PROBLEM", str(problem_file))
            for argument in arguments
        ]
        assert run("bal", problem_file, *named) == 2
        printed = capsys.readouterr().err
        assert printed.startswith(f"caspar: {named[-2]} {named[-1]}: ")
        assert message in printed
        assert solver.made == []

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            ("bal",),
            ("bal", "x", "--backend", "tpu"),
            ("bal", "x", "--max-iterations", "0"),
            ("bal", "x", "--max-iterations", "many"),
            ("cache",),
            ("unknown",),
        ],
    )
    def test_usage(self, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as exit_:
            run(*arguments)
        assert exit_.value.code == 2
        assert "usage: caspar" in capsys.readouterr().err


class TestProgress:
    """The sign of life."""

    def test_lines_are_occasional(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        stream = io.StringIO()
        with progress_display(Console(file=stream), is_quiet=False) as display:
            display.phase("solving")
            for iteration in range(1, 13):
                now += 1.0
                display.iteration(make_record(iteration, 1e3 / iteration))
        assert stream.getvalue().splitlines() == [
            "solving",
            "iteration 5: cost 200.000",
            "iteration 10: cost 100.000",
        ]

    def test_live_line_is_gone_afterwards(self) -> None:
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=True, color_system=None, width=80)
        with progress_display(console, is_quiet=False) as display:
            display.phase("reading [a] file")
            display.iteration(make_record(3, 12.5, step_accepted=False))
        shown = stream.getvalue()
        assert "iteration 3: cost 12.5000, step rejected" in shown
        assert shown.endswith("\x1b[2K")  # the line is erased


class TestCache:
    """`caspar cache`."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "cache"
        (path / "plans").mkdir(parents=True)
        (path / "plans" / "one.json").write_text("12345")
        monkeypatch.setenv("CASPAR_CACHE_DIR", str(path))
        return path

    def test_info(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("cache", "info") == 0
        assert capsys.readouterr().out == f"{folder}: 1 file, 5 bytes\n"

    def test_clear(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("cache", "clear") == 0
        assert capsys.readouterr().out == f"deleted: {folder}: 1 file, 5 bytes\n"
        assert not (folder / "plans" / "one.json").exists()
        assert run("cache", "clear") == 0

    def test_clear_says_what_is_left(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("shutil.rmtree", lambda *arguments, **options: None)
        assert run("cache", "clear") == 2
        assert capsys.readouterr().out == (
            f"not all could be deleted; left in {folder}: 1 file, 5 bytes\n"
        )


class TestDoctor:
    """`caspar doctor` on machines that are made up, and on this one."""

    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """No driver, an empty cache."""
        monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setattr(doctor, "find_driver", lambda: None)
        monkeypatch.setattr(doctor, "cuda_problem", lambda: "there is no NVIDIA driver")
        monkeypatch.setattr(doctor, "_TRY_CPU", "print('test CPU')")

    def test_without_a_gpu(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("doctor") == 0
        lines = capsys.readouterr().out.splitlines()
        assert "driver        no NVIDIA driver" in lines
        assert f"cache         {tmp_path / 'cache'}: 0 files, 0 bytes" in lines
        assert "backend cpu   works: test CPU" in lines
        assert "backend cuda  not usable: there is no NVIDIA driver" in lines

    def test_with_a_gpu(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        device = CudaDevice("NVIDIA H200", (9, 0), 141 << 30)
        monkeypatch.setattr(doctor, "find_driver", lambda: CudaDriver(12080, (device,), None))
        monkeypatch.setattr(doctor, "probe_cupy", lambda: CupyState("12.9", None))
        monkeypatch.setattr(doctor, "cuda_problem", lambda: None)
        monkeypatch.setattr(doctor, "_TRY_CPU", "raise ImportError('no numba')")
        assert run("doctor") == 0
        printed = capsys.readouterr().out
        assert "NVIDIA H200, compute capability 9.0, 141 GiB" in printed
        assert "NVRTC 12.9" in printed
        assert "backend cpu   does not work: ImportError: no numba" in printed
        assert "backend cuda  works" in printed

    def test_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        device = CudaDevice("NVIDIA H200", (9, 0), 141 << 30)
        monkeypatch.setattr(doctor, "find_driver", lambda: CudaDriver(13000, (device,), None))
        state = CupyState(None, "CuPy is not installed", is_incomplete=True)
        monkeypatch.setattr(doctor, "probe_cupy", lambda: state)
        monkeypatch.setattr(doctor, "CUPY_PACKAGES", ())
        assert run("doctor") == 0
        printed = capsys.readouterr().out
        assert (
            "CuPy          not installed; for this driver: pip install 'caspar[cuda13]'" in printed
        )

    def test_missing_package_and_no_backend(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "surely-not-installed"))
        monkeypatch.setattr(doctor, "_TRY_CPU", "import os; os.abort()")
        assert run("doctor") == 1
        printed = capsys.readouterr().out
        assert "missing: surely-not-installed" in printed
        assert "backend cpu   does not work" in printed

    def test_cache_that_cannot_be_written(
        self,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        (tmp_path / "file").write_text("not a folder")
        monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path / "file" / "cache"))
        assert run("doctor") == 0
        assert "no permission to write it" in capsys.readouterr().out

    def test_this_machine(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "caspar", "doctor"], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "backend cpu   works" in done.stdout


class TestProcess:
    """The command line as a process."""

    def test_version(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "caspar", "--version"], cwd=ROOT, capture_output=True, text=True
        )
        assert done.stdout == f"caspar {caspar.__version__}\n"

    def test_light_commands_load_nothing_heavy(self) -> None:
        program = (
            "import sys; from caspar.cli import main; main(['cache', 'info']); print(*sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
        )
        loaded = done.stdout.split()
        assert not {"cupy", "matplotlib", "numba", "symforce", "sympy"} & set(loaded)

    def test_reader_that_stops_early(self) -> None:
        """As in `caspar doctor | true`."""
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "wb") as closed:
            done = subprocess.run(
                [sys.executable, "-m", "caspar", "cache", "info"],
                cwd=ROOT,
                stdout=closed,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert done.returncode == 1
        assert done.stderr == ""


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
