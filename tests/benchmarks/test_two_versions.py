"""Two versions of caspar side by side: here the other one is made up."""

import sys
from pathlib import Path

import pytest

from benchmarks import two_versions

OTHER = {
    "caspar/__init__.py": "",
    "benchmarks/__init__.py": "",
    "benchmarks/prepare.py": """
ROOT = None

class Preparation:
    def __init__(self, names, folder):
        pass

    def take(self, name):
        return self

    arrays = None
""",
    "benchmarks/caspar_side.py": """
from types import SimpleNamespace

AUTO = SimpleNamespace(name="auto", details=True, solver={}, make=lambda bundle, backend: None)
VARIANTS = (AUTO,)

def linear_iteration(solver, arrays, variant):
    return SimpleNamespace(linear_ms=0.5, outer_ms=2.0)
""",
}


def run(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    once = ["--plans", "1", "--turns", "1", "--backend", "cpu"]
    monkeypatch.setattr(sys, "argv", ["two_versions", str(folder), "growth 0.01", *once])
    two_versions.main()


def test_prints_the_other_one_this_one_and_their_ratio(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, text in OTHER.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    run(monkeypatch, tmp_path)
    name, *numbers = capfd.readouterr().out.splitlines()[-1].rsplit(maxsplit=6)
    assert name.strip() == "growth 0.01: auto"
    (linear, *of_linear), (rest, *of_rest) = map(float, numbers[:3]), map(float, numbers[3:])
    assert (linear, rest) == (500.0, 2000.0)
    for other, (this, ratio) in ((linear, of_linear), (rest, of_rest)):
        assert this not in (0.0, other)
        assert ratio == pytest.approx(this / other, abs=2e-3)


def test_a_folder_without_a_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path)
    assert f"there is no caspar in {tmp_path}" in capfd.readouterr().err
