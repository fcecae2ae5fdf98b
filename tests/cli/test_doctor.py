"""`caspar doctor` on machines that are made up, and on this one."""

import subprocess
import sys
from pathlib import Path

import pytest

from caspar.cli import doctor
from caspar.runtime.probe import CudaDevice, CudaDriver, CupyState
from tests.cli.fake_solver import run

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No driver, an empty cache."""
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "find_driver", lambda: None)
    monkeypatch.setattr(doctor, "cuda_problem", lambda: "there is no NVIDIA driver")
    monkeypatch.setattr(doctor, "_TRY_CPU", "print('test CPU')")


def test_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "driver        no NVIDIA driver" in lines
    assert f"cache         {tmp_path / 'cache'}: 0 files, 0 bytes" in lines
    assert "backend cpu   works: test CPU" in lines
    assert "backend cuda  not usable: there is no NVIDIA driver" in lines


def test_with_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    device = CudaDevice("NVIDIA H200", (9, 0), 141 << 30)
    monkeypatch.setattr(doctor, "find_driver", lambda: CudaDriver(12080, (device,), None))
    monkeypatch.setattr(doctor, "probe_cupy", lambda: CupyState("12.9", None))
    monkeypatch.setattr(doctor, "cuda_problem", lambda: None)
    monkeypatch.setattr(doctor, "graph_loop_problem", lambda: "there is no cuda-core")
    monkeypatch.setattr(doctor, "_TRY_CPU", "raise ImportError('no numba')")
    assert run("doctor") == 0
    printed = capsys.readouterr().out
    assert "graph loops   polled by the host: there is no cuda-core" in printed
    assert "NVIDIA H200, compute capability 9.0, 141 GiB" in printed
    assert "NVRTC 12.9" in printed
    assert "backend cpu   does not work: ImportError: no numba" in printed
    assert "backend cuda  works" in printed


def test_graphs_that_repeat_themselves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "cuda_problem", lambda: None)
    monkeypatch.setattr(doctor, "graph_loop_problem", lambda: None)
    monkeypatch.setattr(doctor, "_version", lambda package: f"1.2 of {package}")
    assert run("doctor") == 0
    assert "graph loops   on the device: cuda-core 1.2 of cuda-core" in capsys.readouterr().out


def test_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = CudaDevice("NVIDIA H200", (9, 0), 141 << 30)
    monkeypatch.setattr(doctor, "find_driver", lambda: CudaDriver(13000, (device,), None))
    state = CupyState(None, "CuPy is not installed", is_incomplete=True)
    monkeypatch.setattr(doctor, "probe_cupy", lambda: state)
    monkeypatch.setattr(doctor, "CUPY_PACKAGES", ())
    assert run("doctor") == 0
    printed = capsys.readouterr().out
    assert "CuPy          not installed; for this driver: pip install 'caspar[cuda13]'" in printed


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
    assert "no permission to write it" in capsys.readouterr().out


def test_this_machine() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "caspar", "doctor"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "backend cpu   works" in done.stdout
