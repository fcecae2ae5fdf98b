"""`caspar doctor` on machines that are made up, and on this one."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caspar.cli import doctor, packages
from caspar.runtime.nvidia.probe import CudaDevice, CudaDriver, CupyState
from caspar.version import install_command
from tests.cli.fake_solver import run

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No driver, an empty cache; that packages can be imported is asked in a process of its own."""
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "find_driver", lambda: None)
    monkeypatch.setattr(doctor, "cuda_problem", lambda: "there is no NVIDIA driver")
    monkeypatch.setattr(doctor, "_TRY_CPU", "print('test CPU')")
    monkeypatch.setattr(doctor, "import_problems", lambda missing: [])


def test_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "driver        no NVIDIA driver" in lines
    assert f"cache         {tmp_path / 'cache'}: 0 files, 0 bytes, of at most 1.00 GiB" in lines
    assert "backend cpu   works: test CPU" in lines
    assert "backend cuda  not usable: there is no NVIDIA driver" in lines


def test_with_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    device = CudaDevice("NVIDIA H200", (9, 0), 141 << 30)
    monkeypatch.setattr(doctor, "find_driver", lambda: CudaDriver(12080, (device,), None))
    monkeypatch.setattr(doctor, "probe_cupy", lambda: CupyState("12.9", None))
    monkeypatch.setattr(doctor, "cuda_problem", lambda: None)
    monkeypatch.setattr(doctor, "graph_loop_problem", lambda: "there is no cuda-core")
    monkeypatch.setattr(doctor, "sparse_problem", lambda: "there is no cuDSS")
    monkeypatch.setattr(doctor, "_TRY_CPU", "raise ImportError('no llvmlite')")
    assert run("doctor") == 0
    printed = capsys.readouterr().out
    assert "graph loops   polled by the host: there is no cuda-core" in printed
    assert "sparse        no sparse factorisation on CUDA: there is no cuDSS" in printed
    assert "NVIDIA H200, compute capability 9.0, 141 GiB" in printed
    assert "NVRTC 12.9" in printed
    assert "backend cpu   does not work: ImportError: no llvmlite" in printed
    assert "backend cuda  works" in printed


def test_graphs_that_repeat_themselves_and_sparse_matrices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "cuda_problem", lambda: None)
    monkeypatch.setattr(doctor, "graph_loop_problem", lambda: None)
    monkeypatch.setattr(doctor, "sparse_problem", lambda: None)
    monkeypatch.setattr(doctor, "installed_version", lambda package: f"1.2 of {package}")
    assert run("doctor") == 0
    printed = capsys.readouterr().out
    assert "graph loops   on the device: cuda-core 1.2 of cuda-core" in printed
    assert "sparse        factorised on CUDA by cuDSS" in printed


def test_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = CudaDevice("NVIDIA H200", (9, 0), 141 << 30)
    monkeypatch.setattr(doctor, "find_driver", lambda: CudaDriver(13000, (device,), None))
    state = CupyState(None, "CuPy is not installed", is_incomplete=True)
    monkeypatch.setattr(doctor, "probe_cupy", lambda: state)
    monkeypatch.setattr(doctor, "CUPY_PACKAGES", ())
    assert run("doctor") == 0
    printed = "".join(capsys.readouterr().out.split())  # lines are broken anywhere
    advice = f"not installed; for this driver: {install_command('cuda13')}"
    assert "".join(advice.split()) in printed


def test_missing_package_and_no_backend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "surely-not-installed"))
    monkeypatch.setattr(doctor, "_TRY_CPU", "import os; os.abort()")
    assert run("doctor") == 1
    printed = capsys.readouterr().out
    assert "missing: surely-not-installed" in printed
    assert "backend cpu   does not work" in printed


def test_cache_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert run("doctor") == 0
    assert "cannot be read (Not a directory)" in capsys.readouterr().out


def test_names_every_package_that_is_declared() -> None:
    """Those of pyproject.toml: required ones, and those of extras that users install."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = ("cuda12", "cuda13", "inspect")
    optional = [line for extra in extras for line in project["optional-dependencies"][extra]]

    def names(lines: list[str]) -> set[str]:
        return {re.split(r"[^\w-]", line)[0] for line in lines}

    assert set(packages.PACKAGES) == names(project["dependencies"])
    assert names(optional) <= {*packages.OPTIONAL_PACKAGES, *packages.CUPY_PACKAGES}


def test_optional_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "OPTIONAL_PACKAGES", ("numpy", "surely-not-installed"))
    assert run("doctor") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("optional")]
    assert re.fullmatch(r"optional +numpy [\d.]+; not installed: surely-not-installed", line)


# -- in a process of its own -----------------------------------------------------------------------

MODULES = (
    *("cupy", "llvmlite", "numpy", "qdldl", "rich", "rslab", "symforce", "sympy"),
    "threadpoolctl",
)


def doctor_in(folder: Path, first: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run it in a folder, with another one before all places where imports look."""
    path = os.pathsep.join([str(first), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *(command or ("-m", "caspar", "doctor"))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
        capture_output=True,
        text=True,
        timeout=500,
    )


SCRIPT = "import sys; del sys.path[0]; from caspar.cli import main; sys.exit(main(['doctor']))"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("-m", "caspar", "doctor"), id="-m"),
        pytest.param(("-c", SCRIPT), id="script", marks=pytest.mark.reliability),
    ],
)
def test_does_not_run_the_working_folder(tmp_path: Path, command: tuple[str, ...]) -> None:
    folder, first = tmp_path / "work", tmp_path / "first"
    first.mkdir()
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n1 / 0\n")
    done = doctor_in(folder, first, *command)
    assert done.returncode == 0, done.stderr
    assert "backend cpu   works" in done.stdout
    assert not (tmp_path / "ran").exists()


ERRORS = {
    "RuntimeError": "raise RuntimeError('broken')",
    "ImportError": "raise ImportError('broken')",
    "SyntaxError": "1 +",
}


def _broken_packages() -> list[Any]:
    """An error in each of three packages; `-m reliability`: all errors in all packages."""
    found = []
    for number, broken in enumerate(("numpy", "rich", "platformdirs", "qdldl", "symforce")):
        for place, (name, text) in enumerate(ERRORS.items()):
            is_usual = place == number % len(ERRORS) and broken not in ("qdldl", "symforce")
            marks = [] if is_usual else [pytest.mark.reliability]
            found.append(pytest.param(broken, text, marks=marks, id=f"{broken}-{name}"))
    return found


@pytest.mark.parametrize(("broken", "text"), _broken_packages())
def test_broken_packages_are_named(tmp_path: Path, broken: str, text: str) -> None:
    (tmp_path / f"{broken}.py").write_text(text)
    done = doctor_in(tmp_path, tmp_path)
    assert done.returncode in (0, 1)
    assert done.stderr == ""
    assert f"{broken} cannot be imported: " in done.stdout


def test_other_commands_say_why_they_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError('half installed')")
    done = doctor_in(tmp_path, tmp_path, "-m", "caspar", "bal", "file.txt")
    assert done.returncode == 2
    assert done.stderr == (
        "caspar: cannot start: ImportError: half installed; caspar doctor says what is installed\n"
    )


def test_half_installed_packages(tmp_path: Path) -> None:
    """Metadata without a version, or that is no metadata."""
    for name, text in (("qdldl", "Name: qdldl\n"), ("threadpoolctl", "\0\0")):
        folder = tmp_path / f"{name}-9.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(text)
    (tmp_path / "scipy-9.dist-info").mkdir()
    done = doctor_in(tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "qdldl (version not known)" in done.stdout
